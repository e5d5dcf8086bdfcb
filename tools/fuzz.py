"""Hostile inputs in process, for readers, TOML, HTTP bodies, ledgers and run folders: no crash, hang or torn file.

python -m tools.fuzz                                     200 inputs for every target
python -m tools.fuzz --target readers --inputs 400000    many of one kind
python -m tools.fuzz --minutes 8 --inputs 10000000       as many as there is time for
python -m tools.fuzz --target toml --first 1234 --inputs 1   one input again, by its number

Input number i of a target is made from (seed, target, i) alone. An input may be read, or rejected with a DiscreetError
whose message is one line (over HTTP: any status below 500). Everything else is a failure: another exception,
MemoryError and RecursionError too, the death of the process, more than 10 seconds, more than 2 GiB beyond the start,
a file that is neither there in full nor absent. Each distinct failure, by its type and place, is printed once and its
first input saved under --failures. Exits with status 1 if there was one.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.core.errors import DiscreetError
from tools.fuzz_targets import TARGETS, Case, Target

SECONDS = 10.0
MEMORY = 2 << 30
_LONGEST_MESSAGE = 4_000
_STUCK = 3 * SECONDS  # where not even a signal is heard


class Hang(BaseException):
    """An input took too long."""


@dataclass
class Found:
    """What a run has found: how many inputs, how they ended, and the distinct failures."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: float = 0.0

    def add(self, other: Found) -> None:
        self.inputs += other.inputs
        self.outcomes += other.outcomes
        self.slowest = max(self.slowest, other.slowest)
        for name, failure in other.failures.items():
            if name in self.failures:
                self.failures[name]["times"] += failure["times"]
            else:
                self.failures[name] = failure

    def as_dict(self, name: str) -> dict[str, Any]:
        return {
            "target": name,
            "inputs": self.inputs,
            "seconds": round(self.seconds, 1),
            "per_second": round(self.inputs / max(self.seconds, 1e-9)),
            "slowest": round(self.slowest, 3),
            "outcomes": dict(self.outcomes),
            "failures": self.failures,
        }


def one(target: Target, case: Case) -> str:
    """Give one input to its target and return how it ended; raise what it should not have raised."""
    try:
        return target.give(case)
    except DiscreetError as error:
        said = str(error)
        if not said.strip() or "\n" in said or len(said) > _LONGEST_MESSAGE:
            raise AssertionError(f"a message of {len(said)} characters, {said.count(chr(10))} line ends") from error
        return type(error).__name__
    finally:
        target.check(case)


