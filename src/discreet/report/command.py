"""Write the training of one setting of a study as a command, so that the model for release can be trained at once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Keys of a study whose option has another name.
_NAMES = {"encoder": "model", "label_names": "classes"}
# Keys of a study that no option of the command sets.
_WITHOUT_OPTION = frozenset({"hidden", "momentum", "averaging", "gradient_norm"})
# The only option with two names: this one, and the other where its value is false.
_OPPOSITES = {"rewrite_queries": "keep-queries"}
# Options that are false by default and can only be switched on.
_SWITCHES = frozenset({"fresh_masks", "keep_marks"})


@dataclass(frozen=True)
class Command:
    """A command as its words, and the settings of the study that it cannot express, such as `training.momentum`."""

    words: tuple[str, ...]
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the command for a shell, on one line."""
        return shlex.join(self.words)

    def lines(self, width: int = 76) -> str:
        """Return the command for a shell on several lines, each option beside its value.

        >>> print(Command(("discreet", "train", "notes", "--epsilon", "3")).lines(width=24))
        discreet train notes \\
          --epsilon 3
        """
        pairs: list[str] = []
        for word in self.words:
            quoted = shlex.quote(word)
            if pairs and pairs[-1].startswith("--") and " " not in pairs[-1] and not word.startswith("--"):
                pairs[-1] += f" {quoted}"
            else:
                pairs.append(quoted)
        rows = [pairs[0]]
        for pair in pairs[1:]:
            if len(rows[-1]) + 1 + len(pair) > width - 2:
                rows.append("  " + pair)
            else:
                rows[-1] += f" {pair}"
        return " \\\n".join(rows)


def train_command(study: Mapping[str, Any], protection: Mapping[str, Any]) -> Command:
    """Return the command that trains a model for release like the trials of one setting of a study.

    The data, the model, the training and the protection are those of the trials. The noise is drawn in secret, where a
    trial draws it from a fixed seed, and planted canaries are left out.

    >>> study = {"name": "a", "data": {"source": "notes", "rows": 600}, "model": {"train": "head"}}
    >>> str(train_command(study, {"name": "dp-sgd", "epsilon": 3.0}))
    'discreet train notes --rows 600 --train head --head linear --protect dp-sgd --epsilon 3 --out runs/a-release'
    """
    data = dict(study["data"])
    # a study has these defaults for every protection; the command chooses its own by protection and size
    model = {"train": "all", "head": "linear", **(study.get("model") or {})}
    training = dict(study.get("training") or {})
    own = {key: value for key, value in protection.items() if key != "name"}
    words = ["discreet", "train", str(data.pop("source"))]
    for table in (data, model, training):
        words += _options(table)
    if protection["name"] != "none":
        words += ["--protect", str(protection["name"]), *_options(own)]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(study["name"])).strip("-.") or "study"
    tables = {"model": model, "training": training}
    missing = [f"{table}.{key}" for table, values in tables.items() for key in values if key in _WITHOUT_OPTION]
    if data.get("label", "") is None:
        missing.append("data.label")
    return Command((*words, "--out", f"runs/{name}-release"), tuple(missing))


def _options(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if value is None or key in _WITHOUT_OPTION:
            continue
        name = "--" + _NAMES.get(key, key).replace("_", "-")
        if isinstance(value, bool):
            if not value and key in _SWITCHES:
                continue
            opposite = _OPPOSITES.get(key, f"no-{name.removeprefix('--')}")
            yield name if value else f"--{opposite}"
        else:
            yield name
            yield ",".join(map(str, value)) if isinstance(value, list | tuple) else _plain(value)


def _plain(value: Any) -> str:
    short = f"{value:g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else str(value)
