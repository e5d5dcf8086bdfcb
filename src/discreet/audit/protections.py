"""Audits of protections: one release of each, through its own code, for two neighbours crafted to be far apart.

The rows of a release stand for independent repetitions, so a hundred thousand releases take about a second.
`PROTECTIONS` has one entry for each protection of the catalog that claims a guarantee; one without an entry fails the
law book.

What is crafted, so that a mistake in the code becomes visible:

- vectors and gradients are a thousand times longer than the clip norm: clipping that does not clip is seen;
- another unit is in the batch, in the opposite direction: clipping a sum instead of its terms is seen;
- the gradient is spread evenly over many layers: clipping each layer to the norm of the whole is seen;
- the length of a release is a score besides its direction: a divisor that depends on the data is seen;
- a second release, which the record is not in, is subtracted: noise that is used twice is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.accounting.local_layer import Sending
from discreet.audit.aspects import RELEASE, Aspect
from discreet.audit.steps import has_steps, resolved, steps_subject
from discreet.audit.subject import Subject
from discreet.audit.trade_off import Family, priv_unit
from discreet.catalog import protection
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError, one_of
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.samplers import Poisson
from discreet.protections.base import (
    Conditions,
    GradientProtection,
    PrivateSum,
    Protection,
    RepresentationProtection,
    release_once,
    trust_in,
)
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import whole_space
from discreet.protections.local.protection import LocalPrivacy
from discreet.protections.local.release import LocalLayer
from discreet.protections.words.swap import SanText, SanTextPlus, WordSwap
from discreet.protections.words.table import WordTable

Floats = npt.NDArray[np.float64]
WIDTH = 8  # of the vectors and of the rows of the audited layers
STEP_LAYERS, _STEP_WIDTH = 8, 2  # of the model whose clipped step is audited
_LONG = 1000.0  # how much longer than the clip norm a vector is
_CLASSES = 2
_PILOT = 20_000  # releases that weigh a vector against its label
# What the draws of each kind of release pass through, and what they do not.
_SUMS = (
    (Aspect.NOISE_SCALE, Aspect.CLIP_UNIT, Aspect.CLIP_PART),
    (Aspect.NOISE_STEPS, Aspect.NOISE_PARAMETERS, Aspect.MODEL_BATCHES, *RELEASE),
)
_DIRECTIONS = (
    (Aspect.NOISE_SCALE, Aspect.CLIP_UNIT),
    (Aspect.NOISE_STEPS, Aspect.CLIP_PART, Aspect.MODEL_BATCHES, *RELEASE),
)
_VECTORS = ((Aspect.NOISE_SCALE, Aspect.CLIP_UNIT), (Aspect.NOISE_STEPS, Aspect.MODEL_BATCHES, *RELEASE))
_WORDS = ((Aspect.NOISE_SCALE,), RELEASE)


class Layers(nn.Module):
    """Linear layers whose gradient for a row is the row itself, in each of them."""

    def __init__(self, count: int = 2, width: int = WIDTH) -> None:
        """Make the layers; their weights do not matter."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(count))

    def forward(self, rows: Tensor) -> Tensor:
        """Return one loss for each row, linear in the weights."""
        return torch.stack([layer(rows) for layer in self.layers]).sum(0).squeeze(1)


def step_sums(protect: GradientProtection, rows: Tensor, units: Tensor | None, rng: Rng) -> dict[str, Tensor]:
    """Return the protected sums of one step over a batch, before noise, by the code that training uses."""
    tape = Tape(Layers(STEP_LAYERS, rows.shape[1]))
    total = PrivateSum(protect, tape)
    if len(rows):
        with tape:
            losses = tape.model(rows)
        total.add(tape.backward(losses, units), rng)
    return total.complete(rng)


