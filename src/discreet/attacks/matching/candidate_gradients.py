"""Gradients of candidate texts, compared with released gradients without being materialized where possible.

All candidates of all problems go through one forward and one backward pass, and the inner products and squared norms
are differentiable with respect to the candidates. For a linear layer with inputs X and output gradients D, the weight's
gradient is D^T X, so its inner product with a target T = U V^T is <D U, X V>, and its squared norm is <X X^T, D D^T>.
Released tensors of one shape are stacked, as launching each kernel costs more than its computation.

Some parameters have a zero gradient for every text, such as the biases of attention's keys: adding the same number to
all inputs of a softmax does not change it. A client sends only rounding errors or noise for them, so they reveal
nothing about the text, but they do reveal the size of the noise.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.attacks.encoder_layers import Anatomy, dissect, encoder_inputs, reject_pairs
from discreet.clipping.record import Record
from discreet.clipping.slots import Lookup, Pair, Slot, Vectors
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError, invalid
from discreet.core.types import GradientRelease
from discreet.models.base import TextModel

_SPARE = 8  # columns beyond the number of tokens for the low-rank factors of a target
_LOW_RANK = 1e-6  # a target is stored as factors if their relative error is at most this
_TEXTS, _LENGTH = 4, 7
_CANCELLED = 1e-4  # a sum cancels if |sum| / sum of |values| is below this; rounding leaves 1e-6


class Imitation:
    """A copy of the public model that computes what clients would send, and the releases to compare it with.

    The word-embedding gradient is left out, and so are the gradients that are zero for every text (key biases).
    `names` are the compared tensors, in order. `target_squares` is (problems, tensors), and `row_target_squares`
    (problems, rows) for the rows of the position embeddings.
    """

    def __init__(
        self, model: TextModel, releases: Sequence[GradientRelease], attack: str, signal_norm: float = 0.0
    ) -> None:
        """Prepare the comparable tensors of releases of one kind; raise if there are none.

        `signal_norm` is the norm of the gradients before noise, if the attacker knows it from the protection.
        """
        anatomy = dissect(model)
        self.model = copy.deepcopy(model, {id(model.tokenizer): model.tokenizer}).eval()
        self.words = anatomy.embeddings.words
        self.device = model.device
        shared = [n for n, _ in model.named_parameters() if all(n in seen.gradients for seen in releases)]
        shared = [n for n in shared if n != anatomy.embeddings.word_name]
        _reject_unusable(model, releases, shared, attack)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in shared)
        self._alive = alive_masks(self.model, self.words)
        names = [n for n in shared if n not in self._alive or bool(self._alive[n].any())]
        self._tape = Tape(self.model, create_graph=True)
        transposed = _transposed(self.model)
        rank = max(_tokens(seen) for seen in releases) + _SPARE
        self._targets = {n: self._target(n, releases, n in transposed, rank) for n in names}
        self._tables = [n for n in names if _is_table(self.model, n)]
        self._positions, self._rows = self._used_rows(anatomy, releases)
        self.row_target_squares = self._rows.square().sum(-1)
        self._pairs = stacked_matrices(self._targets, [n for n in names if n not in self._tables])
        self._vectors = stacked_vectors(self._targets, names, self._alive)
        grouped = [names for names, _ in self._pairs] + [names for names, _, _ in self._vectors]
        self.names = tuple(itertools.chain(*grouped, self._tables))
        squares = [self._targets[n].dense().flatten(1).square().sum(1) for n in self.names]
        self.target_squares = torch.stack(squares, 1)
        self.sizes = torch.tensor([self._size(n) for n in self.names], device=self.device, dtype=torch.float32)
        self.divisors = torch.tensor([seen.divisor for seen in releases], device=self.device)
        self.noise_std = self._noise(releases)
        for seen, noise in zip(releases, self.noise_std.tolist(), strict=True):
            if noise == 0:  # undeclared noise also makes every row nonzero
                reject_pairs(seen, anatomy, attack)
        self.protected = torch.tensor([seen.guarantee is not None or seen.noise_std > 0 for seen in releases])
        self.protected = self.protected.to(self.device)
        self.signal_squares = self._signal(signal_norm)
        self.shares = self._shares()

    @property
    def problems(self) -> int:
        """The number of releases."""
        return len(self.divisors)

    def record(self, x: Tensor, mask: Tensor, labels: Tensor) -> Record:
        """Return the record of one pass over candidates (problems, candidates, sentences, tokens, width).

        The mask is (problems, sentences, tokens); labels are (problems, candidates, sentences), or with a probability
        for each class as a fourth dimension.
        """
        s, k, b, t, width = x.shape
        targets = labels.flatten(0, 2)
        masks = mask[:, None].expand(s, k, b, t).reshape(-1, t)
        inputs = encoder_inputs(self.model, x.reshape(-1, t, width), masks)
        # The fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), self._tape:
            losses = self.model.losses(inputs, targets)
        with torch.enable_grad():
            return self._tape.backward(losses)

    def figures(self, record: Record, shape: Sequence[int]) -> Figures:
        """Return inner products and squared norms from the record of candidates with this shape."""
        s, k = shape[:2]
        inner: list[Tensor] = []
        squares: list[Tensor] = []
        slots = {slot.name: slot for slot in record.slots}
        for names, target in self._pairs:
            pairs = [slots[name] for name in names]
            products, norms = pair_figures(pairs, target, s, k)  # type: ignore[arg-type]
            inner.append(products)
            squares.append(norms)
        for names, values, alive in self._vectors:
            stacked = torch.stack([values_of(slots[name]) for name in names], 1)
            stacked = stacked.reshape(s, k, -1, *stacked.shape[1:]).sum(2) * alive
            inner.append((stacked * values[:, None]).sum(-1))
            squares.append(stacked.square().sum(-1))
        for name in self._tables:
            table = slots[name]
            assert isinstance(table, Lookup)
            products, norms = lookup_figures(table, self._targets[name].dense(), s, k)
            inner.append(products[..., None])
            squares.append(norms[..., None])
        scale = 1 / self.divisors[:, None, None]
        rows = self._row_figures(slots, s, k)
        return Figures(
            torch.cat(inner, -1) * scale,
            torch.cat(squares, -1).clamp_min(0) * scale.square(),
            rows[0] * scale,
            rows[1] * scale.square(),
        )

    def _row_figures(self, slots: Mapping[str, Slot], s: int, k: int) -> tuple[Tensor, Tensor]:
        """Return inner products and squared norms of each used row of the position embeddings."""
        if self._positions is None:
            empty = torch.zeros(s, k, 0, device=self.device)
            return empty, empty
        name, first = self._positions
        slot = slots[name]
        assert isinstance(slot, Lookup)
        places = first + torch.arange(self._rows.shape[1], device=self.device)
        at = (slot.ids.reshape(s * k, 1, -1) == places[:, None]).to(slot.grads.dtype)
        rows = (at @ by_unit(slot.grads, s, k)).view(s, k, len(places), -1)
        return (rows * self._rows[:, None]).sum(-1), rows.square().sum(-1)

    def _used_rows(
        self, anatomy: Anatomy, releases: Sequence[GradientRelease]
    ) -> tuple[tuple[str, int] | None, Tensor]:
        """Return the position embeddings' name and first used row, and the released rows, (problems, rows, width)."""
        lengths = [length for seen in releases for length in seen.lengths or ()]
        name, first = anatomy.embeddings.position_name, anatomy.embeddings.first_position
        if name not in self._tables:
            return None, torch.zeros(len(releases), 0, self.words.shape[1], device=self.device)
        table = self._targets[name].dense()
        used = table.abs().sum((0, 2)).nonzero()
        end = first + max(lengths) if lengths else int(used.max()) + 1 if len(used) else first
        return (name, first), table[:, first:end]

    def gradients(self, slot: Slot, s: int, k: int) -> Tensor:
        """Return the gradients of one tensor, (problems, candidates, *shape), matrices as (outputs, inputs)."""
        if isinstance(slot, Pair):
            inputs, grads = by_unit(slot.inputs, s, k), by_unit(slot.grads, s, k)
            value = torch.bmm(grads.mT, inputs)
            value = value.view(s, k, *value.shape[1:])
        elif isinstance(slot, Lookup):
            value = slot.gradients().reshape(s, k, -1, *slot.shape).sum(2)
        else:
            value = values_of(slot).reshape(s, k, -1, *slot.shape).sum(2)
            if slot.name in self._alive:
                value = value * self._alive[slot.name]
        return value / self.divisors.view(-1, 1, *(1 for _ in value.shape[2:]))

    def target(self, name: str) -> Tensor:
        """Return one tensor of every release, (problems, *shape), matrices as (outputs, inputs)."""
        return self._targets[name].dense()

    def along(self, slot: Slot, direction: Tensor) -> Tensor:
        """Return <g, direction>, (problems, candidates), for one direction per candidate."""
        s, k = direction.shape[:2]
        if isinstance(slot, Pair):
            inputs, grads = by_unit(slot.inputs, s, k), by_unit(slot.grads, s, k)
            products = (torch.bmm(inputs, direction.flatten(0, 1).mT) * grads).sum((1, 2))
        elif isinstance(slot, Lookup):
            flat = direction.flatten(0, 1)
            units = torch.arange(s * k, device=flat.device).repeat_interleave(slot.ids.shape[0] // (s * k))
            rows = flat[units[:, None], slot.ids]
            products = without_padding(slot, (rows * slot.grads).sum(-1)).reshape(s * k, -1).sum(1)
        else:
            values = values_of(slot).reshape(s * k, -1, direction[0, 0].numel()).sum(1)
            products = (values * direction.flatten(0, 1).flatten(1)).sum(1)
        return products.view(s, k) / self.divisors[:, None]

    def _target(self, name: str, releases: Sequence[GradientRelease], transposed: bool, rank: int) -> Target:
        value = torch.stack([seen.gradients[name].detach().to(self.device, torch.float32) for seen in releases])
        if name in self._alive:
            value = value * self._alive[name]
        if transposed:
            value = value.mT.contiguous()
        return Target(value) if _is_table(self.model, name) else Target.of(value, rank)

    def _size(self, name: str) -> int:
        alive = self._alive.get(name)
        return self.model.get_parameter(name).numel() if alive is None else int(alive.sum())

    def _noise(self, releases: Sequence[GradientRelease]) -> Tensor:
        """Return the noise standard deviation of each release: declared, or measured on gradients that are zero."""
        declared = torch.tensor([float(seen.noise_std) for seen in releases], device=self.device)
        squares, count = torch.zeros_like(declared), 0
        for name, alive in self._alive.items():
            dead = [seen.gradients[name].detach().to(self.device).float()[~alive] for seen in releases]
            squares = squares + torch.stack([part.square().sum() for part in dead])
            count += int((~alive).sum())
        if count == 0:
            return declared
        measured = (squares / count).sqrt()
        measured = torch.where(measured > 1e-6 * self.target_squares.sum(1).sqrt(), measured, 0.0)
        return torch.where(declared > 0, declared, measured)

    def _signal(self, signal_norm: float) -> Tensor:
        """Return the squared norm of each gradient without noise: known, or estimated."""
        if signal_norm > 0:
            return torch.full_like(self.noise_std, signal_norm**2)
        total, variance = self.target_squares.sum(1), self.noise_std.square()
        count = self.sizes.sum()
        return (total - variance * count).clamp_min(variance * (2 * count).sqrt())

    def _shares(self) -> Tensor:
        """Return each tensor's share of a gradient's squared norm, over a few random texts, (tensors,)."""
        if not bool((self.noise_std > 0).any()):
            return torch.full((len(self.names),), 1 / len(self.names), device=self.device)
        source = torch.Generator().manual_seed(1)
        ids = torch.randint(len(self.words), (self.problems, 1, 1, 12), generator=source).to(self.device)
        labels = torch.zeros(self.problems, 1, 1, device=self.device)
        labels = labels.long() if self.model.task.has_classes else labels
        figures = self.figures(self.record(self.words[ids], torch.ones_like(ids[:, 0]), labels), ids.shape)
        squares = figures.squares.detach().flatten(0, 1)
        return (squares / squares.sum(-1, keepdim=True).clamp_min(1e-30)).mean(0)


def _tokens(seen: GradientRelease) -> int:
    return sum(seen.lengths) if seen.lengths is not None else 10**9


def _transposed(model: TextModel) -> set[str]:
    """Return the weights that are stored as (inputs, outputs), as in GPT-2's Conv1D."""
    return {f"{name}.weight" for name, module in model.named_modules() if type(module).__name__ == "Conv1D"}


def _is_table(model: TextModel, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), torch.nn.Embedding)


