"""The law of the ledger: whatever happens to the process or the file, what is read back is never less than was used."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from discreet.accounting import ledger_file
from discreet.accounting.events import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, event_to_json
from discreet.accounting.ledger import Budget, Ledger, Statement
from discreet.core.errors import BudgetError, LedgerError

SOURCE = Path(__file__).parents[2] / "src"
A, B, C = GaussianDpEvent(1.5), PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), LaplaceDpEvent(4.0)
SPENDS = [(A, "1"), (A, "2"), (B, "3"), (C, "4"), (A, "5 \\"), (A, "6"), (B, '7"]'), (B, "8")]


def open_ledger(path: Path | None, **more: Any) -> Ledger:
    return Ledger.open(path, unit="note", adjacency="add/remove", **more)


def counts(statement: Statement) -> Counter[str]:
    return Counter({event_to_json(event): count for event, count in statement.spent})


def read(data: bytes) -> Counter[str]:
    return counts(ledger_file.read(data, "here").statement())


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the syncs, which cost a slow disk milliseconds and change nothing that these tests look at."""
    monkeypatch.setattr(ledger_file, "_sync", lambda descriptor: None)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[tuple[int, str]]]:
    """Return a ledger's bytes and, for each spend, where its line begins and what it spends."""
    path = tmp_path_factory.mktemp("book") / "ledger"
    with open_ledger(path) as ledger:
        for event, name in SPENDS:
            ledger.spend(event, name, secure=name == "6")
    data = path.read_bytes()
    starts, position = [], 0
    for line in data.splitlines(keepends=True):
        if line.startswith(b"["):
            starts.append((position, event_to_json(SPENDS[len(starts)][0])))
        position += len(line)
    assert len(starts) == len(SPENDS)
    return data, starts


def begun(starts: list[tuple[int, str]], cut: int) -> Counter[str]:
    """Return the spends of which at least one byte is before the cut: all that can have returned, and one more."""
    return Counter(event for start, event in starts if start < cut)


def test_cut_at_every_byte_it_counts_every_spend_that_was_begun(book: tuple[bytes, list[tuple[int, str]]]) -> None:
    data, starts = book
    first = data.index(b"\n") + 1
    for cut in range(first):
        with pytest.raises(LedgerError):  # made whole or not at all: no crash leaves this
            read(data[:cut])
    for cut in range(first, len(data) + 1):
        assert read(data[:cut]) == begun(starts, cut), cut


@pytest.mark.usefixtures("unsynced")
def test_cut_at_every_byte_it_can_be_used_again(book: tuple[bytes, list[tuple[int, str]]], tmp_path: Path) -> None:
    data, starts = book
    path = tmp_path / "ledger"
    for cut in range(data.index(b"\n") + 1, len(data) + 1, 3):
        path.write_bytes(data[:cut])
        with open_ledger(path) as ledger:
            assert counts(ledger.statement) == begun(starts, cut)
            before = ledger.statement.spends
            assert ledger.spend(C, "after").spends == before + 1
            opened = ledger.statement
        assert path.read_bytes().startswith(data[:cut])  # nothing is ever taken back
        assert Ledger.read(path) == opened
        with open_ledger(path) as ledger:
            assert ledger.statement == opened


def test_a_second_crash_while_the_first_is_mended_changes_nothing(book: tuple[bytes, list[tuple[int, str]]]) -> None:
    data, starts = book
    for cut in range(data.index(b"\n") + 1, len(data)):
        mending = ledger_file.read(data[:cut], "here").unfinished
        for more in range(len(mending) + 1):
            twice = ledger_file.read(data[:cut] + mending[:more], "here")
            assert counts(twice.statement()) == begun(starts, cut)
        mended = data[:cut] + mending[: len(mending) // 2]
        mended += ledger_file.read(mended, "here").unfinished
        assert read(mended) == begun(starts, cut)
        assert ledger_file.read(mended, "here").unfinished == b""


def test_a_garbled_last_write_is_counted(book: tuple[bytes, list[tuple[int, str]]]) -> None:
    data, starts = book
    dice = random.Random(1)
    for position, _ in starts:
        end = data.index(b"\n", position)
        used = begun(starts, position + 1)
        for length in (1, 2, end - position, 4096):
            noise = bytes(dice.choice([b for b in range(256) if b != 10]) for _ in range(length))
            for tail in (b"\x00" * length, noise, data[position : position + 3] + noise):
                assert read(data[:position] + tail) == used


def test_a_flipped_bit_is_refused_or_counted(book: tuple[bytes, list[tuple[int, str]]]) -> None:
    data, starts = book
    used, refused = begun(starts, len(data)), 0
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                found = read(bytes(damaged))
            except LedgerError:
                refused += 1
            else:
                assert found >= used, (position, bit)
    assert refused >= 8 * (len(data) - 1)  # all but the last newline, without which the last line is torn


def test_lines_taken_out_moved_doubled_or_from_elsewhere_are_refused(
    book: tuple[bytes, list[tuple[int, str]]], tmp_path: Path
) -> None:
    data, _ = book
    lines = data.splitlines(keepends=True)
    with open_ledger(tmp_path / "other") as ledger:
        for event, name in SPENDS:
            ledger.spend(event, name, secure=name == "6")
    others = (tmp_path / "other").read_bytes().splitlines(keepends=True)
    assert len(others) == len(lines)
    for number in range(len(lines) - 1):
        changed = [
            lines[:number] + lines[number + 1 :],
            lines[: number + 1] + lines[number:],
            [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]],
            lines[: number + 1] + others[number + 1 :],
            [*lines[: number + 1], b"\n", *lines[number + 1 :]],
        ]
        for each in changed:
            with pytest.raises(LedgerError):
                read(b"".join(each))


