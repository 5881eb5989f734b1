"""Runs an ASGI app under uvicorn, with the same settings for all of them."""

import sys
import threading
from typing import Any

import uvicorn

_SETTINGS: dict[str, Any] = {"loop": "asyncio", "ws": "none", "access_log": False, "log_level": "warning"}


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()
        print(f"http://{host}:{port}", flush=True)


def run(app: Any, http: Any = "h11") -> None:
    """Print the address, and serve until the standard input ends. `http="auto"` is httptools if it is installed."""
    server = _Server(uvicorn.Config(app, host="127.0.0.1", port=0, http=http, **_SETTINGS))
    threading.Thread(target=_wait_for_the_end, args=(server,), daemon=True).start()
    server.run()


def _wait_for_the_end(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True
