"""The HTTP client: one pooled aiohttp session, bounded in every direction, its failures told as `CallError`.

Nothing is retried here, but for what aiohttp does itself: an idempotent request that met a connection which the
server had closed is sent once more, on a fresh one. Messages name the host and never a query, a header or a body.

Where a redirect leads, and what goes along. No I/O.

The method and the body change as fetch changes them: 303 turns everything but HEAD into a GET without a body, 301 and
302 do so with POST, 307 and 308 keep both, to whatever place the API names. Credentials stay in their origin:
what authenticates, every cookie, and the headers that the user gave for this API are left behind at its border, and
do not come back if a later redirect returns. From https to http no redirect is followed.
"""

import asyncio
import io
import re
from collections.abc import Mapping
from math import inf
from ssl import SSLContext
from typing import Any, NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp import ClientResponse, ClientSession, hdrs
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from opwire.adapters.openapi.request import HTTPRequest
from opwire.deadlines import Deadlines
from opwire.errors import CallError, ErrorCode

REDIRECTS = frozenset({301, 302, 303, 307, 308})

_ENCODED = re.compile(r"[!-~]*")
_ABOUT_THE_BODY = frozenset({"content-type", "content-length", "content-encoding", "content-language"})
_ALWAYS_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})


def redirected(request: HTTPRequest, status: int, location: str) -> HTTPRequest:
    """The request that follows a redirect.

    Raises:
        CallError: EXECUTION_ERROR, if it leads to no place that may be asked.
    """
    here = URL(request.url, encoded=True)
    there = _target(here, location)
    if there.scheme not in ("http", "https") or not there.raw_host:
        raise _refused(here, "leads to no HTTP address")
    if here.scheme == "https" and there.scheme == "http":
        raise _refused(here, f"leads from https to http, at {there.raw_host}")
    headers, dropped = request.headers, frozenset[str]()
    if _origin(here) != _origin(there):
        dropped = _ALWAYS_SECRET | request.secret_headers
    method, body = request.method, request.body
    if _becomes_get(status, method):
        method, body, dropped = "GET", None, dropped | _ABOUT_THE_BODY
    if dropped:
        headers = [pair for pair in headers if pair[0].lower() not in dropped]
    # What was secret in the query is not sent again: the address is the API's own now.
    return replace(request, method=method, url=str(there), headers=headers, body=body, secret_query=False)


def _target(here: URL, location: str) -> URL:
    location = location.strip()
    try:
        # One that is encoded is taken as it is, since it may be signed; yarl quotes what others left unquoted.
        there = here.join(URL(location, encoded=bool(_ENCODED.fullmatch(location)))).with_fragment(None)
        return there if there.raw_authority == here.raw_authority else there.with_user(None)
    except ValueError:
        raise _refused(here, "leads to what is no address") from None


def _origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme, (url.raw_host or "").lower(), url.port  # that of the scheme, where none is given


