"""Tokens by OAuth 2.0's client credentials grant: asked for when needed, kept until shortly before they expire.

However many calls need the same token at once, it is asked for once. The question ends when nobody waits for it.
"""

import asyncio
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

from msgspec import Struct
from yarl import URL

from opwire.adapters.openapi.bodies import urlencoded
from opwire.adapters.openapi.request import HTTPRequest
from opwire.adapters.openapi.shapes import bounded
from opwire.adapters.openapi.styles import encode
from opwire.errors import CallError, ErrorCode

FetchToken = Callable[[HTTPRequest], Awaitable[Any]]
"""Sends the request for a token, following no redirect, and gives the decoded JSON of a 2xx answer.

Raises:
    CallError: for all else.
"""

_MARGIN = 60.0  # seconds before its end that a token is renewed, or a tenth of its life where that is less
_MAX_LIFE = 10 * 365 * 24 * 60 * 60.0  # seconds
_MAX_TOKENS = 1000  # each identity may have its own


class OAuthClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client that can ask for tokens. Its repr shows no secret."""

    client_id: str
    client_secret: str
    scopes: tuple[str, ...] | None = None  # None: those that the operation asks for
    token_url: str | None = None  # None: what the document says
    auth: Literal["basic", "body"] = "basic"  # how the token endpoint wants the id and the secret
    extra: dict[str, str] = {}  # more fields of the form: `audience`, `resource`

    def __repr__(self) -> str:
        return f"<OAuthClient {self.client_id}>"


class _Token(NamedTuple):
    value: str
    renew_at: float


class _Flight:
    """A question that is under way, and how many wait for its answer."""

    def __init__(self, task: asyncio.Task[str]) -> None:
        self.task = task
        self.waiting = 0


_Key = tuple[Any, ...]


class TokenCache:
    """The tokens that are good at the moment."""

    def __init__(self, fetch: FetchToken, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._tokens: dict[_Key, _Token] = {}
        self._flights: dict[_Key, _Flight] = {}

    async def get(self, client: OAuthClient, token_url: str, scopes: Sequence[str]) -> str:
        """A token that is good for a while.

        Raises:
            CallError: EXECUTION_ERROR, if the endpoint gives none; what `fetch` raises.
        """
        key = (token_url, tuple(scopes), client.client_id, client.client_secret, client.auth, *client.extra.items())
        token = self._tokens.get(key)
        if token is not None and self._clock() < token.renew_at:
            return token.value
        flight = self._flights.get(key)
        if flight is None or flight.task.get_loop() is not asyncio.get_running_loop():
            flight = _Flight(asyncio.create_task(self._ask(key, client, token_url, scopes)))
            self._flights[key] = flight
        return await self._arrival(key, flight)

    async def _arrival(self, key: _Key, flight: _Flight) -> str:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            # Whoever closes the cache cancels the question, and not those who wait for it.
            task = asyncio.current_task()
            if flight.task.cancelled() and not (task and task.cancelling()):
                message = "the credentials were closed while a token was awaited"
                raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False) from None
            raise
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                flight.task.cancel()
                if self._flights.get(key) is flight:
                    del self._flights[key]

    async def _ask(self, key: _Key, client: OAuthClient, token_url: str, scopes: Sequence[str]) -> str:
        asked = self._clock()  # its life began at the latest then
        try:
            answer = await self._fetch(token_request(client, token_url, scopes))
        except CallError as error:
            # Without the details: what an endpoint says of a secret may hold it.
            message = f"the token endpoint gives no token: {error.message}"
            raise CallError(error.code, message, retryable=error.retryable, retry_after=error.retry_after) from error
        token = _read_token(answer, asked)
        while len(self._tokens) >= _MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[key] = token
        return token.value

    def forget(self, value: str) -> None:
        """Drop a token that was refused, if it is still there."""
        self._tokens = {key: token for key, token in self._tokens.items() if token.value != value}

    async def close(self) -> None:
        """End the questions that are under way."""
        loop = asyncio.get_running_loop()
        tasks = [flight.task for flight in self._flights.values() if flight.task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def token_request(client: OAuthClient, token_url: str, scopes: Sequence[str]) -> HTTPRequest:
    """The request for a token (RFC 6749, section 4.4)."""
    fields: dict[str, Any] = {"grant_type": "client_credentials"}
    if scopes:
        fields["scope"] = " ".join(scopes)
    headers = [("Accept", "application/json"), ("Content-Type", "application/x-www-form-urlencoded")]
    if client.auth == "basic":
        pair = f"{encode(client.client_id)}:{encode(client.client_secret)}"
        headers.append(("Authorization", "Basic " + b64encode(pair.encode()).decode()))
    else:
        fields |= {"client_id": client.client_id, "client_secret": client.client_secret}
    return HTTPRequest(
        method="POST",
        url=str(URL(token_url)),
        headers=headers,
        body=urlencoded(fields | client.extra).encode(),
        secret_headers=frozenset({"authorization"}),
    )


def _read_token(answer: Any, asked: float) -> _Token:
    fields = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    value, kind = fields.get("access_token"), fields.get("token_type", "bearer")
    if not isinstance(value, str) or not value:
        raise CallError(ErrorCode.EXECUTION_ERROR, "the token endpoint answered without an access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise CallError(ErrorCode.EXECUTION_ERROR, "the token endpoint answered with a token that is no bearer token")
    life = bounded(fields.get("expires_in"), _MAX_LIFE)
    if life is None:
        return _Token(value, float("inf"))  # good until the API refuses it
    return _Token(value, asked + life - min(_MARGIN, life / 10))
