"""Proxies of the server behind, and clients in front of them."""

import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from opwire import OperationRegistry
from opwire.mcp.client import from_mcp
from opwire.mcp.server import serve_mcp
from tests.mcp.server.shop import in_process
from tests.proxy import behind
from tests.proxy.features import Front
from tests.servers.processes import ROOT, mortal

ERAS = (behind.HANDSHAKE, behind.STATELESS)


@contextmanager
def _program(*command: str) -> Generator[str]:
    """The address of a program that prints its port."""
    with subprocess.Popen(mortal([*command]), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@contextmanager
def running() -> Generator[dict[str, str]]:
    """The URLs of the server behind, by era."""
    with _program(sys.executable, "-m", "tests.proxy.behind") as address:
        yield {era: f"{address}/{path}/mcp" for era, path in zip(ERAS, ("handshake", "stateless"), strict=True)}


@contextmanager
def running_fastmcp(python: Path, url: str) -> Generator[str]:
    """The URL of FastMCP's `create_proxy`, in a process with another Python."""
    with _program(str(python), str(Path(__file__).with_name("fastmcp_proxy.py")), url) as address:
        yield f"{address}/mcp"


@asynccontextmanager
async def through_opwire(url: str, era: str) -> AsyncGenerator[Front]:
    """A client in front of `serve_mcp` of `from_mcp`."""
    registry = OperationRegistry()
    async with from_mcp(url, namespace="behind") as source:
        registry.follow(source)
        front = Front(in_process(serve_mcp(registry)), era)
        async with front.client:
            yield front
