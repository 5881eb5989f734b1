"""Extension fields that surfaces encode and adapters decode, and operation ids as URL paths.

A registry that is served and loaded again has the same operations. Schemas, titles and descriptions have fields in MCP
and OpenAPI; the rest is encoded as an `Origin`, in `_meta["opwire/operation"]` of an MCP tool and `x-opwire` of an
OpenAPI operation. Other clients ignore it.

The path of an operation is `/{namespace}/{name}`, one segment each. Percent-encoding alone does not survive: servers
decode `%2F` before routing, proxies normalize `..` and `//`, and some reject both. So every character other than a
letter, a digit, `-`, `_` or `.` is encoded as `~` and two hexadecimal digits per byte of its UTF-8: `github.repos/get`
is at `/github/repos~2Fget`, which passes unchanged. This is the only address of an operation; `id_of` also decodes
other spellings, so that a server can redirect to it.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from opwire.model.mcp_presentation import Annotations, MCPPresentation, Role
from opwire.model.operation import OperationSpec, OperationType

ORIGIN_META = "opwire/operation"
"""Where an MCP tool carries its `Origin`."""

RESULT_META = "opwire/result"
"""Where an MCP result carries its `ResultOrigin`."""

ITEM_META = "opwire/item"
"""Where an MCP progress notification carries an item of a subscription."""

ERROR_META = "opwire/error"
"""Where an MCP result with `isError` carries the `CallError`."""

FIELDS_META = "opwire/fields"
"""Where the meta of an envelope carries fields of an MCP result that opwire does not know."""

ORIGIN_EXTENSION = "x-opwire"
"""Where an OpenAPI operation carries its `Origin`."""


RESUMED = "x-resumed"
"""The header of a stream of events that continues after `Last-Event-ID`."""


class Origin(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The fields of an operation that MCP and OpenAPI lack.

    `wraps_input` and `wraps_output`: the format requires an object and the operation has another type, so the input
    is the value of the property `input`, the output that of `result`. `binary_output`: it returns bytes and
    declares no schema. `untitled`: the summary is not its title. `loose_formats`: `format` in inputs is an annotation.
    """

    id: str
    type: OperationType
    version: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[Any, ...] = ()
    timeout: float | None = None
    idle_timeout: float | None = None
    resumable: bool = False
    wraps_input: bool = False
    wraps_output: bool = False
    binary_output: bool = False
    untitled: bool = False
    loose_formats: bool = False
    role: Role = "tool"
    uri: str = ""
    mime_type: str = ""
    annotations: dict[str, Any] = {}  # as in MCP
    icons: tuple[dict[str, Any], ...] = ()
    meta: dict[str, Any] = {}

    @classmethod
    def of(
        cls,
        spec: OperationSpec,
        *,
        wraps_input: bool = False,
        wraps_output: bool = False,
        binary_output: bool = False,
        untitled: bool = False,
        in_mcp: bool = False,
    ) -> "Origin":
        """Return the origin of an operation; without annotations, icons and meta `in_mcp`, which has them.

        MCP cannot resume the items of a call.
        """
        hints = spec.mcp.annotations.to_mcp()
        is_default = spec.type is OperationType.QUERY and hints == {"readOnlyHint": True}
        return cls(
            id=spec.id,
            type=spec.type,
            version=spec.version,
            tags=spec.tags,
            examples=spec.examples,
            timeout=spec.timeout,
            idle_timeout=spec.idle_timeout,
            resumable=spec.resumable and not in_mcp,
            wraps_input=wraps_input,
            wraps_output=wraps_output,
            binary_output=binary_output,
            untitled=untitled,
            loose_formats=not spec.input_schema.checks_formats,
            role=spec.mcp.role,
            uri=spec.mcp.uri,
            mime_type=spec.mcp.mime_type,
            annotations={} if in_mcp or is_default else hints,
            icons=() if in_mcp else spec.mcp.icons,
            meta={} if in_mcp else dict(spec.mcp.meta),
        )

    @property
    def mcp(self) -> MCPPresentation:
        """What the operation is to clients of MCP."""
        return MCPPresentation(
            role=self.role,
            uri=self.uri,
            mime_type=self.mime_type,
            annotations=Annotations.from_mcp(self.annotations),
            icons=self.icons,
            meta=self.meta,
        )


class ResultOrigin(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The fields of a result that MCP lacks.

    `wrapped`: the data is the value of the property `result`. `encoding`: the data was bytes. `meta` is the
    encoded meta of the envelope, if it contains more than a timestamp.
    """

    wrapped: bool = False
    encoding: Literal["base64"] | None = None
    meta: dict[str, Any] | None = None


def read_origin(carrier: Any, key: str) -> Origin | None:
    """Decode the `Origin` under a key of a mapping; return None if it is missing or invalid."""
    return _read(carrier, key, Origin)


def read_result_origin(carrier: Any) -> ResultOrigin | None:
    """Decode the `ResultOrigin` of an MCP result's `_meta`; return None if it is missing or invalid."""
    return _read(carrier, RESULT_META, ResultOrigin)


def _read(carrier: Any, key: str, kind: Any) -> Any:
    if type(carrier) is not dict and not isinstance(carrier, Mapping):
        return None
    encoded = cast("Mapping[str, Any]", carrier).get(key)
    if encoded is None:
        return None
    try:
        return msgspec.convert(encoded, kind)
    except (msgspec.ValidationError, RecursionError):  # a field of the same name with another meaning
        return None


ENVELOPE_JSON = "application/vnd.opwire.envelope+json"
"""The content type of a whole envelope, for clients that accept it."""

_ESCAPE_SEQUENCE = re.compile(r"(?:~[0-9A-F]{2})+")
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9._-]")


def path_of(operation_id: str) -> str:
    """Return the path of an operation."""
    namespace, _, name = operation_id.partition(".")
    return f"/{_escape(namespace)}/{_escape(name)}"


def id_of(path: str) -> str | None:
    """Return the id of a decoded path; None if it is not `/{namespace}/{name}`."""
    namespace, _, name = path.removeprefix("/").partition("/")
    if not namespace or not name:
        return None
    if "~" in path:
        namespace, name = (_ESCAPE_SEQUENCE.sub(_text_of, segment) for segment in (namespace, name))
    return f"{namespace}.{name}"


def _escape(segment: str) -> str:
    escaped = _UNSAFE_CHARACTER.sub(
        lambda unsafe: "".join(f"~{byte:02X}" for byte in unsafe[0].encode("utf-8", "surrogatepass")), segment
    )
    return escaped.replace(".", "~2E") if not segment.strip(".") else escaped  # `.` and `..` have a meaning in a path


def _text_of(escaped: re.Match[str]) -> str:
    try:
        return bytes.fromhex(escaped[0].replace("~", "")).decode()
    except UnicodeDecodeError:  # not an escape of this encoding: taken literally
        return escaped[0]
