"""A hub in a process of its own, open to everybody: `python -m tests.hub.process PORT`. Tests kill it."""

import asyncio
import sys

from opwire.hub import Hub
from tests.hub.meeting import OPEN
from tests.servers.worker import say, wait_for_the_end


async def main(port: str) -> None:
    hub = Hub(None, f"ws://127.0.0.1:{port}", authenticate=OPEN)
    hub.registry.on_change(lambda change: say(f"{'hidden' if change.kind == 'removed' else 'shown'} {change.spec.id}"))
    async with hub:
        say(f"port {hub.url.rpartition(':')[2]}")
        await wait_for_the_end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
