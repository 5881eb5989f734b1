"""A registry as an MCP server: the methods of the protocol, of every revision. No I/O.

`RegistryServer` responds to one request of any transport, a `ServedRequest`: it dispatches by method, reads the params,
finds what they name, calls it and encodes the result. Every call of a known tool returns a result; an error becomes a
result with `isError`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct, field

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import RPCCode, RPCError, RPCFailure, RPCRequest, RPCResponse, encode_message, encode_reply
from opwire.mcp.revisions import (
    CLIENT_CAPABILITIES_META,
    CLIENT_INFO_META,
    HANDSHAKE_VERSIONS,
    LOG_LEVEL_META,
    SERVER_INFO_META,
    STATELESS_VERSIONS,
    SUBSCRIPTION_META,
)
from opwire.mcp.server.calls import DurableToolCall, Params, ServedCall, ServedRequest, ServedTools, ToolCall
from opwire.mcp.server.clients import (
    INPUT_METHODS,
    MAX_SUBSCRIPTIONS,
    ClientState,
    ListBus,
    PendingNotifications,
    StatelessQuestions,
    list_of,
)
from opwire.mcp.server.durable_tasks import DurableTask
from opwire.mcp.server.resources import (
    ListKey,
    MakeCall,
    PromptCatalogue,
    ResourceCatalogue,
    ResourceWatch,
    not_found,
    prompt_result,
    typed_arguments,
)
from opwire.mcp.server.tasks import TASKS, CallTask, TaskRequest, check_declared, declares_tasks
from opwire.mcp.server.tools import Result, ResultFormat
from opwire.model.completion import CompletionRequest
from opwire.model.identity import Identity
from opwire.model.log_message import LOG_LEVELS, LogLevel
from opwire.model.operation import OperationSpec
from opwire.names import similar_names, suggestion
from opwire.observe.logs import begin_access
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict, write_json

logger = get_logger("opwire.mcp.server")

MAX_LISTENERS = 1024
"""Streams of one surface on which clients of revision 2026-07-28 listen for changes."""

P = TypeVar("P", bound=Struct)

# Stale at once, and for this client only: lists depend on the caller.
_STALE: Result = {"ttlMs": 0, "cacheScope": "private"}
_RESOURCES, _PROMPTS = frozenset({"resources"}), frozenset({"prompts"})
_CURSOR = re.compile(r"([0-9]{1,9}):([0-9a-f]{16})")
_MAX_INSTRUCTIONS, _MAX_ALL_INSTRUCTIONS = 16_000, 64_000  # characters, of one server behind and of all
_MAX_COMPLETED_CHARACTERS = 1000
_MAX_LOGGED_NAME_CHARACTERS = 200
_encoder = msgspec.json.Encoder()


class ImplementationInfo(Struct, frozen=True):
    """The server's description of itself."""

    name: str
    version: str
    title: str | None
    instructions: str | None


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


class _TaskParams(_Params, kw_only=True, rename="camel"):
    task_id: str


class _UpdateTaskParams(_TaskParams, kw_only=True, rename="camel"):
    input_responses: dict[str, Any]


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


class _ResourceParams(_Params, kw_only=True):
    uri: str


class _LevelParams(_Params, kw_only=True):
    level: LogLevel


class _Reference(Struct):
    type: Literal["ref/prompt", "ref/resource"]
    name: str = ""
    uri: str = ""


class _Argument(Struct):
    name: str
    value: str


class _CompletionContext(Struct):
    arguments: dict[str, str] | None = None


class _CompleteParams(_Params, kw_only=True):
    ref: _Reference
    argument: _Argument
    context: _CompletionContext | None = None


class _ServedMethod(NamedTuple):
    params: type[_Params]
    handle: Callable[..., Awaitable[Result]]
    eras: tuple[bool, ...] = (False, True)  # of handshakes, and without them
    lists: frozenset[str] = frozenset()  # it is unknown if nothing of these is served


