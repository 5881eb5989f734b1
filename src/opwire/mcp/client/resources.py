"""Prompts and resources of an MCP server as operations, and the lists of a server.

Each prompt is an operation. Resources are behind operations that list, read and watch them: a server may have any
number. Servers are not trusted to end a list: pages, entries and bytes are bounded.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, RegistrationError
from opwire.mcp.client.negotiation import MCPServerInfo, as_text
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.session import MCPSession, MCPSessions
from opwire.mcp.client.tools import (
    MAX_NAME,
    MAX_SCHEMA_BYTES,
    blocks_envelope,
    icons_of,
    is_usable_name,
    meta_of,
    read_blocks,
    skip,
    structured_envelope,
)
from opwire.model.completion import MAX_COMPLETIONS, Completion, CompletionRequest
from opwire.model.context import Context
from opwire.model.envelope import MCPResponseMeta, ResponseEnvelope
from opwire.model.mcp_presentation import MCPPresentation, Role
from opwire.model.operation import Completer, Operation, OperationSpec, OperationType, PreparedRequest, split_id
from opwire.model.origin import ORIGIN_META, read_origin
from opwire.registry.source import Report
from opwire.runtime.text import get_logger
from opwire.schema import Schema
from opwire.typed.plain import as_dict, as_list

logger = get_logger("opwire.mcp.client")

MAX_PAGES = 1000
MAX_OPERATIONS = 10_000
"""Tools or prompts of a server: each becomes an operation, which takes a few kB however small its description is."""

MAX_ENTRIES = 100_000
"""Entries of a list that do not become operations, as resources."""

MAX_LIST_BYTES = 32 * 1024 * 1024
"""Bytes of all pages of one list: more than GitHub's 1,223 operations take as tools."""

MAX_REPORTED = 100
"""Skipped entries of a report, and warnings of it: a server may have any number of invalid tools."""

CHECK_EVERY = 5.0
"""Seconds without an update after which a watch checks the connection: silence may be a lost connection."""

_NO_INPUT = Schema({"type": "object", "properties": {}})
_URI = {"uri": {"type": "string", "description": "the URI of a resource"}}
_ONE_RESOURCE = Schema({"type": "object", "properties": _URI, "required": ["uri"]})


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
        if size > MAX_LIST_BYTES:
            report.warn(f"{method}: more than {MAX_LIST_BYTES:,} bytes; the {len(entries):,} entries before are used")
            return entries
        page = result.get(key)
        if not isinstance(page, list):
            report.warn(f"{method}: a page is not a list, but {type(page).__name__}")
        room = max_entries - len(entries)
        for listed in as_list(page)[:room]:
            if isinstance(listed, dict):
                entries.append(cast("dict[str, Any]", listed))
            else:
                skip(report, "entry", method, listed, "it is not an object")
        if len(as_list(page)) > room:
            report.warn(f"{method}: more than {max_entries:,} entries; the rest is ignored")
            return entries
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


async def is_empty(session: MCPSession, method: str, key: str, *, deadline: float) -> bool:
    """Return whether a list has no entry, by its first page. One that cannot be read counts as not empty.

    Raises:
        CallError: UNAVAILABLE or TIMEOUT.
    """
    try:
        result = await session.request(method, {}, deadline=deadline)
    except CallError as error:
        if error.code in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT):
            raise
        return error.code is ErrorCode.OPERATION_NOT_FOUND
    return result.get(key) == [] and result.get("nextCursor") is None


def list_operation(
    sessions: MCPSessions, namespace: str, role: Role, key: str, description: str, *, method: str = ""
) -> Operation:
    """Return a query for a whole list, in the protocol's form: `{key: [...]}`. The method is its role by default."""
    method = method or role
    entries = {"type": "array", "items": {"type": "object"}}
    spec = OperationSpec(
        namespace=namespace,
        name=role,
        description=description,
        input_schema=_NO_INPUT,
        output_schema=Schema({"type": "object", "properties": {key: entries}, "required": [key]}),
        mcp=MCPPresentation(role=role),
    )

    async def list_entries(_: Any, context: Context) -> ResponseEnvelope[Any]:
        report = Report(MAX_REPORTED)
        session = await sessions.of(context)
        entries = await list_all(session, method, key, report, deadline=context.deadline, max_entries=MAX_ENTRIES)
        for line in report:
            logger.warning("%s: %s", spec.id, line)
        return structured_envelope({key: entries}, spec.id)

    async def preview(_: Any, context: Context, reveal: bool) -> PreparedRequest:
        return await (await sessions.of(context)).preview(method, {}, Context())

    return Operation(spec, list_entries, preview=preview)


def _arguments_schema(prompt: Mapping[str, Any], label: str, report: Report) -> Schema:
    properties: dict[str, Any] = {}  # strings: prompts take nothing else
    required: list[str] = []
    for argument in map(as_dict, as_list(prompt.get("arguments"))):
        key = argument.get("name")
        if not isinstance(key, str):
            report.warn(f"{label}: an argument without a name is ignored")
            continue
        described = {field: as_text(argument.get(field)) for field in ("title", "description")}
        properties[key] = {"type": "string", **{field: text for field, text in described.items() if text}}
        if argument.get("required") is True:
            required.append(key)
    return Schema({"type": "object", "properties": properties, "required": required})