def test_what_was_taken_back_to_a_line_s_end_is_not_noticed(book: tuple[bytes, list[tuple[int, str]]]) -> None:
    """The one thing a file cannot tell about itself; the documentation says so."""
    data, starts = book
    assert read(data[: starts[-1][0]]) == begun(starts, starts[-1][0])


@pytest.mark.usefixtures("unsynced")
def test_a_seeded_step_is_counted_once_after_a_cut_that_leaves_its_id(
    book: tuple[bytes, list[tuple[int, str]]], tmp_path: Path
) -> None:
    data, starts = book
    path = tmp_path / "ledger"
    seen = set()
    for cut in range(starts[-1][0] + 1, len(data)):
        path.write_bytes(data[:cut])
        with open_ledger(path) as ledger:
            before = ledger.statement.spends
            again = ledger.spend(B, "8")
            assert again.spends - before == (0 if again.repeated else 1)
            assert ledger.statement.spends >= len(SPENDS)
            seen.add((cut - starts[-1][0] >= len('["8",0,'), again.repeated))
    assert seen == {(False, False), (True, True)}


def test_an_id_that_its_check_does_not_confirm_is_not_believed(book: tuple[bytes, list[tuple[int, str]]]) -> None:
    """Believed, it would let a later step of that id go uncounted."""
    data, starts = book
    last = data[starts[-1][0] :]
    assert last.startswith(b'["8",0,"')
    for cut in range(len('["8",0,"') + 4, len(last)):
        tally = ledger_file.read(data[: starts[-1][0]] + last.replace(b"8", b"9", 1)[:cut], "here")
        assert counts(tally.statement()) == begun(starts, len(data))
        assert "9" not in tally.ids


def test_the_guarantee_read_back_is_never_below_the_one_used(book: tuple[bytes, list[tuple[int, str]]]) -> None:
    data, starts = book
    used: dict[int, float] = {}
    with open_ledger(None) as ledger:
        for (event, name), (start, _) in zip(SPENDS, starts, strict=True):
            ledger.spend(event, name, secure=name == "6")
            used[start] = ledger.guarantee(1e-5).epsilon
    for start, epsilon in used.items():
        torn = ledger_file.read(data[: start + 4], "here").statement()
        assert torn.guarantee(1e-5).epsilon >= epsilon
        assert (torn.torn, torn.unfinished) == (1, True)


# Each round forks a process that spends, with a real kill -9 at a random moment or at a random byte of a write; every
# receipt it printed before must be counted afterwards.
KILLS = """
import json, os, random, signal, sys, time
from pathlib import Path
from discreet.core import files
from discreet.accounting import ledger_file
from discreet.accounting.events import GaussianDpEvent, LaplaceDpEvent
from discreet.accounting.ledger import Ledger
path, dice = Path(sys.argv[1]), random.Random(int(sys.argv[2]))

def spend_for_ever(pipe, run, die_at):
    if die_at is not None:
        write, left = os.write, [die_at]
        def dying(descriptor, data):
            if left[0] < len(data):
                write(descriptor, data[:left[0]])
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= len(data)
            return write(descriptor, data)
        files.os = ledger_file.os = type("Os", (), {**vars(os), "write": staticmethod(dying)})
    with Ledger.open(path, unit="note", adjacency="add/remove") as ledger:
        step = 0
        while True:
            event = GaussianDpEvent(1.0) if step % 7 else LaplaceDpEvent(1.0)
            ledger.spend(event, f"{run} {step}", secure=step % 2 == 0)
            os.write(pipe, f"{step}\\n".encode()) if die_at is None else write(pipe, f"{step}\\n".encode())
            step += 1

rounds, printed, torn = int(sys.argv[3]), 0, 0
for run in range(rounds):
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        spend_for_ever(write_end, run, dice.randrange(2000) if run % 2 else None)
    os.close(write_end)
    if run % 2 == 0:
        time.sleep(dice.random() * 0.04)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(read_end) as pipe:
        printed += len(pipe.readlines())
    before = Ledger.read(path).spends if path.exists() else 0
    assert before >= printed, (run, before, printed)
    if path.exists():
        with Ledger.open(path, unit="note", adjacency="add/remove") as ledger:
            assert ledger.statement.spends == before
print(json.dumps({"printed": printed, "counted": before, "torn": Ledger.read(path).torn}))
"""


