"""Calls of HTTP operations: from an input to one result, or to the items of a stream.

The deadline of a call covers everything it waits for: a token, redirects, and the response to its last byte.

A lost event stream is resumed on request, if repeating it is safe: it is read with GET or QUERY. As with EventSource,
the end of such a stream counts as a loss too, unless the API ends it with `[DONE]`, or with a 204 to a reconnect.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import cached_property
from typing import Any, TypeVar
from uuid import uuid4

from aiohttp import ClientResponse
from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, resume_error
from opwire.http.client import ChunkReader, HTTPClient, HTTPRequest, host_of
from opwire.http.sse import SSEParser
from opwire.model.condition import condition_headers
from opwire.model.context import Context
from opwire.model.operation import PreparedRequest, ShapedResult
from opwire.model.trace import trace_of
from opwire.openapi.client.plan import FAST_CHARSETS, CallPlan, StreamKind, header_value, is_visible_ascii
from opwire.openapi.client.request import compile_request
from opwire.openapi.client.responses import (
    MAX_ERROR_BODY,
    EventDecoder,
    ItemDecoder,
    ResponseHead,
    ResponseReader,
    error_of,
    head_of,
    stream_kind,
    value_decoder,
)
from opwire.openapi.client.security import APICredentials
from opwire.openapi.client.serialize import prepare_files
from opwire.runtime.deadlines import back_off
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict

logger = get_logger("opwire.openapi.client")

_DECODED_IN_THREAD_BYTES = 1024 * 1024  # invalid UTF-8 takes 20 ms per MB
_SLOW_DECODED_IN_THREAD_BYTES = 64 * 1024  # XML takes 50 times as long as JSON, and so do charsets with a slow codec
T = TypeVar("T")


MAX_ATTEMPTS = 8
"""Reconnects in a row before the loss of a stream is final."""

MAX_RETRY_AFTER = 60.0
"""Seconds: a call is not retried if the API asks for a longer delay."""

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "QUERY"})
_RETRIED = frozenset({429, 502, 503, 504})
_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS = 0.2, 5.0
_REPEATABLE = frozenset({"GET", "QUERY"})
_RECONNECT_SECONDS = 3.0  # unless the stream says otherwise
_MIN_RECONNECT_SECONDS, _MAX_RECONNECT_SECONDS = 0.01, 60.0
_LAST_EVENT_ID = "last-event-id"


class HTTPOperation(Struct, eq=False, dict=True):
    """Calls one operation. Its plan is built lazily, by the first call.

    `call` and `subscribe` are handlers. They raise CallError: VALIDATION_ERROR for an input that cannot be sent,
    EXECUTION_ERROR for an HTTP error, else TIMEOUT, UNAVAILABLE, PAYLOAD_TOO_LARGE or PROTOCOL_ERROR.
    """

    plan_of: Callable[[], CallPlan]
    client: HTTPClient
    credentials: APICredentials
    reconnect: bool = False
    retries: int = 0

    @cached_property
    def plan(self) -> CallPlan:
        """The call plan."""
        return self.plan_of()

    @cached_property
    def request(self) -> Callable[[Any], HTTPRequest]:
        """Builds the request for an input, without credentials."""
        return compile_request(self.plan)

    @cached_property
    def responses(self) -> ResponseReader:
        """Decodes responses."""
        return ResponseReader(self.plan)

    @cached_property
    def host(self) -> str:
        """The host, for messages."""
        return host_of(self.plan.base_url or self.plan.server)

    @cached_property
    def complaint(self) -> str:
        """The message of a timeout."""
        return f"{self.host} did not respond"

    @cached_property
    def _prepare(self) -> Callable[[Any], Any]:
        return prepare_files(self.plan)

    def prepare(self, input: Any) -> Any:
        """Convert files in the input to plain data (`Operation.prepare`)."""
        return self._prepare(input)

    def deadline(self, context: Context) -> float | None:
        """Return the deadline of a call, or that of the client's timeout by default."""
        seconds = self.client.options.timeout
        if context.deadline is None and seconds is not None:
            return time.monotonic() + seconds
        return context.deadline

    async def call(self, input: Any, context: Context) -> ShapedResult:
        """Call a query or mutation."""
        deadline, client = self.deadline(context), self.client
        request = self.request(input)
        name = self.plan.idempotency_header
        if name is not None and all(header_name.lower() != name.lower() for header_name, _ in request.headers):
            # The input has no key. A durable call has its own, which all attempts share.
            durable = context.metadata.get("idempotency_key") if context.is_served else None
            key = durable if isinstance(durable, str) and is_visible_ascii(durable) else str(uuid4())
            request = replace(request, headers=[*request.headers, (name, key)])

        with client.deadlines.within(deadline, self.complaint):
            attempt = 1
            while True:
                try:
                    response, _ = await self.open(request, context)
                    body = await client.read(response)
                    break
                except CallError as error:
                    delay = self._retry_delay(error, request, attempt, deadline)
                    if delay is None:
                        raise
                    logger.info("%s: retried in %.3g s: %s", self.plan.operation_id, delay, error.message)
                await asyncio.sleep(delay)
                attempt += 1
            return await self.decoded(head_of(response), body)

    async def decoded(self, head: ResponseHead, body: bytes) -> ShapedResult:
        """Return the result of a response, decoded in a thread if that takes long."""
        kind = head.media_type
        is_slow = len(body) > _SLOW_DECODED_IN_THREAD_BYTES and (kind.is_xml or kind.charset not in FAST_CHARSETS)
        if is_slow or len(body) > _DECODED_IN_THREAD_BYTES:
            return await asyncio.to_thread(self.responses.read, head, body)
        return self.responses.read(head, body)

    def _retry_delay(
        self, error: CallError, request: HTTPRequest, attempt: int, deadline: float | None
    ) -> float | None:
        """Return the seconds until the next attempt, or None if the error is final."""
        status = as_dict(error.details).get("status")
        lost = error.code is ErrorCode.UNAVAILABLE and error.retryable
        is_safe = request.method in _IDEMPOTENT or self.plan.idempotency_header is not None
        if attempt > self.retries or not is_safe or not (lost or status in _RETRIED):
            return None
        # What the API asks for comes before the back-off, or all rejected callers would return at the same time.
        requested_delay = error.retry_after or 0.0
        delay = requested_delay + back_off(attempt, first=_FIRST_BACKOFF_SECONDS, longest=_LONGEST_BACKOFF_SECONDS)
        in_time = deadline is None or time.monotonic() + delay < deadline
        return delay if in_time and requested_delay <= MAX_RETRY_AFTER else None

    async def subscribe(self, input: Any, context: Context) -> AsyncGenerator[ShapedResult]:
        """Iterate over the items of a stream. An HTTP error is raised before the first item."""
        subscription = StreamSubscription(self, input, context, reconnect=self.reconnect)
        try:
            while (items := await subscription.read()) is not None:
                for item in items:
                    yield item
        finally:
            subscription.close()

    async def preview(self, input: Any, context: Context, reveal: bool) -> PreparedRequest:
        """Return the request that `call` would send first (`Operation.preview`). A token is not requested for it."""
        request = self.client.prepared(await self._signed(self.request(input), context, offline=True))
        previewed_request = request if reveal else request.redacted()
        return PreparedRequest(
            protocol="http",
            method=previewed_request.method,
            url=previewed_request.url,
            headers=tuple(previewed_request.headers),
            body=previewed_request.body,
        )

    async def _signed(self, request: HTTPRequest, context: Context, *, offline: bool = False) -> HTTPRequest:
        if context.metadata and not any(name.lower() == "traceparent" for name, _ in request.headers):
            # The request joins the trace of the call, unless the input has a trace of its own among the parameters.
            trace = [(name, str(value)) for name, value in trace_of(context.metadata).items()]
            request = replace(request, headers=request.headers + trace)
        if conditional := condition_headers(context, self.plan.operation_id):
            header_names = {name.lower() for name, _ in request.headers}
            added = [pair for pair in conditional if pair[0].lower() not in header_names and is_visible_ascii(pair[1])]
            request = replace(request, headers=[*request.headers, *added])
        if not self.plan.security:
            return request
        return await self.credentials.apply(self.plan, request, context, offline=offline)

    async def open(self, request: HTTPRequest, context: Context) -> tuple[ClientResponse, HTTPRequest]:
        """Return the response to a request with its body unread, and the request with its credentials.

        The caller closes the response. A token that the API rejects is refreshed once.

        Raises:
            CallError: EXECUTION_ERROR for an HTTP error; else as `HTTPClient.open`.
        """
        plan, client, credentials = self.plan, self.client, self.credentials
        signed = await self._signed(request, context) if context.metadata or plan.security else request
        response = await client.open(signed)
        if response.status == 401 and plan.security and credentials.reject(signed):
            response.close()
            signed = await self._signed(request, context)
            response = await client.open(signed)
        if 200 <= response.status < 300 or response.status == 304:
            return response, signed
        body, is_whole = await client.read_start(response, MAX_ERROR_BODY)
        hint = credentials.missing(plan, signed) if response.status in (401, 403) else ""
        raise error_of(head_of(response), body, is_whole=is_whole, hint=hint, secrets=client.prepared(signed).secrets())


