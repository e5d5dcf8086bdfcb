"""The file under a ledger: one writer, a full disk, and what others do to it meanwhile."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from discreet.accounting import ledger_file
from discreet.accounting.events import GaussianDpEvent, LaplaceDpEvent
from discreet.accounting.ledger import Ledger
from discreet.core.errors import LedgerError, OutputError

SOURCE = Path(__file__).parents[2] / "src"
EVENT = GaussianDpEvent(1.0)


def open_ledger(path: Path) -> Ledger:
    return Ledger.open(path, unit="note", adjacency="add/remove")


def start(code: str, path: Path) -> subprocess.Popen[str]:
    setup = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from discreet.accounting.ledger import Ledger\n"
        "from discreet.accounting.events import GaussianDpEvent\n"
        "from discreet.core.errors import LedgerError\n"
        f"path, event = Path({str(path)!r}), GaussianDpEvent(1.0)\n"
        "ledger = Ledger.open(path, unit='note', adjacency='add/remove')\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", setup + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def say(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait()


def test_a_second_open_in_one_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        for other in (path, tmp_path / "." / "ledger"):
            with pytest.raises(LedgerError, match="to be unlocked.*Ledger.read"):
                open_ledger(other)
        assert Ledger.read(path).spends == 0  # reading needs no lock and does not release it
        with pytest.raises(LedgerError, match="to be unlocked"):
            open_ledger(path)
        ledger.spend(EVENT, "step 1")
    open_ledger(path).close()


def test_links_lead_to_the_same_lock(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path):
        (tmp_path / "soft").symlink_to(path)
        (tmp_path / "hard").hardlink_to(path)
        for other in ("soft", "hard"):
            with pytest.raises(LedgerError, match="to be unlocked"):
                open_ledger(tmp_path / other)


def test_a_second_process_is_refused_and_a_kill_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    process = start("ledger.spend(event, 'a'); print('held', flush=True); sys.stdin.read()", path)
    try:
        assert say(process) == "held"
        with pytest.raises(LedgerError, match="to be unlocked"):
            open_ledger(path)
        assert Ledger.read(path).spends == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        with open_ledger(path) as ledger:
            assert ledger.statement.spends == 1
    finally:
        process.kill()
        end(process)


FORK = """
child = os.fork()
if child == 0:
    try:
        ledger.spend(event, 'child')
    except LedgerError as error:
        print('child refused', 'its fork' in str(error), flush=True)
    ledger.close()
    try:
        Ledger.open(path, unit='note', adjacency='add/remove')
    except LedgerError as error:
        print('child locked out', 'to be unlocked' in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
child = os.fork()
if child == 0:
    time.sleep(60)  # and never closes what it inherited
    os._exit(0)
time.sleep(0.1)
print('parent spent', ledger.spend(event, 'parent').spends, child, flush=True)
sys.stdin.read()
"""


def test_a_forked_child_neither_spends_nor_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    process = start(FORK, path)
    child = 0
    try:
        assert say(process) == "child refused True"
        assert say(process) == "child locked out True"
        *words, number = say(process).split()
        child = int(number)
        assert words == ["parent", "spent", "1"]
        with pytest.raises(LedgerError, match="to be unlocked"):
            open_ledger(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(child, 0)  # it lives on, and yet the ledger is free
        open_ledger(path).close()
    finally:
        process.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        end(process)


def test_a_full_disk_refuses_the_spend_and_leaves_the_ledger_readable(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_ledger(path) as ledger:
        ledger.spend(EVENT, "step 1")
        before = path.read_bytes()
        for room in range(40):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
            try:
                with pytest.raises(OutputError, match=r"too large.*Nothing was spent") if room < 32 else _nothing():
                    ledger.spend(EVENT, "step 2")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            if room >= 32:
                break
            assert path.read_bytes() == before
            assert ledger.statement.spends == Ledger.read(path).spends == 1
        assert ledger.statement.spends == 2
    with open_ledger(path) as ledger:
        assert ledger.statement.spends == 2
        assert ledger.statement.torn == 0


class _nothing:  # noqa: N801
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def fail_after(monkeypatch: pytest.MonkeyPatch, room: int, undo: bool) -> None:
    write = os.write
    left = [room]

    def limited(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(descriptor, data[: left[0]])
        left[0] -= done
        return done

    def no_truncate(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(ledger_file.os, "write", limited)
    if not undo:
        monkeypatch.setattr(ledger_file.os, "ftruncate", no_truncate)


def test_a_new_event_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        ledger.spend(EVENT, "step 1")
        with monkeypatch.context() as patch:
            fail_after(patch, 80, undo=True)  # room for the declaration, not for the spend
            with pytest.raises(OutputError, match="No space"):
                ledger.spend(LaplaceDpEvent(1.0), "step 2")
        assert Ledger.read(path).spent == ((EVENT, 1),)
        ledger.spend(LaplaceDpEvent(1.0), "step 2")
        assert Ledger.read(path).spent == ((EVENT, 1), (LaplaceDpEvent(1.0), 1))


def test_what_cannot_be_undone_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        ledger.spend(EVENT, "step 1")
        with monkeypatch.context() as patch:
            fail_after(patch, 7, undo=False)
            with pytest.raises(LedgerError, match="counted as spent"):
                ledger.spend(EVENT, "step 2")
        with pytest.raises(LedgerError, match="interrupted"):
            ledger.spend(EVENT, "step 3")
    with open_ledger(path) as ledger:
        assert (ledger.statement.spends, ledger.statement.torn) == (2, 1)
        ledger.spend(EVENT, "step 3")
    assert (Ledger.read(path).spends, Ledger.read(path).torn) == (3, 1)


def test_a_failed_sync_ends_the_use_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with open_ledger(path) as ledger:
        ledger.spend(EVENT, "step 1")
        with monkeypatch.context() as patch:
            patch.setattr(ledger_file, "_sync", failing)
            with pytest.raises(LedgerError, match="Do not use the noise"):
                ledger.spend(EVENT, "step 2")
        with pytest.raises(LedgerError, match="interrupted"):
            ledger.spend(EVENT, "step 2")
    with open_ledger(path) as ledger:
        assert ledger.statement.spends == 2


def test_an_interrupt_in_the_middle_of_a_spend_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    with open_ledger(path) as ledger:
        ledger.spend(EVENT, "step 1")
        with monkeypatch.context() as patch:
            patch.setattr(ledger_file, "_sync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.spend(EVENT, "step 2")
        with pytest.raises(LedgerError, match="Open the ledger again"):
            ledger.spend(EVENT, "step 3")
    with open_ledger(path) as ledger:
        assert ledger.statement.spends == 2


def test_a_line_left_unsynced_is_synced_before_it_is_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        ledger.spend(EVENT, "step 1")
    synced = []
    monkeypatch.setattr(ledger_file, "_sync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    with open_ledger(path) as ledger:
        assert synced == [path.stat().st_size]
        assert ledger.spend(EVENT, "step 1").repeated


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "written", "cut"])
def test_a_file_changed_while_open_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        ledger.spend(EVENT, "step 1")
        data = path.read_bytes()
        match how:
            case "deleted":
                path.unlink()
            case "moved":
                path.rename(tmp_path / "elsewhere")
            case "replaced":
                path.rename(tmp_path / "elsewhere")
                path.write_bytes(data)
            case "written":
                path.write_bytes(data + b"\n")
            case "cut":
                path.write_bytes(data[:-5])
        with pytest.raises(LedgerError, match="moved, deleted or modified"):
            ledger.spend(EVENT, "step 2")


def test_a_ledger_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    with monkeypatch.context() as patch:
        fail_after(patch, 20, undo=False)
        with pytest.raises(LedgerError, match="No space"):
            open_ledger(path)
    assert list(tmp_path.iterdir()) == []
    open_ledger(path).close()
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_ledger_is_readable_by_its_owner_only_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        open_ledger(tmp_path / "ledger").close()
        assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o600
        (tmp_path / "ledger").chmod(0o640)  # shared with a group on purpose
        with open_ledger(tmp_path / "ledger") as ledger:
            ledger.spend(EVENT, "step 1")
        assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(ledger_file.os, "link", no_links)
    with open_ledger(tmp_path / "ledger") as ledger:
        ledger.spend(EVENT, "step 1")
    assert [each.name for each in tmp_path.iterdir()] == ["ledger"]
    assert Ledger.read(tmp_path / "ledger").spends == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"notes\n", b'{"a":1}\n', b"[]\n", b"null\n", b"\x00" * 100])
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="Expected a ledger"):
        open_ledger(path)
    with pytest.raises(LedgerError, match="Expected a ledger"):
        Ledger.read(path)
    assert path.read_bytes() == content


def test_a_ledger_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    open_ledger(path).close()
    path.write_bytes(path.read_bytes().replace(b'"discreet-ledger":1', b'"discreet-ledger":2'))
    with pytest.raises(LedgerError, match="format 2"):
        open_ledger(path)


def test_a_missing_folder_or_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="No such file.*folder"):
        open_ledger(tmp_path / "missing" / "ledger")
    with pytest.raises(LedgerError, match="No such file.*path"):
        Ledger.read(tmp_path / "ledger")
    with pytest.raises(LedgerError, match="directory"):
        open_ledger(tmp_path)
