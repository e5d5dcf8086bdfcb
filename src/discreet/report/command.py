"""The command that trains one setting of a study for release: its options from the study, its text from a template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discreet.core.task import Task

# Keys of a study whose option has another name.
_NAMES = {"encoder": "model"}
# Keys of a study that no option of the command sets.
_WITHOUT_OPTION = frozenset({"hidden", "momentum", "averaging", "gradient_norm"})
# The only option with two names: this one, and the other where its value is false.
_OPPOSITES = {"rewrite_queries": "keep-queries"}
# Options that are false by default and can only be switched on.
_SWITCHES = frozenset({"fresh_masks", "keep_marks"})

Option = tuple[str, str | None]  # a name, and its value unless it is a switch


@dataclass(frozen=True)
class Command:
    """A training run as its data and options, and the settings that no option sets, such as `training.momentum`."""

    source: str
    options: tuple[Option, ...]
    missing: tuple[str, ...] = ()

    @property
    def out(self) -> str:
        """The run folder that the command writes."""
        return dict(self.options)["out"] or ""


def train_command(study: Mapping[str, Any], protection: Mapping[str, Any]) -> Command:
    """Return the command that trains a model for release like the trials of one setting of a study.

    The data, the model, the training and the protection are those of the trials. The noise is drawn in secret, where a
    trial draws it from a fixed seed, and planted canaries are left out.

    >>> study = {"name": "a", "data": {"source": "notes", "rows": 600}, "model": {"train": "head"}}
    >>> train_command(study, {"name": "dp-sgd", "epsilon": 3.0}).options[-3:]
    (('protect', 'dp-sgd'), ('epsilon', '3'), ('out', 'runs/a-release'))
    """
    data = dict(study["data"])
    source = str(data.pop("source"))
    if data.get("task") == Task.UNLABELLED:  # a study reads text without labels, of which a language model is trained
        data["task"] = str(Task.LM)
    model = dict(study.get("model") or {})
    training = dict(study.get("training") or {})
    options = [option for table in (data, model, training) for option in _options(table)]
    if protection["name"] != "none":
        own = {key: value for key, value in protection.items() if key != "name"}
        options += [("protect", str(protection["name"])), *_options(own)]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(study["name"])).strip("-.") or "study"
    tables = {"model": model, "training": training}
    missing = [f"{table}.{key}" for table, values in tables.items() for key in values if key in _WITHOUT_OPTION]
    if data.get("label", "") is None and data.get("task") != Task.LM:
        missing.append("data.label")
    return Command(source, (*options, ("out", f"runs/{name}-release")), tuple(missing))


def _options(table: Mapping[str, Any]) -> Iterator[Option]:
    for key, value in table.items():
        if value is None or key in _WITHOUT_OPTION or (value is False and key in _SWITCHES):
            continue
        name = _NAMES.get(key, key).replace("_", "-")
        if isinstance(value, bool):
            yield (name if value else _OPPOSITES.get(key, f"no-{name}")), None
        else:
            yield name, ",".join(map(str, value)) if isinstance(value, list | tuple) else _plain(value)


def _plain(value: Any) -> str:
    short = f"{value:g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else str(value)


def wrapped(parts: Sequence[str], width: float) -> str:
    """Return the parts of a command on lines of a width, each but the last with a backslash at its end.

    >>> print(wrapped(["discreet train notes", "--epsilon 3"], 24))
    discreet train notes \\
      --epsilon 3
    """
    rows = [parts[0]]
    for part in parts[1:]:
        if len(rows[-1]) + 1 + len(part) > width - 2:
            rows.append("  " + part)
        else:
            rows[-1] += f" {part}"
    return " \\\n".join(rows)
