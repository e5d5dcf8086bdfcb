"""Records what each layer was given and the gradient of what it returned, in one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from discreet.clipping.layers import Forward, Layer, around_tables, find_layers, forward_of, refuse_mode, watched
from discreet.clipping.record import Call, Collector, Record
from discreet.clipping.slots import Units
from discreet.core.errors import UnsupportedError


class Tape:
    """A recorder for one model: it finds the trainable layers, or refuses by name what cannot be clipped.

    Inside `with tape:` the forward of each trainable layer is replaced by one that keeps its input and hides its
    weights from autograd, so that the backward pass computes no weight gradient. Outside, the model is untouched.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    >>> tape = Tape(model)
    >>> with tape:
    ...     losses = nn.functional.mse_loss(model(torch.randn(5, 3)), torch.zeros(5, 2), reduction="none").sum(1)
    >>> tape.backward(losses).norms().shape
    torch.Size([5])

    With `create_graph`, norms and inner products can be differentiated with respect to the model's inputs.

    Guarantee: none, for it keeps the raw gradients of a batch.
    """

    def __init__(self, model: nn.Module, *, create_graph: bool = False) -> None:
        """Find the layers of a model, or refuse it."""
        self.model = model
        self.layers = find_layers(model)
        self.batch_size: int | None = None
        self._create_graph = create_graph
        self._parameters = {
            name: layer.module.get_parameter(local) for layer in self.layers for local, name in layer.parameters.items()
        }
        self._watched = watched(model)
        self._forwards: list[tuple[nn.Module, Forward]] = [(la.module, forward_of(la, self)) for la in self.layers]
        self._forwards += [(module, _sized(module, self)) for module in around_tables(model, self.layers)]
        self._expected: int | None = None
        self._before: list[Forward | None] = []
        self._calls: list[Call] = []
        self._anchor: Tensor | None = None
        self._last_cast: tuple[Tensor, int, Tensor] | None = None
        self._seen: set[str] = set()

    def expect(self, batch_size: int) -> Self:
        """Say how many rows the next batch has; needed only if a table of positions is called outside its model."""
        self._expected = batch_size
        return self

    def __enter__(self) -> Self:
        """Begin to record."""
        if self._before:
            raise UnsupportedError("Expected a tape that is not recording. Leave the first `with tape:` block first.")
        for name, module in self._watched:
            refuse_mode(name, module)
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                raise UnsupportedError(f"Expected parameter {name!r} still trainable. Make a new tape after freezing.")
        self._calls = []
        self.batch_size, self._expected = self._expected, None
        device = next(iter(self._parameters.values())).device
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._before = [module.__dict__.get("forward") for module, _ in self._forwards]
        for module, forward in self._forwards:
            module.__dict__["forward"] = forward
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the layers their own forwards back; after an error, forget what was recorded."""
        for (module, _), before in zip(self._forwards, self._before, strict=True):
            if before is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = before
        self._before, self._last_cast = [], None
        if error is not None:
            self._calls, self.batch_size = [], None

    def backward(self, losses: Tensor, units: Tensor | None = None, *, seeds: Tensor | None = None) -> Record:
        """Run the backward pass and return the record of every unit's gradient.

        `losses` holds one loss for each row; a scalar is refused, for it has already mixed the rows. `units` names each
        row's unit of privacy, numbered from 0: a unit's rows are summed before anything is measured. `seeds` are the
        weights of the losses in the backward pass, all one unless given.
        """
        if self._before:
            raise UnsupportedError("Expected backward after the `with tape:` block. Leave the block first.")
        calls, self._calls = self._calls, []
        size, self.batch_size = self.batch_size, None
        _refuse_losses(losses, size)
        rows = losses.shape[0]
        if rows == 0:
            return self.empty()
        if not calls:
            raise UnsupportedError("Expected a forward pass inside `with tape:` before backward, found none.")
        grouped = Units.of(units, rows)
        collector = Collector(self.layers, grouped, calls, rows, hold=self._create_graph)
        seeds = torch.ones_like(losses) if seeds is None else seeds
        with torch.autocast(losses.device.type, enabled=False):
            (self._differentiable if self._create_graph else self._once)(losses, seeds, calls)
            slots = collector.slots()
        for call in calls:
            call.let_go()
        return Record(slots, grouped, _wide(losses))

    def empty(self) -> Record:
        """Return the record of a batch without rows, as Poisson sampling sometimes draws it: all sums are zero."""
        like = _wide(next(iter(self._parameters.values())))
        return Record(Collector(self.layers, Units(0), [], 0, hold=False).slots(), Units(0), like)

    def keep(self, layer: Layer, kept: Tensor | None, out: Tensor) -> Tensor:
        """Keep what a layer was given, and listen for the gradient of what it returned."""
        if not torch.is_grad_enabled():
            return out
        if not out.requires_grad:
            out = _Anchored.apply(out, self._anchor)  # type: ignore[no-untyped-call]
        self._calls.append(Call(layer, kept, out, self._create_graph))
        return out

    def cast(self, value: Tensor) -> Tensor:
        """Return an input in autocast's type, cast once for all the neighbours that are given the same input."""
        if value.dtype != torch.float32 or not torch.is_autocast_enabled(value.device.type):
            return value
        last = self._last_cast
        if last is not None and last[0] is value and last[1] == value._version:
            return last[2]
        narrow = value.to(torch.get_autocast_dtype(value.device.type))
        self._last_cast = (value, value._version, narrow)
        return narrow

    def first_time(self, layer: Layer) -> bool:
        """Whether a layer is called for the first time since the tape was made."""
        if layer.name in self._seen:
            return False
        self._seen.add(layer.name)
        return True

    def _once(self, losses: Tensor, seeds: Tensor, calls: list[Call]) -> None:
        # The layers hid their weights, so a weight that autograd still reaches is used outside its layer.
        before = [p.grad for p in self._parameters.values()]
        for p in self._parameters.values():
            p.grad = None
        try:
            torch.autograd.backward([losses], [seeds])
            outside = [name for name, p in self._parameters.items() if p.grad is not None]
        finally:
            for p, grad in zip(self._parameters.values(), before, strict=True):
                p.grad = grad
        _refuse_outside(outside)

    def _differentiable(self, losses: Tensor, seeds: Tensor, calls: list[Call]) -> None:
        edges = [call.edge for call in calls if call.edge is not None]
        wanted: Any = [*edges, *self._parameters.values()]
        found = torch.autograd.grad([losses], wanted, [seeds], create_graph=True, allow_unused=True)
        _refuse_outside([n for n, g in zip(self._parameters, found[len(edges) :], strict=True) if g is not None])


