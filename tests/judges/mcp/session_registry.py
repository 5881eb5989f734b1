"""Operations that take their time, change the registry and notice that they are cancelled."""

import asyncio
import sys

from opwire import Context, OperationRegistry
from tests.judges.mcp.served import serve

registry = OperationRegistry()
cancelled = asyncio.Event()


@registry.query("work.endless")
async def endless(context: Context) -> None:
    """Says that it has begun, and does not end."""
    context.report(1, message="it has begun")
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()


@registry.query("work.cancelled")
async def was_cancelled() -> bool:
    """Waits until the other one was cancelled."""
    await asyncio.wait_for(cancelled.wait(), 10)
    return True


@registry.mutation("work.grow")
async def grow() -> None:
    """Adds an operation."""
    registry.query("work.new", replace=True)(was_cancelled)


if __name__ == "__main__":
    serve(registry, *sys.argv[1:])
