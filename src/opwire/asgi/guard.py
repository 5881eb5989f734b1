"""The guard in front of every HTTP surface: authentication, host and origin checks, and limits.

Rules: a rejected request never reaches the surface. Tokens are parsed here and nowhere else, and appear neither in a
message nor in the log. A request is admitted with its complete body, so that a slow sender holds only its own place.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import partial
from http import HTTPStatus
from itertools import chain
from math import ceil
from typing import Any, NamedTuple, TypedDict
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from opwire.asgi.problem import SCOPES, Header, HTTPStatusError, Send, send_problem
from opwire.auth.tokens import EXPIRED, WELL_KNOWN_RESOURCE, Authenticator, Grant, ResourceMetadata, grant_ended
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, check_instance, check_list
from opwire.http.hosts import LOOPBACK, HostNames
from opwire.model.operation import Identity
from opwire.observe.logs import OK, AccessEntry, SurfaceName
from opwire.observe.logs import logger as access_logger
from opwire.runtime.bounded import BoundedDict, SharedLimit, Tally
from opwire.runtime.deadlines import Deadlines, resume
from opwire.typed.plain import LARGE_JSON, check_density

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 4 * 1024 * 1024

ADMITTED = "opwire.request"
"""Key of the ASGI scope: the `AdmittedRequest`."""

_BODY_HEADERS = b"content-length content-type content-encoding transfer-encoding".split()
_UNIQUE_HEADERS = b"host origin referer sec-fetch-site authorization x-api-key mcp-session-id".split() + _BODY_HEADERS
_CLOSE = (b"connection", b"close")  # the rest of the connection is not read
_CHUNKED, UPGRADE = b"transfer-encoding", b"upgrade"
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_KNOWN = 10_000
_MAX_ACCEPTED = 256
_MAX_HOST = 253  # characters of a host name
_MAX_BODIES = 256 * 1024 * 1024  # bytes of the large bodies of open requests, or four of the largest
_LARGE_BODY = 64 * 1024  # bytes; the number of requests bounds smaller ones
_MAX_RECHECKS = 4  # at the same time: of 400 streams with lookups of 0.25 s, they delayed requests by 7 s
_DISCARD_BYTES, _DISCARD_SECONDS = 16 * 1024 * 1024, 2.0


class AdmittedRequest(Struct):
    """A request as the guard admits it, for the app behind. `receive` is for disconnects alone."""

    method: str
    lines: list[Header]
    headers: Mapping[bytes, bytes]  # by name; the guard has checked that those that decide anything are unique
    access: AccessEntry | None = None  # None if the access log is disabled
    identity: Identity | None = None
    token: str | None = None  # the verified token of its caller
    expires: float | None = None  # when that expires (Unix epoch, in seconds)
    guard: "RequestGuard | None" = None  # that can check its token again
    offers_oauth: bool = False  # clients can get a token, or one with more scopes
    body: bytes = b""  # complete
    is_counted: bool = False  # in the share of its identity
    share: str | None = None  # the id of that identity; None: the share of requests without a token
    reserved: int = 0  # bytes of its body that are counted

    @classmethod
    def of(cls, scope: Scope) -> "AdmittedRequest":
        """Return a request before anything of it is checked."""
        lines: list[Header] = scope["headers"]
        return cls(scope["method"], lines, dict(lines))

    async def ended(self) -> CallError:
        """Wait until its caller may not read a stream any longer, and return the reason; forever without a token."""
        if self.guard is None or self.identity is None:
            return await asyncio.get_running_loop().create_future()
        return await grant_ended(Grant(self.identity, expires=self.expires), partial(self.guard.regrant, self))

    def take_body(self) -> bytes:
        """Return the body, and drop it: a stream would keep it."""
        body, self.body = self.body, b""
        return body


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
    bodies of open requests with more than 64 KiB may take 256 MiB, or four
    times `max_body`. `max_requests` bounds concurrent requests, open streams included, and `body_timeout` is the
    timeout for receiving a body, in seconds. With `authenticate`, all requests without a token share half of
    `max_requests` and of the memory for bodies, one identity gets at most half, and tokens that were not seen before
    are checked in a quarter of `max_requests`, so that they cannot lock each other out.

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
        max_body: int = MAX_BODY,
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
        self._authenticator = authenticate
        self._anonymous = anonymous
        self._hosts = HostNames(LOOPBACK if hosts is None else hosts)
        self._accepted: BoundedDict[bytes, str] = BoundedDict(_MAX_ACCEPTED)  # host names, as sent: saves 1 µs
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._max_body = max_body
        self._max_headers = max_headers
        self._max_requests = max_requests
        self._max_share = ceil(max_requests / 2)
        self._max_checks = ceil(max_requests / 4)
        self._body_timeout = body_timeout
        self._challenge = challenge
        self._session = session
        found = getattr(authenticate, "protected_resource", None)
        self._resource = None if found is None else _PublishedResource(found)
        self._deadlines = Deadlines()
        self._open = 0
        self._shares: Tally[str | None] = Tally()  # open requests by the id of their identity; None: without a token
        bodies = max(_MAX_BODIES, 4 * max_body)
        each = bodies if self._authenticator is None else bodies // 2
        self._bodies: SharedLimit[str | None] = SharedLimit(bodies, each)  # of their large bodies, in the same way
        self._checks = 0  # tokens in verification that were not seen before
        self._known: BoundedDict[int, None] = BoundedDict(_MAX_KNOWN)  # hashes of valid tokens
        self._rechecks = asyncio.Semaphore(_MAX_RECHECKS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or reject a request. Other events, such as the server's lifespan, pass."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # unsupported, and a browser opens one to any host
                return await send({"type": "websocket.close", "code": 1008})
            return await self._app(scope, receive, send)
        request = scope[ADMITTED] = AdmittedRequest.of(scope)
        if not access_logger.isEnabledFor(logging.INFO):
            return await self._serve(request, scope, receive, send)
        entry = request.access = AccessEntry(self._surface)
        entry.path = scope["path"]

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            else:
                entry.bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._serve(request, scope, receive, counted)
        finally:
            entry.identity = None if request.identity is None else request.identity.id
            if self._surface == "http" or entry.outcome != OK:
                entry.write()

    async def _serve(self, request: AdmittedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        self._open += 1
        send = closing(send) if UPGRADE in request.headers else send
        try:
            if self._resource is not None:
                if self._resource.is_at(scope):
                    await self._resource.respond(scope, send)
                    return
                request.offers_oauth = True
                send = self._resource.challenging(scope, send)
            try:
                if self._open > self._max_requests:
                    raise _overloaded(self._max_requests)
                self._check(request)
                if self._authenticator is None and self._session is None:
                    request.identity = self._anonymous
                else:
                    await self._identify(request)
                headers = request.headers
                if b"content-length" in headers or request.method not in _WITHOUT_BODY or _CHUNKED in headers:
                    request.body = await self._read_body(request, receive)
            except _DisconnectedError:
                return
            except (HTTPStatusError, CallError) as error:
                await send_problem(send, error, access=request.access, with_body=request.method != "HEAD")
                return
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
            request.body = b""  # the connection keeps the scope until its next request
            if request.reserved:
                self._bodies.give_back(request.share, request.reserved)
            if request.is_counted:
                self._shares.subtract(request.share)

    def _check(self, request: AdmittedRequest) -> None:
        """Check the headers, and remove white space at the end of their values."""
        lines, headers = request.lines, request.headers
        text = b"\n".join(chain.from_iterable(lines))
        if b" \n" in text or b"\t\n" in text or text.endswith((b" ", b"\t")):
            # httptools leaves white space at the end of a value, which is not part of it (RFC 9110).
            lines = request.lines = [(name, value.rstrip(b" \t")) for name, value in lines]
            headers = request.headers = dict(lines)
        if len(text) - 2 * len(lines) >= self._max_headers:  # without the line breaks, which are one less
            error = CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the headers have more than {self._max_headers:,} bytes")
            raise HTTPStatusError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)
        if len(headers) != len(lines):  # those that decide anything must be unique, or two parsers could disagree
            names = [name for name, _ in lines]
            for name in _UNIQUE_HEADERS:
                if names.count(name) > 1:
                    raise CallError(ErrorCode.PROTOCOL_ERROR, f"duplicate header {name.decode()}")
        if _CHUNKED in headers:
            if b"content-length" in headers:  # a proxy may go by the other one: request smuggling
                raise _malformed("content-length and transfer-encoding exclude each other")
            if headers[_CHUNKED].lower() != b"chunked":  # httptools ignores what comes before it
                raise _malformed("the only transfer-encoding is chunked")
        given = headers.get(b"host", b"")
        host = self._accepted.get(given) or self._accept_host(given)
        if b"origin" in headers or b"sec-fetch-site" in headers or b"referer" in headers:
            self._check_page(headers, host)

    def _accept_host(self, given: bytes) -> str:
        host = given.decode("latin-1").lower()
        if not self._hosts.include(host):
            wrong = f"this server does not accept the host name {host[:_MAX_HOST]!r}; allow it with the option "
            wrong += "--allow-host of `opwire serve`, `hosts` in opwire.toml, hosts= of serve_http, asgi and run_http"
            raise HTTPStatusError(HTTPStatus.MISDIRECTED_REQUEST, CallError(ErrorCode.ACCESS_DENIED, wrong))
        if len(given) <= _MAX_HOST:
            self._accepted[given] = host
        return host

    async def _identify(self, request: AdmittedRequest) -> None:
        """Find the identity of a request by its token or session, and count it in its share of the requests."""
        headers = request.headers
        token = None if self._authenticator is None else self._token(headers)
        found = None if token is not None or self._session is None else await self._session(headers)
        grant, token = (None, token) if found is None else found
        if self._authenticator is not None:
            is_known = token is not None or grant is not None
            if grant is None:
                grant = await self._authenticate(self._authenticator, token)
            share = grant.identity.id if grant is not None and is_known else None
            if self._shares[share] >= self._max_share:
                raise _overloaded(self._max_share)
            self._shares[share] += 1
            request.is_counted, request.share = True, share
        if grant is None:
            request.identity = self._anonymous
        else:
            request.identity, request.token, request.expires = grant.identity, token, grant.expires
            request.guard = self

    async def regrant(self, request: AdmittedRequest) -> Grant | None:
        """Return what the token or the session of an admitted request grants now; None: the session has ended.

        Raises:
            CallError: UNAUTHENTICATED, it is not valid any more; or it cannot be checked at the moment.
        """
        token = None if self._authenticator is None else self._token(request.headers)
        async with self._rechecks:
            found = None if token is not None or self._session is None else await self._session(request.headers)
            if found is not None or self._authenticator is None:
                return found and found.grant
            return await self._authenticator.authenticate(token)

    def _check_page(self, headers: Mapping[bytes, bytes], host: str) -> None:
        """Reject requests that a page of another host makes a browser send.

        Browsers send `Origin` with requests by scripts and with those that change anything. For links and images they
        send the relation of the page to this server (`Sec-Fetch-Site`; "none" is the address bar), or, if the browser
        is old or the host not trustworthy, its address (`Referer`). Other programs omit all three.
        """
        if "*" in self._origins:
            return
        origin, site, page = headers.get(b"origin"), headers.get(b"sec-fetch-site"), headers.get(b"referer")
        # Pages of the same host may call, unless any host name is accepted: then it proves nothing.
        own = (f"http://{host}", f"https://{host}")
        allowed = self._origins if self._hosts.any else self._origins.union(own)
        if origin is not None:
            is_allowed = origin.decode("latin-1").lower() in allowed
        elif site is not None:
            is_allowed = site == b"none" or (site == b"same-origin" and not allowed.isdisjoint(own))
        else:
            scheme, _, rest = (page or b"").decode("latin-1").lower().partition("://")
            is_allowed = f"{scheme}://{rest.partition('/')[0]}" in allowed
        if not is_allowed:
            wrong = "pages of other origins may not call this server; its option origins= names those that may"
            raise CallError(ErrorCode.ACCESS_DENIED, wrong)

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
        key = hash(token)
        is_new = token is not None and key not in self._known
        if is_new and self._checks >= self._max_checks:
            raise _overloaded(self._max_checks)
        self._checks += is_new
        try:
            grant = await authenticator.authenticate(token)
        except CallError as error:
            self._known.pop(key, None)
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
            self._known[key] = None
        return grant

    def _unauthenticated(self, message: str) -> HTTPStatusError:
        challenge = f'{self._challenge}{"," if " " in self._challenge else ""} error="invalid_token"'
        error = CallError(ErrorCode.UNAUTHENTICATED, message)
        return HTTPStatusError(HTTPStatus.UNAUTHORIZED, error, (b"www-authenticate", challenge.encode("latin-1")))

    async def _read_body(self, request: AdmittedRequest, receive: Receive) -> bytes:
        headers = request.headers
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise CallError(ErrorCode.PROTOCOL_ERROR, "content-length is not a number")
        if len(length) > 18 or int(length) > self._max_body:
            if b"expect" not in headers:  # otherwise the client asks first, and sends nothing
                await _discard(receive)
            raise self._too_large()
        collecting = self._collect(request, receive, int(length) or self._max_body)
        try:
            waiting = collecting.send(None)
        except StopIteration as arrived:  # nearly always; a timeout would add 4 µs
            body: bytes = arrived.value
        else:
            rest, deadline = partial(resume, collecting, waiting), time.monotonic() + self._body_timeout
            try:
                body = await self._deadlines.limit(rest, deadline, "the body did not arrive")
            except CallError as timeout:
                raise HTTPStatusError(HTTPStatus.REQUEST_TIMEOUT, timeout, _CLOSE) from None
        _check_body(body, headers)
        return body

    async def _collect(self, request: AdmittedRequest, receive: Receive, limit: int) -> bytes:
        buffer = bytearray()  # not a list: a chunk may have one byte
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectedError
            chunk: bytes = message.get("body", b"")
            size = len(buffer) + len(chunk)
            if size > self._max_body:
                await _discard(receive)
                raise self._too_large()
            # By what has arrived, not by the stated length: that costs a sender nothing.
            if size > max(_LARGE_BODY, request.reserved) and not self._reserve(request, min(2 * size, limit)):
                del buffer, chunk, message
                await _discard(receive)
                full = CallError(ErrorCode.UNAVAILABLE, "other requests have large bodies: try again", retry_after=1)
                raise HTTPStatusError(HTTPStatus.SERVICE_UNAVAILABLE, full, _CLOSE)
            if not message.get("more_body", False):
                return bytes(buffer + chunk) if buffer else chunk
            buffer += chunk

    def _reserve(self, request: AdmittedRequest, size: int) -> bool:
        """Count the bytes of a large body until its request ends; if there is no room, return False, and count none.

        So one that is rejected makes room for the others, and of many at once as many as fit get through.
        """
        self._bodies.give_back(request.share, request.reserved)
        has_room = self._bodies.take(request.share, size)
        request.reserved = size if has_room else 0
        return has_room

    def _too_large(self) -> HTTPStatusError:
        error = CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the body has more than {self._max_body:,} bytes")
        return HTTPStatusError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error, _CLOSE)


class _PublishedResource:
    """The metadata of a protected resource (RFC 9728), and where responses say that it is."""

    def __init__(self, metadata: ResourceMetadata) -> None:
        parts = urlsplit(metadata.resource)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = WELL_KNOWN_RESOURCE + parts.path.rstrip("/")
        self._body = msgspec.json.encode(metadata.document)
        scopes = " ".join(metadata.required_scopes)
        self._scope = f', scope="{scopes}"' if SCOPES.fullmatch(scopes) else ""

    def is_at(self, scope: Scope) -> bool:
        """Return whether a request is for the metadata: of any host, because it is public and names its own."""
        path: str = scope["path"]
        return path == self._path or path == scope.get("root_path", "") + WELL_KNOWN_RESOURCE

    async def respond(self, scope: Scope, send: Send) -> None:
        """Send the metadata; pages of any origin may read it."""
        allow: tuple[Header, ...] = ((b"access-control-allow-origin", b"*"), (b"allow", b"GET, HEAD, OPTIONS"))
        status, body = 200, self._body
        if scope["method"] == "OPTIONS":
            status, body = 204, b""
            allow += ((b"access-control-allow-headers", b"*"),)
        elif scope["method"] not in ("GET", "HEAD"):
            status, body = 405, b""
        lines = [(b"content-type", b"application/json"), (b"cache-control", b"max-age=3600"), *allow]
        if status != 204:
            lines.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def challenging(self, scope: Scope, send: Send) -> Send:
        """Return `send` with the URL of the metadata in each challenge.

        An app that is mounted below a path does not get requests for the well-known path of the origin.
        """
        root = quote(scope.get("root_path", "").rstrip("/"), safe="/~")
        url = self._origin + (root + WELL_KNOWN_RESOURCE if root else self._path)

        async def challenged(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] in (401, 403):
                message["headers"] = [self._named(line, url) for line in message["headers"]]
            await send(message)

        return challenged

    def _named(self, line: Header, url: str) -> Header:
        name, value = line
        if name != b"www-authenticate" or not value.startswith(b"Bearer"):
            return line
        given = value.decode("latin-1").removeprefix("Bearer").strip()
        scope = "" if "scope=" in given else self._scope
        return name, f'Bearer resource_metadata="{url}"{scope}{f", {given}" if given else ""}'.encode("latin-1")


def closing(send: Send) -> Send:
    """Return `send` with a response that ends the connection, for a request that asks for another protocol.

    httptools reads no body of such a request, and would take it for the next one: request smuggling behind a proxy that
    passes `Upgrade` on, as those do that are configured for WebSockets.
    """

    async def closing(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [line for line in message["headers"] if line[0] != _CLOSE[0]] + [_CLOSE]
        await send(message)

    return closing


class _DisconnectedError(Exception):
    """The client disconnected before its body was complete."""


def is_plain(scope: Scope) -> bool:
    """Return whether the path of a request came without percent-encoding, as that of the mounted app needs it.

    %61 is an `a` to us, and may not be to a proxy: its rules for a path could be evaded.
    """
    raw: bytes = scope.get("raw_path") or b""
    return b"%" not in raw or b"%" not in raw.removeprefix(quote(scope.get("root_path", "")).encode())


def _overloaded(limit: int) -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, f"{limit} requests are open already: try again", retry_after=1)


def _malformed(message: str) -> HTTPStatusError:
    return HTTPStatusError(HTTPStatus.BAD_REQUEST, CallError(ErrorCode.PROTOCOL_ERROR, message), _CLOSE)


def _check_body(body: bytes, headers: Mapping[bytes, bytes]) -> None:
    if not body and UPGRADE in headers and (_CHUNKED in headers or int(headers.get(b"content-length", b"0"))):
        raise _malformed("this server speaks no other protocol: send the body without the header upgrade")
    if body and (coding := headers.get(b"content-encoding", b"identity").lower()) != b"identity":
        wrong = f"send the body uncompressed, not as {coding.decode('latin-1')[:40]!r}"
        error = CallError(ErrorCode.PROTOCOL_ERROR, wrong)
        raise HTTPStatusError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, error, (b"accept-encoding", b"identity"))
    if len(body) > LARGE_JSON:
        try:
            check_density(body)
        except ValueError as error:
            wrong = f"the body has {error}, too many for its size: send it in parts, or values as text"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, wrong) from None


async def _discard(receive: Receive) -> None:
    """Read on for a while: a client that is still sending when its connection closes never sees the response."""
    left = _DISCARD_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def has_no_token(scope: Mapping[str, Any]) -> bool:
    """Return whether a request was admitted without a token by a guard that authenticates."""
    request: AdmittedRequest | None = scope.get(ADMITTED)
    return request is not None and request.is_counted and request.share is None
