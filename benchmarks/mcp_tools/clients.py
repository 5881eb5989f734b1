"""The SDK's client and `from_mcp` on a server that they start. Imported where SDK 2 is: here and beside fastmcp."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from mcp import Client, StdioServerParameters

from benchmarks.exchanges import Call, children
from benchmarks.measure import NotMeasuredError
from benchmarks.peers import ROOT
from benchmarks.transports.messages import NOTE
from opwire import OperationRegistry
from opwire.mcp.client import StdioServer, from_mcp

SDK_SERVER = ("-m", "benchmarks.mcp_tools.sdk_server", "stdio")
REVISION = "2026-07-28"


@asynccontextmanager
async def sdk_over_stdio(command: str, arguments: Sequence[str], tool: str) -> AsyncGenerator[tuple[Call, int]]:
    """The SDK's client; the call, and the process that answers."""
    before = children()
    parameters = StdioServerParameters(command=command, args=list(arguments), cwd=ROOT)
    async with Client(parameters) as client:
        (pid,) = children() - before
        yield sdk_call(client, tool), pid


def sdk_call(client: Client, tool: str) -> Call:
    """A call by the SDK's client.

    Raises:
        NotMeasuredError: it talks in another revision than the others.
    """
    if client.protocol_version != REVISION:
        raise NotMeasuredError(f"the SDK's client speaks {client.protocol_version} with {tool}")

    async def call(number: int) -> int:
        result = await client.call_tool(tool, {"a": number, "b": 1, "note": NOTE})
        return result.structured_content["sum"]

    return call


@asynccontextmanager
async def opwire_over_stdio(command: str, arguments: Sequence[str]) -> AsyncGenerator[tuple[Call, int]]:
    """`from_mcp`, followed by a registry; the call, and the process that answers."""
    before = children()
    server = StdioServer(command, tuple(arguments), cwd=str(ROOT))
    registry = OperationRegistry()
    async with from_mcp(server, namespace="peer") as source:
        (spoken,) = (each.protocol for each in source.servers.values())
        if spoken != REVISION:
            raise NotMeasuredError(f"from_mcp speaks {spoken}")
        (pid,) = children() - before
        registry.follow(source)

        async def call(number: int) -> int:
            envelope = await registry.execute("peer.add", {"a": number, "b": 1, "note": NOTE})
            return envelope.data["sum"]

        yield call, pid
