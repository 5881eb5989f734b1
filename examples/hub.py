"""A hub that spokes connect to: `serve.py` and `call.py` with its URL, and the same token in OPWIRE_TOKEN.

OPWIRE_TOKEN=a-long-random-secret python examples/hub.py ws://127.0.0.1:8700
"""

import asyncio
import os
import sys

from opwire import Identity
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub
from opwire.runtime.signals import stop_signals


async def main(url: str) -> None:
    # Holders of the token have this identity, and may announce operations in these namespaces only.
    grant = Grant(Identity(id="team", scopes=("*",)), announces=("math", "clock"))
    auth = StaticTokens({os.environ["OPWIRE_TOKEN"]: grant})
    with stop_signals() as stop:  # SIGINT or SIGTERM
        async with Hub(None, url, authenticate=auth) as hub:
            print("listening", hub.url, flush=True)
            await stop.wait()
            await hub.drain()


if __name__ == "__main__":
    sys.exit(__doc__) if len(sys.argv) < 2 else asyncio.run(main(sys.argv[1]))
