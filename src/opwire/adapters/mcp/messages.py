"""JSON-RPC messages of MCP as bytes, and the shape of what carries them. No I/O.

The SDK reads a message strictly, or not at all. Whoever waits for an answer that cannot be read would then wait for
ever, so an answer that is broken inside becomes an error for its caller, and one whose caller cannot be known ends the
connection. Anything else that a server writes is not a message.
"""

import json
import re
from typing import Any, Self, cast

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import replace_surrogates

# A whole pair, or (in the group) half of one, or any other escape: a backslash that is escaped begins nothing.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


class MessageStream:
    """Both streams of the SDK's dispatcher in one. Whoever opened it closes it: the dispatcher's leaving does nothing.

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


def read_message(raw: bytes) -> SessionMessage | None:
    """The message, or None if this is none.

    Raises:
        CallError: PROTOCOL_ERROR, it should have been a message, but nobody can tell whose.
    """
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(raw, by_name=False))
    except ValueError:
        return _second_look(raw)


def _second_look(raw: bytes) -> SessionMessage | None:
    """What is left: a byte order mark, bytes that are not UTF-8, lone surrogates, broken answers, nonsense."""
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
        return SessionMessage(jsonrpc_message_adapter.validate_python(plain, by_name=False))
    except (ValueError, RecursionError):
        pass
    is_answer = "method" not in message and not message.keys().isdisjoint(("jsonrpc", "result", "error"))
    if is_answer and type(id) in (int, str):
        broken = ErrorData(code=PARSE_ERROR, message="the answer is not a JSON-RPC response of MCP, or is too deep")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=replace_surrogates(id), error=broken))
    return None
