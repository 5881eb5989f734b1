"""Middleware that finds the identity of a request, by its token or its session.

Tokens are parsed here and nowhere else, and appear neither in a message nor in the log.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from math import ceil
from typing import NamedTuple

from opwire.asgi.problem import HTTPStatusError, Send
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope
from opwire.auth.tokens import EXPIRED, Authenticator, Grant
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity
from opwire.runtime.bounded import BoundedDict, SharedLimit

MAX_CONCURRENT_RECHECKS = 4
"""Checks of the tokens of open streams. Of 400 streams with lookups of 0.25 s, they delayed requests by 7 s."""

_MAX_VALID_TOKENS = 10_000


class FoundSession(NamedTuple):
    """What a request without a token may do, and the token with which its session began, if any."""

    grant: Grant
    token: str | None


SessionLookup = Callable[[Mapping[bytes, bytes]], Awaitable[FoundSession | None]]
"""Returns the session of a request without a token by its headers, such as a cookie; None: it has none."""


class Credentials:
    """Give each request the identity of its caller, and count it in the share of that identity.

    All requests without a token share half of `max_requests`, and one identity gets at most half. Tokens that were not
    seen before are checked in a quarter, so that made-up ones, which are slow to check where a database is queried,
    cannot lock out valid ones.
    """

    def __init__(
        self,
        app: App,
        *,
        authenticate: Authenticator | None = None,
        anonymous: Identity | None = None,
        challenge: str = "Bearer",
        session: SessionLookup | None = None,
        max_requests: int = 1_000,
    ) -> None:
        self._app = app
        self._authenticator = authenticate
        self._anonymous = anonymous
        self._challenge = challenge
        self._session = session
        self._max_share = ceil(max_requests / 2)
        self._max_checks = ceil(max_requests / 4)
        self._shares: SharedLimit[str | None] = SharedLimit(max_requests, self._max_share)
        self._checks = 0  # tokens in verification that were not seen before
        self._valid_tokens: BoundedDict[int, None] = BoundedDict(_MAX_VALID_TOKENS)  # their hashes
        self._rechecks = asyncio.Semaphore(MAX_CONCURRENT_RECHECKS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Identify the caller of a request, then serve it.

        Raises:
            HTTPStatusError, CallError: it is rejected.
        """
        request: AdmittedRequest = scope[ADMITTED]
        if self._authenticator is None and self._session is None:
            request.identity = self._anonymous
        else:
            await self._identify(request)
        try:
            await self._app(scope, receive, send)
        finally:
            if request.is_counted:
                self._shares.give_back(request.share, 1)

    async def regrant(self, request: AdmittedRequest) -> Grant | None:
        """Return what the token or the session of an admitted request grants now; None: the session has ended.

        Raises:
            CallError: UNAUTHENTICATED, it is not valid any more; or it cannot be checked at the moment.
        """
        token = None if self._authenticator is None else self._token(request.headers)
        async with self._rechecks:
            session = None if token is not None or self._session is None else await self._session(request.headers)
            if session is not None or self._authenticator is None:
                return session and session.grant
            return await self._authenticator.authenticate(token)

    async def _identify(self, request: AdmittedRequest) -> None:
        """Find the identity of a request by its token or session, and count it in its share of the requests."""
        headers = request.headers
        token = None if self._authenticator is None else self._token(headers)
        session = None if token is not None or self._session is None else await self._session(headers)
        grant, token = (None, token) if session is None else session
        if self._authenticator is not None:
            has_credentials = token is not None or grant is not None
            if grant is None:
                grant = await self._authenticate(self._authenticator, token)
            share = grant.identity.id if grant is not None and has_credentials else None
            if not self._shares.take(share, 1):
                raise overloaded(self._max_share)
            request.is_counted = True
            request.share = share
        if grant is None:
            request.identity = self._anonymous
        else:
            request.identity = grant.identity
            request.token = token
            request.expires = grant.expires
            request.regrant = self.regrant

    def _token(self, headers: Mapping[bytes, bytes]) -> str | None:
        authorization, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        if authorization is None:
            return None if key is None else key.decode("latin-1")
        scheme, _, token = authorization.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or key is not None:
            raise self._unauthenticated("send one token, as Authorization: Bearer or as X-API-Key")
        return token.strip()

    async def _authenticate(self, authenticator: Authenticator, token: str | None) -> Grant | None:
        """Return the grant of a token. Unknown tokens are checked only within their share of the requests."""
        token_hash = hash(token)
        is_new = token is not None and token_hash not in self._valid_tokens
        if is_new and self._checks >= self._max_checks:
            raise overloaded(self._max_checks)
        self._checks += is_new
        try:
            grant = await authenticator.authenticate(token)
        except CallError as error:
            self._valid_tokens.pop(token_hash, None)
            if error.code is not ErrorCode.UNAUTHENTICATED:
                raise
            if token is None:
                return None
            raise self._unauthenticated(error.message) from None
        finally:
            self._checks -= is_new
        if grant.expires is not None and grant.expires <= time.time():
            raise self._unauthenticated(EXPIRED)
        if is_new:
            self._valid_tokens[token_hash] = None
        return grant

    def _unauthenticated(self, message: str) -> HTTPStatusError:
        challenge = f'{self._challenge}{"," if " " in self._challenge else ""} error="invalid_token"'
        error = CallError(ErrorCode.UNAUTHENTICATED, message)
        return HTTPStatusError(HTTPStatus.UNAUTHORIZED, error, (b"www-authenticate", challenge.encode("latin-1")))


def overloaded(max_requests: int) -> CallError:
    """Return the error for a request beyond a limit of open ones."""
    return CallError(ErrorCode.UNAVAILABLE, f"{max_requests} requests are open already: try again", retry_after=1)
