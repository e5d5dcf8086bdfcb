"""`discreet train`: from text to a run folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discreet.catalog import PROTECTIONS
from discreet.cli.options import Data, Device, Json, Label, Quoting, Rows, Seed, Separator, Share, Text, TextPair, Unit
from discreet.cli.output import as_json, line, note, paragraph, say_quality, stop_on_interrupt, table
from discreet.cli.progress import training_bar, working
from discreet.cli.train_options import MODEL, PRIVACY, TRAINING, gathering
from discreet.core.checks import positive, refuse
from discreet.core.guarantee import in_digits

if TYPE_CHECKING:
    from discreet.protections.base import Protection

_MOST_ROWS = 100_000_000


@gathering(private=(PRIVACY, "Privacy"), model=(MODEL, "Model"), training=(TRAINING, "Training"))
def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    model: dict[str, Any],
    private: dict[str, Any],
    training: dict[str, Any],
    protect: Annotated[
        str | None,
        typer.Option("--protect", help=f"{', '.join(PROTECTIONS)}.", rich_help_panel="Privacy"),
    ] = None,
    delta: Annotated[
        str, typer.Option(help="auto is a tenth of one over the units.", rich_help_panel="Privacy")
    ] = "auto",
    population: Annotated[
        int | None,
        typer.Option(
            help="dp-sgd: a public number of units, given beforehand, in place of the true one; add/remove then holds.",
            rich_help_panel="Privacy",
        ),
    ] = None,
    noise_seed: Annotated[
        int | None, typer.Option(help="Repeatable noise for experiments; keep it secret.", rich_help_panel="Privacy")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="Ledger that several trainings spend from.", rich_help_panel="Privacy"),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="Most epsilon of these people, all trainings.", rich_help_panel="Privacy"),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Save progress this often.", rich_help_panel="Training")
    ] = 30.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped.", rich_help_panel="Training")
    ] = False,
    cache: Annotated[
        bool | None,
        typer.Option(
            "--cache/--no-cache",
            help="Keep a frozen encoder's outputs; not by default with --protect.",
            rich_help_panel="Training",
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Allow fetching the encoder from the hub.", rich_help_panel="Model")
    ] = False,
    text: Text = "text",
    text_pair: TextPair = None,
    label: Label = "label",
    unit: Unit = None,
    separator: Separator = None,
    quoting: Quoting = None,
    rows: Rows = None,
    share: Share = None,
    task: Annotated[str | None, typer.Option(help="classification or regression, if labels leave it open.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="The names of the classes, A,B,C, where they should not be found in the data.")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="File with held-out rows, or the share to hold out (0.1).")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a classifier and write a run folder.

    It holds model, tokenizer, settings, metrics, a model card and, with --protect, the ledger.
    """
    with working("starting"):
        from discreet.data.doubts import NOT_FOR_RELEASE, doubts
        from discreet.data.sources import TextSource
        from discreet.experiment import RunOptions, RunRequest, load_corpus, run_training
        from discreet.protections.base import FEW_UNITS
        from discreet.training.plan import model_settings
        from discreet.training.settings import TrainSettings

    protection = protection_of(protect, delta, private)
    positive("checkpoint-seconds", checkpoint_seconds)
    for option, value in (("ledger", ledger), ("budget", budget), ("population", population)):
        if value is not None and protection is None:
            raise refuse(option, str(value), "together with --protect", "Add it, or leave this out.")
    if budget is not None:
        positive("budget", budget, "It is the most epsilon that these people may lose in all trainings together.")
    if rows is not None and rows > _MOST_ROWS:
        raise refuse("rows", rows, f"<= {_MOST_ROWS}", "No machine would finish; take fewer.")
    model_settings(model, protection, 1)  # what is outside its range is said before the text is read
    settings = TrainSettings(**training)
    source = TextSource(
        data, text, text_pair, label, unit, rows, share, validation, _task(task), seed, separator, quoting,
        _classes(classes),
    )  # fmt: skip
    with working("reading the text"):
        corpus = load_corpus(source, population)
    for doubt in doubts(corpus, label, unit):
        note(f"{NOT_FOR_RELEASE}: {doubt}")
    units = population or (corpus.split("train").unit_count if "train" in corpus.split_names else 1)
    chosen = model_settings(model, protection, units)
    if protection is not None and "train" not in model and chosen.train != protection.default_part:
        note(
            f"Fewer than {FEW_UNITS:,} {corpus.unit_name}s under {protect}: the encoder is frozen and the head is "
            "trained, which learns more from few. Use --train all to train every layer."
        )
    request = RunRequest(source, chosen, settings, protection, seed, population, noise_seed)
    with stop_on_interrupt() as stopping, training_bar() as watch:
        options = RunOptions(
            device, resume, checkpoint_seconds, download, cache, ledger, budget, watch, note, lambda: bool(stopping)
        )
        done = run_training(request, out, corpus=corpus, options=options)
    if not done["finished"]:
        note(f"Stopped at step {done['steps']} and saved. Go on with the same command and --resume.")
        raise typer.Exit(130)
    if json:
        as_json(_finite(done))
    else:
        _say(done, out)


