"""A file of private rows, and the commands that the doors of training and of search run on it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from discreet.cli.main import main

CLASSES = ("--classes", "clinic,ward")
FILES = {"README.md", "encoder.json", "ledger.jsonl", "metrics.json", "model.safetensors", "settings.toml", "tokenizer"}


@dataclass(frozen=True)
class Answer:
    """The exit status of a command, and what it printed, without line breaks."""

    status: int
    out: str
    err: str

    @property
    def values(self) -> dict[str, Any]:
        """The values that a command prints with --json."""
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass(frozen=True)
class Door:
    """Rows of patients, each of whom has three, and a tiny encoder; `home` has the record of all releases."""

    rows: Path
    encoder: Path
    home: Path

    def say(self, command: str, *words: object, data: Path | None = None, out: Path | None = None) -> Answer:
        """Run a command on the rows with a tiny model, and return what it printed."""
        more = ["--model", self.encoder, "--train", "head", "--device", "cpu", "--batch-size", 20, "--epochs", 2]
        more += [] if out is None else ["--out", out]
        return answer(command, data or self.rows, *more, *words, home=self.home)


def answer(*words: object, home: Path) -> Answer:
    """Run a command with its own record of releases."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patched.setenv("DISCREET_HOME", str(home))
        patched.setenv("DISCREET_CACHE", str(home / "cache"))
        status = main([str(word) for word in words])
    return Answer(status, out.getvalue(), " ".join(err.getvalue().split()))


def door_of(folder: Path, encoder: Path, rows: Sequence[tuple[str, str]]) -> Door:
    """Write the rows with the patient of each."""
    path = folder / "rows.csv"
    write(path, [(text, label, f"p{number // 3:02}") for number, (text, label) in enumerate(rows)])
    return Door(path, encoder, folder / "home")


def write(path: Path, rows: Sequence[tuple[str, str, str]]) -> Path:
    """Write rows of text, label and patient."""
    path.write_text("text,label,patient_id\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def edits(run: Path) -> Iterator[tuple[str, Path]]:
    """Yield copies of a run, each with one of its files edited."""
    for name in ("metrics", "weights", "ledger"):
        copy = run.with_name(f"{run.name} {name}")
        shutil.copytree(run, copy)
        if name == "metrics":
            values = json.loads((copy / "metrics.json").read_text())
            values["guarantee"]["epsilon"] = 0.01
            (copy / "metrics.json").write_text(json.dumps(values))
        elif name == "weights":
            tensors = {key: value.clone() for key, value in load_file(copy / "model.safetensors").items()}
            tensors[sorted(tensors)[-1]] += 1
            (copy / "model.safetensors").unlink()
            save_file(tensors, copy / "model.safetensors", metadata={"format": "pt", "discreet": "3"})
        else:  # a new spend in the middle of the file would break its chain of checks; at its end lines can be cut off
            lines = (copy / "ledger.jsonl").read_text().splitlines(keepends=True)
            (copy / "ledger.jsonl").write_text("".join(lines[:-1]))
        yield name, copy


def check(run: Path, home: Path) -> Answer:
    """Run the gate with a policy that the run as it was trained meets."""
    policy = run.parent / "policy.toml"
    policy.write_text("[guarantee]\nepsilon = 50.0\n")
    return answer("check", run, "--policy", policy, home=home)
