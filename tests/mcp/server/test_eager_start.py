"""Requests of a connection run in tasks of their own, which may start where they are received."""

import asyncio
from typing import Any

import msgspec
import pytest

from opwire import OperationRegistry
from opwire.mcp.server import serve_mcp
from opwire.mcp.server.stdio import MAX_UNREAD, DuplexConnection
from tests.mcp.server.raw import HANDSHAKE, call
from tests.mcp.server.shop import PATIENCE


class Wire:
    """A connection without a transport, and what it has written."""

    def __init__(self, registry: OperationRegistry) -> None:
        self.connection = DuplexConnection(serve_mcp(registry)._trusting_server(), self._write)
        self.changed = asyncio.Event()
        self.written: list[Any] = []

    def _write(self, line: bytes) -> None:
        self.written.append(msgspec.json.decode(line))
        self.changed.set()

    def receive(self, message: Any) -> None:
        self.connection.receive(msgspec.json.encode(message))

    def answers(self) -> dict[int, Any]:
        return {each["id"]: each["result"]["structuredContent"]["result"] for each in self.written}

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.written) < count:
                self.changed.clear()
                await self.changed.wait()


def shaken_hands(registry: OperationRegistry) -> Wire:
    wire = Wire(registry)
    for message in HANDSHAKE:
        wire.receive(message)
    wire.written.clear()
    return wire


async def test_a_call_that_suspends_is_answered_later_and_runs_in_one_task() -> None:
    registry, go = OperationRegistry(), asyncio.Event()
    tasks: list[Any] = []

    @registry.query("work.later")
    async def later() -> int:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(PATIENCE):
            await go.wait()
        tasks.append(asyncio.current_task())
        return 2

    wire = shaken_hands(registry)
    wire.receive(call("work_later", id=7))
    async with asyncio.timeout(PATIENCE):
        while not tasks:
            await asyncio.sleep(0)
    assert wire.written == []
    go.set()
    await wire.until(1)
    assert wire.answers() == {7: 2}
    assert tasks[0] is tasks[1] is not None
    await wire.connection.close()


async def test_requests_within_the_first_step_of_others_do_not_grow_the_stack() -> None:
    registry, depths = OperationRegistry(), list[int]()
    open_calls = 0

    @registry.query("work.nested")
    async def nested() -> int:
        nonlocal open_calls
        open_calls += 1
        depths.append(open_calls)
        if len(depths) < 200:  # their frames would exceed the limit of the stack
            wire.receive(call("work_nested", id=len(depths)))
        open_calls -= 1
        return 3

    wire = shaken_hands(registry)
    wire.receive(call("work_nested", id=0))
    await wire.until(200)
    assert max(depths) <= 4
    assert wire.answers() == dict.fromkeys(range(200), 3)
    await wire.connection.close()


@pytest.mark.parametrize("suspends", [False, True])
async def test_a_failing_handler_is_answered_with_its_error(*, suspends: bool) -> None:
    registry = OperationRegistry()

    @registry.query("work.fail")
    async def fail() -> int:
        if suspends:
            await asyncio.sleep(0)
        raise SystemExit("it must not end the server")

    wire = shaken_hands(registry)
    wire.receive(call("work_fail", id=7))
    await wire.until(1)
    assert wire.written[0]["result"]["isError"]
    await wire.connection.close()


async def test_the_id_of_a_cancelled_call_can_be_used_again_at_once() -> None:
    registry, go = OperationRegistry(), asyncio.Event()
    cancelled = asyncio.Event()

    @registry.query("work.stubborn")
    async def stubborn(name: str) -> str:
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled.set()
            await go.wait()
        return name

    wire = shaken_hands(registry)
    wire.receive(call("work_stubborn", {"name": "first"}, id=7))
    wire.receive({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
    async with asyncio.timeout(PATIENCE):
        await cancelled.wait()
    wire.receive(call("work_stubborn", {"name": "second"}, id=7))
    go.set()
    await wire.until(1)
    await wire.connection.close()
    assert [each["result"]["structuredContent"] for each in wire.written] == [{"result": "second"}]


async def test_a_client_with_many_unread_responses_is_read_on_when_it_reads() -> None:
    reads, written = asyncio.Event(), list[bytes]()

    def write(line: bytes) -> Any:
        written.append(line)
        return reads.wait()

    connection = DuplexConnection(serve_mcp(OperationRegistry())._trusting_server(), write)
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    for _ in range(MAX_UNREAD - 1):
        assert connection.receive(ping) is None
        await asyncio.sleep(0)  # its task may start now
    while (full := connection.receive(ping)) is None:
        await asyncio.sleep(0)
    waiting = asyncio.ensure_future(full)
    assert not (await asyncio.wait([waiting], timeout=0.01))[0]
    reads.set()
    async with asyncio.timeout(PATIENCE):
        await waiting
    assert connection.receive(ping) is None
    assert len(written) == MAX_UNREAD + 1
    await connection.close()
