"""Read what is known about a release from its folder or file, without loading the model.

`READERS` is the table of what can be read: a federated run, a training run, a folder of the Hugging Face Trainer or of
a loop of one's own, a sanitized text, and a ledger alone. Each reader returns `Facts`.

Guarantee: none of its own. Run folders hold no text; reading them is post-processing.
"""

from __future__ import annotations

import enum
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.core.errors import DataError, DiscreetError, LedgerError, ModelError, first_line, invalid, setting
from discreet.core.files import RUN_DIGEST, check_digests, digest_of_release, in_unfinished_run, recorded_ledger
from discreet.core.guarantee import DEFAULT_DELTA, Adjacency, Caveat, Guarantee, in_digits
from discreet.core.task import Task

if TYPE_CHECKING:
    from discreet.accounting.ledger_file import Statement

LEDGER, METRICS, SETTINGS = "ledger.jsonl", "metrics.json", "settings.toml"
FEDERATION, TRAINER = "federation.toml", "guarantee.json"
SIDECAR = ".privacy.json"  # added to the name of a sanitized file
TEXT = "text"  # name of a sanitized file in its digests
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".gguf"})  # how files of weights end
_CLOSE = 1e-6  # relative difference of two epsilons that is due to the arithmetic of another machine
RESULTS = "attacks"  # folder of a run with results of attacks and audits, one JSON object in each file


class Kind(enum.StrEnum):
    """What a release was read from."""

    RUN = "run"
    FEDERATED = "federated run"
    TRAINER = "trainer"
    LEDGER = "ledger"
    SANITIZED = "sanitized text"


TRAINED = frozenset({Kind.RUN, Kind.FEDERATED})  # run folders, whose text source and training settings are known


@dataclass(frozen=True)
class Facts:
    """What is known about one release.

    `protection` holds the public settings of the method, and is None without one. `ledger` holds all spends; with
    several clients, those of the client with the largest epsilon. `trust` is central, local, federated or encrypted.
    `clients` has one entry per client of a federated run, and `other_ledgers` are the ledgers of the other clients;
    `client_ledgers` has all of them by the name of the client.
    `results` are stored results of attacks and audits.
    """

    kind: Kind
    path: Path
    released: str
    guarantee: Guarantee | None = None
    protection: Mapping[str, Any] | None = None
    ledger: Statement | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    federation: Mapping[str, Any] = field(default_factory=dict)
    clients: tuple[Mapping[str, Any], ...] = ()
    results: tuple[Mapping[str, Any], ...] = ()
    other_ledgers: tuple[Statement, ...] = ()
    client_ledgers: Mapping[str, Statement] = field(default_factory=dict)

    @property
    def digest(self) -> str | None:
        """The digest that identifies a run or a sanitized file, which results of attacks and audits name."""
        return digest_of_release(self.metrics)

    @property
    def unit(self) -> str:
        """Name of the privacy unit."""
        if self.guarantee is not None:
            return self.guarantee.unit
        if self.ledger is None:
            return str(self.clients[0].get("unit", "row")) if self.clients else "row"
        return self.ledger.unit

    @property
    def adjacency(self) -> Adjacency | None:
        """Adjacency of the guarantee."""
        if self.guarantee is not None:
            return self.guarantee.adjacency
        return None if self.ledger is None else self.ledger.adjacency

    @property
    def data(self) -> Mapping[str, Any]:
        """Settings of the text source."""
        return _table(self.settings, "data")

    @property
    def tuning(self) -> Mapping[str, Any]:
        """The private search that found the settings; empty without one."""
        return _table(self.metrics, "tuning")

    @property
    def tuned(self) -> Mapping[str, Any]:
        """The settings that a private search chose, with their values."""
        return _table(self.tuning, "chosen")

    @property
    def max_per_unit(self) -> int | None:
        """Cap on the rows of one unit, chosen without looking at the data, or None."""
        return self.data.get("max_per_unit")

    @property
    def ledgers(self) -> tuple[Statement, ...]:
        """All ledgers with spends; a unit is in one of them."""
        return tuple(one for one in (self.ledger, *self.other_ledgers) if one is not None and one.spent)

    @property
    def protected(self) -> bool:
        """Whether a protection was applied, with or without a guarantee."""
        return self.protection is not None or self.guarantee is not None