def _reject_unusable(model: TextModel, releases: Sequence[GradientRelease], names: Sequence[str], attack: str) -> None:
    if not any(name.startswith("encoder.") for name in names):
        raise UnsupportedError(
            f"Expected gradients of the encoder's layers for {attack}, got {', '.join(names) or 'none'}. The gradient "
            "of a head reveals one vector, not a text; attack a release of all layers."
        )
    shapes: Mapping[str, torch.Size] = {name: model.get_parameter(name).shape for name in names}
    for seen in releases:
        for name, shape in shapes.items():
            if seen.gradients[name].shape != shape:
                actual = tuple(seen.gradients[name].shape)
                raise invalid(f"gradients[{name!r}].shape", actual, f"equal to {tuple(shape)}", "Pass the same model.")
            if not bool(torch.isfinite(seen.gradients[name]).all()):
                raise UnsupportedError(f"Expected finite gradients for {attack}, got NaN or infinity in {name!r}.")


@dataclass(frozen=True)
class Figures:
    """For each problem, candidate and tensor: <g, target> and |g|^2, of shape (problems, candidates, tensors).

    `row_inner` and `row_squares` are the same for each used row of the position embeddings, (problems, candidates,
    rows); rows is 0 if the model has no position embeddings.
    """

    inner: Tensor
    squares: Tensor
    row_inner: Tensor
    row_squares: Tensor


