"""Parse HTTP requests: headers, JSON bodies, query strings; and cancel calls of clients that disconnect.

A query string can express an object of scalars and of arrays of scalars: each property is a query parameter, and an
array repeats it (`?tag=a&tag=b`). Its values are text, so the schema decides their types; an input cannot be sent as a
query string if its schema allows text and something else for the same property.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from math import isfinite
from types import NoneType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET

from opwire.asgi.app import PARENT_ROOT, is_plain, path_in_app
from opwire.asgi.problem import HTTPStatusError
from opwire.asgi.request import AdmittedRequest, Receive, Scope
from opwire.errors import CallError, ErrorCode
from opwire.model.caller import caller_metadata
from opwire.model.context import Context, Inbound
from opwire.model.operation import OperationSpec, OperationType, input_error
from opwire.model.origin import ENVELOPE_JSON
from opwire.model.trace import Trace, trace_of
from opwire.runtime.deadlines import Deadlines, bounded_seconds
from opwire.schema import Problem, Schema
from opwire.schema.dialect import References
from opwire.schema.shape import type_names
from opwire.typed.plain import LARGE_JSON, as_dict, as_list, has_duplicate_keys, parse_float, read_peer_json

MAX_PARAMETERS = 1_000
READS = frozenset({"GET", "HEAD"})

REQUEST = "opwire.http_request"
"""Key of the ASGI scope: the `Request`."""

_ENVELOPE = ENVELOPE_JSON.encode()
_JSON = re.compile(rb"application/(?:json|[\w.!#$&^-]+\+json)\s*(?:;\s*charset=\"?utf-?8\"?\s*)?;?", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
_QUALITY = re.compile(rb"(?:^|;)\s*q=([01](?:\.[0-9]{0,3})?)\s*(?:;|$)")
_MIN_EPOCH_MILLISECONDS = 100_000_000_000  # no call takes three years, so a larger number is a date
_decoder = msgspec.json.Decoder(float_hook=parse_float)


class Request:
    """A request; its parts are parsed lazily."""

    __slots__ = (
        "_scope",
        "access",
        "admitted",
        "headers",
        "identity",
        "is_plain",
        "method",
        "path",
        "query",
        "request_id",
        "root_path",
    )

    def __init__(self, scope: Scope, admitted: AdmittedRequest) -> None:
        self._scope = scope
        self.admitted = admitted
        self.method = admitted.method
        self.root_path: str = scope.get("root_path", "")
        self.path = path_in_app(scope)
        self.is_plain = is_plain(scope)
        self.query: bytes = scope["query_string"]
        self.headers = admitted.headers
        self.identity = admitted.identity
        self.access = admitted.access
        sent_id = self.headers.get(b"x-request-id")
        is_sane = sent_id is not None and _REQUEST_ID.fullmatch(sent_id)
        self.request_id = sent_id.decode() if sent_id and is_sane else os.urandom(16).hex()

    @property
    def is_secure(self) -> bool:
        """Whether it came over TLS."""
        return self._scope.get("scheme") == "https"

    @property
    def api_root(self) -> str | None:
        """The root path of the HTTP API beside which the app is mounted."""
        return self._scope.get(PARENT_ROOT)

    @property
    def wants_envelope(self) -> bool:
        """Whether the client prefers the envelope to plain JSON.

        Some clients accept every type of the document alike: they get the default, plain data.
        """
        accept = self.headers.get(b"accept", b"").lower()
        if _ENVELOPE not in accept:
            return False
        qualities: dict[bytes, float] = {}
        for accepted in accept.split(b","):
            kind, _, parameters = accepted.partition(b";")
            quality = _QUALITY.search(parameters)
            qualities[kind.strip()] = float(quality[1]) if quality else 1.0
        return qualities.get(_ENVELOPE, 0.0) > qualities.get(b"application/json", 0.0)

    @property
    def last_event_id(self) -> str | None:
        """The last event of a stream that the client has received."""
        event_id = self.headers.get(b"last-event-id")
        return event_id.decode("utf-8", "replace") if event_id else None

    @property
    def metadata(self) -> Trace:
        """The trace context of the call."""
        parent, state = self.headers.get(b"traceparent"), self.headers.get(b"tracestate", b"")
        if parent is None:
            return {}
        return trace_of({"traceparent": parent.decode("latin-1"), "tracestate": state.decode("latin-1")})

    def deadline(self, default: float | None) -> float | None:
        """Return the call's deadline as monotonic time; `default` is a timeout in seconds.

        `X-Deadline-Ms` is the number of milliseconds left, or a time in milliseconds of the Unix epoch. More than a
        day counts as a day.

        Raises:
            CallError: PROTOCOL_ERROR, if it is not a number; TIMEOUT, if it has passed.
        """
        header = self.headers.get(b"x-deadline-ms")
        if header is None:
            return None if default is None else time.monotonic() + default
        if not header.isdigit() or len(header) > 18:
            raise CallError(ErrorCode.PROTOCOL_ERROR, "the header x-deadline-ms is not a number of milliseconds")
        milliseconds = int(header)
        if milliseconds > _MIN_EPOCH_MILLISECONDS:
            milliseconds -= time.time_ns() // 1_000_000
        if milliseconds <= 0:
            raise CallError(ErrorCode.TIMEOUT, "the deadline had passed before the call arrived")
        return time.monotonic() + bounded_seconds(milliseconds / 1000)

    def context(self, timeout: float | None, bind_env: Callable[[Context], Any]) -> Context:
        """Return the context of the call; `timeout` is the default in seconds.

        Raises:
            CallError: see `deadline`.
        """
        token = self.admitted.token
        metadata: Mapping[str, Any] = self.metadata if b"traceparent" in self.headers else {}
        return Context(
            request_id=self.request_id,
            identity=self.identity,
            deadline=self.deadline(timeout),
            metadata=metadata if token is None else {**metadata, **caller_metadata(self.identity, token)},
            inbound=Inbound(self.request_id),
            bind_env=bind_env,
            resume_from=self.last_event_id if b"last-event-id" in self.headers else None,
        )

    def json(self) -> Any:
        """Return the decoded body; UNSET if it is empty.

        Raises:
            HTTPStatusError: its content type is not JSON.
            CallError: PROTOCOL_ERROR, if it is invalid.
        """
        body = self.admitted.body
        if not body:
            return UNSET
        if self.headers.get(b"content-type") != b"application/json":
            self.check_json()
        return parse_body(body)

    @property
    def text_headers(self) -> dict[str, str]:
        """The headers as text."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers.items()}

    def check_json(self) -> None:
        """Check the content type.

        Raises:
            HTTPStatusError: it is not JSON.
        """
        content_type = self.headers.get(b"content-type", b"")
        if content_type != b"application/json" and not _JSON.fullmatch(content_type):
            wrong = "the body must be JSON in UTF-8, sent as content-type: application/json"
            error = CallError(ErrorCode.PROTOCOL_ERROR, wrong)
            raise HTTPStatusError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, error, (b"accept", b"application/json"))


