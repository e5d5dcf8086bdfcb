"""Whether weights, buffers and other tensors of a model change by anything else than its private steps.

What is written into a model from private rows without noise is released with it: a running mean in a buffer, an
ordinary step of the optimizer, weights that the loop sets. Versions and addresses of all tensors are compared at every
step, and their values now and then, for a write through `.data` changes neither.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from discreet.core.device import tensors_in

Sums = tuple[Any, ...]
_OWN = frozenset(vars(nn.Module()))  # what every module holds, none of it tensors
_LISTENS = 2  # hooks with which a watch listens to optimizers
_COLLECTIONS = (list, tuple, dict, deque)
_MOST_ITEMS = 256  # of a collection in an attribute; a longer one is a vocabulary, and one that grows was shorter
_DEPTH = 4  # of objects and collections inside each other
_NUMBERS = (bool, int, float, complex, str, bytes, np.generic, type(None))  # never changed in place
_EXTRA = "extra_state"


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors that a model holds, with their names: parameters, buffers and tensors in attributes."""
    for prefix, module in model.named_modules():
        values = vars(module)
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    yield f"{prefix}.{name}", tensor
        for name in values.keys() - _OWN:
            value = values[name]
            if isinstance(value, Tensor):
                yield f"{prefix}.{name}", value
            elif isinstance(value, _COLLECTIONS) and len(value) <= _MOST_ITEMS:
                for number, tensor in enumerate(tensors_in(list(value) if isinstance(value, deque) else value)):
                    yield f"{prefix}.{name}.{number}", tensor


