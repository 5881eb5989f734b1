"""A server and its callers on one bus, and bounded ways to wait for what they do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from opwire import CallError, OperationRegistry
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport

PATIENCE = 20
SHORT = 0.05
"""A deadline that is meant to pass."""


async def within(awaitable: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def settled(turns: int = 20) -> None:
    """Give every task that could go on the turns to do so: what has not happened then will not."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def call_error(awaitable: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await within(awaitable)
    return caught.value


class Ends:
    """A bus with one server and one client."""

    def __init__(
        self, bus: MemoryBus, server: PendingRequestMap, handler: CallHandler, client: PendingRequestMap
    ) -> None:
        self.bus = bus
        self.server = server
        self.handler = handler
        self.client = client

    async def call(self, operation_id: str, input: Any = None, **options: Any) -> Any:
        return (await within(self.client.call(operation_id, input, **options))).data

    async def items(self, operation_id: str, input: Any = None, **options: Any) -> list[Any]:
        async with asyncio.timeout(PATIENCE):
            return [envelope.data async for envelope in self.client.subscribe(operation_id, input, **options)]

    @property
    def at_rest(self) -> bool:
        """Whether no book of either end holds a call."""
        books = self.handler.admission.calls_by_identity, self.handler.admission.input_bytes.held
        return not any((len(self.handler), self.server.open_calls, self.client.open_calls, *books))


@asynccontextmanager
async def connected_ends(
    registry: OperationRegistry,
    *,
    bus: MemoryBus | None = None,
    transport: type[MemoryTransport] = MemoryTransport,
    window: int = 64,
    timeout: float = 30,
    **options: Any,
) -> AsyncIterator[Ends]:
    bus = bus or MemoryBus()
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(PendingRequestMap(transport(bus)))
        handler = await stack.enter_async_context(CallHandler(registry, server, **options))
        client = await stack.enter_async_context(PendingRequestMap(transport(bus), window=window, timeout=timeout))
        made = Ends(bus, server, handler, client)
        yield made
    await until(lambda: made.at_rest)
    await until(lambda: asyncio.all_tasks() <= before)


class Recorder:
    """A receiver that records its events: a peer with events that the test chooses."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.senders: list[str] = []
        self.losses: list[str | None] = []

    def received(self, event: Any, sender: str) -> None:
        self.events.append(event)
        self.senders.append(sender)

    def lost(self, peer: str | None, reason: str) -> None:
        self.losses.append(peer)


async def peer(bus: MemoryBus, *operation_ids: str) -> tuple[MemoryTransport, Recorder]:
    """An end of the bus in the hands of the test."""
    transport, recorder = MemoryTransport(bus), Recorder()
    await transport.start(recorder)
    await transport.announce(operation_ids)
    return transport, recorder
