"""The guard of every surface that listens on a network: which requests come in, and with how much.

Rules: what is refused here never reaches the surface. A token is read here and nowhere else, and goes neither into a
message nor into the log. A request comes in with its whole body, so that no slow sender holds anything but its own
place.

Errors as RFC 9457 problem details, for every surface that speaks HTTP.

A `CallError` gets its status from the one table. What HTTP itself forbids (a method, a media type, a host) has no code
of its own there: a `Refusal` names the status, and the code that comes closest.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from itertools import chain
from math import ceil
from typing import Any, TypedDict
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.auth.tokens import EXPIRED, Authenticator, Grant
from opwire.deadlines import Deadlines
from opwire.errors import ERROR_TABLE, CallError, ErrorCode, check_above_zero, check_counts
from opwire.operation import Identity
from opwire.typed.plain import write_json

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

PROBLEM_JSON = "application/problem+json"
MAX_DETAILS = 64 * 1024
"""Bytes of `details` in JSON: what is longer is left out, because it is for reading and not for transport."""

_encoder = msgspec.json.Encoder()


class Problem(Struct, omit_defaults=True, rename="camel"):
    """What a client is told of an error. `code` is ours; a client decides by it, and by `retryable`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    instance: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET
    details: msgspec.Raw | UnsetType = UNSET


class Refusal(Exception):  # noqa: N818 - it never leaves a surface: it becomes a response
    """A request that is refused by HTTP's own rules, or with headers of its own."""

    def __init__(self, status: HTTPStatus, error: CallError, *headers: Header) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


def problem_of(error: CallError, *, status: int | None = None, request_id: str | None = None) -> Problem:
    """The problem that a client is shown; with a request id, it names the occurrence."""
    row = ERROR_TABLE[error.code]
    own = status is not None and status != row.http_status  # HTTP's own word for it says more than our code
    return Problem(
        type="about:blank" if own else f"urn:opwire:{error.code.value}",
        title=HTTPStatus(status).phrase if own else row.message,
        status=row.http_status if status is None else status,
        detail=error.message,
        code=error.code.value,
        retryable=error.retryable,
        instance=UNSET if request_id is None else f"urn:opwire:request:{quote(request_id)}",
        retry_after_ms=UNSET if error.retry_after is None else max(0, round(error.retry_after * 1000)),
        details=_details(error.details),
    )


def encode_problem(problem: Problem) -> bytes:
    """The problem as JSON."""
    return write_json(_encoder, problem)


async def send_problem(
    send: Send,
    error: CallError | Refusal,
    *,
    request_id: str | None = None,
    headers: Iterable[Header] = (),
    with_body: bool = True,
) -> None:
    """Answer a request with a problem. Without a body (HEAD) its length is still told."""
    given = error if isinstance(error, Refusal) else None
    cause = error.error if isinstance(error, Refusal) else error
    problem = problem_of(cause, status=given and given.status, request_id=request_id)
    body = encode_problem(problem)
    lines: list[Header] = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *(given.headers if given else ()),
        *headers,
    ]
    if cause.retry_after is not None:
        lines.append((b"retry-after", b"%d" % max(0, ceil(cause.retry_after))))
    if cause.code is ErrorCode.UNAUTHENTICATED and not any(name == b"www-authenticate" for name, _ in lines):
        lines.append((b"www-authenticate", b"Bearer"))  # RFC 9110 asks for it beside every 401
    await send({"type": "http.response.start", "status": problem.status, "headers": lines})
    await send({"type": "http.response.body", "body": body if with_body else b""})


def _details(details: Any) -> msgspec.Raw | UnsetType:
    if details is None:
        return UNSET
    try:
        encoded = write_json(_encoder, details)
    except (TypeError, ValueError, RecursionError):
        return UNSET
    return msgspec.Raw(encoded) if len(encoded) <= MAX_DETAILS else UNSET


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_IDENTITY = "opwire.identity"
_EXPIRES = "opwire.expires"
_SHARE = "opwire.share"
_SINGLE = (
    *(b"host", b"origin", b"referer", b"sec-fetch-site"),
    *(b"authorization", b"x-api-key", b"content-length", b"content-type"),
)
_SMALL = 64 * 1024
_BYTES_EACH = (
    16  # of the greatest body for each object and list: 1.4 million empty lists in 4 MB stall the loop for 2 s
)
_MAX_PROVEN = 10_000  # tokens that are remembered as good
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class DoorOptions(TypedDict, total=False):
    """What a surface passes on to its `Door`."""

    authenticate: Authenticator | None
    identity: Identity | None
    hosts: Iterable[str] | None
    origins: Iterable[str]
    max_body: int
    max_headers: int
    max_requests: int
    body_timeout: float


