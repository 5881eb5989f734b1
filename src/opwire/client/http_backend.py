"""The backend for a registry that `serve_http` serves. It needs aiohttp: `pip install 'opwire[openapi]'`.

It requests whole envelopes, and decodes problem documents to the `CallError` that the server encoded.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from opwire.client.backends import SpecCache
from opwire.errors import (
    ERROR_TABLE,
    CallError,
    ConversionError,
    ErrorCode,
    NotPlainError,
    UsageError,
    check_known,
    resume_error,
)
from opwire.http.client import MAX_WAIT, ChunkReader, ClientOptions, HTTPClient, HTTPRequest, bounded_number, host_of
from opwire.http.sse import SSEParser
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope, decode_envelope, is_cursor
from opwire.model.identity import LOCAL_IDENTITY
from opwire.model.operation import OperationSpec, OperationType
from opwire.model.origin import ENVELOPE_JSON, RESUMED, path_of
from opwire.model.trace import trace_of
from opwire.runtime.deadlines import MAX_SECONDS
from opwire.typed.plain import check_density, parse_float, read_json, to_plain, write_json

if TYPE_CHECKING:
    from aiohttp import ClientResponse

Token = str | Callable[[], str]

_EVENT_STREAM = "text/event-stream"
_MAX_PROBLEM_BYTES = 1024 * 1024
_SECRET_HEADERS = frozenset({"authorization"})
_encoder = msgspec.json.Encoder()

# A proxy in front of the server returns a status without a problem document.
_CODES_BY_STATUS = {row.http_status: code for code, row in reversed(list(ERROR_TABLE.items()))}
_CODES_BY_STATUS[int(HTTPStatus.BAD_GATEWAY)] = ErrorCode.UNAVAILABLE


class _ProblemDocument(Struct, rename="camel"):
    code: ErrorCode
    detail: str = ""
    retryable: bool | None = None
    retry_after_ms: Any = None
    foreign_code: Annotated[str, Meta(max_length=100)] | None = None
    details: Any = None


_problems = msgspec.json.Decoder(_ProblemDocument, float_hook=parse_float)


class HTTPBackend:
    """A served HTTP address; `options` are those of `ClientOptions`, and `trust_annotations`.

    The server's own document says which operations are queries, which a client may retry. By default that is trusted:
    as over a hub, calls reach no other server than the one that says it, so a false type gains nothing. With
    `trust_annotations=False` every operation except subscriptions counts as a mutation, and is never retried.
    """

    def __init__(self, url: str, token: Token | None, options: dict[str, Any]) -> None:
        self._host = host_of(url)
        try:
            parts = urlsplit(url)
            valid = parts.hostname and parts.port != 0 and not parts.query and not parts.fragment
        except ValueError:  # a port that is not a number, or too large
            valid = False
        if not valid:
            raise UsageError("invalid URL of an HTTP API; expected https://host or http://host:port/path")
        self._url = url.rstrip("/")
        self._token = token
        self._trust_annotations = bool(options.pop("trust_annotations", True))
        known_options = ("token", "trust_annotations", *ClientOptions.__struct_fields__)
        check_known(options, known_options, "a client of an HTTP address")
        self._client = HTTPClient(ClientOptions(**options))
        self._cache = SpecCache(self.operations)

    async def start(self) -> None:
        """No-op; connects lazily."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def call(self, operation_id: str, input: Any, context: Context, version: str | None) -> ResponseEnvelope[Any]:
        """Call a query or mutation."""
        request = self._request(operation_id, input, context, version)

        async def respond() -> ResponseEnvelope[Any]:
            response = await self._open(request)
            if response.content_type == ENVELOPE_JSON:
                return self._decode(await self._client.read(response))
            response.close()
            if response.content_type == _EVENT_STREAM:
                message = f"{operation_id} is a subscription: use subscribe(), not call()"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)
            raise self._unexpected(response)

        return await self._limit(respond, context, "did not respond")

    async def subscribe(
        self, operation_id: str, input: Any, context: Context, version: str | None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Stream the items of a subscription."""
        request = self._request(operation_id, input, context, version)
        response: ClientResponse = await self._limit(lambda: self._open(request), context, "did not respond")
        try:
            if response.content_type == ENVELOPE_JSON:
                message = f"{operation_id} is not a subscription: use call(), not subscribe()"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)
            if response.content_type != _EVENT_STREAM:
                raise self._unexpected(response)
            if context.resume_from is not None and RESUMED not in response.headers:
                raise resume_error(f"{operation_id} starts over: {self._host} does not support Last-Event-ID")
            parser = SSEParser(max_event=self._client.options.max_item)
            chunks = ChunkReader(self._client, response)
            while chunk := await self._limit(chunks.read, context, "did not end the stream"):
                for event in parser.feed(chunk):
                    if event.event == "error" and (error := _read_problem(event.data.encode())):
                        raise error
                    yield self._decode(event.data)
        finally:
            response.close()

    async def operations(self) -> Sequence[OperationSpec]:
        """Return the operations in the OpenAPI document that the server shows to this caller."""
        from opwire.openapi.client.source import from_openapi

        request = HTTPRequest(
            method="GET",
            url=f"{self._url}/openapi.json",
            headers=[("accept", "application/json"), *self._authorization()],
            secret_headers=_SECRET_HEADERS,
        )
        document = await self._client.read(await self._open(request))
        async with from_openapi(document, trust_annotations=True) as api:
            specs = [operation.spec for operation in api]
        if self._trust_annotations:
            return specs
        query, mutation = OperationType.QUERY, OperationType.MUTATION
        return [replace(spec, type=mutation) if spec.type is query else spec for spec in specs]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of one operation, or None."""
        return await self._cache.find(operation_id)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _request(self, operation_id: str, input: Any, context: Context, version: str | None) -> HTTPRequest:
        if version is not None:
            message = f"{self._host} serves one version of {operation_id}: call a hub or a broker with a version"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        if context.identity is not LOCAL_IDENTITY and (context.inbound or context.identity):
            message = (
                f"{operation_id} is called on behalf of another caller, and {self._host} accepts only the token of "
                "this client: pass context.detached() to call with that token"
            )
            raise CallError(ErrorCode.ACCESS_DENIED, message)
        headers = [("accept", ENVELOPE_JSON), *self._authorization()]
        if context.remaining is not None:
            headers.append(("x-deadline-ms", str(max(int(min(MAX_SECONDS, context.remaining) * 1000), 1))))
        if _fits_header(context.request_id):
            headers.append(("x-request-id", context.request_id))
        if context.resume_from is not None:
            if not is_cursor(context.resume_from):
                raise resume_error(f"{operation_id}: resume_from is not a cursor of this operation")
            headers.append(("last-event-id", context.resume_from))
        headers += cast("Mapping[str, str]", trace_of(context.metadata)).items()
        body = None
        if input is not None:  # a body of `null` would be an input, and not its absence
            headers.append(("content-type", "application/json"))
            try:
                body = write_json(_encoder, to_plain(input))
            except (NotPlainError, TypeError, ValueError, RecursionError) as error:
                message = f"{operation_id}: the input cannot be encoded as JSON: {error}"
                raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
        url = self._url + path_of(operation_id)
        return HTTPRequest(method="POST", url=url, headers=headers, body=body, secret_headers=_SECRET_HEADERS)

    def _authorization(self) -> list[tuple[str, str]]:
        token = self._token() if callable(self._token) else self._token
        if token is None:
            return []
        if not _fits_header(token):
            message = "the token has characters that a header cannot carry: is there a line break at its end?"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return [("authorization", f"Bearer {token}")]

    async def _open(self, request: HTTPRequest) -> "ClientResponse":
        """Send a request; return the response, or raise the error that it encodes."""
        response = await self._client.open(request)
        if response.status == HTTPStatus.OK:
            return response
        body, _ = await self._client.read_start(response, _MAX_PROBLEM_BYTES)
        raise _read_problem(body) or self._unexpected(response)

    async def _limit(self, call: Callable[[], Any], context: Context, complaint: str) -> Any:
        return await self._client.deadlines.limit(call, context.deadline, f"{self._host} {complaint}")

    # --- responses --------------------------------------------------------------------------------------------------

    def _decode(self, text: bytes | str) -> ResponseEnvelope[Any]:
        try:
            check_density(text)
            return decode_envelope(text)
        except (ConversionError, ValueError) as error:  # ValueError: see `check_density`
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{self._host}: {error}") from error

    def _unexpected(self, response: "ClientResponse") -> CallError:
        """Return the error for a response of a proxy, or of another program altogether."""
        code = _CODES_BY_STATUS.get(response.status, ErrorCode.PROTOCOL_ERROR)
        what = f"HTTP {response.status} with content type {response.content_type}"
        return CallError(code, f"{self._host} returned {what}, which opwire does not serve; is the address right?")


def _fits_header(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _read_problem(text: bytes) -> CallError | None:
    """Decode a problem document; None if opwire did not write it."""
    try:
        problem = read_json(_problems, text)
    except (ValueError, RecursionError):
        return None
    after = bounded_number(problem.retry_after_ms, MAX_WAIT * 1000)
    return CallError(
        problem.code,
        problem.detail,
        problem.details,
        retryable=problem.retryable,
        retry_after=None if after is None else after / 1000,
        foreign_code=problem.foreign_code,
    )