def read_facts(path: Path, *, ledger: Path | None = None, delta: float | None = None) -> Facts:
    """Return the facts of a run folder, a sanitized file or a ledger; `ledger` is one that is stored elsewhere.

    `delta` is that of the guarantee, for a ledger without a budget.

    Args:
        path: The folder of a run, a rewritten file or a ledger.
        ledger: A ledger in place of the one in the folder.
        delta: Delta of a guarantee that the release does not state.
    """
    if not path.exists():
        raise ModelError(f"Expected a run folder, a sanitized file or a ledger at {str(path)!r}. Check the path.")
    for reads, read in READERS:
        if reads(path):
            try:
                facts = read(path, ledger, delta)
            except DiscreetError:
                raise
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:  # edited by hand
                raise DataError(
                    f"Expected the files of {str(path)!r} as they were written. {first_line(error)}. Restore them."
                ) from error
            return replace(facts, results=stored_results(path, facts.digest))
    raise ModelError(
        f"Expected a run folder, a sanitized file or a ledger at {str(path)!r}. It has no {SETTINGS}, {TRAINER} or "
        f"{LEDGER}, and no {path.name}{SIDECAR} lies beside it. Check the path."
    )


def _run(path: Path, ledger: Path | None, delta: float | None) -> Facts:
    settings, metrics = _toml(path / SETTINGS), _json(path / METRICS)
    protect, guarantee = settings.get("protect"), _guarantee_of(metrics, path / METRICS)
    if (protect is None) != (guarantee is None):
        raise ModelError(
            f"Expected {METRICS} of {str(path)!r} to state a guarantee if and only if {SETTINGS} names a protection. "
            "One of the files is from another run; restore it."
        )
    spent = None
    if guarantee is not None:
        spent = _agreed_ledger(guarantee, path / METRICS, recorded_ledger(metrics, LEDGER), path / LEDGER, ledger)
    check_digests(metrics, path / METRICS)
    return Facts(
        Kind.RUN,
        path,
        "a trained language model" if settings.get("task") == Task.LM else "a trained model",
        guarantee,
        _protection(metrics, protect),
        spent,
        settings,
        metrics,
    )


def _federated(path: Path, ledger: Path | None, delta: float | None) -> Facts:
    settings, metrics, federation = _toml(path / SETTINGS), _json(path / METRICS), _toml(path / FEDERATION)
    guarantee = _guarantee_of(metrics, path / METRICS)
    aggregation = dict(_table(federation, "aggregation"))
    spent: Statement | None = None
    others: tuple[Statement, ...] = ()
    by_client: Mapping[str, Statement] = {}
    if guarantee is not None:
        if ledger is None:
            spent, others, by_client = _client_ledgers(path, metrics, guarantee)
        else:
            spent = _ledger(ledger, path)
    elif metrics.get("client_guarantee") is not None:  # noise that hides whole clients
        guarantee = _read_guarantee(metrics["client_guarantee"], path / METRICS)
        own = f"server/{LEDGER}"
        spent = _agreed_ledger(guarantee, path / METRICS, recorded_ledger(metrics, own), path / own, ledger)
    check_digests(metrics, path / METRICS)
    return Facts(
        Kind.FEDERATED,
        path,
        "a model trained by several clients",
        guarantee,
        _protection(metrics, federation.get("protect")) or (None if guarantee is None else aggregation),
        spent,
        settings,
        metrics,
        federation,
        tuple(dict(values) for values in metrics.get("clients", {}).values()),
        other_ledgers=others,
        client_ledgers=by_client,
    )


def _client_ledgers(
    path: Path, metrics: Mapping[str, Any], joint: Guarantee
) -> tuple[Statement, tuple[Statement, ...], dict[str, Statement]]:
    """Return the ledger of the client with the largest epsilon, those of the others, and all of them by client.

    A client that was gone at the end is not in the metrics, but has a ledger. The joint guarantee must hold for every
    client, by its own statement and by its ledger.
    """
    epsilons, ledgers, where = {}, {}, path / METRICS
    for name, values in metrics.get("clients", {}).items():
        stated = _guarantee_of(values, where)
        if stated is not None:
            own = f"client-{name}/{LEDGER}"
            ledgers[name] = _agreed_ledger(stated, where, recorded_ledger(metrics, own), path / own)
            epsilons[name] = stated.epsilon
            _check_same(joint, stated, where, f"its client {name}", least=True)
    for file in path.glob(f"client-*/{LEDGER}"):
        name = file.parent.name.removeprefix("client-")
        if name not in ledgers:
            ledgers[name] = _ledger(file, path)
            epsilons[name] = 0.0
            if ledgers[name].spends:
                total = _computed(ledgers[name], joint.delta)
                epsilons[name] = total.epsilon
                _check_same(joint, total, where, f"the ledger of client {name}", least=True)
    most = max(epsilons, key=lambda name: epsilons[name], default="0")
    if most not in ledgers:
        return _ledger(path / f"client-{most}" / LEDGER, path), (), {}
    others = tuple(ledger for name, ledger in sorted(ledgers.items()) if name != most)
    return ledgers[most], others, dict(sorted(ledgers.items()))