class _Anchored(torch.autograd.Function):
    """The identity, with a gradient asked for even where nothing before it needs one."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor) -> Tensor:
        return value.detach()  # not a view, so that the model may still change it in place

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None


def _sized(module: nn.Module, tape: Tape) -> Forward:
    """Return a module's forward that first tells the tape how many rows the batch has."""
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if tape.batch_size is None:
            tape.batch_size = max((t.shape[0] for t in _tensors([*args, *kwargs.values()]) if t.dim()), default=None)
        return own(*args, **kwargs)

    return forward


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def _refuse_losses(losses: Tensor, size: int | None) -> None:
    shape = tuple(losses.shape)
    if losses.dim() == 0:
        raise UnsupportedError(
            "Expected a vector of losses, one for each row, found a scalar. A mean or a sum has mixed the rows "
            "already; compute the loss with reduction='none'."
        )
    if losses.dim() > 1 or (size is not None and shape != (size,)):
        rows = "each row" if size is None else f"each of {size} rows"
        raise UnsupportedError(
            f"Expected one loss for {rows}, found losses of shape {shape}. Sum or average the losses within a row."
        )
    if losses.shape[0] and not losses.requires_grad:
        raise UnsupportedError(
            "Expected losses that depend on the model, found none. Compute them inside `with tape:`."
        )


def _refuse_outside(names: list[str]) -> None:
    if names:
        raise UnsupportedError(
            f"Expected parameter {names[0]!r} used by its own layer alone, found it used elsewhere in the model. What "
            "it does there is not clipped; use a copy, or freeze it."
        )


def _wide(like: Tensor) -> Tensor:
    return like.detach() if like.dtype == torch.float64 else like.detach().float()
