"""Call what `serve.py` serves: the same URL, another process."""

import asyncio
import os
import sys
from typing import Any

from opwire.hub import Spoke


async def main(url: str) -> None:
    token: dict[str, Any] = {"token": os.environ["OPWIRE_TOKEN"]} if url.startswith("ws") else {}
    async with Spoke(None, url, **token) as spoke:
        for found in await spoke.discover():
            print("found", found.server.name, found.server.version, *(each.id for each in found.operations))
        data = await spoke.call("math.add", {"a": 1, "b": 2}, timeout=5)
        print("math.add", data["sum"], "by another process:", data["process"] != os.getpid())
        async for tick in spoke.subscribe("clock.ticks", {"count": 3}):
            print("clock.ticks", tick)


if __name__ == "__main__":
    sys.exit(__doc__) if len(sys.argv) < 2 else asyncio.run(main(sys.argv[1]))
