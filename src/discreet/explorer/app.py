"""The page as an ASGI application: static files, what is on offer, and readings as a stream of lines.

It answers only its own page: the name it is called by must be its own, so that no other site can reach it by renaming
itself (DNS rebinding), and every request for data must carry the key that is in the printed address. Nothing that is
typed is logged or kept on disk.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping
from importlib import resources
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from discreet.explorer.worker import Worker


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Read = Callable[[Question, Callable[[str], None]], Mapping[str, Any]]

KEY = "x-discreet-key"
MOST_BYTES = 16_384
_TICK = 0.1  # seconds between looks at a job
_SAY = 5  # ticks between lines that say it is still at work
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
        for name in ("explorer", "curve", "dials", "words")
    },
    "/report.css": ("discreet.report", "templates/report.css", "text/css"),  # colours, cards and marks are the report's
}


def application(offer: Mapping[str, Any], read: Read, worker: Worker, *, key: str, hosts: Collection[str]) -> Guarded:
    """Return the page's application: what it offers, how it reads, who does the work, its key and its own names."""
    told = orjson.dumps(dict(offer))

    async def tell(request: Request) -> Response:
        _admit(request, key)
        return Response(told, media_type="application/json")

    async def reading(request: Request) -> Response:
        _admit(request, key)
        question = _question(await _body(request))
        job = worker.submit(lambda note: read(question, note))
        return StreamingResponse(_lines(job), media_type="application/x-ndjson")

    async def refuse(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        said = {
            404: "Expected / for the page. There is nothing else here.",
            405: "Expected another method. The page is at /.",
        }
        detail = error.detail if isinstance(error, HTTPException) else ""
        body = {"state": "refused", "error": said.get(status, detail or "Expected another request.")}
        return Response(orjson.dumps(body), status, media_type="application/json")

    async def refuse_settings(request: Request, error: Exception) -> Response:
        return Response(orjson.dumps({"state": "refused", "error": str(error)}), 422, media_type="application/json")

    routes = [Route(path, _static(*file), methods=["GET"]) for path, file in _FILES.items()]
    inner = Starlette(
        routes=[
            *routes,
            Route("/v1/offer", tell, methods=["GET"]),
            Route("/v1/readings", reading, methods=["POST"]),
        ],
        exception_handlers={HTTPException: refuse, DiscreetError: refuse_settings},
    )
    return Guarded(inner, frozenset(hosts))


class Guarded:
    """Refuses requests under another name or from another site, and adds the headers that keep the page to itself."""

    def __init__(self, inner: Starlette, hosts: frozenset[str]) -> None:
        """Guard an application that goes by these names, with their port."""
        self.inner, self.hosts = inner, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return

        async def safely(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_SAFE]
            await send(message)

        why = self._stranger(scope)
        if why is None:
            await self.inner(scope, receive, safely)
            return
        body = orjson.dumps({"state": "refused", "error": why})
        await Response(body, 403, media_type="application/json")(scope, receive, safely)

    def _stranger(self, scope: Scope) -> str | None:
        """Return why a request is not from the page itself, or None."""
        found: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.lower(), []).append(value.decode("latin-1").lower())
        names = found.get(b"host", [])
        own = " or ".join(sorted(self.hosts))
        if len(names) != 1 or names[0] not in self.hosts:
            return f"Expected to be called {own}. Open the address that the command printed."
        origins = found.get(b"origin", [])
        if any(origin != f"http://{names[0]}" for origin in origins):
            return "Expected a request from the page itself, found one from another site. It is refused."
        if any(site not in {"same-origin", "none"} for site in found.get(b"sec-fetch-site", [])):
            # a link from elsewhere may open the page, which holds nothing; it may not ask for data
            if scope["path"] == "/" and found.get(b"sec-fetch-mode") == ["navigate"]:
                return None
            return "Expected a request from the page itself, found one from another site. It is refused."
        return None


def _admit(request: Request, key: str) -> None:
    given = request.headers.get(KEY, "")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise HTTPException(403, "Expected the key of this start. Open the address that the command printed, whole.")


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
        raise HTTPException(400, "Expected a whole request. The connection was closed.") from None
    return bytes(body)


def _question(body: bytes) -> Question:
    try:
        found = orjson.loads(body)
        json.loads(body, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise HTTPException(400, "Expected JSON with each key once, found something else. Use the page.") from None
    if not isinstance(found, dict):
        raise SettingError("Expected an object with a sentence. Use the page.")
    return parse(Question, found, "question")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


async def _lines(job: Job) -> AsyncIterator[bytes]:
    """Say what becomes of a job, a line of JSON for each change; if the page goes away, the job is cancelled."""
    said: tuple[str, str] | None = None
    tick = 0
    try:
        while not job.ended:
            now = (job.state, job.stage)
            if now != said or tick % _SAY == 0:
                said = now
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