# --- JSON bodies ------------------------------------------------------------------------------------------------------


def parse_body(body: bytes) -> Any:
    """Decode a JSON text. Lone surrogates, which JavaScript writes, are replaced.

    Raises:
        CallError: PROTOCOL_ERROR, if it is not JSON, or ambiguous: two parsers could read different values.
    """
    try:
        value: Any = read_peer_json(_decoder, body)
        # A flat object with as many keys as there are colons has no duplicate keys. Other values are checked in full.
        if b":" in body and (value.__class__ is not dict or body.count(b":") != len(value)):
            _reject_duplicate_keys(body, value)
    except RecursionError:
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the body is nested too deeply") from None
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"the body is not valid JSON: {error}") from error
    return value


def _reject_duplicate_keys(body: bytes, value: Any) -> None:
    """Raise ValueError if an object has duplicate keys: two parsers would read different values."""
    if not has_duplicate_keys(body, value):
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"duplicate key {name[:100]!r}")
            seen.add(name)

    if len(body) <= LARGE_JSON:  # finding the key takes longer
        json.loads(body, object_pairs_hook=check)
    raise ValueError("duplicate key")


# --- query strings ----------------------------------------------------------------------------------------------------

_FLAT_KEYWORDS = frozenset(
    "$comment $defs $id $schema additionalProperties components definitions deprecated description examples "
    "maxProperties minProperties properties required title type unevaluatedProperties".split()
)
_SCALARS = frozenset({"boolean", "integer", "null", "number", "string"})
_TYPE_NAMES = {NoneType: "null", bool: "boolean", int: "number", float: "number", str: "string"}
_MAX_HOPS = 8
_MAX_INTEGER_DIGITS = 4_000  # Python refuses to parse a longer integer
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class QueryParameter(NamedTuple):
    """The types of a query parameter."""

    kinds: frozenset[str]  # names of JSON Schema types, of the value or of an array's items
    is_array: bool


