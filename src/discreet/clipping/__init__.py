"""Per-example gradient norms and clipped sums in one backward pass; `tests/clipping/slow.py` proves them."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.clipping.independence import check_independent as check_independent
    from discreet.clipping.record import Record as Record
    from discreet.clipping.tape import Automatic as Automatic
    from discreet.clipping.tape import Clip as Clip
    from discreet.clipping.tape import ClippedSum as ClippedSum
    from discreet.clipping.tape import Flat as Flat
    from discreet.clipping.tape import PerLayer as PerLayer
    from discreet.clipping.tape import Tape as Tape
    from discreet.clipping.tape import clipped_sum as clipped_sum

_NAMES = {
    "discreet.clipping.independence": ("check_independent",),
    "discreet.clipping.record": ("Record",),
    "discreet.clipping.tape": ("Automatic", "Clip", "ClippedSum", "Flat", "PerLayer", "Tape", "clipped_sum"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
