"""Handlers of HTTP operations: a call gives one envelope, a subscription one an item.

Everything that a call waits for has to fit into its deadline: a token, redirects, and the answer to its last byte.
"""

import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from opwire.adapters.openapi.answers import MAX_ERROR_BODY, error_of
from opwire.adapters.openapi.client import HTTPClient, host_of
from opwire.adapters.openapi.exchange import Exchange, head_of
from opwire.adapters.openapi.oauth import FetchToken
from opwire.adapters.openapi.plan import Plan
from opwire.adapters.openapi.request import HTTPRequest
from opwire.adapters.openapi.security import Credentials
from opwire.adapters.openapi.subscription import Subscription
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Handler, ShapedResult
from opwire.typed.text import read_json

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
