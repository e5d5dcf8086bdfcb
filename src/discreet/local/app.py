"""The server as an ASGI application: answers, a description of the model, health, and the OpenAPI document.

Request bodies are parsed here and never stored, printed or logged. Errors are one sentence.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from discreet.core.ckks import LARGEST_BYTES
from discreet.core.errors import DataError
from discreet.local import ABOUT, ANSWERS, ENCRYPTED, HEALTH, OPENAPI
from discreet.local.encrypted import SCHEME, EncryptedHead, packed, unpacked
from discreet.local.head import Head
from discreet.local.limits import Buckets, Limits, Receive, Scope, Send

_LOG = logging.getLogger("discreet.local")
_JSON, _BYTES = b"application/json", b"application/octet-stream"
_TYPES = (_JSON, b"application/json; charset=utf-8", b"application/json;charset=utf-8")
# A valid body without the characters of numbers and lists is exactly `_AROUND`, so it can hold nothing else.
_OF_NUMBERS, _AROUND = b" \t\r\n0123456789+-.eE,[]", b'{"vctors":}'
_REJECTIONS = {
    "400": "The body is not JSON.",
    "408": "The request took too long to arrive.",
    "413": "The body or the number of vectors is too large.",
    "415": "The content type is not application/json; text is rejected.",
    "422": "The body holds no vectors of this width and finite numbers; text is rejected.",
    "429": "Too many requests from this address; see Retry-After.",
    "503": "Too many requests at once; see Retry-After.",
}
_ENCRYPTED_REJECTIONS = {
    "413": "The body or the number of ciphertexts is too large.",
    "415": "The content type is not application/octet-stream.",
    "422": "The body holds no ciphertexts of these parameters.",
}
_NO_TEXT = "The server accepts no text: protect it on the user's side (discreet query) and send the release."


class Rejection(Exception):  # noqa: N818  (it is a response, not a failure)
    """A rejected request: its status, message, and seconds until a retry."""

    def __init__(self, status: int, text: str, retry: float | None = None) -> None:
        """Store the parts of the response."""
        super().__init__(text)
        self.status, self.text, self.retry = status, text, retry


class Answers:
    """POST /v1/answers: released vectors in, labels or scores out.

    Guarantee: post-processing of releases; requests are not stored or logged.
    """

    media: bytes = _JSON
    media_types: tuple[bytes, ...] = _TYPES
    wrong_media = f"Expected content-type application/json. {_NO_TEXT}"

    def __init__(self, head: Head, limits: Limits) -> None:
        """Serve a head within limits."""
        self.head, self.limits = head, limits
        self.most_bytes = limits.body_bytes(head.width)
        self.buckets = Buckets(limits.rate)
        self.active = self.answered = self.rejected = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or reject it."""
        self.active += 1
        try:
            try:
                self._admit(scope)
                body = await self._body(scope, receive)
                if body is None:
                    return  # the client has gone
                reply = self.reply(body)
            except (Rejection, DataError) as error:
                self.rejected += 1
                rejection = error if isinstance(error, Rejection) else Rejection(422, str(error))
                await _send_json(send, rejection.status, {"error": rejection.text}, rejection.retry)
            except Exception as error:
                _LOG.error(
                    "A request failed with %s.", type(error).__name__
                )  # never its message, which may hold request data
                await _send_json(send, 500, {"error": "Internal server error. The request may be valid."})
            else:
                self.answered += 1
                await _send(send, 200, reply, [], self.media)
        finally:
            self.active -= 1

    def reply(self, body: bytes) -> bytes:
        """Return the body of the response to the body of a request."""
        return orjson.dumps({"answers": self.head.answers(self._vectors(body))})

    def _admit(self, scope: Scope) -> None:
        client = scope.get("client")
        wait = self.buckets.take(client[0] if client else "")
        if wait:
            raise Rejection(429, f"Expected at most {self.limits.rate:g} requests per second. Retry later.", wait)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        kind = length = None
        for name, value in scope["headers"]:
            if name == b"content-type":
                kind = value
            elif name == b"content-length":
                length = value
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise Rejection(415, "Expected an uncompressed body. Send it without content-encoding.")
        if kind not in self.media_types and (kind is None or kind.split(b";")[0].strip().lower() != self.media):
            raise Rejection(415, self.wrong_media)
        if length is not None and length.isdigit() and int(length[:20]) > self.most_bytes:
            raise self._too_large()
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body = bytearray(message.get("body", b""))
        while message.get("more_body"):
            if len(body) > self.most_bytes:
                break
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
        if len(body) > self.most_bytes:
            raise self._too_large()
        return bytes(body)

    def _too_large(self) -> Rejection:
        rows = self.limits.rows
        return Rejection(
            413, f"Expected at most {self.most_bytes} bytes and {rows} vectors. Send fewer vectors per request."
        )

    def _vectors(self, body: bytes) -> Any:
        try:
            request = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise Rejection(400, 'Expected JSON such as {"vectors": [[0.1, …]]}. Fix the body.') from None
        if isinstance(request, str):
            raise Rejection(422, f"Expected an object with vectors, got text. {_NO_TEXT}")
        if not isinstance(request, dict) or set(request) != {"vectors"}:
            raise Rejection(422, f'Expected an object with the only key "vectors". {_NO_TEXT}')
        rows = request["vectors"]
        if isinstance(rows, list) and len(rows) > self.limits.rows:
            raise self._too_large()
        vectors = self.head.checked(rows)
        # true and false would count as 1 and 0, and of repeated keys the last would win
        if body.translate(None, _OF_NUMBERS) != _AROUND:
            raise Rejection(422, 'Expected the key "vectors" once, with only numbers. Fix the body.')
        return vectors


