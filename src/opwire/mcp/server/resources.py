"""Operations as MCP resources and prompts: list, read and follow resources, return the messages of prompts. No I/O.

A function that is registered with a URI is a resource, or a template of many. The resources of another MCP server are
behind operations that list, read and watch them: its entries pass unchanged, and what it does not list can be read too.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.agents.tools import ToolNames, data_block, encode_data, media_type
from opwire.errors import CallError, ErrorCode, RegistrationError
from opwire.mcp.messages import RPCCode, RPCError, RPCRequest
from opwire.mcp.server.calls import ServedCall, ServedRequest
from opwire.mcp.server.clients import MAX_SUBSCRIPTIONS, ClientState
from opwire.mcp.server.tools import Result, forwarded_fields, rpc_error
from opwire.model.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec
from opwire.model.origin import ORIGIN_META, Origin
from opwire.model.uri_template import MAX_URI, URITemplate
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import failure
from opwire.runtime.bounded import BoundedDict, SharedLimit
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict, as_list, parse_float, read_peer_json

logger = get_logger("opwire.mcp.server")

ListKey = Literal["resources", "resourceTemplates"]

MAX_LISTED = 20_000
"""URIs, or templates, of one server of which is known that it has listed them."""

_MAX_LISTED_URI_CHARACTERS = 1_000  # with a longer one, each server is asked
_MAX_LISTS = 1_000

MAX_WATCHED = 50_000
"""Resources that all clients of a surface together may be subscribed to, half of them of one identity."""

MAX_MESSAGES = 10_000
"""Messages of one prompt."""

_LISTED_BY: dict[ListKey, str] = {"resources": "resources/list", "resourceTemplates": "resources/templates"}
# Another server may have the resource.
_OTHERS = frozenset({RPCCode.RESOURCE_NOT_FOUND, RPCCode.INVALID_PARAMS, RPCCode.METHOD_NOT_FOUND})
_PROMPT_PREFIX = "prompts/"  # of the operations of another server
_ROLES = ("user", "assistant")
_SUBSCRIPTION_TIMEOUT_SECONDS = 30.0  # until another server has accepted it
_MAX_SUBSCRIPTION_META_BYTES = 4_096  # kept as long as the subscription

_NOTHING: dict[object, Callable[[], object]] = {}

_decoder = msgspec.json.Decoder(float_hook=parse_float)

MakeCall = Callable[[OperationSpec], ServedCall]


def typed_arguments(spec: OperationSpec, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that a client sent as text: those that have to be of another type are parsed as JSON."""
    typed = dict(arguments)
    for path, _ in spec.input_schema.problems(arguments):
        name = path[1:].partition("/")[0].replace("~1", "/").replace("~0", "~")
        if isinstance(arguments.get(name), str):
            try:
                typed[name] = read_peer_json(_decoder, arguments[name])
            except (ValueError, RecursionError):
                pass  # the validation of the operation says what is wrong
    return typed


def definition_of(spec: OperationSpec, **fields: Any) -> Result:
    """Return the entry of a resource or prompt in a list."""
    meta = {**spec.mcp.meta, ORIGIN_META: msgspec.to_builtins(Origin.of(spec, in_mcp=True))}
    texts = {"title": spec.title, "description": spec.description, "icons": list(spec.mcp.icons)}
    return {**fields, **{key: value for key, value in texts.items() if value}, "_meta": meta}


# --- resources --------------------------------------------------------------------------------------------------------


class ResourceWatch(Struct, eq=False):
    """A subscription to a resource, until it is cancelled. `opening` is None if it is open."""

    cancel: Callable[[], object]
    opening: asyncio.Future[None] | None = None

    async def opened(self) -> None:
        """Wait until it is open; cancel it if that fails.

        Raises:
            RPCError: it cannot be opened, or not in time.
        """
        if self.opening is None:
            return
        try:
            async with asyncio.timeout(_SUBSCRIPTION_TIMEOUT_SECONDS):
                await self.opening
        except BaseException as error:
            self.cancel()
            if not isinstance(error, TimeoutError):
                raise
            late = f"the subscription was not opened within {_SUBSCRIPTION_TIMEOUT_SECONDS:g} seconds"
            raise rpc_error(CallError(ErrorCode.TIMEOUT, late)) from None