def dp_sgd_subject(
    protect: DPSGD,
    *,
    claimed: DPSGD | None = None,
    rate: float = 1.0,
    copies: int = 1,
    divisor: Callable[[int], float] = lambda realised: 1.0,
    noise: Callable[[Rng, int], Rng] = lambda rng, step: rng.fork("noise", step),
) -> Subject:
    """Return the audit of one step of DP-SGD under zero-out: the unit is in the batch, or its gradient is zero.

    The other arguments are for tests of the audit, which break one thing at a time: the protection that is claimed,
    the number of units that a person's rows are counted as, the divisor of a sum over so many units, and the source of
    the noise of a step. `rate` below 1 samples the unit, and claims the amplification of that.
    """
    claimed = protect if claimed is None else claimed
    direction = torch.ones(1, _STEP_WIDTH) * protect.clip_norm * _LONG
    other, record = direction, -3 * direction
    sampler = Poisson(rate)

    def step(present: bool) -> tuple[dict[str, Tensor], int]:
        rows = torch.cat([other, *([record] * copies)]) if present else other
        return step_sums(protect, rows, None, Rng(0)), len(rows)

    (inside, size_inside), (outside, size_outside) = step(True), step(False)
    along = _flat(inside) - _flat(outside)
    along = along / along.norm().clamp_min(1e-30)

    def released(sums: Mapping[str, Tensor], divisors: Tensor, rng: Rng) -> Tensor:
        noisy = release_once(protect, sums, rng)
        return torch.cat([value.flatten(1) for value in noisy.values()], dim=1) / divisors[:, None]

    def draw(present: bool, count: int, rng: Rng) -> Floats:
        sampled = torch.zeros(count, dtype=torch.bool)
        if present:
            sampled[torch.from_numpy(sampler.draw(0, count, rng.fork("sampler")))] = True
        sums = {
            name: torch.where(sampled[:, None], value.reshape(1, -1), outside[name].reshape(1, -1))
            for name, value in inside.items()
        }
        sizes = torch.where(sampled, divisor(size_inside), divisor(size_outside))
        first = released(sums, sizes, noise(rng, 0))
        again = {name: value.reshape(1, -1).expand(count, -1).clone() for name, value in outside.items()}
        second = released(again, torch.full((count,), divisor(size_outside)), noise(rng, 1))
        lengths = (first - _flat(outside) / divisor(size_outside)).square().sum(1)
        # the difference first: where several scores tell these draws apart, it also tells the next ones apart
        scores = [(first - second) @ along, first @ along, lengths]
        # each tensor alone: one of them may have no noise
        sizes_of = [value.numel() for value in inside.values()]
        parts = zip(torch.split(first, sizes_of, dim=1), torch.split(along, sizes_of), strict=True)
        return torch.stack([*scores, *(part @ axis for part, axis in parts)], dim=1).double().numpy()

    event = claimed.event if rate == 1 else sampler.amplify(claimed.event, 1)
    return Subject(f"one step of {claimed.name}", draw, event, Adjacency.ZERO_OUT, None, *_SUMS)


def _flat(sums: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in sums.values()])


def dir_dp_sgd_subject(protect: DirDPSGD, *, claimed: DirDPSGD | None = None, copies: int = 1) -> Subject:
    """Return the audit of one noisy direction under replace-one: a gradient, or a short one in the other direction."""
    claimed = protect if claimed is None else claimed

    def draw(present: bool, count: int, rng: Rng) -> Floats:
        scores = []
        for number, block in enumerate(protect.blocks):
            axis = torch.ones(block.dimension) / block.dimension**0.5
            rows = (_LONG * axis if present else -axis).expand(count, -1)
            for copy in range(copies):
                noisy = protect.directions(rows, number, rng.fork("copy", copy))
                scores.append(torch.stack([noisy @ axis, noisy.square().sum(1)], dim=1))
        return torch.stack(scores).sum(0).double().numpy()

    return Subject(f"one step of {claimed.name}", draw, claimed.event, Adjacency.REPLACE_ONE, None, *_DIRECTIONS)


