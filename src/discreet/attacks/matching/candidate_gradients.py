"""The gradients that candidate texts would give, compared with released ones and, where possible, never formed.

All candidates of all problems go through one forward and one backward pass, and the inner products and squared norms
computed from it can be differentiated with respect to the candidates. For a linear layer with inputs X and output
gradients D the weight's gradient is D^T X, so its inner product with a target T = U V^T is <D U, X V>, and its squared
norm is <X X^T, D D^T>. Released tensors of one shape are stacked: each alone costs more to launch than to compute.

Some numbers of a model have a zero gradient for every text, such as the biases of attention's keys: softmax does not
change if the same number is added to all its inputs, and a key's bias does just that. What a client sends for it is
rounding, or noise alone: it says nothing about the text, but it does say how large the noise is.
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

from discreet.attacks.encoder_layers import Anatomy, dissect, reject_pairs
from discreet.clipping.record import Record
from discreet.clipping.slots import Lookup, Pair, Slot, Vectors
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError, invalid
from discreet.core.types import GradientRelease
from discreet.models.classifier import Classifier

_SPARE = 8  # columns beyond the number of tokens when the span of a target is sought
_LOW_RANK = 1e-6  # a target is kept as factors if they miss at most this share of its norm
_TEXTS, _LENGTH = 4, 7
_CANCELLED = 1e-4  # of the sum of absolute values is left: rounding leaves 1e-6, other numbers nearly all


class Imitation:
    """A private copy of the public model that imitates clients, and the releases it is compared with.

    The word-embedding gradient is left out, as are the numbers that are zero for every text: attention's key biases.
    `names` are the tensors compared, in order; `target_squares` has (problems, tensors), and `row_target_squares`
    (problems, rows) for the table of positions, row by row.
    """

    def __init__(
        self, model: Classifier, seens: Sequence[GradientRelease], attack: str, signal_norm: float = 0.0
    ) -> None:
        """Take what can be compared from releases of one kind, or reject them.

        `signal_norm` is how long the gradients were before noise, if the attacker knows it from the protection.
        """
        anatomy = dissect(model)
        self.model = copy.deepcopy(model, {id(model.tokenizer): model.tokenizer}).eval()
        self.words = anatomy.embeddings.words
        self.device = model.device
        shared = [n for n, _ in model.named_parameters() if all(n in seen.gradients for seen in seens)]
        shared = [n for n in shared if n != anatomy.embeddings.word_name]
        _reject_unusable(model, seens, shared, attack)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in shared)
        self._alive = alive_masks(self.model, self.words)
        names = [n for n in shared if n not in self._alive or bool(self._alive[n].any())]
        self._tape = Tape(self.model, create_graph=True)
        turned = _turned(self.model)
        rank = max(_tokens(seen) for seen in seens) + _SPARE
        self._targets = {n: self._target(n, seens, n in turned, rank) for n in names}
        self._tables = [n for n in names if _is_table(self.model, n)]
        self._positions, self._rows = self._used_rows(anatomy, seens)
        self.row_target_squares = self._rows.square().sum(-1)
        self._pairs = stacked_matrices(self._targets, [n for n in names if n not in self._tables])
        self._vectors = stacked_vectors(self._targets, names, self._alive)
        grouped = [names for names, _ in self._pairs] + [names for names, _, _ in self._vectors]
        self.names = tuple(itertools.chain(*grouped, self._tables))
        squares = [self._targets[n].dense().flatten(1).square().sum(1) for n in self.names]
        self.target_squares = torch.stack(squares, 1)
        self.sizes = torch.tensor([self._size(n) for n in self.names], device=self.device, dtype=torch.float32)
        self.divisors = torch.tensor([seen.divisor for seen in seens], device=self.device)
        self.noise_std = self._noise(seens)
        for seen, noise in zip(seens, self.noise_std.tolist(), strict=True):
            if noise == 0:  # also noise that the release does not name makes every row another than zero
                reject_pairs(seen, anatomy, attack)
        self.protected = torch.tensor([seen.guarantee is not None or seen.noise_std > 0 for seen in seens])
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
        inputs = {"inputs_embeds": x.reshape(-1, t, width), "attention_mask": mask[:, None].expand(s, k, b, t)}
        inputs["attention_mask"] = inputs["attention_mask"].reshape(-1, t)
        if "token_type_ids" in self.model.tokenizer.model_input_names:
            inputs["token_type_ids"] = torch.zeros_like(inputs["attention_mask"])
        # The fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), self._tape:
            losses = self.model.losses(inputs, targets)
        with torch.enable_grad():
            return self._tape.backward(losses)

    def figures(self, record: Record, shape: Sequence[int]) -> Figures:
        """Return inner products and squared norms from a record of candidates of a shape."""
        s, k = shape[:2]
        inner: list[Tensor] = []
        squares: list[Tensor] = []
        slots = {slot.name: slot for slot in record.slots}
        # Tensors of one shape go together: there are many, and each alone costs more to launch than to compute.
        for names, target in self._pairs:
            pairs = [slots[name] for name in names]
            found = pair_figures(pairs, target, s, k)  # type: ignore[arg-type]
            inner.append(found[0])
            squares.append(found[1])
        for names, values, alive in self._vectors:
            stacked = torch.stack([values_of(slots[name]) for name in names], 1)
            stacked = stacked.reshape(s, k, -1, *stacked.shape[1:]).sum(2) * alive
            inner.append((stacked * values[:, None]).sum(-1))
            squares.append(stacked.square().sum(-1))
        for name in self._tables:
            table = slots[name]
            assert isinstance(table, Lookup)
            found = lookup_figures(table, self._targets[name].dense(), s, k)
            inner.append(found[0][..., None])
            squares.append(found[1][..., None])
        scale = 1 / self.divisors[:, None, None]
        rows = self._row_figures(slots, s, k)
        return Figures(
            torch.cat(inner, -1) * scale,
            torch.cat(squares, -1).clamp_min(0) * scale.square(),
            rows[0] * scale,
            rows[1] * scale.square(),
        )

    def _row_figures(self, slots: Mapping[str, Slot], s: int, k: int) -> tuple[Tensor, Tensor]:
        """Return inner products and squared norms of each used row of the table of positions."""
        if self._positions is None:
            none = torch.zeros(s, k, 0, device=self.device)
            return none, none
        name, first = self._positions
        slot = slots[name]
        assert isinstance(slot, Lookup)
        places = first + torch.arange(self._rows.shape[1], device=self.device)
        at = (slot.ids.reshape(s * k, 1, -1) == places[:, None]).to(slot.grads.dtype)
        rows = (at @ by_unit(slot.grads, s, k)).view(s, k, len(places), -1)
        return (rows * self._rows[:, None]).sum(-1), rows.square().sum(-1)

    def _used_rows(self, anatomy: Anatomy, seens: Sequence[GradientRelease]) -> tuple[tuple[str, int] | None, Tensor]:
        """Return the table of positions and its first row in use, and the released rows, (problems, rows, width)."""
        known = anatomy.embeddings
        lengths = [length for seen in seens for length in seen.lengths or ()]
        name, first = known.position_name, known.first_position
        if name not in self._tables:
            return None, torch.zeros(len(seens), 0, self.words.shape[1], device=self.device)
        table = self._targets[name].dense()
        used = table.abs().sum((0, 2)).nonzero()
        end = first + max(lengths) if lengths else int(used.max()) + 1 if len(used) else first
        return (name, first), table[:, first:end]

    def formed(self, slot: Slot, s: int, k: int) -> Tensor:
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
        """Return <g, direction>, (problems, candidates), for a direction of its own for every candidate."""
        s, k = direction.shape[:2]
        if isinstance(slot, Pair):
            inputs, grads = by_unit(slot.inputs, s, k), by_unit(slot.grads, s, k)
            found = (torch.bmm(inputs, direction.flatten(0, 1).mT) * grads).sum((1, 2))
        elif isinstance(slot, Lookup):
            flat = direction.flatten(0, 1)
            units = torch.arange(s * k, device=flat.device).repeat_interleave(slot.ids.shape[0] // (s * k))
            rows = flat[units[:, None], slot.ids]
            found = without_padding(slot, (rows * slot.grads).sum(-1)).reshape(s * k, -1).sum(1)
        else:
            values = values_of(slot).reshape(s * k, -1, direction[0, 0].numel()).sum(1)
            found = (values * direction.flatten(0, 1).flatten(1)).sum(1)
        return found.view(s, k) / self.divisors[:, None]

    def _target(self, name: str, seens: Sequence[GradientRelease], turned: bool, rank: int) -> Target:
        value = torch.stack([seen.gradients[name].detach().to(self.device, torch.float32) for seen in seens])
        if name in self._alive:
            value = value * self._alive[name]
        if turned:
            value = value.mT.contiguous()
        return Target(value) if _is_table(self.model, name) else Target.of(value, rank)

    def _size(self, name: str) -> int:
        alive = self._alive.get(name)
        return self.model.get_parameter(name).numel() if alive is None else int(alive.sum())

    def _noise(self, seens: Sequence[GradientRelease]) -> Tensor:
        """Return the standard deviation of the noise on each release, read off the numbers that would be zero."""
        named = torch.tensor([float(seen.noise_std) for seen in seens], device=self.device)
        squares, count = torch.zeros_like(named), 0
        for name, alive in self._alive.items():
            dead = [seen.gradients[name].detach().to(self.device).float()[~alive] for seen in seens]
            squares = squares + torch.stack([part.square().sum() for part in dead])
            count += int((~alive).sum())
        if count == 0:
            return named
        found = (squares / count).sqrt()
        largest = self.target_squares.sum(1).sqrt()
        return torch.where(named > 0, named, torch.where(found > 1e-6 * largest, found, torch.zeros_like(found)))

    def _signal(self, signal_norm: float) -> Tensor:
        """Return the squared length of each gradient without its noise: as known, or as far as it can be told."""
        if signal_norm > 0:
            return torch.full_like(self.noise_std, signal_norm**2)
        whole, square = self.target_squares.sum(1), self.noise_std.square()
        count = self.sizes.sum()
        return (whole - square * count).clamp_min(square * (2 * count).sqrt())

    def _shares(self) -> Tensor:
        """Return each tensor's share of a gradient's squared length, over a few random texts, (tensors,)."""
        if not bool((self.noise_std > 0).any()):
            return torch.full((len(self.names),), 1 / len(self.names), device=self.device)
        source = torch.Generator().manual_seed(1)
        ids = torch.randint(len(self.words), (self.problems, 1, 1, 12), generator=source).to(self.device)
        labels = torch.zeros(self.problems, 1, 1, device=self.device)
        labels = labels.long() if self.model.task == "classification" else labels
        figures = self.figures(self.record(self.words[ids], torch.ones_like(ids[:, 0]), labels), ids.shape)
        squares = figures.squares.detach().flatten(0, 1)
        return (squares / squares.sum(-1, keepdim=True).clamp_min(1e-30)).mean(0)


def _tokens(seen: GradientRelease) -> int:
    return sum(seen.lengths) if seen.lengths is not None else 10**9


def _turned(model: Classifier) -> set[str]:
    """Return the weights that are kept as (inputs, outputs), as in GPT-2's Conv1D."""
    return {f"{name}.weight" for name, module in model.named_modules() if type(module).__name__ == "Conv1D"}