_TEXT = QueryParameter(frozenset({"string"}), is_array=False)


def query_parameters(schema: Schema) -> Mapping[str, QueryParameter] | None:
    """Return the query parameters of an input schema by name; None if a query string cannot express the input."""
    json = schema.lowered_object
    if json.get("type") != "object" or not _FLAT_KEYWORDS.issuperset(json):
        return None
    if isinstance(json.get("additionalProperties"), dict) or isinstance(json.get("unevaluatedProperties"), dict):
        return None
    if not isinstance(json.get("properties", {}), dict) or not isinstance(json.get("required", []), list):
        return None  # an invalid schema
    references = References(json)
    parameters: dict[str, QueryParameter] = {}
    for name, property_schema in as_dict(json.get("properties")).items():
        parameter = _parameter(property_schema, references)
        if parameter is None:
            return None
        parameters[name] = parameter
    return parameters


def parse_query(parameters: Mapping[str, QueryParameter], query: bytes) -> dict[str, Any]:
    """Return the input of a query string. A value of another type stays text, for the validation to report.

    Raises:
        CallError: PROTOCOL_ERROR, if it is invalid.
    """
    if not query:
        return {}
    try:
        text = query.decode()
        if text.count("&") >= MAX_PARAMETERS:
            raise ValueError(f"it has more than {MAX_PARAMETERS:,} fields")
        # As `parse_qsl`, which decodes every name and value, in a third of its time: most are not encoded.
        pairs = [field.partition("=")[::2] for field in text.replace("+", " ").split("&") if field]
        if "%" in text:
            pairs = [(_unquoted(name), _unquoted(value)) for name, value in pairs]
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"invalid query string: {error}") from error
    input: dict[str, Any] = {}
    for name, text in pairs:
        parameter = parameters.get(name, _TEXT)
        if parameter.is_array:
            input.setdefault(name, []).append(parse_value(text, parameter.kinds))
        elif name in input:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"duplicate query parameter {name[:100]!r}")
        else:
            input[name] = parse_value(text, parameter.kinds)
    return input


def _unquoted(text: str) -> str:
    return unquote_to_bytes(text).decode() if "%" in text else text


def parse_value(text: str, kinds: frozenset[str]) -> Any:
    """Return the value that a text stands for, if it may be of these types; else the text."""
    if "string" in kinds:
        return text
    if "null" in kinds and text in ("", "null"):
        return None
    if "boolean" in kinds and text in ("true", "false"):
        return text == "true"
    number = _NUMBER.fullmatch(text) if "number" in kinds or "integer" in kinds else None
    if number is None or len(text) > _MAX_INTEGER_DIGITS:
        return text
    if number[1] is None and number[2] is None:
        return int(text)
    return float(text) if isfinite(float(text)) else text


def _parameter(schema: Any, references: References) -> QueryParameter | None:
    types = _types(schema, references, _MAX_HOPS)
    if types is None:
        return None
    arrays = frozenset(type_name.removeprefix("array of ") for type_name in types if type_name.startswith("array of "))
    if arrays and not types - {f"array of {item_type}" for item_type in arrays} <= {"null"}:
        return None
    kinds = arrays or types
    is_clear = bool(kinds) and ("string" not in kinds or kinds <= {"string", "null"})
    return QueryParameter(kinds, bool(arrays)) if is_clear else None


