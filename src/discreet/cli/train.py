"""`discreet train`: from text to a run folder.

The options of protections are the fields of their classes, which need torch: they are read when one of them is given,
or when their help is wanted.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.catalog import PROTECTIONS, protection_class
from discreet.cli.options import Data, Json, SourceOptions, command_of, fields_with_help, generated, option_of
from discreet.cli.output import (
    HasMoreOptions,
    as_json,
    line,
    note,
    paragraph,
    say_quality,
    stop_on_interrupt,
    table,
    training_bar,
    working,
)
from discreet.core.errors import invalid, one_of, positive, whole
from discreet.core.guarantee import in_digits
from discreet.core.settings import option
from discreet.models.model_settings import RANK, ModelSettings
from discreet.training.settings import TrainSettings

if TYPE_CHECKING:
    from discreet.data.corpus import Task
    from discreet.protections.base import Protection

_MOST_ROWS = 100_000_000
# What the short help shows; everything else works too.
_SHORT = (
    "out", "protect", "epsilon", "unit", "text", "label", "encoder", "train", "epochs", "resume", "json",
    "help_protection", "help_all",
)  # fmt: skip


@dataclass(frozen=True)
class TrainOptions:
    """The options of a training that are neither columns of the text nor settings of model, loop or protection."""

    protect: str | None = field(default=None, metadata=option(f"{', '.join(PROTECTIONS)}.", "Privacy", "no protection"))
    epsilon: float | None = field(
        default=None,
        metadata=option(
            "Privacy budget of the whole training for one unit; the noise is computed from it.",
            "Privacy",
        ),
    )
    delta: str = field(default="auto", metadata=option("auto is a tenth of one over the number of units.", "Privacy"))
    population: int | None = field(
        default=None,
        metadata=option(
            "dp-sgd: a public number of units, chosen beforehand, to use instead of the true one; the guarantee is "
            "then under add/remove.",
            "Privacy",
        ),
    )
    noise_seed: int | None = field(
        default=None,
        metadata=option("Repeatable noise for experiments; epsilon is then an estimate.", "Privacy", "secret"),
    )
    ledger: Path | None = field(
        default=None, metadata=option("Ledger that several trainings spend from.", "Privacy", "one for these people")
    )
    budget: float | None = field(
        default=None, metadata=option("Largest epsilon of these people over all their trainings.", "Privacy")
    )
    rank: int | None = field(
        default=None, metadata=option("Rank of the adapters, with --train lora.", "Model", str(RANK))
    )
    checkpoint_seconds: float = field(default=30.0, metadata=option("Save progress every so many seconds.", "Training"))
    resume: bool = field(default=False, metadata=option("Resume a run that was stopped.", "Options"))
    cache: bool | None = field(
        default=None,
        metadata=option(
            "Keep the outputs of a frozen encoder for the next training.", "Training", "yes; no with a protection"
        ),
    )
    download: bool = field(default=False, metadata=option("Allow downloading the encoder from the hub.", "Model"))
    task: str | None = field(
        default=None, metadata=option("classification, regression or lm (a language model).", "Data", "by the labels")
    )
    classes: str | None = field(
        default=None, metadata=option("Names of the classes, A,B,C.", "Data", "those in the data")
    )
    validation: str | None = field(
        default=None, metadata=option("File with held-out rows, or the share to hold out.", "Data", "0.1")
    )
    seed: int = field(default=0, metadata=option("Seed of everything that needs no secret.", "Options"))
    device: str = field(default="auto", metadata=option("auto, cpu, cuda or cuda:N.", "Options"))


class TrainCommand(typer.core.TyperCommand, HasMoreOptions):
    """A command that adds the options of all protections when it is given one that it does not know."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; what was given of a protection's settings becomes `ctx.obj`."""
        known = {"--", "--help", *(name for one in self.params for name in (*one.opts, *one.secondary_opts))}
        ctx.obj = {}
        if all(one.partition("=")[0] in known for one in args if one.startswith("--")):
            return super().parse_args(ctx, args)
        with working("starting"):
            theirs = self.more_options()
        own, self.params = self.params, [*self.params, *theirs]
        try:
            rest = super().parse_args(ctx, args)
        finally:
            self.params = own
        given = {one.name: ctx.params.pop(one.name) for one in theirs}
        ctx.obj = {name: value for name, value in given.items() if value is not None}
        return rest

    def more_options(self) -> list[Any]:
        """Return the options of all protections."""
        theirs: list[Any] = command_of(options_of_protections(), "train").params
        return theirs


def options_of_protections() -> list[inspect.Parameter]:
    """Return an option for each setting of any protection that `train` does not have by itself."""
    own = {one.name for one, _ in fields_with_help(TrainOptions)}
    options: dict[str, inspect.Parameter] = {}
    for name in PROTECTIONS:
        for one, hint in fields_with_help(protection_class(name)):
            if one.name not in own:
                options.setdefault(one.name, option_of(one, hint, partial=True, hidden=True))
    return list(options.values())


def _help_protection(name: str | None) -> None:
    """Print the options of one protection, and stop."""
    if name is not None:
        with working("starting"):
            kind = protection_class(one_of("help-protection", name, PROTECTIONS))
        _print_protection(name, kind)
        raise typer.Exit


