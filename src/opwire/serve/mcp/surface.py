"""`serve_mcp`: a registry as an MCP server."""

from collections.abc import Callable
from typing import Unpack

from opwire.call import LOCAL_IDENTITY
from opwire.errors import check_above_zero, check_counts
from opwire.operation import Identity, OperationSpec
from opwire.registry import OperationRegistry
from opwire.serve.door import identity_of
from opwire.serve.listener import run_until_signalled
from opwire.serve.mcp.app import HTTPOptions, MCPApp
from opwire.serve.mcp.calls import Limits
from opwire.serve.mcp.progress import RequestContext
from opwire.serve.mcp.server import About, RegistryServer, Serving
from opwire.serve.mcp.stdio import stdio_streams
from opwire.serve.mcp.tools import Catalogue


class MCPSurface:
    """A registry as an MCP server; nothing runs until one of its methods is called. Made by `serve_mcp`."""

    def __init__(self, about: About, serving: Serving, identity: Identity) -> None:
        self._about = about
        self._serving = serving
        self._identity = identity

    def __repr__(self) -> str:
        return f"<MCPSurface {self._about.name!r} of {self._serving.registry!r}>"

    def sdk_server(self) -> RegistryServer:
        """The SDK's server for callers that are trusted: to run on a transport of one's own, or in a test.

        async with mcp.Client(surface.sdk_server()) as client: ...
        """
        return RegistryServer(self._about, self._serving, lambda _: self._identity)

    async def run_stdio(self) -> None:
        """Serve the process that started this one, on standard input and output, until it closes them.

        Raises:
            CallError: UNAVAILABLE, if they are closed already.
        """
        server = self.sdk_server()
        async with stdio_streams() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    async def run_http(self, host: str = "127.0.0.1", port: int = 8000, **options: Unpack[HTTPOptions]) -> None:
        """Serve over streamable HTTP at `/mcp`, until SIGINT or SIGTERM, or until the task is cancelled.

        Raises:
            CallError: UNAVAILABLE, if the address cannot be listened on.
        """
        app = self.asgi(**options)
        await run_until_signalled(app, host, port, on_drain=app.drain)

    def asgi(self, **options: Unpack[HTTPOptions]) -> MCPApp:
        """The server as an ASGI app, for a server of one's own or to be mounted into another app.

            app = Starlette(routes=[Mount("/", surface.asgi(authenticate=..., hosts=["tools.example"]))])

        Without `authenticate` and without `identity` only public operations can be called.
        """
        server = RegistryServer(self._about, self._serving, _sender)
        return MCPApp(server, self._serving.catalogue, **options)


def serve_mcp(
    registry: OperationRegistry,
    *,
    name: str = "opwire",
    version: str = "",
    title: str | None = None,
    instructions: str | None = None,
    identity: Identity = LOCAL_IDENTITY,
    serves: Callable[[OperationSpec], bool] | None = None,
    timeout: float | None = 30.0,
    max_items: int = 100,
    max_seconds: float = 30.0,
    max_bytes: int = 4 * 1024 * 1024,
    page_size: int = 100,
    tool_envelopes: bool = False,
) -> MCPSurface:
    """A registry as an MCP server: every operation is a tool.

        server = serve_mcp(registry, name="shop", version="1.0")
        asyncio.run(server.run_stdio())

    `identity` is who calls over stdio. `serves` picks the operations that are shown. `timeout` is in seconds, for
    operations that have none of their own. Of a subscription at most `max_items` are collected in at most
    `max_seconds`, and none after `max_bytes` of JSON. `tool_envelopes` writes results and errors as ToolEnvelope V1.

    Raises:
        CallError: VALIDATION_ERROR, if one of the numbers is not above zero.
    """
    check_above_zero(timeout=timeout, max_seconds=max_seconds)
    check_counts(max_items=max_items, max_bytes=max_bytes, page_size=page_size)
    serving = Serving(
        registry=registry,
        catalogue=Catalogue(registry, serves),
        limits=Limits(timeout=timeout, max_items=max_items, max_seconds=max_seconds, max_bytes=max_bytes),
        page_size=page_size,
        tool_envelopes=tool_envelopes,
    )
    about = About(name=name, version=version, title=title, instructions=instructions)
    return MCPSurface(about, serving, identity)


def _sender(ctx: RequestContext) -> Identity | None:
    """Who sent a request over HTTP."""
    return None if ctx.request is None else identity_of(ctx.request.scope)