def protection_of(name: str | None, delta: str, given: dict[str, Any]) -> Protection | None:
    """Return the settings of the protection that was asked for; options without one are refused by name."""
    if name is None:
        if given:
            option, value = next(iter(given.items()))
            raise refuse(option.replace("_", "-"), value, "together with --protect", "Add it, or leave this out.")
        return None
    from discreet.catalog import protection as of_catalog

    at = _delta(delta)
    return of_catalog(name, given if at is None else {**given, "delta": at})


def _say(done: dict[str, Any], out: Path) -> None:
    if done["utility"]:
        table(done["utility"], title=f"Utility on the {done['evaluated_on']} split")
        say_quality(done["quality"], remedy_for(done))
    else:
        line("Utility: not measured, as no rows were held out.")
    if done.get("utility_averaged"):
        table(done["utility_averaged"], title="The same, averaged over the pool of masks")
    _say_privacy(done)
    line(f"Written to {out} in {done['seconds']:.1f} s.")


def remedy_for(done: dict[str, Any]) -> str:
    """Return what most likely helps a training that learned nothing."""
    if done["guarantee"] is None:
        return "Train for more --epochs, try another --learning-rate, or check that the labels fit the texts."
    if done["trained"] not in {"head", "pooler+head"}:
        return "Train the head alone (--train head): with noise, few weights learn more from few rows."
    return "Give more rows, a larger --epsilon, or another --protect: this noise hides all that there is to learn."


def _task(name: str | None) -> Literal["classification", "regression"] | None:
    if name is None or name == "classification" or name == "regression":
        return name  # type: ignore[return-value]
    raise refuse("task", name, "in classification, regression", "")


def _classes(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) < 2:
        raise refuse("classes", text, "two or more names, A,B,C", "With one class there is nothing to learn.")
    return names


def _delta(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise refuse("delta", text, "auto or a number in (0, 1)", "auto is a tenth of one over the units.") from None


def _say_privacy(done: dict[str, Any]) -> None:
    promise = done["guarantee"]
    if promise is None:
        line("Privacy: no guarantee, this training was not protected.")
        return
    paragraph("Privacy: " + promise["sentence"])
    if "people" in done:
        paragraph(done["people"]["sentence"])
    if promise["epsilon"] is None:
        return
    columns = {
        f"epsilon, {name}": "not defined here" if value is None else in_digits(value)
        for name, value in done["epsilon_by_adjacency"].items()
    }
    if "pure_epsilon" in done:
        columns["pure epsilon over all steps"] = in_digits(done["pure_epsilon"], 6)
        columns["metric epsilon per use and distance"] = in_digits(done["metric_epsilon_per_use"], 6)
    kind = "" if promise["certified"] else " (estimates, for the reason above)"
    table(columns, title=f"The same training, delta = {in_digits(promise['delta'])}, under each adjacency{kind}")


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
