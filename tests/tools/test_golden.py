"""The golden run's comparing: what must be equal, what may be rounded, and what is only wording."""

import copy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tools.golden import (
    CHANGES,
    chosen,
    masked,
    read_commands,
    read_record,
    tensor_figures,
    with_aliases,
    write_record,
)
from tools.golden_compare import Change, Difference, compare, compare_records, read_changes, settle

from discreet.catalog import ATTACKS, PROTECTIONS

RESULT: dict[str, Any] = {
    "name": "train-a",
    "status": 0,
    "json": {
        "guarantee": {"epsilon": 2.9998, "delta": 1e-5, "certified": True, "assumptions": ["the noise is secret"]},
        "epsilon_by_adjacency": {"add/remove": None, "zero-out": 2.9998},
        "utility": {"accuracy": 0.75},
        "steps": 8,
        "adjacency": "zero-out",
        "release": {"model": "the model of a"},
        "examples": [{"truth": "the knee is stiff", "guess": "the knee"}],
        "verdict": ["Use dp-sgd at epsilon 3.", "It leaks 0.05."],
    },
    "files": {"runs/a/model.safetensors": {"tensors": {"head.bias": {"norm": 1.25, "shape": [4]}}}},
    "notes": ["12 rows were held out"],
}


def changed(path: str, value: Any) -> list[Difference]:
    """Return the differences after one value of the result is changed, or removed where the value is `...`."""
    again = copy.deepcopy(RESULT)
    *parents, last = path.split("/")
    place: Any = again
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name.replace("|", "/")]
    last = last.replace("|", "/")
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return compare_records([RESULT], [again])


def test_a_record_agrees_with_itself() -> None:
    assert compare_records([RESULT], [copy.deepcopy(RESULT)]) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("json/guarantee/epsilon", 2.9998 + 1e-12),
        ("json/guarantee/delta", 1.0000001e-5),
        ("json/epsilon_by_adjacency/zero-out", 2.99980001),
        ("json/epsilon_by_adjacency/add|remove", 3.0),
        ("json/guarantee/certified", False),
        ("json/guarantee/certified", 1),
        ("json/guarantee/assumptions", []),
        ("json/guarantee/epsilon", ...),
        ("json/utility/accuracy", 0.750002),
        ("json/utility", ...),
        ("json/steps", 9),
        ("json/adjacency", "add/remove"),
        ("json/release/model", ""),
        ("json/examples/0/guess", "the knees"),
        ("json/examples", []),
        ("json/verdict", ["Use dp-sgd at epsilon 8.", "It leaks 0.05."]),
        ("files/runs|a|model.safetensors/tensors/head.bias/norm", 1.26),
        ("files/runs|a|model.safetensors", ...),
        ("files/runs|a|other", {}),
        ("notes", []),
        ("status", 2),
    ],
)
def test_a_change_of_a_result_is_found(path: str, value: Any) -> None:
    assert len(changed(path, value)) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("json/utility/accuracy", 0.75 + 1e-7),
        ("json/guarantee/assumptions", ["Noise is secret.", "The settings are public."]),
        ("json/release/model", "Model of run a"),
        ("json/verdict", ["0.05 leaks;", "choose DP-SGD, epsilon 3."]),
        ("json/new", 3),
        ("files/runs|a|model.safetensors/tensors/head.bias/norm", 1.25 * (1 + 1e-7)),
        ("notes", ["Held out 12 rows."]),
    ],
)
def test_rounding_wording_and_new_keys_are_allowed(path: str, value: Any) -> None:
    assert changed(path, value) == []


def test_what_is_drawn_secretly_is_compared_in_kind_alone() -> None:
    drawn = ["json.utility*"]
    assert not list(compare({"utility": {"accuracy": 0.5}}, {"utility": {"accuracy": 0.9}}, "json", drawn))
    for other in ({"utility": {}}, {"utility": {"accuracy": "high"}}, {}):
        assert len(list(compare({"utility": {"accuracy": 0.5}}, other, "json", drawn))) == 1


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = {"results": [RESULT], "made": {"commit": "a"}}
    write_record(tmp_path, values)
    assert read_record(tmp_path) == values