class ResourceCatalogue:
    """The resources of a surface."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._by_role: dict[str, list[OperationSpec]] = {}
        self._served_at = -1  # changes of the registry
        self._templates: dict[str, tuple[OperationSpec, URITemplate | None]] = {}  # by id
        # What servers have listed to any caller, by namespace.
        self._listed: BoundedDict[tuple[ListKey, str], set[str]] = BoundedDict(_MAX_LISTS)
        self._watched: SharedLimit[str | None] = SharedLimit(MAX_WATCHED, MAX_WATCHED // 2)  # by identity
        self._watchers: dict[str, dict[object, Callable[[], object]]] = {}  # of resources of functions, by URI
        self._unfollow: Callable[[], object] = lambda: None

    def _served(self, role: str) -> list[OperationSpec]:
        """Return the operations of a role. Among 20,000 operations they are found in 15 ms, once."""
        if self._served_at != self._dispatcher.registry.changes:
            self._served_at, self._by_role = self._dispatcher.registry.changes, {}
            for spec in self._dispatcher.served():
                if spec.mcp.role != "tool":
                    self._by_role.setdefault(spec.mcp.role, []).append(spec)
        return self._by_role.get(role, [])

    def _visible(self, role: str, identity: Identity | None) -> list[OperationSpec]:
        return [spec for spec in self._served(role) if self._dispatcher.is_visible(spec, identity)]

    def template(self, spec: OperationSpec) -> URITemplate | None:
        """Return the parsed URI of a resource; None, and a warning, if it is invalid."""
        cached = self._templates.get(spec.id)
        if cached is None or cached[0] is not spec:
            try:
                cached = spec, URITemplate(spec.mcp.uri)
            except RegistrationError as error:
                logger.warning("%s is not shown as a resource: %s", spec.id, error)
                cached = spec, None
            self._templates[spec.id] = cached
        return cached[1]

    # --- lists --------------------------------------------------------------------------------------------------------

    async def entries(self, key: ListKey, identity: Identity | None, call: MakeCall) -> list[Result]:
        """Return all entries of a list that a caller may see: those of functions, then those of other servers.

        Raises:
            RPCError: another server failed, and there is nothing else.
        """
        resources, servers = self._visible("resource", identity), self._visible(_LISTED_BY[key], identity)
        own_entries = [entry for spec in resources if (entry := self._entry(spec, key)) is not None]

        async def listed(spec: OperationSpec) -> list[Result]:
            result = await call(spec).read({}, lambda envelope: as_dict(envelope.data))
            return [as_dict(entry) for entry in as_list(result.get(key))]

        lists = await asyncio.gather(*map(listed, servers), return_exceptions=True)
        errors: list[RPCError] = []
        name = "uri" if key == "resources" else "uriTemplate"
        listed_uris = {entry[name] for entry in own_entries}
        for spec, entries in zip(servers, lists, strict=True):
            if isinstance(entries, BaseException):
                if not isinstance(entries, RPCError):
                    raise entries
                logger.warning("%s: the resources of a server are not listed: %s", spec.id, entries)
                errors.append(entries)
                continue
            uris = [uri for entry in entries if isinstance(uri := entry.get(name), str)]
            self._remember(key, spec.namespace, uris)
            for entry in entries:
                uri = entry.get(name)
                if isinstance(uri, str) and uri not in listed_uris:
                    listed_uris.add(uri)
                    own_entries.append(entry)
        if errors and not own_entries:
            raise errors[0]
        return own_entries

    def _remember(self, key: ListKey, namespace: str, uris: Iterable[str]) -> None:
        """Add to what a server has listed; if that is too much, forget what it had listed before."""
        new = set(islice((uri for uri in uris if len(uri) <= _MAX_LISTED_URI_CHARACTERS), MAX_LISTED))
        listed = self._listed.get((key, namespace), set[str]()) | new
        self._listed[key, namespace] = listed if len(listed) <= MAX_LISTED else new

    def _entry(self, spec: OperationSpec, key: ListKey) -> Result | None:
        template = self.template(spec)
        if template is None or bool(template.names) != (key == "resourceTemplates"):
            return None
        entry = definition_of(spec, **{"uriTemplate" if template.names else "uri": spec.mcp.uri}, name=spec.name)
        more = {"mimeType": spec.mcp.mime_type, "annotations": dict(spec.mcp.annotations.extra)}
        return {**entry, **{key: value for key, value in more.items() if value}}

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, uri: str, request: ServedRequest, call: MakeCall) -> Result | None:
        """Return the contents of a resource; None if it is unknown.

        Raises:
            RPCError: the caller may not read it, or reading failed.
        """
        function = self._function(uri)
        if function is not None:
            spec, values = function
            return await call(spec).read(typed_arguments(spec, values), partial(read_result, uri=uri, spec=spec))
        servers = self._servers("resources/read", uri, request.identity)
        for number, spec in enumerate(servers, 1):
            try:
                return await call(spec).read({"uri": uri}, partial(read_result, uri=uri, spec=spec))
            except RPCError as error:
                if number == len(servers) or error.code not in _OTHERS:
                    raise
        return None

    def operation_of(self, uri: str, identity: Identity | None) -> OperationSpec | None:
        """Return the operation that reads a resource first; None if it is unknown."""
        function = self._function(uri)
        return function[0] if function else next(iter(self._servers("resources/read", uri, identity)), None)

    def _function(self, uri: str) -> tuple[OperationSpec, dict[str, Any]] | None:
        """Return the function of a resource and the values in its URI: that of exactly this URI comes first."""
        for spec in sorted(self._served("resource"), key=lambda spec: spec.mcp.uri != uri):
            template = self.template(spec)
            values = None if template is None else template.match(uri)
            if values is not None:
                return spec, values
        return None

    def _servers(self, role: str, uri: str, identity: Identity | None) -> list[OperationSpec]:
        """Return the operations of other servers for a URI: those of servers which have listed it, or else all.

        The order is that of the registry, regardless of what was listed last, and to which caller: no server takes
        the resources of one before it.
        """
        visible = self._visible(role, identity)
        owners = {namespace for (_, namespace), listed in self._listed.items() if uri in listed}
        owned = [spec for spec in visible if spec.namespace in owners]
        if owned:
            return owned
        likely = {
            namespace
            for (key, namespace), listed in self._listed.items()
            if key == "resourceTemplates" and any(uri.startswith(template.partition("{")[0]) for template in listed)
        }
        return sorted(visible, key=lambda spec: spec.namespace not in likely) or self._served(role)[:1]  # denied

    # --- updates ------------------------------------------------------------------------------------------------------

    async def subscribe(self, uri: str, request: ServedRequest, client: ClientState, call: MakeCall) -> None:
        """Notify a client of updates of a resource from now on; idempotent.

        Raises:
            RPCError: as `watch`; the client has too many subscriptions, or has gone before the request began.
        """
        if client.is_closed:
            raise RPCError(RPCCode.INVALID_REQUEST, "rejected: the session has ended")
        if uri in client.watches:
            return
        if len(client.watches) >= MAX_SUBSCRIPTIONS:
            raise RPCError(RPCCode.INVALID_REQUEST, f"at most {MAX_SUBSCRIPTIONS:,} resources can be subscribed to")
        message = request.message
        if len(msgspec.json.encode((message.params or {}).get("_meta"))) > _MAX_SUBSCRIPTION_META_BYTES:
            raise RPCError(
                RPCCode.INVALID_PARAMS,
                f"the _meta of a subscription has at most {_MAX_SUBSCRIPTION_META_BYTES:,} bytes",
            )
        request.message = RPCRequest(message.id, message.method)  # kept as long as the subscription, so without params

        def ended() -> None:
            if client.watches.get(uri) is watch.cancel:
                del client.watches[uri]

        watch = self.watch(uri, request, client.pending.updated, call, spawn=client.spawn, on_end=ended)
        # Before it is open, so that a second request, and the end of the client, find it.
        client.watches[uri] = watch.cancel
        await watch.opened()

    def watch(
        self,
        uri: str,
        request: ServedRequest,
        updated: Callable[[str], object],
        call: MakeCall,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = asyncio.create_task,
        on_end: Callable[[], object] = lambda: None,
    ) -> ResourceWatch:
        """Call `updated` after each update of a resource, and `on_end` when that ends.

        Raises:
            RPCError: the resource is unknown; the caller may not read it, or watches too many.
        """
        function = self._function(uri)  # without one, the operation that watches at its server
        spec = function[0] if function else next(iter(self._servers("resources/watch", uri, request.identity)), None)
        if spec is None:
            raise not_found(uri, request)
        try:
            spec = self._dispatcher.find(spec.id, request.identity)
        except CallError as error:
            raise rpc_error(error) from error
        owner = None if request.identity is None else request.identity.id
        if not self._watched.take(owner, 1):
            full = f"too many resources are subscribed to, {self._watched.held[owner]:,} by this identity"
            raise RPCError(RPCCode.INVALID_REQUEST, f"rejected: {full}")

        def end(_: object = None) -> None:
            self._watched.give_back(owner, 1)
            on_end()

        if spec.mcp.role == "resource":
            return self._watch_function(uri, updated, end)
        opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = spawn(self._watch_server(call(spec), uri, updated, opening))
        task.add_done_callback(end)
        return ResourceWatch(task.cancel, opening)

    def _watch_function(
        self, uri: str, updated: Callable[[str], object], on_end: Callable[[], object]
    ) -> ResourceWatch:
        """Watch a resource of a function, without a task: with 20,000 of them a garbage collection took 0.3 s."""
        if not self._watchers:
            self._unfollow = self._dispatcher.registry.on_resource_updated(self._updated)
        key, watchers, loop = object(), self._watchers.setdefault(uri, {}), asyncio.get_running_loop()
        watchers[key] = lambda: loop.call_soon_threadsafe(updated, uri)

        def cancel() -> None:
            if watchers.pop(key, None) is None:
                return
            if not watchers:
                del self._watchers[uri]
            if not self._watchers:
                self._unfollow()
            on_end()

        return ResourceWatch(cancel)

    def _updated(self, uri: str) -> None:
        """Notify the watchers of a resource; called on any thread."""
        for notify in tuple(self._watchers.get(uri, _NOTHING).values()):
            notify()

    async def _watch_server(
        self, call: ServedCall, uri: str, updated: Callable[[str], object], opening: asyncio.Future[None]
    ) -> None:
        def opened(_: object) -> None:
            if not opening.done():
                opening.set_result(None)

        try:
            # The operation reports progress when its server has accepted the subscription.
            context = replace(call.context(), on_progress=opened)
            async with aclosing(self._dispatcher.subscribe(call.spec, {"uri": uri}, context)) as envelopes:
                async for envelope in envelopes:
                    updated(str(as_dict(envelope.data).get("uri", uri))[:MAX_URI])
        except Exception as raised:
            error = failure(raised, call.spec.id)
            if opening.done():
                logger.warning("%s: a resource is not watched any more: %s", call.spec.id, error)
            else:
                opening.set_exception(call.forwarded(error) or rpc_error(error))
        finally:
            opening.cancel()

    # --- completion ---------------------------------------------------------------------------------------------------

    def completed_by(self, uri: str, identity: Identity | None) -> OperationSpec | None:
        """Return the operation that completes variables of a template; None if it is unknown."""
        resource_spec = next((spec for spec in self._served("resource") if spec.mcp.uri == uri), None)
        return resource_spec or next(iter(self._servers("resources/templates", uri, identity)), None)


def not_found(uri: str, request: ServedRequest) -> RPCError:
    """Return the error for an unknown resource."""
    code = RPCCode.INVALID_PARAMS if request.client is None else RPCCode.RESOURCE_NOT_FOUND
    return RPCError(code, f"Resource not found: {uri[:200]}", {"uri": uri[:MAX_URI]})


def read_result(envelope: ResponseEnvelope[Any], uri: str, spec: OperationSpec) -> Result:
    """Return the result of `resources/read`.

    Raises:
        CallError: EXECUTION_ERROR, if the data cannot be encoded.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta):
        content, fields = encode_data([meta.content, forwarded_fields(meta)], spec.id).data
        return {**fields, "contents": [_content_of(block, uri) for block in content]}
    content_type = spec.mcp.mime_type or (meta.content_type if isinstance(meta, HTTPResponseMeta) else "")
    data: Any = envelope.data
    if isinstance(data, bytes):
        blob = {"mimeType": media_type(data, content_type), "blob": b64encode(data).decode("ascii")}
        return {"contents": [{"uri": uri, **blob}]}
    is_text = isinstance(data, str)
    text = encode_data(data, spec.id)
    shown_text = text.data if is_text else text.json.decode()
    kind = content_type or ("text/plain" if is_text else "application/json")
    return {"contents": [{"uri": uri, "mimeType": kind, "text": shown_text}]}


