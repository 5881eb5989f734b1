"""A call of an HTTP API by its OpenAPI document, against bare clients and the peers; and a registry served by HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from itertools import product
from typing import Any, NamedTuple

import aiohttp
import msgspec

from benchmarks.exchanges import Call, Way, beside, measured_peer, race, rows, served, version_in
from benchmarks.http.bare_aiohttp import aiohttp_calls
from benchmarks.http.bare_httpx2 import httpx2_calls
from benchmarks.http.document import Calls, asked, document
from benchmarks.measure import Row, Table
from opwire import OperationRegistry
from opwire.openapi.client import from_openapi

_LIMIT = 1.2  # times bare aiohttp
_SERVED_LIMITS = {1: 1.1, 32: 1.2}  # times bare Starlette, by requests in flight
_PARSERS = ("h11", "httptools")  # of uvicorn, which all of the servers run under
_JSON = {"content-type": "application/json"}


class _Peer(NamedTuple):
    """A peer, its script, and which of our ways its own control is."""

    name: str
    module: str
    control: int


_PEERS = (
    _Peer("fastmcp", "benchmarks.peers.fastmcp_openapi", control=2),
    _Peer("utcp", "benchmarks.peers.utcp_http_client", control=0),
)


class _Served(NamedTuple):
    name: str
    module: str
    arguments: tuple[str, ...] = ()
    peer: str | None = None


def tables() -> Iterator[Table]:
    """Calling by GET and by POST; serving with each parser, with one call in flight and with many."""
    for method in ("GET", "POST"):
        yield Table(f"{method} of an HTTP API, one at a time", "µs", "aiohttp", asyncio.run(_calling(method)))
    for parser, method, in_flight in product(_PARSERS, ("POST", "GET"), _SERVED_LIMITS):
        title = f"{method} of a served operation, {in_flight} in flight, {parser} {version(parser)}"
        yield Table(title, "µs", "first", asyncio.run(_serving(method, in_flight, parser)))


async def _calling(method: str) -> list[Row]:
    async with served("benchmarks.http.loopback") as server:
        address, pid = server
        lean: dict[str, Any] = {"cookie_jar": aiohttp.DummyCookieJar(), "timeout": aiohttp.ClientTimeout(total=None)}
        async with (
            aiohttp_calls(address) as bare,
            aiohttp_calls(address, **lean) as leaner,
            httpx2_calls(address) as httpx2,
            _opwire_calls(address) as opwire,
        ):
            ways = [
                Way(f"aiohttp {version('aiohttp')}, a pooled session", bare[method], pid),
                Way("the same without cookies and timeout", leaner[method], pid),
                Way(f"httpx2 {version('httpx2')}, a pooled client", httpx2[method], pid),
                Way(f"opwire {version('opwire')}: from_openapi, execute", opwire[method], pid, limit=_LIMIT),
            ]
            figures = await race(ways)
        table = rows(ways, figures, ways[3].name)
        for peer in _PEERS:
            measured = await asyncio.to_thread(measured_peer, peer.name, peer.module, method, address)
            table += beside(measured, figures[3].ratio, over=figures[peer.control].ratio)
    return table


@asynccontextmanager
async def _opwire_calls(address: str) -> AsyncGenerator[Calls]:
    registry = OperationRegistry()
    async with from_openapi(document(address), namespace="api") as source:
        registry.register_all(source)

        def calling(operation: str) -> Call:
            async def call(number: int) -> int:
                return (await registry.execute(operation, asked(number))).data["sum"]

            return call

        yield {"GET": calling("api.get_sum"), "POST": calling("api.post_sum")}


async def _serving(method: str, in_flight: int, parser: str) -> list[Row]:
    starlette, module = f"Starlette {version('starlette')}", "benchmarks.http.served_by_starlette"
    checked = [f"{name} {version(name)}" for name in ("jsonschema-rs", "pydantic")]
    servers = [
        _Served(f"{starlette}, {checked[0]}", module, (parser, "jsonschema-rs")),
        _Served(f"{starlette}, {checked[1]}", module, (parser, "pydantic")),
        _Served(f"opwire {version('opwire')}: serve_http", "benchmarks.http.served_by_opwire", (parser,)),
    ]
    if parser == "h11":  # the environment of FastAPI has no other
        name = f"FastAPI {version_in('fastapi', 'fastapi')}"
        servers.append(_Served(name, "benchmarks.peers.fastapi_app", (parser,), peer="fastapi"))
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        ways: list[Way] = []
        for each in servers:
            server = await stack.enter_async_context(served(each.module, *each.arguments, peer=each.peer))
            call = _client(session, method, f"{server.address}/math/add")
            limit = _SERVED_LIMITS[in_flight] if each is servers[2] else None
            ways.append(Way(each.name, call, server.pid, limit=limit, behind=each.peer is not None))
        return rows(ways, await race(ways, in_flight=in_flight), ways[2].name)


def _client(session: aiohttp.ClientSession, method: str, address: str) -> Call:
    async def post(number: int) -> int:
        body = msgspec.json.encode(asked(number))
        async with session.post(address, data=body, headers=_JSON) as response:
            return msgspec.json.decode(await response.read())["sum"]

    async def get(number: int) -> int:
        async with session.get(address, params=asked(number)) as response:
            return msgspec.json.decode(await response.read())["sum"]

    return post if method == "POST" else get
