"""What MCP and OpenAPI have no words for: said by the surfaces, read again by the adapters.

A registry that is served and read back gives the same operations. Their schemas, titles and descriptions have places
of their own in both formats; the rest travels in an `Origin`, under `_meta["opwire/operation"]` of an MCP tool and
under `x-opwire` of an OpenAPI operation. Peers that do not know opwire ignore it.

Operation ids as URL paths, for servers and for clients.

An operation is at `/{namespace}/{name}`, one segment each.

Percent-encoding alone does not survive: servers decode `%2F` before they hand a path on, proxies fold `..` and `//`,
and some refuse both. So whatever is not a letter, a digit, `-`, `_` or `.` is written as `~` and two hexadecimal
digits for each byte of its UTF-8: `github.repos/get` is at `/github/repos~2Fget`. Nothing on the way touches these
characters. This is the only address of an operation. Other ways to write it, such as the percent-encoded name or one
with plain slashes, are understood by `id_of`, so that a server can say what the address is.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from opwire.operation import OperationSpec, OperationType

ORIGIN_META = "opwire/operation"
"""Where an MCP tool carries its `Origin`."""

RESULT_META = "opwire/result"
"""Where an MCP result carries its `ResultOrigin`."""

ITEM_META = "opwire/item"
"""Where an MCP progress notification carries an item of a subscription."""

ERROR_META = "opwire/error"
"""Where an MCP result with `isError` carries the `CallError`."""

ORIGIN_EXTENSION = "x-opwire"
"""Where an OpenAPI operation carries its `Origin`."""


class Origin(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An operation as its own registry knows it.

    `wraps_input` and `wraps_output` say that the format asks for an object where the operation has none: the input
    is then the value of the property `input`, the output that of `result`.
    """

    id: str
    type: OperationType
    version: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[Any, ...] = ()
    timeout: float | None = None
    idle_timeout: float | None = None
    wraps_input: bool = False
    wraps_output: bool = False

    @classmethod
    def of(cls, spec: OperationSpec, *, wraps_input: bool = False, wraps_output: bool = False) -> "Origin":
        """What there is to say of an operation."""
        return cls(
            id=spec.id,
            type=spec.type,
            version=spec.version,
            tags=spec.tags,
            examples=spec.examples,
            timeout=spec.timeout,
            idle_timeout=spec.idle_timeout,
            wraps_input=wraps_input,
            wraps_output=wraps_output,
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the document that carries it."""
        return msgspec.to_builtins(self)


class ResultOrigin(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A result as its own registry gave it.

    `wrapped`: the data is the value of the property `result`. `encoding`: the data was bytes. `meta` is the meta of
    the envelope in its wire form, where it says more than the time of the call.
    """

    wrapped: bool = False
    encoding: Literal["base64"] | None = None
    meta: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the result that carries it."""
        return msgspec.to_builtins(self)


def read_origin(carrier: Any, key: str) -> Origin | None:
    """The `Origin` that a mapping carries under a key; None if there is none that can be read."""
    return _read(carrier, key, Origin)


def read_result_origin(carrier: Any) -> ResultOrigin | None:
    """The `ResultOrigin` that the `_meta` of an MCP result carries; None if there is none that can be read."""
    return _read(carrier, RESULT_META, ResultOrigin)


def _read(carrier: Any, key: str, kind: Any) -> Any:
    if not isinstance(carrier, Mapping):
        return None
    given = cast("Mapping[str, Any]", carrier).get(key)
    if given is None:
        return None
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, RecursionError):  # a stranger's field of the same name
        return None


ENVELOPE_JSON = "application/vnd.opwire.envelope+json"
"""The content type of a whole envelope, for those who ask for it."""

_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def path_of(operation_id: str) -> str:
    """Where an operation is."""
    namespace, _, name = operation_id.partition(".")
    return f"/{_escape(namespace)}/{_escape(name)}"


def id_of(path: str) -> str | None:
    """The id that a decoded path stands for; None if it is not of the form `/{namespace}/{name}`."""
    namespace, _, name = path.removeprefix("/").partition("/")
    if not namespace or not name:
        return None
    return f"{_unescape(namespace)}.{_unescape(name)}" if "~" in path else f"{namespace}.{name}"


def _escape(segment: str) -> str:
    escaped = _UNSAFE.sub(_bytes_of, segment)
    return escaped.replace(".", "~2E") if not segment.strip(".") else escaped  # `.` and `..` mean something in a path


def _bytes_of(character: re.Match[str]) -> str:
    return "".join(f"~{byte:02X}" for byte in character[0].encode("utf-8", "surrogatepass"))


def _unescape(segment: str) -> str:
    return _ESCAPED.sub(_text_of, segment)


def _text_of(escaped: re.Match[str]) -> str:
    try:
        return bytes.fromhex(escaped[0].replace("~", "")).decode()
    except UnicodeDecodeError:  # not of our making: it stands for itself
        return escaped[0]
