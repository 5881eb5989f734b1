"""The operations that a server lists: tools, prompts and resources.

Servers are not trusted to end a list: pages, entries and bytes are bounded.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct

from opwire.adapters.mcp.negotiation import as_text
from opwire.adapters.mcp.servers import MCPOptions
from opwire.adapters.mcp.session import MCPSession, ResourceUpdates
from opwire.adapters.mcp.tools import (
    MAX_NAME,
    ToolReader,
    blocks_envelope,
    is_usable_name,
    read_blocks,
    skip,
    structured_envelope,
)
from opwire.adapters.report import Report
from opwire.envelope import MCPResponseMeta, ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Operation, OperationSpec, OperationType
from opwire.schema import Schema
from opwire.typed.plain import as_dict, as_list

logger = logging.getLogger("opwire.mcp")

MAX_PAGES = 1000
MAX_OPERATIONS = 10_000
"""Tools or prompts of a server: each becomes an operation, which takes a few kB however small its description is."""

MAX_ENTRIES = 100_000
"""Entries of a list that do not become operations, as resources."""

MAX_BYTES = 32 * 1024 * 1024
"""Bytes of all pages of one list: more than GitHub's 1,223 operations take as tools."""

MAX_REPORTED = 100
"""Skipped entries of a report, and warnings of it: a server may have any number of invalid tools."""

CHECK_EVERY = 5.0
"""Seconds without an update after which a watch checks the connection: silence may be a lost connection."""

_SLICE = 0.01  # seconds after which other tasks run
_NO_INPUT = Schema({"type": "object", "properties": {}})
_URI = {"uri": {"type": "string", "description": "the URI of a resource"}}
_ONE_RESOURCE = Schema({"type": "object", "properties": _URI, "required": ["uri"]})


class ListedOperation(Struct, frozen=True):
    """An operation, and its definition by the server: empty for operations that every server has."""

    operation: Operation
    definition: Mapping[str, Any] = {}


class Listing:
    """The operations of a server by id, and the report of what was skipped."""

    def __init__(self) -> None:
        self.by_id: dict[str, ListedOperation] = {}
        self.report = Report(MAX_REPORTED)

    def put(self, operation: Operation | None, definition: Mapping[str, Any] | None = None) -> None:
        """Add an operation; skip one with a duplicate id."""
        if operation is None:
            return
        spec = operation.spec
        if spec.id in self.by_id:
            self.report.skip("operation", spec.id, "the id is a duplicate")
        else:
            self.by_id[spec.id] = ListedOperation(operation, definition or {})

    def changed_since(self, earlier: "Listing") -> tuple[Operation, ...]:
        """Return new and changed operations. Handlers are not compared: the definition determines them."""
        return tuple(
            listed.operation
            for id, listed in self.by_id.items()
            if id not in earlier.by_id or earlier.by_id[id].definition != listed.definition
        )


class ListingReader:
    """Read the listing of one server."""

    def __init__(self, session: MCPSession, options: MCPOptions, namespace: str, updates: ResourceUpdates) -> None:
        self._session = session
        self._options = options
        self._namespace = namespace
        self._updates = updates

    async def read(self, timeout: float) -> Listing:
        """Return everything that the server lists now.

        Raises:
            CallError: as `MCPSession.request`.
        """
        listing, namespace = Listing(), self._namespace
        capabilities = {} if self._session.info is None else self._session.info.capabilities
        deadline = time.monotonic() + timeout
        # Always requested: some servers have tools without announcing them.
        tools = await self._list("tools/list", "tools", listing.report, deadline, announced="tools" in capabilities)
        invalid = self._session.remember_tools(tools)
        reader = ToolReader(self._session, self._options, namespace, listing.report)
        async for tool in _in_slices(tools):
            if (name := as_text(tool.get("name"))) in invalid:
                skip(listing.report, "tool", namespace, name, invalid[name])
            else:
                listing.put(reader.read(tool), tool)
        if self._options.resources and "resources" in capabilities:
            watchable = as_dict(capabilities["resources"]).get("subscribe") is True
            for each in resource_operations(self._session, namespace, self._updates, watchable=watchable):
                listing.put(each)
        if self._options.prompts and "prompts" in capabilities:
            listing.put(list_operation(self._session, namespace, "prompts/list", "prompts", "List all prompts."))
            prompts = await self._list("prompts/list", "prompts", listing.report, deadline, announced=True)
            async for prompt in _in_slices(prompts):
                listing.put(read_prompt(prompt, self._session, namespace, listing.report), prompt)
        return listing

    async def _list(
        self, method: str, key: str, report: Report, deadline: float, *, announced: bool
    ) -> list[dict[str, Any]]:
        try:
            return await list_all(self._session, method, key, report, deadline=deadline)
        except CallError as error:
            if error.code is ErrorCode.OPERATION_NOT_FOUND and announced:
                report.warn(f"{method}: the server announces this method, and does not implement it")
            elif announced or error.code in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT):
                raise
            return []


