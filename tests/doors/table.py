"""The law of doors: every entry point that can end in "certified", and what a careless user may do there.

Each test in `tests/doors` fills cells of the table with `@door(entry point, act, outcome)`. `tests/laws/test_doors.py`
checks that every cell is filled, and that `docs/doors.md` shows the table as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

DOORS = {
    "train": "`discreet train --protect dp-sgd`",
    "tune": "`discreet tune`",
    "discreet.training.train": "`discreet.training.train(model, corpus, plan)`",
    "step": "`make_private`: `batches` and `step`",
    "capture": "`make_private`: `batches` and `capture`",
    "record": "`make_private`: `record`, `accumulate`, `release`",
    "gradients": "`make_private`: `rows` and `gradients`",
    "PrivateTrainer": "`PrivateTrainer`",
    "TextClassifier": "`TextClassifier`",
    "federated client": "a federated client with dp-sgd",
    "federated server": "a federated server with central-dp",
    "dp-ie": "`discreet train --protect dp-ie`",
    "ldp": "`discreet train --protect ldp`",
    "sanitize": "`discreet sanitize`",
    "audit": "`discreet train --audit`, `discreet audit RUN`",
}
ACTS = {
    "unit": "before: leaves the privacy unit out although people have several rows",
    "again": "before: releases the same people a second time",
    "foreign": "before: uses a protection of another package",
    "stop": "during: stops early because of what the model shows",
    "error": "during: catches an error and carries on",
    "state": "during: writes state that depends on private rows",
    "log": "during: logs what depends on private rows, or who was sampled",
    "resume": "after: resumes with other weights, data or settings",
    "edit": "after: edits a file of the result",
    "evaluate": "after: evaluates on the training rows, or chooses the model by them",
}
# Rejected: an error that says why. Estimate: a caveat says why. Certified: the printed figure is true nevertheless.
REJECTED, ESTIMATE, CERTIFIED = "rejected", "estimate", "certified"
OUTCOMES = (REJECTED, ESTIMATE, CERTIFIED)

Test = TypeVar("Test", bound=Callable[..., object])


def door(entry: str, act: str, outcome: str) -> Callable[[Test], Test]:
    """Say which cell of the table a test fills; several decorators fill several cells."""
    if entry not in DOORS or act not in ACTS or outcome not in OUTCOMES:
        raise pytest.UsageError(f"Expected a cell of the law of doors, got {entry}, {act}, {outcome}.")
    return lambda test: test


def cells(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Return, for every filled cell, the outcome that each test of the folder states, read from their source."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    values = {"REJECTED": REJECTED, "ESTIMATE": ESTIMATE, "CERTIFIED": CERTIFIED}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "door":
                    entry, act = (ast.literal_eval(argument) for argument in call.args[:2])
                    outcome = call.args[2]
                    assert isinstance(outcome, ast.Name)
                    found.setdefault((entry, act), {})[f"{path.name}::{node.name}"] = values[outcome.id]
    return found


def as_markdown(filled: dict[tuple[str, str], dict[str, str]]) -> str:
    """Return the table for the documentation: a row for each door, a column for each act."""
    lines = ["| entry point | " + " | ".join(ACTS) + " |", "|---" * (len(ACTS) + 1) + "|"]
    for entry, words in DOORS.items():
        outcomes = [sorted(set(filled.get((entry, act), {}).values()), key=OUTCOMES.index) for act in ACTS]
        lines.append(f"| {words} | " + " | ".join(", ".join(one) for one in outcomes) + " |")
    return "\n".join(lines) + "\n"


def as_list(filled: dict[tuple[str, str], dict[str, str]]) -> str:
    """Return the tests behind the table, in words: for every door and act, the outcome and what exactly was done.

    A cell says "certified" for the acts that are listed here, and no others.
    """
    lines = []
    for entry, words in DOORS.items():
        lines += [f"### {words}", ""]
        for act in ACTS:
            tests = sorted(filled.get((entry, act), {}).items(), key=lambda one: (OUTCOMES.index(one[1]), one[0]))
            lines += [f"- *{act}*, {outcome}: {_in_words(test)}" for test, outcome in tests]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _in_words(test: str) -> str:
    """Return the name of a test as a sentence.

    >>> _in_words("test_train.py::test_an_edit_fails_the_gate")
    'an edit fails the gate'
    """
    return test.rsplit("::", 1)[-1].removeprefix("test_").replace("_", " ")
