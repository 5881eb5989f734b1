"""The names, revisions and headers of MCP. No I/O.

The handshake era (2024-11-05 to 2025-11-25) agrees on a revision with `initialize`, once for a connection. From
2026-07-28 on there is no connection state: every request says in its `_meta` what it is made with, and over HTTP
mirrors part of that in headers, so that proxies can route it. `x-mcp-header` in the schema of a tool adds arguments to
these headers.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from opwire.mcp.messages import RPCCode, RPCError, RPCMessage, RPCNotification, RPCRequest
from opwire.typed.plain import as_dict, as_list

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS = ("2026-07-28",)
BATCHED = "2025-03-26"
"""The revision with batches; the next one has abolished them."""

DEFAULT_VERSION = "2025-03-26"
"""The revision of an HTTP request without the header: the header is newer."""

VERSION_META = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_META = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_META = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_META = "io.modelcontextprotocol/serverInfo"
LOG_LEVEL_META = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_META = "io.modelcontextprotocol/subscriptionId"

REQUEST_META = "mcp._meta"
"""Where `Context.metadata` carries the `_meta` of a request, for the server that answers it."""

RESERVED_META = "io.modelcontextprotocol/"
"""The prefix of keys of `_meta` that describe one connection, and are not passed on."""

CONNECTION_META = frozenset({VERSION_META, CLIENT_INFO_META, CLIENT_CAPABILITIES_META, LOG_LEVEL_META, "progressToken"})
"""The keys of `_meta` in nearly every request."""

SESSION_HEADER = "mcp-session-id"
LAST_EVENT_HEADER = "last-event-id"
VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
PARAM_HEADER = "mcp-param-"

NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The param that the name header repeats, by method."""

SCHEMA_KEYWORD = "x-mcp-header"
"""In the schema of an argument, the header that it is sent in too."""

_ENCODED = re.compile(r"=\?base64\?(.*)\?=")
_PLAIN = re.compile(r"[\x20-\x7e]*")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL = re.compile(r"(-?[0-9]{1,400})(?:\.0+)?")
_HEADER_TYPES = ("string", "integer", "boolean")  # the text of a float depends on the language
_SCHEMAS = frozenset(
    "items contains unevaluatedItems additionalProperties propertyNames unevaluatedProperties not if then else "
    "contentSchema".split()
)
_SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMA_MAPS = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))


def is_reserved_meta(key: str) -> bool:
    """Return whether a key of `_meta` belongs to one connection, or to the trace, which is passed on by itself."""
    return key.startswith(RESERVED_META) or key in ("progressToken", "traceparent", "tracestate")


