"""Metrics: pure functions from a guess and the truth to a number."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.core.types import Leakage as Leakage
    from discreet.metrics.membership import Scored as Scored
    from discreet.metrics.membership import auc as auc
    from discreet.metrics.table import Compares as Compares
    from discreet.metrics.table import Metric as Metric
    from discreet.metrics.table import Sample as Sample
    from discreet.metrics.table import text_leakage as text_leakage
    from discreet.metrics.text import bag_recall as bag_recall
    from discreet.metrics.text import exact_match as exact_match
    from discreet.metrics.text import jaccard as jaccard
    from discreet.metrics.text import lcs_over_longer as lcs_over_longer
    from discreet.metrics.text import leakage_of as leakage_of
    from discreet.metrics.text import meteor as meteor
    from discreet.metrics.text import rouge as rouge
    from discreet.metrics.text import semantic_cosine as semantic_cosine
    from discreet.metrics.text import token_accuracy as token_accuracy
    from discreet.metrics.utility import Quality as Quality
    from discreet.metrics.utility import quality as quality

_NAMES = {
    "discreet.core.types": ("Leakage",),
    "discreet.metrics.membership": ("Scored", "auc"),
    "discreet.metrics.table": ("Compares", "Metric", "Sample", "text_leakage"),
    "discreet.metrics.text": (
        "bag_recall",
        "exact_match",
        "jaccard",
        "lcs_over_longer",
        "leakage_of",
        "meteor",
        "rouge",
        "semantic_cosine",
        "token_accuracy",
    ),
    "discreet.metrics.utility": ("Quality", "quality"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
