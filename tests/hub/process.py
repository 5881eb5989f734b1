"""A hub in a process of its own, open to all: `python -m tests.hub.process PORT [BROKER PREFIX]`. Tests kill it.

With a broker it is one of several, and drains when it is stopped.
"""

import asyncio
import sys

from opwire.hub import Hub
from tests.hub.meeting import BEAT, OPEN
from tests.servers.worker import say, wait_for_the_end


async def main(port: str, broker: str | None = None, prefix: str = "") -> None:
    cluster = None
    if broker is not None:
        from opwire.hub.cluster import cluster_transport

        cluster = cluster_transport(broker, prefix=prefix, heartbeat=BEAT)
    hub = Hub(None, f"ws://127.0.0.1:{port}", authenticate=OPEN, cluster=cluster, cluster_open=True)
    hub.registry.on_change(lambda change: say(f"{'hidden' if change.kind == 'removed' else 'shown'} {change.spec.id}"))
    async with hub:
        say(f"port {hub.url.rpartition(':')[2]}")
        await wait_for_the_end()
        if cluster is not None:
            await hub.drain()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