def _types(schema: Any, references: References, hops: int) -> frozenset[str] | None:
    """Return the types of a property, arrays as "array of string"; None if it may be anything else, or is unknown."""
    json = as_dict(references.follow(schema))
    if not json or hops == 0:
        return None
    if "const" in json or "enum" in json:
        values = [json["const"]] if "const" in json else as_list(json["enum"])
        types = frozenset(_TYPE_NAMES.get(kind, "object") for kind in map(type, values))
        return types if types <= _SCALARS else None
    if "type" not in json:
        branches = as_list(json.get("anyOf") or json.get("oneOf"))
        branch_types = [_types(branch, references, hops - 1) for branch in branches]
        if "allOf" in json or not branches or None in branch_types:
            return None
        return frozenset[str]().union(*filter(None, branch_types))
    types = frozenset(map(str, type_names(json)))
    scalars = types - {"array"}
    if not scalars <= _SCALARS:
        return None
    if scalars == types:
        return types
    items = None if "prefixItems" in json else _types(json.get("items"), references, hops - 1)
    return scalars | {f"array of {item_type}" for item_type in items} if items and items <= _SCALARS else None


# --- routes -----------------------------------------------------------------------------------------------------------


class OperationRoute(NamedTuple):
    """The path of an operation: its methods, and how its input is parsed."""

    spec: OperationSpec
    methods: tuple[str, ...]
    parameters: Mapping[str, QueryParameter] | None  # of a query string, if the operation can be called by GET
    takes_object: bool  # its input is an object
    takes_nothing: bool  # its input may be missing

    @classmethod
    def of(cls, spec: OperationSpec) -> "OperationRoute":
        """Return the route of an operation."""
        schema = spec.input_schema
        parameters = None if spec.type is OperationType.MUTATION else query_parameters(schema)
        reads = () if parameters is None else ("GET",) if spec.type is OperationType.SUBSCRIPTION else ("GET", "HEAD")
        takes_object = as_dict(schema.json).get("type") == "object"
        return cls(spec, (*reads, "POST"), parameters, takes_object, takes_object or schema.is_unknown)

    def input(self, request: Request) -> Any:
        """Parse the input of a request.

        Raises:
            HTTPStatusError, CallError: it is invalid.
        """
        if self.parameters is not None and request.method in READS:
            return parse_query(self.parameters, request.query)
        body = request.json()
        problem = None
        if body is None and self.takes_object:  # as an input, None means "no arguments", which `null` does not
            problem = 'the value is not of type "object"'
        elif body is UNSET and not self.takes_nothing:
            problem = "the body is missing"  # the document says that it is required, even if it may be null
        if problem is not None:
            raise input_error(self.spec.id, [Problem("", problem)])
        return None if body is UNSET else body


# --- disconnects ------------------------------------------------------------------------------------------------------

DISCONNECT_WATCH_DELAY = 0.02
"""Seconds after which a task watches for a disconnect. Most calls have ended by then, without that cost."""


class CancelOnDisconnect:
    """Cancel the block's task if the client disconnects, or by `interrupt`; the block ends there.

    with CancelOnDisconnect(receive, deadlines) as running:
        envelope = await registry.execute(...)
    if running.interrupted: ...

    `reason` is the error for the client; None if it has disconnected.
    """

    def __init__(self, receive: Receive, deadlines: Deadlines) -> None:
        self._receive = receive
        self._deadlines = deadlines
        self._tick = 0
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self.interrupted = False
        self.reason: CallError | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._tick = self._deadlines.add(self, time.monotonic() + DISCONNECT_WATCH_DELAY, CancelOnDisconnect._watch)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        self._deadlines.discard(self, self._tick)
        for watcher in self._watchers:
            watcher.cancel()
        task, self._task = self._task, None
        # The task may have been cancelled from outside as well, and then has to end.
        others = self.interrupted and task is not None and task.uncancel() > 0
        return self.interrupted and not others and isinstance(error, asyncio.CancelledError)

    def interrupt(self, reason: CallError | None = None) -> None:
        """End the block now, once."""
        if self._task is not None and not self.interrupted:
            self.interrupted, self.reason = True, reason
            self._task.cancel()

    def interrupt_when(self, wait_for_reason: Callable[[], Awaitable[CallError]]) -> None:
        """End the block when a function returns the reason."""

        async def wait() -> None:
            self.interrupt(await wait_for_reason())

        self._watchers.append(self._loop.create_task(wait()))

    def _watch(self) -> None:
        async def wait_for_disconnect() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.interrupt()

        self._watchers.append(self._loop.create_task(wait_for_disconnect()))
