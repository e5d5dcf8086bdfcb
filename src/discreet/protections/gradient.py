"""What a protection of gradients can do, whichever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor

from discreet.clipping.record import Record
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Visible = Literal["sum", "each"]


@runtime_checkable
class GradientProtection(Protocol):
    """A protection at the place `gradient`: it adds up what each unit may contribute, then lets the sum go."""

    name: ClassVar[str]

    @property
    def event(self) -> DpEvent:
        """What one use costs a unit that is certainly in the batch."""
        ...

    @property
    def visible(self) -> Visible:
        """Whether the noise hides the sum of a batch, or already each vector in it."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency under which it is accounted for by default."""
        ...

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add the contributions of some units to the sums, and free their record."""
        ...

    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """Return the sums as they may leave."""
        ...