def vectors_subject(
    protect: RepresentationProtection,
    *,
    claimed: RepresentationProtection | None = None,
    width: int = WIDTH,
    copies: int = 1,
    family: Family | None = None,
) -> Subject:
    """Return the audit of a stored release of vectors under replace-one: a long vector, or its opposite.

    Every second row is a known vector, which is subtracted to see noise that is shared by the rows. The label is part
    of the record too, and counts as a score if the release randomizes it. With `copies` a unit owns so many rows of
    which one is claimed.
    """
    claimed = protect if claimed is None else claimed
    axis = torch.ones(width) / width**0.5
    hidden = claimed.once(np.arange(2, dtype=np.int64), width, _CLASSES, Rng(0))
    labels_vary = hidden.label_truth < 1
    pilot, _ = claimed.once(np.arange(_PILOT, dtype=np.int64), width, _CLASSES, Rng(0).fork("pilot")).send(
        _LONG * axis.expand(_PILOT, -1), torch.zeros(_PILOT, dtype=torch.int64)
    )
    along_pilot = pilot.double() @ axis.double()
    here = float(along_pilot.mean()) * axis.double()
    slope = float(2 * along_pilot.mean() / along_pilot.var())  # of the log-ratio, if the noise is normal
    odds = float(np.log(hidden.label_truth / (1 - hidden.label_truth))) if labels_vary else 0.0

    def draw(present: bool, count: int, rng: Rng) -> Floats:
        vectors = torch.zeros(2 * count, width)
        vectors[::2] = (_LONG if present else -_LONG) * axis
        targets = torch.zeros(2 * count, dtype=torch.int64)
        targets[::2] = int(present and labels_vary)
        scores = []
        for copy in range(copies):
            once = protect.once(np.arange(2 * count, dtype=np.int64), width, _CLASSES, rng.fork("copy", copy))
            sent, labels = once.send(vectors, targets)
            along = (sent.double() @ axis.double()).reshape(count, 2)
            both = slope * along[:, 0] + odds * (2 * labels[::2].double() - 1)
            own = sent[::2].double()
            # the log-ratios of noise in the Euclidean norm, and in each coordinate
            nearer = [torch.cdist(own, -here[None], p) - torch.cdist(own, here[None], p) for p in (2.0, 1.0)]
            # the difference first: where several scores tell these draws apart, it also tells the next ones apart
            columns = [along[:, 0] - along[:, 1], along[:, 0], both, *(gap[:, 0] for gap in nearer)]
            scores.append(torch.stack(columns, 1))
        return np.asarray(torch.stack(scores).sum(0).numpy(), dtype=np.float64)

    return Subject(f"one release of {claimed.name}", draw, hidden.event, Adjacency.REPLACE_ONE, family, *_VECTORS)


def words_subject(protect: WordSwap, *, claimed: WordSwap | None = None, copies: int = 1) -> Subject:
    """Return the audit of one word under replace-one: the two words that are farthest apart, all draws in one text."""
    claimed = protect if claimed is None else claimed
    table = protect.table
    allowed = np.arange(len(table.words)) if protect.sensitive is None else np.flatnonzero(protect.sensitive)
    vectors = table.vectors[torch.from_numpy(allowed)]
    gaps = torch.cdist(vectors, vectors)
    here, there = (int(allowed[place]) for place in divmod(int(gaps.argmax()), len(allowed)))

    ends = table.vectors[torch.tensor([there, here])]
    nearer = torch.diff(-torch.cdist(table.vectors, ends), dim=1)[:, 0].numpy()  # how much nearer to the first word

    def draw(present: bool, count: int, rng: Rng) -> npt.NDArray[np.generic]:
        text, released = " ".join([table.words[here if present else there]] * count), []
        for copy in range(copies):
            (rewritten,), _ = protect.swap((text,), rng.fork("copy", copy))
            released.append(np.array([table.rows[word] for word in rewritten.split()], dtype=np.int64))
        return released[0] if copies == 1 else np.sum([nearer[words] for words in released], axis=0)

    return Subject(f"one word of {claimed.name}", draw, claimed.event, Adjacency.REPLACE_ONE, None, *_WORDS)


