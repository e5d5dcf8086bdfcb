"""A protection: every digit of a text is replaced before training. It guarantees nothing."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from discreet.core.errors import invalid
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.settings import option
from discreet.protections.base import TextProtection

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

C = TypeVar("C")


@dataclass(frozen=True)
class Redact(TextProtection):
    """Replaces every digit by a mark.

    Guarantee: none; names and other words stay.
    """

    mark: str = dataclasses.field(default="#", metadata=option("What a digit is replaced by.", "Method"))

    name: ClassVar[str] = "redact"
    label: ClassVar[str] = "redaction"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        """Reject a mark that is not one character."""
        if len(self.mark) != 1 or self.mark.isdigit():
            raise invalid("mark", self.mark, "one character that is no digit")

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
        texts = tuple(re.sub(r"\d", lambda _: self.mark, text) for text in given.texts)
        changed: C = dataclasses.replace(given, texts=texts)
        return changed
