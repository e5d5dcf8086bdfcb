"""What is on offer is the catalog's, and what is on offer answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet import catalog
from discreet.catalog import PROTECTIONS
from discreet.cli.serve import SLOW, menu_of_catalog
from discreet.core.errors import DiscreetError, UnsupportedError
from discreet.experiment.attack.scene import Scene
from discreet.explorer.menu import NONE, Menu, offer
from discreet.explorer.page_data import PageData, Setting
from discreet.explorer.reading import Question, read

TYPED = "the heart was calm"
# a typed sentence has a gradient and a vector; who was in the training data is asked of a trained model
OFFERED = [name for name, entry in catalog.ATTACKS.items() if entry.sees != "model" and not entry.about_people]


def test_the_catalog_decides(stage: PageData, menu: Menu) -> None:
    found = offer(menu, stage)
    names = {one["name"] for one in found["protections"]}
    assert names | set(found["left_out"]) == {NONE, *PROTECTIONS}
    assert "Expected sensitive" in found["left_out"]["santext+"]  # it needs a file, and no dial can name one
    assert {one["name"] for one in found["attacks"]} == set(OFFERED) - set(SLOW)
    assert set(menu_of_catalog(60.0).attacks) == set(OFFERED)
    assert all(one["words"] for one in found["attacks"] + found["protections"])
    assert len({one["words"] for one in found["protections"]}) == len(found["protections"])
    json.dumps(found, allow_nan=False)


def test_the_attack_that_is_offered_first_has_something_to_read(stage: PageData, menu: Menu) -> None:
    assert offer(menu, stage)["attacks"][0]["name"] == "dager"
    head_only = PageData("a head", lambda kind: stage.scene("representation"))
    assert offer(menu, head_only)["attacks"][0]["name"] == "rss"


def test_it_starts_where_the_strength_moves_what_is_read(stage: PageData, menu: Menu) -> None:
    found = offer(menu, stage)
    first = {one["name"]: one["first"] for one in found["protections"]}
    assert (found["start"], first[found["start"]]) == ("ldp", "rss")
    for one in found["protections"]:
        assert one["first"] is not None and one["first"] not in one["misfits"]
    # no text is spelled from a gradient at any strength on the slider; naming one of n goes from chance to certainty
    assert first["dp-sgd"] == first["dir-dp-sgd"] == "one-of-n"
    dial = next(dial for one in found["protections"] if one["name"] == "dp-sgd" for dial in one["dials"])
    ends = [
        read(Question(TYPED, "dp-sgd", first["dp-sgd"], {dial["name"]: end}), stage, menu, seconds=1.0)
        for end in (dial["low"], dial["high"])
    ]
    low, high = (each["leakage"]["value"] for each in ends)
    assert low < 0.1 < 0.9 < high


@pytest.mark.slow
def test_the_first_slider_goes_from_the_wrong_text_to_the_right_one(
    nothing_trained: Callable[[Path | None], PageData], menu: Menu
) -> None:
    """With the built-in notes and model, as the page starts."""
    stage = nothing_trained(None)
    found = offer(menu, stage)
    start = next(one for one in found["protections"] if one["name"] == found["start"])

    def read_at(epsilon: float) -> float:
        asked = Question(found["examples"][0], start["name"], start["first"], {"epsilon": epsilon})
        return float(read(asked, stage, menu, seconds=1.0)["leakage"]["value"])

    assert max(read_at(1000.0) for _ in range(3)) == 1.0
    assert min(read_at(0.1) for _ in range(6)) < 0.5  # a text is drawn at random there, seldom the right one


def test_an_attack_is_offered_where_it_has_something_to_attack(stage: PageData, menu: Menu) -> None:
    misfits = {one["name"]: set(one["misfits"]) for one in offer(menu, stage)["protections"]}
    vectors = {name for name, ruler in menu.attacks.items() if ruler.sees.kind == "representation"}
    assert misfits[NONE] == set()
    assert misfits["dp-sgd"] == misfits["dir-dp-sgd"] == vectors
    assert misfits["ldp"] == set(menu.attacks) - vectors
    assert misfits["texthide"] == {"one-of-n"} and misfits["santext"] == vectors | {"one-of-n"}


def test_every_protection_answers_by_every_dial(stage: PageData, menu: Menu) -> None:
    for one in offer(menu, stage)["protections"]:
        attack = next(name for name in ("embedding-rows", "rss") if name not in one["misfits"])
        for dial in [{}, *({dial["name"]: dial["start"]} for dial in one["dials"])]:
            found = read(Question(TYPED, one["name"], attack, dial), stage, menu, seconds=0.5)
            assert 0 <= found["leakage"]["value"] <= 1
            json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("attack", [name for name in OFFERED if name not in SLOW])
def test_every_attack_answers_or_says_why_not(stage: PageData, menu: Menu, attack: str) -> None:
    try:
        found = read(Question(TYPED, attack=attack), stage, menu, seconds=0.3)
    except DiscreetError as error:
        assert str(error).startswith("Expected ")
    else:
        assert found["attack"] == attack and found["bound"] is None


def test_where_only_a_head_is_trained_no_attack_on_the_encoder_is_offered(scenes: dict[str, Scene], menu: Menu) -> None:
    told = offer(menu, PageData("a head", lambda kind: scenes["representation"]))
    vectors = {name for name, ruler in menu.attacks.items() if ruler.sees.kind == "representation"}
    for one in told["protections"]:
        assert set(menu.attacks) - set(one["misfits"]) <= vectors | {"one-of-n"}
    assert set(told["protections"][0]["misfits"]) == set(menu.attacks) - vectors - {"one-of-n"}
    with pytest.raises(UnsupportedError, match="only the head is trained"):
        read(Question("the heart was calm"), PageData("a head", lambda kind: scenes["representation"]), menu, seconds=1)


def test_a_misfit_is_refused_with_the_remedy(stage: PageData, menu: Menu) -> None:
    with pytest.raises(DiscreetError, match="Choose another attack or protection"):
        read(Question(TYPED, "ldp", "dager"), stage, menu, seconds=1)
    with pytest.raises(DiscreetError, match="Did you mean 'dager'"):
        read(Question(TYPED, attack="dagger"), stage, menu, seconds=1)
    with pytest.raises(DiscreetError, match="Did you mean 'dp-sgd'"):
        read(Question(TYPED, protection="dp-sdg"), stage, menu, seconds=1)


def test_a_study_s_setting_keeps_its_other_values_when_a_dial_moves(stage: PageData, menu: Menu) -> None:
    one = Setting("dp-sgd, epsilon 8", "dp-sgd", {"noise_multiplier": 0.7, "clip_norm": 0.2})
    studied = PageData("a study", stage.scene, (one,))
    assert offer(menu, studied)["settings"][0]["dials"] == {"noise_multiplier": 0.7}
    assert menu.values("dp-sgd", {"epsilon": 3.0}, one.values) == {"clip_norm": 0.2, "epsilon": 3.0}
    own = read(Question(TYPED, "dp-sgd", "embedding-rows", setting=0), studied, menu, seconds=1)
    moved = read(Question(TYPED, "dp-sgd", "embedding-rows", {"epsilon": 3.0}, setting=0), studied, menu, seconds=1)
    assert moved["guarantee"]["epsilon"] == pytest.approx(3.0, rel=1e-3)
    assert own["guarantee"]["epsilon"] > 6
    with pytest.raises(DiscreetError, match="index into the settings"):
        read(Question(TYPED, setting=7), studied, menu, seconds=1)
