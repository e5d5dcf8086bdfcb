from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sample import write_sample

from discreet.core.guarantee import Caveat
from discreet.report.brief import Answer, brief_of, noise_words, people
from discreet.report.figures import leakage_axis, short_label, utility_against_leakage
from discreet.report.page import write_report
from discreet.report.reading import personal, pieces
from discreet.report.tables import ROWS, adjacency_rows, first_points, setting_rows, why_other_epsilon
from discreet.report.texts import SHOWN, by_attack, readings
from discreet.report.words import price
from discreet.study.frontier import Measured, Point
from discreet.study.result import StudyResult, read_result

OLD = Path(__file__).parents[1] / "fixtures" / "study_1" / "sweep"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("brief")
    write_sample(folder, seeds=1)
    return read_result(folder)


def changed(result: StudyResult, **goal: Any) -> StudyResult:
    """Return a result judged by another goal."""
    from discreet.study.frontier import best

    assert result.goal is not None
    rule = dataclasses.replace(result.goal, **goal).resolved()
    return dataclasses.replace(result, goal=rule, recommended=best(result.points, rule, result.utility))


def rows_of(result: StudyResult) -> dict[str, str]:
    return {row.name: " ".join(row.lines) for row in brief_of(result).rows}


def test_the_first_screen_answers_every_question(result: StudyResult) -> None:
    brief, rows = brief_of(result), rows_of(result)
    assert brief.answer is Answer.YES and brief.sentence.startswith("Yes, with ")
    chosen = result.recommended
    assert chosen is not None and chosen.label in brief.sentence and "(your ceiling is 10%)" in brief.sentence
    names = {"Released", "To whom", "About whom", "Attacker", "Proven", "Only measured", "Noise", "Caveats"}
    assert set(rows) == names
    assert "300 updates" in rows["Released"] and "everyone who gets the model" in rows["To whom"]
    assert "for each patient over the whole training" in rows["Proven"]
    measured = chosen.utility["accuracy"]
    assert f"accuracy {measured.value:.3f}" in rows["Only measured"]
    assert "always answering the most frequent class: 0.400" in rows["Only measured"]
    assert "lower than without protection (0.91" in rows["Only measured"]
    assert brief.command is not None and "protect" in dict(brief.command.options)


def test_no_setting_is_a_no_and_no_goal_is_no_answer(result: StudyResult) -> None:
    strict = brief_of(changed(result, ceiling=0.001))
    assert strict.answer is Answer.NO and strict.sentence.startswith("No: none of the 15 settings")
    assert strict.command is None and "try stronger ones" in strict.step
    unruled = brief_of(dataclasses.replace(result, goal=None, recommended=None))
    assert unruled.answer is Answer.OPEN and unruled.command is None and "[goal]" in unruled.step


def test_a_measured_answer_is_not_called_proven(result: StudyResult) -> None:
    measured = changed(result, leakage="dager/rouge_l", release="update", ceiling=0.9999999)
    assert measured.recommended is None  # the interval of three texts reaches 1
    measured = changed(result, leakage="dager/rouge_l", release="update", ceiling=None, floor=0.5)
    brief = brief_of(measured)
    assert brief.answer is Answer.YES and "This is measured, not proven" in brief.sentence
    assert "does not cover further updates" in rows_of(measured)["To whom"]


def test_people_are_counted_where_the_trials_count_them(result: StudyResult) -> None:
    point = result.points[1]
    assert "not recorded" in people(result.points, point)
    trial = point.trials[0]
    for unit, units, expected in (
        ("patient", 122, "122 patients, with 1,800 training texts"),
        ("row", 1800, "1,800 rows;"),
    ):
        guarantee = dataclasses.replace(trial.guarantee, unit=unit) if trial.guarantee else None
        counted = dataclasses.replace(trial, guarantee=guarantee, details={**trial.details, "units": units})
        assert people([], dataclasses.replace(point, trials=(counted,))).startswith(expected)