class EncryptedAnswers(Answers):
    """POST /v1/encrypted: ciphertexts of vectors in, ciphertexts of products out.

    Guarantee: that of `EncryptedHead`; requests are not stored or logged.
    """

    media = _BYTES
    media_types = (_BYTES,)
    wrong_media = (
        "Expected content-type application/octet-stream. The server accepts encrypted vectors only: encrypt them on "
        "the user's side (discreet query)."
    )

    def __init__(self, encrypted: EncryptedHead, limits: Limits) -> None:
        """Serve a head within limits."""
        super().__init__(encrypted.head, limits)
        self.encrypted, self.most = encrypted, encrypted.most_ciphertexts(limits.rows)
        self.most_bytes = 1024 + self.most * LARGEST_BYTES

    def reply(self, body: bytes) -> bytes:
        """Return the encrypted products for the ciphertexts of a body."""
        return packed(self.encrypted.answer(unpacked(body, self.most)))

    def _too_large(self) -> Rejection:
        return Rejection(413, f"Expected at most {self.most_bytes} bytes and {self.most} ciphertexts. Send fewer.")


def application(head: Head, limits: Limits | None = None, encrypted: EncryptedHead | None = None) -> Starlette:
    """Return the server's application around a head; with `encrypted` it answers encrypted vectors only."""
    import discreet

    limits = limits or Limits()
    answers = Answers(head, limits) if encrypted is None else EncryptedAnswers(encrypted, limits)
    path, start = ANSWERS if encrypted is None else ENCRYPTED, time.monotonic()
    document = orjson.dumps(description(head, limits, discreet.__version__, is_encrypted=encrypted is not None))
    facts: dict[str, Any] = {
        "width": head.width,
        "task": head.task,
        "labels": list(head.label_names),
        "max_rows": limits.rows,
        "trained": head.about,
        "version": discreet.__version__,
    }
    if encrypted is not None:
        facts["max_rows"] = encrypted.most_ciphertexts(limits.rows) * encrypted.packing.rows
        facts["encrypted"] = {
            **SCHEME,
            "outputs": encrypted.packing.outputs,
            "weight_norm": encrypted.weight_norm,
        }
    about = orjson.dumps(facts)

    async def send_about(request: Request) -> Response:
        return Response(about, media_type="application/json")

    async def describe(request: Request) -> Response:
        return Response(document, media_type="application/json")

    async def health(request: Request) -> Response:
        counts = {
            "status": "ok",
            "answered": answers.answered,
            "refused": answers.rejected,
            "active": answers.active,
            "seconds": round(time.monotonic() - start, 1),
        }
        return Response(orjson.dumps(counts), media_type="application/json")

    async def reject(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        messages = {404: f"Expected one of {path}, {ABOUT}, {HEALTH}, {OPENAPI}.", 405: "Expected another method."}
        body = orjson.dumps({"error": messages.get(status, "Expected another request.")})
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        return Response(body, status, headers, media_type="application/json")

    return Starlette(
        routes=[
            Route(path, answers, methods=["POST"]),
            Route(ABOUT, send_about, methods=["GET"]),
            Route(HEALTH, health, methods=["GET"]),
            Route(OPENAPI, describe, methods=["GET"]),
        ],
        exception_handlers={HTTPException: reject},
    )


async def _send_json(send: Send, status: int, values: dict[str, Any], retry: float | None = None) -> None:
    headers = [] if retry is None else [(b"retry-after", str(max(1, math.ceil(retry))).encode())]
    if status in (413, 415):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await _send(send, status, orjson.dumps(values), headers)


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], media: bytes = _JSON) -> None:
    headers = [(b"content-type", media), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def description(head: Head, limits: Limits, version: str, *, is_encrypted: bool = False) -> dict[str, Any]:
    """Return the description of the service as an OpenAPI 3.1 document."""
    if is_encrypted:
        return _encrypted_description(version)
    if head.task.has_classes:
        count = len(head.label_names)
        probabilities = {
            **_list({"type": "number"}, count, count),
            "description": "In the order " + ", ".join(head.label_names) + ".",
        }
        answer = _object(label={"type": "string", "enum": list(head.label_names)}, probabilities=probabilities)
    else:
        answer = _object(score={"type": "number"})
    vectors = {
        **_list(_list({"type": "number"}, head.width, head.width), 1, limits.rows),
        "description": "One released vector for each text.",
    }
    question = {"required": True, "content": {"application/json": {"schema": _object(vectors=vectors)}}}
    return _document(
        version,
        "answers to protected representations",
        "Accepts vectors randomized on the user's side. It accepts no text and stores nothing.",
        ANSWERS,
        {"summary": "Answer released vectors", "operationId": "answers", "requestBody": question},
        _json("One answer for each vector.", _object(answers={"type": "array", "items": answer})),
        _REJECTIONS,
    )


def _encrypted_description(version: str) -> dict[str, Any]:
    body = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    return _document(
        version,
        "answers to encrypted vectors",
        "Accepts ciphertexts (CKKS, TenSEAL), as a 32-bit number of them and each with its 32-bit length. It has no "
        "key and stores nothing.",
        ENCRYPTED,
        {
            "summary": "Multiply encrypted vectors by the weights of the head",
            "operationId": "encrypted",
            "requestBody": {"required": True, **body},
        },
        {"description": "Encrypted products; add up those of a text and class.", **body},
        {name: text for name, text in (_REJECTIONS | _ENCRYPTED_REJECTIONS).items() if name != "400"},
    )


def _document(
    version: str,
    title: str,
    about: str,
    path: str,
    post: dict[str, Any],
    answer: dict[str, Any],
    rejections: dict[str, str],
) -> dict[str, Any]:
    """Return the document of a service with one question, its answer and its rejections."""
    rejected = {name: _json(text, {"$ref": "#/components/schemas/Refusal"}) for name, text in rejections.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"discreet: {title}", "version": version, "description": about},
        "paths": {
            path: {"post": {**post, "responses": {"200": answer, **rejected}}},
            ABOUT: {"get": _get("The input and output of the server", "about")},
            HEALTH: {"get": _get("Whether the server is running, and request counts", "health")},
        },
        "components": {"schemas": {"Refusal": _object(error={"type": "string"})}},
    }


def _list(items: dict[str, Any], fewest: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": fewest, "maxItems": most}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _json(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _get(summary: str, name: str) -> dict[str, Any]:
    return {"summary": summary, "operationId": name, "responses": {"200": _json(summary + ".", {"type": "object"})}}
