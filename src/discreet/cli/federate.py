"""`discreet federate`: train on the text of several clients with Flower, and write a run folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.catalog import AGGREGATIONS
from discreet.cli.options import CommonOptions, Json, SourceOptions, generated, parse_settings
from discreet.cli.output import console, line, note, paragraph, stop_on_interrupt, training_bar, working
from discreet.cli.train import print_utility, protection_of, show_result
from discreet.core.errors import invalid, setting, whole
from discreet.core.guarantee import in_digits
from discreet.core.settings import option_field
from discreet.core.task import Task
from discreet.models.settings import ModelSettings, TrainSettings

if TYPE_CHECKING:
    from discreet.federated.server import RoundReport
    from discreet.federated.settings import Federation
    from discreet.protections.base import Protection

_FEDERATION = "Federation"
_SHORT = (
    "target", "folder", "out", "clients", "protect", "epsilon", "exchange", "partition", "aggregation",
    "aggregation_settings", "in_process",
    "record", "tls", "resume", "unit", "text", "label", "encoder", "train", "epochs", "json",
)  # fmt: skip

# Settings of a federation that are options by the same name.
_SAME = ("exchange", "concentration", "seed", "noise_seed", "wait_seconds", "record", "download")


@dataclass(frozen=True)
class FederateChoices(CommonOptions):
    """Options of a federated run besides those of the data, the model, the training loop and the protection."""

    clients: int | None = option_field(None, "Number of clients.", _FEDERATION, "4")
    partition: str | None = option_field(
        None,
        "How rows are divided: equal, dirichlet (by class), unit (a unit is at one client) or files.",
        _FEDERATION,
        "equal; unit if units are named",
    )
    concentration: float = option_field(0.5, "dirichlet: small is uneven.", _FEDERATION)
    file: list[str] | None = option_field(None, "The data of one client; repeat it for each client.", _FEDERATION)
    exchange: str = option_field("gradients", "What clients send: gradients or weights (FedAvg).", _FEDERATION)
    local_steps: int | None = option_field(
        None, "Steps of a client in a round, with weights.", _FEDERATION, "10; 1 for gradients"
    )
    aggregation: str = option_field("mean", f"{', '.join(AGGREGATIONS)}.", _FEDERATION)
    aggregation_settings: list[str] | None = option_field(
        None, "A setting of the aggregation, NAME=VALUE.", _FEDERATION
    )
    in_process: bool = option_field(False, "Run server and clients in this process, for tests.", _FEDERATION)
    tls: bool = option_field(False, "Encrypt connections and accept only registered clients.", _FEDERATION)
    record: bool = option_field(False, "Record all messages, so that attacks can be run on them.", _FEDERATION)
    wait_seconds: float = option_field(30.0, "Seconds that a round waits for clients after half answered.", _FEDERATION)
    protect: str | None = option_field(None, "dp-sgd, dir-dp-sgd or texthide.", "Privacy", "no protection")
    epsilon: float | None = option_field(None, "Privacy budget of one unit of a client for the whole run.", "Privacy")


@generated(short=_SHORT)
def federate(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="DATA", help="Data as in train, a study file (.toml), or `app` to write an app.")
    ],
    source: SourceOptions,
    options: FederateChoices,
    model: Annotated[dict[str, Any], ModelSettings],
    training: Annotated[dict[str, Any], TrainSettings],
    folder: Annotated[
        str | None, typer.Argument(metavar="DIR", help="With `app`: the folder to write. Its data comes from --file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Output folder; it must not exist yet.", show_default="runs/federated")
    ] = None,
    json: Json = False,
) -> None:
    """Train one model on the text of several clients, which keep their text and send updates.

    Flower's processes run on this machine and talk over the loopback interface:
    a SuperLink and a SuperNode for each client. `discreet federate app DIR`
    writes an app that `flwr run` deploys on machines of your own.

    All options of train that set the data, the model, the training and the
    protection apply here too.
    """
    with working("starting"):
        from discreet.federated.run import FederateOptions, check_installed
        from discreet.federated.run import federate as run_federation

    check_installed()
    if options.epsilon is not None:
        ctx.obj = {"epsilon": options.epsilon, **ctx.obj}
    with working("reading the text"):
        settings = settings_for(target, source, options, model, training, ctx.obj)
    if target == "app":
        _write_app(settings, folder)
        return
    out = out or Path("runs") / "federated"
    with stop_on_interrupt() as stopping, training_bar() as bar:

        def watch(report: RoundReport) -> None:
            from discreet.training.steps import Report

            bar(Report(report.round, report.rounds, report.loss, None, report.seconds_left, stage="rounds"))

        run_options = FederateOptions(
            in_process=options.in_process,
            resume=options.resume,
            tls=options.tls,
            watch=watch,
            say=note,
            should_stop=lambda: bool(stopping),
        )
        result = run_federation(settings, out, run_options)
    stopped = "Stopped after the last saved round. Run the same command with --resume to resume."
    show_result(result, stopped, lambda: _print(result, settings, out), json)


def settings_for(
    target: str,
    source: SourceOptions,
    options: FederateChoices,
    model: dict[str, Any],
    training: dict[str, Any],
    private: dict[str, Any],
) -> Federation:
    """Return the settings of a federation from a study file or from options."""
    from discreet.catalog import aggregation_from_table
    from discreet.core.settings import parse
    from discreet.federated.settings import EQUAL, FILES, GRADIENTS, UNIT, Federation
    from discreet.runs.folder import RunChoices
    from discreet.training.plan import check_private_labels, model_settings

    model = options.with_rank(model)
    if options.protect is None and options.epsilon is not None and options.aggregation != "mean":
        remedy = f"For the budget of {options.aggregation} use --aggregation-set epsilon={options.epsilon:g}."
        raise invalid("epsilon", options.epsilon, "used with --protect", remedy)
    protect = protection_of(options.protect, options.delta, private)
    files = tuple(options.file or ())
    if target.endswith(".toml"):
        data, model, training, protect = _of_study(Path(target), options, model, training, protect)
    else:
        data = options.source(files[0] if files else target, source)
    clients = (len(files) or 4) if options.clients is None else whole("clients", options.clients)
    steps = (1 if options.exchange == GRADIENTS else 10) if options.local_steps is None else options.local_steps
    partition = options.partition or (FILES if files else None)
    if target == "app" and not files:
        task = Task.LM if data.task == "unlabelled" else Task(data.task or Task.CLASSIFICATION)
        names = data.classes
        if task.has_classes and not names:
            raise invalid("classes", None, "set for an app", "Clients must agree on the class names.")
        units, corpora = 1, []
        files, partition = ("",) * clients, FILES
    else:
        sources = [replace(data, source=file) for file in files] or [data]
        corpora = [one.load() for one in sources]
        task = data.task_of(corpora[0])
        names = corpora[0].label_names
        units = sum(one.split("train").unit_count for one in corpora if "train" in one.split_names) or 1
        named = corpora[0].units is not None
        if partition == EQUAL and named:
            remedy = f"Rows of one {corpora[0].unit_name} stay at one client; leave this out, or use {UNIT}."
            raise invalid("partition", EQUAL, f"{UNIT} if a column names units", remedy)
        partition = partition or (UNIT if named else EQUAL)
    pairs = bool(corpora) and corpora[0].is_pairs
    chosen = model_settings(model, protect, units, task, pairs=pairs)
    if protect is not None:
        for one in corpora:
            check_private_labels(RunChoices(data, chosen, TrainSettings(), protect), one)
    table_ = {"name": options.aggregation, **parse_settings(options.aggregation_settings or [], "--aggregation-set")}
    return Federation(
        data=data,
        model=chosen,
        training=parse(TrainSettings, training, "training"),
        clients=clients,
        protect=protect,
        aggregation=aggregation_from_table(table_),
        local_steps=steps,
        partition=partition,
        files=files,
        task=task,
        classes=tuple(names or ()) if task.has_classes else (),
        **{name: getattr(options, name) for name in _SAME},
    )


def _of_study(
    path: Path,
    options: FederateChoices,
    model: dict[str, Any],
    training: dict[str, Any],
    protect: Protection | None,
) -> tuple[Any, dict[str, Any], dict[str, Any], Protection | None]:
    """Return the data, model, training and protection of a study file; options replace what it says."""
    from discreet.core.settings import parse
    from discreet.data.sources import TextSource
    from discreet.study.file import check, protection_for, read_study
    from discreet.study.grid import points

    study = read_study(path)
    check(study)
    if protect is None:
        settings = [
            point
            for number, one in enumerate(study.protect)
            if options.protect in (None, one["name"])
            for point in points(one, f"protect[{number}]")
        ]
        if len(settings) != 1:
            remedy = f"A federated run has one protection; choose it with {setting('protect')} and its settings."
            raise invalid("protect", [one["name"] for one in study.protect], "one protection", remedy)
        protect = protection_for(settings[0])
    data = parse(TextSource, {**study.data, "seed": study.data.get("seed", options.seed)}, "data")
    return data, {**study.model, **model}, {**study.training, **training}, protect


def _write_app(settings: Federation, folder: str | None) -> None:
    from discreet.federated.app import write_app

    if folder is None:
        raise invalid("DIR", None, "the folder of the app", "For example: discreet federate app my-app.")
    write_app(Path(folder), settings)
    line(f"Written to {folder}. Start it with: flwr run {folder} SUPERLINK")
    line('Each node names its client: flower-supernode --node-config \'client=0 folder="…" data="…"\'')


def _print(result: dict[str, Any], settings: Federation, out: Path) -> None:
    from discreet.federated.client import ERRORS
    from discreet.federated.run import private_folder

    print_utility(result)
    _print_clients(result["clients"], noisy=settings.aggregation.is_noisy)
    if result["guarantee"] is None:
        line("Privacy: no guarantee for units; what clients sent was not protected.")
    else:
        paragraph("Privacy, for the units of every client: " + result["guarantee"]["sentence"])
    if result["client_guarantee"] is not None:
        from discreet.core.guarantee import Guarantee

        paragraph("Privacy of clients: " + Guarantee.from_dict(result["client_guarantee"]).sentence())
    for entry in result["log"][-10:]:
        note(entry)
    idle = [str(number) for number, values in sorted(result["clients"].items()) if values.get("rounds") == 0]
    if idle:
        note(f"Warning: no update of client {', '.join(idle)} was used in any round; the model learned nothing there.")
    for path in sorted(out.glob(f"client-*/{ERRORS}")):
        note(f"Errors of {path.parent.name} are in {path}.")
    if settings.aggregation.secret_clients:
        note(f"Errors of clients, if there were any, are in {private_folder(out)}. It must not be shared: epsilon")
        note("assumes that nobody learns which clients took part in a round.")
    line(f"The server saw {'only the sum of updates' if settings.aggregation.visible == 'sum' else 'each update'}.")
    took = f" in {result['seconds']:.1f} s," if "seconds" in result else ""
    line(f"Written to {out}{took} after {result['rounds']} rounds.")


def _print_clients(clients: dict[int, dict[str, Any]], *, noisy: bool) -> None:
    from rich.table import Table

    shown = Table(title="Clients", title_justify="left", box=None)
    names = ("client", "units", "rows", "rounds", "epsilon", "loss")
    for name in names:
        shown.add_column(name, justify="right")
    for number, values in sorted(clients.items()):
        guarantee = values.get("guarantee")
        epsilon = (
            "-" if guarantee is None else "inf" if guarantee["epsilon"] is None else in_digits(guarantee["epsilon"])
        )
        loss = f"{values['loss']:.3f}" if "loss" in values else "private" if guarantee or noisy else "-"
        rows, rounds = str(values.get("rows", "private")), str(values.get("rounds", "private"))
        shown.add_row(str(number), f"{values['units']:,}", rows, rounds, epsilon, loss)
    console().print(shown)
