"""TextHide: mix sentence vectors with those of other sentences, and flip their signs with a secret mask.

Paper: Huang, Song, Chen, Li and Arora 2020, TextHide: Tackling data privacy in language understanding tasks.
Differs: a sentence always gets a different mask in the next epoch, while the paper samples one of m masks again; the
largest weight may be capped; one mask can be folded into the head, so that a finished model needs no secret to predict;
a public partner may count equally for every class, while the paper's formula leaves it out of the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.core.errors import UnsupportedError, invalid, setting
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.rules import OneOf, Whole, check_fields
from discreet.core.settings import option_field
from discreet.models.classifier import Absolute, Classifier
from discreet.models.settings import TrainDefaults
from discreet.protections.base import (
    FEW_UNITS,
    FROZEN,
    Conditions,
    Live,
    Once,
    RepresentationProtection,
    Rows,
    plain_defaults,
    soft_targets,
    steps_at_once,
)

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


Floats = npt.NDArray[np.float64]

REASONS = (
    "the absolute value of a masked vector does not depend on the mask and still finds its sentence",
    "the gradients of the encoder still span the tokens of the batch",
)
PUBLIC_LABELS = ("dropped", "even")
DEFAULT_MASKS = 256
_MOST = 1 << 16


@dataclass(frozen=True)
class TextHide(RepresentationProtection):
    """(m, k)-TextHide: each vector becomes a weighted mean of k vectors of its batch, times one of m secret sign masks.

    `masks=0` leaves the signs as they are (mix-only) and `fresh_masks` samples a new mask for every vector; `mix=1`
    disables mixing; `mix_cap` limits the largest weight; with `public`, the name of a public corpus, half of the
    partners come from it. With `public_label="dropped"` they are left out of the label, and the private weights are
    normalized to sum 1; with `"even"` they count equally for every class, so that the label of a mostly public mixture
    is nearly uniform.

    Args:
        masks: Number of secret masks to choose from; 0 is none. By default 256.
        mix: Sentences in a mixture; 1 mixes nothing.
        fresh_masks: Sample a new mask for every vector, instead of choosing from a pool.
        mix_cap: Largest weight of a sentence in a mixture.
        public: Public data to mix with; half of the partners come from it.
        public_label: Labels of public partners: dropped (left out), or even (the same weight for every class).

    Guarantee: none. Measured (docs/instance_encoding.md): the absolute value of a masked vector still identifies its
        sentence, and the gradients of the encoder still span its tokens.

    >>> TextHide(masks=256, mix=4)
    TextHide(masks=256, mix=4, fresh_masks=False, mix_cap=None, public=None, public_label='dropped')
    """

    masks: int | None = option_field(
        None,
        "Number of secret masks to choose from; 0 is none.",
        "Method",
        "256",
        rule=Whole(0, "It is the size of the pool; 0 is none."),
    )
    mix: int = option_field(
        4,
        "Sentences in a mixture; 1 mixes nothing.",
        "Method",
        rule=Whole(1, "It is the number of sentences in a mixture; 1 mixes nothing."),
    )
    fresh_masks: bool = option_field(
        False, "Sample a new mask for every vector, instead of choosing from a pool.", "Method"
    )
    mix_cap: float | None = option_field(None, "Largest weight of a sentence in a mixture.", "Method")
    public: str | None = option_field(None, "Public data to mix with; half of the partners come from it.", "Method")
    public_label: str = option_field(
        "dropped",
        "Labels of public partners: dropped (left out), or even (the same weight for every class).",
        "Method",
        rule=OneOf(tuple(PUBLIC_LABELS)),
    )
    name: ClassVar[str] = "texthide"
    priced: ClassVar[bool] = False
    protects_labels: ClassVar[bool] = False
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    default_head: ClassVar[str] = "mlp"
    default_pair_head: ClassVar[str] = "absolute"  # features of pairs are mostly positive, so a mask hides nothing
    learns_little: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject settings outside their range, and a pool of masks together with fresh masks."""
        check_fields(self)
        if self.fresh_masks and self.masks is not None:
            raise invalid("masks", self.masks, "left out with fresh masks", "Fresh masks use no pool; choose one.")
        if self.pool_size > _MOST:
            raise invalid("masks", self.masks, f"<= {_MOST}", "Use fresh masks instead of so large a pool.")
        if self.mix_cap is not None and not 1 / self.mix <= self.mix_cap <= 1:
            rule = f"in [{1 / self.mix:.3g}, 1]"
            raise invalid("mix_cap", self.mix_cap, rule, "The weights of a mixture add up to 1.")
        if self.public is not None and self.mix < 2:
            raise invalid("mix", self.mix, ">= 2 with a public corpus", "Half of the partners are public.")
        if self.public is None and self.public_label != "dropped":
            remedy = f"It is the label of public partners; set {setting('public')}, or leave it out."
            raise invalid("public_label", self.public_label, "'dropped' without public text", remedy)

    def resolve(self, conditions: Conditions) -> TextHide:
        """Return the same protection, after checking that a batch has enough sentences to mix."""
        self.check(conditions.batch_size, conditions.rows)
        return self

    def at_client(self, clients: int) -> TextHide:
        """Return the same with a client's share of all masks.

        Paper: Huang et al. 2020, TextHide, section 3.2: the pools of all clients together have m masks. (Their
        Algorithm 2 calls m the size of each pool.)
        """
        return replace(self, masks=max(1, self.pool_size // clients)) if self.pool_size else self

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return more epochs for few rows: mixing and masks hide most of a vector at each step."""
        defaults = plain_defaults(part, units, width)
        return replace(defaults, epochs=60.0) if part in FROZEN and units < FEW_UNITS else defaults

    @property
    def pool_size(self) -> int:
        """Number of masks in the pool; 0 with fresh masks or without masks."""
        return 0 if self.fresh_masks else DEFAULT_MASKS if self.masks is None else self.masks

    @property
    def mixes(self) -> int:
        """Number of sentences in a mixture."""
        return self.mix

    @property
    def mask_count(self) -> int:
        """Number of masks in the pool."""
        return self.pool_size

    @property
    def masked(self) -> bool:
        """Whether signs are flipped."""
        return self.pool_size > 0 or self.fresh_masks

    def identity(self) -> object:
        """Return the settings that determine its random values."""
        return "TextHide", self.public_settings()

    def public_settings(self) -> dict[str, Any]:
        """Return the settings under the names that stored reports use."""
        return {
            "masks": self.pool_size,
            "mix": self.mix,
            "fresh": self.fresh_masks,
            "cap": self.mix_cap,
            "public": self.public is not None,
            "public_label": self.public_label,
        }

    @property
    def needs_public(self) -> bool:
        """Whether every batch needs public rows."""
        return self.public is not None

    def check(self, batch_size: int, rows: int) -> None:
        """Reject mixtures of more sentences than a batch has."""
        size = min(batch_size, rows)
        if self.mix > size:
            remedy = f"Use larger batches ({setting('batch_size')}), or mix fewer sentences ({setting('mix')})."
            raise invalid("mix", self.mix, f"<= {size}, the rows of a batch", remedy)

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Make the model predict through one secret mask, without mixing."""
        if self.masked:
            model.query = OneMask(self.one_mask(model.width, secret).to(model.device))

    def end(self, model: Classifier) -> None:
        """Fold the mask into the first layer after the encoder, so that the model reads unmasked vectors."""
        if isinstance(model.query, OneMask):
            fold(model, model.query)
        model.query = None

    def pool(self, width: int, secret: Rng) -> Tensor:
        """Return the secret masks of -1 and 1, (masks, width)."""
        return signs(self.pool_size, width, secret.fork("texthide", "masks"))

    def one_mask(self, width: int, secret: Rng) -> Tensor:
        """Return the mask for predictions: the first of the pool, or a fresh one."""
        if self.fresh_masks:
            return signs(1, width, secret.fork("texthide", "query"))[0]
        return self.pool(width, secret)[0]

    def averaged(self, width: int, secret: Rng) -> AllMasks:
        """Return a query module for `predict(model, rows, query=…)` that averages over the pool, without mixing."""
        if not self.pool_size:
            raise invalid("masks", self.pool_size, "at least 1 and not fresh", "There is no pool to average over.")
        return AllMasks(self.pool(width, secret))

    def views(self, width: int, secret: Rng) -> AllMasks | None:
        """Return a module that applies every mask of the pool, or None without a pool."""
        return self.averaged(width, secret) if self.pool_size else None

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Once:
        """Raise an error: TextHide mixes and masks every batch again."""
        raise UnsupportedError(
            "Expected a protection with one stored release, got texthide. It mixes and masks every batch again; use "
            "TextHide.live."
        )

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> Hidden:
        """Return the object that mixes and masks the vectors of every step."""
        if self.public is not None and self.public_label == "even" and not classes:
            raise invalid("public_label", self.public_label, "'dropped' for scores", "'even' needs classes.")
        pool = self.pool(width, secret).to(device) if self.pool_size else None
        return Hidden(self, rows, width, classes, secret.fork("texthide"), device, pool)


@dataclass(repr=False)
class Hidden(Live):
    """TextHide during training, with its secrets; its repr does not show them."""

    protect: TextHide
    rows: int
    width: int
    classes: int
    secret: Rng
    device: torch.device
    pool: Tensor | None
    order: dict[int, Rows] = field(default_factory=dict)
    ahead: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return, once for the whole training, an event that says that nothing is guaranteed, and why."""
        from discreet.accounting.events import NoGuaranteeDpEvent

        return NoGuaranteeDpEvent("; ".join(REASONS)), "texthide"

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the mixture of each row and its mask."""
        block, place = divmod(step, self.at_once(len(rows)))
        draws = {"mix": self.mixtures_at(block, len(rows))[place]}
        if self.protect.fresh_masks:
            fresh = signs(len(rows), self.width, self.secret.fork("fresh", step))
            draws["mask"] = fresh.to(self.device, non_blocking=True)
        elif self.pool is not None:
            draws["mask"] = self.pool[torch.from_numpy(self.masks_at(epoch)[rows]).to(self.device, non_blocking=True)]
        return draws

    def at_once(self, count: int) -> int:
        """Return the number of steps sampled together, a function of the number of rows alone."""
        return steps_at_once(2 * count * count)

    def mixtures_at(self, block: int, count: int) -> Tensor:
        """Return the mixtures of consecutive steps with `count` rows each, sampled and copied together."""
        if (block, count) not in self.ahead:
            source = self.secret.fork("block", block, count).numpy("TextHide")
            for old in [key for key in self.ahead if key[1] == count]:
                del self.ahead[old]
            protect = self.protect
            table = mixtures(self.at_once(count), count, protect.mix, protect.mix_cap, protect.needs_public, source)
            self.ahead[block, count] = torch.from_numpy(table).float().to(self.device)
        return self.ahead[block, count]

    def hide(
        self, vectors: Tensor, targets: Tensor, draws: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return masked mixtures and the mixtures of their labels."""
        mixed = draws["mix"] @ (vectors if public is None else torch.cat([vectors, public])).float()
        with torch.autocast(mixed.device.type, enabled=False):
            labels = self.labels(soft_targets(targets, self.classes), draws["mix"][:, : len(targets)])
        return (mixed * draws["mask"] if "mask" in draws else mixed), labels

    def labels(self, soft: Tensor, weights: Tensor) -> Tensor:
        """Return the labels of mixtures from their private weights and the setting for public partners."""
        if not self.protect.needs_public:
            return weights @ soft
        private = weights.sum(dim=1, keepdim=True)
        if self.protect.public_label == "dropped":
            return (weights / private) @ soft
        return weights @ soft + (1 - private) / self.classes

    def masks_at(self, epoch: int) -> Rows:
        """Return the mask index of each row in an epoch: never that of the previous epoch, if there are two masks."""
        if epoch not in self.order:
            m = self.protect.pool_size
            source = self.secret.fork("order", epoch).numpy("TextHide")
            if epoch == 0 or m == 1:
                self.order[epoch] = source.integers(0, m, self.rows)
            else:
                self.order[epoch] = (self.masks_at(epoch - 1) + source.integers(1, m, self.rows)) % m
            for old in [e for e in self.order if e < epoch - 1]:
                del self.order[old]
        return self.order[epoch]


def signs(count: int, width: int, secret: Rng) -> Tensor:
    """Return uniformly random vectors of -1 and 1, from the bits of a source of randomness."""
    size = count * width
    bits = np.unpackbits(np.frombuffer(secret.bytes(-(-size // 8)), dtype=np.uint8))[:size]
    return torch.from_numpy(bits.astype(np.float32) * 2 - 1).view(count, width)


def mixtures(steps: int, count: int, k: int, cap: float | None, public: bool, source: np.random.Generator) -> Floats:
    """Return the mixing weights of several steps, (steps, outputs, rows).

    The j-th partners are a permutation of the batch, so a row enters k outputs, and may be its own partner. With
    `public` every second partner is a row of the public batch, in the columns after the private ones.
    """
    weights = capped(np.abs(source.standard_normal((steps * count, k))), cap).reshape(steps, count, k)
    width = (2 if public else 1) * count
    own = np.arange(count)
    partners = np.empty((steps, count, k), dtype=np.int64)
    partners[:, :, 0] = own
    for j in range(1, k):
        partners[:, :, j] = source.permuted(np.tile(own, (steps, 1)), axis=1) + (count if public and j % 2 else 0)
    places = (np.arange(steps)[:, None, None] * count + own[:, None]) * width + partners
    flat = np.bincount(places.ravel(), weights=weights.ravel(), minlength=steps * count * width)
    table: Floats = np.asarray(flat, dtype=np.float64).reshape(steps, count, width)
    return table


def capped(weights: Floats, cap: float | None) -> Floats:
    """Return weights with row sums of 1 and none above the cap; the excess is distributed in proportion.

    >>> capped(np.array([[8.0, 1.0, 1.0]]), 0.5).tolist()
    [[0.5, 0.25, 0.25]]
    """
    weights = weights / weights.sum(axis=1, keepdims=True)
    if cap is None:
        return weights
    for _ in range(weights.shape[1]):
        weights = np.minimum(weights, cap)
        free = np.where(weights < cap, weights, 0.0)
        total = free.sum(axis=1, keepdims=True)
        excess = 1 - weights.sum(axis=1, keepdims=True)
        weights = weights + np.divide(free * excess, total, out=np.zeros_like(free), where=total > 0)
    return np.minimum(weights, cap)


class OneMask(nn.Module):
    """Apply one mask, as the paper's code does; the mask is not saved and not in the repr."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        """Register the mask as a buffer that is not saved."""
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return masked vectors."""
        return vectors * self.mask.to(vectors.dtype)


class AllMasks(nn.Module):
    """Apply every mask of the pool, to average predictions; the masks are not saved and not in the repr."""

    masks: Tensor

    def __init__(self, masks: Tensor) -> None:
        """Register the masks as a buffer that is not saved."""
        super().__init__()
        self.register_buffer("masks", masks, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors under each mask, (masks, rows, width)."""
        return vectors * self.masks.to(vectors.device, vectors.dtype)[:, None, :]


def fold(model: Classifier, query: OneMask) -> None:
    """Multiply the columns of the first layer after the encoder by a mask, so that it accepts unmasked vectors.

    Anyone who knows the layer before and after can recover this one mask. A head on absolute values needs none.
    """
    if model.pooler is None and any(isinstance(part, Absolute) for part in model.head.modules()):
        return
    layer = model.pooler if model.pooler is not None else next(m for m in model.head.modules() if type(m) is nn.Linear)
    with torch.no_grad():
        layer.weight.mul_(query.mask.to(layer.weight.dtype))
