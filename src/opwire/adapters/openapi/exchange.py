"""One operation's way to its API: from an input to an answer that is no error."""

import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, TypeVar

from aiohttp import ClientResponse
from msgspec.structs import replace

from opwire.adapters.openapi.answers import MAX_ERROR_BODY, Head, Results, error_of
from opwire.adapters.openapi.client import HTTPClient, host_of
from opwire.adapters.openapi.plan import Plan
from opwire.adapters.openapi.request import HTTPRequest, compile_request
from opwire.adapters.openapi.security import Credentials
from opwire.errors import CallError
from opwire.operation import Context, trace_of

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
