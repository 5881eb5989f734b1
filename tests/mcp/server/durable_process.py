"""Serves durable mutations over MCP, or runs them.

    python -m tests.mcp.server.durable_process serve|work URL PREFIX FILE

The URL is that of Redis or of NATS. `job.run` appends its number to FILE, waits until FILE.go exists, and kills its
process if FILE.poison does. A server prints its address before `ready`; it runs nothing itself. Both end when their
stdin is closed.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from opwire import AccessControl, CallError, Context, OperationRegistry
from opwire.durable import DurableWorker
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.redis import RedisJournal
from opwire.mcp.server import DurableTasks, serve_mcp
from tests.servers.worker import say, wait_for_the_end

KEY = "the key of all replicas"
LEASE = 1.0  # seconds
PUBLIC = AccessControl(public=True)


def journal_at(url: str, prefix: str, **options: Any) -> RedisJournal | NatsJournal:
    """An end of a journal that believes its callers."""
    kind = NatsJournal if url.startswith("nats://") else RedisJournal
    return kind(url, prefix=prefix, trusted=True, **options)


def operations(file: Path) -> OperationRegistry:
    """A mutation that leaves a trace."""
    registry = OperationRegistry()

    @registry.mutation("job.run", access=PUBLIC)
    async def run(number: int, context: Context) -> dict[str, Any]:
        with file.open("a") as trace:
            trace.write(f"{number}\n")
        if file.with_suffix(".poison").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            if file.with_suffix(".go").exists():
                break
            await asyncio.sleep(0.01)
        if number < 0:
            raise CallError("EXECUTION_ERROR", f"{number} is too small", {"number": number})
        return {"number": number, "caller": None if context.identity is None else context.identity.id}

    return registry


async def main(role: str, url: str, prefix: str, file: str) -> None:
    registry = operations(Path(file))
    async with journal_at(url, prefix) as journal:
        if role == "work":
            async with DurableWorker(registry, journal, lease=LEASE, back_off=0.05, max_attempts=2):
                say("ready")
                await wait_for_the_end()
            return
        tasks = DurableTasks(journal, ["job.run"])
        surface = serve_mcp(registry, state_key=KEY, task_after=0.05, durable_tasks=tasks)
        async with surface.asgi().listening() as address:
            say(f"{address}/mcp")
            say("ready")
            await wait_for_the_end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