def _is_table(model: Classifier, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), torch.nn.Embedding)


def _reject_unusable(model: Classifier, seens: Sequence[GradientRelease], names: Sequence[str], attack: str) -> None:
    if not any(name.startswith("encoder.") for name in names):
        found = ", ".join(names) or "nothing"
        raise UnsupportedError(
            f"Expected gradients of the encoder's layers for {attack}, found {found}. A head's gradient tells one "
            "vector, not a text; attack a release of all layers."
        )
    shapes: Mapping[str, torch.Size] = {name: model.get_parameter(name).shape for name in names}
    for seen in seens:
        for name, shape in shapes.items():
            if seen.gradients[name].shape != shape:
                given = tuple(seen.gradients[name].shape)
                raise invalid(f"gradients[{name!r}].shape", given, f"equal to {tuple(shape)}", "Pass the same model.")
            if not bool(torch.isfinite(seen.gradients[name]).all()):
                raise UnsupportedError(f"Expected finite gradients for {attack}, found others in {name!r}.")


@dataclass(frozen=True)
class Figures:
    """For each problem, candidate and tensor: <g, target> and |g|^2, of shape (problems, candidates, tensors).

    `row_inner` and `row_squares` are the same for each row of the table of positions that is used, (problems,
    candidates, rows); there are no rows where the model has no such table.
    """

    inner: Tensor
    squares: Tensor
    row_inner: Tensor
    row_squares: Tensor


