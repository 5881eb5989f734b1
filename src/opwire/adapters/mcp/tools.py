"""Tools as operations."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from msgspec import Struct

from opwire.adapters.mcp.foreign import object_of, text_of
from opwire.adapters.mcp.names import MAX_NAME, is_usable
from opwire.adapters.mcp.report import Findings
from opwire.adapters.mcp.results import result_envelope
from opwire.adapters.mcp.schemas import input_schema, output_schema
from opwire.adapters.mcp.session import Session
from opwire.adapters.mcp.streams import stream_items
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode, RegistrationError
from opwire.operation import Context, Handler, NormalizeMode, Operation, OperationSpec, OperationType, split_id
from opwire.origin import ORIGIN_META, Origin, read_origin

# Where another opwire puts what is no object, because MCP asks for objects.
_INPUT = ("properties", "input")
_RESULT = ("properties", "result")
_ITEM = ("properties", "items", "items")


class Reading(Struct, frozen=True, kw_only=True):
    """How the operations of a server are made.

    `own_ids`: tools that come from another opwire, and are trusted, keep the ids that they have there.
    """

    namespace: str
    own_ids: bool = False
    trust_annotations: bool = False
    timeout: float | None = None
    normalize: NormalizeMode | None = None
    strip: bool | None = None


def read_tool(tool: Mapping[str, Any], session: Session, reading: Reading, findings: Findings) -> Operation | None:
    """The operation that a tool is; None, and a finding, if it cannot be one."""
    name = tool.get("name")
    if not is_usable(name):
        findings.skip(name, f"a name is printable text of 1 to {MAX_NAME} characters")
        return None
    try:
        return _read(tool, cast("str", name), session, reading, findings)
    except RegistrationError as error:  # of what another opwire says of its operation
        findings.skip(name, str(error))
        return None


def _read(tool: Mapping[str, Any], name: str, session: Session, reading: Reading, findings: Findings) -> Operation:
    said = read_origin(tool.get("_meta"), ORIGIN_META)
    origin = said if reading.trust_annotations else None
    # Whether something is wrapped is believed of anybody: it only says how to read the rest.
    wraps_input, wraps_output = (False, False) if said is None else (said.wraps_input, said.wraps_output)
    type = _type(tool, origin, reading)
    output_path = _ITEM if type is OperationType.SUBSCRIPTION else _RESULT if wraps_output else ()
    namespace, own_name = split_id(origin.id) if origin and reading.own_ids else (reading.namespace, name)
    spec = OperationSpec(
        namespace=namespace,
        name=own_name,
        type=type,
        title=text_of(tool.get("title")) or text_of(object_of(tool.get("annotations")).get("title")),
        description=text_of(tool.get("description")),
        input_schema=input_schema(tool.get("inputSchema"), name, findings, _INPUT if wraps_input else ()),
        output_schema=output_schema(tool.get("outputSchema"), name, findings, output_path),
        normalize=reading.normalize,
        strip=reading.strip,
        **_said(origin, reading.timeout),
    )
    make = _stream_handler if type is OperationType.SUBSCRIPTION else _call_handler
    return Operation(spec, make(session, name, spec, wraps_input=wraps_input))


def _type(tool: Mapping[str, Any], origin: Origin | None, reading: Reading) -> OperationType:
    if origin is not None:
        return origin.type
    reads = reading.trust_annotations and object_of(tool.get("annotations")).get("readOnlyHint") is True
    return OperationType.QUERY if reads else OperationType.MUTATION


def _said(origin: Origin | None, timeout: float | None) -> dict[str, Any]:
    """What only another opwire says of an operation. A timeout that the user gave is stronger, and is for calls."""
    if origin is None:
        return {"timeout": timeout}
    given = None if origin.type is OperationType.SUBSCRIPTION else timeout
    return {
        "version": origin.version,
        "tags": origin.tags,
        "examples": origin.examples,
        "timeout": origin.timeout if given is None else given,
        "idle_timeout": origin.idle_timeout,
    }


# --- calling ----------------------------------------------------------------------------------------------------------


def _call_handler(session: Session, tool: str, spec: OperationSpec, *, wraps_input: bool) -> Handler:
    declared = not spec.output_schema.is_unknown

    async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
        params = _params(tool, spec.id, input, wraps_input=wraps_input)
        result = await session.request(
            "tools/call",
            params,
            deadline=context.deadline,
            on_progress=context.on_progress,
            metadata=context.metadata,
        )
        return result_envelope(result, spec.id, declared=declared)

    return call


def _stream_handler(session: Session, tool: str, spec: OperationSpec, *, wraps_input: bool) -> Handler:
    def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        return stream_items(session, _params(tool, spec.id, input, wraps_input=wraps_input), context, spec.id)

    return stream


def _params(tool: str, label: str, input: Any, *, wraps_input: bool) -> dict[str, Any]:
    arguments = {"input": input} if wraps_input else {} if input is None else input
    if not isinstance(arguments, dict):
        problem = f"a tool takes an object, not {type(input).__name__}"
        details = {"problems": [{"path": "", "message": problem}]}
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{label}: {problem}", details)
    return {"name": tool, "arguments": cast("dict[str, Any]", arguments)}
