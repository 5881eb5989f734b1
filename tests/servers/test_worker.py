"""What the worker serves, here over a bus in this process."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from opwire import CallError, ErrorCode
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.servers.worker import connect, operations


@asynccontextmanager
async def served() -> AsyncIterator[PendingRequestMap]:
    bus = MemoryBus(codec=True)
    async with (
        asyncio.timeout(5),
        PendingRequestMap(MemoryTransport(bus)) as serving,
        CallHandler(operations(), serving),
        PendingRequestMap(MemoryTransport(bus)) as calls,
    ):
        yield calls


async def test_calls_are_answered_and_numbered() -> None:
    async with served() as calls:
        assert (await calls.call("work.echo", {"value": [1, None], "delay": 0.01})).data["value"] == [1, None]
        assert (await calls.call("work.echo", "text")).data == "text"
        assert [(await calls.call("work.count")).data for _ in range(2)] == [[os.getpid(), 1], [os.getpid(), 2]]
        assert [item.data async for item in calls.subscribe("work.numbers", {"end": 3})] == [1, 2, 3]


async def test_a_stopped_server_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    async with served() as calls:
        async with aclosing(calls.subscribe("work.numbers")) as endless:
            assert (await anext(endless)).data == 1
        with pytest.raises(CallError) as caught:
            await calls.call("work.hang", timeout=0.5)
        assert caught.value.code is ErrorCode.TIMEOUT
    printed = capsys.readouterr().out.split()
    assert sorted(printed) == ["hanging", "stopped", "stopped"]  # a call starts before a cancelled task has ended
    assert printed[-1] == "stopped"


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no transport 'pigeon'"):
        connect("pigeon", "pigeon://nest")
