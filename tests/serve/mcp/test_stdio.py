"""The standard input and output of a process as a connection."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from opwire.serve.mcp import app
from opwire.serve.mcp.app import line_streams
from tests.requirements import requirement
from tests.serve.mcp.raw import HANDSHAKE, call
from tests.serve.mcp.shop import ERAS, PATIENCE

START = 20.0  # seconds until a process answers, on a machine that has much to do
SERVER = ("-m", "tests.serve.mcp.process")


class Raw:
    """A client that speaks in lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    def send(self, *messages: Any) -> None:
        """Send messages; bytes as they are."""
        for message in messages:
            self._in.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    async def receive(self) -> Any:
        """The next message."""
        async with asyncio.timeout(START):
            return json.loads(await self._out.readline())

    async def leave(self) -> int:
        """Close the server's input; the code with which it ends."""
        self._in.close()
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def raw() -> AsyncGenerator[Raw]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *SERVER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    client = Raw(process)
    try:
        client.send(*HANDSHAKE)
        assert (await client.receive())["result"]["serverInfo"]["name"] == "shop"
        yield client
    finally:
        if process.returncode is None:
            await client.leave()


@requirement("serve-mcp.stdio")
@pytest.mark.parametrize("era", ERAS)
async def test_the_sdks_client_lists_and_calls_tools(era: str) -> None:
    server = StdioServerParameters(command=sys.executable, args=list(SERVER), cwd=Path.cwd())
    async with Client(stdio_client(server), mode=era) as client:
        assert "math_add" in {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("math_add", {"a": 2, "b": 3})
        assert result.structured_content == ({"result": 5} if era == "legacy" else 5)
        none = await client.call_tool("data_none")
        assert none.structured_content == ({"result": None} if era == "legacy" else None)


@requirement("serve-mcp.stdio")
async def test_a_whole_conversation_line_by_line() -> None:
    async with raw() as client:
        client.send(call("feed_count", {"n": 2}, progressToken="p"))
        items = [await client.receive() for _ in range(2)]
        assert [item["params"]["_meta"]["opwire/item"] for item in items] == [{"n": 0, "data": 0}, {"n": 1, "data": 1}]
        assert items[1]["params"]["progress"] == 2
        result = (await client.receive())["result"]
        assert result["structuredContent"] == {"items": [0, 1], "complete": True}

        # What handlers print, and read, is kept apart from the protocol.
        client.send(call("noise_print", id=2))
        assert (await client.receive())["result"]["structuredContent"] == {"result": ""}

        client.send(b"\n", b"not json\n", b"[]\n")
        for _ in range(2):
            assert (await client.receive())["error"]["code"] == -32700
        assert await client.leave() == 0


@requirement("serve-mcp.stdio")
async def test_a_server_that_is_told_to_stop_does_not_wait_for_its_client() -> None:
    async with raw() as client:
        client.send(call("shop_stop"))
        assert (await client.receive())["error"]["message"] == "Connection closed"
        async with asyncio.timeout(PATIENCE):
            assert client.process.stdout is not None
            assert await client.process.stdout.readline() == b"ended\n"  # standard output is what it was before
            assert await client.process.wait() == 0


STUBBORN = """
import asyncio
from opwire import OperationRegistry, invoke
from opwire.serve.mcp import serve_mcp, server

invoke.CLOSE_GRACE = server.CLOSE_GRACE = 0.05
registry = OperationRegistry()


@registry.mutation("a.b")
async def b() -> None:
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


asyncio.run(serve_mcp(registry, timeout={timeout}).run_stdio())
"""


@requirement("deadlines.stubborn")
@pytest.mark.parametrize("timeout", [None, 600])
async def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_server_from_ending(
    timeout: float | None,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STUBBORN.format(timeout=timeout)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    client = Raw(process)
    assert process.stderr is not None
    try:
        client.send(*HANDSHAKE)
        await client.receive()
        client.send(call("a_b"))
        async with asyncio.timeout(START):
            assert await process.stderr.readline() == b"begun\n"
        assert await client.leave() == 0
        assert b"a.b did not stop" in await process.stderr.read()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_process_without_standard_input_is_told_so() -> None:
    program = """if True:
        import asyncio
        from opwire import CallError, OperationRegistry
        from opwire.serve.mcp import serve_mcp
        try:
            asyncio.run(serve_mcp(OperationRegistry()).run_stdio())
        except CallError as error:
            print(error)
    """
    without_input = ("sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, program)
    process = await asyncio.create_subprocess_exec(*without_input, stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0].startswith(b"UNAVAILABLE: standard input")


# --- the streams themselves -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def piped() -> AsyncGenerator[tuple[Any, Any, Any]]:
    """Streams over two pipes: what the client writes to, what it reads from, and the server's streams."""
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    with (
        os.fdopen(their_in, "rb") as source,
        os.fdopen(their_out, "wb", buffering=0) as sink,
        os.fdopen(our_in, "rb", buffering=0) as answers,
        os.fdopen(our_out, "wb", buffering=0) as out,
    ):
        async with line_streams(source, sink) as streams:
            yield out, answers, streams
        out.close()  # a thread still reads from it


async def test_a_line_that_is_too_long_is_refused_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_LINE", 100)
    async with piped() as (out, answers, (read, _)):
        out.write(b'{"x": "' + b"x" * 1_000 + b'"}\n{"jsonrpc": "2.0", "method": "ping"}\n')
        async with asyncio.timeout(PATIENCE):
            assert (await read.receive()).message.method == "ping"
            assert b"-32700" in await asyncio.to_thread(answers.readline)


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "method": "x", "params": []}', 7),
        (b'{"jsonrpc": "2.0", "id": "\\ud800", "method": 5}', "\ufffd"),
        (b'{"jsonrpc": "2.0", "id": [], "method": 5}', None),
        (b"[" * 50_000, None),
        (b"[]", None),
    ],
)
async def test_a_request_that_cannot_be_read_is_answered_under_its_id(line: bytes, id: Any) -> None:
    async with piped() as (out, answers, _):
        out.write(line + b"\n")
        async with asyncio.timeout(PATIENCE):
            answer = json.loads(await asyncio.to_thread(answers.readline))
    assert (answer["id"], answer["error"]["code"]) == (id, -32700)


