"""Edits of a finished release that a careless or dishonest owner may make, each of one file alone.

for edit in RUN_EDITS.values():
    edit(run)
    assert main(["check", str(run), "--policy", policy]) != 0
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from discreet.core.files import DIGESTS, with_digests
from discreet.runs.folder import files_of_release, ledgers_of

Edit = Callable[[Path], None]


def changed(file: Path, **values: Any) -> None:
    """Change values of a JSON file; a key `a__b` is `b` in the table `a`."""
    content = json.loads(file.read_text(encoding="utf-8"))
    for key, value in values.items():
        *tables, name = key.split("__")
        table = content
        for one in tables:
            table = table[one]
        assert name in table and table[name] != value, f"{key} is not changed"
        table[name] = value
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")


def restated(run: Path, values: Mapping[str, Any]) -> None:
    """Write the metrics of a run folder with digests of the folder as it is: a consistent edit, not a careless one."""
    metrics = with_digests(values, files_of_release(run), ledgers_of(run))
    (run / "metrics.json").write_text(json.dumps(metrics, indent=2), encoding="utf-8")


def other_weights(run: Path) -> None:
    """Replace one tensor of the weights."""
    path = run / "model.safetensors"
    with safe_open(path, "pt") as file:
        about, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    last = sorted(tensors)[-1]
    tensors[last] = tensors[last] + 1
    path.unlink()
    save_file(tensors, path, metadata=about)


def without_lines(file: Path, first: int, count: int) -> None:
    """Remove lines of a file, counted from the end if `first` is negative."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    first = first % len(lines)
    file.write_text("".join(lines[:first] + lines[first + count :]), encoding="utf-8")


def without_digests(file: Path, **values: Any) -> None:
    """Remove the digests of a JSON file and change values."""
    changed(file, **values)
    content = json.loads(file.read_text(encoding="utf-8"))
    del content[DIGESTS]
    file.write_text(json.dumps(content), encoding="utf-8")


def _metrics(**values: Any) -> Edit:
    return lambda run: changed(run / "metrics.json", **values)


RUN_EDITS: dict[str, Edit] = {
    "epsilon": _metrics(guarantee__epsilon=0.1),
    "delta": _metrics(guarantee__delta=1e-9),
    "unit": _metrics(guarantee__unit="hospital"),
    "adjacency": _metrics(guarantee__adjacency="replace-one"),
    "assumptions": _metrics(guarantee__assumptions=[]),
    "steps": _metrics(steps=1_000_000),
    "epsilon of another adjacency": _metrics(epsilon_by_adjacency={"zero-out": 0.1}),
    "digests and epsilon": lambda run: without_digests(run / "metrics.json", guarantee__epsilon=0.1),
    "digests and steps": lambda run: without_digests(run / "metrics.json", steps=1_000_000),
    "weights": other_weights,
    "settings": lambda run: (run / "settings.toml").write_text((run / "settings.toml").read_text() + "\n# edited\n"),
    "end of the ledger": lambda run: without_lines(run / "ledger.jsonl", -1, 1),
    "middle of the ledger": lambda run: without_lines(run / "ledger.jsonl", 1, 1),
    "no ledger": lambda run: (run / "ledger.jsonl").unlink(),
    "no metrics": lambda run: (run / "metrics.json").unlink(),
}
# For a run with a fixed seed, whose figure is an estimate.
ESTIMATE_EDITS: dict[str, Edit] = {
    "certified": _metrics(guarantee__certified=True, guarantee__caveats=[], guarantee__reason=None),
    "caveats": _metrics(guarantee__caveats=[]),
    "another caveat": _metrics(guarantee__caveats=["central-limit"]),
}
cut_the_ledger = partial(without_lines, first=-1, count=1)