def test_a_command_that_is_missing_is_found() -> None:
    assert [one.command for one in compare_records([RESULT], [])] == ["train-a"]


def test_only_the_intended_change_is_allowed() -> None:
    found = [*changed("json/guarantee/epsilon", 1.5), *changed("json/steps", 9)]
    intended = Change("train-*", "json.guarantee.epsilon", 2.9998, 1.5, "the unit is a patient")
    stale = Change("train-*", "json.guarantee.delta", "*", "*", "never")
    left, unmet = settle(found, [intended, stale])
    assert [one.path for one in left] == ["json.steps"]
    assert unmet == [stale]
    other = Change("train-*", "json.guarantee.epsilon", 2.9998, 1.6, "another value")
    assert len(settle(found, [other])[0]) == 2


def test_an_intended_change_needs_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "changes.toml"
    path.write_text('[[change]]\ncommand = "a"\npath = "b"\nfrom = 1\nto = 2\n', encoding="utf-8")
    with pytest.raises(SystemExit, match="reason"):
        read_changes(path)
    assert isinstance(read_changes(CHANGES), list)


def test_the_commands_use_every_attack_and_protection() -> None:
    commands, files = read_commands()
    words = [command.get("run", []) for command in commands]
    attacks = {run[run.index("--attack") + 1] for run in words if "--attack" in run}
    protections = {run[run.index("--protect") + 1] for run in words if run[:1] == ["train"] and "--protect" in run}
    assert attacks == set(ATTACKS)
    assert protections >= set(PROTECTIONS)
    scripts = {command["script"] for command in commands if "script" in command}
    assert {"study.toml", "own_file.toml", "policy.toml"} | scripts == set(files)
    assert not any("{" in word for run in words for word in run if word != "{server}")


def test_some_commands_bring_those_that_they_build_on() -> None:
    commands, _ = read_commands()
    assert [one["name"] for one in chosen(commands, ["ledger-client"])] == [
        "train-ldp",
        "query",
        "query-decoys",
        "ledger-client",
    ]
    assert chosen(commands, []) == commands


def test_an_alias_replaces_its_words_alone() -> None:
    command = {"name": "train-ldp", "run": shlex.split("train notes --epsilon 20 --inference-epsilon 30")}
    alias = {"command": "train-*", "from": "--epsilon 20", "to": "--epsilon-per-message 20"}
    assert with_aliases(command, [alias])["run"] == shlex.split(
        "train notes --epsilon-per-message 20 --inference-epsilon 30"
    )
    assert with_aliases({**command, "name": "attack"}, [alias])["run"] == command["run"]


def test_times_paths_and_random_names_are_masked(tmp_path: Path) -> None:
    value = {
        "seconds": 1.5,
        "train_seconds": 3,
        "began": "2026-11-16T01:56:04+00:00",
        "out": f"{tmp_path}/runs/a",
        "ledger": "9dea93ebacd135bc",
        "server": "http://127.0.0.1:41234",
        "steps": 3,
        "loss": 0.25,
    }
    assert masked(value, tmp_path) == {
        "seconds": "<time>",
        "train_seconds": "<time>",
        "began": "<time>",
        "out": "<scratch>/runs/a",
        "ledger": "<random>",
        "server": "http://127.0.0.1:<port>",
        "steps": 3,
        "loss": 0.25,
    }


@pytest.mark.parametrize(
    "fault",
    [lambda w: w * 1.00001, lambda w: w[::-1].copy(), lambda w: np.where(w == w.max(), 0, w)],
    ids=["scaled", "reordered", "one entry"],
)
def test_figures_of_tensors_move_with_any_change(
    tmp_path: Path, fault: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
) -> None:
    weights = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    for name, values in (("a", weights), ("b", fault(weights).astype(np.float32))):
        save_file({"w": values}, tmp_path / name)
    one, other = (tensor_figures(tmp_path / name) for name in ("a", "b"))
    assert one["w"]["shape"] == [6, 5]
    assert list(compare(one, other)) and not list(compare(one, one))
