"""A registry as an MCP server: list tools, call them, report progress, notify of changes. No I/O.

`RegistryServer` handles one request of any revision and transport; connections and HTTP exchanges give it a
`ServedRequest`. Every call of a known tool returns a result; an error becomes a result with `isError`. Progress is
reported for handlers that report it, and for each item of a subscription. Many changes of the registry become one
notification.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast
from uuid import uuid4

import msgspec
from msgspec import Struct, field

from opwire.caller import caller_metadata
from opwire.deadlines import CALL_TIMEOUT, MAX_SECONDS, Deadlines
from opwire.dispatch import Dispatcher
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.invoke import CLOSE_GRACE, failure, leave_behind, run_within
from opwire.logs import CANCELLED, INPUT_REQUIRED, TOOL_ERROR, AccessEntry, begin_access
from opwire.mcp.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RequestId,
    RPCError,
    RPCFailure,
    RPCMessage,
    RPCRequest,
    RPCResponse,
    encode_message,
)
from opwire.mcp.protocol import (
    CLIENT_CAPABILITIES_META,
    CLIENT_INFO_META,
    HANDSHAKE_VERSIONS,
    SERVER_INFO_META,
    STATELESS_VERSIONS,
    SUBSCRIPTION_META,
)
from opwire.operation import Context, Identity, Inbound, OperationType, Progress, trace_of
from opwire.origin import ITEM_META
from opwire.questions import Question, QuestionCallback
from opwire.registry import Change, OperationRegistry
from opwire.serve.mcp.questions import INPUT_METHODS, RequestStates, StatelessQuestions
from opwire.serve.mcp.tools import Result, ResultFormat, Tool, ToolCatalogue, collected_result, error_result, result_of
from opwire.tools.rendering import EncodedData, encode_data
from opwire.typed.plain import as_dict, write_json

logger = logging.getLogger("opwire.serve")

Params = dict[str, Any]
Notify = Callable[[str, Params], Awaitable[None]]

MAX_LISTENERS = 1024
"""Streams of one surface on which clients of revision 2026-07-28 listen for changes."""

P = TypeVar("P", bound=Struct)

_MAX_ITEM_MESSAGE = 200
_LIST_CHANGED = "notifications/tools/list_changed"
_encoder = msgspec.json.Encoder()


class CallLimits(Struct, frozen=True, kw_only=True):
    """The timeout of a call, and how much of a subscription is collected. Times are in seconds."""

    timeout: float | None = CALL_TIMEOUT  # without progress; default of operations without their own
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
    states: RequestStates
    deadlines: Deadlines = field(default_factory=Deadlines)


class ServedRequest(Struct):
    """One request, and how its handler reaches the client. `notify` sends what belongs to this request."""

    id: RequestId
    version: str
    identity: Identity | None
    notify: Notify
    label: str = "a request"  # for the log
    progress_token: RequestId | None = None
    token: str | None = None  # of the caller
    on_question: QuestionCallback | None = None  # None: the client cannot be asked

    @property
    def is_stateless(self) -> bool:
        """Whether its revision is one without a handshake."""
        return self.version in STATELESS_VERSIONS


class _Meta(Struct):
    progress_token: int | str | None = field(name="progressToken", default=None)
    client_info: dict[str, Any] | None = field(name=CLIENT_INFO_META, default=None)
    client_capabilities: dict[str, Any] | None = field(name=CLIENT_CAPABILITIES_META, default=None)


class _Params(Struct):
    meta: _Meta | None = field(name="_meta", default=None)


class _ListParams(_Params):
    cursor: str | None = None


class _CallParams(_Params, kw_only=True):
    name: str
    arguments: dict[str, Any] | None = None


class _Filter(Struct, rename="camel"):
    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


class _ListenParams(_Params, kw_only=True):
    notifications: _Filter


class _Implementation(Struct):
    name: str
    version: str


class _InitializeParams(_Params, kw_only=True, rename="camel"):
    protocol_version: str
    capabilities: dict[str, Any]
    client_info: _Implementation


class _ListenStream:
    def __init__(self) -> None:
        self.awake = asyncio.Event()  # set by changes, and by the end
        self.ended = False


class RegistryServer:
    """Serve the operations of a registry as tools.

    `trusted` is the identity of every request; by default each has the one that the guard found for it.
    """

    def __init__(self, info: ImplementationInfo, served: ServedTools, trusted: Identity | None = None) -> None:
        self.trusted = trusted
        self.catalogue = served.catalogue
        self.bus = ToolListBus(served.dispatcher.registry)
        self._served = served
        self._listeners: set[_ListenStream] = set()
        shown = {"name": info.name, "title": info.title, "version": info.version}
        self._info = {key: value for key, value in shown.items() if value is not None}
        self._description: Result = {"capabilities": {"tools": {"listChanged": True}}}
        if info.instructions is not None:
            self._description["instructions"] = info.instructions

    def initialize(self, params: Params | None) -> Result:
        """Return the result of the handshake; its revision is the one asked for, or else the latest.

        Raises:
            RPCError: the params are invalid.
        """
        wanted = _read(params, _InitializeParams).protocol_version
        version = wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return {"protocolVersion": version, **self._description, "serverInfo": self._info}

    async def respond(self, params: RPCRequest, request: ServedRequest) -> RPCMessage:
        """Return the response to a request; whatever goes wrong is in it."""
        try:
            return RPCResponse(request.id, await self.handle(params.method, params.params, request))
        except RPCError as error:
            return RPCFailure.of(request.id, error)
        except Exception:
            logger.exception("a request of an MCP client failed")
            return RPCFailure.of(request.id, RPCError(INTERNAL_ERROR, "Internal server error"))

    async def handle(self, method: str, params: Params | None, request: ServedRequest) -> Result:
        """Return the result of a request, after the handshake or without one.

        Raises:
            RPCError: the method is unknown, or its params are invalid.
        """
        if not request.is_stateless:
            return await self._result(method, params, request)
        if method in INPUT_METHODS:
            result = await self._result_or_questions(method, params or {}, request)
        else:
            result = await self._result(method, params, request)
        return {"resultType": "complete", **result, "_meta": {**result.get("_meta", {}), SERVER_INFO_META: self._info}}

    async def _result_or_questions(self, method: str, params: Params, request: ServedRequest) -> Result:
        """Return the result of a request, or the questions of its handler."""
        capabilities = as_dict(as_dict(params.get("_meta")).get(CLIENT_CAPABILITIES_META))
        asked = StatelessQuestions(self._served.states, request.identity, method, params, capabilities)
        request.on_question = asked
        try:
            return await self._result(method, params, request)
        except asyncio.CancelledError:
            if not asked.close():
                raise
            return asked.result()
        finally:
            asked.close()

    async def _result(self, method: str, params: Params | None, request: ServedRequest) -> Result:
        is_stateless = request.is_stateless
        result: Result
        match method:
            case "tools/call":
                result = await self._call_tool(_read(params, _CallParams), params or {}, request)
            case "tools/list":
                result = self._list_tools(_read(params, _ListParams), request)
            case "ping" if not is_stateless:
                return {}
            case "server/discover" if is_stateless:
                _read(params, _Params)
                discovered = {"supportedVersions": list(STATELESS_VERSIONS), "ttlMs": 0, "cacheScope": "private"}
                result = {**discovered, **self._description}
            case "subscriptions/listen" if is_stateless:
                result = await self._listen(_read(params, _ListenParams).notifications, request)
            case _:
                raise RPCError(METHOD_NOT_FOUND, "Method not found", method[:200])
        return result

    def _list_tools(self, params: _ListParams, request: ServedRequest) -> Result:
        try:
            tools, more = self.catalogue.page(request.identity, params.cursor, self._served.max_page)
        except CallError as error:
            raise RPCError(INVALID_PARAMS, error.message) from None
        page: Result = {} if more is None else {"nextCursor": more}
        if request.is_stateless:
            # Stale at once, and for this client only: the list depends on the caller.
            return {"tools": [tool.shape for tool in tools], "ttlMs": 0, "cacheScope": "private", **page}
        return {"tools": [tool.older for tool in tools], **page}

    async def _call_tool(self, params: _CallParams, given: Params, request: ServedRequest) -> Result:
        tool = self.catalogue.find(params.name)
        if tool is None:
            entry = begin_access("mcp", operation=params.name, identity=request.identity)
            if entry is not None:
                entry.outcome = ErrorCode.OPERATION_NOT_FOUND.value
                entry.write()
            raise RPCError(INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        request.label = tool.spec.id
        request.progress_token = None if params.meta is None else params.meta.progress_token
        call = ToolCall(
            tool=tool,
            arguments=params.arguments or {},
            request_id=uuid4().hex,  # our own: the client's is unique on its own connection only
            meta=as_dict(given.get("_meta")),
            request=request,
            format=ResultFormat(not request.is_stateless, self._served.tool_envelopes),
            served=self._served,
        )
        return await call.run()

    async def _listen(self, wanted: _Filter, request: ServedRequest) -> Result:
        """Notify the client of changes until it cancels, or `end_streams` is called."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise RPCError(INTERNAL_ERROR, f"{MAX_LISTENERS} clients listen already")
        stream = _ListenStream()
        meta: Params = {"_meta": {SUBSCRIPTION_META: request.id}}
        unsubscribe = self.bus.subscribe(stream.awake.set) if wanted.tools_list_changed else lambda: None
        self._listeners.add(stream)
        try:
            honoured: Params = {key: value for key, value in msgspec.to_builtins(wanted).items() if value}
            await request.notify("notifications/subscriptions/acknowledged", {"notifications": honoured, **meta})
            while True:
                await stream.awake.wait()
                if stream.ended:
                    return meta
                stream.awake.clear()
                await request.notify(_LIST_CHANGED, meta)
        finally:
            self._listeners.discard(stream)
            unsubscribe()

    def end_streams(self) -> None:
        """End the streams on which clients of revision 2026-07-28 listen for changes."""
        for stream in tuple(self._listeners):
            stream.ended = True
            stream.awake.set()