def _becomes_get(status: int, method: str) -> bool:
    return (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST")


def _refused(here: URL, why: str) -> CallError:
    return CallError(ErrorCode.EXECUTION_ERROR, f"a redirect of {here.raw_host} is not followed: it {why}")


_LARGE_BODY = 1024 * 1024  # above this, aiohttp wants a body that it can send in pieces
_MAX_HEADER = 64 * 1024  # of one header that the server sends; aiohttp's own 8 KiB are too few for some policies
_MAX_HEADERS = 256
_MAX_HEAD = 256 * 1024  # of all headers together, which go into the meta of every result
_PIECE = 16 * 1024  # bytes of a stream that are parsed at a time: 1,800 of the smallest events, 40 ms

_LEAST = {"max_response": 1, "max_item": 1, "max_connections": 0, "max_per_host": 0, "max_redirects": 0}

# What aiohttp raises; RuntimeError is for a connection or a session that was closed meanwhile.
_FOREIGN = (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError, ValueError)


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How requests are sent. Its repr shows neither headers nor proxy: credentials may stand there.

    Raises:
        CallError: VALIDATION_ERROR, a number is one that the option cannot have.
    """

    timeout: float | None = 30.0  # seconds for a whole call, where the call has no deadline of its own
    connect_timeout: float | None = 10.0  # seconds to make a connection
    max_response: int = 64 * 1024 * 1024  # bytes of an answer, after decompression
    max_item: int = 16 * 1024 * 1024  # bytes of one item of a stream
    max_connections: int = 100  # 0 is no limit
    max_per_host: int = 0  # 0 is no limit but that of all
    headers: Mapping[str, str] = {}  # sent with every request that does not set them itself
    proxy: str | None = None  # "http://user:password@proxy.example:8080"
    ssl: SSLContext | bool = True  # False checks no certificates
    trust_env: bool = False  # use the proxies that the environment names: HTTP_PROXY and the like
    follow_redirects: bool = True
    max_redirects: int = 10

    def __post_init__(self) -> None:
        for option in ("timeout", "connect_timeout"):
            seconds: Any = getattr(self, option)
            if seconds is not None and not (_is_number(seconds, int | float) and 0 < seconds < inf):
                raise _unusable(option, "a finite number of seconds above zero, or None", seconds)
        for option, least in _LEAST.items():
            count: Any = getattr(self, option)
            if not (_is_number(count, int) and count >= least):
                raise _unusable(option, f"a whole number of at least {least}", count)

    def __repr__(self) -> str:
        return f"<ClientOptions timeout={self.timeout} max_response={self.max_response}>"


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _unusable(option: str, expected: str, given: Any) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{option} is {expected}, not {given!r:.100}")


class HTTPClient:
    """Sends requests. Its session is made by the first one, in the event loop that runs then.

    After another `asyncio.run` it starts anew; connections of the loop that is gone are not used again.
    """

    def __init__(self, options: ClientOptions | None = None) -> None:
        self.options = options or ClientOptions()
        self.deadlines = Deadlines()  # of those who call: they keep the time, across redirects and tokens
        self._session: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: set[ClientResponse] = set()  # a session that closes would leave who reads them waiting
        self._is_closed = False

    async def open(self, request: HTTPRequest, *, bare: bool = False) -> ClientResponse:
        """The answer to a request, redirects followed, its body not yet read. Whoever asks has to close it.

        A bare request is for somebody else than the API: it has no headers but its own, and follows no redirect.

        Raises:
            CallError: UNAVAILABLE, PROTOCOL_ERROR or VALIDATION_ERROR, if there is no answer.
        """
        if self.options.headers and not bare:
            request = self._with_defaults(request)
        follow = self.options.follow_redirects and not bare
        for _ in range(self.options.max_redirects + 1):
            response = await self._send(request)
            if response.status not in REDIRECTS or not follow:
                return response
            location = response.headers.get(hdrs.LOCATION)
            if location is None:
                return response
            response.release()
            request = redirected(request, response.status, location)
        message = f"{host_of(request.url)} is behind more than {self.options.max_redirects} redirects"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)

    async def read(self, response: ClientResponse) -> bytes:
        """The whole body of an answer, which is closed then.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, UNAVAILABLE or PROTOCOL_ERROR.
        """
        pieces: list[bytes] = []
        left = self.options.max_response
        unseen = 0  # bytes since the event loop last ran: decompressing what is there already does not wait
        try:
            while True:
                piece = await self.read_some(response)
                left -= len(piece)
                if left < 0:
                    raise self._too_large(response)
                pieces.append(piece)
                unseen += len(piece)
                if unseen > _LARGE_BODY:
                    unseen = 0
                    await asyncio.sleep(0)
                if response.content.at_eof():
                    return b"".join(pieces) if len(pieces) > 1 else piece
        finally:
            response.close()

    async def read_start(self, response: ClientResponse, limit: int) -> tuple[bytes, bool]:
        """The first bytes of a body, and whether they are all. The answer is closed then.

        For the bodies of errors: one that breaks off is no error of its own.
        """
        body = b""
        try:
            while len(body) <= limit and not response.content.at_eof():
                body += await self.read_some(response)
        except CallError:
            return body[:limit], False
        finally:
            response.close()
        return body[:limit], len(body) <= limit

    async def read_some(self, response: ClientResponse) -> bytes:
        """What there is of a body, waiting for it if need be; empty at the end.

        Raises:
            CallError: UNAVAILABLE or PROTOCOL_ERROR.
        """
        self._reading.add(response)
        try:
            # Not `read`: that one decompresses without a limit, this one a piece at a time.
            return await response.content.readany()
        except _FOREIGN as error:
            raise self._failed(error, str(response.url)) from None
        finally:
            self._reading.discard(response)

    async def close(self) -> None:
        """Close all connections. Calls that are under way fail; later ones too."""
        self._is_closed = True
        for response in tuple(self._reading):
            response.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(self, request: HTTPRequest) -> ClientResponse:
        body = request.body
        session = self._session if self._loop is asyncio.get_running_loop() else None
        try:
            response = await (session or await self._start()).request(
                request.method,
                URL(request.url, encoded=True),
                headers=request.headers,
                data=io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body,
                allow_redirects=False,
                proxy=self.options.proxy or (_env_proxy(request.url) if self.options.trust_env else None),
            )
            return self._bounded(response)
        except asyncio.CancelledError:
            # A closing pool cancels those who wait for a connection, as if they had been cancelled themselves.
            task = asyncio.current_task()
            if self._is_closed and not (task and task.cancelling()):
                raise _closed() from None
            raise
        except _FOREIGN as error:
            raise self._failed(error, request.url) from None

    def _bounded(self, response: ClientResponse) -> ClientResponse:
        if sum(len(name) + len(value) for name, value in response.raw_headers) <= _MAX_HEAD:
            return response
        response.close()
        message = f"{host_of(str(response.url))} sends more than {_MAX_HEAD:,} bytes of headers"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)

    async def _start(self) -> ClientSession:
        if self._is_closed:
            raise _closed()
        last, session = self._session, _session(self.options)
        self._session, self._loop = session, asyncio.get_running_loop()
        if last is not None:
            await last.close()
        return session

    def _with_defaults(self, request: HTTPRequest) -> HTTPRequest:
        """The request with the headers that the user gives to all. They are for this API, and stay in its origin."""
        own = {name.lower() for name, _ in request.headers}
        added = [(name, value) for name, value in self.options.headers.items() if name.lower() not in own]
        secret = request.secret_headers.union(name.lower() for name, _ in added)
        return replace(request, headers=[*added, *request.headers], secret_headers=secret)

    def _failed(self, error: Exception, url: str) -> CallError:
        return _closed() if self._is_closed else _failed(error, url)

    def _too_large(self, response: ClientResponse) -> CallError:
        limit = self.options.max_response
        host = host_of(str(response.url))
        message = f"{host} answers with more than {limit:,} bytes; the option `max_response` sets the limit"
        return CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)


class Pieces:
    """The body of a stream in small pieces, with a turn of the event loop between any two.

    A piece that is there already comes without waiting, and 50 kB of gzip can be 50 MB of line breaks: without the
    turns they stopped the loop for 11 s.
    """

    def __init__(self, client: HTTPClient, response: ClientResponse) -> None:
        self._client = client
        self._response = response
        self._piece = b""
        self._start = 0
        self._unseen = 0  # bytes since the event loop last ran

    async def read(self) -> bytes:
        """The next piece; empty at the end.

        Raises:
            CallError: as `HTTPClient.read_some`.
        """
        if self._unseen >= _PIECE:
            self._unseen = 0
            await asyncio.sleep(0)
        if self._start >= len(self._piece):
            self._piece, self._start = await self._client.read_some(self._response), 0
        start, self._start = self._start, self._start + _PIECE
        piece = self._piece[start : self._start] if len(self._piece) > _PIECE else self._piece
        self._unseen += len(piece)
        return piece


def _session(options: ClientOptions) -> ClientSession:
    return ClientSession(
        connector=aiohttp.TCPConnector(
            limit=options.max_connections, limit_per_host=options.max_per_host, ssl=options.ssl
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={hdrs.USER_AGENT: "opwire"},
        skip_auto_headers=(hdrs.CONTENT_TYPE,),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=options.connect_timeout),
        max_line_size=_MAX_HEADER,
        max_field_size=_MAX_HEADER,
        max_headers=_MAX_HEADERS,
    )


def _env_proxy(url: str) -> str | None:
    """The proxy that the environment names for an address.

    aiohttp would do this too, but would send along what it finds in ~/.netrc for whatever host a document names.
    """
    address = URL(url, encoded=True)
    if proxy_bypass(address.host_port_subcomponent or ""):
        return None
    proxies = getproxies()
    return proxies.get(address.scheme) or proxies.get("all")


def _closed() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the HTTP client is closed", retryable=False)


class _Failure(NamedTuple):
    of: type[Exception] | tuple[type[Exception], ...]
    code: ErrorCode
    says: str
    retryable: bool | None = None  # None: what the table of errors says


_UNTRUSTED = (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch)
_PROXY = (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError)
_FAILURES = (  # the first one that fits
    _Failure(_UNTRUSTED, ErrorCode.UNAVAILABLE, "shows a certificate that is not trusted", retryable=False),
    _Failure((ValueError, aiohttp.NonHttpUrlClientError), ErrorCode.VALIDATION_ERROR, "cannot be sent this request"),
    _Failure(aiohttp.ClientConnectorDNSError, ErrorCode.UNAVAILABLE, "cannot be found"),
    _Failure(_PROXY, ErrorCode.UNAVAILABLE, "cannot be reached through the proxy"),
    _Failure(aiohttp.ClientSSLError, ErrorCode.UNAVAILABLE, "does not agree on TLS"),
    _Failure(aiohttp.ConnectionTimeoutError, ErrorCode.UNAVAILABLE, "does not accept a connection in time"),
    _Failure(aiohttp.ClientConnectorError, ErrorCode.UNAVAILABLE, "does not accept a connection"),
    _Failure((aiohttp.ClientResponseError, HttpProcessingError), ErrorCode.PROTOCOL_ERROR, "sends no readable HTTP"),
    _Failure(Exception, ErrorCode.UNAVAILABLE, "closed the connection before its answer was complete"),
)


def _failed(error: Exception, url: str) -> CallError:
    """What a failure of aiohttp is to those who call.

    It is not kept as a cause: its own text may hold a whole address, and a key with it.
    """
    if isinstance(error, aiohttp.ClientPayloadError) and isinstance(error.__cause__, ContentEncodingError):
        error = error.__cause__
    failure = next(each for each in _FAILURES if isinstance(error, each.of))
    detail = ""
    if isinstance(error, aiohttp.ClientConnectorError):
        detail = error.os_error.strerror
    elif isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        detail = error.message.partition(":")[0]  # what follows is a piece of the answer
    message = f"{host_of(url)} {failure.says}{f': {detail}' if detail else ''}"
    return CallError(failure.code, message, retryable=failure.retryable)


def host_of(url: str) -> str:
    """The host and port of an address, to be shown: an address itself may hold secrets."""
    try:
        return URL(url, encoded=True).host_port_subcomponent or "the server"
    except ValueError:
        return "the server"
