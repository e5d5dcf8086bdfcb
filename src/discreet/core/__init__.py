"""Shared types and conventions: guarantees, errors, randomness, files and settings."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.core.errors import BudgetError as BudgetError
    from discreet.core.errors import DataError as DataError
    from discreet.core.errors import DiscreetError as DiscreetError
    from discreet.core.errors import ExtraError as ExtraError
    from discreet.core.errors import LedgerError as LedgerError
    from discreet.core.errors import ModelError as ModelError
    from discreet.core.errors import OutputError as OutputError
    from discreet.core.errors import SettingError as SettingError
    from discreet.core.errors import UnsupportedError as UnsupportedError
    from discreet.core.guarantee import Adjacency as Adjacency
    from discreet.core.guarantee import Caveat as Caveat
    from discreet.core.guarantee import Guarantee as Guarantee
    from discreet.core.guarantee import Strength as Strength
    from discreet.core.randomness import Rng as Rng
    from discreet.core.task import Task as Task
    from discreet.core.types import Guess as Guess
    from discreet.core.types import Knowledge as Knowledge
    from discreet.core.types import Leakage as Leakage
    from discreet.core.types import Trial as Trial

_NAMES = {
    "discreet.core.errors": (
        "BudgetError",
        "DataError",
        "DiscreetError",
        "ExtraError",
        "LedgerError",
        "ModelError",
        "OutputError",
        "SettingError",
        "UnsupportedError",
    ),
    "discreet.core.guarantee": ("Adjacency", "Caveat", "Guarantee", "Strength"),
    "discreet.core.randomness": ("Rng",),
    "discreet.core.task": ("Task",),
    "discreet.core.types": ("Guess", "Knowledge", "Leakage", "Trial"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
