"""Command options: generated from dataclass fields, and a few that several commands share.

A field whose metadata has `help` (`discreet.core.settings.option_field`) becomes an option with the field's name, type
and default, listed under the field's `panel`. A command parameter is either the dataclass itself, with all defaults
filled in, or `Annotated[dict[str, Any], KIND]`: a dict of only the options the user passed, so that the library can
choose the rest. A mapping after KIND selects the fields of the command and may describe defaults that differ from the
field's.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.catalog import CORPORA
from discreet.core.errors import SettingError, Spelling, invalid, one_of, positive, whole
from discreet.core.guarantee import DEFAULT_DELTA
from discreet.core.settings import option_field
from discreet.core.task import Task
from discreet.data.help import HELP
from discreet.models.settings import RANK

if TYPE_CHECKING:
    from discreet.data.corpus import LabelTask
    from discreet.data.sources import TextSource

# Options that are not named after their fields.
_FLAGS = {
    "aggregation_settings": "--aggregation-set",
    "encoder": "--model",
    "kind": "--format",
    "protect_settings": "--protect-set",
    "rewrite_queries": "--rewrite-queries/--keep-queries",
    "settings": "--set",
    "sought": "--for",
    "try_": "--try",
}

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help=f"{', '.join(CORPORA)}, a CSV, TSV, JSONL or Parquet file, a folder "
        "with train.* and validation.*, hub:NAME, a plug-in (`discreet names`) or module:function.",
    ),
]
OwnData = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="Other text: a built-in name, a file, a folder or hub:NAME.",
        show_default="the data of the run",
    ),
]
TextPair = Annotated[str | None, typer.Option("--text-pair", help=HELP["text_pair"])]
Separator = Annotated[str | None, typer.Option("--separator", help=HELP["separator"])]
Quoting = Annotated[str | None, typer.Option("--quoting", help=HELP["quoting"])]
Seed = Annotated[int, typer.Option("--seed", help="Random seed; the same seed repeats the run.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


@dataclass(frozen=True)
class SourceOptions:
    """Columns and file format of DATA, and how much of it is used."""

    text: str = option_field("text", HELP["text"], "Data")
    text_pair: str | None = option_field(None, HELP["text_pair"], "Data")
    label: str = option_field("label", HELP["label"], "Data")
    unit: str | None = option_field(None, HELP["unit"], "Data", "each row")
    separator: str | None = option_field(None, HELP["separator"], "Data")
    quoting: str | None = option_field(None, HELP["quoting"], "Data")
    rows: int | None = option_field(None, HELP["rows"], "Data")
    share: float | None = option_field(None, HELP["share"], "Data")


@dataclass(frozen=True)
class CommonOptions:
    """Options that `train`, `tune` and `federate` share."""

    delta: str = option_field("auto", f"auto is {DEFAULT_DELTA}.", "Privacy")
    noise_seed: int | None = option_field(
        None, "Fixed seed of the noise, for experiments; epsilon is then an estimate.", "Privacy", "secret"
    )
    rank: int | None = option_field(None, "Rank of the adapters, with --train lora.", "Model", str(RANK))
    download: bool = option_field(False, "Allow downloading the encoder from the hub.", "Model")
    task: str | None = option_field(
        None, "classification, regression or lm (a language model).", "Data", "inferred from the labels"
    )
    classes: str | None = option_field(None, "Class names, as A,B,C.", "Data", "those in the data")
    validation: str | None = option_field(None, HELP["validation"], "Data", "0.1")
    resume: bool = option_field(False, "Resume an interrupted run.", "Options")
    seed: int = option_field(0, "Random seed of everything except the private noise.", "Options")

    def source(self, data: str, columns: SourceOptions, max_per_unit: int | None = None) -> TextSource:
        """Return where the text comes from."""
        from discreet.data.sources import TextSource

        return TextSource(
            data,
            **vars(columns),
            validation=self.validation,
            task=task_of(self.task),
            seed=self.seed,
            classes=classes_of(self.classes),
            max_per_unit=max_per_unit,
        )

    def with_rank(self, model: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a model with the rank of its adapters; reject a rank without adapters."""
        if self.rank is None:
            return model
        whole("rank", self.rank, 1, "It is the rank of the adapters.")
        if model.get("train") != "lora":
            raise invalid("rank", self.rank, "used with --train lora", "Add it, or leave this out.")
        return {**model, "train": f"lora-{self.rank}"}


