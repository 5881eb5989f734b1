"""Read the body of a request, within limits of size, time and memory.

A request is served with its complete body, so that a slow sender holds only its own place.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from http import HTTPStatus

from opwire.asgi.problem import Header, HTTPStatusError
from opwire.asgi.request import UPGRADE, AdmittedRequest, Receive
from opwire.errors import CallError, ErrorCode
from opwire.runtime.bounded import SharedLimit
from opwire.runtime.deadlines import limit_text
from opwire.typed.plain import LARGE_JSON, check_density

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The default limit of one body."""

MAX_OPEN_BODY_BYTES = 256 * 1024 * 1024
"""Bytes of the large bodies of open requests, or four of the largest."""

CHUNKED = b"transfer-encoding"

_CLOSE: Header = (b"connection", b"close")  # the rest of the connection is not read
_LARGE_BODY_BYTES = 64 * 1024  # the number of requests bounds the memory of smaller ones
_MAX_LENGTH_DIGITS = 18
_MAX_DISCARDED_BYTES = 16 * 1024 * 1024
_MAX_DISCARD_SECONDS = 2.0
_METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class ClientDisconnectedError(Exception):
    """The client disconnected before its body was complete."""


class BodyReader:
    """Read bodies of at most `max_bytes` that arrive within `timeout` seconds.

    If requests are in `shares`, those of one caller, or of all without a token, get at most half of the memory.
    """

    def __init__(self, max_bytes: int, timeout: float, *, shares: bool) -> None:
        self._max_bytes = max_bytes
        self._timeout = timeout
        memory = max(MAX_OPEN_BODY_BYTES, 4 * max_bytes)
        self._memory: SharedLimit[str | None] = SharedLimit(memory, memory // 2 if shares else memory)

    async def read(self, request: AdmittedRequest, receive: Receive) -> None:
        """Read the body of a request.

        Raises:
            HTTPStatusError, CallError: it is rejected.
            ClientDisconnectedError: it does not arrive.
        """
        headers = request.headers
        if request.method in _METHODS_WITHOUT_BODY and b"content-length" not in headers and CHUNKED not in headers:
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise CallError(ErrorCode.PROTOCOL_ERROR, "content-length is not a number")
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > self._max_bytes:
            if b"expect" not in headers:  # otherwise the client asks first, and sends nothing
                await _discard(receive)
            raise self._too_large()
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._collect(request, receive, int(length) or self._max_bytes)
        except TimeoutError:
            late = CallError(ErrorCode.TIMEOUT, f"the body did not arrive within {limit_text(self._timeout)} s")
            raise HTTPStatusError(HTTPStatus.REQUEST_TIMEOUT, late, _CLOSE) from None
        _check_body(body, headers)
        request.body = body

    def release(self, request: AdmittedRequest) -> None:
        """Drop the body of a request at its end: the connection keeps the scope until its next request."""
        request.body = b""
        if request.reserved_bytes:
            self._memory.give_back(request.share, request.reserved_bytes)

    async def _collect(self, request: AdmittedRequest, receive: Receive, expected_bytes: int) -> bytes:
        buffer = bytearray()  # not a list: a chunk may have one byte
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk: bytes = message.get("body", b"")
            size = len(buffer) + len(chunk)
            if size > self._max_bytes:
                await _discard(receive)
                raise self._too_large()
            # By what has arrived, not by the stated length: that costs a sender nothing.
            is_large = size > max(_LARGE_BODY_BYTES, request.reserved_bytes)
            if is_large and not self._reserve(request, min(2 * size, expected_bytes)):
                del buffer, chunk, message
                await _discard(receive)
                full = CallError(ErrorCode.UNAVAILABLE, "other requests have large bodies: try again", retry_after=1)
                raise HTTPStatusError(HTTPStatus.SERVICE_UNAVAILABLE, full, _CLOSE)
            if not message.get("more_body", False):
                return bytes(buffer + chunk) if buffer else chunk
            buffer += chunk

    def _reserve(self, request: AdmittedRequest, size: int) -> bool:
        """Reserve memory for a body of this size; if there is no room, return False, and reserve none.

        So a body that is rejected makes room for the others, and of many at once as many as fit get through.
        """
        self._memory.give_back(request.share, request.reserved_bytes)
        has_room = self._memory.take(request.share, size)
        request.reserved_bytes = size if has_room else 0
        return has_room

    def _too_large(self) -> HTTPStatusError:
        error = CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the body has more than {self._max_bytes:,} bytes")
        return HTTPStatusError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error, _CLOSE)


def malformed(message: str) -> HTTPStatusError:
    """Return the error for a request after which the connection cannot be read on."""
    return HTTPStatusError(HTTPStatus.BAD_REQUEST, CallError(ErrorCode.PROTOCOL_ERROR, message), _CLOSE)


def _check_body(body: bytes, headers: Mapping[bytes, bytes]) -> None:
    if not body and UPGRADE in headers and (CHUNKED in headers or int(headers.get(b"content-length", b"0"))):
        raise malformed("this server speaks no other protocol: send the body without the header upgrade")
    if body and (coding := headers.get(b"content-encoding", b"identity").lower()) != b"identity":
        wrong = f"send the body uncompressed, not as {coding.decode('latin-1')[:40]!r}"
        error = CallError(ErrorCode.PROTOCOL_ERROR, wrong)
        raise HTTPStatusError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, error, (b"accept-encoding", b"identity"))
    if len(body) > LARGE_JSON:
        try:
            check_density(body)
        except ValueError as error:
            wrong = f"the body has {error}, too many for its size: send it in parts, or values as text"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, wrong) from None


async def _discard(receive: Receive) -> None:
    """Read on for a while: a client that is still sending when its connection closes never sees the response."""
    discarded = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MAX_DISCARD_SECONDS):
            while discarded < _MAX_DISCARDED_BYTES:
                message = await receive()
                discarded += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
