"""The work that every transport is measured on, and the least that a caller and a responder need for it.

A request of some 200 bytes is decoded into its type; the handler waits for an upstream; the answer is encoded, and
decoded again at the caller. Requests are distinguished by their ids, so that one connection carries all of
them. Every answer depends on its request, and is checked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import msgspec

from benchmarks.upstream import round_trip

OPERATION = "work.add"
NOTE = "A note that nobody reads; it brings the request to the usual 200 bytes, like in the other measurements."


class Input(msgspec.Struct):
    """What is asked for: a + b."""

    a: int
    b: int = 1
    note: str = NOTE


class _Event(msgspec.Struct, rename="camel", tag_field="type"):
    request_id: str


class Request(_Event, tag="call.requested"):
    """As opwire writes it, without the deadline."""

    operation_id: str
    input: Input


class _Meta(msgspec.Struct, rename="camel"):
    source: str = "local"
    operation_id: str = OPERATION
    timestamp: int = 1_700_000_000_000


class _Output(msgspec.Struct):
    data: int
    meta: _Meta


class Reply(_Event, tag="call.responded"):
    """As opwire writes it."""

    output: _Output


_META = _Meta()
_encode = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(Request).decode
_decode_reply = msgspec.json.Decoder(Reply).decode


def request(request_id: str, a: int) -> bytes:
    """The request for a + 1."""
    return _encode(Request(request_id, OPERATION, Input(a)))


_answering: set[asyncio.Task[None]] = set()


def answer(message: bytes, send: Callable[[bytes], Awaitable[Any] | None]) -> None:
    """Reply to a request in a task of its own, since its handler waits."""
    task = asyncio.get_running_loop().create_task(_answer(message, send))
    _answering.add(task)
    task.add_done_callback(_answering.discard)


async def _answer(message: bytes, send: Callable[[bytes], Awaitable[Any] | None]) -> None:
    asked = _decode_request(message)
    await round_trip()
    sending = send(_encode(Reply(asked.request_id, _Output(asked.input.a + asked.input.b, _META))))
    if sending is not None:
        await sending


def answered(message: bytes) -> int:
    """The data of a reply."""
    return _decode_reply(message).output.data


class Calls:
    """The calls that wait for their replies."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._loop = asyncio.get_running_loop()

    def open(self, a: int) -> tuple[bytes, asyncio.Future[int]]:
        """A request that is to be sent, and its answer."""
        request_id = f"0123456789abcdef-{next(self._ids):x}"  # as long as opwire's
        future = self._waiting[request_id] = self._loop.create_future()
        return request(request_id, a), future

    def arrived(self, message: bytes, *_: Any) -> None:
        """Settle the call that a reply belongs to."""
        reply = _decode_reply(message)
        self._waiting.pop(reply.request_id).set_result(reply.output.data)