def values_of(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Return what a model holds besides parameters and buffers, as values that can be compared.

    The keys are the names of modules and of their attributes: numbers, arrays, tensors, collections and objects of
    these. What `get_extra_state` returns, which is saved with the model, has a key too.
    """
    known: dict[int, Any] = {}
    found: dict[tuple[str, str], Any] = {}
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OWN:
                found[prefix, name] = _comparable(value, known)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            with suppress(Exception):  # of the user's function, whose remedy is to save the model
                found[prefix, _EXTRA] = _comparable(module.get_extra_state(), {})
    return found


def changed_by_rows(model: nn.Module, forward: Callable[[int], Any]) -> bool:
    """Return whether what a model holds besides parameters and buffers depends on the rows of a forward pass.

    `forward` computes the made-up rows number 0 or 1; it was called before. Numbers are put back to try both from the
    same start, so a counter does not depend on the rows. Whatever else changes is taken to depend on them.
    """
    before = values_of(model)
    modules = dict(model.named_modules())
    start = {key: vars(modules[key[0]]).get(key[1]) for key in before if key[1] != _EXTRA}
    forward(1)
    after = values_of(model)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    if not changed:
        return False
    attributes = {key for key in changed if key[1] != _EXTRA}
    if not all(key in start and isinstance(start[key], _NUMBERS) for key in attributes):
        return True
    for prefix, name in attributes:
        setattr(modules[prefix], name, start[prefix, name])
    forward(0)
    again = values_of(model)
    return any(again.get(key) != after.get(key) for key in changed)


def _comparable(value: Any, known: dict[int, Any], depth: int = 0) -> Any:
    """Return a value, or what its parts hold; modules, functions and what is too deep or too long count as nothing."""
    if isinstance(value, _NUMBERS):
        return repr(value)
    if isinstance(value, Tensor):
        return sums_of({"": value})[""]
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, None if value.dtype.hasobject else value.tobytes()
    if depth >= _DEPTH or isinstance(value, nn.Module | type) or callable(value):
        return None
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = None  # inside itself
    parts: Any = None
    if isinstance(value, Mapping):
        parts = [(repr(key), value[key]) for key in value] if len(value) <= _MOST_ITEMS else None
    elif isinstance(value, set | frozenset):
        parts = [("", item) for item in sorted(value, key=repr)] if len(value) <= _MOST_ITEMS else None
    elif isinstance(value, list | tuple | deque):
        parts = [("", item) for item in value] if len(value) <= _MOST_ITEMS else None
    elif hasattr(value, "__dict__"):
        parts = list(vars(value).items())
    if parts is not None:
        known[id(value)] = tuple((name, _comparable(item, known, depth + 1)) for name, item in parts)
    return known[id(value)]


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that are saved with a model, with their names."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip("."), buffer


def sums_of(tensors: Mapping[str, Tensor]) -> dict[str, Sums]:
    """Return a checksum of each tensor's bits, with its shape and type; one read for all tensors of a GPU.

    It is made to notice what a program writes by mistake, not what somebody hides on purpose.
    """
    totals = [checksum(tensor.detach()) for tensor in tensors.values()]
    read = iter(torch.stack(totals).tolist() if len({one.device for one in totals}) == 1 else map(_listed, totals))
    return {name: (tuple(value.shape), value.dtype, *next(read)) for name, value in tensors.items()}


def _listed(total: Tensor) -> list[int]:
    values: list[int] = total.tolist()
    return values


def checksum(tensor: Tensor) -> Tensor:
    """Return two sums of a tensor's bits, on its device."""
    if tensor.layout != torch.strided or tensor.is_quantized or not tensor.numel():
        return torch.tensor([tensor.numel(), _version(tensor)], device=tensor.device)
    bits = tensor.contiguous().view(-1).view(torch.uint8)
    words = bits.numel() // 8 * 8
    whole, rest = bits[:words], bits[words:]
    if whole.storage_offset() % 8:
        whole = whole.clone()
    numbers = whole.view(torch.int64)
    return torch.stack([numbers.sum() + rest.sum(dtype=torch.int64), numbers[::2].sum()])


@dataclass
class Known:
    """What a tensor was when the training had it last; `storage` keeps its address from being used again."""

    tensor: Tensor
    version: int
    address: int
    storage: object

    @classmethod
    def of(cls, tensor: Tensor) -> Known:
        """Return a tensor as it is now."""
        plain = tensor.layout == torch.strided
        return cls(tensor, _version(tensor), _address(tensor), tensor.untyped_storage() if plain else None)

    def is_same(self, tensor: Tensor) -> bool:
        """Return whether this is the tensor, and nothing was written into it but through `.data`."""
        return tensor is self.tensor and _version(tensor) == self.version and _address(tensor) == self.address

    def take(self) -> None:
        """Take the same tensor as it is now."""
        self.version, address = _version(self.tensor), _address(self.tensor)
        if address != self.address:
            self.address, self.storage = address, self.tensor.untyped_storage()


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided else 0


class ChangeWatch:
    """Tells whether a model was changed by anything but the steps that `stepping` encloses.

    Optimizers of this process report every step on the model's parameters, for fused ones change no version. One that
    steps with the gradients of `expect`, which the caller applies, is a private step too. `on_step` is called with the
    optimizer before every step on the parameters.

    Guarantee: none; it reads weights, and says whether they changed.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        on_step: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        """Start to listen to optimizers; nothing is compared before `start`."""
        self.model, self._on_step = model, on_step
        self.is_changed = False
        self._trained = {id(parameter) for parameter in parameters.values()}
        self._known: dict[str, Known] | None = None
        self._sums: dict[str, Sums] = {}  # of what is never trained
        self._weights: dict[str, Sums] | None = None  # of what is trained, where they were taken
        self._parameters = list(parameters.values())
        self._given: dict[int, Known] = {}  # protected gradients, to which no backward pass has added
        self._given_sums: dict[str, Sums] = {}  # of these gradients, where they are compared by their values
        self._last: Any = None  # the hook that an optimizer runs after its other ones, while it steps
        self._inside = self._applies = self._values = False
        own = weakref.ref(self)

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            watch = own()
            if watch is not None:
                watch._before(optimizer)

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            watch = own()
            if watch is not None:
                watch._after()

        self._handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        weakref.finalize(self, _remove, self._handles)

    def start(self) -> None:
        """Take the model as it is before the first step, unless it was."""
        if self._known is None:
            held = dict(tensors_of(self.model))
            self._known = {name: Known.of(tensor) for name, tensor in held.items()}
            self._sums = sums_of({name: one for name, one in held.items() if id(one) not in self._trained})
            self._weights = self._weight_sums(held)

    def compare(self, values: bool = False) -> bool:
        """Return whether anything changed since the last private step; with `values`, compare them too."""
        if self._known is None or self.is_changed:
            return self.is_changed
        held = dict(tensors_of(self.model))
        other: dict[str, Tensor] = {}
        for name, tensor in held.items():
            known = self._known.get(name)
            if known is None or not known.is_same(tensor):
                other[name] = tensor
        self.is_changed = held.keys() != self._known.keys() or bool(other and self._differ(other))
        if not self.is_changed:
            self._known |= {name: Known.of(tensor) for name, tensor in other.items()}  # the same values elsewhere
        if values and not self.is_changed:
            self.is_changed = self._differ({name: one for name, one in held.items() if self._has_sum(name)})
        return self.is_changed

    @contextmanager
    def stepping(self, gradients: Mapping[nn.Parameter, Tensor], values: bool) -> Iterator[None]:
        """Enclose the step of an optimizer with protected gradients; with `values`, sum the weights then."""
        self._give(gradients, values)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._unlisten()
            self._given, self._given_sums = {}, {}
        self._take(values)

    def expect(self, gradients: Mapping[nn.Parameter, Tensor], values: bool) -> None:
        """Let an optimizer of the caller apply these gradients, unless anything is written into them.

        With `values`, take the sums of the weights afterwards.
        """
        self._values = values
        if len(self._handles) == _LISTENS:
            own = weakref.ref(self)

            def spoil(parameter: Tensor) -> None:
                watch = own()
                if watch is not None:
                    watch._given.pop(id(parameter), None)

            for parameter in self._parameters:
                self._handles.append(parameter.register_post_accumulate_grad_hook(spoil))  # type: ignore[no-untyped-call]
        self._give(gradients, values)

    def _give(self, gradients: Mapping[nn.Parameter, Tensor], values: bool) -> None:
        self._given = {id(parameter): Known.of(one) for parameter, one in gradients.items()}
        self._given_sums = sums_of({str(id(p)): one for p, one in gradients.items()}) if values else {}

    def close(self) -> None:
        """Compare everything for the last time, and stop listening to optimizers."""
        self.compare(values=True)
        self._unlisten()
        _remove(self._handles)

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(id(p) in self._trained for group in optimizer.param_groups for p in group["params"]):
            return
        if not self._inside and self._known is not None:
            moved = self._moved_by(optimizer)
            if moved and all(self._is_given(p) for p in moved):
                self.compare()
                self._applies = True
            elif moved:
                self.is_changed = True
        if self._inside or self._applies:
            self._listen_last(optimizer)
            self._on_step(optimizer)

    def _listen_last(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare the gradients again after all hooks of an optimizer: what these add to a gradient is applied too."""
        own = weakref.ref(self)

        def last(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            watch = own()
            if watch is not None and not watch._are_given(watch._moved_by(optimizer)):
                watch.is_changed = True

        if self._last is None:  # an optimizer that steps another one has one step
            self._last = optimizer.register_step_pre_hook(last)

    def _moved_by(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        own = [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._trained]
        return [p for p in own if p.grad is not None]

    def _unlisten(self) -> None:
        if self._last is not None:
            self._last.remove()
            self._last = None

    def _after(self) -> None:
        if self._applies:
            self._applies = False
            self._unlisten()
            self._take(self._values)

    def _are_given(self, parameters: list[nn.Parameter]) -> bool:
        """Return whether these have the protected gradients, by their values too where these are compared."""
        if not all(self._is_given(parameter) for parameter in parameters):
            return False
        held = {str(id(p)): p.grad for p in parameters if p.grad is not None and self._given_sums}
        return all(self._given_sums[name] == sums for name, sums in sums_of(held).items()) if held else True

    def _is_given(self, parameter: nn.Parameter) -> bool:
        known = self._given.get(id(parameter))
        return known is not None and parameter.grad is not None and known.is_same(parameter.grad)

    def _take(self, values: bool) -> None:
        """Take the trained weights as they are now."""
        if self._known is None or self.is_changed:
            return
        for known in self._known.values():
            if id(known.tensor) in self._trained:
                known.take()
        self._weights = (
            self._weight_sums({name: known.tensor for name, known in self._known.items()}) if values else None
        )

    def _weight_sums(self, held: Mapping[str, Tensor]) -> dict[str, Sums]:
        return sums_of({name: one for name, one in held.items() if id(one) in self._trained})

    def _has_sum(self, name: str) -> bool:
        return name in self._sums or (self._weights is not None and name in self._weights)

    def _differ(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether tensors have other values than before, or values before that are not known."""
        if not all(self._has_sum(name) for name in tensors):
            return True
        before = self._sums | (self._weights or {})
        return any(before[name] != sums for name, sums in sums_of(tensors).items())


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