def _help_all(ctx: typer.Context, wanted: bool) -> None:
    """Print all options, those of each protection in a list of their own, and stop."""
    if wanted:
        for one in ctx.command.params:
            if isinstance(one, typer.core.TyperOption):
                one.hidden = False
        line(ctx.get_help())
        for name in PROTECTIONS:
            _print_protection(name, protection_class(name))
        raise typer.Exit


def _print_protection(name: str, kind: type[Protection]) -> None:
    fields = sorted(fields_with_help(kind), key=lambda pair: pair[0].name != "epsilon")  # what is mostly given
    options = [option_of(one, hint) for one, hint in fields]
    command = command_of(options, "train", PROTECTIONS[name].help, "--help-protection")
    command(["--help-protection"], prog_name=f"discreet train DATA --protect {name}", standalone_mode=False)


@generated(short=_SHORT)
def train(
    ctx: typer.Context,
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    source: SourceOptions,
    options: TrainOptions,
    model: Annotated[dict[str, Any], ModelSettings],
    training: Annotated[dict[str, Any], TrainSettings],
    json: Json = False,
    help_protection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", is_eager=True, callback=_help_protection, help="Show the options of one protection."
        ),
    ] = None,
    help_all: Annotated[
        bool, typer.Option("--help-all", is_eager=True, callback=_help_all, help="Show all options.")
    ] = False,
) -> None:
    """Train a classifier or a language model and write a run folder.

    It holds model, tokenizer, settings, metrics, a model card and, with
    --protect, the ledger.

    Below are the options that most people need. --help-protection NAME shows
    the other options of a protection, --help-all shows all options.
    """
    with working("starting"):
        from discreet.data.corpus import NOT_FOR_RELEASE, doubts
        from discreet.data.sources import TextSource
        from discreet.experiment import RunOptions, RunRequest, load_corpus, run_training
        from discreet.protections.base import FEW_UNITS
        from discreet.training.plan import model_settings

    protection = protection_of(options.protect, options.delta, _private(options, ctx.obj))
    positive("checkpoint-seconds", options.checkpoint_seconds)
    for name in ("ledger", "budget", "population"):
        if (value := getattr(options, name)) is not None and protection is None:
            raise invalid(name, str(value), "used with --protect", "Add it, or leave this out.")
    if options.budget is not None:
        positive(
            "budget", options.budget, "It is the most epsilon that these people may lose in all trainings together."
        )
    if source.rows is not None and source.rows > _MOST_ROWS:
        raise invalid("rows", source.rows, f"<= {_MOST_ROWS}", "No machine would finish; take fewer.")
    if options.rank is not None:
        whole("rank", options.rank, 1, "It is the rank of the adapters.")
        if model.get("train") != "lora":
            raise invalid("rank", options.rank, "used with --train lora", "Add it, or leave this out.")
        model = {**model, "train": f"lora-{options.rank}"}
    model_settings(model, protection, 1, options.task)  # what is outside its range is said before the text is read
    settings = TrainSettings(**training)
    chosen_text = TextSource(
        data,
        **vars(source),
        validation=options.validation,
        task=_task(options.task),
        seed=options.seed,
        label_names=_classes(options.classes),
    )
    with working("reading the text"):
        corpus = load_corpus(chosen_text, options.population)
    for doubt in doubts(corpus, source.label, source.unit):
        note(f"{NOT_FOR_RELEASE}: " + doubt)
    units = options.population or (corpus.split("train").unit_count if "train" in corpus.split_names else 1)
    chosen = model_settings(model, protection, units, options.task)
    if protection is not None and "train" not in model and chosen.train != protection.default_part:
        note(
            f"Fewer than {FEW_UNITS:,} {corpus.unit_name}s under {options.protect}: the encoder is frozen and the head "
            "is trained, which learns more from few. Use --train all to train every layer."
        )
    request = RunRequest(
        chosen_text, chosen, settings, protection, options.seed, options.population, options.noise_seed
    )
    with stop_on_interrupt() as stopping, training_bar() as watch:
        how = RunOptions(
            watch=watch,
            say=note,
            should_stop=lambda: bool(stopping),
            **{
                name: getattr(options, name)
                for name in ("device", "resume", "checkpoint_seconds", "download", "cache", "ledger", "budget")
            },
        )
        done = run_training(request, out, corpus=corpus, options=how)
    if not done["finished"]:
        note(f"Stopped at step {done['steps']} and saved. Resume with the same command and --resume.")
        raise typer.Exit(130)
    if json:
        as_json(_finite(done))
    else:
        _say(done, out)


def _private(options: TrainOptions, given: dict[str, Any]) -> dict[str, Any]:
    return given if options.epsilon is None else {"epsilon": options.epsilon, **given}


def protection_of(name: str | None, delta: str, given: dict[str, Any]) -> Protection | None:
    """Return the settings of the protection that was asked for; options without one are refused by name."""
    if name is None:
        if given:
            option, value = next(iter(given.items()))
            raise invalid(option.replace("_", "-"), value, "used with --protect", "Add it, or leave this out.")
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


def _task(name: str | None) -> Task | None:
    """Return how labels are read for a task; a language model reads texts without them."""
    if name is None:
        return None
    one_of("task", name, ("classification", "regression", "lm"))
    return "unlabelled" if name == "lm" else name  # type: ignore[return-value]


def _classes(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) < 2:
        raise invalid("classes", text, "two or more names, A,B,C", "With one class there is nothing to learn.")
    return names


def _delta(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise invalid("delta", text, "auto or a number in (0, 1)", "auto is a tenth of one over the units.") from None


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
