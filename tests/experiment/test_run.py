from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource, load
from discreet.experiment.run import RunRequest, averaged_utility
from discreet.models.build import encode
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.training.plan import warn_of_size


def test_any_protection_may_have_several_views_of_a_query(tiny_encoder: Callable[[str], Path]) -> None:
    class Doubled(InstanceEncoding):
        def views(self, width: int, secret: Rng) -> Any:
            return lambda vectors: torch.stack([vectors, -vectors])

    rows = Corpus("toy", ("the heart was dull", "a knee"), labels=(0, 1), label_names=("a", "b"))
    model = Classifier.build(rows, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    vectors = encode(model, rows, None, "float32")

    def found(protect: Any) -> dict[str, float]:
        return averaged_utility(SimpleNamespace(protect=protect), Rng(0), model, vectors)  # type: ignore[arg-type]

    assert "accuracy" in found(Doubled(8.0, 1e-5))
    assert found(InstanceEncoding(8.0, 1e-5)) == found(DPSGD(1.0)) == found(None) == {}


def test_rows_of_what_is_built_in_count_held_out_ones_too() -> None:
    said: list[str] = []
    corpus = load("notes", rows=40)
    for rows in (40, 41):
        request = RunRequest(TextSource("notes", rows=rows), ModelSettings(), TrainSettings())
        plan = SimpleNamespace(rows=len(corpus.split("train")), steps=1)
        warn_of_size(request, plan, corpus, said.append)  # type: ignore[arg-type]
    assert len(said) == 1 and "rows=41 uses all of them" in said[0]