def _guarantee_of(values: Mapping[str, Any], path: Path) -> Guarantee | None:
    stated = values.get("guarantee")
    return None if stated is None else _read_guarantee(stated, path)


def _trainer(path: Path, ledger: Path | None, delta: float | None) -> Facts:
    values = _json(path / TRAINER)
    guarantee = _read_guarantee(values, path / TRAINER)
    beside = [folder / LEDGER for folder in (path, path.parent)]  # a checkpoint lies in the folder of its run
    own = ledger or next((one for one in beside if one.exists()), beside[0])
    # Later steps, and other trainings in the same ledger, are in it but not in the figure of this folder.
    spent = _agreed_ledger(guarantee, path / TRAINER, recorded_ledger(values, LEDGER), own, grows=True)
    check_digests(values, path / TRAINER)
    return Facts(
        Kind.TRAINER,
        path,
        "a model trained in a loop of the user's own",
        guarantee,
        {"name": "dp-sgd"} if _clips(spent) else {"name": "own loop"},
        spent,
    )


def _clips(statement: Statement) -> bool:
    """Return whether every spend is a noisy sum of clipped contributions."""
    from discreet.accounting.events import ClippedSumDpEvent, TruncatedSubsampledGaussianDpEvent

    sums = (ClippedSumDpEvent, TruncatedSubsampledGaussianDpEvent)
    return all(isinstance(innermost(event), sums) for event, _ in statement.spent)


def innermost(event: Any) -> Any:
    """Return the event inside sampling and repetition."""
    while hasattr(event, "event"):
        event = event.event
    return event


def _sanitized(path: Path, ledger: Path | None, delta: float | None) -> Facts:
    values, where = _json(sidecar_of(path)), sidecar_of(path)
    statement = _composed(values["spent"], values["unit"], values["adjacency"])
    stated = _read_guarantee(values["guarantee"], where)
    _check_same(stated, _computed(statement, stated.delta), where, "the spent events in it")
    check_digests(values, where, {TEXT: path})
    return Facts(
        Kind.SANITIZED,
        path,
        "rewritten texts",
        stated,
        values["protection"],
        statement,
        metrics=values,
    )


def _recorded(path: Path, ledger: Path | None, delta: float | None) -> Facts:
    """Return the facts of a sanitized file without its own record, from this machine's record of the same people."""
    from discreet.runs.people import People

    record = record_of(path)
    guarantee = People().guarantee_of(record)
    assert guarantee is not None
    return Facts(
        Kind.SANITIZED,
        path,
        "rewritten texts",
        guarantee,
        {"name": record.protection},
        _composed(record.spent, record.unit, record.adjacency),
        metrics={"units": record.units},
    )


def record_of(path: Path) -> Any:
    """Return this machine's last record of a release at a path that spent something, or None."""
    from discreet.runs.people import People

    found = [record for record in People().records() if record.out == str(path.resolve()) and record.spends]
    return found[-1] if found else None


def _bare_ledger(path: Path, ledger: Path | None, delta: float | None) -> Facts:
    file = path / LEDGER if path.is_dir() else path
    if in_unfinished_run(file):
        raise ModelError(
            f"Expected a finished release at {str(path)!r}, got an unfinished run, which has no guarantee. Resume it "
            f"({setting('resume', True)}); `discreet ledger` shows what was spent so far."
        )
    if path.is_dir() and (weights := sorted(one.name for one in path.iterdir() if one.suffix in _WEIGHTS)):
        raise ModelError(
            f"Expected {METRICS} and {SETTINGS}, or {TRAINER}, in {str(path)!r}, which holds {weights[0]}. Without "
            f"them nothing says that these weights were paid for from its {LEDGER}; restore them, or name the ledger "
            "itself."
        )
    spent = _ledger(file, path)
    if delta is None and spent.budget is None:
        raise invalid(
            "delta",
            None,
            "set for a ledger without a budget",
            f"The guarantee needs it; by default it is {DEFAULT_DELTA}.",
        )
    return Facts(
        Kind.LEDGER,
        path,
        "everything that was paid for from this ledger",
        spent.guarantee(delta),
        {"name": "own loop"},
        spent,
    )


