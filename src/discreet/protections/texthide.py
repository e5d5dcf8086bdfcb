"""TextHide: sentence vectors are mixed with those of other sentences and their signs flipped by a secret mask.

Paper: Huang, Song, Chen, Li and Arora 2020, TextHide: Tackling data privacy in language understanding tasks.
Differs: a sentence is sure to get another mask in the next epoch, where the paper draws one of m anew; the largest
weight may be capped; one mask can be folded into the head, so that a finished model needs no secret to predict; a
public partner may count as evenly of every class, where the paper's formula leaves it out of the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.core.errors import UnsupportedError, invalid, one_of, setting, whole
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.settings import option
from discreet.models.classifier import Classifier
from discreet.protections.base import (
    FEW_UNITS,
    FROZEN,
    Conditions,
    Once,
    RepresentationProtection,
    Rows,
    TrainDefaults,
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
    """(m, k)-TextHide: each vector becomes a weighted mean of k of its batch, times one of m secret masks of signs.

    `masks` 0 leaves the signs as they are (mix-only) and `fresh_masks` draws a new mask for every vector; `mix` 1 mixes
    nothing; `mix_cap` limits the largest weight; with `public`, the name of a public corpus, half of the partners come
    from it. With a `public_label` of `dropped` they are left out of the label, whose private weights are then divided
    by their sum; with `even` they count as evenly of every class, so that a mixture that is mostly public is labelled
    as such.

    Guarantee: none. Measured here (docs/instance_encoding.md): the absolute value of a masked vector still finds its
        sentence, and the gradients of the encoder still span its tokens.

    >>> TextHide(masks=256, mix=4)
    TextHide(masks=256, mix=4, fresh_masks=False, mix_cap=None, public=None, public_label='dropped')
    """

    masks: int | None = field(
        default=None, metadata=option("Number of secret masks to choose from; 0 is none.", "Method", "256")
    )
    mix: int = field(default=4, metadata=option("Sentences in a mixture; 1 mixes nothing.", "Method"))
    fresh_masks: bool = field(
        default=False, metadata=option("Sample a new mask for every vector, instead of choosing from a pool.", "Method")
    )
    mix_cap: float | None = field(default=None, metadata=option("Largest weight of a sentence in a mixture.", "Method"))
    public: str | None = field(
        default=None, metadata=option("Public data to mix with; half of the partners come from it.", "Method")
    )
    public_label: str = field(
        default="dropped",
        metadata=option("Labels of public partners: dropped (left out), or even (every class alike).", "Method"),
    )
    name: ClassVar[str] = "texthide"
    priced: ClassVar[bool] = False
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    default_head: ClassVar[str] = "mlp"
    learns_little: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject settings outside their range, and masks that are both on and off."""
        if self.fresh_masks and self.masks is not None:
            raise invalid(
                "masks", self.masks, "left out with fresh masks", "A pool is not used; choose one of the two."
            )
        if whole("masks", self.pool_size, 0, "It is the size of the pool; 0 is none.") > _MOST:
            raise invalid("masks", self.masks, f"<= {_MOST}", "Use fresh masks instead of so large a pool.")
        whole("mix", self.mix, 1, "It counts the sentences in a mixture; 1 mixes nothing.")
        if self.mix_cap is not None and not 1 / self.mix <= self.mix_cap <= 1:
            rule = f"in [{1 / self.mix:.3g}, 1]"
            raise invalid("mix_cap", self.mix_cap, rule, "The weights of a mixture add up to 1.")
        if self.public is not None and self.mix < 2:
            raise invalid("mix", self.mix, ">= 2 with a public corpus", "Half of the partners are public.")
        one_of("public_label", self.public_label, PUBLIC_LABELS)
        if self.public is None and self.public_label != "dropped":
            remedy = f"It says what public partners count as; give public text ({setting('public')}), or leave it out."
            raise invalid("public_label", self.public_label, "'dropped' without public text", remedy)

    def resolve(self, conditions: Conditions) -> TextHide:
        """Return itself, after checking that a batch has enough sentences to mix."""
        self.check(conditions.batch_size, conditions.rows)
        return self

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return more epochs for few rows: mixing and masks hide most of a vector at each step."""
        plain = plain_defaults(part, units, width)
        return replace(plain, epochs=60.0) if part in FROZEN and units < FEW_UNITS else plain

    @property
    def pool_size(self) -> int:
        """The number of masks in the pool; 0 with fresh masks, or with none."""
        return 0 if self.fresh_masks else DEFAULT_MASKS if self.masks is None else self.masks

    @property
    def mixes(self) -> int:
        """How many sentences are in a mixture."""
        return self.mix

    @property
    def mask_count(self) -> int:
        """The number of masks in the pool."""
        return self.pool_size

    @property
    def masked(self) -> bool:
        """Whether signs are flipped."""
        return self.pool_size > 0 or self.fresh_masks

    def identity(self) -> object:
        """Return what decides its draws."""
        return "TextHide", self.public_settings()

    def public_settings(self) -> dict[str, Any]:
        """Return the settings under the names that reports have always used."""
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
        """Whether public rows are encoded with every batch."""
        return self.public is not None

    def check(self, batch_size: int, rows: int) -> None:
        """Refuse mixtures of more sentences than a batch has."""
        size = min(batch_size, rows)
        if self.mix > size:
            remedy = (
                f"It is mixed with others of its batch; use larger batches ({setting('batch_size')}), or mix fewer "
                f"({setting('mix')})."
            )
            raise invalid("mix", self.mix, f"<= {size}, the rows of a batch", remedy)

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Let the model predict through one secret mask, without mixing."""
        if self.masked:
            model.query = OneMask(self.one_mask(model.width, secret).to(model.device))

    def end(self, model: Classifier) -> None:
        """Fold the one mask into the first layer after the encoder: the model then reads plain vectors."""
        if isinstance(model.query, OneMask):
            fold(model, model.query)
        model.query = None

    def pool(self, width: int, secret: Rng) -> Tensor:
        """Return the secret masks, (masks, width), of -1 and 1."""
        return signs(self.pool_size, width, secret.fork("texthide", "masks"))

    def one_mask(self, width: int, secret: Rng) -> Tensor:
        """Return the mask of predictions: the first of the pool, or a fresh one."""
        if self.fresh_masks:
            return signs(1, width, secret.fork("texthide", "query"))[0]
        return self.pool(width, secret)[0]

    def averaged(self, width: int, secret: Rng) -> AllMasks:
        """Return what predicts as the mean over the whole pool, without mixing: `predict(model, rows, query=…)`."""
        if not self.masked:
            raise invalid("masks", self.pool_size, "at least 1 and not fresh", "There is no pool to average over.")
        return AllMasks(self.pool(width, secret))

    def views(self, width: int, secret: Rng) -> AllMasks | None:
        """Return every mask of the pool, where there is one."""
        return self.averaged(width, secret) if self.pool_size else None

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Once:
        """Refuse: TextHide hides every batch anew."""
        raise UnsupportedError("Expected texthide live. It hides the vectors of every batch anew; see TextHide.live.")

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> Hidden:
        """Return what hides the vectors of every step."""
        if self.public is not None and self.public_label == "even" and not classes:
            raise invalid(
                "public_label", self.public_label, "'dropped' for scores", "Only classes can be shared evenly."
            )
        pool = self.pool(width, secret).to(device) if self.pool_size else None
        return Hidden(self, rows, width, classes, secret.fork("texthide"), device, pool)