def place_of(error: BaseException) -> str:
    """Return the type of an error and the last place in the package where it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "discreet" in Path(f.filename).parts or Path(f.filename).name.startswith("fuzz")]
    inside = [f for f in own if not Path(f.filename).name.startswith("fuzz")] or own or frames
    last = inside[-1]
    name = type(error).__name__
    return f"{name} at {Path(last.filename).name}:{last.name}"


def explore(
    target: Target,
    seed: int,
    first: int,
    last: int,
    until: float,
    keep: Path,
    at: mmap.mmap | None = None,
    tell: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Give the inputs of a range, in this process, and return what happened; `tell` hears of every failure at once."""
    found = Found()

    def too_long(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, too_long)
    try:
        for number in range(first, last):
            if time.monotonic() > until:
                break
            if at is not None:
                at[:16] = struct.pack("qd", number, time.monotonic())
            case = target.case(seed, number)
            began = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                outcome = one(target, case)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                outcome = "failure"
                _note(found, place_of(error), number, target, case, f"{error!s:.300}", keep, error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            found.slowest = max(found.slowest, time.perf_counter() - began)
            found.inputs += 1
            found.outcomes[outcome] += 1
            if outcome == "failure":
                tell(found)
    finally:
        signal.signal(signal.SIGALRM, before)
    return found


def _note(
    found: Found,
    name: str,
    number: int,
    target: Target,
    case: Case,
    said: str,
    keep: Path,
    error: BaseException | None = None,
) -> None:
    if name in found.failures:
        found.failures[name]["times"] += 1
        return
    folder = keep / target.name
    folder.mkdir(parents=True, exist_ok=True)
    stem = "".join(c if c.isalnum() else "-" for c in name)
    path = folder / f"{stem}-{number}.bin"
    path.write_bytes(case.data)
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    (folder / f"{stem}-{number}.txt").write_text(f"{case.how}\n{said}\n{trace}", encoding="utf-8", errors="replace")
    found.failures[name] = {"times": 1, "input": number, "how": case.how, "said": said, "saved": str(path)}


def in_child(target: Target, seed: int, first: int, last: int, until: float, keep: Path) -> Found:
    """Explore a range in a process of its own, so that one that dies or no longer hears takes nothing with it."""
    found = Found()
    began = time.monotonic()
    while first < last and time.monotonic() < until:
        at = mmap.mmap(-1, 16)
        at[:16] = struct.pack("qd", first, time.monotonic())
        results = Path(tempfile.mkstemp(prefix="fuzz-", suffix=".json")[1])
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 3
            try:
                limit = _address_space() + MEMORY
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                faulthandler.disable()

                def tell(made: Found, to: Path = results) -> None:
                    to.write_text(json.dumps(made.as_dict(target.name)), encoding="utf-8")

                tell(explore(target, seed, first, last, until, keep, at, tell))
                status = 0
            finally:
                os._exit(status)
        ended = _watched(child, at)
        number, _ = struct.unpack("qd", at[:16])
        text = results.read_text(encoding="utf-8")
        told = Found()
        if text:
            values = json.loads(text)
            told = Found(values["inputs"], Counter(values["outcomes"]), values["failures"], 0.0, values["slowest"])
        if ended == 0:
            first = last
        else:
            done = number - first + 1
            told.outcomes["not told"] += done - 1 - told.inputs
            told.outcomes["failure"] += 1
            told.inputs = done
            why = "no longer hears" if ended == -signal.SIGKILL else f"ends with {ended}"
            _note(told, f"the process {why}", number, target, target.case(seed, number), why, keep)
            first = number + 1
        found.add(told)
        results.unlink(missing_ok=True)
        at.close()
    found.seconds = time.monotonic() - began
    return found


def _watched(child: int, at: mmap.mmap) -> int:
    """Wait for a child and return how it ended; one that stays at an input for too long is ended."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        _, since = struct.unpack("qd", at[:16])
        if time.monotonic() - since > _STUCK:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL
        time.sleep(0.02)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def main(arguments: list[str] | None = None) -> int:
    """Explore what is asked for and say what was found."""
    parser = argparse.ArgumentParser(description="Hostile inputs in process.")
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--inputs", type=int, default=200, help="of each target")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long, whatever is left")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder for failing inputs")
    parser.add_argument("--json", action="store_true", help="print one JSON object a target")
    asked = parser.parse_args(arguments)
    until = time.monotonic() + 60 * asked.minutes
    bad = 0
    for name in TARGETS if asked.target == "all" else (asked.target,):
        scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        try:
            target = TARGETS[name](scratch)
            found = in_child(target, asked.seed, asked.first, asked.first + asked.inputs, until, asked.failures)
            target.close()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        bad += len(found.failures)
        told = found.as_dict(name)
        if asked.json:
            print(json.dumps(told), flush=True)
            continue
        print(
            f"{name}: {found.inputs:,} inputs in {found.seconds:.0f} s ({told['per_second']:,} a second), slowest "
            f"{found.slowest:.2f} s; {dict(found.outcomes.most_common(8))}",
            flush=True,
        )
        for place, failure in found.failures.items():
            print(f"  {failure['times']:>6}  {place}: {failure['said']!r:.160}  [{failure['saved']}]", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