def read_prompt(
    prompt: Mapping[str, Any],
    sessions: MCPSessions,
    options: MCPOptions,
    namespace: str,
    report: Report,
    *,
    completes: bool,
) -> Operation | None:
    """Return the operation of a prompt; None, and an entry in the report, if it is invalid."""
    name = prompt.get("name")
    if not is_usable_name(name):
        skip(report, "prompt", namespace, name, f"a name is printable text of 1 to {MAX_NAME} characters")
        return None
    if (
        len(msgspec.json.encode(prompt.get("arguments"))) > MAX_SCHEMA_BYTES
    ):  # the schema of 80,000 took a second to compile
        skip(report, "prompt", namespace, name, f"its arguments exceed the limit of {MAX_SCHEMA_BYTES:,} bytes")
        return None
    origin = read_origin(prompt.get("_meta"), ORIGIN_META) if options.trust_annotations else None
    id = f"{namespace}.prompts/{name}" if origin is None or options.namespace else origin.id
    schema = _arguments_schema(prompt, f"{namespace}.prompts/{name}", report)
    try:
        namespace, own_name = split_id(id)
        spec = OperationSpec(
            namespace=namespace,
            name=own_name,
            title=as_text(prompt.get("title")),
            description=as_text(prompt.get("description")),
            input_schema=schema,
            lenient_input=not options.strict_input,
            mcp=MCPPresentation(role="prompt", icons=icons_of(prompt), meta=meta_of(prompt)),
        )
    except RegistrationError as error:  # raised for an invalid origin
        skip(report, "prompt", namespace, name, str(error))
        return None

    def params(input: Any) -> dict[str, Any]:
        return {"name": name, "arguments": input or {}}

    async def get(input: Any, context: Context) -> ResponseEnvelope[Any]:
        result = (await (await sessions.of(context)).call("prompts/get", params(input), context)).result
        blocks: list[Any] = []  # one per message, or in newer revisions several
        for message in map(as_dict, as_list(result.get("messages"))):
            content: Any = message.get("content")
            blocks += content if isinstance(content, list) else [content]
        return structured_envelope(result, spec.id, read_blocks(blocks, spec.id))

    async def preview(input: Any, context: Context, _: bool) -> PreparedRequest:
        return await (await sessions.of(context)).preview("prompts/get", params(input), context)

    complete = completer(sessions, lambda _: {"type": "ref/prompt", "name": name}) if completes else None
    return Operation(spec, get, preview=preview, complete=complete)


def completer(sessions: MCPSessions, reference: Callable[[CompletionRequest], dict[str, Any]]) -> Completer:
    """Return the completer of arguments at a server; `reference` says of what."""

    async def complete(request: CompletionRequest, context: Context) -> Completion:
        params = {"ref": reference(request), "argument": {"name": request.argument, "value": request.value}}
        if request.arguments:
            params["context"] = {"arguments": dict(request.arguments)}
        response = await (await sessions.of(context)).call("completion/complete", params, context)
        completion = as_dict(response.result.get("completion"))
        values = [value for value in as_list(completion.get("values"))[:MAX_COMPLETIONS] if isinstance(value, str)]
        total = completion.get("total")
        return Completion(
            values=tuple(values),
            total=total if type(total) is int and 0 <= total < 2**53 else None,
            has_more=completion.get("hasMore") is True,
        )

    return complete


def can_complete(info: MCPServerInfo) -> bool:
    """Return whether a server completes arguments; the first revision could not announce it."""
    return "completions" in info.capabilities or info.protocol == "2024-11-05"


# --- resources --------------------------------------------------------------------------------------------------------


def resource_operations(
    sessions: MCPSessions, namespace: str, *, watchable: bool, completes: bool
) -> Iterator[Operation]:
    """Yield the operations of a server with resources: list, templates, read, and watch if it reports updates."""
    yield list_operation(sessions, namespace, "resources/list", "resources", "List all readable resources.")
    described = "List the URI templates of readable resources."
    method = "resources/templates/list"
    templates = list_operation(
        sessions, namespace, "resources/templates", "resourceTemplates", described, method=method
    )
    complete = completer(sessions, lambda request: {"type": "ref/resource", "uri": request.uri})
    yield replace(templates, complete=complete) if completes else templates
    yield _read_operation(sessions, namespace)
    if watchable:
        yield _watch_operation(sessions, namespace)


def _read_operation(sessions: MCPSessions, namespace: str) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/read",
        description="Read a resource as content blocks; bytes are base64 in a `blob`.",
        input_schema=_ONE_RESOURCE,
        mcp=MCPPresentation(role="resources/read"),
    )

    def params(input: Any) -> dict[str, Any]:
        return {"uri": input["uri"]}

    async def read(input: Any, context: Context) -> ResponseEnvelope[Any]:
        result = (await (await sessions.of(context)).call("resources/read", params(input), context)).result
        contents = result.get("contents")
        if not isinstance(contents, list):
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{spec.id}: the result has no list of contents")
        blocks = [{"type": "resource", "resource": resource} for resource in cast("list[Any]", contents)]
        return blocks_envelope(result, spec.id, read_blocks(blocks, spec.id))

    async def preview(input: Any, context: Context, _: bool) -> PreparedRequest:
        return await (await sessions.of(context)).preview("resources/read", params(input), context)

    return Operation(spec, read, preview=preview)


def _watch_operation(sessions: MCPSessions, namespace: str) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/watch",
        type=OperationType.SUBSCRIPTION,
        description="Yield an item after each update of a resource: the URI to read again.",
        input_schema=_ONE_RESOURCE,
        output_schema=_ONE_RESOURCE,
        mcp=MCPPresentation(role="resources/watch"),
    )

    async def watch(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        uri, session = cast("str", input["uri"]), await sessions.of(context)
        with session.updates.of(uri) as watcher:
            await session.watch_resource(uri)
            context.report(0, message="subscribed")
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