async def _in_slices(entries: Iterable[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """Yield the entries, and let other tasks run: compiling the schemas of many tools takes seconds."""
    slice_ends = time.monotonic() + _SLICE
    for each in entries:
        yield each
        if time.monotonic() > slice_ends:
            await asyncio.sleep(0)
            slice_ends = time.monotonic() + _SLICE


async def list_all(
    session: MCPSession,
    method: str,
    key: str,
    report: Report,
    *,
    deadline: float | None,
    max_entries: int = MAX_OPERATIONS,
) -> list[dict[str, Any]]:
    """Return the entries of all pages, up to the limits. An entry that is not an object is skipped, and reported.

    Raises:
        CallError: as `MCPSession.request`; PROTOCOL_ERROR, a page is nested too deeply.
    """
    entries: list[dict[str, Any]] = []
    cursors: set[str] = set()
    size = 0
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        result = await session.request(method, params, deadline=deadline)
        try:
            size += len(msgspec.json.encode(result))
        except (TypeError, ValueError, RecursionError) as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"a page of {method} is invalid: {error}") from error
        if size > MAX_BYTES:
            report.warn(f"{method}: more than {MAX_BYTES:,} bytes; the {len(entries):,} entries before are used")
            return entries
        page = result.get(key)
        if not isinstance(page, list):
            report.warn(f"{method}: a page is not a list, but {type(page).__name__}")
        for each in as_list(page):
            if isinstance(each, dict):
                entries.append(cast("dict[str, Any]", each))
            else:
                skip(report, "entry", method, each, "it is not an object")
        if len(entries) > max_entries:
            report.warn(f"{method}: more than {max_entries:,} entries; the rest is ignored")
            return entries[:max_entries]
        cursor = result.get("nextCursor")
        if cursor is None:
            return entries
        if not isinstance(cursor, str) or cursor in cursors:
            report.warn(f"{method}: invalid or repeated cursor; the entries before it are used")
            return entries
        cursors.add(cursor)
        params = {"cursor": cursor}
    report.warn(f"{method}: more than {MAX_PAGES:,} pages; the rest is ignored")
    return entries


def list_operation(
    session: MCPSession, namespace: str, name: str, key: str, description: str, *, method: str | None = None
) -> Operation:
    """Return a query for a whole list, in the protocol's form: `{key: [...]}`. The method is its name by default."""
    entries = {"type": "array", "items": {"type": "object"}}
    spec = OperationSpec(
        namespace=namespace,
        name=name,
        description=description,
        input_schema=_NO_INPUT,
        output_schema=Schema({"type": "object", "properties": {key: entries}, "required": [key]}),
    )

    async def list_entries(_: Any, context: Context) -> ResponseEnvelope[Any]:
        report = Report(MAX_REPORTED)
        entries = await list_all(
            session, method or name, key, report, deadline=context.deadline, max_entries=MAX_ENTRIES
        )
        for line in report:
            logger.warning("%s: %s", spec.id, line)
        return structured_envelope({key: entries}, spec.id)

    return Operation(spec, list_entries)


def read_prompt(prompt: Mapping[str, Any], session: MCPSession, namespace: str, report: Report) -> Operation | None:
    """Return the operation of a prompt; None, and an entry in the report, if it is invalid."""
    name = prompt.get("name")
    if not is_usable_name(name):
        skip(report, "prompt", namespace, name, f"a name is printable text of 1 to {MAX_NAME} characters")
        return None
    properties: dict[str, Any] = {}  # strings: prompts take nothing else
    required: list[str] = []
    for argument in map(as_dict, as_list(prompt.get("arguments"))):
        key = argument.get("name")
        if not isinstance(key, str):
            report.warn(f"{namespace}.prompts/{name}: an argument without a name is ignored")
            continue
        described = {field: as_text(argument.get(field)) for field in ("title", "description")}
        properties[key] = {"type": "string", **{field: text for field, text in described.items() if text}}
        if argument.get("required") is True:
            required.append(key)
    spec = OperationSpec(
        namespace=namespace,
        name=f"prompts/{name}",
        title=as_text(prompt.get("title")),
        description=as_text(prompt.get("description")),
        input_schema=Schema({"type": "object", "properties": properties, "required": required}),
    )

    async def get(input: Any, context: Context) -> ResponseEnvelope[Any]:
        result = await session.call("prompts/get", {"name": name, "arguments": input or {}}, context)
        blocks: list[Any] = []  # one per message, or in newer revisions several
        for message in map(as_dict, as_list(result.get("messages"))):
            content: Any = message.get("content")
            blocks += content if isinstance(content, list) else [content]
        return structured_envelope(result, spec.id, read_blocks(blocks, spec.id))

    return Operation(spec, get)


# --- resources --------------------------------------------------------------------------------------------------------


def resource_operations(
    session: MCPSession, namespace: str, updates: ResourceUpdates, *, watchable: bool
) -> Iterator[Operation]:
    """Yield the operations of a server with resources: list, templates, read, and watch if it reports updates."""
    yield list_operation(session, namespace, "resources/list", "resources", "List all readable resources.")
    described = "List the URI templates of readable resources."
    method = "resources/templates/list"
    yield list_operation(session, namespace, "resources/templates", "resourceTemplates", described, method=method)
    yield _read_operation(session, namespace)
    if watchable:
        yield _watch_operation(session, namespace, updates)


def _read_operation(session: MCPSession, namespace: str) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/read",
        description="Read a resource as content blocks; bytes are base64 in a `blob`.",
        input_schema=_ONE_RESOURCE,
    )

    async def read(input: Any, context: Context) -> ResponseEnvelope[Any]:
        result = await session.call("resources/read", {"uri": input["uri"]}, context)
        contents = result.get("contents")
        if not isinstance(contents, list):
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{spec.id}: the result has no list of contents")
        blocks = [{"type": "resource", "resource": each} for each in cast("list[Any]", contents)]
        return blocks_envelope(result, spec.id, read_blocks(blocks, spec.id))

    return Operation(spec, read)


def _watch_operation(session: MCPSession, namespace: str, updates: ResourceUpdates) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/watch",
        type=OperationType.SUBSCRIPTION,
        description="Yield an item after each update of a resource: the URI to read again.",
        input_schema=_ONE_RESOURCE,
        output_schema=_ONE_RESOURCE,
    )

    async def watch(input: Any, _: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        uri = cast("str", input["uri"])
        with updates.of(uri) as watcher:
            await session.watch_resource(uri)
            try:
                while True:
                    try:
                        async with asyncio.timeout(CHECK_EVERY):
                            update = {"uri": await watcher.next()}
                    except TimeoutError:
                        await session.start()
                    else:
                        yield ResponseEnvelope(update, MCPResponseMeta(False, [], update, UNSET))
            finally:
                try:
                    await session.unwatch_resource(uri)
                except CallError as error:  # the consumer has left, and a lost server sends no updates anyway
                    logger.debug("the watch of a resource did not end cleanly: %s", error)

    return Operation(spec, watch)
