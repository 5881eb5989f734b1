"""Handlers of HTTP operations: a call gives one envelope, a subscription one an item.

Everything that a call waits for has to fit into its deadline: a token, redirects, and the answer to its last byte.

One operation's way to its API: from an input to an answer that is no error.

A stream of an API, item by item, resumed after a loss where that was asked for.

Only what can be repeated without harm is resumed: an event stream that is read with GET or QUERY. As an EventSource
does it, the end of such a stream is a loss too, unless the API says that it is done: with `[DONE]`, or with a 204 to
whoever comes back.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from aiohttp import ClientResponse
from msgspec.structs import replace

from opwire.adapters.openapi.http_client import HTTPClient, Pieces, host_of
from opwire.adapters.openapi.plan import Plan, StreamKind, header_value
from opwire.adapters.openapi.request import HTTPRequest, compile_request
from opwire.adapters.openapi.responses import MAX_ERROR_BODY, Head, Results, error_of
from opwire.adapters.openapi.security import Credentials, FetchToken
from opwire.adapters.openapi.streams import EventItems, Items, SSEParser, stream_kind, value_items
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Handler, ShapedResult, trace_of
from opwire.typed.plain import read_json

T = TypeVar("T")


class Exchange:
    """What is needed to call one operation. Its plan is asked for when it is first called."""

    def __init__(self, plan_of: Callable[[], Plan], client: HTTPClient, credentials: Credentials) -> None:
        self._plan_of = plan_of
        self._credentials = credentials
        self.client = client

    @cached_property
    def plan(self) -> Plan:
        """The operation, read."""
        return self._plan_of()

    @cached_property
    def request(self) -> Callable[[Any], HTTPRequest]:
        """What turns an input into a request that has no credentials yet."""
        return compile_request(self.plan)

    @cached_property
    def results(self) -> Results:
        """What turns answers into results."""
        return Results(self.plan)

    @cached_property
    def host(self) -> str:
        """Whom to name in a message."""
        return host_of(self.plan.base_url or self.plan.server)

    @cached_property
    def _complaint(self) -> str:
        return f"{self.host} did not answer"

    async def in_time(self, call: Callable[[], Awaitable[T]], context: Context) -> T:
        """Await an answer until the deadline of the call, or as long as the client allows.

        Raises:
            CallError: TIMEOUT.
        """
        when, seconds = context.deadline, self.client.options.timeout
        if when is None and seconds is not None:
            when = time.monotonic() + seconds
        return await self.client.deadlines.limit(call, when, self._complaint)

    async def open(self, request: HTTPRequest, context: Context) -> tuple[ClientResponse, Head]:
        """The answer to a request, its body not yet read. Whoever asks has to close it.

        A token that the API rejects is asked for anew, once.

        Raises:
            CallError: EXECUTION_ERROR for an answer that is an error; else as `HTTPClient.open`.
        """
        if context.metadata:
            request = _traced(request, context)
        if self.plan.security:
            response = await self._open_with_credentials(request, context)
        else:
            response = await self.client.open(request)
        head = head_of(response)
        if not head.is_result:
            raise await self._error(response, head)
        return response, head

    async def _open_with_credentials(self, request: HTTPRequest, context: Context) -> ClientResponse:
        signed = await self._credentials.apply(self.plan, request, context)
        response = await self.client.open(signed)
        if response.status == 401 and self._credentials.reject(signed):
            response.close()
            signed = await self._credentials.apply(self.plan, request, context)
            response = await self.client.open(signed)
        return response

    async def _error(self, response: ClientResponse, head: Head) -> CallError:
        body, is_whole = await self.client.read_start(response, MAX_ERROR_BODY)
        hint = self._credentials.missing(self.plan) if head.status in (401, 403) else ""
        return error_of(head, body, is_whole=is_whole, hint=hint)


def _traced(request: HTTPRequest, context: Context) -> HTTPRequest:
    """The request as a part of the call's trace, unless the input has a trace of its own among the parameters."""
    if any(name.lower() == "traceparent" for name, _ in request.headers):
        return request
    return replace(
        request, headers=request.headers + [(name, str(value)) for name, value in trace_of(context.metadata).items()]
    )


def head_of(response: ClientResponse) -> Head:
    """The beginning of an answer, as plain data."""
    return Head(
        method=response.method,
        status=response.status,
        reason=_readable(response.reason or ""),
        headers=[(name, value if value.isascii() else _readable(value)) for name, value in response.headers.items()],
        content_type=_readable(response.headers.get("Content-Type", "")),
    )