_MOST_ROWS = 100_000_000


@dataclass(frozen=True)
class LocalOptions(CommonOptions):
    """Options that `train` and `tune` share, because they train on one machine and count in one ledger."""

    max_per_unit: int | None = option_field(
        None,
        "Use at most this many rows of each unit, chosen at random; set it without looking at the data.",
        "Privacy",
        "all rows",
    )
    ledger: Path | None = option_field(
        None, "Ledger shared by several training runs.", "Privacy", "one per set of units"
    )
    budget: float | None = option_field(None, "Largest total epsilon of a unit over all its training runs.", "Privacy")
    checkpoint_seconds: float = option_field(30.0, "Seconds between checkpoints.", "Training")
    device: str = option_field("auto", "auto, cpu, cuda or cuda:N.", "Options")

    def check(self, rows: int | None) -> None:
        """Reject numbers outside their range; `rows` is how many rows are read at most."""
        positive("checkpoint-seconds", self.checkpoint_seconds)
        if self.budget is not None:
            positive("budget", self.budget, "It limits the total epsilon of a unit over all its training runs.")
        if rows is not None and rows > _MOST_ROWS:
            raise invalid("rows", rows, f"<= {_MOST_ROWS}", "Use fewer rows.")
        if self.max_per_unit is not None:
            whole("max_per_unit", self.max_per_unit, 1, "It is the largest number of rows of one unit.")


def task_of(name: str | None) -> LabelTask | None:
    """Return how labels are read for a task; a language model reads texts without them."""
    if name is None:
        return None
    task = Task(one_of("task", name, [str(one) for one in Task if one.is_trained]))
    return "unlabelled" if task.is_language else str(task)  # type: ignore[return-value]


def classes_of(text: str | None) -> tuple[str, ...] | None:
    """Return the class names of an option, or None."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) < 2:
        raise invalid("classes", text, "two or more names, A,B,C", "A classifier needs at least two classes.")
    return names


@dataclass(frozen=True)
class RunColumns:
    """Columns and format of a file that a finished run reads."""

    text: str | None = option_field(None, "Column with the text.", "Options", "the run's own")
    text_pair: str | None = option_field(None, HELP["text_pair"], "Options", "the run's own")
    label: str | None = option_field(None, "Column with the class or the score.", "Options", "the run's own")
    separator: str | None = option_field(None, HELP["separator"], "Options")
    quoting: str | None = option_field(None, HELP["quoting"], "Options")


def generated(short: Collection[str] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds an option for each field of the dataclasses in a command's signature.

    With `short`, the help lists only these parameters and fields; the others are hidden but work.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        names_of: dict[str, tuple[type[Any] | None, list[str]]] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            kind, partial, defaults = _dataclass_of(parameter.annotation)
            if kind is None:
                parameters.append(_hidden(parameter, short))
                continue
            options = [
                option_of(
                    one,
                    hint,
                    partial=partial,
                    hidden=short is not None and one.name not in short,
                    default_text=None if defaults is None else defaults[one.name],
                )
                for one, hint in fields_with_help(kind)
                if defaults is None or one.name in defaults
            ]
            names_of[parameter.name] = (None if partial else kind, [one.name for one in options])
            parameters += options

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            for name, (kind, names) in names_of.items():
                values = {one: given.pop(one) for one in names}
                given[name] = {k: v for k, v in values.items() if v is not None} if kind is None else kind(**values)
            command(**given)

        _sign(wrapper, parameters)
        return wrapper

    return decorate


def command_of(parameters: Sequence[inspect.Parameter], name: str, about: str = "", help_option: str = "--help") -> Any:
    """Return a command that has these options and does nothing, to list them or to parse their values."""

    def nothing(**given: Any) -> None:
        """Do nothing."""

    _sign(nothing, parameters)
    app = typer.Typer(add_completion=False, context_settings={"help_option_names": [help_option]})
    app.command(name, help=about)(nothing)
    return typer.main.get_command(app)


def fields_with_help(kind: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Yield the fields of a dataclass that are options, with their types."""
    hints = typing.get_type_hints(kind)
    yield from ((one, hints[one.name]) for one in dataclasses.fields(kind) if "help" in one.metadata)