def _content_of(block: Any, uri: str) -> Result:
    """Return a content block as the contents of a resource."""
    if "resource" in block:
        return block["resource"]
    if "data" in block:
        return {"uri": uri, "mimeType": block.get("mimeType", "application/octet-stream"), "blob": block["data"]}
    text = block.get("text")
    return {"uri": uri, "text": text if isinstance(text, str) else msgspec.json.encode(block).decode()}


# --- prompts ----------------------------------------------------------------------------------------------------------


class PromptCatalogue:
    """The prompts of a surface. Their names are made as those of tools, of a set of their own."""

    def __init__(self, dispatcher: Dispatcher, *, max_name: int) -> None:
        self._dispatcher = dispatcher
        self._names = ToolNames(max_name=max_name)
        self._short: dict[str, str] = {}  # what names are made of, by operation id
        self._ids: dict[str, str] = {}  # the reverse
        self._named_at = -1

    def find(self, name: str) -> OperationSpec | None:
        """Return the prompt of this name, regardless of the caller, or None."""
        self._name_all()
        id = self._ids.get(self._names.operation_id(name) or "")
        return None if id is None else self._dispatcher.registry.get_spec(id)

    def listed(self, identity: Identity | None) -> dict[str, OperationSpec]:
        """Return all prompts that a caller may use by their names, in the order of registration."""
        self._name_all()
        visible = self._dispatcher.visible(identity)
        return {self._names[short]: spec for spec in visible if (short := self._short.get(spec.id)) is not None}

    @staticmethod
    def entry(name: str, spec: OperationSpec) -> Result:
        """Return the entry of a prompt in a list: those of 10,000 with 40 arguments each take 0.4 s."""
        entry = definition_of(spec, name=name)
        arguments: list[Result] = []
        schema = as_dict(spec.input_schema.json)
        required = {
            property_name for property_name in as_list(schema.get("required")) if isinstance(property_name, str)
        }
        for key, property_schema in as_dict(schema.get("properties")).items():
            about = as_dict(property_schema)
            texts = {field: text for field in ("title", "description") if isinstance(text := about.get(field), str)}
            arguments.append({"name": key, **texts, "required": key in required})
        return {**entry, "arguments": arguments} if arguments else entry

    def _name_all(self) -> None:
        """Name every prompt, if the registry has changed: `library.prompts/review` is `library_review`."""
        changes = self._dispatcher.registry.changes
        if self._named_at == changes:
            return
        prompts = [spec for spec in self._dispatcher.served() if spec.mcp.role == "prompt"]
        ids = {spec.id for spec in prompts}
        self._short = {}
        for spec in prompts:
            short = f"{spec.namespace}.{spec.name.removeprefix(_PROMPT_PREFIX)}"
            self._short[spec.id] = spec.id if short in ids else short
        self._ids = {short: id for id, short in self._short.items()}
        self._names.keep(self._ids)
        self._names.add(self._ids)
        self._named_at = changes


