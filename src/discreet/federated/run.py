"""A federated run from settings to a run folder: in one process, or as processes of Flower on one machine.

    OUT.unfinished/federation.toml   the settings
    OUT.unfinished/server/           the server's folder (`discreet.federated.server`)
    OUT.unfinished/client-0/ …       one folder per client (`discreet.federated.client`)
    OUT.unfinished/flower/           the app, the logs and the state of Flower's processes

On one machine all folders lie side by side; on machines of one's own each side has only its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from discreet.accounting.ledger import Ledger
from discreet.core.errors import DataError, ExtraError, ModelError, setting
from discreet.core.files import load_tensors, write_atomic
from discreet.core.guarantee import Adjacency, Guarantee, delta_for
from discreet.data.corpus import Corpus
from discreet.federated.client import ANSWERS, AVERAGED, BATCHES, ERRORS, GUARANTEE, Client, stated_guarantee
from discreet.federated.processes import run_processes
from discreet.federated.server import FINAL, LOG, PID, PRIVATE, RESULT, RoundReport, Schedule, StoppedError
from discreet.federated.settings import EQUAL, UNIT, Federation, shared_label_names, with_label_names
from discreet.models.base import TextModel
from discreet.models.build import ready
from discreet.runs.checkpoint import LEDGER, trained
from discreet.runs.folder import RunSettings, begin, finish, forget_secrets, workspace_of
from discreet.training.evaluation import assess

SETTINGS, SERVER, FLOWER = "federation.toml", "server", "flower"
_RECORDED_BATCHES = f"the recorded batches, in {BATCHES} of each client, are not released"


@dataclass(frozen=True)
class FederateOptions:
    """Options that do not change the model.

    Outputs of a frozen encoder are stored in `cache` for other runs; by default in each client's folder, until the end.
    """

    cache: Path | None = None
    in_process: bool = False
    resume: bool = False
    tls: bool = False
    watch: Callable[[RoundReport], None] = lambda report: None
    say: Callable[[str], None] = lambda text: None
    should_stop: Callable[[], bool] = lambda: False


def check_installed() -> None:
    """Reject a federated run if Flower is not installed."""
    missing = [name for name in ("flwr", "cryptography") if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraError(
            f"Expected {' and '.join(missing)} to be installed for federated training. Install them with: pip install "
            "'discreet[federated]'"
        )


def client_folder(workspace: Path, client: int) -> Path:
    """Return the folder of a client on one machine."""
    return workspace / f"client-{client}"


def settled(settings: Federation) -> tuple[Federation, Corpus]:
    """Return the settings with task and class names, read from the data of all clients on this machine, and that data.

    Guarantee: none, this reads private data; class names are public.
    """
    sources = [settings.source_of(client) for client in range(settings.clients)] if settings.files else [settings.data]
    corpora = [source.load(Adjacency.ZERO_OUT) for source in sources]
    task = settings.data.task_of(corpora[0])
    names = settings.data.classes or shared_label_names(corpora) if settings.files else corpora[0].label_names
    check_units(corpora, settings)
    settings = replace(settings, task=task, classes=() if task.is_language else tuple(names))
    return settings, with_label_names(corpora[0], settings)


def check_units(corpora: Sequence[Corpus], settings: Federation) -> None:
    """Reject files of several clients with rows of the same unit, if the clients protect units.

    Each client counts only what it spends itself, so that a unit at two clients would pay both epsilons.
    """
    if settings.protect is None or not settings.protect.samples_units:
        return
    names = Counter(name for corpus in corpora if corpus.units is not None for name in _units(corpus))
    several = sum(1 for count in names.values() if count > 1)
    if several:
        raise DataError(
            f"Expected every {corpora[0].unit_name} in the file of one client, got {several} in several files. Their "
            "epsilons would add up; move all rows of each into one file."
        )


def _units(corpus: Corpus) -> tuple[str, ...]:
    return corpus.split("train").unit_names if "train" in corpus.split_names else ()


def federate(settings: Federation, out: Path, options: FederateOptions | None = None) -> dict[str, Any]:
    """Train a model on the text of several clients, and write a run folder; return what `federate --json` prints.

    Args:
        settings: The settings of the federation.
        out: A new folder for the run.
        options: Options that do not change the model.

    Guarantee: that of the clients' protections for their own units, in the result; none without a protection.
    """
    start, options = time.monotonic(), options or FederateOptions()
    workspace = workspace_of(out, resume=options.resume)
    settings, corpus = settled(settings)
    for remark in corpus.remarks:
        options.say(remark)
    begin(workspace)
    path = workspace / SETTINGS
    stored = Federation.read(path) if path.exists() else None
    if stored is not None and stored != settings:
        raise ModelError(
            f"Expected the settings with which {str(workspace)!r} was started, but something has changed. Resume with "
            "the same command, or delete the folder and begin again."
        )
    if corpus.units is not None and settings.partition == EQUAL:
        options.say(f"All rows of one {corpus.unit_name} are at one client, as with {setting('partition', UNIT)}.")
    write_atomic(path, settings.text(), private=False)
    run = run_in_process if options.in_process else run_processes
    try:
        result = run(settings, workspace, options)
    except StoppedError:
        return {"out": str(out), "finished": False}
    return write_run(settings, corpus, workspace, out, result, time.monotonic() - start, options)


def run_in_process(settings: Federation, workspace: Path, options: FederateOptions | None = None) -> dict[str, Any]:
    """Run server and clients of a federation in this process, and return the server's result."""
    from discreet.federated.flower import serve

    options = options or FederateOptions()
    folders = [client_folder(workspace, number) for number in range(settings.clients)]
    clients = [Client(settings, number, folder, cache=options.cache) for number, folder in enumerate(folders)]
    try:
        return serve(settings, workspace / SERVER, local_grid(clients), options.watch, options.should_stop)
    finally:
        for client in clients:
            client.close()


