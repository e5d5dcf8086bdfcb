from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource, load
from discreet.experiment.run import (
    RunOptions,
    RunRequest,
    averaged_utility,
    load_corpus,
    make_plan,
    model_for,
    train_once,
)
from discreet.models.build import encode
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.texthide import TextHide
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


def asked_of(encoder: Path, toy_csv: Path, protect: DPSGD | None) -> RunRequest:
    model = ModelSettings(encoder=str(encoder), train="head", dropout=0.0)
    data = TextSource(str(toy_csv), classes=("clinic", "ward"))
    return RunRequest(data, model, TrainSettings(epochs=1, batch_size=16), protect, noise_seed=0)


def test_a_model_that_is_not_released_has_no_run_folder(
    tiny_encoder: Callable[[str], Path], toy_csv: Path, tmp_path: Path
) -> None:
    request = asked_of(tiny_encoder("bert"), toy_csv, DPSGD(noise_multiplier=1.0))
    with pytest.raises(SettingError, match="out to be left out with released=False"):
        train_once(request, tmp_path / "run", options=RunOptions(released=False))
    assert not list(tmp_path.glob("run*"))


@pytest.mark.parametrize(
    "other",
    [None, DPSGD(epsilon=8.0), DPSGD(noise_multiplier=2.0), DPSGD(noise_multiplier=1.0, clip_norm=0.5), TextHide()],
)
def test_a_plan_of_another_protection_than_the_requested_one_is_rejected(
    tiny_encoder: Callable[[str], Path], toy_csv: Path, other: Any
) -> None:
    request = asked_of(tiny_encoder("bert"), toy_csv, DPSGD(noise_multiplier=1.0))
    corpus, options = load_corpus(request.data), RunOptions(released=False)
    model = model_for(request, corpus, torch.device("cpu"), options)
    plan = make_plan(replace(request, protect=other, noise_seed=None if other is None else 0), model, corpus)
    with pytest.raises(SettingError, match="plan to be a plan of the requested protection"):
        train_once(request, corpus=corpus, model=model, plan=plan, options=options)


@pytest.mark.parametrize("protect", [None, DPSGD(epsilon=8.0), DPSGD(true_positive_rate=0.2), TextHide()])
def test_a_plan_of_the_request_is_executed(tiny_encoder: Callable[[str], Path], toy_csv: Path, protect: Any) -> None:
    request = replace(asked_of(tiny_encoder("bert"), toy_csv, protect), noise_seed=None if protect is None else 0)
    corpus, options = load_corpus(request.data), RunOptions(released=False)
    model = model_for(request, corpus, torch.device("cpu"), options)
    plan = make_plan(request, model, corpus)
    assert train_once(request, corpus=corpus, model=model, plan=plan, options=options).finished


def test_an_audit_without_canaries_is_rejected_by_its_name() -> None:
    with pytest.raises(SettingError) as error:
        train_once(RunRequest(TextSource("notes"), ModelSettings(), TrainSettings(), DPSGD(epsilon=3), audit=0))
    assert error.value.setting == "audit"