def sidecar_of(path: Path) -> Path:
    """Return the file that states the guarantee of a sanitized text."""
    return path.with_name(path.name + SIDECAR)


Reads = Callable[[Path], bool]
Reader = Callable[[Path, Path | None, float | None], Facts]
# Which paths a reader is for, and the reader; the first that fits is used.
READERS: tuple[tuple[Reads, Reader], ...] = (
    (lambda path: (path / FEDERATION).exists() and (path / METRICS).exists(), _federated),
    (lambda path: (path / SETTINGS).exists(), _run),
    (lambda path: (path / TRAINER).exists(), _trainer),
    (lambda path: path.is_dir() and (path / LEDGER).exists(), _bare_ledger),
    (lambda path: path.is_file() and sidecar_of(path).exists(), _sanitized),
    (lambda path: path.is_file() and _is_ledger(path), _bare_ledger),
    (lambda path: path.is_file() and record_of(path) is not None, _recorded),
)


def stored_results(release: Path, digest: str | None) -> tuple[Mapping[str, Any], ...]:
    """Return the results of attacks and audits that are stored with a release, in the order of their file names."""
    folder = release / RESULTS if release.is_dir() else release.with_name(f"{release.name}.{RESULTS}")
    return tuple(read_result(path, digest) for path in sorted(folder.glob("*.json")))


def read_result(path: Path, digest: str | None) -> dict[str, Any]:
    """Return the result in a file that `discreet attack RUN --json` or `discreet audit RUN --json` wrote.

    It has its `file`. It must name the digest of the release; without one, no result is of this release.
    """
    values = _json(path)
    if not _is_result(values):
        raise DataError(
            f"Expected the result of an attack or an audit in {str(path)!r}, with 'leakage' or 'lower_bound' "
            "and no sweep. `discreet attack` and `discreet audit` write such files, as JSON."
        )
    if digest is None or values.get(RUN_DIGEST) != digest:
        got = "of another one" if values.get(RUN_DIGEST) else f"without {RUN_DIGEST!r}"
        raise DataError(
            f"Expected a result of this release in {str(path)!r}, got one {got}. Remove it, and attack or audit this "
            "run itself: its own text, under its own protection."
        )
    return {**values, "file": path.name}


def _is_result(values: Mapping[str, Any]) -> bool:
    """Return whether plain values are those of one attack or one audit."""
    if "lower_bound" not in values:
        return "attack" in values and "leakage" in values and _are_rows(values, "leakage", "metric")
    figures = (values["lower_bound"], values.get("confidence", 0.0))
    rows = _are_rows(values, "checks", "what", "passed") and _are_rows(values, "not_tested", "what")
    return rows and all(isinstance(one, int | float) for one in figures)


def _are_rows(values: Mapping[str, Any], name: str, *keys: str) -> bool:
    rows = values.get(name, [])
    return isinstance(rows, list) and all(isinstance(row, dict) and row.keys() >= set(keys) for row in rows)


def _agreed_ledger(
    stated: Guarantee,
    file: Path,
    recorded: tuple[int, str] | None,
    own: Path,
    given: Path | None = None,
    *,
    grows: bool = False,
) -> Statement:
    """Return the ledger of a release, `own` or the `given` one, if the guarantee that `file` states follows from it.

    `recorded` are the spends and the last check that the release recorded of its own ledger, which may have been moved
    to `given`. A ledger that several releases share has other spends too, so only the own one is compared. `grows`:
    spends after the recorded ones are not of this release.
    """
    from discreet.accounting.ledger import Ledger

    path = own if given is None or own.exists() else given
    whole = then = _ledger(path, file.parent)
    if whole.spends == 0 and 0 < stated.epsilon < math.inf:
        raise LedgerError(
            f"Expected the spends of {str(file.parent)!r} in its ledger, which is empty. It is that of another run; "
            f"restore its own, or name the shared one ({setting('ledger')})."
        )
    if recorded is not None:
        spends, check = recorded
        found = Ledger.read_until(path, check)
        if found is None or found.spends != spends or (whole.spends != spends and not grows):
            raise LedgerError(
                f"Expected the {spends:,} spends that {file.name} records of the ledger of {str(file.parent)!r}, got "
                f"{whole.spends:,} in {str(path)!r}. It was cut, continued or exchanged; restore it, or name the one "
                f"that the release was counted in ({setting('ledger')})."
            )
        then = found
    _check_same(stated, _computed(then, stated.delta), file, f"the ledger {path.name}", least=grows)
    return whole if path == given or given is None else _ledger(given, file.parent)


