"""TextHide: sentence vectors are mixed with those of other sentences and their signs flipped by a secret mask.

Paper: Huang, Song, Chen, Li and Arora 2020, TextHide: Tackling data privacy in language understanding tasks.
Differs: a sentence is sure to get another mask in the next epoch, where the paper draws one of m anew; the largest
weight may be capped; one mask can be folded into the head, so that a finished model needs no secret to predict; a
public partner may count as evenly of every class, where the paper's formula leaves it out of the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.checks import one_of, refuse, whole
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.models.classifier import Classifier
from discreet.protections.masked_query import AllMasks, OneMask, fold
from discreet.protections.representation import Once, Place, Rows, soft_targets, steps_at_once
from discreet.protections.settings import Conditions, check_budget

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Floats = npt.NDArray[np.float64]

REASONS = (
    "the absolute value of a masked vector does not depend on the mask and still finds its sentence",
    "the gradients of the encoder still span the tokens of the batch",
)
PUBLIC_LABELS = ("dropped", "even")
_MOST = 1 << 16


@dataclass(frozen=True)
class TextHide:
    """(m, k)-TextHide: each vector becomes a weighted mean of k of its batch, times one of m secret masks of signs.

    `masks` 0 leaves the signs as they are (mix-only) and `fresh` draws a new mask for every vector; `mix` 1 mixes
    nothing; `cap` limits the largest weight; `public` takes half of the partners from a public corpus. With a
    `public_label` of `dropped` they are left out of the label, whose private weights are then divided by their sum;
    with `even` they count as evenly of every class, so that a mixture that is mostly public is labelled as such.

    Guarantee: none. Measured here (docs/instance_encoding.md): the absolute value of a masked vector still finds its
        sentence, and the gradients of the encoder still span its tokens.

    >>> TextHide(masks=256, mix=4)
    TextHide(masks=256, mix=4, fresh=False, cap=None, public=False, public_label='dropped')
    """

    masks: int = 256
    mix: int = 4
    fresh: bool = False
    cap: float | None = None
    public: bool = False
    public_label: str = "dropped"
    name: ClassVar[str] = "texthide"
    place: ClassVar[Place] = "representation"
    stored: ClassVar[bool] = False
    priced: ClassVar[bool] = False
    position: ClassVar[Literal["sentence"]] = "sentence"
    sampling: ClassVar[Literal["shuffled"]] = "shuffled"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        if whole("masks", self.masks, 0, "It is the size of the pool; 0 is none.") > _MOST:
            raise refuse("masks", self.masks, f"<= {_MOST}", "Use fresh masks instead of so large a pool.")
        whole("mix", self.mix, 1, "It counts the sentences in a mixture; 1 mixes nothing.")
        if self.cap is not None and not 1 / self.mix <= self.cap <= 1:
            raise refuse("cap", self.cap, f"in [{1 / self.mix:.3g}, 1]", "The weights of a mixture add up to 1.")
        if self.public and self.mix < 2:
            raise refuse("mix", self.mix, ">= 2 with a public corpus", "Half of the partners are public.")
        one_of("public_label", self.public_label, PUBLIC_LABELS)

    @property
    def needs_public(self) -> bool:
        """Whether public rows are encoded with every batch."""
        return self.public

    def check(self, batch_size: int, rows: int) -> None:
        """Refuse mixtures of more sentences than a batch has."""
        size = min(batch_size, rows)
        if self.mix > size:
            remedy = "It is mixed with others of its batch; take larger batches (--batch-size), or mix fewer (--mix)."
            raise refuse("mix", self.mix, f"<= {size}, the rows of a batch", remedy)

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Change nothing: what leaves has the encoder's width."""

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Let the model predict through one secret mask, without mixing."""
        if self.masks or self.fresh:
            model.query = OneMask(self.one_mask(model.width, secret).to(model.device))

    def end(self, model: Classifier) -> None:
        """Fold the one mask into the first layer after the encoder: the model then reads plain vectors."""
        if isinstance(model.query, OneMask):
            fold(model, model.query)
        model.query = None

    def pool(self, width: int, secret: Rng) -> Tensor:
        """Return the secret masks, (masks, width), of -1 and 1."""
        return signs(self.masks, width, secret.fork("texthide", "masks"))

    def one_mask(self, width: int, secret: Rng) -> Tensor:
        """Return the mask of predictions: the first of the pool, or a fresh one."""
        if self.fresh:
            return signs(1, width, secret.fork("texthide", "query"))[0]
        return self.pool(width, secret)[0]

    def averaged(self, width: int, secret: Rng) -> AllMasks:
        """Return what predicts as the mean over the whole pool, without mixing: `predict(model, rows, query=…)`."""
        if not self.masks or self.fresh:
            raise refuse("masks", self.masks, "at least 1 and not fresh", "There is no pool to average over.")
        return AllMasks(self.pool(width, secret))

    def views(self, width: int, secret: Rng) -> AllMasks | None:
        """Return every mask of the pool, where there is one."""
        return self.averaged(width, secret) if self.masks and not self.fresh else None

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Once:
        """Refuse: TextHide hides every batch anew."""
        raise UnsupportedError("Expected texthide live. It hides the vectors of every batch anew; see TextHide.live.")

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> Hidden:
        """Return what hides the vectors of every step."""
        if self.public and self.public_label == "even" and not classes:
            raise refuse("public_label", self.public_label, "dropped for scores", "Only classes can be shared evenly.")
        pool = self.pool(width, secret).to(device) if self.masks and not self.fresh else None
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
        if self.asked.fresh:
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
            table = mixtures(self.at_once(count), count, self.asked.mix, self.asked.cap, self.asked.public, source)
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
        if not self.asked.public:
            return weights @ soft
        private = weights.sum(dim=1, keepdim=True)
        if self.asked.public_label == "dropped":
            return (weights / private) @ soft
        return weights @ soft + (1 - private) / self.classes

    def masks_at(self, epoch: int) -> Rows:
        """Return the number of each row's mask in an epoch: never that of the epoch before, if there are two."""
        if epoch not in self.order:
            m = self.asked.masks
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


@dataclass(frozen=True)
class TextHideSettings:
    """TextHide as it is asked for; partners are public where a public corpus is given."""

    masks: int | None = None
    mix: int = 4
    fresh_masks: bool = False
    mix_cap: float | None = None
    public: str | None = None
    public_label: str = "dropped"
    name: ClassVar[str] = "texthide"
    place: ClassVar[Place] = "representation"
    usual_train: ClassVar[str] = "all"
    usual_head: ClassVar[str] = "mlp"
    epsilon: ClassVar[None] = None
    delta: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and masks that are both on and off."""
        check_budget(self.epsilon, self.delta)
        if self.fresh_masks and self.masks is not None:
            raise refuse("masks", self.masks, "left out with fresh masks", "A pool is not used; choose one of the two.")
        if self.public is None and self.public_label != "dropped":
            remedy = "It says what public partners count as; give public text (--public), or leave it out."
            raise refuse("public_label", self.public_label, "dropped without public text", remedy)
        self.protection()

    def protection(self) -> TextHide:
        """Return the protection itself."""
        size = 0 if self.fresh_masks else 256 if self.masks is None else self.masks
        return TextHide(size, self.mix, self.fresh_masks, self.mix_cap, self.public is not None, self.public_label)

    def build(self, given: Conditions) -> Any:
        """Return the protection itself."""
        found = self.protection()
        found.check(given.batch_size, given.rows)
        return found
