"""The standard input and output of a process as a connection."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from opwire import OperationRegistry
from opwire.mcp.server import serve_mcp, stdio
from opwire.mcp.server.stdio import serve_files
from tests.mcp.server.operations import shop
from tests.mcp.server.raw import HANDSHAKE, call
from tests.mcp.server.shop import ERAS, PATIENCE

START = 20.0  # seconds until a process answers, on a machine that has much to do
SERVER = ("-m", "tests.mcp.server.process")


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


@pytest.mark.parametrize("era", ERAS)
async def test_the_sdks_client_lists_and_calls_tools(era: str) -> None:
    """stdio serves any client, keeps prints out of the protocol, and stops when told to."""
    server = StdioServerParameters(command=sys.executable, args=list(SERVER), cwd=Path.cwd())
    async with Client(stdio_client(server), mode=era) as client:
        assert "math_add" in {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("math_add", {"a": 2, "b": 3})
        assert result.structured_content == ({"result": 5} if era == "legacy" else 5)
        none = await client.call_tool("data_none")
        assert none.structured_content == ({"result": None} if era == "legacy" else None)


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


async def test_a_server_that_is_stopped_does_not_wait_for_its_client() -> None:
    async with raw() as client:
        client.send(call("shop_stop"))
        assert (await client.receive())["error"]["message"] == "Connection closed"
        async with asyncio.timeout(PATIENCE):
            assert client.process.stdout is not None
            assert await client.process.stdout.readline() == b"ended\n"  # standard output is what it was before
            assert await client.process.wait() == 0


STUBBORN = """
import asyncio
from opwire import OperationRegistry
from opwire.registry import invoke
from opwire.mcp.server import calls, serve_mcp

invoke.CLOSE_GRACE = calls.CLOSE_GRACE = 0.05
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


async def test_a_process_without_standard_input_gets_an_error() -> None:
    program = """if True:
        import asyncio
        from opwire import CallError, OperationRegistry
        from opwire.mcp.server import serve_mcp
        try:
            asyncio.run(serve_mcp(OperationRegistry()).run_stdio())
        except CallError as error:
            print(error)
    """
    without_input = ("sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, program)
    process = await asyncio.create_subprocess_exec(*without_input, stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0].startswith(b"UNAVAILABLE: standard input")


async def test_standard_files_are_restored_if_an_event_loop_has_closed_the_copies() -> None:
    program = """if True:  # uvloop closes the descriptors of its pipes, asyncio only their files
        import os
        from opwire.mcp.server.stdio import standard_files
        with standard_files() as (source, sink):
            os.close(source.fileno())
            os.close(sink.fileno())
        print(input())
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert await process.communicate(b"a line\n") == (b"a line\n", None)
    assert process.returncode == 0


# --- the files themselves ---------------------------------------------------------------------------------------------


class Piped(NamedTuple):
    """What a client writes to and reads from, and the server."""

    out: Any
    answers: Any
    serving: asyncio.Task[None]

    async def ask(self, line: bytes) -> Any:
        """Write a line; the next one that comes back."""
        await asyncio.to_thread(self.out.write, line)  # a pipe may be full
        async with asyncio.timeout(PATIENCE):
            return json.loads(await asyncio.to_thread(self.answers.readline))


@contextlib.asynccontextmanager
async def piped(kind: type[stdio.LineFiles], registry: OperationRegistry | None = None) -> AsyncGenerator[Piped]:
    """A server over two pipes, on the event loop or in threads."""
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    surface = serve_mcp(registry or shop())
    with (
        os.fdopen(their_in, "rb", closefd=False) as source,
        os.fdopen(their_out, "wb", buffering=0, closefd=False) as sink,
        os.fdopen(our_in, "rb", buffering=0) as answers,
        os.fdopen(our_out, "wb", buffering=0) as out,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(stdio, "PipedFiles", kind)
        serving = asyncio.create_task(serve_files(surface._trusting_server(), source, sink))
        try:
            yield Piped(out, answers, serving)
        finally:
            out.close()
            async with asyncio.timeout(PATIENCE):
                await serving
            answers.close()
    os.close(their_in)
    os.close(their_out)


PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
FILES = pytest.mark.parametrize("kind", [stdio.PipedFiles, stdio.ThreadedFiles])


@FILES
async def test_a_line_that_is_too_long_is_refused_and_the_next_is_read(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "MAX_LINE", 100)
    async with piped(kind) as client:
        assert (await client.ask(b'{"x": "' + b"x" * 1_000 + b'"}\n' + PING + b"\n"))["error"]["code"] == -32700
        assert (await client.ask(b"\n"))["result"] == {}


@FILES
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
async def test_a_request_that_cannot_be_read_is_answered_under_its_id(line: bytes, id: Any, kind: Any) -> None:
    async with piped(kind) as client:
        answer = await client.ask(line + b"\n")
    assert (answer["id"], answer["error"]["code"]) == (id, -32700)


@FILES
async def test_a_line_of_too_many_objects_and_lists_is_rejected_under_its_id(kind: Any) -> None:
    async with piped(kind) as client:
        answer = await client.ask(
            b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":[%s]}}\n' % b",".join([b"[]"] * 100_000)
        )
    assert (answer["id"], answer["error"]["code"]) == (7, -32008)
    assert "objects and lists, too many for its size: send values in parts" in answer["error"]["message"]


@FILES
async def test_text_that_was_cut_in_the_middle_of_a_character_is_read(kind: Any) -> None:
    registry = OperationRegistry()

    @registry.query("a.b")
    async def b(text: str) -> str:
        return text

    async with piped(kind, registry) as client:
        client.out.write(json.dumps(HANDSHAKE[1]).encode() + b"\n")
        message = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_b","arguments":{"text":"%s"}}}\n'
        for text in (b"\\ud83d", b"\xff"):
            assert (await client.ask(message % text))["result"]["structuredContent"] == {"result": "\ufffd"}


@FILES
async def test_the_last_line_needs_no_end(kind: Any) -> None:
    async with piped(kind) as client:
        client.out.write(PING)
        client.out.close()
        async with asyncio.timeout(PATIENCE):
            assert json.loads(await asyncio.to_thread(client.answers.readline))["id"] == 1


@FILES
async def test_a_client_that_has_gone_is_not_an_error(kind: Any) -> None:
    async with piped(kind) as client:
        assert (await client.ask(PING + b"\n"))["result"] == {}
        client.answers.close()
        for _ in range(3):
            client.out.write(b"not JSON\n")


@FILES
async def test_a_client_that_does_not_read_is_not_read_either_and_nothing_is_lost(kind: Any) -> None:
    async with piped(kind) as client:
        line = json.dumps({"jsonrpc": "2.0", "id": "x" * 190, "method": "ping"}).encode() + b"\n"

        def flood() -> None:
            for _ in range(1_000):
                client.out.write(line * 10)

        flooding = asyncio.create_task(asyncio.to_thread(flood))
        await asyncio.wait([flooding], timeout=0.15)
        assert not flooding.done()
        count = 0
        async with asyncio.timeout(PATIENCE):
            while count < 10_000:
                count += (await asyncio.to_thread(client.answers.read, 1024 * 1024)).count(b"\n")
        await flooding


@given(st.lists(st.text("ab\n", max_size=12).map(str.encode), max_size=8))
def test_lines_are_the_same_however_they_arrive(chunks: list[bytes]) -> None:
    splitter = stdio.LineSplitter(10)
    found = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()
    expected = [line for line in b"".join(chunks).split(b"\n") if line and not line.isspace()]
    assert [line if len(line) <= 10 else b"too long" for line in expected] == found
