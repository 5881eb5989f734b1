"""The one interface between the client and whatever answers it: a registry, a transport, a served HTTP address.

Calls over a transport: to a hub, over a broker, or to another end in this process.

Calls to a registry that `serve_http` serves, by the HTTP client of the OpenAPI adapter, which needs aiohttp.

Whole envelopes are asked for, and problems are read back as the `CallError` that they were made of.

Calls within this process.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.adapters.openapi import from_openapi
from opwire.adapters.openapi.document import bounded
from opwire.adapters.openapi.http_client import ClientOptions, HTTPClient, Pieces, host_of
from opwire.adapters.openapi.request import HTTPRequest
from opwire.adapters.openapi.responses import MAX_WAIT
from opwire.adapters.openapi.streams import SSEEvent, SSEParser
from opwire.call import OperationInfo, PendingRequestMap, discover
from opwire.envelope import ResponseEnvelope, decode_envelope
from opwire.errors import ERROR_TABLE, CallError, ConversionError, ErrorCode, NotPlainError, RegistrationError
from opwire.operation import (
    LOCAL_IDENTITY,
    Context,
    Identity,
    OperationSpec,
    OperationType,
    check_access,
    may_access,
    trace_of,
)
from opwire.origin import ENVELOPE_JSON, path_of
from opwire.registry import OperationRegistry
from opwire.typed.plain import read_json, to_plain, write_json

if TYPE_CHECKING:
    from aiohttp import ClientResponse


STALE = 0.5
"""Seconds for which a list of operations is believed that does not hold the one that is looked for."""


class BackEnd(Protocol):
    """Where calls go. It keeps to the deadline of the context, which every call has, and retries nothing."""

    async def start(self) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE or UNAUTHENTICATED.
        """
        ...

    async def close(self) -> None:
        """Leave. Calls that are under way end."""
        ...

    async def call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation.

        Raises:
            CallError: and nothing else.
        """
        ...

    def subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription; closing the generator stops the producer. It raises CallError."""
        ...

    async def operations(self) -> Sequence[OperationSpec]:
        """What can be called.

        Raises:
            CallError: nobody can say at the moment.
        """
        ...

    async def find(self, operation_id: str) -> OperationSpec | None:
        """One of the operations, as it was when it was last asked for; None if there is no such one.

        Raises:
            CallError: nobody can say at the moment.
        """
        ...


class Catalogue:
    """The operations of a peer, asked for when one of them is first looked up, and again if one is not among them."""

    def __init__(self, ask: Callable[[], Awaitable[Sequence[OperationSpec]]]) -> None:
        self._ask = ask
        self._known: dict[str, OperationSpec] = {}
        self._asked: float | None = None
        self._lock = asyncio.Lock()  # a hundred calls that fail at once are one question

    async def find(self, operation_id: str) -> OperationSpec | None:
        """The specification of an operation, or None.

        Raises:
            CallError: as the question.
        """
        async with self._lock:
            if operation_id not in self._known and (self._asked is None or time.monotonic() > self._asked + STALE):
                self._known = {spec.id: spec for spec in await self._ask()}
                self._asked = time.monotonic()
            return self._known.get(operation_id)


logger = logging.getLogger("opwire.client")


class CallsBackEnd:
    """One end of a transport. `owned`: it is started and closed by the client.

    `identity` is who calls, if that is said: within one process it is believed, elsewhere the transport knows better.
    """

    def __init__(self, calls: PendingRequestMap, *, owned: bool, identity: Identity | None = None) -> None:
        self._calls = calls
        self._identity = identity
        self._owned = owned
        self._catalogue = Catalogue(self.operations)

    async def start(self) -> None:
        """Connect, unless somebody else does."""
        if self._owned:
            await self._calls.start()

    async def close(self) -> None:
        """Leave, unless somebody else still uses it."""
        if self._owned:
            await self._calls.close()

    async def call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation."""
        return await self._calls.call(operation_id, input, context=context, timeout=context.remaining)

    def subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription."""
        return self._calls.subscribe(operation_id, input, context=context)

    async def operations(self) -> Sequence[OperationSpec]:
        """What anybody serves; of several who serve the same, the first one says what it is."""
        found: dict[str, OperationSpec] = {}
        for server in await discover(self._calls):
            for info in server.operations:
                if info.id not in found and (spec := _spec(info)) is not None:
                    found[info.id] = spec
        specs = list(found.values())
        return specs if self._identity is None else [spec for spec in specs if may_access(spec, self._identity)]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """One of the operations."""
        return await self._catalogue.find(operation_id)


def _spec(info: OperationInfo) -> OperationSpec | None:
    """The specification; None, with a warning, if a peer shows what is none."""
    try:
        return info.spec()
    except RegistrationError as error:
        logger.warning("an operation of a peer is left out: %s", error)
        return None


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


class RegistryBackEnd:
    """A registry. Without an identity calls are trusted, and made by `LOCAL_IDENTITY` unless a context says otherwise.

    With one, access is checked as at any other surface.
    """

    def __init__(self, registry: OperationRegistry, identity: Identity | None) -> None:
        self._registry = registry
        self._identity = identity

    async def start(self) -> None:
        """Nothing is to be done."""

    async def close(self) -> None:
        """Nothing is to be done: the registry goes on."""

    async def call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation."""
        return await self._registry.execute(operation_id, input, self._admitted(operation_id, context))

    async def subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription."""
        items = self._registry.subscribe(operation_id, input, self._admitted(operation_id, context))
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def operations(self) -> Sequence[OperationSpec]:
        """What has a handler, and may be called."""
        return [
            spec
            for spec in self._registry.list()
            if self._registry.get_handler(spec.id) is not None
            and (self._identity is None or may_access(spec, self._identity))
        ]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """One of the operations."""
        return self._registry.get_spec(operation_id)

    def _admitted(self, operation_id: str, context: Context) -> Context:
        """The context of a call that may be made.

        Raises:
            CallError: OPERATION_NOT_FOUND; UNAUTHENTICATED or ACCESS_DENIED.
        """
        if self._identity is None:
            is_own = context.identity is None and context.inbound is None  # else its caller is anonymous, and stays so
            return replace(context, identity=LOCAL_IDENTITY) if is_own else context
        spec = self._registry.get_spec(operation_id)
        if spec is None:
            raise self._registry.not_found(operation_id, visible=lambda each: may_access(each, context.identity))
        check_access(spec, context.identity)
        return context
