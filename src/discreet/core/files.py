"""Write files atomically, and the digests that a finished release records about its own files.

The file that states a guarantee holds, under `digests`, the SHA-256 of every file that belongs to the release, the
number of spends and the last check of every ledger, and the SHA-256 of its own other values. So an edit of one of them
is noticed. Whoever edits all files consistently can compute the digests again: against that, sign the file that holds
them.

Guarantee: none is needed; a digest is a function of what is released.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from discreet.core.errors import ModelError, OutputError, setting

if TYPE_CHECKING:
    from torch import Tensor

UNFINISHED = ".unfinished"  # at the end of the name of the folder of an unfinished run


def in_unfinished_run(path: Path) -> bool:
    """Return whether a file is in the folder of an unfinished run, or of a client of one."""
    return any(name.endswith(UNFINISHED) for name in path.resolve().parent.parts)


def cache_folder() -> Path:
    """Return where encoded text and installed models are kept: $DISCREET_CACHE, or the user's cache folder."""
    if "DISCREET_CACHE" in os.environ:
        return Path(os.environ["DISCREET_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "discreet"


_OWNER_ONLY, _ANYONE = 0o600, 0o666  # the second is reduced by the umask, as for any new file


def write_atomic(path: Path, data: bytes | str, *, private: bool = True, replace: bool = True) -> None:
    """Write a file so that its name always refers to complete content, on disk when this returns.

    Text is encoded as UTF-8. `private=False` gives the file the default mode instead of 0600. `replace=False` raises
    FileExistsError if the file exists. Other failures raise OSError, and the old file, if any, stays.
    """
    with atomic_path(path, private=private, replace=replace) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_all(descriptor, data.encode() if isinstance(data, str) else data)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def atomic_path(path: Path, *, private: bool = True, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary file in the same folder; on a clean exit sync it and rename it to `path`, else delete it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        # Created with its mode before anything private is in it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(temporary, flags, _OWNER_ONLY if private else _ANYONE))
        yield temporary
        if private:
            temporary.chmod(_OWNER_ONLY)  # a library may have re-created it
        sync_path(temporary)
        if replace:
            temporary.replace(path)
        else:
            _rename_to_new(temporary, path)
        sync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Rename a file unless the name exists, even if another process creates it concurrently."""
    try:
        os.link(temporary, path)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name, then replace the empty file
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))
        try:
            temporary.replace(path)
        except BaseException:
            path.unlink()
            raise


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to an open file, in several writes if necessary."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_tree(folder: Path) -> None:
    """Sync a folder and everything in it to disk."""
    for path in [*folder.rglob("*"), folder]:
        sync_path(path)


def sync_path(path: Path) -> None:
    """Sync a file to disk, or the names in a folder, so that renames and deletions survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file atomically and durably."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with atomic_path(path) as temporary:
            contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, temporary, metadata=metadata)
            with temporary.open("r+b") as file:
                _sort_metadata(file)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from None


def _sort_metadata(file: IO[bytes]) -> None:
    """Sort the metadata of a safetensors file by key; the library writes it in a different order each time.

    A file begins with the length of its header, then the header: JSON, which may end in spaces.
    """
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    if "__metadata__" not in header:
        return
    metadata = dict(sorted(header.pop("__metadata__").items()))
    text = json.dumps({"__metadata__": metadata, **header}, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) <= length:
        file.seek(8)
        file.write(text.ljust(length))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, on the CPU, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"Expected a complete safetensors file at {str(path)!r}. {error}. Delete the file and create it again."
        ) from None


def cannot_write(path: Path, error: Exception) -> OutputError:
    """Return the error for a path that cannot be written."""
    full = (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space" in str(error)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    remedy = (
        f"Free some space, then resume ({setting('resume', True)})" if full else "Check the path and its permissions"
    )
    return OutputError(f"Expected to be able to write {str(path)!r}. {reason}. {remedy}.")


def finite(values: Any) -> Any:
    """Return plain values for JSON, in which numbers that are NaN or infinite are None.

    >>> finite({"epsilon": float("inf"), "utility": (0.5, float("nan"))})
    {'epsilon': None, 'utility': [0.5, None]}
    """
    if isinstance(values, Mapping):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


DIGESTS = "digests"
FILES, LEDGERS, VALUES = "files", "ledgers", "values"
RUN_DIGEST = "run_digest"  # in the result of an attack or an audit: the digest of the run


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_digests(
    values: Mapping[str, Any],
    files: Mapping[str, Path],
    ledgers: Mapping[str, tuple[int, str]] | None = None,
) -> dict[str, Any]:
    """Return the values of a JSON file with the digests of the files of a release, by the names that they have there.

    `ledgers` has, by name, the number of spends and the check of the last line of each ledger.
    """
    plain: dict[str, Any] = json.loads(json.dumps({name: value for name, value in values.items() if name != DIGESTS}))
    digests: dict[str, Any] = {
        FILES: {name: sha256(files[name]) for name in sorted(files)},
        LEDGERS: {name: {"spends": spends, "check": check} for name, (spends, check) in (ledgers or {}).items()},
    }
    return {**plain, DIGESTS: {**digests, VALUES: _digest(plain, digests)}}


def check_digests(values: Mapping[str, Any], path: Path, files: Mapping[str, Path] | None = None) -> None:
    """Raise if values or files differ from the digests in the JSON file at `path`, or if it has none.

    Names of files are relative to its folder, unless `files` says where they are. The ledgers are left to the caller,
    who reads them.
    """
    digests = values.get(DIGESTS)
    if digests is None:
        raise ModelError(
            f"Expected {DIGESTS!r} in {str(path)!r}, which are written with every guarantee, got none. The file was "
            "edited; restore it, or make the release again."
        )
    try:
        recorded, own = {FILES: dict(digests[FILES]), LEDGERS: dict(digests[LEDGERS])}, digests[VALUES]
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"Expected digests of files and values in {str(path)!r}. Restore the file.") from None
    now = _digest({name: value for name, value in values.items() if name != DIGESTS}, recorded)
    if own != now:
        raise ModelError(
            f"Expected the values of {str(path)!r} to have the SHA-256 {_short(own)} that it recorded when it was "
            f"written, got {_short(now)}. It was edited; restore it."
        )
    for name, recorded_digest in recorded[FILES].items():
        file = (files or {}).get(name, path.parent / name)
        found = sha256(file) if file.is_file() else None
        if found != recorded_digest:
            got = "no file" if found is None else _short(found)
            raise ModelError(
                f"Expected {str(file)!r} to have the SHA-256 {_short(recorded_digest)} that {path.name} records, got "
                f"{got}. It is not the file that was released; restore it."
            )


def recorded_ledger(values: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """Return the number of spends and the last check that were recorded of a ledger, or None."""
    recorded = (values.get(DIGESTS) or {}).get(LEDGERS, {}).get(name)
    return None if recorded is None else (int(recorded["spends"]), str(recorded["check"]))


def digest_of_release(values: Mapping[str, Any]) -> str | None:
    """Return the digest that identifies a release, in which all others are counted, or None if it has none."""
    digest: str | None = (values.get(DIGESTS) or {}).get(VALUES)
    return digest


def _digest(values: Mapping[str, Any], digests: Mapping[str, Any]) -> str:
    text = json.dumps([values, digests], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _short(digest: object) -> str:
    return f"{str(digest)[:12]}…"
