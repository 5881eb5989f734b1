"""The API of the HTTP ladder: a + b, asked for by GET and by POST, as an OpenAPI document."""

from typing import Any

from benchmarks.exchanges import Call
from benchmarks.transports.messages import NOTE

_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
_NUMBERS = {"a": _INTEGER, "b": _INTEGER, "note": _STRING}
_SUM = {"type": "object", "properties": {"sum": _INTEGER, "note": _STRING}, "required": ["sum", "note"]}
_RESPONSES = {"200": {"description": "the sum", "content": {"application/json": {"schema": _SUM}}}}
_ASKED = {"type": "object", "properties": _NUMBERS, "required": ["a", "b", "note"]}

Calls = dict[str, Call]
"""The call of each method."""


def document(address: str) -> dict[str, Any]:
    """The document of the API at an address."""
    parameters = [
        {"name": "a", "in": "path", "required": True, "schema": _INTEGER},
        {"name": "b", "in": "query", "required": True, "schema": _INTEGER},
        {"name": "note", "in": "query", "required": True, "schema": _STRING},
    ]
    body = {"required": True, "content": {"application/json": {"schema": _ASKED}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "api", "version": "1"},
        "servers": [{"url": address}],
        "paths": {
            "/sums/{a}": {"get": {"operationId": "get_sum", "parameters": parameters, "responses": _RESPONSES}},
            "/sums": {"post": {"operationId": "post_sum", "requestBody": body, "responses": _RESPONSES}},
        },
    }


def asked(number: int) -> dict[str, Any]:
    """What is sent."""
    return {"a": number, "b": 1, "note": NOTE}
