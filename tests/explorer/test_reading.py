"""One reading: what came back, how much that is, what is proven of it, and what is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from discreet.core.errors import DataError, SettingError
from discreet.experiment.attack.scene import Scene
from discreet.explorer.menu import Menu
from discreet.explorer.page_data import PageData
from discreet.explorer.reading import OPEN, Question, read

TYPED = "the heart was calm and the cough was dull"


def text(pieces: list[dict[str, object]]) -> str:
    return "".join(str(piece["text"]) for piece in pieces)


def test_without_protection_all_is_read_and_nothing_promised(stage: PageData, menu: Menu) -> None:
    found = read(Question(TYPED, attack="rss"), stage, menu, seconds=5)
    assert text(found["truth"]) == text(found["guess"]) == TYPED
    assert found["leakage"]["value"] == 1 and all(piece["right"] for piece in found["guess"])
    assert found["guarantee"]["epsilon"] is None and OPEN in found["guarantee"]["sentence"] and found["bound"] is None
    assert "1 vector of 16 numbers from your sentence" in found["release"]
    assert "107 candidate texts, among them the private text under attack" in found["release"]


def test_words_without_order_are_marked_wherever_they_stand(stage: PageData, menu: Menu) -> None:
    found = read(Question(TYPED, attack="embedding-rows"), stage, menu, seconds=5)
    assert found["leakage"]["value"] == 1 and "unordered" in found["note"]
    assert all(piece["right"] for piece in found["truth"] + found["guess"])


def test_noise_is_certified_and_bounded_and_hides(stage: PageData, menu: Menu) -> None:
    for name in ("dp-sgd", "dir-dp-sgd"):
        found = read(Question(TYPED, name, "embedding-rows", {"epsilon": 1.0}), stage, menu, seconds=5)
        assert found["guarantee"]["certified"] and found["guarantee"]["epsilon"] == pytest.approx(1.0, rel=1e-3)
        assert found["guarantee"]["unit"] == "sentence" and "sentence" in found["guarantee"]["sentence"]
        assert 1 / 64 < found["bound"] < math.e / 64 + 1e-3 and found["leakage"]["value"] < 1
        assert found["alike"] == "length and label", "which the attacker is told besides the noisy gradient"
        assert found["guarantee"]["columns"] and any("known" in told for told in found["guarantee"]["assumptions"])
    for name in ("dp-ie", "ldp"):
        found = read(Question(TYPED, name, "rss", {"epsilon": 1.0}), stage, menu, seconds=5)
        assert found["guarantee"]["certified"] and found["guarantee"]["adjacency"] == "replace-one"
        assert 1 / 64 < found["bound"] <= math.e / 64 + 1e-4


def test_where_texts_are_few_one_of_n_names_one_of_those(scenes: dict[str, Scene], menu: Menu) -> None:
    few = {kind: replace(scene, rows=scene.rows.take(range(5)), cache={}) for kind, scene in scenes.items()}
    found = read(
        Question(TYPED, "dp-sgd", "one-of-n", {"epsilon": 1.0}), PageData("few", few.__getitem__), menu, seconds=5
    )
    assert found["candidates"] == 5 and found["leakage"]["chance"] == 1 / 5 and 1 / 5 < found["bound"] < math.e / 5


def test_texthide_promises_nothing_and_says_why(stage: PageData, menu: Menu) -> None:
    found = read(Question(TYPED, "texthide", "rss", {"masks": 4, "mix": 3}), stage, menu, seconds=5)
    assert found["guarantee"]["epsilon"] is None and found["bound"] is None
    assert "absolute value" in found["guarantee"]["sentence"] and "Of the 3 recovered texts" in found["note"]
    assert found["leakage"]["chance"] is None, "there is none for one sentence"


def test_the_measured_success_of_one_of_n_keeps_the_bound(stage: PageData, menu: Menu) -> None:
    before = 0.0
    for epsilon in (0.5, 4.0, 30.0):
        found = read(Question(TYPED, "dp-sgd", "one-of-n", {"epsilon": epsilon}), stage, menu, seconds=5)
        assert found["alike"] == "", "its bound is for the noisy gradient alone"
        assert found["leakage"]["low"] <= found["bound"] and found["leakage"]["value"] >= before - 0.02
        assert (
            found["truth"] is None and found["leakage"]["chance"] == 1 / 64 and "yours among them" in found["release"]
        )
        before = found["leakage"]["value"]
    other = read(Question(TYPED, "dp-sgd", "embedding-rows", {"epsilon": 30.0}), stage, menu, seconds=5)
    assert other["bound"] == pytest.approx(found["bound"], rel=1e-6), "the bound is the release's, not the attack's"


def test_a_search_that_was_cut_short_says_so(stage: PageData, menu: Menu) -> None:
    found = read(Question(TYPED, attack="lamp"), stage, menu, seconds=0.2)
    assert "Stopped by the time limit of 0.2 s" in found["note"] and "(seconds)" in found["note"]
    assert "(seconds)" not in read(Question(TYPED, attack="rss"), stage, menu, seconds=5)["note"]


def test_one_release_of_dp_sgd_costs_what_the_accountant_says(stage: PageData, menu: Menu) -> None:
    """By the exact curve of a Gaussian, delta(epsilon) = P(mu/2 - e/mu) - e^e P(-mu/2 - e/mu): Balle and Wang 2018."""

    def exact(mu: float) -> float:
        curve = lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)  # noqa: E731
        return float(brentq(lambda e: curve(e) - 1e-5, 0.0, 50.0))

    found = read(Question(TYPED, "dp-sgd", "embedding-rows", {"noise_multiplier": 1.0}), stage, menu, seconds=5)
    columns = found["guarantee"]["columns"]
    assert found["guarantee"]["epsilon"] == columns["zero-out"] and "add/remove" not in columns
    for name, mu in (("zero-out", 1.0), ("replace-one", 2.0)):
        assert exact(mu) <= columns[name] <= exact(mu) + 2e-3


def test_a_rewritten_sentence_costs_every_word(stage: PageData, menu: Menu) -> None:
    found = read(Question(TYPED, "santext", "embedding-rows", {"epsilon_per_word": 2.0}), stage, menu, seconds=5)
    promise = found["guarantee"]
    assert promise["certified"] and promise["epsilon"] == pytest.approx(2.0 * len(TYPED.split()), rel=1e-4)
    assert any("as many words" in said for said in promise["assumptions"]) and "length" in found["alike"]


def test_every_reading_draws_its_noise_anew(stage: PageData, menu: Menu) -> None:
    question = Question(TYPED, "santext", "embedding-rows", {"epsilon_per_word": 5.0})
    first, second = (read(question, stage, menu, seconds=5) for _ in range(2))
    assert text(first["guess"]) != text(second["guess"]) and "rewritten" in first["note"]


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", "{{ 7 * 7 }}", "\u202e drawrof", "🙂" * 20, "a" * 600]
)
def test_any_text_can_be_typed(stage: PageData, menu: Menu, hostile: str) -> None:
    found = read(Question(hostile, attack="rss"), stage, menu, seconds=5)
    assert 0 <= found["leakage"]["value"] <= 1


@pytest.mark.parametrize("typed", ["مرحبا بالعالم", "日本語", "Анна пришла", ".", "?!"])
def test_what_is_read_in_another_script_counts_as_read(stage: PageData, menu: Menu, typed: str) -> None:
    """ROUGE drops every letter but a to z, and would call a sentence that was read in full 0% read."""
    found = read(Question(typed, attack="rss"), stage, menu, seconds=5)
    assert text(found["truth"]) == typed
    assert text(found["guess"]).replace(" ", "") == typed.replace(" ", "")  # one of the candidates' texts
    assert found["leakage"]["value"] == 1


@pytest.mark.parametrize(
    ("typed", "share"),
    [("我被重复收费了 heart", "50%"), ("😀 heart", "50%"), ("😀😀", "none of the tokens"), ("the heart", "")],
)
def test_what_the_model_does_not_know_is_said_and_counts_as_not_read(
    stage: PageData, menu: Menu, typed: str, share: str
) -> None:
    for attack in ("dager", "embedding-rows"):
        found = read(Question(typed, attack=attack), stage, menu, seconds=5)
        assert text(found["truth"]) == typed, "what the user wrote"
        assert ("know" in found["note"]) == bool(share) and share in found["note"]
        assert (found["unknown"] > 0) == bool(share)
        assert (found["leakage"]["value"] < 1) == bool(share)
        exact = next((one["value"] for one in found["figures"] if one["words"].startswith("whole texts")), 0.0)
        assert exact == (0.0 if share or attack != "dager" else 1.0)
    found = read(Question(typed, attack="one-of-n", protection="dp-sgd"), stage, menu, seconds=5)
    assert share in found["note"]


def test_a_sentence_is_one_and_is_not_repeated_in_errors() -> None:
    for bad in ("", "  ", "x" * 601, "Anna\0Novak", "Anna \ud800"):
        with pytest.raises(DataError, match="Expected a sentence") as error:
            Question(bad)
        assert "Anna" not in str(error.value)
    assert "Anna" not in repr(Question("Anna Novak"))


def test_an_unknown_label_is_refused(stage: PageData, menu: Menu) -> None:
    with pytest.raises(SettingError, match="label to be one of .*, got 'heart'"):
        read(Question(TYPED, label="heart"), stage, menu, seconds=1)
    assert read(Question(TYPED, attack="rss", label=stage.labels[1]), stage, menu, seconds=1)["leakage"]["value"] == 1
