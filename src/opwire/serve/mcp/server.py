"""A registry as the SDK's low-level server: its tools, its calls, its changes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    NotificationParams,
    PaginatedRequestParams,
    methods,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct

from opwire.errors import CallError
from opwire.operation import Identity
from opwire.registry import OperationRegistry
from opwire.serve.mcp.calls import Call, Limits, answer
from opwire.serve.mcp.changes import Changes
from opwire.serve.mcp.progress import RequestContext
from opwire.serve.mcp.results import Answering, Result
from opwire.serve.mcp.tools import Catalogue

_SESSION = "mcp-session-id"

Told = set[str | None]
"""The sessions of one run that are told of changes; None is the only one of a connection that has no other name."""


class About(Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    name: str
    version: str
    title: str | None
    instructions: str | None


class Serving(Struct, frozen=True, kw_only=True):
    """What is served, and how; the same for every connection."""

    registry: OperationRegistry
    catalogue: Catalogue
    limits: Limits
    page_size: int
    tool_envelopes: bool


class RegistryServer(Server[Told]):
    """Serves a registry's operations as tools. `identify` says who sends a request."""

    def __init__(self, about: About, serving: Serving, identify: Callable[[RequestContext], Identity | None]) -> None:
        self._serving = serving
        self._identify = identify
        self._changes = Changes(serving.registry)
        self._listeners = ListenHandler(self._changes)
        super().__init__(
            about.name,
            version=about.version,
            title=about.title,
            instructions=about.instructions,
            lifespan=_told,
            get_tool_input_schema=self._input_schema,
            on_subscriptions_listen=self._listeners,
        )
        self.add_request_handler("tools/list", PaginatedRequestParams, self._list_tools)
        self.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)
        self.add_notification_handler("notifications/initialized", NotificationParams, self._tell_of_changes)
        self.middleware.append(self._answer_whole)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """As the SDK's, but clients are told that they will hear of changes."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)

    def end_streams(self) -> None:
        """End the streams on which clients of revision 2026-07-28 listen for changes."""
        self._listeners.close()

    # --- tools ------------------------------------------------------------------------------------------------------

    async def _answer_whole(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Answer requests for tools as they are to be answered.

        The SDK would read each result into models of its own, which lose a null and the fields that they do not know.
        Who answers here answers for the whole result.
        """
        handler = {"tools/list": self._list_tools, "tools/call": self._call_tool}.get(ctx.method)
        if handler is None or not (_is_modern(ctx) or ctx.session.client_params):  # before the handshake: the SDK's
            return await call_next(ctx)
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        result = await handler(ctx, None)
        if _is_modern(ctx):
            meta = {**result.get("_meta", {}), SERVER_INFO_META_KEY: self.server_info_stamp}
            return {"resultType": "complete", **result, "_meta": meta}
        return result

    async def _list_tools(self, ctx: RequestContext, _: Any) -> Result:
        cursor = (ctx.params or {}).get("cursor")
        try:
            tools, more = self._serving.catalogue.page(self._identify(ctx), cursor, self._serving.page_size)
        except CallError as error:
            raise MCPError(INVALID_PARAMS, error.message) from None
        page: Result = {} if more is None else {"nextCursor": more}
        if _is_modern(ctx):
            # Stale at once, and for this client alone: what is listed depends on who asks.
            return {"tools": [tool.shape for tool in tools], "ttlMs": 0, "cacheScope": "private", **page}
        return {"tools": [tool.older for tool in tools], **page}

    async def _call_tool(self, ctx: RequestContext, _: Any) -> Result:
        params = ctx.params or {}
        tool = self._serving.catalogue.find(params["name"])
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params['name'][:100]}")
        call = Call(
            tool=tool,
            arguments=params.get("arguments") or {},
            identity=self._identify(ctx),
            ctx=ctx,
            answering=Answering(not _is_modern(ctx), self._serving.tool_envelopes),
        )
        return await answer(call, self._serving.registry, self._serving.limits)

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self._serving.catalogue.find(name)
        return None if tool is None else tool.shape["inputSchema"]

    # --- changes ----------------------------------------------------------------------------------------------------

    async def _tell_of_changes(self, ctx: RequestContext, _: Any) -> None:
        """Tell a client of the handshake era of changes, until its connection ends and cancels this."""
        session = None if ctx.request is None else ctx.request.headers.get(_SESSION)
        told: Told = ctx.lifespan_context
        if session in told:  # it said twice that it is there
            return
        changed = asyncio.Event()
        unsubscribe = self._changes.subscribe(lambda _: changed.set())
        told.add(session)
        try:
            while await changed.wait():
                changed.clear()
                await ctx.session.send_tool_list_changed()
        finally:
            told.discard(session)
            unsubscribe()


@asynccontextmanager
async def _told(_: Server[Told]) -> AsyncGenerator[Told]:
    yield set()


def _is_modern(ctx: RequestContext) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
