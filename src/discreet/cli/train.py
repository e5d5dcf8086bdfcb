"""`discreet train`: train a classifier and write a run folder.

The options of protections are the fields of their classes, which need torch. They are loaded only when the command line
has one of them, or asks for their help.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.catalog import PROTECTIONS, protection_class
from discreet.cli.options import (
    Data,
    Json,
    LocalOptions,
    SourceOptions,
    command_of,
    fields_with_help,
    generated,
    option_of,
)
from discreet.cli.output import (
    HasMoreOptions,
    as_json,
    line,
    note,
    paragraph,
    print_classes,
    print_quality,
    stop_on_interrupt,
    table,
    training_bar,
    working,
)
from discreet.core.errors import invalid
from discreet.core.files import finite
from discreet.core.guarantee import DEFAULT_DELTA, in_digits
from discreet.core.settings import option_field
from discreet.models.settings import SEPARATE, ModelSettings, TrainSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from discreet.data.canaries import Planting
    from discreet.data.corpus import Corpus
    from discreet.data.sources import TextSource
    from discreet.experiment import RunRequest
    from discreet.protections.base import Protection

_CANARIES = "Canaries"
# Options listed by --help; --help-all lists the others.
_SHORT = (
    "out", "protect", "epsilon", "unit", "text", "label", "encoder", "train", "epochs", "resume", "json",
    "help_protection", "help_all",
)  # fmt: skip


@dataclass(frozen=True)
class TrainOptions(LocalOptions):
    """Options of a training run besides those of the data, the model, the training loop and the protection."""

    protect: str | None = option_field(
        None, f"{', '.join(PROTECTIONS)}, a plug-in (`discreet names`) or module:Class.", "Privacy", "no protection"
    )
    epsilon: float | None = option_field(
        None, "Privacy budget of one unit for the whole run; determines the noise.", "Privacy"
    )
    population: int | None = option_field(
        None,
        "dp-sgd: a public number of units, fixed in advance, used instead of the true one. The guarantee is then "
        "under add/remove.",
        "Privacy",
    )
    audit: int | None = option_field(
        None,
        "Plant this many canaries, each with probability one half; `discreet audit` measures epsilon on them.",
        "Privacy",
        "no canaries",
    )
    audit_canaries: str | None = option_field(
        None,
        "gradient (white box, dp-sgd), examples (black box) or tokens (black box, language models).",
        "Privacy",
        "gradient with dp-sgd",
    )
    cache: bool | None = option_field(
        None, "Cache the outputs of a frozen encoder for later training runs.", "Training", "yes; no with a protection"
    )
    canaries: int | None = option_field(
        None, "Plant this many secrets, to measure how much the model memorizes.", _CANARIES, "none"
    )
    copies: str = option_field("1", "Rows with the same canary; 1,10,100 plants all.", _CANARIES)
    canary_kind: str = option_field(
        "secrets", "secrets (a number in a sentence) or labels (a sentence of random words).", _CANARIES
    )
    canary_digits: int = option_field(4, "Digits of a secret number.", _CANARIES)
    spread: bool = option_field(False, "Make every copy of a canary a unit of its own.", _CANARIES)
    canary_seed: int | None = option_field(None, "Fixed seed of the secrets, for experiments.", _CANARIES, "secret")


class TrainCommand(typer.core.TyperCommand, HasMoreOptions):
    """A command that loads the options of all protections when it meets an option it does not know.

    Those of another package are loaded only for a protection that the command line names.
    """

    named: str | None = None  # the protection of the command line

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; store the passed settings of the protection in `ctx.obj`."""
        names = {"--", "--help", *(name for one in self.params for name in (*one.opts, *one.secondary_opts))}
        ctx.obj, self.named = {}, _value_of("--protect", args)
        if all(one.partition("=")[0] in names for one in args if one.startswith("--")):
            return super().parse_args(ctx, args)
        with working("starting"):
            taken = {one.name for one in self.params}  # federate has a --partition of its own
            options = [one for one in self.more_options() if one.name not in taken]
        own, self.params = self.params, [*self.params, *options]
        try:
            rest = super().parse_args(ctx, args)
        finally:
            self.params = own
        values = {one.name: ctx.params.pop(one.name) for one in options}
        ctx.obj = {name: value for name, value in values.items() if value is not None}
        return rest

    def more_options(self) -> list[Any]:
        """Return the options of all protections."""
        options: list[Any] = command_of(options_of_protections(self.named), "train").params
        return options


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value of an option before the arguments are parsed, or None.

    >>> _value_of("--protect", ["a", "--protect", "dp-sgd"]), _value_of("--protect", ["--protect=ldp"])
    ('dp-sgd', 'ldp')
    """
    for one, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if one == option or one.startswith(f"{option}="):
            return following if one == option else one.partition("=")[2]
    return None


def options_of_protections(named: str | None = None) -> list[inspect.Parameter]:
    """Return an option for each setting of a protection that is not an option of `train` itself.

    The protections are those of this package, and `named` if that is one of another.
    """
    own = {one.name for one, _ in fields_with_help(TrainOptions)}
    options: dict[str, inspect.Parameter] = {}
    others = [named] if named is not None and not PROTECTIONS.owns(named) and named in PROTECTIONS else []
    for name in (*PROTECTIONS, *others):
        for one, hint in fields_with_help(protection_class(name)):
            if one.name not in own:
                options.setdefault(one.name, option_of(one, hint, partial=True, hidden=True))
    return list(options.values())


def _help_protection(name: str | None) -> None:
    """Print the options of one protection and exit."""
    if name is not None:
        with working("starting"):
            kind = protection_class(PROTECTIONS.check("help-protection", name))
        _print_protection(name, kind)
        raise typer.Exit


def _help_all(ctx: typer.Context, wanted: bool) -> None:
    """Print all options, with a separate list for each protection, and exit."""
    if wanted:
        for one in ctx.command.params:
            if isinstance(one, typer.core.TyperOption):
                one.hidden = False
        line(ctx.get_help())
        for name in PROTECTIONS.usable():
            _print_protection(name, protection_class(name))
        raise typer.Exit


def _print_protection(name: str, kind: type[Protection]) -> None:
    fields = sorted(fields_with_help(kind), key=lambda pair: pair[0].name != "epsilon")  # the most common option first
    options = [option_of(one, hint) for one, hint in fields]
    command = command_of(options, "train", PROTECTIONS[name].help, "--help-protection")
    command(["--help-protection"], prog_name=f"discreet train DATA --protect {name}", standalone_mode=False)


@generated(short=_SHORT)
def train(
    ctx: typer.Context,
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Output folder; it must not exist yet.")],
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

    The folder holds the model, tokenizer, settings, metrics, a model card and,
    with --protect, the ledger.

    The most common options are below. --help-protection NAME lists the options
    of a protection, and --help-all lists all options.
    """
    with working("starting"):
        from discreet.experiment import RunRequest

    private = ctx.obj if options.epsilon is None else {"epsilon": options.epsilon, **ctx.obj}
    protection = protection_of(options.protect, options.delta, private)
    for name in ("ledger", "budget", "population"):
        if (value := getattr(options, name)) is not None and protection is None:
            raise invalid(name, str(value), "used with --protect", "Add it, or leave this out.")
    if options.audit_canaries is not None and options.audit is None:
        raise invalid("audit-canaries", options.audit_canaries, "used with --audit", "Add it, or leave this out.")
    settings = TrainSettings(**training)
    text_source, corpus, chosen = read_text(options, data, source, model, protection, options.population)
    request = RunRequest(
        text_source,
        chosen,
        settings,
        protection,
        options.seed,
        options.population,
        _planting(options),
        options.noise_seed,
        options.audit,
        options.audit_canaries,
    )
    result = carried_out(request, out, corpus, options)
    where = f"at step {result['steps']}" if result["steps"] else "in the training on public text"
    stopped = f"Stopped {where} and saved. Run the same command with --resume to resume."
    show_result(result, stopped, lambda: _print(result, out), json)


