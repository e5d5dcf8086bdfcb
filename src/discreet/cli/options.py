"""Options of commands, generated from the fields of dataclasses, and the few that several commands share.

A field whose metadata has `help` (`discreet.core.settings.option`) is an option: its name, type and default are those
of the field, its heading is the field's `panel`. A command takes the dataclass itself, with everything filled in, or
`Annotated[dict[str, Any], KIND]`: what was given of it, so that whoever is asked can choose the rest. A mapping after
KIND names the fields that the command has, with their defaults in words where they are not those of the field.

How many threads a command computes with.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.catalog import CORPORA
from discreet.core.errors import SettingError, whole
from discreet.core.settings import option

# The names of options that are not those of their fields.
_FLAGS = {"encoder": "--model", "rewrite_queries": "--rewrite-queries/--keep-queries"}
_PAIR = "Column with the second text of a pair."
SEPARATOR = "Separates the columns of CSV and TSV files; by default a comma or a tab, by the name of the file."
QUOTING = (
    "csv: fields may stand in quotation marks; none: quotation marks are text. Default: csv for CSV; for TSV, the one "
    "that fits the file."
)

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help=f"{', '.join(CORPORA)}, a CSV, TSV, JSONL or Parquet file, a folder "
        "with train.* and validation.*, or hub:NAME.",
    ),
]
OwnData = Annotated[
    str | None,
    typer.Argument(
        metavar="[DATA]",
        help="Other text: a built-in name, a file, a folder or hub:NAME.",
        show_default="the data of the run",
    ),
]
TextPair = Annotated[str | None, typer.Option("--text-pair", help=_PAIR)]
Separator = Annotated[str | None, typer.Option("--separator", help=SEPARATOR)]
Quoting = Annotated[str | None, typer.Option("--quoting", help=QUOTING)]
Seed = Annotated[int, typer.Option("--seed", help="The same seed repeats the run.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


@dataclass(frozen=True)
class SourceOptions:
    """Which columns of DATA are read, how its files are written, and how much of it is used."""

    text: str = field(default="text", metadata=option("Column with the text.", "Data"))
    text_pair: str | None = field(default=None, metadata=option(_PAIR, "Data"))
    label: str = field(default="label", metadata=option("Column with the class or the score.", "Data"))
    unit: str | None = field(
        default=None,
        metadata=option("Column that names whose privacy is protected, as patient or author.", "Data", "each row"),
    )
    separator: str | None = field(default=None, metadata=option(SEPARATOR, "Data"))
    quoting: str | None = field(default=None, metadata=option(QUOTING, "Data"))
    rows: int | None = field(
        default=None, metadata=option("Keep exactly this many training rows, or generate this many notes.", "Data")
    )
    share: float | None = field(default=None, metadata=option("Keep about this share of the training units.", "Data"))


@dataclass(frozen=True)
class RunColumns:
    """Which columns of a file a finished run reads, and how the file is written."""

    text: str | None = field(default=None, metadata=option("Column with the text.", "Options", "the run's own"))
    text_pair: str | None = field(default=None, metadata=option(_PAIR, "Options", "the run's own"))
    label: str | None = field(
        default=None, metadata=option("Column with the class or the score.", "Options", "the run's own")
    )
    separator: str | None = field(default=None, metadata=option(SEPARATOR, "Options"))
    quoting: str | None = field(default=None, metadata=option(QUOTING, "Options"))


def generated(short: Collection[str] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command one option for each field of the dataclasses in its signature.

    With `short` only these parameters and fields are in its help; the others are hidden, and work.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        gathered: dict[str, tuple[type[Any] | None, list[str]]] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            kind, partial, defaults = _dataclass_of(parameter.annotation)
            if kind is None:
                parameters.append(_hidden(parameter, short))
                continue
            made = [
                option_of(
                    one,
                    hint,
                    partial=partial,
                    hidden=short is not None and one.name not in short,
                    said=None if defaults is None else defaults[one.name],
                )
                for one, hint in fields_with_help(kind)
                if defaults is None or one.name in defaults
            ]
            gathered[parameter.name] = (None if partial else kind, [one.name for one in made])
            parameters += made

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            for name, (kind, names) in gathered.items():
                values = {one: given.pop(one) for one in names}
                given[name] = {k: v for k, v in values.items() if v is not None} if kind is None else kind(**values)
            command(**given)

        _sign(wrapper, parameters)
        return wrapper

    return decorate


def command_of(parameters: Sequence[inspect.Parameter], name: str, about: str = "", help_option: str = "--help") -> Any:
    """Return a command that has some options and does nothing: to list them, or to read their values."""

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
    one: dataclasses.Field[Any], hint: Any, *, partial: bool = False, hidden: bool = False, said: str | None = None
) -> inspect.Parameter:
    """Return the option for a field; a `partial` one is None where it is not given. `said` is the default in words."""
    name = one.metadata.get("flag") or _FLAGS.get(one.name)
    if name is None and hint is bool and one.default is False:
        name = "--" + one.name.replace("_", "-")  # there is nothing to turn off
    said = said or one.metadata.get("default")
    if said is None and partial and one.default is not None and one.default is not False:
        said = f"{one.default:g}" if isinstance(one.default, float) else str(one.default)
    about = typer.Option(
        *([name] if name else []),
        help=one.metadata["help"] + (f" \\[default: {said}]" if said else ""),  # the bracket is no markup
        rich_help_panel=one.metadata["panel"],
        hidden=hidden,
        show_default=not said,
    )
    annotation: Any = Annotated[hint | None if partial else hint, about]
    default = None if partial else one.default
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _dataclass_of(annotation: Any) -> tuple[type[Any] | None, bool, Mapping[str, str | None] | None]:
    """Return the dataclass of a parameter, whether it takes only what was given, and the defaults of its fields."""
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
    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = inspect.Signature(every)
    command.__annotations__ = {one.name: one.annotation for one in every}


def settings_given(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Return settings written as NAME=VALUE, the values as TOML has them, or as plain words.

    >>> settings_given(["steps=200", "rate=0.05", "score=absolute"], "--set")
    {'steps': 200, 'rate': 0.05, 'score': 'absolute'}
    """
    import tomllib

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise SettingError(f"Expected {option} {pair!r} as NAME=VALUE. For example {option} steps=200.")
        try:
            found[name.strip().replace("-", "_")] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip().replace("-", "_")] = value
    return found


Threads = Annotated[int, typer.Option(help="Number of CPU threads; one is usually fastest.")]


def use_threads(threads: int) -> None:
    """Let torch compute with so many threads; before torch is imported the libraries below it are told too."""
    whole("threads", threads, 1, "One is usually best.")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import torch

    torch.set_num_threads(threads)