def local_grid(clients: list[Client]) -> Any:
    """Return a grid on which each client answers in this process."""
    from flwr.app import Context, RecordDict

    from discreet.federated.flower import LocalGrid, client_app

    def app(client: Client) -> Any:
        return client_app(lambda context: client, lambda context: client.number, lambda context: client.folder)

    contexts = [Context(1, one.number + 1, {}, RecordDict(), {}) for one in clients]
    return LocalGrid([app(client) for client in clients], contexts)


def write_run(
    settings: Federation,
    corpus: Corpus,
    workspace: Path,
    out: Path,
    result: dict[str, Any],
    seconds: float,
    options: FederateOptions,
) -> dict[str, Any]:
    """Write the run folder of a finished federation, and return its result."""
    model = settings.build()
    load_final(model, workspace / SERVER)
    model.eval()
    protect = settings.protect
    clients = {int(number): dict(values) for number, values in result["clients"].items()}
    guarantees = [stated_guarantee(values) for values in clients.values()]
    if protect is not None:  # a client that did not answer at the end has a ledger all the same
        guarantees += [in_ledger(workspace, one) for one in range(settings.clients) if one not in clients]
    stated = joint(guarantees)
    if stated is not None and settings.record and protect is not None and protect.samples_units:
        stated = replace(stated, assumptions=(*stated.assumptions, _RECORDED_BATCHES))
    if stated is not None and settings.files:
        stated = replace(stated, assumptions=(*stated.assumptions, f"each {stated.unit} is at one client"))
    for values in clients.values():
        if GUARANTEE in values:
            values[GUARANTEE] = json.loads(values[GUARANTEE])
    masked = protect is not None and protect.masked
    utility: dict[str, Any] = {"utility": {}, "quality": None, "evaluated_on": None}
    if "validation" in corpus.split_names:
        if masked:  # the model reads masked vectors, and only clients have masks
            utility = {**utility, "utility": mean_utility(clients, model.task.main), "evaluated_on": "validation"}
            averaged = mean_utility(clients, model.task.main, AVERAGED)
            utility |= {"utility_averaged": averaged} if averaged else {}
        else:
            rows = ready(model, with_label_names(corpus.split("validation"), settings), options.cache)
            utility = assess(model, rows).values("validation")
    values = {
        "out": str(out),
        "finished": True,
        **utility,
        "guarantee": None if stated is None else {**stated.as_dict(), "sentence": stated.sentence()},
        "client_guarantee": result.get("client_guarantee"),
        "tls": options.tls and not options.in_process,
        "steps": result["steps"],
        "rounds": result["rounds"],
        "clients": clients,
        "trained": settings.model.train,
        "seed": settings.seed,
    }
    units = sum(Schedule.read(workspace / SERVER).sizes.values())
    log = workspace / SERVER / LOG
    events = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    tidy(workspace, settings)
    if settings.aggregation.secret_clients:
        set_aside(workspace, private_folder(out))
    run = RunSettings(
        replace(settings.data, text_pair=settings.data.text_pair if corpus.is_pairs else None),
        settings.model,
        settings.completed_train(units, model.width),
        protect,
        settings.seed,
        task=settings.task,
        classes=settings.classes,
        pairs=corpus.is_pairs,
    )
    finish(workspace, out, model, run, {**values, "history": []}, stated)
    # What happened to clients is for whoever started the run, and the time only if it is public who took part.
    return {**values, "log": events} | ({} if settings.aggregation.secret_clients else {"seconds": seconds})


