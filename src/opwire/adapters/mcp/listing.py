"""What a server has to offer at the moment: everything that it lists, as operations.

Every page of a list, of a server that may never stop: pages, entries and bytes are bounded.

A server's prompts as operations: one for each, and one that lists them.

A server's resources as operations: list, templates, read, and watch where the server tells of updates.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct

from opwire.adapters.mcp.report import MAX_NAME, Findings, Report, is_usable, list_of, object_of, text_of
from opwire.adapters.mcp.session import ResourceUpdates, Session, Watcher
from opwire.adapters.mcp.tools import Reading, blocks_envelope, read_blocks, read_tool, structured_envelope
from opwire.envelope import ResponseEnvelope, mcp_envelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Operation, OperationSpec, OperationType
from opwire.schema import Schema

logger = logging.getLogger("opwire.mcp")

MAX_PAGES = 1000
MAX_OPERATIONS = 10_000
"""Tools or prompts of a server: each becomes an operation, which takes a few kB however small its description is."""

MAX_ENTRIES = 100_000
"""Entries of a list that stay entries, as resources do."""

MAX_BYTES = 32 * 1024 * 1024
"""Bytes of all pages of one list: more than GitHub's 1,223 operations take as tools."""

_NO_INPUT = Schema({"type": "object", "properties": {}})


async def list_all(
    session: Session,
    method: str,
    key: str,
    findings: Findings,
    *,
    deadline: float | None,
    max_entries: int = MAX_OPERATIONS,
) -> list[Mapping[str, Any]]:
    """Return every entry of every page, up to the limits. An entry that is not an object is left out, and reported.

    Raises:
        CallError: as `Session.request`; PROTOCOL_ERROR, a page is nested too deeply.
    """
    entries: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    size = 0
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        result = await session.request(method, params, deadline=deadline)
        size += _size(result, method)
        if size > MAX_BYTES:
            findings.warn(method, f"it has more than {MAX_BYTES:,} bytes; the {len(entries):,} entries before are used")
            return entries
        entries += _entries(result.get(key), method, findings)
        if len(entries) > max_entries:
            findings.warn(method, f"it has more than {max_entries:,} entries; those are used")
            return entries[:max_entries]
        cursor = result.get("nextCursor")
        if cursor is None:
            return entries
        if not isinstance(cursor, str) or cursor in seen:
            findings.warn(method, "its cursors lead nowhere new; what came until then is used")
            return entries
        seen.add(cursor)
        params = {"cursor": cursor}
    findings.warn(method, f"it has more than {MAX_PAGES:,} pages; those are used")
    return entries


def list_operation(
    session: Session, namespace: str, name: str, *, method: str, key: str, description: str
) -> Operation:
    """A query that gives a list, whole, as the protocol has it: `{key: [...]}`."""
    entries = {"type": "array", "items": {"type": "object"}}
    spec = OperationSpec(
        namespace=namespace,
        name=name,
        description=description,
        input_schema=_NO_INPUT,
        output_schema=Schema({"type": "object", "properties": {key: entries}, "required": [key]}),
    )

    async def list_them(_: Any, context: Context) -> ResponseEnvelope[Any]:
        findings = Findings(namespace)
        entries = await list_all(session, method, key, findings, deadline=context.deadline, max_entries=MAX_ENTRIES)
        for found in findings.report().since(Report()):
            logger.warning("%s", found)
        return structured_envelope({key: entries}, [], spec.id)

    return Operation(spec, list_them)


def _size(result: Mapping[str, Any], method: str) -> int:
    try:
        return len(msgspec.json.encode(result))
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"a page of {method} cannot be used: {error}") from error


def _entries(page: Any, method: str, findings: Findings) -> list[Mapping[str, Any]]:
    if not isinstance(page, list):
        findings.warn(method, f"a page holds a list, not {type(page).__name__}")
        return []
    entries = [cast("Mapping[str, Any]", each) for each in list_of(page) if isinstance(each, Mapping)]
    for each in list_of(page):
        if not isinstance(each, Mapping):
            findings.skip(each, f"an entry of {method} is an object")
    return entries


def prompts_operation(session: Session, namespace: str) -> Operation:
    """The operation that lists them."""
    return list_operation(
        session,
        namespace,
        "prompts/list",
        method="prompts/list",
        key="prompts",
        description="The prompts that there are.",
    )