class RegistryServer:
    """Serve the operations of a registry as tools, resources and prompts.

    `trusted` is the identity of every request; by default each has the one that the guard found for it.
    """

    def __init__(self, info: ImplementationInfo, served: ServedTools, trusted: Identity | None = None) -> None:
        self.trusted = trusted
        self.catalogue = served.catalogue
        self.resources = ResourceCatalogue(served.dispatcher)
        self.prompts = PromptCatalogue(served.dispatcher, max_name=served.catalogue.max_name)
        self.bus = ListBus(served.dispatcher.registry)
        self._served = served
        self._listeners: set[PendingNotifications] = set()
        self._lists: frozenset[str] = frozenset()
        self._namespaces: frozenset[str] = frozenset()
        self._listed_at = -1  # the number of changes of the registry
        fields = {"name": info.name, "title": info.title, "version": info.version}
        self._info = {key: value for key, value in fields.items() if value is not None}
        self._instructions = info.instructions
        self._format = ResultFormat(objects_only=False, tool_envelopes=served.tool_envelopes)
        self._older_format = ResultFormat(objects_only=True, tool_envelopes=served.tool_envelopes)

    def _served_lists(self) -> frozenset[str]:
        """Return the lists that are not empty."""
        registry = self._served.dispatcher.registry
        if self._listed_at != registry.changes:
            self._listed_at = registry.changes
            served = self._served.dispatcher.served()  # 20 ms for 20,000, and every handshake asks
            self._lists = frozenset(map(list_of, served))
            self._namespaces = frozenset(spec.namespace for spec in served)
        return self._lists

    def _description(self) -> Result:
        """Return the capabilities and instructions: of what is served now."""
        capabilities: Result = {"logging": {}, "tools": {"listChanged": True}}
        lists = self._served_lists()
        if "resources" in lists:
            capabilities["resources"] = {"subscribe": True, "listChanged": True}
        if "prompts" in lists:
            capabilities["prompts"] = {"listChanged": True}
        if lists - {"tools"}:
            capabilities["completions"] = {}
        instructions = self._instructions
        if instructions is None:  # those of the MCP servers behind: as they are of one, with headings of several
            instructions_by_server = self._served.dispatcher.registry.instructions
            served_instructions = {
                name: text for name, text in instructions_by_server.items() if name in self._namespaces
            }
            if len(served_instructions) == 1:
                instructions = next(iter(served_instructions.values()))[:_MAX_INSTRUCTIONS]
            else:
                texts = (f"# {name}\n\n{text[:_MAX_INSTRUCTIONS]}" for name, text in served_instructions.items())
                instructions = "\n\n".join(texts)[:_MAX_ALL_INSTRUCTIONS]
        return {"capabilities": capabilities, **({"instructions": instructions} if instructions else {})}

    def initialize(self, params: Params | None) -> Result:
        """Return the result of the handshake; its revision is the one asked for, or else the latest.

        Raises:
            RPCError: the params are invalid.
        """
        requested_version = _read(params, _InitializeParams).protocol_version
        version = requested_version if requested_version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return {"protocolVersion": version, **self._description(), "serverInfo": self._info}

    async def respond(self, request: ServedRequest) -> bytes:
        """Return the encoded response to a request, after a handshake or without one; errors are in it."""
        message = request.message
        try:
            if request.client is not None:
                result = await self._result(message.method, message.params or {}, request)
            else:
                result = await self._stateless_result(message.method, message.params or {}, request)
            return encode_message(RPCResponse(message.id, result))
        except Exception as raised:
            error = raised if isinstance(raised, RPCError) else RPCError.internal()
            if error is not raised:
                logger.exception("a request of an MCP client failed")
            request.error_code = error.code
            return encode_reply(RPCFailure.of(message.id, error))

    async def _stateless_result(self, method: str, params: Params, request: ServedRequest) -> Result:
        if method not in INPUT_METHODS:
            result = await self._result(method, params, request)
        else:
            capabilities = as_dict(as_dict(params.get("_meta")).get(CLIENT_CAPABILITIES_META))
            work = self._result_or_questions(method, params, request, capabilities)
            if method == "tools/call" and self._served.tasks.after is not None and declares_tasks(capabilities):
                result = await self._result_or_task(work, request, capabilities)
            else:
                result = await work
        return {"resultType": "complete", **result, "_meta": {**result.get("_meta", {}), SERVER_INFO_META: self._info}}

    async def _result_or_task(
        self, work: Coroutine[Any, Any, Result], request: ServedRequest, capabilities: Params
    ) -> Result:
        """Return the result of a tool, its questions, or the task that it becomes."""

        def detach(task: CallTask) -> None:
            request.is_detached = True
            request.progress_token = None
            request.log_level = None
            if request.questions is not None:
                request.questions.instead = task.ask

        async def store() -> Result | None:
            durable, submission = self._served.durable, request.submission
            return None if durable is None or submission is None else await durable.handle(submission)

        return await self._served.tasks.run(
            work,
            TaskRequest(
                identity=request.identity,
                capabilities=capabilities,
                params=request.message.params,
                questions=lambda: request.questions,
                detach=detach,
                store=store,
            ),
        )

    async def _result_or_questions(
        self, method: str, params: Params, request: ServedRequest, capabilities: Params
    ) -> Result:
        """Return the result of a request, or the questions of its handler."""
        questions = StatelessQuestions(self._served.states, request.identity, method, params, capabilities)
        request.questions = questions
        try:
            return await self._result(method, params, request)
        except asyncio.CancelledError:
            if not questions.close():
                raise
            return questions.result()
        finally:
            questions.close()

    async def _result(self, method: str, params: Params, request: ServedRequest) -> Result:
        handler, client = self._methods.get(method), request.client
        if (
            handler is None
            or (client is None) not in handler.eras
            or (handler.lists and handler.lists.isdisjoint(self._served_lists()))
        ):
            raise RPCError(RPCCode.METHOD_NOT_FOUND, "Method not found", method[:200])
        parsed = _read(params, handler.params)
        request.meta = meta = cast("Params", params.get("_meta") or {})
        request.progress_token = None if parsed.meta is None else parsed.meta.progress_token
        level = meta.get(LOG_LEVEL_META) if client is None else client.log_level
        request.log_level = level if level in LOG_LEVELS else None
        return await handler.handle(self, parsed, request)

    async def _ping(self, params: _Params, request: ServedRequest) -> Result:
        return {}

    async def _discover(self, params: _Params, request: ServedRequest) -> Result:
        described = self._description()
        if self._served.tasks.after is not None:
            described["capabilities"]["extensions"] = {TASKS: {}}
        return {"supportedVersions": list(STATELESS_VERSIONS), **_STALE, **described}

    async def _set_level(self, params: _LevelParams, request: ServedRequest) -> Result:
        cast("ClientState", request.client).log_level = params.level
        return {}

    # --- tools, resources, prompts ------------------------------------------------------------------------------------

    async def _list_tools(self, params: _ListParams, request: ServedRequest) -> Result:
        try:
            tools, more = self.catalogue.page(request.identity, params.cursor, self._served.max_page)
        except CallError as error:
            raise RPCError(RPCCode.INVALID_PARAMS, error.message) from None
        page: Result = {} if more is None else {"nextCursor": more}
        if request.client is None:
            return {"tools": [tool.shape for tool in tools], **_STALE, **page}
        return {"tools": [tool.older for tool in tools], **page}

    async def _call_tool(self, params: _CallParams, request: ServedRequest) -> Result:
        tool = self.catalogue.find(params.name)
        if tool is None:
            self._log_unknown(params.name, request)
            hint = suggestion(self.catalogue.similar(params.name, request.identity))
            raise RPCError(RPCCode.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}{hint}")
        kind, durable = ToolCall, self._served.durable
        if durable is not None and tool.spec.id in durable.operations:
            kind, timeout = DurableToolCall, self._served.limits.timeout
            request.submission = durable.submission(tool.spec, request.identity, request.meta, timeout)
        call = kind(
            spec=tool.spec,
            tool=tool,
            arguments=params.arguments or {},
            request=request,
            format=self._format if request.client is None else self._older_format,
            served=self._served,
        )
        return await call.logged(call.run)

    def _task(self, params: _TaskParams, request: ServedRequest) -> CallTask | DurableTask:
        """Return a task of a caller: one in the journal, or one of this process."""
        if self._served.tasks.after is None:
            raise RPCError(RPCCode.METHOD_NOT_FOUND, "Method not found")
        check_declared(as_dict(request.meta.get(CLIENT_CAPABILITIES_META)))
        durable = self._served.durable
        stored = None if durable is None else durable.find(params.task_id, request.identity, self._format)
        return self._served.tasks.find(params.task_id, request.identity) if stored is None else stored

    async def _get_task(self, params: _TaskParams, request: ServedRequest) -> Result:
        return await self._task(params, request).details()

    async def _update_task(self, params: _UpdateTaskParams, request: ServedRequest) -> Result:
        self._task(params, request).answer(params.input_responses)
        return {}

    async def _cancel_task(self, params: _TaskParams, request: ServedRequest) -> Result:
        await self._task(params, request).cancel()
        return {}

    def _log_unknown(self, name: str, request: ServedRequest) -> None:
        """Write the entry of the access log for an unknown tool, resource or prompt."""
        entry = begin_access("mcp", operation=name, identity=request.identity)
        if entry is not None:
            entry.outcome = ErrorCode.OPERATION_NOT_FOUND.value
            entry.write()

    def _calls(self, request: ServedRequest) -> MakeCall:
        """Return how the operations of a request are called."""
        return lambda spec: ServedCall(spec=spec, request=request, served=self._served)

    async def _list_resources(self, params: _ListParams, request: ServedRequest, key: ListKey = "resources") -> Result:
        entries = await self.resources.entries(key, request.identity, self._calls(request))
        names = [str(entry.get("uri") or entry.get("uriTemplate")) for entry in entries]
        return self._page(key, names, entries.__getitem__, params.cursor, request)

    async def _read_resource(self, params: _ResourceParams, request: ServedRequest) -> Result:
        result = await self.resources.read(params.uri, request, self._calls(request))
        if result is None:
            self._log_unknown(params.uri[:_MAX_LOGGED_NAME_CHARACTERS], request)
            raise not_found(params.uri, request)
        # What another server calls public was read with the rights of this caller.
        return {**_STALE, **result, "cacheScope": "private"} if request.client is None else result

    async def _subscribe(self, params: _ResourceParams, request: ServedRequest) -> Result:
        client = cast("ClientState", request.client)
        await self.resources.subscribe(params.uri, request, client, self._calls(request))
        return {}

    async def _unsubscribe(self, params: _ResourceParams, request: ServedRequest) -> Result:
        client = cast("ClientState", request.client)
        cancel = client.watches.pop(params.uri, None)
        if cancel is not None:
            cancel()
            await asyncio.sleep(0)  # it stops following before the client gets the response
        return {}

    async def _list_prompts(self, params: _ListParams, request: ServedRequest) -> Result:
        listed = list(self.prompts.listed(request.identity).items())
        names = [name for name, _ in listed]
        return self._page("prompts", names, lambda at: self.prompts.entry(*listed[at]), params.cursor, request)

    async def _get_prompt(self, params: _CallParams, request: ServedRequest) -> Result:
        spec = self.prompts.find(params.name)
        if spec is None:
            self._log_unknown(params.name, request)
            hint = suggestion(similar_names(params.name, self.prompts.listed(request.identity)))
            raise RPCError(RPCCode.INVALID_PARAMS, f"Unknown prompt: {params.name[:100]}{hint}")
        arguments = typed_arguments(spec, params.arguments or {})
        return await self._calls(request)(spec).read(arguments, partial(prompt_result, spec=spec))

    async def _complete(self, params: _CompleteParams, request: ServedRequest) -> Result:
        ref, argument = params.ref, params.argument
        is_prompt = ref.type == "ref/prompt"
        spec = self.prompts.find(ref.name) if is_prompt else self.resources.completed_by(ref.uri, request.identity)
        if len(argument.value) > _MAX_COMPLETED_CHARACTERS:
            raise RPCError(RPCCode.INVALID_PARAMS, f"the value has more than {_MAX_COMPLETED_CHARACTERS:,} characters")
        if spec is None:
            raise RPCError(RPCCode.INVALID_PARAMS, f"Unknown {ref.type}: {(ref.name or ref.uri)[:100]}")
        resolved_arguments = {} if params.context is None else params.context.arguments or {}
        completion = CompletionRequest(
            argument=argument.name, value=argument.value, arguments=resolved_arguments, uri=ref.uri
        )
        return await self._calls(request)(spec).complete(completion)

    def _page(
        self, key: str, names: list[str], entry_at: Callable[[int], Result], cursor: str | None, request: ServedRequest
    ) -> Result:
        """Return the entries of one page: at least one, and as many as fit. They are those of the names in the list.

        The cursor has the position of the last entry, and a digest to find it by if entries are added or removed.
        """
        keys = [sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16] for name in names]
        start = 0
        if cursor is not None:
            position = _CURSOR.fullmatch(cursor)
            if position is None:
                raise RPCError(RPCCode.INVALID_PARAMS, "invalid cursor: it is not from this server")
            start = keys.index(position[2]) + 1 if position[2] in keys else int(position[1])
        page: list[Result] = []
        remaining_bytes = self._served.max_page
        for at in range(start, len(names)):
            entry = entry_at(at)
            remaining_bytes -= len(write_json(_encoder, entry))
            if page and remaining_bytes < 0:
                break
            page.append(entry)
        end = start + len(page)
        more: Result = {"nextCursor": f"{end}:{keys[end - 1]}"} if 0 < end < len(names) else {}
        return {key: page, **(_STALE if request.client is None else {}), **more}

    def operation_of(self, request: RPCRequest, identity: Identity | None) -> OperationSpec | None:
        """Return the operation that a request calls, whether the caller may call it or not; None if there is none."""
        params = request.params or {}
        name, uri = params.get("name"), params.get("uri")
        match request.method:
            case "tools/call" if isinstance(name, str):
                tool = self.catalogue.find(name)
                return None if tool is None else tool.spec
            case "prompts/get" if isinstance(name, str):
                return self.prompts.find(name)
            case "resources/read" | "resources/subscribe" if isinstance(uri, str):
                return self.resources.operation_of(uri, identity)
            case _:
                return None

    # --- changes ------------------------------------------------------------------------------------------------------

    async def _listen(self, params: _ListenParams, request: ServedRequest) -> Result:
        """Notify the client of changes until it cancels, or `end_streams` is called."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise RPCError(RPCCode.INTERNAL_ERROR, f"{MAX_LISTENERS} clients listen already")
        requested, pending = params.notifications, PendingNotifications()
        lists = {"tools": requested.tools_list_changed, "prompts": requested.prompts_list_changed}
        lists["resources"] = requested.resources_list_changed
        subscription_meta: Params = {"_meta": {SUBSCRIPTION_META: request.message.id}}
        honoured: Params = {f"{name}ListChanged": True for name, is_wanted in lists.items() if is_wanted}
        unsubscribe = self.bus.subscribe(lambda name: pending.list_changed(name) if lists[name] else None)
        self._listeners.add(pending)
        watches: dict[str, ResourceWatch] = {}
        calls = self._calls(request)
        try:
            for uri in dict.fromkeys((requested.resource_subscriptions or [])[:MAX_SUBSCRIPTIONS]):
                with suppress(RPCError):  # it is not acknowledged
                    watch = self.resources.watch(uri, request, pending.updated, calls)
                    await watch.opened()
                    watches[uri] = watch
                await asyncio.sleep(0)  # 1,000 of them take longer than a turn should
            if watches:
                honoured["resourceSubscriptions"] = list(watches)
            await request.notify(
                "notifications/subscriptions/acknowledged", {"notifications": honoured, **subscription_meta}
            )
            async for notification in pending:
                await request.notify(notification.method, {**(notification.params or {}), **subscription_meta})
            return subscription_meta
        finally:
            self._listeners.discard(pending)
            unsubscribe()
            for watch in watches.values():
                watch.cancel()

    async def close(self) -> None:
        """Cancel the tasks."""
        await self._served.tasks.close()

    def end_streams(self) -> None:
        """End the streams on which clients of revision 2026-07-28 listen for changes."""
        for stream in tuple(self._listeners):
            stream.end()

    _methods: ClassVar[dict[str, _ServedMethod]] = {
        "tools/call": _ServedMethod(_CallParams, _call_tool),
        "tools/list": _ServedMethod(_ListParams, _list_tools),
        "resources/list": _ServedMethod(_ListParams, _list_resources, lists=_RESOURCES),
        "resources/templates/list": _ServedMethod(
            _ListParams, partial(_list_resources, key="resourceTemplates"), lists=_RESOURCES
        ),
        "resources/read": _ServedMethod(_ResourceParams, _read_resource, lists=_RESOURCES),
        "resources/subscribe": _ServedMethod(_ResourceParams, _subscribe, (False,), _RESOURCES),
        "resources/unsubscribe": _ServedMethod(_ResourceParams, _unsubscribe, (False,), _RESOURCES),
        "prompts/list": _ServedMethod(_ListParams, _list_prompts, lists=_PROMPTS),
        "prompts/get": _ServedMethod(_CallParams, _get_prompt, lists=_PROMPTS),
        "completion/complete": _ServedMethod(_CompleteParams, _complete, lists=_RESOURCES | _PROMPTS),
        "logging/setLevel": _ServedMethod(_LevelParams, _set_level, (False,)),
        "ping": _ServedMethod(_Params, _ping, (False,)),
        "server/discover": _ServedMethod(_Params, _discover, (True,)),
        "subscriptions/listen": _ServedMethod(_ListenParams, _listen, (True,)),
        "tasks/get": _ServedMethod(_TaskParams, _get_task, (True,)),
        "tasks/update": _ServedMethod(_UpdateTaskParams, _update_task, (True,)),
        "tasks/cancel": _ServedMethod(_TaskParams, _cancel_task, (True,)),
    }


def _read(params: Params | None, kind: type[P]) -> P:
    try:
        return msgspec.convert(params or {}, kind)
    except msgspec.ValidationError as error:
        raise RPCError(RPCCode.INVALID_PARAMS, f"Invalid request parameters: {error}") from None