@dataclass(repr=False)
class Hidden:
    """TextHide at work, with its secrets; its repr shows none of them."""

    asked: TextHide
    rows: int
    width: int
    classes: int
    secret: Rng
    device: torch.device
    pool: Tensor | None
    order: dict[int, Rows] = field(default_factory=dict)
    ahead: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return, once for the whole training, that nothing is guaranteed, and why."""
        from discreet.accounting.events import NoGuaranteeDpEvent

        return NoGuaranteeDpEvent("; ".join(REASONS)), "texthide"

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it is: none."""
        return found

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the mixture of each row and its mask."""
        block, place = divmod(step, self.at_once(len(rows)))
        found = {"mix": self.mixtures_at(block, len(rows))[place]}
        if self.asked.fresh_masks:
            fresh = signs(len(rows), self.width, self.secret.fork("fresh", step))
            found["mask"] = fresh.to(self.device, non_blocking=True)
        elif self.pool is not None:
            found["mask"] = self.pool[torch.from_numpy(self.masks_at(epoch)[rows]).to(self.device, non_blocking=True)]
        return found

    def at_once(self, count: int) -> int:
        """Return for how many steps is drawn at once; the same for every batch of so many rows, also after a crash."""
        return steps_at_once(2 * count * count)

    def mixtures_at(self, block: int, count: int) -> Tensor:
        """Return the mixtures of some steps in a row, for batches of so many rows: one draw, one way to the device."""
        if (block, count) not in self.ahead:
            source = self.secret.fork("block", block, count).numpy("TextHide")
            for old in [key for key in self.ahead if key[1] == count]:
                del self.ahead[old]
            table = mixtures(
                self.at_once(count), count, self.asked.mix, self.asked.mix_cap, self.asked.needs_public, source
            )
            self.ahead[block, count] = torch.from_numpy(table).float().to(self.device)
        return self.ahead[block, count]

    def hide(
        self, vectors: Tensor, targets: Tensor, drawn: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return masked mixtures and the mixtures of their labels."""
        mixed = drawn["mix"] @ (vectors if public is None else torch.cat([vectors, public])).float()
        with torch.autocast(mixed.device.type, enabled=False):
            goals = self.labels(soft_targets(targets, self.classes), drawn["mix"][:, : len(targets)])
        return (mixed * drawn["mask"] if "mask" in drawn else mixed), goals

    def labels(self, soft: Tensor, weights: Tensor) -> Tensor:
        """Return the labels of mixtures by their private weights, and what the public rest counts as."""
        if not self.asked.needs_public:
            return weights @ soft
        private = weights.sum(dim=1, keepdim=True)
        if self.asked.public_label == "dropped":
            return (weights / private) @ soft
        return weights @ soft + (1 - private) / self.classes

    def masks_at(self, epoch: int) -> Rows:
        """Return the number of each row's mask in an epoch: never that of the epoch before, if there are two."""
        if epoch not in self.order:
            m = self.asked.pool_size
            source = self.secret.fork("order", epoch).numpy("TextHide")
            if epoch == 0 or m == 1:
                self.order[epoch] = source.integers(0, m, self.rows)
            else:
                self.order[epoch] = (self.masks_at(epoch - 1) + source.integers(1, m, self.rows)) % m
            for old in [e for e in self.order if e < epoch - 1]:
                del self.order[old]
        return self.order[epoch]

    def __repr__(self) -> str:
        """Return the settings, and no secret."""
        return f"Hidden({self.asked})"


