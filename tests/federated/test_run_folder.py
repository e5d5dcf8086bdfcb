"""Every file and key of a federated run folder is in the table of docs/federated.md, with why it may be shared."""

import csv
import json
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from discreet.accounting.ledger import Ledger
from discreet.core.errors import DataError, LedgerError
from discreet.core.randomness import Rng
from discreet.data.sources import TextSource
from discreet.federated.central import CentralDP
from discreet.federated.client import Assignment, Client
from discreet.federated.run import FederateOptions, client_folder, federate
from discreet.federated.secure_sum.aggregations import SecureSum
from discreet.federated.settings import Federation
from discreet.protections.dp_sgd import DPSGD
from discreet.training import plan

Tiny = Callable[..., Federation]
DOCS = Path(__file__).parents[2] / "docs" / "federated.md"
KINDS = {"no", "noised", "held-out rows", "unprotected", "owner only"}
IN_PROCESSES = {"flower/*.log"}  # written by Flower's own processes
LATER = {("metrics.json", "digests"), ("metrics.json", "utility_averaged"), ("metrics.json", "clients.averaged_*")}


def table() -> dict[tuple[str, str], str]:
    """Return the kind of each file and key of the table."""
    text = DOCS.read_text(encoding="utf-8").split("| file | key | depends on private data |")[1].split("\n\n")[0]
    rows = {}
    for line in text.splitlines()[2:]:
        file, keys, kind, reason = (cell.strip() for cell in line.strip("|").split("|"))
        assert kind in KINDS and reason, line
        for key in re.findall(r"`([^`]+)`", keys) or [""]:
            rows[file.strip("`"), key] = kind
    return rows