def _readable(text: str) -> str:
    """Header text as UTF-8, or as Latin-1 where it is not: aiohttp leaves it in surrogates then."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape").decode("latin-1")
    return text


logger = logging.getLogger("opwire.adapters.openapi")

MAX_ATTEMPTS = 8
"""How often in a row a stream is asked for again before its loss is final."""

_REPEATABLE = frozenset({"GET", "QUERY"})
_RETRY = 3.0  # seconds between a loss and the next attempt, where the API does not say
_MIN_RETRY, _MAX_RETRY = 0.01, 60.0
_LAST_EVENT_ID = "last-event-id"


class Subscription:
    """One subscription under way. It reads only when it is asked to, so a slow consumer slows the API down."""

    def __init__(self, exchange: Exchange, input: Any, context: Context, *, reconnect: bool) -> None:
        self._exchange = exchange
        self._request: HTTPRequest = exchange.request(input)
        self._context = context
        self._may_repeat = reconnect and self._request.method in _REPEATABLE
        self._stream: tuple[Pieces, Items] | None = None
        self._response: ClientResponse | None = None
        self._parser: SSEParser | None = None  # of the last event stream
        self._attempts = 0  # to come back, since there was a piece of the stream
        self._failure: CallError | None = None  # to be raised after the items that were before it
        self._is_over = False

    async def read(self) -> list[ShapedResult] | None:
        """The next items, at least one; None at the end.

        Raises:
            CallError: EXECUTION_ERROR for an HTTP error, UNAVAILABLE for a loss, TIMEOUT at the deadline of the call.
        """
        while not self._is_over:
            if self._failure is not None:
                raise self._failure
            items = await (self._connect() if self._stream is None else self._advance(*self._stream))
            if items:
                return items
        return None

    def close(self) -> None:
        """Close the connection, at once."""
        response, self._stream, self._response = self._response, None, None
        if response is not None:
            response.close()

    async def _connect(self) -> list[ShapedResult]:
        """Ask for the stream. Nothing comes of it yet, unless the API gives one whole answer instead."""
        try:
            response, head = await self._exchange.in_time(self._open, self._context)
        except CallError as error:
            if self._parser is None or not error.retryable or error.code is ErrorCode.TIMEOUT:
                raise
            await self._pause(error)
            return []
        kind = stream_kind(self._exchange.plan, head)
        if head.status in (204, 304):
            response.close()
            self._finish()
        elif kind is None:
            return await self._whole(response, head)
        else:
            self._response = response
            self._stream = Pieces(self._exchange.client, response), self._items(head, kind)
        return []

    def _items(self, head: Head, kind: StreamKind) -> Items:
        plan, max_item = self._exchange.plan, self._exchange.client.options.max_item
        if kind != "sse":
            return value_items(plan, head, kind, max_item)
        last = self._parser
        self._parser = SSEParser(last_event_id=last.last_event_id if last else "", max_event=max_item)
        self._parser.retry = last.retry if last else None
        return EventItems(plan, head, self._parser)

    async def _advance(self, pieces: Pieces, items: Items) -> list[ShapedResult]:
        """The items of the next piece of the stream, of which there may be none."""
        try:
            piece = await self._before_deadline(pieces.read)
        except CallError as error:
            if not (error.code is ErrorCode.UNAVAILABLE and error.retryable and self._resumes()):
                raise
            await self._pause(error)
            return []
        if piece:
            self._attempts = 0
            found = items.feed(piece)
            self._failure = items.failure
            if items.done:
                self._finish()
            return found
        found = items.end()
        if self._resumes():
            await self._pause(
                CallError(ErrorCode.UNAVAILABLE, f"{self._exchange.host} ends the stream as soon as it is open")
            )
        else:
            self._finish()
        return found

    async def _whole(self, response: ClientResponse, head: Head) -> list[ShapedResult]:
        if not head.media_type.is_json:
            response.close()
            message = f"{self._exchange.host} answers with {head.media_type.name} where a stream was awaited"
            raise CallError(ErrorCode.PROTOCOL_ERROR, message)
        operation_id = self._exchange.plan.operation_id
        logger.warning("%s: the API answers with JSON and not with a stream: it is the only item", operation_id)
        body = await self._exchange.in_time(lambda: self._exchange.client.read(response), self._context)
        self._finish()
        return [self._exchange.results.of(head, body)]

    def _finish(self) -> None:
        self._is_over = True
        self.close()

    # --- coming back after a loss -----------------------------------------------------------------------------------

    def _resumes(self) -> bool:
        return self._may_repeat and self._parser is not None

    async def _open(self) -> tuple[ClientResponse, Head]:
        """Send the request; after a loss, for what follows the last event that came."""
        request = self._request
        if self._parser is not None and self._parser.last_event_id:
            headers = [pair for pair in request.headers if pair[0].lower() != _LAST_EVENT_ID]
            try:
                headers.append((_LAST_EVENT_ID, header_value(self._parser.last_event_id)))
            except ValueError:  # an EventSource sends those of 0x01 to 0x1f too, but hardly any server takes them
                operation_id = self._exchange.plan.operation_id
                logger.warning(
                    "%s: the last event's id cannot be a header: the stream goes on without it", operation_id
                )
            request = replace(request, headers=headers)
        return await self._exchange.open(request, self._context)

    async def _pause(self, loss: CallError) -> None:
        """Wait before the next attempt: as long as the API says, longer each time, and never all clients at once.

        Raises:
            CallError: the loss itself, after too many attempts.
        """
        self.close()
        self._attempts += 1
        if self._attempts > MAX_ATTEMPTS:
            raise loss
        said = _RETRY if self._parser is None or self._parser.retry is None else self._parser.retry / 1000
        delay = min(max(said, _MIN_RETRY) * 2 ** (self._attempts - 1), _MAX_RETRY)
        logger.info("%s: the stream is lost, and asked for again in %.3g s", self._exchange.plan.operation_id, delay)
        delay *= random.uniform(1, 1.25)  # noqa: S311
        await self._before_deadline(lambda: asyncio.sleep(delay))

    async def _before_deadline(self, piece: Callable[[], Awaitable[T]]) -> T:
        """Await what may take as long as there is time: a stream has no limit but the deadline of its call."""
        context, client = self._context, self._exchange.client
        return await client.deadlines.limit(piece, context.deadline, f"{self._exchange.host} did not end the stream")


_json = msgspec.json.Decoder()


def handler_of(plan_of: Callable[[], Plan], client: HTTPClient, credentials: Credentials) -> Handler:
    """The handler of a query or mutation. The plan is asked for when it is first called.

    The handler raises CallError: VALIDATION_ERROR for an input that makes no request, EXECUTION_ERROR for an answer
    that is an error, TIMEOUT, UNAVAILABLE, PAYLOAD_TOO_LARGE and PROTOCOL_ERROR for the rest.
    """
    exchange = Exchange(plan_of, client, credentials)

    async def call(input: Any, context: Context) -> ShapedResult:
        request = exchange.request(input)

        async def answer() -> ShapedResult:
            response, head = await exchange.open(request, context)
            return exchange.results.of(head, await client.read(response))

        return await exchange.in_time(answer, context)

    return call


def stream_of(plan_of: Callable[[], Plan], client: HTTPClient, credentials: Credentials, *, reconnect: bool) -> Handler:
    """The handler of a subscription; with `reconnect`, an event stream that is lost is resumed.

    The handler raises CallError as that of a call, an HTTP error before the first item.
    """
    exchange = Exchange(plan_of, client, credentials)

    async def subscribe(input: Any, context: Context) -> AsyncGenerator[ShapedResult]:
        subscription = Subscription(exchange, input, context, reconnect=reconnect)
        try:
            while (items := await subscription.read()) is not None:
                for item in items:
                    yield item
        finally:
            subscription.close()

    return subscribe


def token_fetcher(client: HTTPClient) -> FetchToken:
    """What asks for OAuth tokens: as a bare request, since it carries the secret of a client."""

    async def fetch(request: HTTPRequest) -> Any:
        host, seconds = host_of(request.url), client.options.timeout
        when = None if seconds is None else time.monotonic() + seconds
        return await client.deadlines.limit(
            lambda: ask(request, host), when, f"the token endpoint {host} did not answer"
        )

    async def ask(request: HTTPRequest, host: str) -> Any:
        response = await client.open(request, bare=True)
        head = head_of(response)
        if not head.is_result:
            body, is_whole = await client.read_start(response, MAX_ERROR_BODY)
            raise error_of(head, body, is_whole=is_whole, hint=f"the token endpoint {host} said this")
        try:
            return read_json(_json, await client.read(response))
        except (ValueError, RecursionError):
            message = f"the token endpoint {host} does not answer with JSON"
            raise CallError(ErrorCode.PROTOCOL_ERROR, message) from None

    return fetch
