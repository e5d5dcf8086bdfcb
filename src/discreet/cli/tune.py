"""`discreet tune`: search for training settings under one privacy budget, and write the best model as a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli.options import Data, Json, LocalOptions, SourceOptions, generated
from discreet.cli.output import line, paragraph, table, working
from discreet.cli.train import carried_out, print_run, protection_of, read_text, show_result
from discreet.core.errors import SettingError, invalid, setting
from discreet.core.guarantee import in_digits
from discreet.core.settings import option_field, read_values
from discreet.models.settings import ModelSettings, TrainSettings

_SEARCH = "Search"
_SHORT = (
    "out", "epsilon", "try_", "grid", "trials", "score_on", "unit", "text", "label", "encoder", "train", "resume",
    "json",
)  # fmt: skip


@dataclass(frozen=True)
class TuneOptions(LocalOptions):
    """Options of a search besides those of the data, the model and the training loop."""

    epsilon: float | None = option_field(
        None, "Privacy budget of one unit for the whole search and its winner.", _SEARCH
    )
    try_: list[str] | None = option_field(None, "Values to try, NAME=VALUE,VALUE; repeat it for each setting.", _SEARCH)
    grid: Path | None = option_field(None, "TOML file with the values to try, instead of --try.", _SEARCH)
    trials: float | None = option_field(
        None, "Mean of the random number of trials.", _SEARCH, "the number of combinations, at most 10"
    )
    score_on: str | None = option_field(
        None, "Public text with labels to score trials on.", _SEARCH, "the training rows, with noise"
    )
    clip_norm: float | None = option_field(None, "Gradients of a unit are clipped to this norm.", "Privacy", "0.1")
    population: int | None = option_field(
        None,
        "A public number of units, fixed in advance, used instead of the true one. The guarantee is then under "
        "add/remove.",
        "Privacy",
    )
    cache: bool | None = option_field(None, "Cache the outputs of a frozen encoder for later runs.", "Training", "no")


@generated(short=_SHORT)
def tune(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Output folder; it must not exist yet.")],
    source: SourceOptions,
    options: TuneOptions,
    model: Annotated[dict[str, Any], ModelSettings],
    training: Annotated[dict[str, Any], TrainSettings],
    json: Json = False,
) -> None:
    """Search for training settings with DP-SGD, under one epsilon for the search and its winner.

    A random number of trials is trained, each with values drawn from --try.
    Only the best model is written, as a run folder that all commands read.

    Example: discreet tune notes --train head --epsilon 3 --out runs/tuned
    --try learning_rate=0.005,0.02,0.08 --try epochs=10,40

    --epochs, --batch-size and the other options of train set what is not tried.
    """
    with working("starting"):
        from discreet.experiment import TuneRequest
        from discreet.training.tuning import candidates_of

    if options.epsilon is None:
        raise SettingError(
            f"Expected {setting('epsilon')} for the whole search and its winner. {setting('epsilon', 3)} is a common "
            "start."
        )
    grid = grid_of(options.try_ or [], options.grid)
    candidates_of(grid)  # rejects an invalid grid before the text is read
    for name in grid:
        if training.get(name) is not None or (name == "clip_norm" and options.clip_norm is not None):
            raise invalid(name, training.get(name, options.clip_norm), "left out if it is tried", "Set it once.")
    private = {"epsilon": options.epsilon}
    if options.clip_norm is not None:
        private["clip_norm"] = options.clip_norm
    protection = protection_of("dp-sgd", options.delta, private)
    text_source, corpus, chosen = read_text(options, data, source, model, protection, options.population)
    request = TuneRequest(
        text_source,
        chosen,
        TrainSettings(**training),
        protection,
        options.seed,
        options.population,
        noise_seed=options.noise_seed,
        grid=grid,
        trials=options.trials,
        score_on=options.score_on,
    )
    result = carried_out(request, out, corpus, options)
    stopped = "Stopped and saved. Run the same command with --resume to resume; it costs nothing more."
    show_result(result, stopped, lambda: _print(result, out), json)


def grid_of(tried: list[str], file: Path | None) -> dict[str, tuple[Any, ...]]:
    """Return the values to try, from options NAME=VALUE,VALUE or from a TOML file of lists.

    >>> grid_of(["learning-rate=0.01,0.1", "optimizer=sgd,adamw"], None)
    {'learning_rate': (0.01, 0.1), 'optimizer': ('sgd', 'adamw')}
    """
    if file is not None:
        if tried:
            raise invalid("grid", str(file), "left out with --try", "Name the values in one place.")
        values = read_values(file, "grid")
        table = values.get("try", values)
        if not isinstance(table, dict):
            raise invalid("grid", str(file), "TOML with a list of values for each setting", _EXAMPLE)
        return {name.replace("-", "_"): tuple(one) if isinstance(one, list) else (one,) for name, one in table.items()}
    grid: dict[str, tuple[Any, ...]] = {}
    for pair in tried:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not text.strip():
            raise invalid("try", pair, "NAME=VALUE,VALUE", "For example --try learning_rate=0.01,0.1.")
        if name in grid:
            raise invalid("try", pair, "given once for each setting", f"Separate the values of {name} by commas.")
        grid[name] = tuple(map(_value, text.split(",")))
    return grid


_EXAMPLE = "For example: learning_rate = [0.01, 0.1]"


def _value(text: str) -> Any:
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _print(result: dict[str, Any], out: Path) -> None:
    about = result["tuning"]
    table(
        {
            **{f"chosen {name.replace('_', ' ')}": _shown(value) for name, value in about["chosen"].items()},
            f"score ({about['score']})": f"{about['chosen_score']:.4f}",
            "scored on": about["scored_on"],
            "epsilon of one trial": in_digits(about["trial_epsilon"]),
        },
        title=f"Best of a random number of trials, of {len(about['candidates'])} combinations",
    )
    print_run(result)
    paragraph("Release only this folder: the number of trials and the other results stay secret.")
    line(f"Written to {out} in {result['seconds']:.1f} s.")


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