@dataclass(frozen=True)
class Target:
    """One tensor of every release, (problems, *shape), matrices as (outputs, inputs); as factors where its rank is low.

    `left` is (problems, outputs, rank) with orthonormal columns, `right` is (problems, inputs, rank).
    """

    value: Tensor | None
    left: Tensor | None = None
    right: Tensor | None = None

    @classmethod
    def of(cls, value: Tensor, rank: int) -> Target:
        """Return a tensor as factors, if so few hold it; the first release tells of the others whether to try."""
        if value.dim() != 3 or rank >= min(value.shape[1:]) // 2 or cls._factors(value[:1], rank) is None:
            return cls(value)
        found = cls._factors(value, rank)
        return cls(value) if found is None else cls(None, *found)

    @staticmethod
    def _factors(value: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
        """Return the factors of a rank, or None where they miss too much, as they do under noise."""
        source = torch.Generator(device="cpu").manual_seed(0)
        probe = torch.randn(value.shape[2], rank, generator=source).to(value.device)
        left = torch.linalg.qr((value @ probe).double()).Q.float()
        right = value.mT @ left
        missed = (value - left @ right.mT).flatten(1).norm(dim=1)
        held = bool((missed <= _LOW_RANK * value.flatten(1).norm(dim=1)).all())
        return (left, right) if held else None

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
    """Return inner products and squared norms for a table that is looked up, (problems, candidates)."""
    problem = torch.arange(s, device=table.device).repeat_interleave(slot.ids.shape[0] // s)
    inner = without_padding(slot, (table[problem[:, None], slot.ids] * slot.grads).sum(-1)).reshape(s, k, -1).sum(-1)
    ids, grads = slot.ids.reshape(s * k, -1), by_unit(slot.grads, s, k)
    same = (ids[:, :, None] == ids[:, None, :]).to(grads.dtype)
    if slot.padding is not None:
        same = same * (ids != slot.padding)[:, :, None]
    return inner, ((grads @ grads.mT) * same).sum((1, 2)).view(s, k)


def values_of(slot: Slot) -> Tensor:
    """Return the gradients of a one-dimensional tensor, one for each row."""
    assert isinstance(slot, Vectors)
    return slot.values


def without_padding(slot: Lookup, each: Tensor) -> Tensor:
    """Return one number for each token, zero for padding, which a table does not learn from."""
    return each if slot.padding is None else each * (slot.ids != slot.padding)


def stacked_matrices(targets: dict[str, Target], names: Sequence[str]) -> list[tuple[list[str], Target]]:
    """Return the matrices grouped by shape: names, and their targets as (matrices, problems, outputs, inputs).

    What is kept whole becomes a view of its group in `targets`, so that nothing is kept twice.
    """
    groups: dict[tuple[bool, torch.Size], list[str]] = defaultdict(list)
    for name in names:
        target = targets[name]
        shape = target.dense().shape
        if len(shape) == 3:
            groups[target.value is None, shape].append(name)
    found = []
    for (factored, _), members in groups.items():
        parts = [targets[name] for name in members]
        if factored:
            left, right = ([getattr(part, side) for part in parts] for side in ("left", "right"))
            stacked = Target(None, torch.stack(left), torch.stack(right))
        else:
            stacked = Target(torch.stack([part.dense() for part in parts]))
            for place, name in enumerate(members):
                targets[name] = Target(stacked.dense()[place])
        found.append((members, stacked))
    return found


def stacked_vectors(
    targets: Mapping[str, Target], names: Sequence[str], alive: Mapping[str, Tensor]
) -> list[tuple[list[str], Tensor, Tensor]]:
    """Return the one-dimensional tensors grouped by size: names, targets and which numbers are alive."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name in names:
        value = targets[name].dense()
        if value.dim() == 2:
            groups[value.shape[1]].append(name)
    found = []
    for size, members in groups.items():
        values = torch.stack([targets[name].dense() for name in members], 1)
        ones = torch.ones(size, device=values.device)
        found.append((members, values, torch.stack([alive.get(name, ones).float() for name in members])))
    return found


def alive_masks(model: Classifier, words: Tensor) -> dict[str, Tensor]:
    """Return, for each bias of the encoder that has dead numbers, which of its numbers are alive.

    A few random texts are sent through the model. A number is dead if its output gradients, which are there, always
    cancel over the tokens of a text. Nothing private is looked at.
    """
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(len(words), (_TEXTS, _LENGTH), generator=source).to(words.device)
    kept: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def keep(_module: nn.Module, _given: object, returned: Tensor) -> None:
            kept[name] = returned

        return keep

    handles = [
        module.register_forward_hook(keeper(f"encoder.{name}.bias"))
        for name, module in model.encoder.named_modules()
        if isinstance(getattr(module, "bias", None), nn.Parameter) and not isinstance(module, nn.LayerNorm)
    ]
    inputs = {"inputs_embeds": words[ids].requires_grad_(), "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in model.tokenizer.model_input_names:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            scores = model(inputs)
            weights = torch.randn(scores.shape, generator=source).to(scores)
            found: Any = torch.autograd.grad((scores * weights).sum(), list(kept.values()), allow_unused=True)

    finally:
        for handle in handles:
            handle.remove()
    masks: dict[str, Tensor] = {}
    for name, grad in zip(kept, found, strict=True):
        if grad is None:
            continue
        rows = grad.reshape(_TEXTS, -1, grad.shape[-1])
        left, whole = rows.sum(1).abs().amax(0), rows.abs().sum(1).amax(0)
        alive = (left > _CANCELLED * whole) | (whole == 0)
        if not bool(alive.all()):
            masks[name] = alive
    return masks
