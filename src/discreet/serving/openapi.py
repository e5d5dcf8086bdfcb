"""The server's own description, as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from discreet.serving.head import Head
from discreet.serving.limits import Limits

ANSWERS, ABOUT, HEALTH, OPENAPI = "/v1/answers", "/v1/about", "/health", "/openapi.json"

_REFUSALS = {
    "400": "The body is not JSON.",
    "408": "The request took too long to arrive.",
    "413": "The body or the number of vectors is too large.",
    "415": "The content type is not application/json; text is refused.",
    "422": "The body holds no vectors of this width and finite numbers; text is refused.",
    "429": "Too many requests from this address; Retry-After says when.",
    "503": "Too much at once; Retry-After says when.",
}


def description(head: Head, limits: Limits, version: str) -> dict[str, Any]:
    """Return what the server takes and says, as a document that tools can read."""
    if head.task == "classification":
        answer: dict[str, Any] = {
            "type": "object",
            "required": ["label", "probabilities"],
            "properties": {
                "label": {"type": "string", "enum": list(head.label_names)},
                "probabilities": {
                    "type": "array",
                    "items": {"type": "number"},
                    "minItems": len(head.label_names),
                    "maxItems": len(head.label_names),
                    "description": "In the order " + ", ".join(head.label_names) + ".",
                },
            },
        }
    else:
        answer = {"type": "object", "required": ["score"], "properties": {"score": {"type": "number"}}}
    vector = {"type": "array", "items": {"type": "number"}, "minItems": head.width, "maxItems": head.width}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "discreet: answers to protected representations",
            "version": version,
            "description": "Takes vectors that were randomised on the user's side. It takes no text and keeps nothing.",
        },
        "paths": {
            ANSWERS: {
                "post": {
                    "summary": "Answer released vectors",
                    "operationId": "answers",
                    "requestBody": {
                        "required": True,
                        "content": {
                            "application/json": {
                                "schema": _object(
                                    vectors={
                                        "type": "array",
                                        "items": vector,
                                        "minItems": 1,
                                        "maxItems": limits.rows,
                                        "description": "One released vector for each text.",
                                    }
                                )
                            }
                        },
                    },
                    "responses": {
                        "200": _json(
                            "One answer for each vector.", _object(answers={"type": "array", "items": answer})
                        ),
                        **{
                            status: _json(text, {"$ref": "#/components/schemas/Refusal"})
                            for status, text in _REFUSALS.items()
                        },
                    },
                }
            },
            ABOUT: {"get": _get("What the server expects", "about")},
            HEALTH: {"get": _get("Whether it lives, and how much it did", "health")},
        },
        "components": {"schemas": {"Refusal": _object(error={"type": "string"})}},
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _json(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _get(summary: str, name: str) -> dict[str, Any]:
    return {"summary": summary, "operationId": name, "responses": {"200": _json(summary + ".", {"type": "object"})}}