def _read(params: Params | None, kind: type[P]) -> P:
    try:
        return msgspec.convert(params or {}, kind)
    except msgspec.ValidationError as error:
        raise RPCError(INVALID_PARAMS, f"Invalid request parameters: {error}") from None


def encode_reply(reply: RPCMessage) -> bytes:
    """Encode a response; one that has no JSON form becomes an error."""
    try:
        return encode_message(reply)
    except (TypeError, ValueError, RecursionError):
        logger.exception("a response of the MCP server has no JSON form")
        id = cast("RPCResponse", reply).id
        return encode_message(RPCFailure.of(id, RPCError(INTERNAL_ERROR, "Internal server error")))


async def stop_request(task: asyncio.Task[Any], request: ServedRequest) -> None:
    """Cancel a request, and abandon it if it ignores that."""
    task.cancel()
    await asyncio.wait([task], timeout=1.2 * CLOSE_GRACE)  # a call with a deadline is abandoned before
    if not task.done():
        leave_behind(task, request.label)


# --- calls ------------------------------------------------------------------------------------------------------------


class ToolCall(Struct, frozen=True, kw_only=True):
    """One `tools/call` request."""

    tool: Tool
    arguments: dict[str, Any]
    request_id: str
    meta: dict[str, Any]
    request: ServedRequest
    format: ResultFormat
    served: ServedTools

    async def run(self) -> Result:
        """Return the result of the call, successful or not.

        Raises:
            CancelledError: the client cancelled or disconnected; the handler was cancelled.
        """
        entry = begin_access("mcp", operation=self.tool.spec.id, identity=self.request.identity)
        if entry is None:
            return await self._run(None)
        try:
            result = await self._run(entry)
            entry.bytes = len(write_json(_encoder, result))
            return result
        except asyncio.CancelledError:
            asked = self.request.on_question
            is_asking = isinstance(asked, StatelessQuestions) and asked.is_asking
            entry.outcome = INPUT_REQUIRED if is_asking else CANCELLED
            raise
        finally:
            entry.request_id = self.request_id
            entry.write()

    async def _run(self, entry: AccessEntry | None) -> Result:
        spec = self.tool.spec
        try:
            self.served.dispatcher.find(spec.id, self.request.identity)
            if spec.type is OperationType.SUBSCRIPTION:
                return await self._collect(entry)
            input, progress = self._input(), ProgressReporter(self.request)
            try:
                envelope = await self._execute(input, progress)
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
            if isinstance(asked := self.request.on_question, StatelessQuestions):
                refusal = asked.refusal(error)
                if refusal is not None:
                    raise refusal from None
            return error_result(error, self.tool, self.format)

    async def _execute(self, input: Any, progress: "ProgressReporter") -> ResponseEnvelope[Any]:
        """Call the operation. The timeout of the surface is that without progress, so the deadline is enforced here."""
        spec, timeout, dispatcher = self.tool.spec, self.served.limits.timeout, self.served.dispatcher
        context = self._context(progress)
        if spec.timeout is not None or timeout is None:
            return await dispatcher.execute(spec, input, context.within(spec.timeout))
        now = time.monotonic()
        activity, ends = Activity(now, self.request.on_question), now + MAX_SECONDS
        on_question = None if self.request.on_question is None else activity.ask

        def report(report: Progress) -> None:
            activity.last = time.monotonic()
            progress(report)

        watched = msgspec.structs.replace(
            context, deadline=ends, watched=True, on_progress=report, on_question=on_question
        )
        return await run_within(
            lambda: dispatcher.execute(spec, input, watched),
            self.served.deadlines,
            now + timeout,
            spec.id,
            lambda: min(activity.latest() + timeout, ends),
        )

    async def _collect(self, entry: AccessEntry | None) -> Result:
        """Collect the items of a subscription until it ends or a limit is reached; each is also sent as progress."""
        items: list[EncodedData] = []
        size, complete, failed = 0, False, None
        limits = self.served.limits
        envelopes = self.served.dispatcher.subscribe(self.tool.spec, self._input(), self._context(None))
        token = self.request.progress_token
        try:
            async with asyncio.timeout(limits.max_seconds), aclosing(envelopes):
                async for envelope in envelopes:
                    items.append(encode_data(envelope.data, self.tool.spec.id))
                    if token is not None:
                        await send_item(self.request, token, len(items) - 1, items[-1])
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
            if entry is not None:
                entry.failed(error)
        return collected_result(items, self.tool, self.format, complete=complete, error=failed)

    def _context(self, progress: "ProgressReporter | None") -> Context:
        return Context(
            request_id=self.request_id,
            identity=self.request.identity,
            metadata={**trace_of(self.meta), **caller_metadata(self.request.identity, self.request.token)},
            on_progress=progress,
            on_question=self.request.on_question,
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


class Activity:
    """The last sign of life of a call: a report of progress, or a question that the client has not answered yet."""

    def __init__(self, now: float, on_question: QuestionCallback | None) -> None:
        self.last = now
        self._on_question = on_question
        self._open = 0

    def latest(self) -> float:
        """Return the monotonic time of the last sign of life."""
        return time.monotonic() if self._open else self.last

    async def ask(self, question: Question) -> dict[str, Any]:
        """Ask the client."""
        self._open += 1
        try:
            return await cast("QuestionCallback", self._on_question)(question)
        finally:
            self._open -= 1
            self.last = time.monotonic()


# --- notifications ----------------------------------------------------------------------------------------------------


async def send_item(request: ServedRequest, token: RequestId, number: int, item: EncodedData) -> None:
    """Send one item of a subscription as progress; the first is number 0."""
    carried: dict[str, Any] = {"n": number, "data": item.data}
    if item.encoding is not None:
        carried["encoding"] = item.encoding
    shown = item.json[: 4 * _MAX_ITEM_MESSAGE].decode(errors="ignore")
    message = shown if len(shown) <= _MAX_ITEM_MESSAGE else f"{shown[:_MAX_ITEM_MESSAGE]}…"
    params = {"progressToken": token, "progress": number + 1, "message": message, "_meta": {ITEM_META: carried}}
    await request.notify("notifications/progress", params)


class ProgressReporter:
    """Send the progress of a handler as fast as the client reads; a newer report replaces a queued one."""

    def __init__(self, request: ServedRequest) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        self._highest = float("-inf")
        self._sending: asyncio.Task[None] | None = None
        self._any = False
        self._closed = False

    def __call__(self, progress: Progress) -> None:
        """Queue a report, from any thread."""
        if self._request.progress_token is None:
            return
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
            given = {"total": latest.total, "message": latest.message}
            params: Params = {"progressToken": self._request.progress_token, "progress": latest.progress}
            params |= {key: value for key, value in given.items() if value is not None}
            await self._request.notify("notifications/progress", params)
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
    """The changes of a registry as events. It follows the registry while it has listeners.

    Changes within `delay` seconds are one event.
    """

    def __init__(self, registry: OperationRegistry, *, delay: float = 0.05) -> None:
        self._registry = registry
        self._delay = delay
        self._listeners: dict[object, Callable[[], object]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unfollow: Callable[[], None] | None = None

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
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

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        def notify() -> None:
            self._timer = None
            for listener in tuple(self._listeners.values()):
                listener()

        if self._timer is None and self._listeners:
            self._timer = loop.call_later(self._delay, notify)
