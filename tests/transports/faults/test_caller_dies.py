"""A process that waits for answers is killed or frozen."""

import asyncio
from collections.abc import Callable

import pytest

from opwire.protocol import CallHandler, PendingRequestMap
from tests.servers.brokers import Server
from tests.servers.processes import Worker
from tests.transports.engines import Engine
from tests.transports.faults.actor import operations
from tests.transports.faults.harness import Notes, process

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", [Worker.kill, Worker.freeze], ids=["killed", "frozen"])
async def test_handlers_are_stopped_when_their_caller_is_gone(
    engine: Engine, server: Server, fault: Callable[[Worker], None]
) -> None:
    """Handlers are stopped when the process that called is killed or frozen."""
    notes = Notes()
    async with (
        PendingRequestMap(engine.connect(server.url)) as serving,
        CallHandler(operations(notes.add), serving) as handler,
        process("call", engine, server) as caller,
    ):
        await notes.until("waiting", 20)
        await notes.until("counting")
        fault(caller)
        await notes.until("stopped", 20)
        await notes.until("counted")
        caller.kill()
        async with asyncio.timeout(5):
            while len(handler) or serving.open_calls:  # the last of them is about to leave the books
                await asyncio.sleep(0.01)
