"""The guard in front of every HTTP surface: host and origin checks, authentication, and limits.

Rules: a rejected request never reaches the surface. The checks run in the order of `RequestGuard._serve`. Tokens are
parsed here and nowhere else, and appear neither in a message nor in the log.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from itertools import chain
from math import ceil
from typing import Any, NamedTuple, TypedDict

from opwire.asgi.bodies import CHUNKED, MAX_BODY_BYTES, BodyReader, ClientDisconnectedError, malformed
from opwire.asgi.problem import HTTPStatusError, Send, send_problem
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope
from opwire.asgi.resource import PublishedResource
from opwire.auth.tokens import EXPIRED, Authenticator, Grant
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, check_instance, check_list
from opwire.http.hosts import LOOPBACK, HostNames
from opwire.model.identity import Identity
from opwire.observe.logs import OK, AccessEntry, SurfaceName
from opwire.observe.logs import logger as access_logger
from opwire.runtime.bounded import BoundedDict, SharedLimit

MAX_CONCURRENT_RECHECKS = 4
"""Checks of the tokens of open streams. Of 400 streams with lookups of 0.25 s, they delayed requests by 7 s."""

_BODY_HEADERS = b"content-length content-type content-encoding transfer-encoding".split()
_UNIQUE_HEADERS = b"host origin referer sec-fetch-site authorization x-api-key mcp-session-id".split() + _BODY_HEADERS
_MAX_HOST_LENGTH = 253
_MAX_VALID_TOKENS = 10_000


class FoundSession(NamedTuple):
    """What a request without a token may do, and the token with which its session began, if any."""

    grant: Grant
    token: str | None


SessionLookup = Callable[[Mapping[bytes, bytes]], Awaitable[FoundSession | None]]
"""Returns the session of a request without a token by its headers, such as a cookie; None: it has none."""


class GuardOptions(TypedDict, total=False):
    """The options of `RequestGuard`, which every surface takes and passes on."""

    authenticate: Authenticator | None
    anonymous: Identity | None
    hosts: Iterable[str] | None
    origins: Iterable[str]
    max_body: int
    max_headers: int
    max_requests: int
    body_timeout: float
    challenge: str


class RequestGuard:
    """ASGI middleware that authenticates requests and enforces limits; a rejected request gets a problem response.

    `authenticate` checks tokens, sent as `Authorization: Bearer …` or `X-API-Key: …`; an invalid one is rejected.
    Requests without a token get the identity `anonymous`; by default they have none, and may call public operations
    only. `challenge` is the `WWW-Authenticate` of a 401. `session` looks up what requests without a token may do. If
    `authenticate` is an `OAuthTokens`, its metadata is published at `/.well-known/oauth-protected-resource`, followed
    by the path of the resource, and below the path that the app is mounted at; a 401 or 403 names the URL.

    `hosts` are the accepted host names: "tools.example", "*.tools.example", "tools.example:8000", or "*" for any. The
    default are the loopback names with any port, so that a web page cannot reach a local server through a host name of
    its own (DNS rebinding). `origins` are the origins of other hosts that may call, as "https://shop.example", or "*".
    Requests from other pages are rejected, whether they fetch, submit a form, link to this server or embed it as an
    image: browsers send `Origin`, `Sec-Fetch-Site` or `Referer`.

    `max_body` and `max_headers` are in bytes. What takes longest to parse in a body is limited (`check_density`). The
    bodies of open requests with more than 64 KiB may take 256 MiB, or four times `max_body`. `max_requests` bounds
    concurrent requests, open streams included, and `body_timeout` is the timeout for receiving a body, in seconds. With
    `authenticate`, all requests without a token share half of `max_requests` and of the memory for bodies, one identity
    gets at most half, and tokens that were not seen before are checked in a quarter of `max_requests`, so that they
    cannot lock each other out.

    The access log gets a line for each request to the surface "http". On others a request may be less or more than a
    call: they log calls themselves, and the guard only the requests that it or the app rejects.

    Raises:
        UsageError: a number is not above zero, or another option is invalid.
    """

    def __init__(
        self,
        app: App,
        *,
        surface: SurfaceName = "http",
        authenticate: Authenticator | None = None,
        anonymous: Identity | None = None,
        hosts: Iterable[str] | None = None,
        origins: Iterable[str] = (),
        max_body: int = MAX_BODY_BYTES,
        max_headers: int = 32 * 1024,
        max_requests: int = 1_000,
        body_timeout: float = 30,
        challenge: str = "Bearer",
        session: SessionLookup | None = None,
    ) -> None:
        check_counts(max_body=max_body, max_headers=max_headers, max_requests=max_requests)
        check_above_zero(body_timeout=body_timeout)
        check_list("names", hosts=hosts, origins=origins)
        check_instance(Authenticator, authenticate=authenticate)
        check_instance(Identity, anonymous=anonymous)
        self._app = app
        self._surface: SurfaceName = surface
        self._hosts = HostNames(LOOPBACK if hosts is None else hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._max_headers = max_headers
        self._max_requests = max_requests
        self._open_requests = 0
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
        self._bodies = BodyReader(max_body, body_timeout, shares=authenticate is not None)
        metadata = getattr(authenticate, "protected_resource", None)
        self._respond: App = self._serve_or_reject
        if metadata is not None:
            self._respond = PublishedResource(self._serve_or_reject, metadata)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or reject a request, and log it. Other events, such as the server's lifespan, pass."""
        if scope["type"] == "websocket":  # unsupported, and a browser opens one to any host
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = scope[ADMITTED] = AdmittedRequest(scope["method"], scope["headers"], dict(scope["headers"]))
        if not access_logger.isEnabledFor(logging.INFO):
            await self._respond(scope, receive, send)
            return
        entry = request.access = AccessEntry(self._surface)
        entry.path = scope["path"]

        async def send_counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            else:
                entry.bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._respond(scope, receive, send_counted)
        finally:
            entry.identity = None if request.identity is None else request.identity.id
            if self._surface == "http" or entry.outcome != OK:
                entry.write()

    async def _serve_or_reject(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or send the problem for which it is rejected, by a check or by the app."""
        request: AdmittedRequest = scope[ADMITTED]
        try:
            await self._serve(request, scope, receive, send)
        except ClientDisconnectedError:
            return
        except (HTTPStatusError, CallError) as error:
            await send_problem(send, error, access=request.access, with_body=request.method != "HEAD")

    async def _serve(self, request: AdmittedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and serve it with its identity and its body."""
        if self._open_requests >= self._max_requests:
            raise _overloaded(self._max_requests)
        self._open_requests += 1
        try:
            self._check_headers(request)
            self._check_page(request.headers, self._check_host(request.headers))
            await self._identify(request)
            await self._bodies.read(request, receive)
            await self._app(scope, receive, send)
        finally:
            self._open_requests -= 1
            self._bodies.release(request)
            if request.is_counted:
                self._shares.give_back(request.share, 1)

    # --- headers

    def _check_headers(self, request: AdmittedRequest) -> None:
        """Check the size of the headers and which are repeated, and remove white space at the end of their values."""
        lines = request.lines
        text = b"\n".join(chain.from_iterable(lines))
        if b" \n" in text or b"\t\n" in text or text.endswith((b" ", b"\t")):
            # httptools leaves white space at the end of a value, which is not part of it (RFC 9110).
            lines = request.lines = [(name, value.rstrip(b" \t")) for name, value in lines]
            request.headers = dict(lines)
        headers = request.headers
        if len(text) - 2 * len(lines) >= self._max_headers:  # without the line breaks, which are one less
            error = CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the headers have more than {self._max_headers:,} bytes")
            raise HTTPStatusError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)
        if len(headers) != len(lines):  # those that decide anything must be unique, or two parsers could disagree
            names = [name for name, _ in lines]
            for name in _UNIQUE_HEADERS:
                if names.count(name) > 1:
                    raise CallError(ErrorCode.PROTOCOL_ERROR, f"duplicate header {name.decode()}")
        if CHUNKED in headers:
            if b"content-length" in headers:  # a proxy may go by the other one: request smuggling
                raise malformed("content-length and transfer-encoding exclude each other")
            if headers[CHUNKED].lower() != b"chunked":  # httptools ignores what comes before it
                raise malformed("the only transfer-encoding is chunked")

    def _check_host(self, headers: Mapping[bytes, bytes]) -> str:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._hosts.include(host):
            wrong = f"this server does not accept the host name {host[:_MAX_HOST_LENGTH]!r}; allow it with the option "
            wrong += "--allow-host of `opwire serve`, `hosts` in opwire.toml, hosts= of serve_http, asgi and run_http"
            raise HTTPStatusError(HTTPStatus.MISDIRECTED_REQUEST, CallError(ErrorCode.ACCESS_DENIED, wrong))
        return host

    def _check_page(self, headers: Mapping[bytes, bytes], host: str) -> None:
        """Reject requests that a page of another host makes a browser send.

        Browsers send `Origin` with requests by scripts and with those that change anything. For links and images they
        send the relation of the page to this server (`Sec-Fetch-Site`; "none" is the address bar), or, if the browser
        is old or the host not trustworthy, its address (`Referer`). Other programs omit all three.
        """
        origin, site, page = headers.get(b"origin"), headers.get(b"sec-fetch-site"), headers.get(b"referer")
        if (origin is None and site is None and page is None) or "*" in self._origins:
            return
        # Pages of the same host may call, unless any host name is accepted: then it proves nothing.
        own_origins = (f"http://{host}", f"https://{host}")
        allowed = self._origins if self._hosts.any else self._origins.union(own_origins)
        if origin is not None:
            is_allowed = origin.decode("latin-1").lower() in allowed
        elif site is not None:
            is_allowed = site == b"none" or (site == b"same-origin" and not allowed.isdisjoint(own_origins))
        else:
            scheme, _, address = (page or b"").decode("latin-1").lower().partition("://")
            is_allowed = f"{scheme}://{address.partition('/')[0]}" in allowed
        if not is_allowed:
            wrong = "pages of other origins may not call this server; its option origins= names those that may"
            raise CallError(ErrorCode.ACCESS_DENIED, wrong)

    # --- credentials

    async def _identify(self, request: AdmittedRequest) -> None:
        """Find the identity of a request by its token or session, and count it in its share of the requests."""
        if self._authenticator is None and self._session is None:
            request.identity = self._anonymous
            return
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
                raise _overloaded(self._max_share)
            request.is_counted = True
            request.share = share
        if grant is None:
            request.identity = self._anonymous
        else:
            request.identity = grant.identity
            request.token = token
            request.expires = grant.expires
            request.regrant = self.regrant

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

    def _token(self, headers: Mapping[bytes, bytes]) -> str | None:
        authorization, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        if authorization is None:
            return None if key is None else key.decode("latin-1")
        scheme, _, token = authorization.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or key is not None:
            raise self._unauthenticated("send one token, as Authorization: Bearer or as X-API-Key")
        return token.strip()

    async def _authenticate(self, authenticator: Authenticator, token: str | None) -> Grant | None:
        """Return the grant of a token. Unknown tokens are checked only within their share of the requests.

        Otherwise made-up tokens, which are slow to check where a database is queried, would lock out valid ones.
        """
        token_hash = hash(token)
        is_new = token is not None and token_hash not in self._valid_tokens
        if is_new and self._checks >= self._max_checks:
            raise _overloaded(self._max_checks)
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


def _overloaded(max_requests: int) -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, f"{max_requests} requests are open already: try again", retry_after=1)
