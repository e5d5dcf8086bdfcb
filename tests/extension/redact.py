"""A protection that was added: every digit of a text is replaced before training. It guarantees nothing."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.protections.base import TextProtection

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

C = TypeVar("C")


@dataclass(frozen=True)
class Redact(TextProtection):
    """Replace digits by a mark.

    Guarantee: none; names and other words stay.
    """

    name: ClassVar[str] = "redact"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE

    def cost(self, corpus: Any) -> DpEvent:
        """Return that nothing is guaranteed, and why."""
        from discreet.accounting.events import NoGuaranteeDpEvent

        return NoGuaranteeDpEvent("words are released as they are")

    def stated(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee unchanged: there is none."""
        return guarantee

    def rewrite(self, corpus: C, rng: Rng) -> C:
        """Return the corpus with every digit replaced."""
        given: Any = corpus
        changed: C = dataclasses.replace(given, texts=tuple(re.sub(r"\d", "#", text) for text in given.texts))
        return changed
