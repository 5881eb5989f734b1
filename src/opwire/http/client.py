"""The HTTP client of opwire: one pooled aiohttp session, bounded in every direction, failures as `CallError`.

Nothing is retried here, except by aiohttp itself: an idempotent request on a connection that the server had closed is
sent once more, on a fresh one. Messages name the host, and never a query, a header or a body.

Redirects change method and body as fetch does: 303 turns everything but HEAD into a GET without a body, 301 and 302 do
so with POST, 307 and 308 keep both. Credentials stay in their origin: authentication headers, every cookie, and the
headers configured for this API are dropped at its border, and do not come back if a later redirect returns. A redirect
from https to http is rejected.
"""

import asyncio
import io
import re
import weakref
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import suppress
from ssl import SSLContext
from typing import Any, TypedDict
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, check_counts, needs_extra, system_message
from opwire.http.connector import BoundedConnector, expect_body
from opwire.http.tls import client_context
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.deadlines import Deadlines

with needs_extra("openapi"):
    import aiohttp
    from aiohttp import ClientResponse, ClientSession, hdrs
    from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError
    from yarl import URL

MAX_WAIT = 30 * 24 * 60 * 60.0
"""Seconds, at most, of a `retry_after`: a longer delay means never."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})
RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of a server that was busy, slow or briefly broken."""

_LARGE_BODY_BYTES = 1024 * 1024  # above this, aiohttp wants a body that it can send in chunks
_MAX_HEADER_BYTES = 64 * 1024  # aiohttp's default of 8 KiB is too small for some policies
_MAX_HEADERS = 256
_STREAM_CHUNK_BYTES = 16 * 1024  # 1,800 of the smallest events, 40 ms
_MAX_NUMBER_LENGTH = 100  # a longer number has no meaning
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)

_MAX_DIGEST_USERS = 100  # whose challenges are remembered
_ENCODED = re.compile(r"[!-~]*")
_BODY_HEADERS = frozenset({"content-type", "content-length", "content-encoding", "content-language"})
_CREDENTIAL = re.compile(r"^((?:basic|bearer|digest|token) )?.*$", re.IGNORECASE | re.DOTALL)
_MIN_SECRET_LENGTH = 4  # a shorter one would replace parts of words
_ALWAYS_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})
_NEVER_SECRET = re.compile(r"accept.*|content-type|user-agent|.*version")  # headers whose values errors may quote

# What aiohttp raises; RuntimeError means that a connection or session was closed meanwhile.
_FOREIGN = (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError, ValueError)
_UNTRUSTED = (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch)
_PROXY = (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError)
_FAILURES: tuple[tuple[Any, ErrorCode, str], ...] = (  # the first match
    (_UNTRUSTED, ErrorCode.UNAVAILABLE, "cannot be reached"),
    ((ValueError, aiohttp.NonHttpUrlClientError), ErrorCode.VALIDATION_ERROR, "cannot be sent this request"),
    (_PROXY, ErrorCode.UNAVAILABLE, "cannot be reached through the proxy"),
    (aiohttp.ConnectionTimeoutError, ErrorCode.UNAVAILABLE, "did not accept a connection in time"),
    (aiohttp.SocketTimeoutError, ErrorCode.UNAVAILABLE, "sent nothing for too long"),
    (aiohttp.ClientConnectorError, ErrorCode.UNAVAILABLE, "cannot be reached"),
    ((aiohttp.ClientResponseError, HttpProcessingError), ErrorCode.PROTOCOL_ERROR, "sent invalid HTTP"),
    (Exception, ErrorCode.UNAVAILABLE, "closed the connection before its response was complete"),
)


class NoResponseError(CallError):
    """There is no response, or not all of it.

    `problem` completes a sentence about the server, such as "cannot be reached"; `detail` says why, or is empty.
    """

    problem: str = ""
    detail: str = ""

    @classmethod
    def explained(
        cls, code: ErrorCode, host: str, problem: str, detail: str = "", *, retryable: bool | None = None
    ) -> "NoResponseError":
        """Return the error of a host."""
        error = cls(code, f"{host} {problem}{f': {detail}' if detail else ''}", retryable=retryable)
        error.problem = problem
        error.detail = detail
        return error


