"""What is served and called in these tests, here or in a process that a test kills and freezes.

    python -m tests.transports.faults.actor serve|call ENGINE URL

As a process it prints what its handlers do, and leaves when its stdin is closed.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable

from opwire import Context, OperationRegistry
from opwire.protocol import CallHandler, PendingRequestMap
from tests.servers.worker import PUBLIC, say, wait_for_the_end
from tests.transports.engines import ENGINES


def operations(note: Callable[[str], None]) -> OperationRegistry:
    """What is served. `note` is called when a handler begins, and with the outcome of those that wait."""
    registry = OperationRegistry()

    @registry.mutation("fault.run", access=PUBLIC)
    async def run(context: Context, delay: float = 0, ballast: str = "", grow: int = 0) -> list[str | int | None]:
        note(f"ran {context.request_id}")
        await asyncio.sleep(delay)
        return [context.request_id, os.getpid(), ballast + "x" * grow]

    @registry.mutation("fault.wait", access=PUBLIC, timeout=3600)
    async def wait() -> None:
        note("waiting")
        try:
            await asyncio.Event().wait()
        finally:
            note("stopped")

    @registry.subscription("fault.numbers", access=PUBLIC)
    async def numbers(end: int, delay: float = 0) -> AsyncIterator[int]:
        note("counting")
        try:
            for number in range(1, end + 1):
                yield number
                await asyncio.sleep(delay)
        finally:
            note("counted")

    return registry


async def serve(calls: PendingRequestMap) -> None:
    """Serve until stdin is closed."""
    async with CallHandler(operations(say), calls):
        await wait_for_the_end()


async def call(calls: PendingRequestMap) -> None:
    """Call what never ends: twenty calls and one subscription that is not read."""
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(calls.call("fault.wait")) for _ in range(20)]
        items = calls.subscribe("fault.numbers", {"end": 1_000_000})
        await anext(items)
        await wait_for_the_end()
        await items.aclose()
        for each in waiting:
            each.cancel()


async def main(role: str, engine: str, url: str) -> None:
    async with PendingRequestMap(ENGINES[engine].connect(url)) as calls:
        await {"serve": serve, "call": call}[role](calls)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
