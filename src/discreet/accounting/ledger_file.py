"""The file under a ledger: made whole, locked for one writer, and on disk before anything is used."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from pathlib import Path
from typing import Protocol

from discreet.core.errors import LedgerError, OutputError
from discreet.core.files import write_all, write_atomic


class Store(Protocol):
    """Where lines are appended."""

    def append(self, line: bytes) -> None:
        """Return when the line is stored; raise OutputError when nothing of it is."""

    def close(self) -> None:
        """Let go of it."""


class Memory:
    """A store that keeps nothing: the tally in memory is all there is."""

    def append(self, line: bytes) -> None:
        """Accept the line."""

    def close(self) -> None:
        """Do nothing."""


class LedgerFile:
    """A file open for appending under an exclusive lock, which ends with the process that holds it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Hold a descriptor that is already locked; `LedgerFile.open` makes one."""
        self.path = path
        self._descriptor = descriptor
        self._status = os.fstat(descriptor)
        self._size = self._status.st_size
        _OPEN.add(self)

    @classmethod
    def open(cls, path: Path, first_line: bytes) -> LedgerFile:
        """Return the file, locked for this process alone; one that does not exist is made with its first line."""
        try:
            if not path.exists():
                _create(path, first_line)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise LedgerError(
                f"Expected to open a ledger at {str(path)!r}: {error.strerror}. Check the folder and its permissions."
            ) from error
        try:
            # flock and not lockf: the second open in one process is refused too, and closing another descriptor of the
            # same file, as a reader does, does not release it.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise LedgerError(
                    f"Expected to lock the ledger {str(path)!r}: {error.strerror}. Keep it on a local disk."
                ) from error
            raise LedgerError(
                f"Expected the ledger {str(path)!r} to be free. Another process, or another Ledger in this one, has it "
                "open; close that first, or read it without the lock with Ledger.read."
            ) from None
        return cls(path, descriptor)

    def read(self) -> bytes:
        """Return all bytes, after making sure that they are on disk and not only in memory.

        A process killed between writing a line and syncing it leaves a line that can be read and that a power cut could
        still undo; whoever relies on it must sync it first.
        """
        _sync(self._descriptor)
        return self.path.read_bytes()

    def append(self, line: bytes) -> None:
        """Write a line and sync it; on a failed write nothing of it remains, or the ledger is of no more use."""
        self._check_unchanged()
        try:
            write_all(self._descriptor, line)
        except OSError as error:
            # The spend has not returned, so nothing was used on the strength of these bytes and they may go.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            if os.fstat(self._descriptor).st_size != self._size:
                raise LedgerError(
                    f"Expected to write to the ledger {str(self.path)!r}: {error.strerror}. Part of a line is in it "
                    "and will be counted as spent; make room and open it again."
                ) from error
            raise OutputError(
                f"Expected to write to the ledger {str(self.path)!r}: {error.strerror}. Nothing was spent; make room "
                "and try again."
            ) from error
        try:
            _sync(self._descriptor)
        except OSError as error:
            # After a failed sync the system may have dropped the bytes or kept them: only reading can tell.
            raise LedgerError(
                f"Expected to sync the ledger {str(self.path)!r}: {error.strerror}. Do not use the noise of this "
                "spend; check the disk and open the ledger again."
            ) from error
        self._size += len(line)

    def _check_unchanged(self) -> None:
        try:
            now = self.path.stat()
        except OSError:
            now = None
        known = (self._status.st_dev, self._status.st_ino, self._size)
        if now is None or (now.st_dev, now.st_ino, now.st_size) != known:
            raise LedgerError(
                f"Expected the ledger {str(self.path)!r} as this process left it; it was moved, deleted or written to "
                "while open. Put it back and open it again."
            )

    def close(self) -> None:
        """Close the descriptor, which releases the lock unless a forked process still holds a copy."""
        _OPEN.discard(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _create(path: Path, first_line: bytes) -> None:
    # A crash never leaves a ledger without its first line. Of two processes that create one, the first wins.
    with contextlib.suppress(FileExistsError):
        write_atomic(path, first_line, replace=False)


def _sync(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:  # macOS, where fsync does not reach the disk
        fcntl.fcntl(descriptor, full)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


_OPEN: weakref.WeakSet[LedgerFile] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock. Closing its copies lets the lock end with the process that opened the ledger.
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_forget_in_child)
