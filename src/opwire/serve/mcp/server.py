"""A registry as the SDK's low-level server: its tools, its calls, its changes.

Tells connected clients that the list of tools has changed: once for many changes that come together.

How far a call has come, as progress notifications: of a handler that reports, and of a subscription's items.

Calls of tools: access, input, the registry, the result. Every call that a client may make ends in a result.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from math import inf, isfinite
from typing import Any
from uuid import uuid4

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler, ServerEvent, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    NotificationParams,
    PaginatedRequestParams,
    ProgressNotification,
    ProgressNotificationParams,
    methods,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.invoke import CLOSE_GRACE, failure, leave_behind
from opwire.operation import Context, Identity, Inbound, OperationType, Progress, check_access, trace_of
from opwire.origin import ITEM_META
from opwire.registry import Change, OperationRegistry
from opwire.serve.mcp.results import Answering, Result, Sendable, collected_result, error_result, result_of, sendable
from opwire.serve.mcp.tools import Catalogue, Tool
from opwire.typed.plain import replace_surrogates

Listener = Callable[[ServerEvent], None]


class Changes:
    """The changes of a registry as events; the SDK's `SubscriptionBus`. It watches while somebody listens.

    `delay` is the time in seconds that further changes have to be told of together.
    """

    def __init__(self, registry: OperationRegistry, *, delay: float = 0.05) -> None:
        self._registry = registry
        self._delay = delay
        self._listeners: dict[object, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._end_watch: Callable[[], None] | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of changes; the function that is returned ends it."""
        key = object()
        self._listeners[key] = listener
        if self._end_watch is None:
            self._end_watch = self._watch(asyncio.get_running_loop())

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if not self._listeners:
                self._stop()

        return unsubscribe

    async def publish(self, event: ServerEvent) -> None:
        """Tell everybody."""
        for listener in tuple(self._listeners.values()):
            listener(event)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        def changed(_: Change) -> None:  # called by whatever thread changes the registry
            loop.call_soon_threadsafe(self._wait, loop)

        return self._registry.on_change(changed)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._listeners:
            self._timer = loop.call_later(self._delay, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for listener in tuple(self._listeners.values()):
            listener(ToolsListChanged())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None


_MAX_MESSAGE = 200
_MAX_REPORT = 2000

RequestContext = ServerRequestContext[Any, Any]


def progress_token(ctx: RequestContext) -> str | int | None:
    """The token of a client that wants to know."""
    return None if ctx.meta is None else ctx.meta.get("progress_token")


class Reports:
    """Sends what a handler reports, as fast as the client takes it: what is overtaken by a newer one is left out."""

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        self._highest = float("-inf")
        self._sending: asyncio.Task[None] | None = None
        self._any = False
        self._closed = False

    def __call__(self, progress: Progress) -> None:
        """Take a report, from whatever thread."""
        self._any = True
        self._loop.call_soon_threadsafe(self._take, progress)

    def _take(self, progress: Progress) -> None:
        sent = _sendable(progress)
        if self._closed or sent is None or not sent.progress > self._highest:  # the protocol: each above the one before
            return
        self._latest, self._highest = sent, sent.progress
        if self._sending is None:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while (latest := self._latest) is not None:
            self._latest = None
            await self._ctx.session.report_progress(latest.progress, latest.total, latest.message)
        self._sending = None

    async def flush(self) -> None:
        """Wait until everything is sent that was reported before."""
        if self._any:
            await asyncio.sleep(0)  # they are on their way through the loop
        if self._sending is not None:
            await self._sending

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        if self._sending is not None:
            self._sending.cancel()


def _sendable(progress: Progress) -> Progress | None:
    """What can be sent of what a handler reports: what has no JSON form would cost the whole connection."""
    reached, message = _number(progress.progress), progress.message
    if reached is None:
        return None
    shown = None if message is None else replace_surrogates(str(message)[:_MAX_REPORT])
    return Progress(reached, _number(progress.total), shown)


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else inf
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if isfinite(number) else None


async def send_item(ctx: RequestContext, token: str | int, number: int, item: Sendable) -> None:
    """Tell the client of one item of a subscription, the first being number 0."""
    carried: dict[str, Any] = {"n": number, "data": item.data}
    if item.encoding is not None:
        carried["encoding"] = item.encoding
    shown = item.json[: 4 * _MAX_MESSAGE].decode(errors="ignore")
    message = shown if len(shown) <= _MAX_MESSAGE else f"{shown[:_MAX_MESSAGE]}…"
    params = ProgressNotificationParams(
        progress_token=token, progress=number + 1, message=message, _meta={ITEM_META: carried}
    )
    await ctx.session.send_notification(ProgressNotification(params=params), related_request_id=ctx.request_id)


logger = logging.getLogger("opwire.serve")


class Limits(Struct, frozen=True, kw_only=True):
    """How long a call may take, and how much is collected of a subscription. Times are in seconds."""

    timeout: float | None = 30.0  # of an operation that has none of its own
    max_items: int = 100
    max_seconds: float = 30.0
    max_bytes: int = 4 * 1024 * 1024  # of the items in JSON; the one that goes beyond it is the last


class Call(Struct, frozen=True, kw_only=True):
    """A call that a client makes."""

    tool: Tool
    arguments: dict[str, Any]
    identity: Identity | None
    ctx: RequestContext
    answering: Answering


async def answer(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    """The result of a call, whatever becomes of it.

    Raises:
        CancelledError: the client gave up, or is gone; the handler was cancelled.
    """
    return await _apart(_answer(call, registry, limits), call.tool.spec.id)


async def _apart(work: Coroutine[Any, Any, Result], label: str) -> Result:
    """Run something in a task of its own.

    The SDK cancels with anyio, which cancels a task again at every await until it is gone: no handler could clean up.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task], timeout=1.2 * CLOSE_GRACE)  # one with a deadline is left behind before
        if not task.done():
            leave_behind(task, label)
        raise


async def _answer(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    spec = call.tool.spec
    try:
        check_access(spec, call.identity)
        if spec.type is OperationType.SUBSCRIPTION:
            return await _collected(call, registry, limits)
        return await _executed(call, registry, limits)
    except CallError as error:
        return error_result(error, call.tool, call.answering)
    except Exception as unforeseen:
        return error_result(failure(unforeseen, spec.id), call.tool, call.answering)


async def _executed(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    spec = call.tool.spec
    reports = Reports(call.ctx)
    context = _context(call, reports).within(limits.timeout if spec.timeout is None else spec.timeout)
    try:
        envelope = await registry.execute(spec.id, _input(call), context)
        result = result_of(envelope, call.tool, call.answering)
        await reports.flush()
        return result
    finally:
        reports.close()


async def _collected(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    """What comes of a subscription until it ends or a limit is reached; each item is also told at once."""
    items: list[Sendable] = []
    size, complete, failed = 0, False, None
    envelopes = registry.subscribe(call.tool.spec.id, _input(call), _context(call, None))
    token = progress_token(call.ctx)
    try:
        async with asyncio.timeout(limits.max_seconds), aclosing(envelopes):
            async for envelope in envelopes:
                items.append(sendable(envelope.data, call.tool.spec.id))
                if token is not None:
                    await send_item(call.ctx, token, len(items) - 1, items[-1])
                size += len(items[-1].json)
                if len(items) >= limits.max_items or size >= limits.max_bytes:
                    break
            else:
                complete = True
    except TimeoutError:
        pass
    except CallError as error:
        if not items:
            raise
        failed = error
    return collected_result(items, call.tool, call.answering, complete=complete, error=failed)


def _context(call: Call, reports: Reports | None) -> Context:
    meta: Any = call.ctx.meta or {}
    trace = trace_of(meta)
    request_id = uuid4().hex  # our own: the client's is unique only on its own connection
    return Context(
        request_id=request_id,
        identity=call.identity,
        metadata=trace,
        on_progress=reports,
        inbound=Inbound(request_id),
    )


def _input(call: Call) -> Any:
    """The operation's input, out of its wrapper if it has one.

    Raises:
        CallError: VALIDATION_ERROR.
    """
    if not call.tool.wraps_input:
        return call.arguments
    unknown = call.arguments.keys() - {"input"}
    if unknown:
        wrong = f"{call.tool.spec.id}: the only argument is `input`, not {', '.join(sorted(unknown)[:3])}"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
    return call.arguments.get("input")


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
