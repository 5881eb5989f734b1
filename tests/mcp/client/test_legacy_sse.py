"""The transport of 2024: an event stream, and where it says messages go."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.servers import HTTPServer
from tests.mcp.client.connections import PATIENCE, Answer, at, call, connected, http_server


class EventServer:
    """A server with a stream that begins with `first`; `end` ends it. `takes` is its answer to calls."""

    def __init__(self, first: bytes, takes: int) -> None:
        self._first = first
        self._takes = takes
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()

    def end(self) -> None:
        self._events.put_nowait(None)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                await self._stream(reader, writer)
            else:
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                status = self._take(json.loads(await reader.readexactly(length)))
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = asyncio.create_task(reader.read())
        left.add_done_callback(lambda _: self.end())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + self._first)
        while (event := await self._events.get()) is not None:
            writer.write(event)
            await writer.drain()
        left.cancel()

    def _take(self, message: dict[str, Any]) -> int:
        match message.get("method"):
            case "initialize":
                agreed = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {}}
                self._say({"id": message["id"], "result": agreed})
            case "server/discover":
                self._say({"id": message["id"], "error": {"code": -32601, "message": "?"}})
            case "tools/call":
                self._events.put_nowait(EVENTS[message["params"]["name"]])
                if message["params"]["name"] in ("echo", "garbage"):
                    self._say({"id": message["id"], "result": {}})
                return self._takes
            case _:
                pass
        return 202

    def _say(self, message: dict[str, Any]) -> None:
        self._events.put_nowait(
            b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"
        )


EVENTS = {
    "echo": b"",
    "hang": b"",
    "garbage": b"data: hello\n\nevent: ping\ndata: x\n\ndata:\n\n",
    "nonsense": b'data: {"jsonrpc": "2.0", "id": 1, "result": {\n\n',
    "long": b"data: " + b"x" * 300_000 + b"\n\n",
}


@asynccontextmanager
async def event_stream(first: bytes, takes: int = 202) -> AsyncIterator[tuple[HTTPServer, EventServer]]:
    events = EventServer(first, takes)
    async with await asyncio.start_server(events.serve, "127.0.0.1", 0) as server:
        yield HTTPServer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/sse", kind="sse"), events


ENDPOINT = b"event: endpoint\ndata: /messages?session=1\n\n"


async def test_a_server_of_2024_is_understood_and_invalid_messages_are_ignored() -> None:
    async with event_stream(ENDPOINT) as (server, _), connected(server) as session:
        assert (await session.start()).protocol == "2024-11-05"
        assert await call(session, "garbage") == {}


async def test_when_the_stream_ends_pending_calls_do() -> None:
    async with event_stream(ENDPOINT) as (server, events), connected(server) as session:
        await session.start()
        hanging = asyncio.create_task(call(session, "hang", within=None))
        await call(session, "echo")
        events.end()
        with pytest.raises(CallError, match="ended the event stream; the connection is closed") as failure:
            await asyncio.wait_for(hanging, PATIENCE)
        assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_message_that_the_server_does_not_take_is_an_error_at_once() -> None:
    async with event_stream(ENDPOINT, takes=503) as (server, _), connected(server) as session:
        for _ in range(2):
            with pytest.raises(CallError, match="answered with HTTP 503") as failure:
                await call(session, "hang", within=None)
            assert failure.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("tool", ["long", "nonsense"])
async def test_what_breaks_the_protocol_ends_the_connection(tool: str) -> None:
    async with event_stream(ENDPOINT) as (server, _), connected(server, max_message=100_000) as session:
        with pytest.raises(CallError) as failure:
            await call(session, tool, within=None)
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "first",
    [
        b"event: endpoint\ndata: http://127.0.0.1:1/messages\n\n",
        b"event: endpoint\ndata: http://[\n\n",
        b"data: hello\n\n",
    ],
    ids=["elsewhere", "invalid", "none"],
)
async def test_a_stream_that_sends_us_elsewhere_or_nowhere_is_refused(first: bytes) -> None:
    async with event_stream(first) as (server, _), connected(server) as session:
        with pytest.raises(CallError, match="does not send an endpoint event for its own origin") as failure:
            await session.start()
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("first", [b"", b": wait\n\n", b"event: endpoint\ndata:\n\n"])
async def test_a_stream_without_an_endpoint_is_not_waited_for_after_the_timeout(first: bytes) -> None:
    async with event_stream(first) as (server, _), connected(server, connect_timeout=0.2) as session:
        with pytest.raises(CallError, match=r"not ready within 0\.2 seconds") as failure:
            await asyncio.wait_for(session.start(), PATIENCE)
        assert failure.value.code is ErrorCode.TIMEOUT


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, {}, b""), "has nothing at this address"),
        ((200, {"content-type": "text/html"}, b"hi"), "broke the event stream"),
    ],
)
async def test_what_is_not_an_event_stream_is_an_error(answer: Answer, words: str) -> None:
    async def serve(*_: Any) -> Answer:
        return answer

    async with http_server(serve) as address, connected(at(address, kind="sse")) as session:
        with pytest.raises(CallError, match=words):
            await session.start()
