"""JSON-RPC messages of MCP as bytes, and the shape of what carries them. No I/O.

The SDK reads a message strictly, or not at all. Whoever waits for an answer that cannot be read would then wait for
ever, so an answer that is broken inside becomes an error for its caller, and one whose caller cannot be known ends the
connection. Anything else that a server writes is not a message.
"""

import json
from typing import Any, Self, cast

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import replace_surrogates


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
    """What is left: bytes that are not UTF-8, lone surrogates, results that are no object, nonsense."""
    try:
        found = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        if b'"jsonrpc"' in raw[:200]:
            raise CallError(
                ErrorCode.PROTOCOL_ERROR, "a message that is not JSON, or nested too deeply, was received"
            ) from error
        return None
    if not isinstance(found, dict) or "jsonrpc" not in found:
        return None
    plain = cast("dict[str, Any]", replace_surrogates(found))
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(plain, by_name=False))
    except ValueError:
        pass
    if isinstance(plain.get("id"), (int, str)) and "method" not in plain:
        broken = ErrorData(code=PARSE_ERROR, message="the answer is not a JSON-RPC response of MCP")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=plain["id"], error=broken))
    return None