def contents(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Return each file of a run folder with its keys and their values; the value of a ledger is its statement."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name == "metrics.json":
            metrics = json.loads(path.read_text())
            for row in metrics.pop("clients").values():
                yield from ((name, f"clients.{key}", (row["client"], value)) for key, value in row.items())
            yield from ((name, key, value) for key, value in metrics.items())
        elif path.name == "progress.jsonl":
            for line in path.read_text().splitlines():
                yield from ((name, key, value) for key, value in json.loads(line).items())
        elif path.name in ("ledger.jsonl", "client.jsonl"):
            yield name, "", replace(Ledger.read(path), check="")  # ids are random, or hashes with a secret
        else:
            yield name, "", path.read_bytes()


def listed(rows: dict[tuple[str, str], str], file: str, key: str) -> tuple[str, str]:
    """Return the row of the table for a file and key."""
    found = [row for row in rows if fnmatch(file, row[0]) and (fnmatch(key, row[1]) or row[1] == key)]
    assert len(found) == 1, f"Expected one row for {file} {key} in the table of {DOCS.name}, got {found}."
    return found[0]


@pytest.fixture(scope="module")
def written(tiny_encoder: Callable[[str], Path], toy_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return run folders that together have every file of a run in one process."""
    from tests.federated.conftest import tiny as make

    tiny = make.__wrapped__(tiny_encoder, toy_csv)  # type: ignore[attr-defined]
    update = Client.update

    def fails(self: Client, task: Any, weights: Any) -> Any:
        if self.number == 1 and task.round == 1:
            raise DataError("irena")
        return update(self, task, weights)

    folder, options = tmp_path_factory.mktemp("runs"), FederateOptions(in_process=True)
    private = {"protect": DPSGD(epsilon=4.0), "aggregation": CentralDP(epsilon=2.0, rate=0.5)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "update", fails)
        federate(tiny(epochs=0.5, **private), folder / "private", options)
        federate(tiny(epochs=0.5, record=True), folder / "open", options)
    federate(tiny(epochs=0.5, aggregation=SecureSum(noise_multiplier=1.0)), folder / "sum", options)
    return [folder / "private", folder / "open", folder / "sum"]


def test_every_file_and_key_is_in_the_table_and_every_row_is_written(written: list[Path]) -> None:
    rows = table()
    used = {listed(rows, file, key) for folder in written for file, key, _ in contents(folder)}
    assert {row for row in rows if row[0] not in IN_PROCESSES} - used <= LATER


def test_what_is_for_the_owner_only_can_be_read_by_the_owner_only(written: list[Path]) -> None:
    rows = table()
    for folder in written:
        for file, key, _ in contents(folder):
            if rows[listed(rows, file, key)] == "owner only":
                top = folder / Path(file).parts[0]
                assert (
                    stat.S_IMODE((folder / file).stat().st_mode) == 0o600 and stat.S_IMODE(top.stat().st_mode) == 0o700
                )


def test_a_private_run_has_nothing_of_single_clients(written: list[Path]) -> None:
    rows, private = table(), written[0]
    for file, key, value in contents(private):
        if rows[listed(rows, file, key)] in ("owner only", "unprotected") and "utility.json" not in file:
            assert value in (None, []), (file, key)


def test_runs_on_neighbouring_texts_with_the_same_secret_differ_only_where_the_table_says(
    tiny: Tiny, toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of one client is replaced. Secrets, batches and noise are the same, so only the data can differ."""
    with toy_csv.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    held_out = set(TextSource(str(toy_csv)).load().split("validation").texts)
    place = next(number for number, row in enumerate(rows) if number and row[0] not in held_out)
    secret, made = Rng.secret, [0]

    def repeated(key: bytes | None = None) -> Rng:
        made[0] += 1
        return secret(made[0].to_bytes(8, "big") if key is None else key)

    monkeypatch.setattr(Rng, "secret", staticmethod(repeated))
    path, found = tmp_path / "toy.csv", []
    for case in ("one", "two"):
        changed = [[row[0] if case == "one" or n != place else "", *row[1:]] for n, row in enumerate(rows)]
        changed[place][0] = changed[place][0] or "nothing"
        path.write_text("".join(",".join(row) + "\n" for row in changed))
        out = tmp_path / "fed"
        for number in range(3):
            folder = client_folder(out.with_name("fed.unfinished"), number)
            folder.mkdir(parents=True)
            (folder / "secret").write_text(f"{number:064x}")
        private = {"protect": DPSGD(epsilon=4.0), "aggregation": CentralDP(epsilon=2.0, rate=0.5)}
        made[0] = 0
        settings = tiny(epochs=0.5, data=TextSource(str(path), classes=("clinic", "ward")), **private)
        federate(settings, out, FederateOptions(in_process=True, resume=True))
        found.append({(file, key, n): value for n, (file, key, value) in enumerate(contents(out))})
        out.rename(tmp_path / case)
    one, two = found
    assert one.keys() == two.keys()
    different = {(file, key) for (file, key, n), value in one.items() if value != two[file, key, n]}
    kinds = table()
    assert ("model.safetensors", "") in different  # else nothing was tested
    for file, key in different:
        kind = kinds[listed(kinds, file, key)]
        assert kind in ("noised", "held-out rows") or file.endswith("utility.json"), (file, key, kind)


def test_a_client_whose_data_grew_is_told_to_set_delta(
    tiny: Callable[..., Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default delta falls with the number of units, and the ledger of the client has one budget."""
    monkeypatch.setattr(plan, "delta_for", lambda units: 0.1 / units)  # the default needs far more units to fall
    settings = tiny(protect=DPSGD(epsilon=8.0))
    corpus = settings.corpus_of(1)
    train = [row for row, name in enumerate(corpus.splits) if name == "train"]
    client = Client(settings, 1, tmp_path / "client", corpus.take(train[: len(train) // 2]))
    client.training(Assignment(0, 0, 1, 2, 4))
    before = client.training(Assignment(0, 0, 1, 2, 4)).plan.delta
    client.close()
    grown = Client(settings, 1, tmp_path / "client", corpus.take(train))
    with pytest.raises(LedgerError, match=r"default delta .* Set delta=") as error:
        grown.training(Assignment(0, 0, 1, 2, 4))
    assert ("delta", before) in error.value.settings


def test_a_client_that_cannot_be_prepared_leaves_its_ledger_unlocked(
    tiny: Callable[..., Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from discreet.federated import client as clients

    one = Client(tiny(protect=DPSGD(epsilon=8.0)), 1, tmp_path / "client")

    def failing(*arguments: object, **options: object) -> None:
        raise DataError("it failed")

    with monkeypatch.context() as patched:
        patched.setattr(clients, "open_job", failing)
        with pytest.raises(DataError, match="it failed"):
            one.training(Assignment(0, 0, 1, 2, 4))
    one.training(Assignment(0, 0, 1, 2, 4))  # not "locked by another process"
    one.close()
