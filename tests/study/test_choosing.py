"""The cost of choosing a setting by a study stands beside the epsilon of the setting."""

import math

import pytest

from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.types import Trial
from discreet.study.choosing import cost_of_choosing


def trial(epsilon: float | None, adjacency: Adjacency = Adjacency.ZERO_OUT) -> Trial:
    guarantee = None if epsilon is None else Guarantee(epsilon, 1e-5, "row", adjacency, "pld")
    return Trial({"protect": {"name": "dp-sgd"}}, 0, {"accuracy": 0.8}, guarantee=guarantee)


OWN, BUILT_IN = {"data": {"source": "letters.csv"}}, {"data": {"source": "notes"}}


def test_protected_trials_add_up() -> None:
    cost = cost_of_choosing(OWN, [trial(1.0), trial(3.0), trial(3.0)])
    assert (cost.epsilon, cost.delta, cost.trials) == (7.0, pytest.approx(3e-5), 3)
    assert "epsilon 7 at delta 3e-05" in cost.sentence() and "discreet tune" in cost.sentence()
    assert cost.as_dict()["epsilon"] == 7.0


@pytest.mark.parametrize("others", [[None], [1.0]])
def test_an_unprotected_trial_or_another_adjacency_leaves_no_bound(others: list[float | None]) -> None:
    cost = cost_of_choosing(OWN, [trial(3.0), *(trial(one, Adjacency.REPLACE_ONE) for one in others)])
    assert math.isinf(cost.epsilon) and cost.as_dict()["epsilon"] is None
    assert ("has no guarantee" in cost.sentence()) is (others == [None])


def test_text_that_belongs_to_nobody_costs_nothing() -> None:
    cost = cost_of_choosing(BUILT_IN, [trial(3.0), trial(None)])
    assert cost.epsilon == 0 and "costs nothing" in cost.sentence()