def read_text(
    options: LocalOptions,
    data: str,
    source: SourceOptions,
    model: dict[str, Any],
    protection: Protection | None,
    population: int | None,
) -> tuple[TextSource, Corpus, ModelSettings]:
    """Read the text to train on after checking the options, and choose the settings of the model.

    The user is told about doubtful columns, and about defaults that train less than the whole model.
    """
    from discreet.data.corpus import PRIVATE_DETAIL, doubts
    from discreet.experiment import choose_model, load_corpus
    from discreet.training.plan import model_settings

    options.check(source.rows)
    model = options.with_rank(model)
    model_settings(model, protection, 1, options.task)  # rejects invalid settings before the text is read
    text_source = options.source(data, source, options.max_per_unit)
    with working("reading the text"):
        corpus = load_corpus(text_source, population)
    for doubt in doubts(corpus, source.label, source.unit):
        note(f"{PRIVATE_DETAIL}: " + doubt)
    chosen = choose_model(model, protection, text_source, corpus, population)
    _note_on_part(protection, model, chosen, corpus.unit_name)
    return text_source, corpus, chosen


def carried_out(request: RunRequest, out: Path, corpus: Corpus, options: LocalOptions) -> dict[str, Any]:
    """Train until the run is finished or interrupted, with its progress on stderr, and return the values of the run."""
    from discreet.experiment import RunOptions, train_once

    names = ("device", "resume", "checkpoint_seconds", "download", "cache", "ledger", "budget")
    chosen = {name: getattr(options, name) for name in names}
    with stop_on_interrupt() as stopping, training_bar() as watch:
        how = RunOptions(watch=watch, say=note, should_stop=lambda: bool(stopping), **chosen)
        run = train_once(request, out, corpus=corpus, options=how)
    return run.values()


def show_result(result: dict[str, Any], stopped: str, show: Callable[[], None], json: bool) -> None:
    """Print the values of a run, by `show` or as JSON; one that was stopped has the status of an interrupt."""
    if not result["finished"]:
        note(stopped)
        raise typer.Exit(130)
    if json:
        as_json(finite(result))
    else:
        show()