def test_the_sign_of_a_price_is_said_in_words() -> None:
    def point(name: str, value: float, spread: float) -> Point:
        measured = {"accuracy": Measured(value, value - spread, value + spread, seeds=1)}
        return Point(name, {"name": name}, measured, {}, None)

    bare = point("none", 0.857, 0.02)
    assert price(bare, point("a", 0.830, 0.02), "accuracy") == (
        "0.027 lower than without protection (0.857; their 95% intervals overlap)"
    )
    assert price(bare, point("a", 0.957, 0.02), "accuracy") == "0.100 higher than without protection (0.857)"
    assert price(bare, bare, "accuracy") == price(None, bare, "accuracy") == ""


def test_an_epsilon_that_was_not_asked_for_has_its_reason_beside_it(result: StudyResult) -> None:
    point = result.points[1]
    assert point.guarantee is not None
    several = dataclasses.replace(
        point.guarantee, epsilon=24.0, assumptions=("noise is secret", "three sentences of one patient are added up")
    )
    asked = dataclasses.replace(point, protection={"name": "ldp", "epsilon": 8.0}, guarantee=several)
    words = why_other_epsilon(asked, [asked, *result.points])
    assert words == "asked: 8; three sentences of one patient are added up"
    exact = dataclasses.replace(asked, guarantee=dataclasses.replace(several, epsilon=7.995))
    assert why_other_epsilon(exact, result.points) == ""
    less = dataclasses.replace(asked, guarantee=dataclasses.replace(several, epsilon=5.0))
    assert "used less than its budget" in why_other_epsilon(less, result.points)
    attacked = json.loads(json.dumps(point.trials[0].details["attacks"]))
    attacked["dager"]["guarantee"] |= {"delta": 1e-3, "unit": "record", "assumptions": ["of one release"]}
    trial = dataclasses.replace(point.trials[0], details={"attacks": attacked})
    why = adjacency_rows([dataclasses.replace(point, trials=(trial,))])[0]["why"]
    assert (
        why == "at delta 0.001, the training at 1e-05; for each record, the training for each patient; of one release"
    )


def test_many_settings_are_a_short_table_first(result: StudyResult) -> None:
    first = first_points(result)
    assert len(result.points) == 15 and 2 <= len(first) <= ROWS
    assert result.points[0] in first and result.recommended in first
    kept = {row["point"].label: row["kept"] for row in setting_rows(result, result.points)}
    assert kept["none"] == "no: leaks more" and result.recommended is not None
    assert kept[result.recommended.label] == "yes"


