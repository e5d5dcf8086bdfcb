"""The privacy statement of a release, its exports, and policies that a gate checks."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.statement.exports import croissant as croissant
    from discreet.statement.exports import huggingface as huggingface
    from discreet.statement.exports import opendp as opendp
    from discreet.statement.facts import Facts as Facts
    from discreet.statement.facts import read_facts as read_facts
    from discreet.statement.markdown import markdown_of as markdown_of
    from discreet.statement.policy import Check as Check
    from discreet.statement.policy import Policy as Policy
    from discreet.statement.policy import checks as checks
    from discreet.statement.statement import statement_of as statement_of

_NAMES = {
    "discreet.statement.exports": ("croissant", "huggingface", "opendp"),
    "discreet.statement.facts": ("Facts", "read_facts"),
    "discreet.statement.markdown": ("markdown_of",),
    "discreet.statement.policy": ("Check", "Policy", "checks"),
    "discreet.statement.statement": ("statement_of",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