class StreamSubscription:
    """One subscription in flight. It reads on demand, so that a slow consumer slows the API down."""

    def __init__(self, operation: HTTPOperation, input: Any, context: Context, *, reconnect: bool) -> None:
        self._operation = operation
        self._request: HTTPRequest = operation.request(input)
        self._context = context
        self._may_repeat = reconnect and self._request.method in _REPEATABLE
        self._stream: tuple[ChunkReader, ItemDecoder] | None = None
        self._response: ClientResponse | None = None
        self._parser: SSEParser | None = None  # of the last event stream
        self._attempts = 0  # reconnects since the last chunk
        self._failure: CallError | None = None  # raised after the items before it
        self._is_over = False

    async def read(self) -> list[ShapedResult] | None:
        """Return the next items, at least one; None at the end.

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
        """Close the connection immediately."""
        response, self._stream, self._response = self._response, None, None
        if response is not None:
            response.close()

    async def _connect(self) -> list[ShapedResult]:
        """Open the stream. Return items only if the API sends one complete response instead."""
        operation = self._operation
        deadline = operation.deadline(self._context)
        limit, complaint = operation.client.deadlines.limit, operation.complaint
        request = self._request
        # Resume after the last event that arrived, here or at the caller.
        last = self._context.resume_from if self._parser is None else self._parser.last_event_id
        if last:
            headers = [pair for pair in request.headers if pair[0].lower() != _LAST_EVENT_ID]
            try:
                headers.append((_LAST_EVENT_ID, header_value(last)))
            except ValueError:  # an EventSource sends 0x01 to 0x1f too, but hardly any server accepts them
                operation_id = operation.plan.operation_id
                logger.warning("%s: the last event id is not a valid header: resuming without it", operation_id)
            request = replace(request, headers=headers)
        try:
            response, sent = await limit(lambda: operation.open(request, self._context), deadline, complaint)
        except CallError as error:
            if self._parser is None or not error.retryable or error.code is ErrorCode.TIMEOUT:
                raise
            await self._pause(error)
            return []
        head = head_of(response)
        kind = stream_kind(operation.plan, head)
        if head.status in (204, 304):
            response.close()
            self._finish()
            return []
        if kind is not None:
            self._response = response
            self._stream = ChunkReader(operation.client, response), self._decoder(head, kind, sent)
            return []
        if not head.media_type.is_json:
            response.close()
            message = f"{operation.host} sent {head.media_type.name} instead of a stream"
            raise CallError(ErrorCode.PROTOCOL_ERROR, message)
        logger.warning("%s: the API sent JSON instead of a stream: it is the only item", operation.plan.operation_id)
        deadline = operation.deadline(self._context)
        body = await limit(lambda: operation.client.read(response), deadline, complaint)
        self._finish()
        return [await operation.decoded(head, body)]

    def _decoder(self, head: ResponseHead, kind: StreamKind, sent: HTTPRequest) -> ItemDecoder:
        plan, max_item = self._operation.plan, self._operation.client.options.max_item
        if kind != "sse" and self._context.resume_from is not None:
            raise resume_error(f"{plan.operation_id} cannot be resumed: its items have no ids")
        if kind != "sse":
            return value_decoder(plan, head, kind, max_item)
        last = self._parser
        last_event_id = last.last_event_id if last else self._context.resume_from or ""
        self._parser = SSEParser(last_event_id=last_event_id, max_event=max_item)
        self._parser.retry = last.retry if last else None
        return EventDecoder(plan, head, self._parser, self._operation.client.prepared(sent).secrets())

    async def _advance(self, chunks: ChunkReader, decoder: ItemDecoder) -> list[ShapedResult]:
        """Return the items of the next chunk, which may be none."""
        resumes = self._may_repeat and self._parser is not None
        try:
            chunk = await self._before_deadline(chunks.read)
        except CallError as error:
            if not (error.code is ErrorCode.UNAVAILABLE and error.retryable and resumes):
                raise
            await self._pause(error)
            return []
        if chunk:
            self._attempts = 0
            items = decoder.feed(chunk)
            self._failure = decoder.failure
            if decoder.done:
                self._finish()
            return items
        items = decoder.end()
        if resumes:
            message = f"{self._operation.host} ends the stream as soon as it is open"
            await self._pause(CallError(ErrorCode.UNAVAILABLE, message))
        else:
            self._finish()
        return items

    def _finish(self) -> None:
        self._is_over = True
        self.close()

    async def _pause(self, loss: CallError) -> None:
        """Wait before a reconnect: the API's delay, doubled each time, with jitter to spread clients.

        Raises:
            CallError: the loss itself, after too many attempts.
        """
        self.close()
        self._attempts += 1
        if self._attempts > MAX_ATTEMPTS:
            raise loss
        retry = _RECONNECT_SECONDS if self._parser is None or self._parser.retry is None else self._parser.retry / 1000
        delay = min(max(retry, _MIN_RECONNECT_SECONDS) * 2 ** (self._attempts - 1), _MAX_RECONNECT_SECONDS)
        logger.info("%s: lost the stream, reconnecting in %.3g s", self._operation.plan.operation_id, delay)
        delay *= random.uniform(1, 1.25)  # noqa: S311
        await self._before_deadline(lambda: asyncio.sleep(delay))

    async def _before_deadline(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Await without a timeout: only the deadline of its call limits a stream."""
        complaint = f"{self._operation.host} did not end the stream"
        return await self._operation.client.deadlines.limit(wait, self._context.deadline, complaint)