class Door:
    """ASGI middleware that lets requests in, or answers them with a problem.

    `authenticate` decides what a token is worth, shown as `Authorization: Bearer …` or `X-API-Key: …`. A bad one is
    refused. Requests without a token are made as `identity`, or anonymous: then only public operations can be called.

    `hosts` are the names that this server answers to: "tools.example", "*.tools.example", "tools.example:8000", or
    "*" for any. By default the loopback names, whatever the port, so that no page in a browser can reach a local
    server by a name of its own (DNS rebinding). `origins` are the pages of other hosts that may call, as
    "https://shop.example", or "*". No other page gets in, whether it fetches, submits a form, links to this server or
    shows it as an image: a browser says so in `Origin`, `Sec-Fetch-Site` or `Referer`.

    `max_body` and `max_headers` are in bytes; a body has at most one object or list for each 16 bytes of `max_body`
    (262,144 unless it is changed), because these take longest to read. `max_requests` are at the same time, open
    streams included, and `body_timeout` is the seconds in which a body has to arrive. Where tokens are taken, all
    requests without one share half of the room, no identity gets more than half, and tokens that were not seen before
    are checked in a quarter of it: none of them can keep the others out. `challenge` is what a 401 asks for.

    Raises:
        CallError: VALIDATION_ERROR, if one of the numbers is not above zero, or `hosts` or `origins` is one string.
    """

    def __init__(
        self,
        app: App,
        *,
        authenticate: Authenticator | None = None,
        identity: Identity | None = None,
        hosts: Iterable[str] | None = None,
        origins: Iterable[str] = (),
        max_body: int = 4 * 1024 * 1024,
        max_headers: int = 32 * 1024,
        max_requests: int = 1_000,
        body_timeout: float = 30,
        challenge: str = "Bearer",
    ) -> None:
        check_counts(max_body=max_body, max_headers=max_headers, max_requests=max_requests)
        check_above_zero(body_timeout=body_timeout)
        self._app = app
        self._authenticator = authenticate
        self._identity = identity
        self._hosts = Hosts(LOOPBACK if hosts is None else hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in _listed(origins, "origins"))
        self._max_body = max_body
        self._max_headers = max_headers
        self._max_requests = max_requests
        self._max_share = ceil(max_requests / 2)
        self._max_checks = ceil(max_requests / 4)
        self._body_timeout = body_timeout
        self._challenge = challenge
        self._deadlines = Deadlines()
        self._inside = 0
        self._shares: dict[str | None, int] = {}  # requests inside by the id of their identity; None: without a token
        self._checks = 0  # tokens that are being checked, and were not seen before
        self._proven: dict[int, None] = {}  # hashes of tokens that were good, the last one last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it. Other events, the start of the server for example, pass."""
        if scope["type"] == "http":
            await self._open(scope, receive, send)
        elif scope["type"] == "websocket":  # no surface speaks it, and a browser sends one to any host it likes
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._inside += 1
        try:
            try:
                receive = await self._admit(scope, receive)
            except _Gone:
                return
            except (Refusal, CallError) as error:
                await send_problem(send, error, with_body=scope["method"] != "HEAD")
                return
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1
            self._give_back(scope)

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        if self._inside > self._max_requests:
            raise _busy(self._max_requests)
        headers = self._headers(scope)
        self._check_page(headers, self._check_host(headers))
        grant = None
        if self._authenticator is not None:
            token = self._token(headers)
            grant = await self._grant(self._authenticator, token)
            self._take(scope, None if token is None or grant is None else grant.identity.id)
        scope[_IDENTITY] = self._identity if grant is None else grant.identity
        scope[_EXPIRES] = None if grant is None else grant.expires
        if scope["method"] in _WITHOUT_BODY and b"content-length" not in headers and _CHUNKED not in headers:
            return receive
        body = await self._body(headers, receive)
        if len(body) > _SMALL and body.count(b"[") + body.count(b"{") > self._max_body // _BYTES_EACH:
            wrong = f"the body has more than {self._max_body // _BYTES_EACH:,} objects and lists"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, wrong)
        return _replay(body, receive)

    def _take(self, scope: Scope, share: str | None) -> None:
        """Count a request among those of its identity, or of all that have no token."""
        taken = self._shares.get(share, 0)
        if taken >= self._max_share:
            raise _busy(self._max_share)
        self._shares[share] = taken + 1
        scope[_SHARE] = (share,)

    def _give_back(self, scope: Scope) -> None:
        if (taken := scope.pop(_SHARE, None)) is not None:
            (share,) = taken
            self._shares[share] -= 1
            if not self._shares[share]:
                del self._shares[share]

    def _headers(self, scope: Scope) -> Mapping[bytes, bytes]:
        """The headers by name. Of those that decide anything there must not be two, or two readers would differ."""
        lines: list[tuple[bytes, bytes]] = list(scope["headers"])
        if sum(map(len, chain.from_iterable(lines))) > self._max_headers:
            error = CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the headers have more than {self._max_headers:,} bytes")
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)
        headers = dict(lines)
        if len(headers) != len(lines):
            names = [name for name, _ in lines]
            for name in _SINGLE:
                if names.count(name) > 1:
                    raise CallError(ErrorCode.PROTOCOL_ERROR, f"the header {name.decode()} is there more than once")
        if (
            b"content-length" in headers and _CHUNKED in headers
        ):  # a proxy that goes by the other one sees other requests
            error = CallError(ErrorCode.PROTOCOL_ERROR, "content-length and transfer-encoding exclude each other")
            raise Refusal(HTTPStatus.BAD_REQUEST, error, _CLOSE)
        return headers

    def _check_host(self, headers: Mapping[bytes, bytes]) -> str:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._hosts.include(host):
            wrong = "this server does not answer to that host name; its owner says to which it does (hosts=)"
            raise Refusal(HTTPStatus.MISDIRECTED_REQUEST, CallError(ErrorCode.ACCESS_DENIED, wrong))
        return host

    def _check_page(self, headers: Mapping[bytes, bytes], host: str) -> None:
        """Refuse what a page of another host makes a browser send.

        A browser names the origin of a request that a script makes or that changes anything (`Origin`). It does not
        where a page merely links to a URL or shows it as an image: then it says how far away the page is
        (`Sec-Fetch-Site`; "none" is the address bar), or, if it is old or the host is not a trustworthy one, which
        page it was (`Referer`). Other programs send none of them.
        """
        origin, site, page = headers.get(b"origin"), headers.get(b"sec-fetch-site"), headers.get(b"referer")
        if (origin is None and site is None and page is None) or "*" in self._origins:
            return
        # A page of this very host may call, unless the host could be anybody's name for this server.
        own = (f"http://{host}", f"https://{host}")
        known = self._origins if self._hosts.any else self._origins.union(own)
        if origin is not None:
            is_known = origin.decode("latin-1").lower() in known
        elif site is not None:
            is_known = site == b"none" or (site == b"same-origin" and not known.isdisjoint(own))
        else:
            is_known = _origin_of(page or b"") in known
        if not is_known:
            wrong = "pages of other origins may not call this server; origins= names those that may"
            raise CallError(ErrorCode.ACCESS_DENIED, wrong)

    async def _grant(self, authenticator: Authenticator, token: str | None) -> Grant | None:
        """Return what a token gives. One that was not good lately is checked only where there is room for such.

        Else made-up tokens, which take their time where a database is asked, would take the place of good ones.
        """
        key = hash(token)
        is_new = token is not None and key not in self._proven
        if is_new and self._checks >= self._max_checks:
            raise _busy(self._max_checks)
        self._checks += is_new
        try:
            grant = await authenticator.authenticate(token)
        except CallError as error:
            self._proven.pop(key, None)
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
            self._proven[key] = None
            if len(self._proven) > _MAX_PROVEN:
                del self._proven[next(iter(self._proven))]
        return grant

    def _token(self, headers: Mapping[bytes, bytes]) -> str | None:
        authorization, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        if authorization is None:
            return None if key is None else key.decode("latin-1")
        scheme, _, token = authorization.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or key is not None:
            raise self._unauthenticated("one token is taken, as Authorization: Bearer, or as X-API-Key")
        return token.strip()

    def _unauthenticated(self, message: str) -> Refusal:
        challenge = f'{self._challenge}{"," if " " in self._challenge else ""} error="invalid_token"'
        error = CallError(ErrorCode.UNAUTHENTICATED, message)
        return Refusal(HTTPStatus.UNAUTHORIZED, error, (b"www-authenticate", challenge.encode("latin-1")))

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise CallError(ErrorCode.PROTOCOL_ERROR, "the header content-length is a number")
        if len(length) > 18 or int(length) > self._max_body:
            if b"expect" not in headers:  # else it asks first, and sends nothing
                await _discard(receive)
            raise self._too_large()
        when = time.monotonic() + self._body_timeout
        try:
            return await self._deadlines.limit(lambda: self._collected(receive), when, "the body did not arrive")
        except CallError as slow:
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, slow, _CLOSE) from None

    async def _collected(self, receive: Receive) -> bytes:
        body = bytearray()  # and not a list: a part may have one byte
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part: bytes = message.get("body", b"")
            if len(body) + len(part) > self._max_body:
                await _discard(receive)
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body + part) if body else part
            body += part

    def _too_large(self) -> Refusal:
        error = CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the body has more than {self._max_body:,} bytes")
        return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error, _CLOSE)


