"""The two ends of opwire over any transport."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchmarks.transports.messages import NOTE, OPERATION
from benchmarks.transports.scenario import Call
from benchmarks.upstream import round_trip
from opwire import OperationRegistry
from opwire.protocol import LOCAL_IDENTITY, CallHandler, PendingRequestMap, Transport

registry = OperationRegistry()


@registry.query(OPERATION)
async def add(a: int, b: int, note: str) -> int:
    """Add two numbers, after a wait for the upstream."""
    await round_trip()
    return a + b


@asynccontextmanager
async def responding(transport: Transport) -> AsyncGenerator[None]:
    """Serve the registry."""
    async with PendingRequestMap(transport) as calls, CallHandler(registry, calls, anonymous=LOCAL_IDENTITY):
        yield


@asynccontextmanager
async def calling(transport: Transport) -> AsyncGenerator[Call]:
    """Call what is served."""
    async with PendingRequestMap(transport) as calls:

        async def call(a: int) -> int:
            return (await calls.call(OPERATION, {"a": a, "b": 1, "note": NOTE})).data

        yield call
