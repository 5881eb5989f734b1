"""What the tests of MCP operations are made with: the misbehaving server on a stage, in a registry or alone."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opwire.mcp.client import MCPSource, StdioServer, from_mcp
from opwire.model.envelope import MCPResponseMeta, ResponseEnvelope
from opwire.registry import OperationRegistry
from opwire.registry.source import SourceChange

SCRIPT = Path(__file__).with_name("misbehaving.py")
ANYTHING = {"type": "object"}
MODERN = {
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "misbehaving", "version": "1"}},
    }
}
"""The answer that makes the server one of revision 2026-07-28, where it is one of 2025-11-25 otherwise."""


class Stage:
    """What the misbehaving server lists. A server that runs already sees changes."""

    def __init__(self, folder: Path, **listed: Any) -> None:
        self._file = folder / "stage.json"
        self._listed: dict[str, Any] = {}
        self.set(**listed)

    def set(self, **listed: Any) -> None:
        self._listed.update(listed)
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(self._listed), encoding="utf-8")
        draft.replace(self._file)  # the server never sees half of it

    def remove(self) -> None:
        """From now on the server cannot be started any more."""
        self._file.unlink()

    @property
    def server(self) -> StdioServer:
        return StdioServer(sys.executable, ("-S", str(SCRIPT), str(self._file)))


def tool(name: Any, **fields: Any) -> dict[str, Any]:
    """A tool that takes anything."""
    return {"name": name, "inputSchema": ANYTHING, **fields}


def opwire_tool(name: str, *, input: Any = ANYTHING, output: Any = None, **origin: Any) -> dict[str, Any]:
    """A tool that comes from another opwire."""
    declared = {} if output is None else {"outputSchema": output}
    return {"name": name, "inputSchema": input, **declared, "_meta": {"opwire/operation": origin}}


@asynccontextmanager
async def following(stage: Stage, **options: Any) -> AsyncIterator[OperationRegistry]:
    """A registry that follows the server."""
    registry = OperationRegistry()
    async with from_mcp(stage.server, **options) as source:
        registry.follow(source)
        yield registry


async def answer(
    registry: OperationRegistry, result: Any, operation: str = "misbehaving.play"
) -> ResponseEnvelope[Any]:
    """What becomes of a result that the server gives."""
    return await registry.execute(operation, {"result": result})


def mcp_meta(envelope: ResponseEnvelope[Any]) -> MCPResponseMeta:
    """The meta, which is that of an MCP result."""
    assert isinstance(envelope.meta, MCPResponseMeta)
    return envelope.meta


class Changes(list[SourceChange]):
    """The changes of a source, and a way to wait for the next."""

    def __init__(self, source: MCPSource) -> None:
        self._told = asyncio.Event()
        self._source = source
        source.on_change(self._take)

    def _take(self, change: SourceChange) -> None:
        self.append(change)
        self._told.set()

    async def next(self) -> SourceChange:
        async with asyncio.timeout(30):
            await self._told.wait()
        self._told.clear()
        return self[-1]