async def test_text_that_was_cut_in_the_middle_of_a_character_is_read() -> None:
    async with piped() as (out, _, (read, _)):
        out.write(b'\xef\xbb\xbf{"jsonrpc": "2.0", "method": "x", "params": {"a": "\\ud83d", "b": "\xff"}}\n')
        async with asyncio.timeout(PATIENCE):
            assert (await read.receive()).message.params == {"a": "\ufffd", "b": "\ufffd"}


async def test_the_last_line_needs_no_end() -> None:
    async with piped() as (out, _, (read, _)):
        out.write(b'{"jsonrpc": "2.0", "method": "ping"}')
        out.close()
        async with asyncio.timeout(PATIENCE):
            assert [message.message.method async for message in read] == ["ping"]


async def test_a_client_that_has_gone_is_no_error() -> None:
    async with piped() as (_, answers, (_, write)):
        answers.close()
        for _ in range(3):
            async with asyncio.timeout(PATIENCE):
                await write.send(app.SessionMessage(app._parse(b"not JSON")))


async def test_a_file_that_somebody_closed_has_ended() -> None:
    async with piped() as (out, _, (read, _)):
        out.write(b'{"jsonrpc": "2.0", "method": "ping"}\n')
        async with asyncio.timeout(PATIENCE):
            assert (await read.receive()).message.method == "ping"
            out.close()
            assert [message async for message in read] == []


async def test_what_comes_after_the_server_has_ended_is_read_by_nobody() -> None:
    async with piped() as (out, _, (read, _)):
        await read.aclose()
        for _ in range(3):
            out.write(b'{"jsonrpc": "2.0", "method": "ping"}\n')
        reading = next(task for task in asyncio.all_tasks() if "line_streams.<locals>.read " in repr(task.get_coro()))
        async with asyncio.timeout(PATIENCE):
            await reading