class HTTPRequest(Struct, frozen=True, kw_only=True):
    """A request, ready to be sent. Its repr omits query and headers, which may hold credentials.

    `url` is complete and encoded, and sent unchanged (`yarl.URL(url, encoded=True)`). `headers` include Accept and
    Content-Type, but not Host and Content-Length, which the client sets. `secret_headers` are the lower-case names of
    headers with credentials, `secret_query` the names of such query parameters: neither crosses to another origin.
    `token` is the OAuth token among the credentials, which can be refreshed after a 401. `digest` stays in its origin.
    """

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes | None = None
    secret_headers: frozenset[str] = frozenset()
    secret_query: frozenset[str] = frozenset()
    token: str | None = None
    digest: tuple[str, str] | None = None  # user and password of HTTP Digest, which are not sent

    def redacted(self) -> "HTTPRequest":
        """Return the request for a display, with `***` for credentials: the scheme of a header is kept."""
        secret = _ALWAYS_SECRET | self.secret_headers
        headers = [
            (name, _CREDENTIAL.sub(r"\1***", value) if name.lower() in secret else value)
            for name, value in self.headers
        ]
        address, mark, query = self.url.partition("?")
        fields = [
            f"{name}=***" if (name := field.partition("=")[0]) in self.secret_query else field
            for field in query.split("&")
        ]
        return replace(self, url=f"{address}{mark}{'&'.join(fields)}", headers=headers, token=None)

    def secrets(self) -> list[str]:
        """Return the texts of its credentials that a response may quote, except very short ones."""
        secret_texts: list[str] = []
        for name, value in self.headers:
            if name.lower() == "cookie" and name.lower() in self.secret_headers:
                secret_texts += [cookie.partition("=")[2] for cookie in value.split("; ")]
            elif name.lower() in self.secret_headers and not _NEVER_SECRET.fullmatch(name.lower()):
                scheme, _, text = value.rpartition(" ")
                with suppress(ValueError):  # user and password
                    secret_texts += b64decode(text).decode().partition(":")[::2] if scheme.lower() == "basic" else []
                secret_texts += [value, text]
        secret_texts += self.digest or ()
        for field in self.url.partition("?")[2].split("&"):
            if field.partition("=")[0] in self.secret_query:
                secret_texts += [field.partition("=")[2], unquote(field.partition("=")[2])]
        return sorted({text for text in secret_texts if len(text) >= _MIN_SECRET_LENGTH}, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<HTTPRequest {self.method} {self.url.partition('?')[0]}>"


class ClientKeywords(TypedDict, total=False):
    """The fields of `ClientOptions` as keyword arguments."""

    timeout: float | None
    connect_timeout: float | None
    max_response: int
    max_item: int
    max_connections: int
    max_per_host: int
    headers: Mapping[str, str]
    proxy: str | None
    ssl: SSLContext | bool
    ca_file: str | None
    client_certificate: str | None
    client_key: str | None
    client_key_password: str | None
    trust_env: bool
    follow_redirects: bool
    max_redirects: int


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How requests are sent. Its repr omits headers and proxy, which may hold credentials.

    Raises:
        UsageError: a number is out of range.
    """

    timeout: float | None = 30.0  # seconds for a whole call without a deadline of its own
    connect_timeout: float | None = 10.0  # seconds
    max_response: int = 16 * 1024 * 1024  # bytes of a response, after decompression
    max_item: int = 16 * 1024 * 1024  # bytes of one item of a stream
    max_connections: int = 100  # 0: unlimited
    max_per_host: int = 0  # 0: limited by max_connections only
    headers: Mapping[str, str] = {}  # defaults for every request; a request may override them
    proxy: str | None = None  # "http://user:password@proxy.example:8080"
    ssl: SSLContext | bool = True  # False skips certificate checks
    ca_file: str | None = None  # PEM: the authorities to trust, instead of the system's
    client_certificate: str | None = None  # PEM, for mutual TLS: redirects to another origin do not see it
    client_key: str | None = None  # PEM, if it is not in the file of the certificate
    client_key_password: str | None = None
    trust_env: bool = False  # use the proxies of the environment: HTTP_PROXY and the like
    follow_redirects: bool = True
    max_redirects: int = 10

    def __post_init__(self) -> None:
        check_above_zero(timeout=self.timeout, connect_timeout=self.connect_timeout)
        check_counts(max_response=self.max_response or 0, max_item=self.max_item or 0)
        for option in ("max_connections", "max_per_host", "max_redirects"):
            value: Any = getattr(self, option)
            if type(value) is not int or value < 0:
                raise UsageError(f"{option} must be a whole number from zero on, not {value!r:.100}")
        if isinstance(self.ssl, SSLContext) and (self.ca_file or self.client_certificate or self.client_key):
            raise UsageError("ssl is a context already: load ca_file and client_certificate into it")

    def tls(self, *, presents: bool) -> SSLContext | bool:
        """Return the `ssl` of connections, with the client's certificate or without it.

        Raises:
            UsageError: a file is missing or invalid.
        """
        if isinstance(self.ssl, SSLContext) or not (self.ca_file or self.client_certificate or self.client_key):
            return self.ssl
        return client_context(
            ca_file=self.ca_file,
            client_certificate=self.client_certificate if presents else None,
            client_key=self.client_key if presents else None,
            client_key_password=self.client_key_password,
            verify=self.ssl,
        )

    def __repr__(self) -> str:
        return f"<ClientOptions timeout={self.timeout} max_response={self.max_response}>"


class HTTPClient:
    """Sends requests. Each event loop, in whatever thread, has a session of its own, which is created lazily.

    Without `close`, a session is closed at the end of its loop, or when the client is garbage.
    """

    def __init__(self, options: ClientOptions | None = None, *, keeps_cookies: bool = False) -> None:
        self.options = options or ClientOptions()
        self._keeps_cookies = keeps_cookies
        self._timeout = self._timeout_of(None)
        self._tls = self.options.tls(presents=True)
        self._foreign_tls = self.options.tls(presents=False)  # beyond the origin of a request
        self.deadlines = Deadlines()  # for callers: one deadline covers redirects and token requests as well
        self._sessions: dict[asyncio.AbstractEventLoop, tuple[ClientSession, AsyncGenerator[None]]] = {}
        # Closed explicitly: closing the session would not wake readers.
        self._reading: dict[ClientResponse, asyncio.AbstractEventLoop] = {}
        self._is_closed = False
        self._digests: BoundedDict[tuple[str, str], aiohttp.DigestAuthMiddleware] = BoundedDict(_MAX_DIGEST_USERS)

    async def open(
        self, request: HTTPRequest, *, bare: bool = False, read_timeout: float | None = None
    ) -> ClientResponse:
        """Return the response after redirects, its body unread; the caller closes it.

        A bare request is for another server than the API: it has only its own headers and follows no redirects.
        `read_timeout` is how long the server may be silent, in seconds.

        Raises:
            CallError: UNAVAILABLE, PROTOCOL_ERROR or VALIDATION_ERROR without a response.
        """
        request = self.prepared(request) if self.options.headers and not bare else request
        tls = self._tls
        opened = self._sessions.get(asyncio.get_running_loop())
        session = await self._start() if opened is None else opened[0]
        for _ in range(self.options.max_redirects + 1):
            try:
                response = await self._send(session, request, tls, read_timeout)
            except asyncio.CancelledError:
                # A closing pool cancels its waiters, as if their own tasks had been cancelled.
                task = asyncio.current_task()
                if self._is_closed and not (task and task.cancelling()):
                    raise _closed() from None
                raise
            except _FOREIGN as error:
                raise self._failure(error, request.url) from None
            expect_body(response)
            if response.status not in REDIRECTS or bare or not self.options.follow_redirects:
                return response
            location = response.headers.get(hdrs.LOCATION)
            if location is None:
                return response
            response.release()
            previous_request, request = request, redirected(request, response.status, location)
            if _origin(previous_request.url) != _origin(request.url):
                tls = self._foreign_tls
        message = f"{host_of(request.url)} is behind more than {self.options.max_redirects} redirects"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)

    def prepared(self, request: HTTPRequest) -> HTTPRequest:
        """Return the request with the configured headers, which are for this API, and stay in its origin."""
        if not self.options.headers:
            return request
        names_in_request = {name.lower() for name, _ in request.headers}
        added = [(name, value) for name, value in self.options.headers.items() if name.lower() not in names_in_request]
        if not added:
            return request
        secret = request.secret_headers.union(name.lower() for name, _ in added)
        return replace(request, headers=[*added, *request.headers], secret_headers=secret)

    def _send(
        self, session: ClientSession, request: HTTPRequest, tls: SSLContext | bool, read_timeout: float | None
    ) -> Awaitable[ClientResponse]:
        body, digest = request.body, request.digest
        if digest is not None and digest not in self._digests:
            # It remembers the challenge, so that only the first request of a user is repeated.
            self._digests[digest] = aiohttp.DigestAuthMiddleware(*digest)
        # aiohttp adds a Content-Type to a body without one. Forbidding that takes 4 µs, so only where it would.
        has_body = body is not None or request.method != "GET"
        is_untyped = has_body and "content-type" not in [name.lower() for name, _ in request.headers]
        return session.request(
            request.method,
            URL(request.url, encoded=True),
            headers=request.headers,
            data=io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY_BYTES else body,
            allow_redirects=False,
            ssl=tls,
            timeout=self._timeout if read_timeout is None else self._timeout_of(read_timeout),
            skip_auto_headers=(hdrs.CONTENT_TYPE,) if is_untyped else None,
            middlewares=() if digest is None else (self._digests[digest],),
            proxy=self.options.proxy or (env_proxy(request.url) if self.options.trust_env else None),
        )

    def _timeout_of(self, read_timeout: float | None) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=None, sock_connect=self.options.connect_timeout, sock_read=read_timeout)

    async def _start(self) -> ClientSession:
        if self._is_closed:
            raise _closed()
        options, loop = self.options, asyncio.get_running_loop()
        session = ClientSession(
            connector=BoundedConnector(limit=options.max_connections, limit_per_host=options.max_per_host),
            # Its own limits bound a jar. Servers may have IP addresses, whose cookies it ignores unless it is `unsafe`.
            cookie_jar=aiohttp.CookieJar(unsafe=True) if self._keeps_cookies else aiohttp.DummyCookieJar(),
            headers={hdrs.USER_AGENT: "opwire"},
            timeout=self._timeout,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
        )

        async def keep_open() -> AsyncGenerator[None]:
            # Event loops close generators at their end, or when they are garbage, and so the session.
            try:
                yield
            finally:
                await session.close()

        keeper = keep_open()
        closed_loops = [other_loop for other_loop in list(self._sessions) if other_loop.is_closed()]
        self._sessions[loop] = session, keeper
        await anext(keeper)
        # The finalizer keeps the session from becoming garbage together with the client, before it is closed.
        weakref.finalize(self, id, keeper).atexit = False
        for closed_loop in closed_loops:
            if (closed_session := self._sessions.pop(closed_loop, None)) is not None:
                await closed_session[1].aclose()
        return session

    async def read(self, response: ClientResponse) -> bytes:
        """Return the whole body, and close the response.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, UNAVAILABLE or PROTOCOL_ERROR.
        """
        chunks: list[bytes] = []
        bytes_left = self.options.max_response
        unyielded = 0  # bytes since the event loop last ran: decompressing buffered data does not await
        try:
            while True:
                chunk = await self.read_some(response)
                bytes_left -= len(chunk)
                if bytes_left < 0:
                    limit = f"{self.options.max_response:,} bytes; the option `max_response` sets the limit"
                    message = f"{host_of(str(response.url))} sent a response of more than {limit}"
                    raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
                chunks.append(chunk)
                unyielded += len(chunk)
                if unyielded > _LARGE_BODY_BYTES:
                    unyielded = 0
                    await asyncio.sleep(0)
                if response.content.at_eof():
                    return b"".join(chunks) if len(chunks) > 1 else chunk
        finally:
            response.close()

    async def read_start(self, response: ClientResponse, limit: int) -> tuple[bytes, bool]:
        """Return the first bytes of a body, and whether they are all of it. Close the response.

        For error bodies: one that is cut off is not an error of its own.
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
        """Return the buffered bytes of a body, or wait for some; empty at the end.

        Raises:
            CallError: UNAVAILABLE or PROTOCOL_ERROR.
        """
        content = response.content
        try:
            if content.is_eof():  # and buffered, as most small bodies are
                return content.read_nowait()
            self._reading[response] = asyncio.get_running_loop()
            # Not `read`, which decompresses without a limit; `readany` decompresses one chunk at a time.
            return await content.readany()
        except _FOREIGN as error:
            raise self._failure(error, str(response.url)) from None
        finally:
            self._reading.pop(response, None)

    async def close(self) -> None:
        """Close all connections. Calls in flight fail, and so do later ones."""
        self._is_closed = True
        running_loop = asyncio.get_running_loop()
        for response, loop in tuple(self._reading.items()):
            if loop is running_loop:
                response.close()
            else:
                with suppress(RuntimeError):  # that loop was closed, and its connections with it
                    loop.call_soon_threadsafe(response.close)
        sessions, self._sessions = self._sessions, {}
        for loop, (session, keeper) in sessions.items():
            if loop is running_loop or loop.is_closed():
                await keeper.aclose()
            else:
                asyncio.run_coroutine_threadsafe(session.close(), loop)

    def _failure(self, error: Exception, url: str) -> CallError:
        """Map an exception of aiohttp. It does not become the cause: its text may contain a URL with a key."""
        if self._is_closed:
            return _closed()
        if isinstance(error, aiohttp.ClientPayloadError) and isinstance(error.__cause__, ContentEncodingError):
            error = error.__cause__
        code, problem = next((code, problem) for kind, code, problem in _FAILURES if isinstance(error, kind))
        detail = ""
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            detail = system_message(error.certificate_error)
        elif isinstance(error, aiohttp.ServerFingerprintMismatch):
            detail = "its certificate is not the expected one"
        elif isinstance(error, aiohttp.ClientConnectorError):
            detail = system_message(error.os_error)
        elif isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
            detail = error.message.partition(":")[0]  # the rest quotes the response
        retryable = False if isinstance(error, _UNTRUSTED) else None
        return NoResponseError.explained(code, host_of(url), problem, detail, retryable=retryable)


class ChunkReader:
    """Reads the body of a stream in small chunks, and lets the event loop run between them.

    Buffered chunks are returned without awaiting, and 50 kB of gzip can be 50 MB of line breaks: without yielding, they
    blocked the loop for 11 s.
    """

    def __init__(self, client: HTTPClient, response: ClientResponse) -> None:
        self._client = client
        self._response = response
        self._buffer = b""
        self._start = 0
        self._unyielded = 0  # bytes since the event loop last ran

    async def read(self) -> bytes:
        """Return the next chunk; empty at the end.

        Raises:
            CallError: as `HTTPClient.read_some`.
        """
        if self._unyielded >= _STREAM_CHUNK_BYTES:
            self._unyielded = 0
            await asyncio.sleep(0)
        if self._start >= len(self._buffer):
            self._buffer, self._start = await self._client.read_some(self._response), 0
        start, self._start = self._start, self._start + _STREAM_CHUNK_BYTES
        chunk = self._buffer[start : self._start] if len(self._buffer) > _STREAM_CHUNK_BYTES else self._buffer
        self._unyielded += len(chunk)
        return chunk


def redirected(request: HTTPRequest, status: int, location: str) -> HTTPRequest:
    """Return the request that follows a redirect.

    Raises:
        CallError: EXECUTION_ERROR, the target is invalid or insecure.
    """
    source, location = URL(request.url, encoded=True), location.strip()

    def rejected(reason: str) -> CallError:
        return CallError(ErrorCode.EXECUTION_ERROR, f"a redirect of {source.raw_host} is not followed: {reason}")

    try:
        # An encoded location is kept unchanged, since it may be signed; yarl quotes what others left unquoted.
        target = source.join(URL(location, encoded=bool(_ENCODED.fullmatch(location)))).with_fragment(None)
        target = target if target.raw_authority == source.raw_authority else target.with_user(None)
    except ValueError:
        raise rejected("its location is an invalid URL") from None
    if target.scheme not in ("http", "https") or not target.raw_host:
        raise rejected("its location is not an HTTP URL")
    if source.scheme == "https" and target.scheme == "http":
        raise rejected(f"it leads from https to http, at {target.raw_host}")
    method, body = request.method, request.body
    leaves = _origin(request.url) != _origin(str(target))
    url = _without_secrets(str(target), request) if leaves and request.secret_query else str(target)
    dropped = _ALWAYS_SECRET | request.secret_headers if leaves else frozenset[str]()
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body, dropped = "GET", None, dropped | _BODY_HEADERS
    headers = [pair for pair in request.headers if pair[0].lower() not in dropped] if dropped else request.headers
    # A secret in the query is not added again: the new URL is the API's own.
    return replace(
        request,
        method=method,
        url=url,
        headers=headers,
        body=body,
        secret_query=frozenset() if leaves else request.secret_query,
        digest=None if leaves else request.digest,
    )


def _without_secrets(url: str, request: HTTPRequest) -> str:
    """Return a URL without the fields of its query that repeat a secret one of the request.

    Many servers that have moved redirect with the query of the request.
    """
    sent = {
        field for field in request.url.partition("?")[2].split("&") if field.partition("=")[0] in request.secret_query
    }
    values = {unquote(field.partition("=")[2]) for field in sent} - {""}
    address, mark, query = url.partition("?")
    public_fields = [field for field in query.split("&") if unquote(field.partition("=")[2]) not in values]
    return f"{address}{mark if public_fields else ''}{'&'.join(public_fields)}"


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = URL(url, encoded=True)
    return parts.scheme, (parts.raw_host or "").lower(), parts.port  # yarl fills in the default port


def host_of(url: str) -> str:
    """Return host and port of a URL for messages: the URL itself may contain secrets."""
    try:
        return URL(url, encoded=True).host_port_subcomponent or "the server"
    except ValueError:
        return "the server"


def bounded_number(value: Any, limit: float) -> float | None:
    """Return a number from a foreign document or response, clamped to 0…`limit`; None if it is not a number.

    Use it for every delay, lifetime and size from outside: 10^400 overflows a float, NaN is not less than anything, and
    a retry in 30,000 years is a leak.
    """
    if isinstance(value, str):
        digits = value.strip()
        value = float(digits) if len(digits) <= _MAX_NUMBER_LENGTH and _DECIMAL.fullmatch(digits) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:  # noqa: PLR0124 - NaN
        return None
    return float(min(max(value, 0), limit))


def env_proxy(url: str) -> str | None:
    """Return the proxy of the environment for a URL.

    aiohttp can look it up as well, but would also send credentials from ~/.netrc to any host that a document names.
    """
    address = URL(url, encoded=True)
    if proxy_bypass(address.host_port_subcomponent or ""):
        return None
    proxies = getproxies()
    return proxies.get(address.scheme) or proxies.get("all")


def _closed() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the HTTP client is closed", retryable=False)
