"""A tool call over stdio, by the SDK's client, by `from_mcp` and by the peers; and a registry served as tools."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from importlib.metadata import version

from mcp import Client

from benchmarks.exchanges import Call, Figures, Way, beside, measured_peer, race, rows, served, version_in
from benchmarks.mcp_tools.bare_pipe import bare_over_stdio
from benchmarks.mcp_tools.clients import SDK_SERVER, opwire_over_stdio, sdk_call, sdk_over_stdio
from benchmarks.mcp_tools.sessions import CALLS, HANDSHAKE, SESSIONS, STATELESS, ServedTool, many_sessions
from benchmarks.measure import Row, Table, compared
from benchmarks.peers import python_of

_CLIENT_LIMIT, _SERVER_LIMIT = 0.35, 0.3  # times the CPU time of the SDK
_BARE = "JSON-RPC by hand"
_PEERS = {"fastmcp": "benchmarks.peers.fastmcp_client", "utcp": "benchmarks.peers.utcp_mcp_client"}


def tables() -> Iterator[Table]:
    """Calling over stdio, then serving over stdio and over streamable HTTP, and many sessions at once."""
    table, figures = asyncio.run(_calling())
    yield Table("a tool call over stdio, one at a time", "µs", "SDK", table)
    ladder = _cpu({each.name: each.client for each in figures}, _CLIENT_LIMIT)
    yield Table("CPU time of these clients", "µs", "SDK", ladder)
    table, figures = asyncio.run(_serving_stdio())
    yield Table("a served tool over stdio, by the SDK's client", "µs", "SDK", table)
    ladder = _cpu({each.name: each.server or 0.0 for each in figures}, _SERVER_LIMIT)
    yield Table("CPU time of these servers", "µs", "SDK", ladder)
    yield Table("a served tool over streamable HTTP", "µs", "SDK", asyncio.run(_serving_http()))
    servers = _servers()
    for revision in (HANDSHAKE, STATELESS):
        title = f"{SESSIONS} sessions of {revision} over HTTP at once, {CALLS} calls each"
        yield Table(title, "calls/s", "SDK", asyncio.run(many_sessions(servers, servers[1].name, revision)))


def _cpu(times: dict[str, float], limit: float) -> list[Row]:
    """The CPU time of a call in one process, beside that of the SDK, which is the first."""
    sdk = next(iter(times.values()))
    return [compared(name, time, sdk, limit if name.startswith("opwire") else None) for name, time in times.items()]


async def _calling() -> tuple[list[Row], list[Figures]]:
    async with (
        sdk_over_stdio(sys.executable, SDK_SERVER, "add") as (sdk, sdk_server),
        opwire_over_stdio(sys.executable, SDK_SERVER) as (opwire, opwire_server),
        bare_over_stdio(sys.executable, SDK_SERVER) as (bare, bare_server),
    ):
        ways = [
            Way(f"mcp {version('mcp')}: its own Client", sdk, sdk_server),
            Way(f"opwire {version('opwire')}: from_mcp, execute", opwire, opwire_server),
            Way(_BARE, bare, bare_server),
        ]
        figures = await race(ways)
    table = rows(ways, figures, ways[1].name)
    for peer, module in _PEERS.items():
        table += beside(measured_peer(peer, module, sys.executable), figures[1].ratio)
    return table, figures


def _servers() -> list[ServedTool]:
    return [
        ServedTool(f"mcp {version('mcp')}: its low-level Server", "benchmarks.mcp_tools.sdk_server", "add"),
        ServedTool(f"opwire {version('opwire')}: serve_mcp", "benchmarks.mcp_tools.opwire_server", "work_add"),
        ServedTool(f"fastmcp {version_in('fastmcp', 'fastmcp')}", "benchmarks.peers.fastmcp_tools", "add", "fastmcp"),
    ]


def _ways(servers: list[ServedTool], calls: list[tuple[Call, int]]) -> list[Way]:
    return [Way(each.name, *call, behind=each.peer is not None) for each, call in zip(servers, calls, strict=True)]


async def _serving_stdio() -> tuple[list[Row], list[Figures]]:
    servers = [*_servers(), ServedTool(_BARE, "benchmarks.mcp_tools.bare_pipe", "add")]
    async with AsyncExitStack() as stack:
        calls: list[tuple[Call, int]] = []
        for each in servers:
            python = sys.executable if each.peer is None else python_of(each.peer)
            client = sdk_over_stdio(python, ("-m", each.module, "stdio"), each.tool)
            calls.append(await stack.enter_async_context(client))
        ways = _ways(servers, calls)
        figures = await race(ways)
        return rows(ways, figures, ways[1].name), figures


async def _serving_http() -> list[Row]:
    servers = _servers()
    async with AsyncExitStack() as stack:
        calls: list[tuple[Call, int]] = []
        for each in servers:
            server = await stack.enter_async_context(served(each.module, "http", peer=each.peer))
            client = await stack.enter_async_context(Client(f"{server.address}/mcp"))
            calls.append((sdk_call(client, each.tool), server.pid))
        ways = _ways(servers, calls)
        return rows(ways, await race(ways), ways[1].name)
