"""A registry as the SDK's low-level server: list tools, call them, report progress, notify of changes.

Every call of a known tool returns a result; an error becomes a result with `isError`. Progress is reported for handlers
that report it, and for each item of a subscription. Many changes of the registry become one notification.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import msgspec
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

from opwire.dispatch import Dispatcher
from opwire.errors import CallError, ErrorCode
from opwire.invoke import CLOSE_GRACE, failure, leave_behind
from opwire.logs import CANCELLED, TOOL_ERROR, AccessEntry, begin_access
from opwire.operation import Context, Identity, Inbound, OperationType, Progress, trace_of
from opwire.origin import ITEM_META
from opwire.registry import Change, OperationRegistry
from opwire.serve.guard import IDENTITY
from opwire.serve.mcp.tools import (
    EncodedData,
    Result,
    ResultFormat,
    Tool,
    ToolCatalogue,
    collected_result,
    encode_data,
    error_result,
    result_of,
)
from opwire.typed.plain import write_json

RequestContext = ServerRequestContext[Any, Any]
EventListener = Callable[[ServerEvent], None]

NotifiedSessions = set[str | None]
"""The sessions of one run that get notifications; None is the only session of a connection without session ids."""

_SESSION = "mcp-session-id"
_MAX_ITEM_MESSAGE = 200
_encoder = msgspec.json.Encoder()


class CallLimits(Struct, frozen=True, kw_only=True):
    """The timeout of a call, and how much of a subscription is collected. Times are in seconds."""

    timeout: float | None = 30.0  # default of operations without their own
    max_items: int = 100
    max_seconds: float = 30.0
    max_bytes: int = 4 * 1024 * 1024  # of the items as JSON; the item that exceeds it is the last


class ImplementationInfo(Struct, frozen=True, kw_only=True):
    """The server's description of itself."""

    name: str
    version: str
    title: str | None
    instructions: str | None


class ServedTools(Struct, frozen=True, kw_only=True):
    """The tools of a surface and how they are called; shared by all connections."""

    dispatcher: Dispatcher
    catalogue: ToolCatalogue
    limits: CallLimits
    max_page: int
    tool_envelopes: bool