def load_final(model: TextModel, folder: Path) -> None:
    """Load the final weights of a server's folder into a model."""
    tensors, _ = load_tensors(folder / FINAL)
    for name, parameter in trained(model).items():
        parameter.data.copy_(tensors[name])


def in_ledger(workspace: Path, client: int) -> Guarantee | None:
    """Return the guarantee of a client's ledger on this machine, or None if it spent nothing."""
    path = client_folder(workspace, client) / LEDGER
    if not path.exists():
        return None
    statement = Ledger.read(path)
    schedule = Schedule.read(workspace / SERVER)
    delta = delta_for(schedule.sizes[client]) if statement.budget is None else statement.budget.delta
    return statement.guarantee(delta) if statement.spends else None


def joint(guarantees: list[Guarantee | None]) -> Guarantee | None:
    """Return a guarantee that holds for the units of all clients, if every unit is at one client.

    Epsilon and delta are the largest of all clients (clients with fewer units have a larger delta), and the caveats and
    assumptions are those of all of them.

    >>> a = Guarantee(3.0, 1e-5, "note", Adjacency.ZERO_OUT, "pld")
    >>> b = Guarantee(2.0, 1e-3, "note", Adjacency.ZERO_OUT, "pld")
    >>> both = joint([a, None, b])
    >>> both.epsilon, both.delta
    (3.0, 0.001)
    """
    present = [one for one in guarantees if one is not None]
    if not present:
        return None
    estimates = [one for one in present if not one.certified]
    return replace(
        max(present, key=lambda one: one.epsilon),
        delta=max(one.delta for one in present),
        certified=not estimates,
        reason="; ".join(dict.fromkeys(one.reason for one in estimates if one.reason)) or None,
        caveats=frozenset().union(*(one.caveats for one in present)),
        assumptions=tuple(dict.fromkeys(text for one in present for text in one.assumptions)),
    )


def mean_utility(clients: dict[int, dict[str, Any]], metric: str, prefix: str = "") -> dict[str, float]:
    """Return the mean of a metric that clients measured, each with its own masks."""
    values = [values[prefix + metric] for values in clients.values() if prefix + metric in values]
    return {metric: sum(values) / len(values)} if values else {}


def tidy(workspace: Path, settings: Federation) -> None:
    """Delete what only an unfinished run needs: secrets, stored answers, encoded text and Flower's state."""
    for number in range(settings.clients):
        folder = client_folder(workspace, number)
        forget_secrets(folder)
        for name in ("answer.safetensors", ANSWERS):
            (folder / name).unlink(missing_ok=True)
        for name in ("memory", "vectors"):
            shutil.rmtree(folder / name, ignore_errors=True)
    forget_secrets(workspace / SERVER)
    for name in (FINAL, RESULT, PID, ANSWERS):
        (workspace / SERVER / name).unlink(missing_ok=True)
    for path in (workspace / FLOWER).glob("*"):
        if path.suffix != ".log":
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def private_folder(out: Path) -> Path:
    """Return the folder next to a run folder for what its owner must not share: who took part in a round."""
    return out.with_name(out.name + ".private")


def set_aside(workspace: Path, private: Path) -> None:
    """Move everything that depends on who took part in a round out of a finished run, and hide when files were written.

    These are the events and errors of single clients and Flower's own logs. Nothing is lost: they are in `private`,
    which only its owner can read, and which exists if there is something in it.
    """
    paths = [workspace / SERVER / PRIVATE, *workspace.glob(f"client-*/{ERRORS}"), *workspace.glob(f"{FLOWER}/*.log")]
    for path in paths:
        if path.exists():
            private.mkdir(parents=True, exist_ok=True, mode=0o700)
            target = private / f"{path.parent.name}-{path.name}"
            write_atomic(target, path.read_bytes())
            path.unlink()
    now = time.time_ns()
    for path in (*workspace.rglob("*"), workspace):
        os.utime(path, ns=(now, now))
