"""One atomic write: a crash at any moment leaves the old file or the new one, and nothing else."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path

import pytest

from discreet.core import files
from discreet.core.files import atomic_path, sync_path, sync_tree, write_atomic

SOURCE = Path(files.__file__).parents[1]


class Crash(BaseException):
    """The process is killed: nothing in the package may catch it."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each write, sync, rename and link is added as it happens, with what it is about."""
    happened: list[str] = []
    write, fsync, link, replace = os.write, os.fsync, os.link, Path.replace

    def about(descriptor: int) -> str:
        return "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"

    monkeypatch.setattr(os, "write", lambda fd, data: (happened.append("write"), write(fd, data))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (happened.append(f"sync {about(fd)}"), fsync(fd))[1])
    monkeypatch.setattr(os, "link", lambda a, b: (happened.append("name"), link(a, b))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (happened.append("name"), replace(self, to))[1])
    return happened


@pytest.mark.parametrize("replace", [True, False])
def test_file_and_folder_are_synced_in_order(tmp_path: Path, calls: list[str], replace: bool) -> None:
    write_atomic(tmp_path / "a", b"new", replace=replace)
    assert calls == ["write", "sync file", "name", "sync folder"]


@pytest.mark.parametrize("data", ["caf\u00e9\n\r\n", "caf\u00e9\n\r\n".encode(), b"", b"x" * 3_000_000])
def test_the_content_is_that_given(tmp_path: Path, data: bytes | str) -> None:
    (tmp_path / "a").write_bytes(b"something longer that was there before")
    write_atomic(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_a_private_file_is_readable_by_its_owner_only(tmp_path: Path, umask: int) -> None:
    (tmp_path / "private").write_bytes(b"old")
    (tmp_path / "private").chmod(0o644)
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "private", b"new")
        write_atomic(tmp_path / "new", b"new", replace=False)
        write_atomic(tmp_path / "public", b"new", private=False)
        with atomic_path(tmp_path / "written by a library") as temporary:
            assert mode(temporary) == 0o600
            temporary.unlink()
            temporary.write_bytes(b"created again, with the default mode")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("private", "new", "written by a library")] == [0o600] * 3
    assert mode(tmp_path / "public") == 0o666 & ~umask


@pytest.mark.parametrize("old", [b"old", None])
@pytest.mark.parametrize(
    "where", ["discreet.core.files.os.write", "discreet.core.files.os.fsync", "discreet.core.files.Path.replace"]
)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Crash()], ids=["full", "crash"])
def test_a_failure_before_the_rename_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None, where: str, error: BaseException
) -> None:
    if old is not None:
        (tmp_path / "a").write_bytes(old)

    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(where, fail)
    with pytest.raises(type(error)):
        write_atomic(tmp_path / "a", b"new")
    monkeypatch.undo()
    assert names(tmp_path) == ([] if old is None else ["a"])
    assert old is None or (tmp_path / "a").read_bytes() == old


def test_a_process_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    """The process does not clean up; the name still refers to the complete old file."""
    (tmp_path / "a").write_bytes(b"old")
    child = os.fork()
    if child == 0:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_bytes(b"ne")
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "a").read_bytes() == b"old"
    (left,) = set(tmp_path.iterdir()) - {tmp_path / "a"}
    assert left.name.startswith(".a.") and left.name.endswith(".partial") and mode(left) == 0o600
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_an_existing_file_is_kept_where_it_must_not_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "a").write_bytes(b"old")
    for _ in range(2):
        with pytest.raises(FileExistsError):
            write_atomic(tmp_path / "a", b"new", replace=False)
        assert (tmp_path / "a").read_bytes() == b"old" and names(tmp_path) == ["a"]
        monkeypatch.setattr(os, "link", no_links)  # as on a file system without hard links
    write_atomic(tmp_path / "b", b"new", replace=False)
    assert (tmp_path / "b").read_bytes() == b"new" and mode(tmp_path / "b") == 0o600

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "c", b"new", replace=False)
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("links", [True, False])
def test_of_several_writers_of_a_new_file_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(*given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    results: list[bytes | None] = []
    start = threading.Barrier(8)

    def work(data: bytes) -> None:
        start.wait()
        try:
            write_atomic(tmp_path / "a", data, replace=False)
            results.append(data)
        except FileExistsError:
            results.append(None)

    threads = [threading.Thread(target=work, args=(b"%d" % number * 1000,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [data for data in results if data is not None]
    assert (tmp_path / "a").read_bytes() == winner and names(tmp_path) == ["a"]


def test_a_whole_tree_is_synced(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"1")
    sync_tree(tmp_path / "a")
    assert sorted(calls) == ["sync file", "sync folder", "sync folder"]
    calls.clear()
    sync_path(tmp_path)
    assert calls == ["sync folder"]


def test_there_is_one_atomic_write() -> None:
    """Nobody else renames a file into place, or syncs one that it did not open for appending."""
    rename = re.compile(r"os\.(replace|rename|link)\(|\b(partial|temporary|draft)\.(replace|rename)\(|O_EXCL")
    sync = re.compile(r"os\.(fsync|fdatasync)\(")
    appending = {"accounting/ledger_file.py", "study/store.py"}
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")
        if name != "core/files.py":
            assert not rename.search(text), name
            assert name in appending or not sync.search(text), name
