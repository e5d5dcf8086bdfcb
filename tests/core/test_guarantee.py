import dataclasses
import json
import math

import pytest

from discreet.core.errors import DataError, SettingError
from discreet.core.guarantee import Adjacency, Guarantee, strength


def test_the_sentence_says_everything() -> None:
    text = Guarantee(2.5, 1e-6, "patient", Adjacency.REPLACE_ONE, "pld", assumptions=("batches are secret",)).sentence()
    for part in ("Certified", "2.5", "1e-06", "each patient", "exchanged for any other", "pld", "batches are secret"):
        assert part in text


def test_an_estimate_is_called_one_and_says_why() -> None:
    text = Guarantee(1.6, 1e-5, "row", "add/remove", "gdp", certified=False, reason="it is a limit").sentence()
    assert text.startswith("Estimate, not a bound")
    assert "because it is a limit" in text
    with pytest.raises(SettingError, match="Say why"):
        Guarantee(1.6, 1e-5, "row", "add/remove", "gdp", certified=False)


def test_no_guarantee_is_said_plainly_and_is_valid_json() -> None:
    none = Guarantee(math.inf, 0.0, "row", Adjacency.ADD_REMOVE, "none", certified=False, reason="masks are no noise")
    assert none.sentence() == "No guarantee for any row: masks are no noise."
    assert json.loads(json.dumps(none.as_dict(), allow_nan=False))["epsilon"] is None


@pytest.mark.parametrize(("epsilon", "delta"), [(-1, 0), (math.nan, 0), (1, -0.1), (1, 2)])
def test_impossible_figures_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(SettingError):
        Guarantee(epsilon, delta, "row", Adjacency.ADD_REMOVE, "pld")


def test_what_is_certified_is_not_rounded_below_what_is_proven() -> None:
    for epsilon in (4.37718, 0.99961, 1e-3 + 1e-8, 123456.0, 2.0, 99995.1):
        told = Guarantee(epsilon, 1.2344e-5, "note", Adjacency.ADD_REMOVE, "pld").sentence()
        said = told.partition("epsilon = ")[2].partition(" and delta = ")
        assert epsilon <= float(said[0]) <= 1.001 * epsilon
        assert float(said[2].partition(" ")[0]) >= 1.2344e-5


@pytest.mark.parametrize(("epsilon", "word"), [(1.0, None), (10.0, None), (10.5, "weak"), (23610.0, "no practical")])
def test_a_large_epsilon_is_called_what_it_is(epsilon: float, word: str | None) -> None:
    promise = Guarantee(epsilon, 1e-5, "note", Adjacency.ZERO_OUT, "pld")
    assert ("weak guarantee" in promise.sentence()) == (word == "weak")
    assert ("no practical protection" in promise.sentence()) == (word == "no practical")
    assert promise.as_dict()["strength"] == strength(epsilon).value


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Guarantee)])
def test_stored_values_that_lack_one_are_rejected_by_its_name(name: str) -> None:
    values = Guarantee(3.0, 1e-5, "note", Adjacency.ADD_REMOVE, "pld").as_dict()
    assert Guarantee.from_dict(values).as_dict() == values
    with pytest.raises(DataError, match=rf"Expected {name} in a stored guarantee"):
        Guarantee.from_dict({key: value for key, value in values.items() if key != name})
