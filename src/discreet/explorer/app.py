"""The page as an ASGI application: static files, the choices, and results as a stream of lines.

Only the page itself can use it. The Host header must be its own, so that no other site can reach it by DNS rebinding,
and every request for data must carry the key of the printed address. Typed text is not logged or stored on disk.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping
from importlib import resources
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from discreet.core.errors import DiscreetError, SettingError
from discreet.core.settings import parse
from discreet.explorer.reading import Question
from discreet.explorer.worker import CANCELLED, RUNNING, Job, Worker

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Read = Callable[[Question, Callable[[str], None]], Mapping[str, Any]]

KEY = "x-discreet-key"
MOST_BYTES = 16_384
_TICK = 0.1  # seconds between checks of a job
_TICKS_PER_LINE = 5  # ticks between lines about a running job
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_SAFE = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
_FILES = {
    "/": ("discreet.explorer", "page/explorer.html", "text/html"),
    "/explorer.css": ("discreet.explorer", "page/explorer.css", "text/css"),
    **{
        f"/{name}.js": ("discreet.explorer", f"page/{name}.js", "text/javascript")
        for name in ("explorer", "curve", "dials", "lesson", "stream", "trained_model", "words")
    },
    # colors, cards and marks are those of the report
    "/report.css": ("discreet.report", "templates/report.css", "text/css"),
}


def application(offer: Mapping[str, Any], read: Read, worker: Worker, *, key: str, hosts: Collection[str]) -> Guarded:
    """Return the application with its choices, the function that runs an attack, its key and its host names."""
    choices = orjson.dumps(dict(offer))

    async def send_choices(request: Request) -> Response:
        _admit(request, key)
        return Response(choices, media_type="application/json")

    async def reading(request: Request) -> Response:
        _admit(request, key)
        question = _question(await _body(request))
        job = worker.submit(lambda note: read(question, note))
        return StreamingResponse(_lines(job), media_type="application/x-ndjson")

    async def reject(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        messages = {
            404: "Expected the path /. The page has no other path.",
            405: "Expected another HTTP method. Open the page at /.",
        }
        detail = error.detail if isinstance(error, HTTPException) else ""
        return _refusal(messages.get(status, detail or "Expected another request."), status)

    async def reject_settings(request: Request, error: Exception) -> Response:
        return _refusal(str(error), 422)

    routes = [Route(path, _static(*file), methods=["GET"]) for path, file in _FILES.items()]
    inner = Starlette(
        routes=[
            *routes,
            Route("/v1/offer", send_choices, methods=["GET"]),
            Route("/v1/readings", reading, methods=["POST"]),
        ],
        exception_handlers={HTTPException: reject, DiscreetError: reject_settings},
    )
    return Guarded(inner, frozenset(hosts))


class Guarded:
    """Rejects requests with another Host or from another site, and adds security headers to responses."""

    def __init__(self, inner: Starlette, hosts: frozenset[str]) -> None:
        """Guard an application with these host names, including the port."""
        self.inner, self.hosts = inner, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or reject it."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return

        async def safely(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_SAFE]
            await send(message)

        reason = self._reason_to_reject(scope)
        if reason is None:
            await self.inner(scope, receive, safely)
            return
        await _refusal(reason, 403)(scope, receive, safely)

    def _reason_to_reject(self, scope: Scope) -> str | None:
        """Return why a request is not from the page itself, or None."""
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1").lower())
        names = headers.get(b"host", [])
        own = " or ".join(sorted(self.hosts))
        if len(names) != 1 or names[0] not in self.hosts:
            return f"Expected the host {own}. Open the printed address."
        origins = headers.get(b"origin", [])
        if any(origin != f"http://{names[0]}" for origin in origins):
            return "Expected a request from the page itself, got one from another site."
        if any(site not in {"same-origin", "none"} for site in headers.get(b"sec-fetch-site", [])):
            # a link from another site may open the page, which holds no data, but may not request data
            if scope["path"] == "/" and headers.get(b"sec-fetch-mode") == ["navigate"]:
                return None
            return "Expected a request from the page itself, got one from another site."
        return None


def _refusal(error: str, status: int) -> Response:
    return Response(orjson.dumps({"state": "refused", "error": error}), status, media_type="application/json")


def _admit(request: Request, key: str) -> None:
    sent = request.headers.get(KEY, "")
    if not hmac.compare_digest(sent.encode(), key.encode()):
        raise HTTPException(403, "Expected the key of this session. Open the full printed address.")


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Expected content-type application/json. Use the page.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise HTTPException(413, f"Expected at most {MOST_BYTES} bytes. Shorten the sentence.")
    except ClientDisconnect:
        raise HTTPException(400, "Expected a complete request, but the connection was closed.") from None
    return bytes(body)


def _question(body: bytes) -> Question:
    try:
        values = orjson.loads(body)
        json.loads(body, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError):
        raise HTTPException(400, "Expected JSON without repeated keys. Use the page.") from None
    if not isinstance(values, dict):
        raise SettingError("Expected an object with a sentence. Use the page.")
    return parse(Question, values, "question")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("repeated key")
    return values


async def _lines(job: Job) -> AsyncIterator[bytes]:
    """Yield a line of JSON for each change of a job; cancel the job if the client disconnects."""
    sent: tuple[str, str] | None = None
    tick = 0
    try:
        while not job.ended:
            now = (job.state, job.stage)
            if now != sent or tick % _TICKS_PER_LINE == 0:
                sent = now
                yield _line({"state": job.state, "stage": job.stage, "seconds": round(job.seconds, 1)})
            tick += 1
            await asyncio.sleep(_TICK if job.state == RUNNING else _TICK / 2)
        last: dict[str, Any] = {"state": job.state}
        if job.error:
            last["error"] = job.error
        if job.result is not None and job.state == "done":
            last |= {"reading": dict(job.result)}
        yield _line(last)
    finally:
        job.end(CANCELLED)


def _line(values: Mapping[str, Any]) -> bytes:
    return orjson.dumps(values) + b"\n"


def _static(package: str, name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    text = (resources.files(package) / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(text, media_type=kind)

    return answer