def request_headers(version: str, method: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request of the stateless era, without those of arguments."""
    headers = {VERSION_HEADER: version, METHOD_HEADER: method}
    name = params.get(NAMED_BY.get(method, ""))
    if isinstance(name, str):
        headers[NAME_HEADER] = encode_header(name)
    return headers


def read_envelope(method: str, params: Mapping[str, Any] | None, headers: Mapping[str, str] | None) -> str:
    """Check what a request of the stateless era says about itself; return its revision.

    `headers` have names in lower case; None for transports without them.

    Raises:
        RPCError: the envelope is incomplete, contradicts the headers, or is of an unknown revision.
    """
    meta = as_dict((params or {}).get("_meta"))
    if VERSION_META not in meta or CLIENT_CAPABILITIES_META not in meta:
        missing = [key for key in (VERSION_META, CLIENT_CAPABILITIES_META) if key not in meta]
        raise RPCError(RPCCode.INVALID_PARAMS, f"params._meta is missing {' and '.join(missing)}")
    version: Any = meta[VERSION_META]
    if headers is not None:
        header_version = headers.get(VERSION_HEADER)
        if header_version is None or header_version != version:
            raise RPCError(RPCCode.HEADER_MISMATCH, f"the header {VERSION_HEADER} differs from {VERSION_META}")
        check_routing(method, params, headers.get(METHOD_HEADER), headers.get(NAME_HEADER))
    if not isinstance(version, str):
        raise RPCError(RPCCode.INVALID_PARAMS, f"{VERSION_META} is not a string")
    check_stateless_version(version)
    return version


def check_routing(
    method: str, params: Mapping[str, Any] | None, given_method: str | None, given_name: str | None
) -> None:
    """Check that the headers of a request, by which proxies route it, say the same as its message.

    Raises:
        RPCError: they differ.
    """
    if given_method != method:
        raise RPCError(RPCCode.HEADER_MISMATCH, f"the header {METHOD_HEADER} differs from the method")
    name = None if (key := NAMED_BY.get(method)) is None else (params or {}).get(key)
    if name is not None and decode_header(given_name) != name:
        raise RPCError(RPCCode.HEADER_MISMATCH, f"the header {NAME_HEADER} differs from params.{NAMED_BY[method]}")


def check_sent_routing(messages: Iterable[RPCMessage], lines: Iterable[tuple[bytes, bytes]]) -> None:
    """Check the headers of messages of the handshake era, which are newer than it: a proxy does not know the era.

    Raises:
        RPCError: they differ from a message, or one of them is there twice.
    """
    decoded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in lines)
    routing_headers = [(name, value) for name, value in decoded if name in (METHOD_HEADER, NAME_HEADER)]
    if len(dict(routing_headers)) != len(routing_headers):
        raise RPCError(RPCCode.HEADER_MISMATCH, "a header of the request is there twice")
    for message in messages:
        if isinstance(message, RPCRequest | RPCNotification):
            expected_headers = {**request_headers("", message.method, message.params or {}), **dict(routing_headers)}
            check_routing(
                message.method, message.params, expected_headers[METHOD_HEADER], expected_headers.get(NAME_HEADER)
            )


def check_stateless_version(version: str) -> None:
    """Reject a revision that is not one of the stateless era.

    Raises:
        RPCError: it is unknown; the data lists the known ones.
    """
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version[:100]}
        raise RPCError(RPCCode.UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)


# --- header values ----------------------------------------------------------------------------------------------------


def encode_header(value: str) -> str:
    """Return the value of a header; base64 if it would not arrive unchanged."""
    if _PLAIN.fullmatch(value) and value == value.strip() and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{b64encode(value.encode()).decode('ascii')}?="


def decode_header(value: str | None) -> str | None:
    """Return the text that `encode_header` has encoded; None if it is missing or invalid."""
    encoded = None if value is None else _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    try:
        decoded = b64decode(encoded[1], validate=True)
        # Only the canonical encoding: otherwise a proxy and this server may read two values.
        return decoded.decode() if b64encode(decoded).decode("ascii") == encoded[1] else None
    except (Base64Error, ValueError):
        return None


class ArgumentHeader(NamedTuple):
    """An argument that is sent as a header too: its path in the arguments, the header and the type in the schema."""

    path: tuple[str, ...]
    token: str
    type: Any

    @property
    def name(self) -> str:
        """The header's name in lower case."""
        return f"{PARAM_HEADER}{self.token.lower()}"

    def value_in(self, arguments: Any) -> Any:
        """Return the argument; None if it is missing."""
        for step in self.path:
            arguments = as_dict(arguments).get(step)
        return arguments


ToolHeaders = Mapping[str, list[ArgumentHeader]]
"""The arguments that are sent as headers, by tool."""


def argument_headers(schema: Any) -> list[ArgumentHeader]:
    """Return the arguments of a tool that are sent as headers.

    Raises:
        ValueError: the schema declares one that is invalid; clients then leave out the tool.
    """
    declared_headers: list[ArgumentHeader] = []
    names: set[str] = set()
    for path, position in _schema_positions(schema):
        if SCHEMA_KEYWORD not in position:
            continue
        if not path:
            raise ValueError(
                f"{SCHEMA_KEYWORD} is only allowed on properties of the arguments, not below other keywords"
            )
        path_text, token, kind = ".".join(path)[:200], position[SCHEMA_KEYWORD], position.get("type")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token) or len(token) > 200:
            raise ValueError(f"the {SCHEMA_KEYWORD} of {path_text!r} is not the name of a header")
        if kind not in _HEADER_TYPES:
            raise ValueError(
                f"{SCHEMA_KEYWORD} is only allowed for strings, integers and booleans, unlike {path_text!r}"
            )
        if token.lower() in names:
            raise ValueError(f"the {SCHEMA_KEYWORD} of {path_text!r} is a duplicate")
        names.add(token.lower())
        declared_headers.append(ArgumentHeader(path, token, kind))
    return declared_headers


def _schema_positions(root: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Yield every schema in a schema, with its path if that consists of `properties` only."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while stack:
        path, schema = stack.pop()
        if not isinstance(schema, dict):
            continue
        yield path, cast("dict[str, Any]", schema)
        for keyword, value in cast("dict[str, Any]", schema).items():
            if keyword == "properties":
                stack += [
                    (None if path is None else (*path, name), subschema) for name, subschema in as_dict(value).items()
                ]
            elif keyword in _SCHEMAS:
                stack.append((None, value))
            elif keyword in _SCHEMA_LISTS:
                stack += [(None, subschema) for subschema in as_list(value)]
            elif keyword in _SCHEMA_MAPS:
                stack += [(None, subschema) for subschema in as_dict(value).values()]


def header_text(value: Any) -> str | None:
    """Return an argument as the text of a header; None if it has no such form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # thousands of digits
        return None


def write_argument_headers(declared: Iterable[ArgumentHeader], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a call."""
    texts = {f"Mcp-Param-{argument.token}": header_text(argument.value_in(arguments)) for argument in declared}
    return {name: encode_header(text) for name, text in texts.items() if text is not None}


def check_argument_headers(
    declared: Iterable[ArgumentHeader], arguments: Mapping[str, Any], headers: Mapping[str, str]
) -> None:
    """Reject a call if its headers differ from its arguments: a proxy has routed it by another value.

    Raises:
        RPCError: one differs, or only one of both is there.
    """
    for argument in declared:
        header, value = headers.get(argument.name), argument.value_in(arguments)
        text = header_text(value)
        if header is None and text is None:
            continue
        decoded = decode_header(header)
        if text is None or decoded is None or not _is_same(argument.type, value, text, decoded):
            raise RPCError(
                RPCCode.HEADER_MISMATCH,
                f"the header {argument.name} differs from the argument {'.'.join(argument.path)!r}",
            )


def _is_same(type: Any, value: Any, text: str, header: str) -> bool:
    """Return whether a header has the value of an argument; 42 and 42.0 are the same integer."""
    number = _DECIMAL.fullmatch(header) if type == "integer" and not isinstance(value, bool) else None
    if number is not None and (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        return int(number[1]) == int(value)
    return text == header
