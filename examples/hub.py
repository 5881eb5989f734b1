"""A hub that spokes connect to: `serve.py` and `call.py` with its URL, and the same token in OPWIRE_TOKEN.

OPWIRE_TOKEN=a-long-random-secret python examples/hub.py ws://127.0.0.1:8700
"""

import asyncio
import os
import signal
import sys

from opwire import Identity
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub


async def main(url: str) -> None:
    # Whoever has the token is this identity, and may announce in these namespaces alone.
    grant = Grant(Identity(id="team", scopes=("*",)), announces=("math", "clock"))
    auth = StaticTokens({os.environ["OPWIRE_TOKEN"]: grant})
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Hub(None, url, authenticate=auth) as hub:
        print("listening", hub.url, flush=True)
        await stop.wait()
        await hub.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