class RegistryServer(Server[NotifiedSessions]):
    """Serve the operations of a registry as tools.

    `trusted` is the identity of every request; by default each has the one that the guard found for it.
    """

    def __init__(self, info: ImplementationInfo, served: ServedTools, trusted: Identity | None = None) -> None:
        self._served = served
        self._trusted = trusted
        self._bus = ToolListBus(served.dispatcher.registry)
        self._listeners = ListenHandler(self._bus)
        super().__init__(
            info.name,
            version=info.version,
            title=info.title,
            instructions=info.instructions,
            lifespan=_notified_sessions,
            get_tool_input_schema=served.catalogue.input_schema,
            on_subscriptions_listen=self._listeners,
        )
        self.add_request_handler("tools/list", PaginatedRequestParams, self._list_tools)
        self.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)
        self.add_notification_handler("notifications/initialized", NotificationParams, self._notify_of_changes)
        self.middleware.append(self._return_unchanged)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return the SDK's options; by default they announce notifications of changes."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)

    def end_streams(self) -> None:
        """End the streams on which clients of revision 2026-07-28 listen for changes."""
        self._listeners.close()

    async def _return_unchanged(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Return the results of tool requests unchanged.

        The SDK would parse each result into its models, which drop a null and unknown fields. So this middleware has to
        return the complete result.
        """
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        handler = {"tools/list": self._list_tools, "tools/call": self._call_tool}.get(ctx.method)
        if handler is None or not (is_modern or ctx.session.client_params):  # the SDK rejects it before the handshake
            return await call_next(ctx)
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        result = await handler(ctx, None)
        if is_modern:
            meta = {**result.get("_meta", {}), SERVER_INFO_META_KEY: self.server_info_stamp}
            return {"resultType": "complete", **result, "_meta": meta}
        return result

    async def _list_tools(self, ctx: RequestContext, _: Any) -> Result:
        cursor = (ctx.params or {}).get("cursor")
        try:
            tools, more = self._served.catalogue.page(self._identity(ctx), cursor, self._served.max_page)
        except CallError as error:
            raise MCPError(INVALID_PARAMS, error.message) from None
        page: Result = {} if more is None else {"nextCursor": more}
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            # Stale at once, and for this client only: the list depends on the caller.
            return {"tools": [tool.shape for tool in tools], "ttlMs": 0, "cacheScope": "private", **page}
        return {"tools": [tool.older for tool in tools], **page}

    async def _call_tool(self, ctx: RequestContext, _: Any) -> Result:
        params = ctx.params or {}
        tool = self._served.catalogue.find(params["name"])
        if tool is None:
            entry = begin_access("mcp", operation=params["name"], identity=self._identity(ctx))
            if entry is not None:
                entry.outcome = ErrorCode.OPERATION_NOT_FOUND.value
                entry.write()
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params['name'][:100]}")
        call = ToolCall(
            tool=tool,
            arguments=params.get("arguments") or {},
            identity=self._identity(ctx),
            request_id=uuid4().hex,  # our own: the client's is unique on its own connection only
            ctx=ctx,
            format=ResultFormat(ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS, self._served.tool_envelopes),
            dispatcher=self._served.dispatcher,
            limits=self._served.limits,
        )
        return await call.run()

    def _identity(self, ctx: RequestContext) -> Identity | None:
        if self._trusted is not None or ctx.request is None:
            return self._trusted
        return ctx.request.scope.get(IDENTITY)

    async def _notify_of_changes(self, ctx: RequestContext, _: Any) -> None:
        """Notify a client of an older revision of changes, until its connection ends and cancels this."""
        session = None if ctx.request is None else ctx.request.headers.get(_SESSION)
        notified: NotifiedSessions = ctx.lifespan_context
        if session in notified:  # a duplicate `initialized`
            return
        changed = asyncio.Event()
        unsubscribe = self._bus.subscribe(lambda _: changed.set())
        notified.add(session)
        try:
            while await changed.wait():
                changed.clear()
                await ctx.session.send_tool_list_changed()
        finally:
            notified.discard(session)
            unsubscribe()


@asynccontextmanager
async def _notified_sessions(_: Server[NotifiedSessions]) -> AsyncGenerator[NotifiedSessions]:
    yield set()


# --- calls ------------------------------------------------------------------------------------------------------------


class ToolCall(Struct, frozen=True, kw_only=True):
    """One `tools/call` request."""

    tool: Tool
    arguments: dict[str, Any]
    identity: Identity | None
    request_id: str
    ctx: RequestContext
    format: ResultFormat
    dispatcher: Dispatcher
    limits: CallLimits

    async def run(self) -> Result:
        """Return the result of the call, successful or not.

        It runs in a task of its own: the SDK cancels with anyio, which cancels a task again at every await until it
        ends, so that handlers could not clean up.

        Raises:
            CancelledError: the client cancelled or disconnected; the handler was cancelled.
        """
        entry = begin_access("mcp", operation=self.tool.spec.id, identity=self.identity)
        task = asyncio.create_task(self._run(entry))
        try:
            result = await asyncio.shield(task)
            if entry is not None:
                entry.bytes = len(write_json(_encoder, result))
            return result
        except asyncio.CancelledError:
            if entry is not None:
                entry.outcome = CANCELLED
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task], timeout=1.2 * CLOSE_GRACE)  # a call with a deadline is abandoned before
            if not task.done():
                leave_behind(task, self.tool.spec.id)
            raise
        finally:
            if entry is not None:
                entry.request_id = self.request_id
                entry.write()

    async def _run(self, entry: AccessEntry | None) -> Result:
        spec = self.tool.spec
        try:
            self.dispatcher.find(spec.id, self.identity)
            if spec.type is OperationType.SUBSCRIPTION:
                return await self._collect(entry)
            input, progress = self._input(), ProgressReporter(self.ctx)
            context = self._context(progress).within(self.limits.timeout if spec.timeout is None else spec.timeout)
            try:
                envelope = await self.dispatcher.execute(spec, input, context)
                result = result_of(envelope, self.tool, self.format)
                if entry is not None and result.get("isError"):
                    entry.outcome = TOOL_ERROR
                await progress.flush()
                return result
            finally:
                progress.close()
        except Exception as raised:
            error = failure(raised, spec.id)
            if entry is not None:
                entry.failed(error)
            return error_result(error, self.tool, self.format)

    async def _collect(self, entry: AccessEntry | None) -> Result:
        """Collect the items of a subscription until it ends or a limit is reached; each is also sent as progress."""
        items: list[EncodedData] = []
        size, complete, failed = 0, False, None
        envelopes = self.dispatcher.subscribe(self.tool.spec, self._input(), self._context(None))
        token = None if self.ctx.meta is None else self.ctx.meta.get("progress_token")
        try:
            async with asyncio.timeout(self.limits.max_seconds), aclosing(envelopes):
                async for envelope in envelopes:
                    items.append(encode_data(envelope.data, self.tool.spec.id))
                    if token is not None:
                        await send_item(self.ctx, token, len(items) - 1, items[-1])
                    size += len(items[-1].json)
                    if len(items) >= self.limits.max_items or size >= self.limits.max_bytes:
                        break
                else:
                    complete = True
        except TimeoutError:
            pass
        except CallError as error:
            if not items:
                raise
            failed = error
            if entry is not None:
                entry.failed(error)
        return collected_result(items, self.tool, self.format, complete=complete, error=failed)

    def _context(self, progress: "ProgressReporter | None") -> Context:
        meta: Any = self.ctx.meta or {}
        return Context(
            request_id=self.request_id,
            identity=self.identity,
            metadata=trace_of(meta),
            on_progress=progress,
            inbound=Inbound(self.request_id),
        )

    def _input(self) -> Any:
        """Return the operation's input, without its wrapper.

        Raises:
            CallError: VALIDATION_ERROR, for unknown arguments.
        """
        if not self.tool.wraps_input:
            return self.arguments
        unknown = self.arguments.keys() - {"input"}
        if unknown:
            names = ", ".join(sorted(unknown)[:3])
            wrong = f"{self.tool.spec.id}: unknown arguments {names}; the only argument is `input`"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        return self.arguments.get("input")


# --- notifications ----------------------------------------------------------------------------------------------------


async def send_item(ctx: RequestContext, token: str | int, number: int, item: EncodedData) -> None:
    """Send one item of a subscription as progress; the first is number 0."""
    carried: dict[str, Any] = {"n": number, "data": item.data}
    if item.encoding is not None:
        carried["encoding"] = item.encoding
    shown = item.json[: 4 * _MAX_ITEM_MESSAGE].decode(errors="ignore")
    message = shown if len(shown) <= _MAX_ITEM_MESSAGE else f"{shown[:_MAX_ITEM_MESSAGE]}…"
    params = ProgressNotificationParams(
        progress_token=token, progress=number + 1, message=message, _meta={ITEM_META: carried}
    )
    await ctx.session.send_notification(ProgressNotification(params=params), related_request_id=ctx.request_id)


class ProgressReporter:
    """Send the progress of a handler as fast as the client reads; a newer report replaces a queued one."""

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        self._highest = float("-inf")
        self._sending: asyncio.Task[None] | None = None
        self._any = False
        self._closed = False

    def __call__(self, progress: Progress) -> None:
        """Queue a report, from any thread."""
        self._any = True
        self._loop.call_soon_threadsafe(self._queue, progress)

    def _queue(self, progress: Progress) -> None:
        """Queue the valid part of a report: a value without a JSON form would break the whole connection."""

        valid = progress.bounded()
        if self._closed or valid is None or not valid.progress > self._highest:  # the protocol requires it to increase
            return
        self._latest, self._highest = valid, valid.progress
        if self._sending is None:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while (latest := self._latest) is not None:
            self._latest = None
            await self._ctx.session.report_progress(latest.progress, latest.total, latest.message)
        self._sending = None

    async def flush(self) -> None:
        """Wait until all earlier reports are sent."""
        if self._any:
            await asyncio.sleep(0)  # they are queued on the loop
        if self._sending is not None:
            await self._sending

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        if self._sending is not None:
            self._sending.cancel()


class ToolListBus:
    """The changes of a registry as events; the SDK's `SubscriptionBus`. It follows the registry while it has listeners.

    Changes within `delay` seconds are one event.
    """

    def __init__(self, registry: OperationRegistry, *, delay: float = 0.05) -> None:
        self._registry = registry
        self._delay = delay
        self._listeners: dict[object, EventListener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unfollow: Callable[[], None] | None = None

    def subscribe(self, listener: EventListener) -> Callable[[], None]:
        """Call a listener for every event; the returned function removes it."""
        key, loop = object(), asyncio.get_running_loop()

        def changed(_: Change) -> None:  # called on the thread that changes the registry
            loop.call_soon_threadsafe(self._schedule, loop)

        self._listeners[key] = listener
        if self._unfollow is None:
            self._unfollow = self._registry.on_change(changed)

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if self._listeners:
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._unfollow is not None:
                self._unfollow()
                self._unfollow = None

        return unsubscribe

    async def publish(self, event: ServerEvent) -> None:
        """Call every listener."""
        for listener in tuple(self._listeners.values()):
            listener(event)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        def notify() -> None:
            self._timer = None
            for listener in tuple(self._listeners.values()):
                listener(ToolsListChanged())

        if self._timer is None and self._listeners:
            self._timer = loop.call_later(self._delay, notify)