def test_after_kill_9_at_any_moment_every_receipt_is_counted(tmp_path: Path) -> None:
    rounds = 60
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path / "ledger"), "7", str(rounds)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["printed"] > rounds
    assert result["torn"] > 5
    # One spend at most is counted without a receipt for each kill.
    assert result["printed"] <= result["counted"] <= result["printed"] + rounds


class LedgerMachine(RuleBasedStateMachine):
    """A ledger beside a plain model of what was spent: after every step the file says the same."""

    @initialize()
    def begin(self) -> None:
        self.unsynced = mock.patch.object(ledger_file, "_sync", lambda descriptor: None)
        self.unsynced.start()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "ledger"
        self.spent: Counter[str] = Counter()
        self.seeded: dict[str, str] = {}
        self.secure: dict[str, str] = {}
        self.ledger = open_ledger(self.path)

    @rule(event=st.sampled_from([A, B, C]), name=st.sampled_from("abcdef"), secure=st.booleans())
    def spend(self, event: Any, name: str, secure: bool) -> None:
        text = event_to_json(event)
        earlier = self.secure.get(name) or self.seeded.get(name)
        if earlier not in (None, text):
            with pytest.raises(LedgerError, match="another"):
                self.ledger.spend(event, name, secure=secure)
            return
        once = earlier is not None and name not in self.secure and not secure
        receipt = self.ledger.spend(event, name, secure=secure)
        assert receipt.repeated == once
        assert receipt.spent_again == (earlier is not None and not once)
        if not once:
            self.spent[text] += 1
        (self.secure if secure else self.seeded)[name] = text

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = open_ledger(self.path)

    @rule(event=st.sampled_from([A, B, C]), share=st.floats(0.01, 0.99))
    @precondition(lambda self: self.spent)
    def crash_in_a_spend(self, event: Any, share: float) -> None:
        """Die while a spend is written: the torn spend counts, the torn declaration of an event does not."""
        before = self.path.stat().st_size
        self.ledger.spend(event, f"torn {before}")
        self.ledger.close()
        data = self.path.read_bytes()
        cut = before + max(1, int(share * (len(data) - before)))
        self.path.write_bytes(data[:cut])
        spend = data.rindex(b"\n", 0, -1) + 1
        self.spent[event_to_json(event)] += cut > spend
        self.ledger = open_ledger(self.path)

    @invariant()
    def the_file_says_what_was_spent(self) -> None:
        assert counts(self.ledger.statement) == counts(Ledger.read(self.path)) == self.spent

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.unsynced.stop()
            shutil.rmtree(self.folder)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", range(3))
def test_the_accumulated_guarantee_never_exceeds_the_budget(seed: int) -> None:
    dice = random.Random(seed)
    events = [GaussianDpEvent(dice.uniform(8, 40)), PoissonSampledDpEvent(0.02, GaussianDpEvent(dice.uniform(1, 2)))]
    budget = Budget(dice.uniform(0.5, 2), 1e-5)
    with open_ledger(None, budget=budget) as ledger:
        refused: set[int] = set()
        step = 0
        while len(refused) < len(events):
            which = dice.choice([number for number in range(len(events)) if number not in refused])
            for _ in range(dice.randrange(1, 40)):
                step += 1
                try:
                    ledger.spend(events[which], f"step {step}")
                except BudgetError:
                    refused.add(which)
                    break
            assert ledger.guarantee().epsilon <= budget.epsilon
        for event in events:  # and not one step was refused that would have fitted
            assert ledger.remaining(event) == 0
        assert ledger.statement.spends > 20


def test_a_torn_line_was_within_the_budget(tmp_path: Path) -> None:
    path, budget = tmp_path / "ledger", Budget(1.0, 1e-5)
    with open_ledger(path, budget=budget) as ledger:
        for number in range(ledger.remaining(A)):
            ledger.spend(A, str(number))
        for number in range(ledger.remaining(GaussianDpEvent(30.0))):
            ledger.spend(GaussianDpEvent(30.0), f"small {number}")
    data = path.read_bytes()
    start = data.rindex(b"\n", 0, -1) + 1
    for cut in (start + 1, start + 5, len(data) - 1):
        path.write_bytes(data[:cut])
        with open_ledger(path, budget=budget) as ledger:
            assert ledger.guarantee().epsilon <= budget.epsilon
            assert ledger.remaining(GaussianDpEvent(30.0)) == 0


def test_the_lines_are_the_only_thing_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte goes through one append, each followed by a sync: the two rules of the proof."""
    log: list[str] = []
    write, sync = ledger_file.write_all, ledger_file._sync
    with open_ledger(tmp_path / "ledger") as ledger:
        monkeypatch.setattr(ledger_file, "write_all", lambda fd, data: (log.append("write"), write(fd, data))[1])
        monkeypatch.setattr(ledger_file, "_sync", lambda fd: (log.append("sync"), sync(fd))[1])
        for event, name in SPENDS:
            ledger.spend(event, name)
            log.append("returned")
    kinds = "".join(word[0] for word in log)
    assert kinds.replace("ws", ".").strip(".r") == ""
    assert (
        kinds.count("r") == len(SPENDS) and kinds.count("w") == len((tmp_path / "ledger").read_text().splitlines()) - 1
    )
