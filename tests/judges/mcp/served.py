"""Registries of this folder, each served by opwire in a process of its own: `python -m … stdio`, or `… http 8000`."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opwire import Identity, OperationRegistry
from opwire.mcp.server import serve_mcp
from tests.judges.serving import HOST, free_port, listening

POLL_AFTER = 1.0
"""Seconds after which the server ends a stream, and its client has to resume it."""


def serve(registry: OperationRegistry, transport: str, port: str = "0", **options: Any) -> None:
    """Serve a registry in this process, over "stdio" or "http", with options of `serve_mcp`."""
    surface = serve_mcp(registry, name="judged", version="1.0", **options)
    if transport == "stdio":
        asyncio.run(surface.run_stdio())
    else:
        judge = Identity(id="judge", scopes=("*",))
        asyncio.run(surface.run_http(port=int(port), anonymous=judge, poll_after=POLL_AFTER))


def over_stdio(registry: str) -> list[str]:
    """The command that serves a registry on standard input and output."""
    return [sys.executable, "-m", f"tests.judges.mcp.{registry}", "stdio"]


@asynccontextmanager
async def over_http(registry: str, tmp_path: Path) -> AsyncGenerator[str]:
    """Serves a registry over streamable HTTP; gives the URL."""
    port = free_port()
    command = [sys.executable, "-m", f"tests.judges.mcp.{registry}", "http", str(port)]
    async with listening(command, port, tmp_path / "server.log"):
        yield f"http://{HOST}:{port}/mcp"
