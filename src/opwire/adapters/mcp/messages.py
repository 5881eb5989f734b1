"""JSON-RPC messages of MCP as bytes, and the shape of what carries them. No I/O.

The SDK reads a message strictly, or not at all. A call whose answer cannot be read would then wait for ever, so an
answer that is broken inside becomes an error for its caller, and one whose caller cannot be known ends the connection.
Anything else that a server writes is not a message.

Bytes bound what a message costs only if its values are few: 16 MB of `[],` took 15 s and 1.2 GB to parse. So the values
are bounded too, and counted before anything is built.
"""

import json
import logging
import re
from typing import Any, Self, cast

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter
from msgspec import Struct

from opwire.adapters.mcp.failures import too_large
from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import replace_surrogates

logger = logging.getLogger("opwire.mcp")

# A whole pair, or (in the group) half of one, or any other escape: a backslash that is escaped begins nothing.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


MAX_ID = 200
"""Characters of a request id: longer ones are not ours, and every log line would repeat them."""

_decoder = msgspec.json.Decoder()


class _Head(Struct):
    """What a message is about, read without building the rest of it."""

    id: int | str | None = None
    method: str | None = None


_head_decoder = msgspec.json.Decoder(_Head)


def max_values(max_message: int) -> int:
    """Return how many JSON values a message may hold: 262,144 for 16 MiB, which take about 100 ms to parse."""
    return max(max_message // 64, 1000)


def has_few_values(raw: bytes, limit: int) -> bool:
    """Return whether JSON holds at most so many values: each needs a comma or a bracket outside of texts."""
    if len(raw) <= limit or _separators(raw) <= limit:
        return True
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote that is left begins or ends a text
    if plain.count(b'"') > 2 * limit:
        return False
    return _separators(b"".join(plain.split(b'"')[::2])) <= limit


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


class MessageStream:
    """Both streams of the SDK's dispatcher in one. The code that opened it closes it: `aclose` is a no-op.

    `failure` says why it ended, once it has.
    """

    failure: CallError | None = None

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message.

        Raises:
            BrokenResourceError: it has ended. The dispatcher expects this one.
        """
        raise NotImplementedError

    async def receive(self) -> SessionMessage:
        """The next message.

        Raises:
            EndOfStream: it has ended.
        """
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def write_message(message: JSONRPCMessage) -> bytes:
    """One line, without its end. NaN and infinities become null."""
    return msgspec.json.encode(message.model_dump(by_alias=True, exclude_unset=True))


def mended(raw: bytes) -> bytes:
    """JSON in which halves of surrogate pairs are U+FFFD: JavaScript writes them, where it cuts a text, as escapes."""
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return raw
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], raw)


def read_message(raw: bytes, limit: int) -> SessionMessage | None:
    """Return the message of at most `limit` values, or None if this is not a message.

    Raises:
        CallError: PROTOCOL_ERROR, it should have been a message, but of an unknown request.
    """
    if not has_few_values(raw, limit):
        large = large_message(raw, limit)
        return SessionMessage(large) if large is not None and _has_usable_id(large) else None
    try:
        # msgspec builds the values in a third of the time that the adapter's own parser takes.
        message = jsonrpc_message_adapter.validate_python(_decoder.decode(raw), by_name=False)
    except (ValueError, RecursionError):
        return _second_look(raw)
    return SessionMessage(message) if _has_usable_id(message) else None


def _has_usable_id(message: JSONRPCMessage) -> bool:
    """Return whether an id is one that a peer may choose, not a number of thousands of digits."""
    id = getattr(message, "id", None)
    return len(id) <= MAX_ID if isinstance(id, str) else id is None or abs(id) < 2**63


def large_message(raw: bytes, limit: int) -> JSONRPCMessage | None:
    """Return what stands for a message of too many values: an error for its caller, or a request to refuse.

    A notification is dropped.

    Raises:
        CallError: PROTOCOL_ERROR, it is not JSON, or of an unknown request.
    """
    try:
        head = _head_decoder.decode(raw)
    except (ValueError, RecursionError):
        head = _Head()
    if head.id is None and head.method is None:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"a message of more than {limit:,} JSON values was received")
    if head.id is None:
        logger.warning("a notification of more than %s JSON values is ignored", f"{limit:,}")
        return None
    if head.method is None:
        return JSONRPCError(jsonrpc="2.0", id=head.id, error=too_large(f"more than {limit:,} JSON values"))
    return JSONRPCRequest(jsonrpc="2.0", id=head.id, method=f"{head.method[:100]} with more than {limit:,} JSON values")


def _second_look(raw: bytes) -> SessionMessage | None:
    """Read what is left: a byte order mark, bytes that are not UTF-8, lone surrogates, broken answers, nonsense."""
    try:
        found = json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError) as error:
        if b'"jsonrpc"' in raw[:200]:
            raise CallError(
                ErrorCode.PROTOCOL_ERROR, "a message that is not JSON, or nested too deeply, was received"
            ) from error
        return None
    if not isinstance(found, dict):
        return None
    message = cast("dict[str, Any]", found)
    id = message.get("id")
    if isinstance(id, float) and id.is_integer():  # some languages have no other numbers
        id = message["id"] = int(id)
    try:
        plain = replace_surrogates(message)
        read = jsonrpc_message_adapter.validate_python(plain, by_name=False)
    except (ValueError, RecursionError):
        pass
    else:
        return SessionMessage(read) if _has_usable_id(read) else None
    is_answer = "method" not in message and not message.keys().isdisjoint(("jsonrpc", "result", "error"))
    if is_answer and type(id) in (int, str):
        broken = ErrorData(code=PARSE_ERROR, message="the answer is not a JSON-RPC response of MCP, or is too deep")
        answer = JSONRPCError(jsonrpc="2.0", id=replace_surrogates(id), error=broken)
        return SessionMessage(answer) if _has_usable_id(answer) else None
    return None
