"""Client of the server: send releases or encrypted vectors and return the answers; retry if the server is busy.

Sending the same release again costs no privacy: it has the same noise.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from discreet.core.ckks import LARGEST
from discreet.core.errors import DataError, OutputError, invalid, setting
from discreet.core.task import Task
from discreet.local import ABOUT, ANSWERS, ENCRYPTED
from discreet.local.encrypted import SCHEME, EncryptedClient, Packing, packed, unpacked

_LARGEST_ANSWER = 64 << 20
_WHOLE = 3  # timeouts for a complete response
_JSON, _BYTES = "application/json", "application/octet-stream"
_ROUNDING = 1e-3  # rounding margin of a probability computed by another library


@dataclass(frozen=True)
class About:
    """The input and output of a server; one for encrypted vectors states the largest norm of its weights."""

    width: int
    task: Task
    labels: tuple[str, ...]
    max_rows: int
    weight_norm: float | None = None

    @property
    def outputs(self) -> int:
        """Number of scores for each vector."""
        return len(self.labels) if self.task.has_classes else 1


@dataclass(frozen=True)
class Traffic:
    """What an encrypted query sent and received, in bytes, and how long the server took to answer, in seconds."""

    sent: int
    received: int
    seconds: float


@dataclass(frozen=True)
class RemoteServer:
    """A server at an address; it receives releases and never text.

    Guarantee: only the numbers of a release are sent; their count and the time of sending are visible. Prepare the
        release (`UserSide.prepare`) before the first contact, so that the time does not depend on the text.
    """

    url: str
    timeout: float = 10.0
    patience: float = 30.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """Reject an invalid address."""
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise invalid("server", self.url, "http://HOST:PORT or https://HOST", "Fix the address.")

    def about(self) -> About:
        """Return the input and output of the server, before any budget is spent."""
        reply = self._ask("GET", ABOUT, None)
        width, rows, task, labels = (reply.get(name) for name in ("width", "max_rows", "task", "labels"))
        if not all(type(number) is int and number >= 1 for number in (width, rows)):
            raise self._unexpected()
        if task not in tuple(Task) or not isinstance(labels, list) or not all(isinstance(x, str) for x in labels):
            raise self._unexpected()
        scheme = reply.get("encrypted")
        norm = scheme.get("weight_norm") if isinstance(scheme, dict) else None
        if scheme is not None and (not _finite(norm) or scheme != scheme | SCHEME):
            raise DataError(
                f"Expected the encryption of this version from {self.url!r}, got another one. Use equal versions."
            )
        return About(int(width or 0), Task(task), tuple(labels), int(rows or 0), None if norm is None else float(norm))

    def encrypted_answers(self, vectors: npt.NDArray[Any], about: About) -> tuple[list[dict[str, Any]], Traffic]:
        """Return the answer to each vector, sent encrypted in parts of at most `max_rows`, and what was sent.

        Guarantee: that of `EncryptedClient`; the key is made here and never leaves. The number of vectors, rounded up
            to whole ciphertexts, and the time of sending are visible.
        """
        if about.weight_norm is None:
            raise DataError(
                f"Expected a server for encrypted vectors at {self.url!r}, got one for releases. Nothing was sent. "
                f"Start the server with {setting('encrypted', True)}, or leave it out here."
            )
        rows = np.asarray(vectors, dtype=np.float64)
        longest = float(np.linalg.norm(rows, axis=1).max()) * about.weight_norm
        if not longest < LARGEST / 4:
            raise DataError(f"Expected vectors with scores below {LARGEST / 4:g}, got {longest:g}. Nothing was sent.")
        client = EncryptedClient(Packing(about.width, about.outputs))
        answers: list[dict[str, Any]] = []
        sent, received, seconds = 0, 0, 0.0
        for start in range(0, len(rows), about.max_rows):
            part = rows[start : start + about.max_rows]
            body = packed(client.encrypt(part))
            began = time.perf_counter()
            reply = self._response("POST", ENCRYPTED, body)
            seconds += time.perf_counter() - began
            sent, received = sent + len(body), received + len(reply)
            answers += [self._answer(scores, about) for scores in client.scores(unpacked(reply), len(part))]
        return answers, Traffic(sent, received, seconds)

    def _answer(self, scores: npt.NDArray[np.float64], about: About) -> dict[str, Any]:
        if not np.isfinite(scores).all() or np.abs(scores).max() > LARGEST:
            raise self._unexpected()
        if not about.task.has_classes:
            return {"score": float(scores[0])}
        exponentials = np.exp(scores - scores.max())
        values = (exponentials / exponentials.sum()).tolist()
        best = int(scores.argmax())
        return {"label": about.labels[best], "probability": values[best], "probabilities": values}

    def answers(self, vectors: npt.NDArray[Any], about: About) -> list[dict[str, Any]]:
        """Return the server's answer to each released vector, sent in parts of at most `max_rows`."""
        self.check_open(about)
        rows = np.asarray(vectors, dtype=np.float32)
        checked: list[dict[str, Any]] = []
        for start in range(0, len(rows), about.max_rows):
            part = rows[start : start + about.max_rows]
            reply = self._ask("POST", ANSWERS, body_of(part))
            answers = reply.get("answers")
            if not isinstance(answers, list) or len(answers) != len(part):
                raise self._unexpected()
            checked += [self._checked(answer, about) for answer in answers]
        return checked

    def check_open(self, about: About) -> None:
        """Reject a server that answers encrypted vectors only, before anything is spent."""
        if about.weight_norm is not None:
            raise DataError(
                f"Expected a server for releases at {self.url!r}, got one for encrypted vectors. Encrypt them "
                f"({setting('encrypted', True)}). Nothing was sent."
            )

    def _checked(self, answer: Any, about: About) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise self._unexpected()
        if not about.task.has_classes:
            if not _finite(answer.get("score")):
                raise self._unexpected()
            return {"score": float(answer["score"])}
        values, label = answer.get("probabilities"), answer.get("label")
        if label not in about.labels or not isinstance(values, list) or len(values) != len(about.labels):
            raise self._unexpected()
        if not all(_finite(value) and -_ROUNDING <= value <= 1 + _ROUNDING for value in values):
            raise self._unexpected()
        return {"label": label, "probability": float(values[about.labels.index(label)]), "probabilities": values}

    def _ask(self, method: str, path: str, body: str | None) -> dict[str, Any]:
        reply = _object_in(self._response(method, path, body))
        if reply is None:
            raise self._unexpected()
        return reply

    def _response(self, method: str, path: str, body: str | bytes | None) -> bytes:
        """Return the body of a successful response to JSON or bytes; retry while the server is busy."""
        until = time.monotonic() + self.patience
        status, retry, data = self._once(method, path, body)
        while status in (429, 503) and time.monotonic() + retry < until:
            self.sleep(retry)
            status, retry, data = self._once(method, path, body)
        if status != 200:
            reason = (_object_in(data) or {}).get("error")
            reason = reason[:300] if isinstance(reason, str) else "It gave no reason."
            raise DataError(f"Expected status 200 from {self.url!r}, got {status}. {reason}")
        return data

    def _once(self, method: str, path: str, body: str | bytes | None) -> tuple[int, float, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout)
        late = threading.Event()

        def cut_off() -> None:  # the timeout of a socket restarts with every byte
            late.set()
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(_WHOLE * self.timeout, cut_off)
        timer.daemon = True
        timer.start()
        try:
            headers = {} if body is None else {"content-type": _JSON if isinstance(body, str) else _BYTES}
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            data = response.read(_LARGEST_ANSWER)
            if late.is_set():
                raise http.client.HTTPException("Too slow")
            return response.status, _seconds(response.getheader("retry-after")), data
        except (OSError, http.client.HTTPException, ValueError) as error:
            if late.is_set():
                raise OutputError(
                    f"Expected a complete response from {self.url!r} within {_WHOLE * self.timeout:g} s. Check the "
                    f"address, or set a longer {setting('timeout')}."
                ) from None
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise OutputError(
                f"Expected a server at {self.url!r}. {reason}. Start it with discreet serve, or check the address."
            ) from None
        finally:
            timer.cancel()
            connection.close()

    def _unexpected(self) -> DataError:
        return DataError(
            f"Expected the response of a discreet server from {self.url!r}, got something else. Check the address."
        )


def _object_in(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a body, or None if it is anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _finite(value: Any) -> bool:
    """Return whether a JSON value is a finite number."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def body_of(rows: npt.NDArray[np.float32]) -> str:
    """Return released vectors as JSON with 15 characters per number, which round-trip exactly.

    So the length of a message depends only on how many numbers it holds.

    >>> body_of(np.array([[0.5, -2.0]], dtype=np.float32))
    '{"vectors":[[ 5.00000000e-01,-2.00000000e+00]]}'
    """
    if not np.isfinite(rows).all():
        raise DataError("Expected finite numbers in a release, got NaN or infinity. Nothing was sent.")
    lines = (",".join(f"{value: .8e}" for value in row) for row in rows.tolist())
    return '{"vectors":[' + ",".join(f"[{line}]" for line in lines) + "]}"


def _seconds(text: str | None) -> float:
    try:
        return min(max(float(text or 1), 0.1), 10.0)
    except ValueError:
        return 1.0
