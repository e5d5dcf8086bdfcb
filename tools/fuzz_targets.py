"""What is given hostile inputs, each called as a command calls it: readers, TOML, HTTP bodies, ledgers, run folders."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tools.fuzz_mutations import mutated

SEEDS = Path(__file__).parent / "fuzz_seeds"


@dataclass(frozen=True)
class Case:
    """One input: its bytes, and in words what they are given to."""

    data: bytes
    how: str
    extra: Any = None


class Target:
    """Something that reads hostile inputs; `scratch` is a folder of its own."""

    name: ClassVar[str]

    def __init__(self, scratch: Path) -> None:
        """Make what every input needs."""
        self.scratch = scratch

    def case(self, seed: int, number: int) -> Case:
        """Return input `number`, which depends on nothing else."""
        raise NotImplementedError

    def give(self, case: Case) -> str:
        """Read an input and return how that ended; a DiscreetError is a good end."""
        raise NotImplementedError

    def check(self, case: Case) -> None:
        """Refuse what was left behind."""

    def close(self) -> None:
        """Let go of what was made."""


def _random(seed: int, name: str, number: int) -> random.Random:
    return random.Random(f"{seed}:{name}:{number}")


def _seeds(pattern: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(SEEDS.glob(pattern))]
    if not found:
        raise FileNotFoundError(f"Expected seeds {pattern} in {SEEDS}.")
    return found


class Readers(Target):
    """CSV, TSV, JSON lines, Parquet and plain text, as `data`, `predict` and `sanitize` read them."""

    name = "readers"
    _KINDS = ("csv", "tsv", "jsonl", "parquet", "txt")

    def __init__(self, scratch: Path) -> None:
        """Read the seeds of each kind."""
        super().__init__(scratch)
        self.seeds = {kind: _seeds(f"*.{kind}") for kind in self._KINDS}
        self.outputs = 0

    def case(self, seed: int, number: int) -> Case:
        """Return the bytes of a file, its kind, and how it is read."""
        rng = _random(seed, self.name, number)
        kind = rng.choice(self._KINDS)
        seeds = self.seeds[kind] if rng.random() < 0.9 else [one for some in self.seeds.values() for one in some]
        how = "columns" if kind == "txt" else rng.choice(("table", "load", "columns"))
        return Case(mutated(seeds, rng), f"{kind} {how}", rng.choice(("csv", "tsv", "jsonl", "parquet")))

    def give(self, case: Case) -> str:
        """Read every column, or load a corpus, or rewrite the file in another format."""
        from discreet.data.sources import Columns, load
        from discreet.data.tables import check_fits, read_columns, read_table, render, write_whole

        kind, how = case.how.split()
        path = self.scratch / f"input.{kind}"
        path.write_bytes(case.data)
        self.out = self.scratch / f"output.{case.extra}"
        self.out.unlink(missing_ok=True)
        if how == "table":
            table = read_table(path)
            for name in dict.fromkeys(table.names):
                table.column(name, "text")
        elif how == "load":
            load(str(path), Columns("text", None, "label", "unit" if len(case.data) % 2 else None))
        else:
            found = read_columns(str(path), f".{kind}", ("text",))
            check_fits(found, f".{case.extra}")
            made = render(found, found.texts, f".{case.extra}")
            write_whole(self.out, made, replace=True)
            if self.out.read_bytes() != made:
                raise AssertionError("a file that is not what was written")
            self.out.unlink()
        return "read"

    def check(self, case: Case) -> None:
        """Refuse any file beside the input, such as half of an output."""
        left = sorted(path.name for path in self.scratch.iterdir())
        kind = case.how.split()[0]
        if left != [f"input.{kind}"]:
            for name in left:
                if name != f"input.{kind}":
                    (self.scratch / name).unlink(missing_ok=True)
            if any(not name.startswith("input.") for name in left):
                raise AssertionError(f"left behind: {left}")


class Toml(Target):
    """Studies and settings of runs, clients and servers."""

    name = "toml"

    def __init__(self, scratch: Path) -> None:
        """Read the seeds: the kept ones, whose names begin with what they are."""
        super().__init__(scratch)
        import discreet.experiment.attack.reconstruction
        import discreet.study  # noqa: F401  (what takes seconds to import is no input's fault)

        self.seeds = {kind: _seeds(f"{kind}*.toml") for kind in ("study", "run", "client", "server")}

    def case(self, seed: int, number: int) -> Case:
        """Return the bytes of a TOML file and what it is."""
        rng = _random(seed, self.name, number)
        kind = rng.choice(("study", "study", "run", "client", "server"))
        return Case(mutated(self.seeds[kind], rng), kind)

    def give(self, case: Case) -> str:
        """Read and check it, as the command would before it begins."""
        from discreet.core.settings import read
        from discreet.local.folder import ClientSettings, ServerSettings
        from discreet.runs.folder import read_settings

        path = self.scratch / f"{case.how}.toml"
        path.write_bytes(case.data)
        if case.how == "study":
            from discreet.study.file import check, read_study

            check(read_study(path))
        elif case.how == "run":
            read_settings(path)
        else:
            read(ClientSettings if case.how == "client" else ServerSettings, path)
        return "read"


class Http(Target):
    """Bodies, headers and paths for the server and for the explorer, called as ASGI applications without a socket."""

    name = "http"
    _KEY = "key"
    _HOST = b"127.0.0.1:8766"

    def __init__(self, scratch: Path) -> None:
        """Make both applications, with a head of made-up weights and a worker that does no work."""
        super().__init__(scratch)
        import numpy as np

        from discreet.explorer.app import application as explorer
        from discreet.explorer.worker import DONE, Job
        from discreet.local.app import application
        from discreet.local.head import Head
        from discreet.local.limits import Limits

        class Idle:
            def submit(self, work: Callable[[Callable[[str], None]], Any]) -> Job:
                job = Job(work)
                job.state, job.result = DONE, dict(work(lambda words: None))
                return job

        rng = np.random.default_rng(0)
        layer = rng.normal(size=(3, 6)).astype(np.float32), np.zeros(3, dtype=np.float32)
        offered = explorer({}, lambda question, say: {}, Idle(), key=self._KEY, hosts={self._HOST.decode()})  # type: ignore[arg-type]
        self.applications: dict[str, Any] = {
            "serve": application(Head((layer,), ("a", "b", "c")), Limits(rows=8, rate=1e9)),
            "explore": offered,
        }
        self.seeds = {"serve": _seeds("serve*.json"), "explore": _seeds("explore*.json")}
        self.loop = asyncio.new_event_loop()

    def case(self, seed: int, number: int) -> Case:
        """Return a body, and the rest of a request around it."""
        rng = _random(seed, self.name, number)
        which = rng.choice(("serve", "explore"))
        path = rng.choice({"serve": ("/v1/answers",) * 99, "explore": ("/v1/readings",) * 99}[which] + _PATHS)
        headers = [(b"host", self._HOST), (b"content-type", b"application/json"), (b"x-discreet-key", b"key")]
        for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
            headers[rng.randrange(len(headers))] = rng.choice(_HEADERS)
        cuts = sorted(rng.randrange(500) for _ in range(rng.choice((0, 0, 0, 1, 3))))
        method = rng.choice(("POST",) * 99 + ("GET", "PUT", "DELETE", "\x00"))
        extra = {"path": path, "method": method, "headers": headers, "cuts": cuts, "gone": rng.random() < 0.02}
        return Case(mutated(self.seeds[which], rng), which, extra)

    def give(self, case: Case) -> str:
        """Send it and return the status; one of 500 and above is a failure."""
        status, body = self.loop.run_until_complete(self._sent(case))
        if status >= 500:
            raise AssertionError(f"status {status}: {body[:200]!r}")
        if status >= 400:
            said = json.loads(body)["error"]
            if not isinstance(said, str) or not said or "\n" in said or len(said) > 2000:
                raise AssertionError(f"status {status} says {said!r:.200}")
        return str(status)

    def close(self) -> None:
        """Close the event loop."""
        self.loop.close()

    async def _sent(self, case: Case) -> tuple[int, bytes]:
        extra = case.extra
        path = extra["path"]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": extra["method"],
            "scheme": "http", "path": path, "raw_path": path.encode("utf-8", "surrogatepass"), "root_path": "",
            "query_string": b"", "headers": extra["headers"], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8766),
        }  # fmt: skip
        ends = [0, *extra["cuts"], len(case.data)]
        parts = [case.data[a:b] for a, b in itertools.pairwise(ends)]
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
            for number, part in enumerate(parts)
        ]
        if extra["gone"]:
            messages = [*messages[:-1], {"type": "http.disconnect"}]
        status, body = 0, bytearray()

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                body.extend(message.get("body", b""))

        await self.applications[case.how](scope, receive, send)
        return status, bytes(body)


_PATHS = (
    "/",
    "/health",
    "/v1/about",
    "/v1/offer",
    "/openapi.json",
    "/v1/answers/",
    "//",
    "/%00",
    "/\u202e",
    "/" * 3000,
    "",
)
_HEADERS = (
    (b"content-type", b"text/plain"),
    (b"content-type", b"\xff\x00"),
    (b"content-type", b"application/json; charset=utf-16"),
    (b"content-length", b"-1"),
    (b"content-length", b"9" * 5000),
    (b"content-length", "٣".encode()),
    (b"content-encoding", b"gzip"),
    (b"x-discreet-key", b"\xff\xfe"),
    (b"x-discreet-key", b""),
    (b"host", b"evil.example"),
    (b"host", b"\xff"),
    (b"origin", b"null"),
    (b"sec-fetch-site", b"cross-site"),
    (b"transfer-encoding", b"chunked"),
)


class Ledgers(Target):
    """Ledgers that were changed on disk, half of them with checks that fit, read and opened for writing."""

    name = "ledgers"
    _UNITS = (("note", "add/remove"), ("person", "replace-one"), ("note", "zero-out"))

    def __init__(self, scratch: Path) -> None:
        """Read the seeds, and list what else may stand in their place."""
        super().__init__(scratch)
        self.seeds = _seeds("*.ledger")

    def case(self, seed: int, number: int) -> Case:
        """Return the bytes of a ledger and how it is read; with odd numbers its checks are made to fit again."""
        rng = _random(seed, self.name, number)
        data = mutated(self.seeds, rng)
        if number % 2:
            data = _sealed(data)
        how = rng.choice(("read", "read", "statement", "open", "spend", "link", "folder"))
        return Case(data, how, rng.choice(self._UNITS))

    def give(self, case: Case) -> str:
        """Read it, or open it and spend; what it held before stays in it."""
        from discreet.accounting.events import GaussianDpEvent
        from discreet.accounting.ledger import Ledger

        path = self.scratch / "ledger.jsonl"
        _cleared(path)
        if case.how == "folder":
            path.mkdir()
        elif case.how == "link":
            path.symlink_to(self.scratch / ("ledger.jsonl" if len(case.data) % 2 else "nowhere"))
        else:
            path.write_bytes(case.data)
        if case.how in ("open", "spend"):
            unit, adjacency = case.extra
            with Ledger.open(path, unit=unit, adjacency=adjacency) as ledger:
                if case.how == "spend":
                    ledger.spend(GaussianDpEvent(2.0), "one more")
            return "opened"
        statement = Ledger.read(path)
        if case.how == "statement" and len(statement.spent) <= 3:
            statement.guarantee(1e-5)
        return "read"

    def check(self, case: Case) -> None:
        """Refuse a ledger that lost a byte, and any file beside it."""
        path = self.scratch / "ledger.jsonl"
        if case.how not in ("folder", "link") and not path.read_bytes().startswith(case.data):
            raise AssertionError("the ledger lost what it held")
        left = [p.name for p in self.scratch.iterdir() if not p.name.startswith("ledger.jsonl")]
        if left:
            for name in left:
                _cleared(self.scratch / name)
            raise AssertionError(f"left behind: {left}")


def _cleared(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_CHECK = re.compile(rb'"[0-9a-f]{16}"([\]}])$')


def _sealed(data: bytes) -> bytes:
    """Return the lines of a ledger with checks that carry on the chain, so that what stands in them is read."""
    from discreet.accounting.ledger_file import seal

    chain, made = b"", []
    for line in data.split(b"\n"):
        found = _CHECK.search(line)
        if found is None:
            made.append(line + b"\n")
            continue
        whole = seal(chain, line[: found.start()], found.group(1))
        made.append(whole)
        chain = whole[-19:-3]
    return b"".join(made)[:-1]


class Runs(Target):
    """Folders of runs, clients, servers and sweeps with one or two files changed, swapped, linked or removed."""

    name = "runs"

    def __init__(self, scratch: Path) -> None:
        """Make a small run with both of its sides, and a sweep's folder."""
        super().__init__(scratch)
        from tools.fuzz_folders import make_folders

        self.whole = make_folders(scratch / "whole")
        self.files = {kind: sorted(p for p in folder.rglob("*") if p.is_file()) for kind, folder in self.whole.items()}

    def case(self, seed: int, number: int) -> Case:
        """Return which folder, and what is done to which of its files."""
        rng = _random(seed, self.name, number)
        kind = rng.choice(("run", "client", "server", "sweep", "sweep"))
        files = [path.relative_to(self.whole[kind]).as_posix() for path in self.files[kind]]
        changes = []
        for _ in range(rng.choice((1, 1, 1, 2))):
            name = rng.choice(files)
            what = rng.choice(("bytes", "bytes", "bytes", "bytes", "swap", "remove", "folder", "link", "loop", "empty"))
            data = mutated([(self.whole[kind] / name).read_bytes()], rng) if what == "bytes" else b""
            changes.append((name, what, data, rng.choice(files)))
        words = ", ".join(f"{name} {what}" for name, what, _, _ in changes)
        return Case(changes[0][2], f"{kind}: {words}", (kind, changes))

    def give(self, case: Case) -> str:
        """Change the folder, and read it as the commands do."""
        kind, changes = case.extra
        folder = self.scratch / "folder"
        _cleared(folder)
        shutil.copytree(self.whole[kind], folder, symlinks=True)
        for name, what, data, other in changes:
            path = folder / name
            if not path.parent.is_dir():
                continue
            if what == "swap":
                data = (self.whole[kind] / other).read_bytes()
            _cleared(path)
            if what in ("bytes", "swap", "empty"):
                path.write_bytes(data)
            elif what == "folder":
                path.mkdir()
            elif what == "link":
                path.symlink_to(folder)
            elif what == "loop":
                path.symlink_to(path)
        _read_folder(kind, folder)
        return "read"


def _read_folder(kind: str, folder: Path) -> None:
    if kind == "run":
        from discreet.runs.folder import load_run

        load_run(folder)
    elif kind == "client":
        from discreet.local.client import UserSide

        with UserSide.load(folder):
            pass
    elif kind == "server":
        from discreet.local.head import Head
        from discreet.local.server import ServerSide

        Head.of(ServerSide.load(folder))
    else:
        from discreet.study import read_result
        from discreet.study.store import read_trials
        from discreet.study.sweep import read_failures, read_kept_study

        read_kept_study(folder)
        read_failures(folder)
        read_trials(folder)
        read_result(folder)


TARGETS: dict[str, Callable[[Path], Target]] = {target.name: target for target in (Readers, Toml, Http, Ledgers, Runs)}