def option_of(
    one: dataclasses.Field[Any],
    hint: Any,
    *,
    partial: bool = False,
    hidden: bool = False,
    default_text: str | None = None,
) -> inspect.Parameter:
    """Return the option for a field; a `partial` one is None if not passed. `default_text` describes the default."""
    name = _FLAGS.get(one.name)
    if name is None and hint is bool and one.default is False:
        name = "--" + one.name.replace("_", "-")  # False is the default, so there is no --no- form
    default_text = default_text or one.metadata.get("default")
    if default_text is None and partial and one.default is not None and one.default is not False:
        default_text = f"{one.default:g}" if isinstance(one.default, float) else str(one.default)
    about = typer.Option(
        *([name] if name else []),
        help=one.metadata["help"]
        + (f" \\[default: {default_text}]" if default_text else ""),  # escaped: not rich markup
        rich_help_panel=one.metadata["panel"],
        hidden=hidden,
        show_default=not default_text,
    )
    annotation: Any = Annotated[hint | None if partial else hint, about]
    default = None if partial else one.default
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _dataclass_of(annotation: Any) -> tuple[type[Any] | None, bool, Mapping[str, str | None] | None]:
    """Return the dataclass of a parameter, whether it receives only passed options, and its described defaults."""
    if dataclasses.is_dataclass(annotation):
        return typing.cast(type[Any], annotation), False, None
    notes = getattr(annotation, "__metadata__", ())
    if notes and dataclasses.is_dataclass(notes[0]) and isinstance(notes[0], type):
        return notes[0], True, notes[1] if len(notes) > 1 else None
    return None, False, None


def _hidden(parameter: inspect.Parameter, short: Collection[str] | None) -> inspect.Parameter:
    for note in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(note, typer.models.OptionInfo) and short is not None and parameter.name not in short:
            hint, *_ = typing.get_args(parameter.annotation)
            about = copy.copy(note)
            about.hidden = True
            return parameter.replace(annotation=Annotated[hint, about])
    return parameter


def _sign(command: Any, parameters: Sequence[inspect.Parameter]) -> None:
    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = inspect.Signature(keyword_only)
    command.__annotations__ = {one.name: one.annotation for one in keyword_only}


def parse_settings(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Parse NAME=VALUE settings; values are TOML, or strings if they are not valid TOML.

    >>> parse_settings(["steps=200", "rate=0.05", "score=absolute"], "--set")
    {'steps': 200, 'rate': 0.05, 'score': 'absolute'}
    """
    import tomllib

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise SettingError(f"Expected {option} NAME=VALUE, got {pair!r}. For example {option} steps=200.")
        try:
            settings[name.strip().replace("-", "_")] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name.strip().replace("-", "_")] = value
    return settings


def of_training(option: str) -> Spelling:
    """Return a function that spells a setting of the training run, which is an option of another command."""
    return lambda name, value: f"discreet train … --{option} {value}" if name == option else None


Threads = Annotated[int, typer.Option(help="Number of CPU threads; 1 is usually fastest.")]


def use_threads(threads: int) -> None:
    """Set the number of torch threads and, if torch is not imported yet, of the libraries below it."""
    whole("threads", threads, 1, "1 is usually fastest.")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import torch

    torch.set_num_threads(threads)