def read_prompt(prompt: Mapping[str, Any], session: Session, namespace: str, findings: Findings) -> Operation | None:
    """The operation that a prompt is; None, and a finding, if it cannot be one."""
    name = prompt.get("name")
    if not is_usable(name):
        findings.skip(name, f"a prompt's name is printable text of 1 to {MAX_NAME} characters")
        return None
    spec = OperationSpec(
        namespace=namespace,
        name=f"prompts/{name}",
        title=text_of(prompt.get("title")),
        description=text_of(prompt.get("description")),
        input_schema=Schema(_input_schema(prompt.get("arguments"), cast("str", name), findings)),
    )

    async def get(input: Any, context: Context) -> ResponseEnvelope[Any]:
        params: dict[str, Any] = {"name": name, "arguments": input or {}}
        result = await session.request(
            "prompts/get",
            params,
            deadline=context.deadline,
            on_progress=context.on_progress,
            metadata=context.metadata,
        )
        return structured_envelope(result, read_blocks(_contents(result.get("messages")), spec.id), spec.id)

    return Operation(spec, get)


def _input_schema(arguments: Any, name: str, findings: Findings) -> dict[str, Any]:
    """An object of texts: prompts take nothing else."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument in map(object_of, list_of(arguments)):
        key = argument.get("name")
        if not isinstance(key, str):
            findings.warn(f"prompts/{name}", "an argument without a name is left out")
            continue
        described = {"title": text_of(argument.get("title")), "description": text_of(argument.get("description"))}
        properties[key] = {"type": "string", **{field: text for field, text in described.items() if text}}
        if argument.get("required") is True:
            required.append(key)
    return {"type": "object", "properties": properties, "required": required}


def _contents(messages: Any) -> list[Any]:
    """The content blocks of all messages: one each, or in newer revisions several."""
    contents: list[Any] = []
    for message in map(object_of, list_of(messages)):
        content = message.get("content")
        contents += list_of(content) if isinstance(content, list) else [content]
    return contents


CHECK_EVERY = 5.0
"""Seconds without an update after which a watch makes sure that there is a connection: silence looks like a loss."""

_URI = {"uri": {"type": "string", "description": "the URI of a resource"}}
_ONE_RESOURCE = Schema({"type": "object", "properties": _URI, "required": ["uri"]})


def resource_operations(
    session: Session, namespace: str, updates: ResourceUpdates, *, watchable: bool
) -> Iterator[Operation]:
    """The operations of a server that has resources. `watchable`: it tells of their updates."""
    yield list_operation(
        session,
        namespace,
        "resources/list",
        method="resources/list",
        key="resources",
        description="The resources that can be read.",
    )
    yield list_operation(
        session,
        namespace,
        "resources/templates",
        method="resources/templates/list",
        key="resourceTemplates",
        description="Templates for the URIs of resources that can be read.",
    )
    yield _read_operation(session, namespace)
    if watchable:
        yield _watch_operation(session, namespace, updates)


def _read_operation(session: Session, namespace: str) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/read",
        description="What a resource holds, as content blocks; bytes are base64 in a `blob`.",
        input_schema=_ONE_RESOURCE,
    )

    async def read(input: Any, context: Context) -> ResponseEnvelope[Any]:
        result = await session.request(
            "resources/read",
            {"uri": input["uri"]},
            deadline=context.deadline,
            on_progress=context.on_progress,
            metadata=context.metadata,
        )
        contents = result.get("contents")
        if not isinstance(contents, list):
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{spec.id}: the result has no list of contents")
        held = [{"type": "resource", "resource": each} for each in cast("list[Any]", contents)]
        return blocks_envelope(result, read_blocks(held, spec.id), spec.id)

    return Operation(spec, read)


def _watch_operation(session: Session, namespace: str, updates: ResourceUpdates) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/watch",
        type=OperationType.SUBSCRIPTION,
        description="An item whenever a resource was updated: the URI of what is worth reading again.",
        input_schema=_ONE_RESOURCE,
        output_schema=_ONE_RESOURCE,
    )

    async def watch(input: Any, _: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        uri = cast("str", input["uri"])
        with updates.of(uri) as watcher:
            await session.watch_resource(uri)
            try:
                while True:
                    update = {"uri": await _next(watcher, session)}
                    yield mcp_envelope(update, is_error=False, content=(), structured_content=update)
            finally:
                await _unwatch(session, uri)

    return Operation(spec, watch)


async def _next(watcher: Watcher, session: Session) -> str:
    while True:
        try:
            async with asyncio.timeout(CHECK_EVERY):
                return await watcher.next()
        except TimeoutError:
            await session.start()


async def _unwatch(session: Session, uri: str) -> None:
    try:
        await session.unwatch_resource(uri)
    except CallError as error:  # the consumer has left, and a server that is gone tells of nothing anyway
        logger.debug("the watch of a resource did not end cleanly: %s", error)


_TURN = 0.01  # seconds of reading after which others get a turn
_OUT_OF_REACH = (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)


class Offer(Struct, frozen=True):
    """An operation, and what the server said of it: nothing where the operation is the same for every server."""

    operation: Operation
    definition: Mapping[str, Any] = {}


class Offers(Struct, frozen=True):
    """What a server offers, by the ids of the operations, and what of it could not be used."""

    by_id: dict[str, Offer] = {}
    report: Report = Report()

    def changed_since(self, earlier: "Offers") -> tuple[Operation, ...]:
        """Those that are new or different. Handlers are not compared: they do what the definition says."""
        return tuple(
            offer.operation
            for id, offer in self.by_id.items()
            if id not in earlier.by_id or earlier.by_id[id].definition != offer.definition
        )


class OfferReader:
    """Reads the offers of one server."""

    def __init__(
        self, session: Session, reading: Reading, updates: ResourceUpdates, *, resources: bool, prompts: bool
    ) -> None:
        self._session = session
        self._reading = reading
        self._updates = updates
        self._resources = resources
        self._prompts = prompts

    async def read(self, timeout: float) -> Offers:
        """Everything that the server lists now.

        Raises:
            CallError: as `Session.request`.
        """
        info = self._session.info
        capabilities = {} if info is None else info.capabilities
        deadline = time.monotonic() + timeout
        shelf = _Shelf(Findings(self._reading.namespace))
        # Asked for in any case: there are servers that have tools and do not announce them.
        await self._read_tools(shelf, deadline, announced="tools" in capabilities)
        if self._resources and "resources" in capabilities:
            watchable = object_of(capabilities["resources"]).get("subscribe") is True
            for operation in resource_operations(
                self._session, self._reading.namespace, self._updates, watchable=watchable
            ):
                shelf.put(operation)
        if self._prompts and "prompts" in capabilities:
            await self._read_prompts(shelf, deadline)
        return Offers(shelf.offers, shelf.findings.report())

    async def _read_tools(self, shelf: "_Shelf", deadline: float, *, announced: bool) -> None:
        tools = await self._list("tools/list", "tools", shelf.findings, deadline, announced=announced)
        dropped = self._session.remember_tools(tools)
        async for tool in _in_turns(tools):
            if (name := text_of(tool.get("name"))) in dropped:
                shelf.findings.skip(name, dropped[name])
            else:
                shelf.put(read_tool(tool, self._session, self._reading, shelf.findings), tool)

    async def _read_prompts(self, shelf: "_Shelf", deadline: float) -> None:
        shelf.put(prompts_operation(self._session, self._reading.namespace))
        prompts = await self._list("prompts/list", "prompts", shelf.findings, deadline, announced=True)
        async for prompt in _in_turns(prompts):
            shelf.put(read_prompt(prompt, self._session, self._reading.namespace, shelf.findings), prompt)

    async def _list(
        self, method: str, key: str, findings: Findings, deadline: float, *, announced: bool
    ) -> list[Mapping[str, Any]]:
        try:
            return await list_all(self._session, method, key, findings, deadline=deadline)
        except CallError as error:
            if error.code is ErrorCode.OPERATION_NOT_FOUND and announced:
                findings.warn(method, "the server announces it, and does not know it")
            elif announced or error.code in _OUT_OF_REACH:
                raise
            return []


async def _in_turns(entries: Iterable[Mapping[str, Any]]) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield the entries, and let others run in between: to compile the schemas of many tools takes seconds."""
    turn_ends = time.monotonic() + _TURN
    for each in entries:
        yield each
        if time.monotonic() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + _TURN


class _Shelf:
    """Offers in the making: of several with the same id, the first stays."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.offers: dict[str, Offer] = {}

    def put(self, operation: Operation | None, definition: Mapping[str, Any] | None = None) -> None:
        if operation is None:
            return
        spec = operation.spec
        if spec.id in self.offers:
            self.findings.skip(spec.name, f"there already is a {spec.id}")
        else:
            self.offers[spec.id] = Offer(operation, definition or {})
