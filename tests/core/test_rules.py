from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from discreet.core.errors import SettingError
from discreet.core.rules import (
    AtLeastOne,
    Different,
    NonNegative,
    OneOf,
    OpenProbability,
    Pattern,
    Positive,
    Probability,
    Rule,
    Whole,
    check_fields,
    ruled,
)
from discreet.core.schema import of_field
from discreet.core.settings import option_field

NUMBERS = (-1.0, 0, 0.0, 1e-9, 0.5, 1 - 1e-9, 1, 1.0, 2, 3.0)
TEXTS = ("head", "heads", "top-1", "top-0", "xtop-1", "", "flat")
LISTS = ([], [1], [1, 2], [1, 1])
RULES: list[tuple[Rule, tuple[Any, ...]]] = [
    (Positive(), NUMBERS),
    (NonNegative(), NUMBERS),
    (Probability(), NUMBERS),
    (Probability(below_one=True), NUMBERS),
    (OpenProbability(), NUMBERS),
    (Whole(), (-1, 0, 1, 7)),
    (Whole(0), (-1, 0, 1, 7)),
    (OneOf(("flat", "head")), TEXTS),
    (Pattern("head|top-[1-9]", "head or top-N"), TEXTS),
    (AtLeastOne(), LISTS),
    (Different(), LISTS),
]


def accepts(rule: Rule, value: Any) -> bool:
    try:
        rule.check("x", value)
    except SettingError:
        return False
    return True


@pytest.mark.parametrize(("rule", "values"), RULES, ids=lambda one: repr(one) if isinstance(one, Rule) else "")
def test_a_rule_accepts_what_its_schema_accepts(rule: Rule, values: tuple[Any, ...]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = jsonschema.Draft7Validator(rule.schema())
    accepted = [accepts(rule, value) for value in values]
    assert accepted == [schema.is_valid(value) for value in values]
    assert True in accepted and False in accepted


@pytest.mark.parametrize("rule", [Positive(), NonNegative(), Probability(), Probability(below_one=True), Whole()])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "many"])
def test_what_is_no_finite_number_breaks_every_rule_of_numbers(rule: Rule, value: Any) -> None:
    assert not accepts(rule, value)


@dataclass(frozen=True)
class Oven:
    heat: float = ruled(200.0, Positive("Degrees."))
    minutes: float | None = ruled(None, Positive())
    grill: str = option_field("off", "off or on.", "Oven", rule=OneOf(("off", "on")))

    def __post_init__(self) -> None:
        check_fields(self, "oven.", {"heat": "degrees"})


def test_the_rules_of_fields_are_checked_under_their_names() -> None:
    assert Oven().minutes is None
    for wrong, said in (
        ({"heat": 0.0}, r"Expected oven\.degrees to be > 0 and finite, got 0\.0\. Degrees\."),
        ({"minutes": -1.0}, r"Expected oven\.minutes to be > 0"),
        ({"grill": "onn"}, r"Expected oven\.grill to be one of off, on, got 'onn'\. Did you mean 'on'"),
    ):
        with pytest.raises(SettingError, match=said):
            Oven(**wrong)  # type: ignore[arg-type]


def test_none_is_allowed_only_where_it_is_the_default() -> None:
    with pytest.raises(SettingError, match=r"oven\.degrees"):
        Oven(heat=None)  # type: ignore[arg-type]


def test_a_grid_is_a_value_or_a_list_of_values() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    fields = Oven.__dataclass_fields__
    heat, grill = (
        jsonschema.Draft7Validator(of_field(fields[name], hint, grid=True))
        for name, hint in (("heat", float), ("grill", str))
    )
    assert [heat.is_valid(value) for value in (1, [1, 2.5], [], 0, [1, 0], "a", [[1]])] == [True] * 2 + [False] * 5
    assert [grill.is_valid(value) for value in ("on", ["on", "off"], [], "onn", ["onn"], 1)] == [True] * 2 + [False] * 4