def _note_on_part(protection: Protection | None, model: dict[str, Any], chosen: ModelSettings, unit: str) -> None:
    """Tell the user if the default trains only a head: on numbers of pairs, or because there are few units."""
    if protection is None or "train" in model:
        return
    if chosen.pairs == SEPARATE:
        note(
            "The two texts of a pair are read separately, and only a head on a few numbers of each pair is trained. "
            "Use --pairs joint or --train all to train more."
        )
        return
    if chosen.train == protection.default_part:
        return
    from discreet.protections.base import FEW_UNITS

    note(
        f"Fewer than {FEW_UNITS:,} {unit}s under {protection.name}: only the head is trained and the encoder is "
        "frozen, which learns more from little data. Use --train all to train every layer."
    )


def protection_of(name: str | None, delta: str, settings: dict[str, Any]) -> Protection | None:
    """Return the protection with these settings, or None; reject settings without a protection."""
    if name is None:
        if settings:
            option, value = next(iter(settings.items()))
            raise invalid(option.replace("_", "-"), value, "used with --protect", "Add it, or leave this out.")
        return None
    from discreet.catalog import protection as of_catalog

    at = _delta(delta)
    return of_catalog(name, settings if at is None else {**settings, "delta": at})


def _print(result: dict[str, Any], out: Path) -> None:
    print_run(result)
    if "audit" in result:
        planted = result["audit"]
        paragraph(f"Audit: {planted['canaries']:,} canaries ({planted['kind']}). Run: discreet audit {out}")
    line(f"Written to {out} in {result['seconds']:.1f} s.")


def print_run(result: dict[str, Any]) -> None:
    """Print the utility and the guarantee of a run."""
    print_utility(result, remedy_for)
    _print_privacy(result)


def print_utility(result: dict[str, Any], remedy: Callable[[dict[str, Any]], str] = lambda result: "") -> None:
    """Print the utility of a run and, for a model that learned nothing, a remedy."""
    from discreet.runs.folder import beside_public

    if result["utility"]:
        table(result["utility"], title=f"Utility on the {result['evaluated_on']} split")
        if result["quality"] is not None:
            print_quality(result["quality"], remedy(result))
            print_classes(result.get("utility_by_class", []))
        if "public" in result:
            sentences = beside_public(result["public"], result["utility"], private=result["guarantee"] is not None)
            paragraph(" ".join(sentences))
    else:
        line("Utility: not measured, because no rows were held out.")
    if result.get("utility_averaged"):
        table(result["utility_averaged"], title="Utility averaged over the pool of masks")


def remedy_for(result: dict[str, Any]) -> str:
    """Return the most likely remedy for a training run that learned nothing."""
    if result["quality"]["metric"] == "perplexity":
        private = "" if result["guarantee"] is None else ", --train lora, a larger --epsilon"
        return f"Train for more --epochs, try another --learning-rate{private}, or use more text."
    if result["guarantee"] is None:
        return "Train for more --epochs, try another --learning-rate, or check that the labels fit the texts."
    if result["trained"] not in {"head", "pooler+head"}:
        return "Train only the head (--train head): with noise, fewer weights learn more from few rows."
    return "Use more rows, a larger --epsilon or another --protect: the noise is too large for this data."


def _planting(options: TrainOptions) -> Planting | None:
    """Return the canaries to plant, or None; reject their settings without them."""
    from discreet.data.canaries import Planting

    if options.canaries is None:
        for name in ("copies", "canary_kind", "canary_digits", "spread", "canary_seed"):
            value, default = getattr(options, name), getattr(TrainOptions, name)
            if value != default:
                raise invalid(name.replace("_", "-"), value, "used with --canaries", "Add it, or leave this out.")
        return None
    return Planting(
        options.canaries,
        tuple(_copies(options.copies)),
        options.canary_kind,
        options.canary_digits,
        options.spread,
        options.canary_seed,
    )


def _copies(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        remedy = "Each is a number of rows with the same canary."
        raise invalid("copies", text, "numbers separated by commas, such as 1,10,100", remedy) from None


def _delta(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise invalid("delta", text, "auto or a number in (0, 1)", f"auto is {DEFAULT_DELTA}.") from None


def _print_privacy(result: dict[str, Any]) -> None:
    guarantee = result["guarantee"]
    if guarantee is None:
        line("Privacy: no guarantee; this training run was not protected.")
        return
    paragraph("Privacy: " + guarantee["sentence"])
    if "people" in result:
        paragraph(result["people"]["sentence"])
    if guarantee["epsilon"] is None:
        return
    columns = {
        f"epsilon, {name}": "not defined here" if value is None else in_digits(value)
        for name, value in result["epsilon_by_adjacency"].items()
    }
    if "pure_epsilon" in result:
        columns["pure epsilon over all steps"] = in_digits(result["pure_epsilon"], 6)
        columns["metric epsilon per use and distance"] = in_digits(result["metric_epsilon_per_use"], 6)
    kind = "" if guarantee["certified"] else " (estimates, for the reason above)"
    table(columns, title=f"Epsilon under each adjacency, delta = {in_digits(guarantee['delta'])}{kind}")
