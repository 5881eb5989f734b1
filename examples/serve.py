"""Serve a few operations over a broker or a hub. In another terminal, `call.py` calls them.

    python examples/serve.py redis://127.0.0.1:6379
    python examples/serve.py nats://127.0.0.1:4222
    python examples/serve.py ws://127.0.0.1:8700        # where examples/hub.py listens

Start it twice, and the calls are shared. Stop one with Ctrl-C: it completes its calls, and the other gets new ones.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from opwire import Identity, OperationRegistry
from opwire.hub import Spoke
from opwire.runtime.signals import stop_signals

registry = OperationRegistry()


@registry.query("math.add")
async def add(a: int, b: int) -> dict[str, int]:
    """Add two integers, and say which process did it."""
    return {"sum": a + b, "process": os.getpid()}


@registry.subscription("clock.ticks")
async def ticks(count: int = 3, seconds: float = 0.1) -> AsyncIterator[int]:
    """Count, one number at a time."""
    for number in range(count):
        yield number
        await asyncio.sleep(seconds)


async def main(url: str) -> None:
    # Callers over a broker are anonymous: every client of it may call. docs/howto/secure.md explains signed requests.
    callers = Identity(id="callers", scopes=("*",))
    token: dict[str, Any] = {"token": os.environ["OPWIRE_TOKEN"]} if url.startswith("ws") else {}
    with stop_signals() as stop:  # SIGINT or SIGTERM
        async with Spoke(registry, url, name="example", version="1.0.0", anonymous=callers, **token) as spoke:
            print("serving", *(spec.id for spec in registry.list()), flush=True)
            await stop.wait()
            await spoke.drain()


if __name__ == "__main__":
    sys.exit(__doc__) if len(sys.argv) < 2 else asyncio.run(main(sys.argv[1]))
