from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discreet.catalog import PROTECTIONS
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.base import in_words
from discreet.releases.description import describe_release
from discreet.releases.protected import protection_of
from discreet.runs.folder import describe_protection

PROMISE = Guarantee(2.3421, 1e-5, "text", Adjacency.REPLACE_ONE, "pld")
# For every protection: what it is asked for, and what must be said of it.
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dp-sgd": ({"noise_multiplier": 2.0}, {"noise_multiplier": 2.0, "clip_norm": 0.1}),
    "dir-dp-sgd": ({"kappa": 30.0}, {"kappa": 30.0}),
    "texthide": ({"mix": 1}, {"mix": 1, "masks": 256}),
    "dp-ie": ({"epsilon": 3.0}, {"mechanism": "gaussian", "epsilon": 3.0}),
    "ldp": ({"epsilon": 3.0}, {"mechanism": "privunit", "epsilon": 3.0, "sampling": "once"}),
    "santext": ({"epsilon_per_word": 9.0}, {"mechanism": "santext", "epsilon_per_word": 9.0}),
    "santext+": ({"epsilon_per_word": 9.0}, {"mechanism": "santext+", "epsilon_per_word": 9.0, "sample_others": 0.2}),
    "word-noise": ({"epsilon_per_word": 9.0}, {"epsilon_per_word": 9.0}),
}


@pytest.mark.parametrize("name", PROTECTIONS)
def test_every_protection_names_its_mechanism_and_its_price(
    name: str, tmp_path: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    values, wanted = ASKED[name]
    if name == "santext+":
        (tmp_path / "words.txt").write_text("heart\nlung\nfever\n")
        values = {**values, "sensitive": str(tmp_path / "words.txt")}
    corpus = Corpus("toy", ("a", "b"), labels=(0, 1), label_names=("a", "b"))
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    facts = protection_of(name, model, values, delta=1e-5, batch_size=2).facts()
    assert facts["name"] and wanted.items() <= facts.items()
    assert ("list_fingerprint" in facts) == (name == "santext+")
    assert all(value not in (None, "") for value in facts.values())
    seen = {"kind": "representation", "steps": 1, "batch_size": 2, "vectors": 2, "width": 8, "model": "m", "known": []}
    line = describe_release({**seen, "protection": facts}, protection=True)
    card = describe_protection(
        {"protection": facts, "epsilon_by_adjacency": {"replace-one": 2.3421}, "steps": 1}, PROMISE
    )
    for text in (line, card):
        for key, value in wanted.items():
            shown = f"{value:g}" if isinstance(value, float) else value
            assert f"{key.replace('_', ' ')} {shown}" in text
        assert " )" not in text and "None" not in text
    assert "replace-one 2.343" in card


@pytest.mark.parametrize("calibration", ["sound", "paper", "paper-vector"])
def test_a_budget_that_is_met_by_the_paper_alone_says_so(calibration: str, tiny_encoder: Callable[[str], Path]) -> None:
    """An epsilon of the paper's formula is no bound; beside the figure stands whose it is."""
    corpus = Corpus("toy", ("a", "b"), labels=(0, 1), label_names=("a", "b"))
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    asked = {"epsilon": 3.0, "mechanism": "gaussian", "sampling": "fixed", "calibration": calibration}
    for name in ("ldp", "dp-ie"):
        if name == "dp-ie":
            asked = {"epsilon": 3.0, "calibration": "sound" if calibration == "sound" else "paper"}
        facts = protection_of(name, model, asked, delta=1e-5, batch_size=2).facts()
        assert f"calibration {asked['calibration']}" in in_words(facts)


def test_prices_are_rounded_up_and_other_settings_to_the_nearest() -> None:
    facts = {
        "name": "ldp",
        "epsilon": 7.000002,
        "label_epsilon": 1.2345601,
        "delta": 1.0000011e-6,
        "clip_norm": 1.2345601,
    }
    assert in_words(facts) == "ldp (epsilon 7.00001, label epsilon 1.23457, delta 1.00001e-06, clip norm 1.23456)"
    assert in_words({"name": "none"}) == "none"