class Hosts:
    """Names that a server answers to, in the forms that `Door` takes."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = [name.lower() for name in _listed(names, "hosts")]
        self.any = "*" in listed
        self._names = frozenset(name for name in listed if not name.startswith("*"))
        self._endings = tuple(name[1:] for name in listed if name.startswith("*."))

    def include(self, host: str) -> bool:
        """Whether a Host header, in lower case, is one of them. A name without a port means any port."""
        if self.any or host in self._names:
            return True
        name = without_port(host)
        return name in self._names or name.endswith(self._endings) or host.endswith(self._endings)


def without_port(host: str) -> str:
    """The name of a Host header: "localhost" of "localhost:8000", "[::1]" of "[::1]:8000"."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def identity_of(scope: Mapping[str, Any]) -> Identity | None:
    """Who sent a request that came through a door."""
    return scope.get(_IDENTITY)


def expires_of(scope: Mapping[str, Any]) -> float | None:
    """When the sender's token expires (Unix epoch, in seconds): a stream has to end then. None: it does not."""
    return scope.get(_EXPIRES)


def has_no_token(scope: Mapping[str, Any]) -> bool:
    """Whether a request is inside without a token, where tokens are taken."""
    return scope.get(_SHARE) == (None,)


class _Gone(Exception):  # noqa: N818 - not an error: the client has left
    """The client left before its body was there."""


_CLOSE = (b"connection", b"close")  # whatever is still to come on that connection is not read
_CHUNKED = b"transfer-encoding"
_LINGER, _LINGER_TIME = 16 * 1024 * 1024, 2.0


async def _discard(receive: Receive) -> None:
    """Read on for a while: a client whose connection is closed while it sends is reset, and never sees the answer."""
    left = _LINGER
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_TIME):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _replay(body: bytes, receive: Receive) -> Receive:
    """The channel of a request whose body was read already."""
    waiting: list[bytes] = [body]

    async def again() -> MutableMapping[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def _busy(room: int) -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, f"{room} requests are open already: try again", retry_after=1)


def _origin_of(url: bytes) -> str:
    """Return the origin of a page's URL, as a browser writes it."""
    scheme, _, rest = url.decode("latin-1").lower().partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _listed(names: Iterable[str], option: str) -> list[str]:
    if isinstance(names, str):  # of which each letter would be a name
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{option} is a list of names: write [{names!r}]")
    return list(names)
