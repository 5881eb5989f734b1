"""A WebSocket server in a process that tests kill and freeze: it passes calls on, and serves nothing itself.

    python -m tests.transports.faults.relay CONFIG

CONFIG is a file with the server's keyword arguments, as JSON. It prints `ready` and its process id, and leaves at
SIGTERM.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from opwire.protocol import PendingRequestMap
from opwire.transports.websocket import WebSocketServer
from tests.servers.worker import say


async def main(config: str) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    async with PendingRequestMap(WebSocketServer(**json.loads(Path(config).read_text()))):
        say(f"ready {os.getpid()}")
        await end.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
