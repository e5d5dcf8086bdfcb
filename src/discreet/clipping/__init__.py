"""Per-example gradient norms and clipped sums in one backward pass; `tests/clipping/slow.py` proves them."""

from discreet.clipping.independence import check_independent
from discreet.clipping.record import Record
from discreet.clipping.tape import Automatic, Clip, ClippedSum, Flat, PerLayer, Tape, clipped_sum

__all__ = [
    "Automatic",
    "Clip",
    "ClippedSum",
    "Flat",
    "PerLayer",
    "Record",
    "Tape",
    "check_independent",
    "clipped_sum",
]