def _computed(spent: Statement, delta: float) -> Guarantee:
    """Return the guarantee of recorded spends, with the assumptions that were recorded with them and no others.

    How the accountant words its own assumptions may differ between versions.
    """
    return replace(spent.guarantee(delta), assumptions=spent.terms.assumptions)


def _check_same(stated: Guarantee, computed: Guarantee, file: Path, source: str, *, least: bool = False) -> None:
    """Raise unless a stated guarantee is the one that was computed from the recorded spends.

    `least`: the stated one may be weaker.
    """
    figures = {"unit": (stated.unit, computed.unit)}
    figures["adjacency"] = (stated.adjacency.value, computed.adjacency.value)
    # The claim of a paper is an estimate with its own assumptions; the spends have the proven figure.
    claimed = Caveat.PAPER_CALIBRATION in stated.caveats
    differs = not _close(stated.epsilon, computed.epsilon) and (stated.epsilon < computed.epsilon or not least)
    if differs and not claimed:
        at = f" at delta {in_digits(stated.delta)}"
        figures["epsilon"] = (in_digits(stated.epsilon) + at, in_digits(computed.epsilon) + at)
    if stated.certified and not computed.certified:
        figures["certified"] = ("certified", "an estimate")
    if missing := computed.caveats - stated.caveats:
        figures["caveats"] = (", ".join(sorted(stated.caveats)) or "none", ", ".join(sorted(missing)))
    absent = [text for text in computed.assumptions if text not in stated.assumptions]
    if absent and not claimed:
        figures["assumptions"] = ("not all of them", f"also {absent[0]!r}")
    for name, (first, second) in figures.items():
        if first != second:
            raise LedgerError(
                f"Expected {name} in {str(file)!r} and in {source} to agree, got {first} and {second}. One of them was "
                "edited or belongs to another release; restore it. No figure of this release can be relied on."
            )


def _close(first: float, second: float) -> bool:
    return first == second or abs(first - second) <= _CLOSE * max(abs(first), abs(second)) < math.inf


def _ledger(path: Path, run: Path) -> Statement:
    from discreet.accounting.ledger import Ledger

    if not path.exists():
        raise LedgerError(
            f"Expected the ledger of {str(run)!r} at {str(path)!r}. There is none, and without it the noise that was "
            f"used cannot be stated; restore it, or name the one that the run was counted in ({setting('ledger')})."
        )
    return Ledger.read(path)


def _is_ledger(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(18) == b'{"discreet-ledger"'


def _composed(spent: Mapping[str, int], unit: str, adjacency: str) -> Statement:
    from discreet.accounting.events import event_from_json
    from discreet.accounting.ledger_file import Statement

    events = tuple((event_from_json(event), count) for event, count in spent.items())
    return Statement(unit, Adjacency(adjacency), None, events)


def _protection(metrics: Mapping[str, Any], asked: object) -> dict[str, Any] | None:
    """Return the settings that ran, or those that were asked for where a run does not record them."""
    if metrics.get("protection") is not None:
        return dict(metrics["protection"])
    return dict(asked) if isinstance(asked, Mapping) else None


def _read_guarantee(values: Mapping[str, Any], path: Path) -> Guarantee:
    try:
        return Guarantee.from_dict(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"Expected a guarantee in {str(path)!r}. {first_line(error)}. Restore the file.") from None


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"Expected a file at {str(path)!r}. It is missing; restore it.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"Expected JSON in {str(path)!r}. {first_line(error)}. Restore the file.") from None
    if not isinstance(values, dict):
        raise ModelError(f"Expected one JSON object in {str(path)!r}, got {type(values).__name__}. Restore the file.")
    return values


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"Expected TOML in {str(path)!r}. {first_line(error)}. Restore the file.") from None
