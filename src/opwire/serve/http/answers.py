"""An envelope as an HTTP response: its data, or the whole of it.

Data is JSON, and `null` where there is none: with an empty 204 a client could not tell "nothing" from "no body", and
generated clients parse what the document promises. Bytes are an octet stream.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from opwire.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope, encode_envelope, warn_of_nulls
from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.serve.problem import Header
from opwire.typed.text import write_json
from opwire.urls import ENVELOPE_JSON

IsErrorPolicy = Literal["return", "fail"]
"""What becomes of the result of an MCP tool that says `isError`.

`return`: an answer like any other, marked with the header `opwire-is-error: true`. As everywhere in opwire, only what
raises is a failure. `fail`: a problem, EXECUTION_ERROR, for clients that look at nothing but the status. Who asks for
the envelope gets the envelope.
"""

UPSTREAM = "opwire-upstream-"

_KEPT = frozenset(
    "age content-language content-location content-type deprecation etag last-modified link location retry-after "
    "sunset warning x-request-id x-correlation-id x-trace-id request-id".split()
)
_KEPT_PREFIXES = ("ratelimit", "x-ratelimit", "x-rate-limit", "x-total", "x-page", "x-per-page", "x-next", "x-prev")
_MAX_VALUE = 4_096
_encoder = msgspec.json.Encoder()


class Answer(NamedTuple):
    """A response of status 200."""

    content_type: bytes
    body: bytes
    headers: list[Header]


def answer(envelope: ResponseEnvelope[Any], *, whole: bool, is_error: IsErrorPolicy) -> Answer:
    """The response that an envelope gives.

    Raises:
        CallError: EXECUTION_ERROR, if the data cannot be sent, or the policy makes a failure of it.
    """
    if whole:
        return Answer(ENVELOPE_JSON.encode(), encode_whole(envelope), [])
    meta, headers = envelope.meta, list[Header]()
    if isinstance(meta, HTTPResponseMeta):
        headers = upstream_headers(meta)
    elif isinstance(meta, MCPResponseMeta) and meta.is_error:
        if is_error == "fail":
            raise _tool_failed(meta)
        headers = [(b"opwire-is-error", b"true")]
    if isinstance(envelope.data, bytes):
        return Answer(b"application/octet-stream", envelope.data, headers)
    return Answer(b"application/json", encode_data(envelope.data), headers)


def encode_data(data: Any) -> bytes:
    """Plain data as JSON.

    Raises:
        CallError: EXECUTION_ERROR, if it is nested too deeply.
    """
    try:
        encoded = write_json(_encoder, data)
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, f"the result cannot be sent as JSON: {error}") from error
    warn_of_nulls(encoded, data)
    return encoded


def encode_whole(envelope: ResponseEnvelope[Any]) -> bytes:
    """An envelope as JSON.

    Raises:
        CallError: EXECUTION_ERROR, if its data cannot be sent.
    """
    try:
        return encode_envelope(envelope)
    except ConversionError as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, str(error)) from error


def upstream_headers(meta: HTTPResponseMeta) -> list[Header]:
    """What is worth knowing of the HTTP answer behind a result: its status, limits, pages. Never its cookies."""
    kept = [
        (f"{UPSTREAM}{name}".encode(), value.encode("latin-1", "replace"))
        for name, value in meta.headers.items()
        if (name in _KEPT or name.startswith(_KEPT_PREFIXES)) and _is_harmless(name, value)
    ]
    return [(f"{UPSTREAM}status".encode(), b"%d" % meta.status_code), *kept]


def _is_harmless(name: str, value: str) -> bool:
    """Whether it can be a line of our own headers: a handler may have put anything into an envelope."""
    return name.isascii() and name.replace("-", "").isalnum() and len(value) <= _MAX_VALUE and value.isprintable()


def _tool_failed(meta: MCPResponseMeta) -> CallError:
    texts = [str(block["text"]) for block in meta.content if block["type"] == "text"]
    return CallError(ErrorCode.EXECUTION_ERROR, "\n".join(texts)[:2_000], {"content": meta.content})
