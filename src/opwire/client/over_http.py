"""Calls to a registry that `serve_http` serves, by the HTTP client of the OpenAPI adapter, which needs aiohttp.

Whole envelopes are asked for, and problems are read back as the `CallError` that they were made of.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeGuard, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.adapters.openapi import from_openapi
from opwire.adapters.openapi.answers import MAX_WAIT
from opwire.adapters.openapi.client import ClientOptions, HTTPClient, Pieces, host_of
from opwire.adapters.openapi.request import HTTPRequest
from opwire.adapters.openapi.shapes import bounded
from opwire.adapters.openapi.sse import SSEEvent, SSEParser
from opwire.client.backend import Catalogue
from opwire.envelope import ResponseEnvelope, decode_envelope
from opwire.errors import ERROR_TABLE, CallError, ConversionError, ErrorCode, NotPlainError
from opwire.operation import LOCAL_IDENTITY, Context, OperationSpec, OperationType, trace_of
from opwire.typed.plain import to_plain
from opwire.typed.text import read_json, write_json
from opwire.urls import ENVELOPE_JSON, path_of

if TYPE_CHECKING:  # aiohttp is imported by the adapter alone
    from aiohttp import ClientResponse

Token = str | Callable[[], str]

_MAX_PROBLEM = 1024 * 1024
_SECRET = frozenset({"authorization"})
_encoder = msgspec.json.Encoder()

# Whoever stands in front of the server answers with a status alone.
_CODES = {row.http_status: code for code, row in reversed(list(ERROR_TABLE.items()))}
_CODES[int(HTTPStatus.BAD_GATEWAY)] = ErrorCode.UNAVAILABLE


class _Problem(Struct, rename="camel"):
    code: ErrorCode
    detail: str = ""
    retryable: bool | None = None
    retry_after_ms: Any = None
    details: Any = None


_problems = msgspec.json.Decoder(_Problem)


class HTTPBackEnd:
    """A served HTTP address; `options` are those of `ClientOptions`, and `trust_annotations`.

    The server's own document says which operations are queries, which a client may repeat. That is believed unless
    `trust_annotations` is False: as over a hub, calls go nowhere else than to the server that says it, so a false type
    gives it nothing. With False, everything but subscriptions is a mutation, and never repeated.
    """

    def __init__(self, url: str, token: Token | None, options: dict[str, Any]) -> None:
        place = urlsplit(url)
        if not place.hostname or place.query or place.fragment:
            wrong = (
                f"{host_of(url)}: an address has a host and no query, like https://api.example or http://host:80/below"
            )
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        self._url = url.rstrip("/")
        self._host = host_of(url)
        self._token = token
        self._trusts = bool(options.pop("trust_annotations", True))
        self._client = HTTPClient(ClientOptions(**options))
        self._catalogue = Catalogue(self.operations)

    async def start(self) -> None:
        """Nothing is to be done: the first call connects."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation."""
        request = self._request(operation_id, input, context)

        async def answer() -> ResponseEnvelope[Any]:
            response = await self._open(request)
            if response.content_type != ENVELOPE_JSON:
                response.close()
                streams = response.content_type == "text/event-stream"
                raise _subscription(operation_id) if streams else self._foreign(response)
            return self._envelope(await self._client.read(response))

        return await self._in_time(answer, context, "did not answer")

    async def subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription."""
        request = self._request(operation_id, input, context)
        response: ClientResponse = await self._in_time(lambda: self._open(request), context, "did not answer")
        try:
            if response.content_type != "text/event-stream":
                is_ours = response.content_type == ENVELOPE_JSON
                raise _no_subscription(operation_id) if is_ours else self._foreign(response)
            parser = SSEParser(max_event=self._client.options.max_item)
            pieces = Pieces(self._client, response)
            while piece := await self._in_time(pieces.read, context, "did not end the stream"):
                for event in parser.feed(piece):
                    yield self._item(event)
        finally:
            response.close()

    async def operations(self) -> Sequence[OperationSpec]:
        """What the document of the address shows to this caller."""
        request = HTTPRequest(
            method="GET",
            url=f"{self._url}/openapi.json",
            headers=[("accept", "application/json"), *self._authorization()],
            secret_headers=_SECRET,
        )
        document = await self._client.read(await self._open(request))
        async with from_openapi(document, trust_annotations=True) as api:
            specs = [operation.spec for operation in api]
        return specs if self._trusts else [_as_mutation(spec) for spec in specs]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """One of the operations."""
        return await self._catalogue.find(operation_id)

    # --- asking -----------------------------------------------------------------------------------------------------

    def _request(self, operation_id: str, input: Any, context: Context) -> HTTPRequest:
        if context.identity is not LOCAL_IDENTITY and (context.inbound or context.identity):
            known = f"{self._host} knows only the token of this client: pass context.detached() to call with that"
            raise CallError(
                ErrorCode.ACCESS_DENIED, f"{operation_id} is called on behalf of another caller, and {known}"
            )
        headers = [("accept", ENVELOPE_JSON), *self._authorization()]
        if context.remaining is not None:
            headers.append(("x-deadline-ms", str(max(int(context.remaining * 1000), 1))))
        if _fits_header(context.request_id):
            headers.append(("x-request-id", context.request_id))
        headers += cast("Mapping[str, str]", trace_of(context.metadata)).items()
        body = None
        if input is not None:  # a body of `null` would be an input, and not the absence of one
            headers.append(("content-type", "application/json"))
            body = _encoded(input, operation_id)
        return HTTPRequest(
            method="POST",
            url=self._url + path_of(operation_id),
            headers=headers,
            body=body,
            secret_headers=_SECRET,
        )

    def _authorization(self) -> list[tuple[str, str]]:
        token = self._token() if callable(self._token) else self._token
        if token is None:
            return []
        if not _fits_header(token):
            wrong = "the token holds what no header can carry: is there a line break at its end?"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        return [("authorization", f"Bearer {token}")]

    async def _open(self, request: HTTPRequest) -> "ClientResponse":
        """The answer to a request, if it is none that refuses it."""
        response = await self._client.open(request)
        if response.status == HTTPStatus.OK:
            return response
        body, _ = await self._client.read_start(response, _MAX_PROBLEM)
        raise _read_problem(body) or self._foreign(response)

    async def _in_time(self, call: Callable[[], Any], context: Context, complaint: str) -> Any:
        return await self._client.deadlines.limit(call, context.deadline, f"{self._host} {complaint}")

    # --- reading ----------------------------------------------------------------------------------------------------

    def _item(self, event: SSEEvent) -> ResponseEnvelope[Any]:
        if event.event == "error" and (error := _read_problem(event.data.encode())):
            raise error
        return self._envelope(event.data)

    def _envelope(self, text: bytes | str) -> ResponseEnvelope[Any]:
        try:
            return decode_envelope(text)
        except ConversionError as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{self._host}: {error}") from error

    def _foreign(self, response: "ClientResponse") -> CallError:
        """The error for an answer that is not of our making: that of a proxy, or of another program altogether."""
        code = _CODES.get(response.status, ErrorCode.PROTOCOL_ERROR)
        answer = f"HTTP {response.status} and {response.content_type}"
        return CallError(code, f"{self._host} answers with {answer}, which is not how opwire serves operations")


def _as_mutation(spec: OperationSpec) -> OperationSpec:
    return replace(spec, type=OperationType.MUTATION) if spec.type is OperationType.QUERY else spec


def _fits_header(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _encoded(input: Any, operation_id: str) -> bytes:
    try:
        return write_json(_encoder, to_plain(input))
    except (NotPlainError, TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id}: the input has no JSON form: {error}") from error


def _read_problem(text: bytes) -> CallError | None:
    """The error that a problem was made of; None if it is none of ours."""
    try:
        problem = read_json(_problems, text)
    except (ValueError, RecursionError):
        return None
    after = bounded(problem.retry_after_ms, MAX_WAIT * 1000)
    return CallError(
        problem.code,
        problem.detail,
        problem.details,
        retryable=problem.retryable,
        retry_after=None if after is None else after / 1000,
    )


def _subscription(operation_id: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id} is a subscription: use subscribe(), not call()")


def _no_subscription(operation_id: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id} is not a subscription: use call(), not subscribe()")
