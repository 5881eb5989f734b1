"""Whether the event loop runs while something else does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """The turns of the event loop so far."""

    count = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Count the turns of the event loop while the block runs."""
    turns = Turns()

    async def count() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()