def prompt_result(envelope: ResponseEnvelope[Any], spec: OperationSpec) -> Result:
    """Return the result of `prompts/get`.

    Raises:
        CallError: EXECUTION_ERROR, if the data is not made of messages.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta) and "messages" in as_dict(envelope.data):
        data, fields = encode_data([envelope.data, forwarded_fields(meta)], spec.id).data
        return {key: value for key, value in {**data, **fields}.items() if key != "resultType"}
    result: Result = {"description": spec.description} if spec.description else {}
    content: Any = envelope.data
    if isinstance(content, dict) and "messages" in content:
        others = as_dict(encode_data(content, spec.id).data).items()
        result |= {key: value for key, value in others if key not in ("messages", "resultType")}
        content = as_dict(content)["messages"]
    messages = _listed(content)
    if len(messages) > MAX_MESSAGES:
        raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"{spec.id}: more than {MAX_MESSAGES:,} messages")
    return {
        **result,
        "messages": [content_message for message in messages for content_message in _messages_of(message, spec.id)],
    }


def _messages_of(message: Any, label: str) -> Iterator[Result]:
    """Yield a message for each content block: a revision before 2026-07-28 has one in a message."""
    role, content = "user", message
    if isinstance(message, dict) and "role" in message:
        role, content = as_dict(message).get("role"), as_dict(message).get("content")
        if role not in _ROLES:
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the role of a message is user or assistant")
    for block in _listed(content):
        encoded = encode_data(block, label)
        is_block = isinstance(block, dict) and isinstance(as_dict(block).get("type"), str)
        yield {"role": role, "content": encoded.data if is_block else data_block(block, encoded.json, label)}


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]