@dataclass(frozen=True)
class Target:
    """One tensor of every release, (problems, *shape), matrices as (outputs, inputs); factored if its rank is low.

    `left` is (problems, outputs, rank) with orthonormal columns, `right` is (problems, inputs, rank).
    """

    value: Tensor | None
    left: Tensor | None = None
    right: Tensor | None = None

    @classmethod
    def of(cls, value: Tensor, rank: int) -> Target:
        """Return a tensor as factors if its rank is low enough; the first release decides whether to try the others."""
        if value.dim() != 3 or rank >= min(value.shape[1:]) // 2 or cls._factors(value[:1], rank) is None:
            return cls(value)
        factors = cls._factors(value, rank)
        return cls(value) if factors is None else cls(None, *factors)

    @staticmethod
    def _factors(value: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
        """Return factors with `rank` columns, or None if their error is too large, as it is under noise."""
        source = torch.Generator(device="cpu").manual_seed(0)
        probe = torch.randn(value.shape[2], rank, generator=source).to(value.device)
        left = torch.linalg.qr((value @ probe).double()).Q.float()
        right = value.mT @ left
        error = (value - left @ right.mT).flatten(1).norm(dim=1)
        exact = bool((error <= _LOW_RANK * value.flatten(1).norm(dim=1)).all())
        return (left, right) if exact else None

    def dense(self) -> Tensor:
        """Return the tensor itself."""
        if self.value is not None:
            return self.value
        assert self.left is not None and self.right is not None
        return self.left @ self.right.mT


def by_unit(values: Tensor, s: int, k: int) -> Tensor:
    """Return (rows, time, width) as (problems * candidates, sentences * time, width)."""
    return values.reshape(s * k, -1, values.shape[-1])


def pair_figures(slots: Sequence[Pair], target: Target, s: int, k: int) -> tuple[Tensor, Tensor]:
    """Return inner products and squared norms for matrices of one shape, (problems, candidates, matrices)."""
    inputs = torch.stack([slot.inputs.reshape(s, -1, slot.inputs.shape[-1]) for slot in slots])
    grads = torch.stack([slot.grads.reshape(s, -1, slot.grads.shape[-1]) for slot in slots])
    if target.value is None:
        assert target.left is not None and target.right is not None
        products = (inputs @ target.right) * (grads @ target.left)
    else:
        products = (inputs @ target.value.mT) * grads
    inner = products.reshape(len(slots), s, k, -1).sum(-1)
    inputs, grads = (value.reshape(len(slots) * s * k, -1, value.shape[-1]) for value in (inputs, grads))
    squares = ((inputs @ inputs.mT) * (grads @ grads.mT)).sum((1, 2)).view(len(slots), s, k)
    return inner.movedim(0, -1), squares.movedim(0, -1)


def lookup_figures(slot: Lookup, table: Tensor, s: int, k: int) -> tuple[Tensor, Tensor]:
    """Return inner products and squared norms for an embedding table, (problems, candidates)."""
    problem = torch.arange(s, device=table.device).repeat_interleave(slot.ids.shape[0] // s)
    inner = without_padding(slot, (table[problem[:, None], slot.ids] * slot.grads).sum(-1)).reshape(s, k, -1).sum(-1)
    ids, grads = slot.ids.reshape(s * k, -1), by_unit(slot.grads, s, k)
    same = (ids[:, :, None] == ids[:, None, :]).to(grads.dtype)
    if slot.padding is not None:
        same = same * (ids != slot.padding)[:, :, None]
    return inner, ((grads @ grads.mT) * same).sum((1, 2)).view(s, k)


def values_of(slot: Slot) -> Tensor:
    """Return the gradients of a one-dimensional tensor, one per row."""
    if not isinstance(slot, Vectors):
        raise UnsupportedError(
            f"Expected no tied weights among the trained parameters, got {slot.name!r}. Gradient matching reads each "
            "use of a weight by itself; freeze the embeddings, or use dager."
        )
    return slot.values


def without_padding(slot: Lookup, values: Tensor) -> Tensor:
    """Return one value per token, with zeros for padding, which has no gradient."""
    return values if slot.padding is None else values * (slot.ids != slot.padding)


def stacked_matrices(targets: dict[str, Target], names: Sequence[str]) -> list[tuple[list[str], Target]]:
    """Return the matrices grouped by shape: names, and their targets as (matrices, problems, outputs, inputs).

    Dense targets become views of their group in `targets`, so that nothing is stored twice.
    """
    groups: dict[tuple[bool, torch.Size, bool], list[str]] = defaultdict(list)
    for name in names:
        target = targets[name]
        shape = target.dense().shape
        if len(shape) == 3:  # layers after the encoder, such as a pooler, may not receive every token
            groups[target.value is None, shape, name.startswith("encoder.")].append(name)
    stacks = []
    for (factored, _, _), members in groups.items():
        parts = [targets[name] for name in members]
        if factored:
            left, right = ([getattr(part, side) for part in parts] for side in ("left", "right"))
            stacked = Target(None, torch.stack(left), torch.stack(right))
        else:
            stacked = Target(torch.stack([part.dense() for part in parts]))
            for place, name in enumerate(members):
                targets[name] = Target(stacked.dense()[place])
        stacks.append((members, stacked))
    return stacks


def stacked_vectors(
    targets: Mapping[str, Target], names: Sequence[str], alive: Mapping[str, Tensor]
) -> list[tuple[list[str], Tensor, Tensor]]:
    """Return the one-dimensional tensors grouped by size: names, targets and masks of live elements."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name in names:
        value = targets[name].dense()
        if value.dim() == 2:
            groups[value.shape[1]].append(name)
    stacks = []
    for size, members in groups.items():
        values = torch.stack([targets[name].dense() for name in members], 1)
        ones = torch.ones(size, device=values.device)
        stacks.append((members, values, torch.stack([alive.get(name, ones).float() for name in members])))
    return stacks


def alive_masks(model: TextModel, words: Tensor) -> dict[str, Tensor]:
    """Return, for each bias of the encoder with dead elements, the mask of its live elements.

    An element is dead if its output gradients are nonzero but always cancel over the tokens of a text. A few random
    texts are sent through the model; no private data is used.
    """
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(len(words), (_TEXTS, _LENGTH), generator=source).to(words.device)
    outputs: dict[str, Tensor] = {}

    def recorder(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def record(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            outputs[name] = output

        return record

    handles = [
        module.register_forward_hook(recorder(f"encoder.{name}.bias"))
        for name, module in model.encoder.named_modules()
        if isinstance(getattr(module, "bias", None), nn.Parameter) and not isinstance(module, nn.LayerNorm)
    ]
    inputs = encoder_inputs(model, words[ids].requires_grad_())
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            scores = model(inputs)
            weights = torch.randn(scores.shape, generator=source).to(scores)
            total = (scores * weights).sum()
            grads: Any = torch.autograd.grad(total, list(outputs.values()), allow_unused=True) if outputs else ()
    finally:
        for handle in handles:
            handle.remove()
    masks: dict[str, Tensor] = {}
    for name, grad in zip(outputs, grads, strict=True):
        if grad is None:
            continue
        rows = grad.reshape(_TEXTS, -1, grad.shape[-1])
        sums, sizes = rows.sum(1).abs().amax(0), rows.abs().sum(1).amax(0)
        alive = (sums > _CANCELLED * sizes) | (sizes == 0)
        if not bool(alive.all()):
            masks[name] = alive
    return masks