def test_three_texts_of_an_attack_come_first_those_with_names_and_numbers_before_others(tmp_path: Path) -> None:
    write_sample(tmp_path, seeds=1)
    path = tmp_path / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    named = "Seen: Ana Ruiz, record 4985512, on 24 June 2021, tel. 555-010-0199."
    texts = [f"text number {word} of nobody" for word in ("one", "two", "three", "four")]
    for line in lines:
        line["details"]["texts"] = [
            {"attack": "dager", "truth": text, "guess": text.lower(), "batch": 0} for text in [*texts, named]
        ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_result(tmp_path)
    (one,) = by_attack(readings(found), found)
    assert (len(one["shown"]), len(one["folded"])) == (SHOWN, 2)
    assert one["shown"][0]["truth"] == named
    first = one["shown"][0]["first"]
    assert [row["label"] for row in first] == ["none", found.recommended.label]  # type: ignore[union-attr]
    assert first[0]["personal"] == ["Ana Ruiz", "4985512", "24 June 2021", "555-010-0199"]
    assert len(one["shown"][0]["rest"]) == len(found.points) - 2
    page = write_report(tmp_path).page.read_text()
    assert page.index("Ana Ruiz") < page.index(texts[0])


def test_a_number_is_read_whichever_way_it_is_spaced() -> None:
    marked = [piece.text for piece in pieces("Call 616-555-0171 today.", "616 - 555 - 0171") if piece.right]
    assert marked == ["616-555-0171"]
    assert personal("Ana Ruiz, aged 41", "ruiz 41") == (["41"], 2)  # half of a name is not the name
    assert personal("41 and 41", "41") == (["41"], 2)  # and each is read once
    assert personal("no such thing", "no such thing") == ([], 0)


def test_the_axis_is_logarithmic_where_settings_would_be_pressed_together() -> None:
    def point(value: float) -> Point:
        leak = {"a/b": Measured(value, value, value, seeds=1, chance=0.02)}
        return Point(str(value), {"name": "a", "epsilon": value}, {"f1": Measured(0.5, 0.4, 0.6, 1)}, leak, None)

    near, far, zero = (
        [point(v) for v in (0.3, 0.5)],
        [point(v) for v in (0.03, 0.04, 1.0)],
        [point(v) for v in (0.0, 1.0)],
    )
    assert not leakage_axis(near, "a/b").log and not leakage_axis(zero, "a/b").log
    axis = leakage_axis(far, "a/b", 0.05)
    assert axis.log and axis.low < 0.02 and axis.place(0.04) > 0.1 and axis.place(0.03) < 0.5
    assert len(axis.ticks()) >= 4
    figure = utility_against_leakage(far, "a/b", "f1", far[1], 0.05)
    drawing = str(figure.svg("f"))
    assert drawing.count('<text class="label') == 3 and drawing.count('"label chosen"') == 1
    assert 'class="note"' in drawing and "ceiling 5%" in drawing
    assert short_label(far[0]) == "a · ε 0.03" and short_label(Point("none", {"name": "none"}, {}, {}, None)) == "none"


def test_noise_is_named_as_it_was_solved(result: StudyResult) -> None:
    assert "noise multiplier 0.3: on the sum of every step" in noise_words(result.points[1])
    local = Point("ldp, epsilon 8", {"name": "ldp", "epsilon": 8.0, "mechanism": "privunit"}, {}, {}, None)
    assert noise_words(local) == "epsilon 8 (privunit)"


def test_a_floor_on_an_error_is_the_most_that_is_accepted(result: StudyResult) -> None:
    def with_error(point: Point) -> Point:
        return dataclasses.replace(point, utility={"perplexity": Measured(40.0, 39.0, 41.0, 2)})

    goal = dataclasses.replace(result.goal, ceiling=None, floor=30.0, utility="perplexity")  # type: ignore[type-var]
    points = [with_error(point) for point in result.points]
    strict = dataclasses.replace(result, points=points, goal=goal, utility="perplexity", recommended=None)
    assert "perplexity of at most 30" in brief_of(strict).sentence
    assert {row["kept"] for row in setting_rows(strict, points)} == {"no: above the most accepted"}
    met = dataclasses.replace(strict, goal=dataclasses.replace(goal, floor=50.0), recommended=points[1])
    assert "at least 50" not in brief_of(met).sentence


def test_an_estimate_is_marked_in_the_epsilons_of_releases(result: StudyResult) -> None:
    point = result.points[1]
    attacked = json.loads(json.dumps(point.trials[0].details["attacks"]))
    attacked["dager"]["guarantee"] |= {
        "certified": False,
        "caveats": ["private-classes"],
        "reason": "classes were read",
    }
    trial = dataclasses.replace(point.trials[0], details={"attacks": attacked})
    row = adjacency_rows([dataclasses.replace(point, trials=(trial,))])[0]
    assert row["estimate"] and "an estimate, not a bound, because classes were read" in row["why"]
    assert not adjacency_rows([point])[0]["estimate"]


def test_private_class_names_are_the_reason_where_nothing_is_proven(result: StudyResult) -> None:
    """No setting keeps a ceiling if all guarantees are estimates; that is no reason for more noise."""

    def estimate(point: Point) -> Point:
        if point.guarantee is None:
            return point
        leakage = {name: dataclasses.replace(value, bound=None) for name, value in point.leakage.items()}
        doubted = point.guarantee.with_caveats({Caveat.PRIVATE_CLASSES})
        return dataclasses.replace(point, guarantee=doubted, leakage=leakage)

    doubted = changed(dataclasses.replace(result, points=[estimate(point) for point in result.points]))
    brief = brief_of(doubted)
    assert brief.answer is Answer.OPEN and "names of the classes were read from private labels" in brief.sentence
    assert "classes = [" in brief.step and "(classes)" not in brief.sentence + brief.step
    assert "stronger" not in brief.step
    strict = brief_of(changed(doubted, ceiling=0.001))
    assert strict.answer is Answer.NO and "classes = [" in strict.step