def signs(count: int, width: int, secret: Rng) -> Tensor:
    """Return vectors of -1 and 1, all alike likely, from the bits of a source of randomness."""
    size = count * width
    bits = np.unpackbits(np.frombuffer(secret.bytes(-(-size // 8)), dtype=np.uint8))[:size]
    return torch.from_numpy(bits.astype(np.float32) * 2 - 1).view(count, width)


def mixtures(steps: int, count: int, k: int, cap: float | None, public: bool, source: np.random.Generator) -> Floats:
    """Return how vectors are mixed at some steps, (steps, outputs, rows).

    The j-th partners are a permutation of the batch, so that a row enters k outputs, and may meet itself. With `public`
    every second partner is a row of the public batch, in the columns after the private ones.
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
    """Return weights that add up to 1 in each row, none above the cap; what is cut goes to the others in proportion.

    >>> capped(np.array([[8.0, 1.0, 1.0]]), 0.5).tolist()
    [[0.5, 0.25, 0.25]]
    """
    weights = weights / weights.sum(axis=1, keepdims=True)
    if cap is None:
        return weights
    for _ in range(weights.shape[1]):
        weights = np.minimum(weights, cap)
        free = np.where(weights < cap, weights, 0.0)
        room = free.sum(axis=1, keepdims=True)
        left = 1 - weights.sum(axis=1, keepdims=True)
        weights = weights + np.divide(free * left, room, out=np.zeros_like(free), where=room > 0)
    return np.minimum(weights, cap)


class OneMask(nn.Module):
    """Predict through one mask, as the paper's code does; the mask is in no state and no repr."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        """Keep the mask out of what is saved."""
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return masked vectors."""
        return vectors * self.mask.to(vectors.dtype)


class AllMasks(nn.Module):
    """Predict through every mask of the pool and average; the masks are in no state and no repr."""

    masks: Tensor

    def __init__(self, masks: Tensor) -> None:
        """Keep the masks out of what is saved."""
        super().__init__()
        self.register_buffer("masks", masks, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors under each mask, (masks, rows, width)."""
        return vectors * self.masks.to(vectors.device, vectors.dtype)[:, None, :]


def fold(model: Classifier, query: OneMask) -> None:
    """Multiply the columns of the first layer after the encoder by a mask, so that plain vectors give what masked did.

    Whoever knew the layer before can divide and has this one mask.
    """
    layer = model.pooler if model.pooler is not None else next(m for m in model.head.modules() if type(m) is nn.Linear)
    with torch.no_grad():
        layer.weight.mul_(query.mask.to(layer.weight.dtype))