def word_table(vectors: Floats | None = None) -> WordTable:
    """Return a small table of made-up words, so that an audit of words needs no encoder."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    from discreet.audit.mechanisms import word_table as made_up

    places = torch.from_numpy(made_up() if vectors is None else vectors)
    words = tuple(f"word{number}" for number in range(len(places)))
    tokenizer = Tokenizer(WordLevel({word: row for row, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return WordTable("made-up words", words, places, places, tokenizer)


def _conditions(model: nn.Module, delta: float) -> Conditions:
    return Conditions(model, 1, 1, 1, steps=1, epochs=1.0, delta=delta)


def _dp_sgd(asked: Protection, delta: float) -> Subject:
    assert isinstance(asked, DPSGD)
    if has_steps(asked):
        return steps_subject(resolved(asked, delta))
    return dp_sgd_subject(asked.resolve(_conditions(Layers(STEP_LAYERS, _STEP_WIDTH), delta)))


def _dir_dp_sgd(asked: Protection, delta: float) -> Subject:
    assert isinstance(asked, DirDPSGD)
    return dir_dp_sgd_subject(asked.resolve(_conditions(Layers(), delta)))


def _instance_encoding(asked: Protection, delta: float) -> Subject:
    import dataclasses

    assert isinstance(asked, InstanceEncoding)
    if asked.mix > 1 or asked.projected_to is not None:
        raise UnsupportedError("Expected dp-ie without mixing and projection for an audit. Audit it with mix=1.")
    return vectors_subject(dataclasses.replace(asked, delta=delta))


def _local(asked: Protection, delta: float) -> Subject:
    assert isinstance(asked, LocalPrivacy)
    layer = local_layer(asked, delta)
    family = priv_unit(layer.training.dimension) if asked.mechanism == "privunit" and not asked.label_epsilon else None
    return vectors_subject(layer, width=layer.training.dimension, family=family)


def local_layer(asked: LocalPrivacy, delta: float) -> LocalLayer:
    """Return local privacy resolved for one sentence, without a model: its projection keeps every coordinate."""
    if asked.sampling != "once":
        raise UnsupportedError(
            "Expected ldp that sends each sentence once for an audit. Audit it with sampling='once'."
        )
    epsilon = asked.budget - (asked.label_epsilon or 0.0)
    layer = LDPLayer.for_budget(
        asked.mechanism, dimension=asked.dimension, epsilon=epsilon, delta=delta, clip_norm=asked.clip_norm
    )
    return LocalLayer(layer, layer, whole_space(asked.dimension), Sending(1), delta, asked.label_epsilon)


def _sanitizer(asked: Protection, delta: float) -> Subject:
    assert isinstance(asked, SanText)
    return words_subject(sanitizer(asked))


def sanitizer(asked: SanText, table: WordTable | None = None) -> WordSwap:
    """Return a sanitizer on a table of words; santext+ protects half of them here, whatever its list says."""
    table = table or word_table()
    sensitive = np.arange(len(table.words)) % 2 == 0 if isinstance(asked, SanTextPlus) else None
    assert asked.epsilon_per_word is not None
    return WordSwap(table, asked.epsilon_per_word, asked.mechanism, sensitive)


# The audit of every protection that claims a guarantee, by its name in the catalog.
PROTECTIONS: dict[str, Callable[[Protection, float], Subject]] = {
    "dp-sgd": _dp_sgd,
    "dir-dp-sgd": _dir_dp_sgd,
    "dp-ie": _instance_encoding,
    "ldp": _local,
    "santext": _sanitizer,
    "santext+": _sanitizer,
    "word-noise": _sanitizer,
}


def protection_subject(asked: Protection | str, settings: Mapping[str, Any] | None = None, *, delta: float) -> Subject:
    """Return the audit of one release of a protection: an instance, or a name of the catalog with settings.

    A budget is that of the audited release alone, so its noise is calibrated to one step, or to the audited steps where
    one of them is not a release of its own (samplers and correlated noise of dp-sgd).

    Args:
        asked: The protection, or its name in the catalog.
        settings: The settings of a protection that is given by its name.
        delta: The delta of the claim.
    """
    if isinstance(asked, str):
        asked = protection(asked, settings or {})
    if asked.name not in PROTECTIONS or trust_in(asked):
        one_of("protect", asked.found_by, PROTECTIONS)
    return PROTECTIONS[asked.name](asked, delta)
