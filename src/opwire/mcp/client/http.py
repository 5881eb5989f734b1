"""HTTP transports: streamable HTTP, and the HTTP+SSE transport of 2024.

Every request is a POST in a task of its own, so that one that fails costs no other. In streamable HTTP its response
carries the messages of that request, as JSON or as events; a stream that breaks is resumed where the server supports
that. In the transport of 2024, all messages arrive in one event stream, which names the address for POSTs.

Redirects are followed within the server's origin only: headers may be secrets.
"""

import asyncio
from abc import abstractmethod
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, needs_extra
from opwire.http.sse import SSEParser
from opwire.mcp.client.servers import DEFAULT_OPTIONS, HTTPServer
from opwire.mcp.client.transport import MAX_RETRY_AFTER, ClientTransport, HTTPExchangeError, TransportEvents, call_error
from opwire.mcp.messages import (
    InvalidMessageError,
    InvalidReply,
    ReceivedMessage,
    RequestId,
    RPCCode,
    RPCError,
    RPCFailure,
    RPCMessage,
    RPCNotification,
    RPCRequest,
    RPCResponse,
    decode_message,
    encode_message,
    read_message,
    read_messages,
)
from opwire.mcp.peer import REPLIES
from opwire.mcp.revisions import LAST_EVENT_HEADER, METHOD_HEADER, SESSION_HEADER, VERSION_HEADER
from opwire.runtime.tasks import spawn
from opwire.runtime.text import get_logger

with needs_extra("mcp"):
    from yarl import URL

    from opwire.http.client import (
        ChunkReader,
        ClientOptions,
        ClientResponse,
        HTTPClient,
        HTTPRequest,
        NoResponseError,
        env_proxy,
    )

if TYPE_CHECKING:
    from opwire.mcp.client.auth import MCPAuth

logger = get_logger("opwire.mcp.client")

MAX_REDIRECTS = 5
MAX_RESUMPTIONS = 2
"""Attempts in a row, without an event, to resume a stream."""

DELETE_TIMEOUT = 2.0
"""Seconds for the request that ends a session."""

_MAX_ERROR_BODY_BYTES = 64 * 1024
_RESUME_MILLISECONDS = 1_000  # unless the server says when to resume a stream
_MIN_RESUME_MILLISECONDS = 100
_MAX_RESUME_MILLISECONDS = 60_000
_JSON = "application/json"
_EVENTS = "text/event-stream"


class MCPHTTPClient:
    """The HTTP client of one connection. It adds headers and token, and follows redirects within the server's origin.

    Raises:
        CallError: VALIDATION_ERROR, the server's options or headers are invalid.
    """

    def __init__(self, server: HTTPServer, auth: "MCPAuth | None") -> None:
        self._auth = auth
        try:
            self._headers = _headers_of(server)
            self._read_timeout, self._client = _client_of(server)
        except (UsageError, ValueError, TypeError) as error:  # values are not repeated, since a header may be a secret
            reason = str(error) if isinstance(error, UsageError) else type(error).__name__
            message = f"the options or headers for the MCP server {server.name} cannot be used: {reason}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    @asynccontextmanager
    async def respond(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        may_be_silent: bool = False,
    ) -> AsyncGenerator[ClientResponse]:
        """Send a request, follow redirects within its origin, and yield the response, which is not read yet.

        Raises:
            HTTPExchangeError: there is no response, or it is a redirect to another origin.
        """
        read_timeout = None if may_be_silent else self._read_timeout
        for redirects_left in reversed(range(MAX_REDIRECTS)):
            response = await self._authorized(method, url, headers, body, read_timeout)
            try:
                if not 300 <= response.status < 400:
                    yield response
                    return
            finally:
                response.release()
            location = ""
            with suppress(ValueError):  # an invalid URL, which is not followed
                location = urljoin(url, response.headers.get("location", ""))
            keeps_method = method == "GET" or response.status in (307, 308)
            if not redirects_left or not keeps_method or not _keeps_origin(url, location):
                reason = ", a redirect that is not followed: use its target as the url"
                raise HTTPExchangeError(response.status, reason)
            url = location

    async def _authorized(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, read_timeout: float | None
    ) -> ClientResponse:
        """Send a request with the token, and once more with another one if the server rejects it."""
        if self._auth is None:
            return await self._send(method, url, headers, body, read_timeout)
        try:
            token = await self._auth.token(url)
            response = await self._send(method, url, _with_token(headers, token), body, read_timeout)
            challenge = response.headers.get("WWW-Authenticate", "")
            other_token = await self._auth.token_after(url, token, response.status, challenge)
        except CallError as error:
            raise HTTPExchangeError(0, f" ({error.message})") from error
        if other_token is None:
            return response
        response.release()
        return await self._send(method, url, _with_token(headers, other_token), body, read_timeout)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, read_timeout: float | None
    ) -> ClientResponse:
        sent_headers = [*(self._headers | {name.lower(): (name, value) for name, value in headers.items()}).values()]
        try:
            request = HTTPRequest(method=method, url=_target(url), headers=sent_headers, body=body)
            return await self._client.open(request, bare=True, read_timeout=read_timeout)
        except NoResponseError as error:
            raise _no_response(error) from error

    async def chunks(self, response: ClientResponse) -> AsyncIterator[bytes]:
        """Yield the body in small chunks.

        Raises:
            HTTPExchangeError: it was cut off.
        """
        reader = ChunkReader(self._client, response)
        try:
            while chunk := await reader.read():
                yield chunk
        except NoResponseError as error:
            raise _no_response(error) from error

    async def read(self, response: ClientResponse, limit: int) -> bytes | None:
        """Return the whole body, or None if it is longer than the limit.

        Raises:
            HTTPExchangeError: it was cut off.
        """
        body = bytearray()
        async for chunk in self.chunks(response):
            body += chunk
            if len(body) > limit:
                return None
        return bytes(body)

    async def failure_in(self, response: ClientResponse, *, has_session: bool) -> RPCError | HTTPExchangeError:
        """Return the JSON-RPC error in the body of a failed response, or an error for its status."""
        status = response.status
        body = await self.read(response, _MAX_ERROR_BODY_BYTES)
        error = None
        with suppress(InvalidMessageError):
            message = decode_message(body or b"")
            if isinstance(message, RPCFailure):
                error = message.error.exception()
        # A dropped session is 404, regardless of the body.
        is_lost = status == 404 and has_session and (error is None or error.code != RPCCode.METHOD_NOT_FOUND)
        if error is not None and status not in (401, 403) and not is_lost:
            return error
        delay = response.headers.get("retry-after", "")
        retry_after = min(float(delay[:20]), MAX_RETRY_AFTER) if delay.isascii() and delay.isdigit() else None
        return HTTPExchangeError(status, retry_after=retry_after, lost=is_lost)


def _headers_of(server: HTTPServer) -> dict[str, tuple[str, str]]:
    """Return the names and values of a server's headers by lower-case name, with user and password of its URL.

    Raises:
        ValueError: one cannot be sent.
    """
    headers = {name.lower(): (name, value) for name, value in server.headers.items()}
    for name, value in headers.values():
        line = f"{name}: {value}"
        line.encode()  # UnicodeEncodeError is a ValueError
        if any(character in line for character in "\r\n\0"):
            raise ValueError("a header has a line break")
    address = URL(server.url)
    if address.user is not None:
        pair = f"{address.user}:{address.password or ''}"
        headers["authorization"] = ("Authorization", f"Basic {b64encode(pair.encode()).decode()}")
    return headers


def _client_of(server: HTTPServer) -> tuple[float | None, HTTPClient]:
    """Return the timeout for reading, and the client.

    Raises:
        UsageError: an option is invalid.
    """
    options: dict[str, Any] = {**DEFAULT_OPTIONS, **server.options}
    read_timeout = options.pop("read_timeout")
    check_above_zero(read_timeout=read_timeout)
    if options.pop("trust_env") and options["proxy"] is None:
        options["proxy"] = env_proxy(_target(server.url))
    if options["proxy"] is not None and urlsplit(options["proxy"]).scheme not in ("http", "https"):
        raise UsageError("proxy is not an HTTP URL; write http://host:port")
    # Calls are limited elsewhere; here they would wait unseen.
    return read_timeout, HTTPClient(ClientOptions(max_connections=0, **options), keeps_cookies=True)


def _target(url: str) -> str:
    """Return a URL as it is sent: quoted, without user, password and fragment."""
    return str(URL(url).with_user(None).with_fragment(None))


def _with_token(headers: Mapping[str, str], token: str | None) -> Mapping[str, str]:
    return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}


def _keeps_origin(url: str, location: str) -> bool:
    try:
        origin = urlsplit(url)
        target = urlsplit(location)
        is_upgrade = (
            (origin.scheme, target.scheme) == ("http", "https")
            and origin.port in (None, 80)
            and target.port in (None, 443)
        )
        return origin.hostname == target.hostname and (
            is_upgrade or (origin.scheme, origin.port) == (target.scheme, target.port)
        )
    except ValueError:
        return False


def _no_response(error: NoResponseError) -> HTTPExchangeError:
    return HTTPExchangeError(0, f" ({error.detail})" if error.detail else "", problem=error.problem)


class HTTPTransport(ClientTransport):
    """The tasks of a connection over HTTP: a POST for each request, and streams."""

    def __init__(self, server: HTTPServer, client: MCPHTTPClient, max_message: int, events: TransportEvents) -> None:
        self._server = server
        self._client = client
        self._max_message = max_message
        self._events = events
        self._posts: dict[RequestId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, message: RPCMessage, headers: Mapping[str, str] | None = None) -> Awaitable[None] | None:
        if self.failure is not None:
            raise self.failure
        body = encode_message(message)
        if not isinstance(message, RPCRequest):
            return self._post_reply(message, body, headers or {})
        self._posts[message.id] = task = spawn(self._attempt(message, body, headers or {}), self._tasks)
        task.add_done_callback(lambda _: self._posts.pop(message.id, None))
        return None

    async def _post_reply(self, message: RPCMessage, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            await self._post(message, body, headers)
        except (HTTPExchangeError, RPCError, CallError) as error:
            logger.debug("%s rejected a message: %s", self._server.name, error)

    def cancel(self, id: RequestId, notification: RPCNotification | None) -> None:
        task = self._posts.pop(id, None)
        if task is not None:
            task.cancel()
        if notification is not None and self.failure is None:
            spawn(self.send(notification), self._tasks)

    async def close(self) -> None:
        """End all requests and streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _attempt(self, request: RPCRequest, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            await self._post(request, body, headers)
        except (RPCError, HTTPExchangeError, CallError) as error:
            self._events.failed(request.id, error)
        except Exception as error:
            logger.exception("a request to the MCP server %s failed unexpectedly", self._server.name)
            self._events.failed(request.id, HTTPExchangeError(0, f" ({type(error).__name__})"))

    @abstractmethod
    async def _post(self, message: RPCMessage, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a message, and hand over its response."""

    async def _parsed(self, response: ClientResponse, parser: SSEParser) -> AsyncIterator[tuple[str, bytes]]:
        """Yield kind and data of the events of a response.

        Raises:
            HTTPExchangeError: the stream was cut off.
            CallError: PAYLOAD_TOO_LARGE, an event exceeds the limit.
        """
        async for chunk in self._client.chunks(response):
            for event in parser.feed(chunk):
                if event.data:
                    yield event.event, event.data.encode()

    async def _deliver(self, message: ReceivedMessage, request: RequestId | None = None) -> None:
        wait_for = self._events.received(message, request)
        if wait_for is not None:
            await wait_for

    def _broken(self, words: str, code: ErrorCode) -> CallError:
        return CallError(code, f"the MCP server {self._server.name} {words}")


class StreamableHTTP(HTTPTransport):
    """Streamable HTTP, of revision 2025-03-26 and later. Sessions exist up to 2025-11-25."""

    _session: str | None = None
    _version: str | None = None  # of the agreement

    def cancel(self, id: RequestId, notification: RPCNotification | None) -> None:
        # In the stateless era, the end of the connection is the cancellation.
        super().cancel(id, None if self._version is None else notification)

    async def close(self) -> None:
        if self._session is not None and self.failure is None:
            with suppress(HTTPExchangeError, CallError, TimeoutError):
                async with (
                    asyncio.timeout(DELETE_TIMEOUT),
                    self._client.respond("DELETE", self._server.url, self._headers({})),
                ):
                    pass
        await super().close()

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        session_headers: dict[str, str] = {"accept": f"{_JSON}, {_EVENTS}", "content-type": _JSON}
        if self._session is not None:
            session_headers[SESSION_HEADER] = self._session
        if self._version is not None:
            session_headers[VERSION_HEADER] = self._version
        return session_headers | dict(headers)

    async def _post(self, message: RPCMessage, body: bytes, headers: Mapping[str, str]) -> None:
        request = message if isinstance(message, RPCRequest) else None
        if request is not None and request.method == "initialize":
            self._session = self._version = None
        elif METHOD_HEADER not in headers:  # a message of the handshake era
            self._version = headers.get(VERSION_HEADER, self._version)
        has_session = self._session is not None
        parser = SSEParser(max_event=self._max_message)
        async with self._client.respond("POST", self._server.url, self._headers(headers), body) as response:
            if response.status >= 400:
                raise await self._client.failure_in(response, has_session=has_session)
            self._session = response.headers.get(SESSION_HEADER, self._session)
            if request is not None and await self._read_response(request, response, parser):
                return
        if request is not None:
            await self._resume(request.id, parser)
        elif isinstance(message, RPCNotification) and message.method == "notifications/initialized":
            spawn(self._listen(), self._tasks)

    async def _read_response(self, request: RPCRequest, response: ClientResponse, parser: SSEParser) -> bool:
        """Deliver the messages of a response; return False if it is a stream that ended early."""
        kind = _kind(response)
        if kind == _EVENTS:
            return await self._read_events(request.id, response, parser)
        if kind != _JSON:
            words = f"answered {request.method} with {kind[:100] or 'nothing'!r}, which is neither JSON nor events"
            raise self._broken(words, ErrorCode.PROTOCOL_ERROR)
        body = await self._client.read(response, self._max_message)
        if body is None:
            raise HTTPExchangeError(response.status, f" and more than {self._max_message} bytes", too_long=True)
        messages = read_messages(body)
        if not any(isinstance(message, REPLIES) for message in messages):
            raise self._broken("answered with JSON that is not a JSON-RPC response", ErrorCode.PROTOCOL_ERROR)
        id = request.id
        for message in messages:
            await self._deliver(_for_request(id, message) if isinstance(message, REPLIES) else message, id)
        return True

    async def _read_events(self, id: RequestId | None, response: ClientResponse, parser: SSEParser) -> bool:
        """Deliver the messages of a stream; return whether the response to a request was among them."""
        try:
            async for kind, data in self._parsed(response, parser):
                is_answered = False
                for message in read_messages(data) if kind == "message" else ():
                    if id is not None and isinstance(message, REPLIES):
                        is_answered = True
                        await self._deliver(_for_request(id, message))
                    else:
                        await self._deliver(message, id)
                if is_answered:
                    return True
        except HTTPExchangeError as error:
            logger.debug("a stream of the MCP server %s was cut off: %s", self._server.name, error)
        return False

    async def _resume(self, id: RequestId, parser: SSEParser) -> None:
        """Continue a stream that ended before the response, if its events had ids."""
        attempt = 0
        while parser.last_event_id and attempt < MAX_RESUMPTIONS:
            attempt += 1
            await asyncio.sleep(resume_pause(parser))
            last_event_id = parser.last_event_id
            with suppress(HTTPExchangeError):
                async with self._open_stream(last_event_id) as response:
                    parser = SSEParser(last_event_id=last_event_id, max_event=self._max_message)
                    if await self._read_events(id, response, parser):
                        return
            if parser.last_event_id != last_event_id:
                attempt = 0
        raise self._broken("ended the stream without a response to the request", ErrorCode.UNAVAILABLE)

    async def _listen(self) -> None:
        """Read the messages that belong to no request, while the server offers a stream for them."""
        attempt, parser = 0, SSEParser()
        while self._session is not None and attempt < MAX_RESUMPTIONS:
            attempt += 1
            try:
                async with self._open_stream(parser.last_event_id) as response:
                    attempt = 0
                    parser = SSEParser(last_event_id=parser.last_event_id, max_event=self._max_message)
                    await self._read_events(None, response, parser)
            except HTTPExchangeError as error:
                if error.status in (400, 404, 405):  # the server has no such stream, or no such session
                    return
            except CallError as error:
                logger.warning("the stream of the MCP server %s is closed: %s", self._server.name, error)
                return
            await asyncio.sleep(resume_pause(parser))

    @asynccontextmanager
    async def _open_stream(self, last_event_id: str) -> AsyncGenerator[ClientResponse]:
        resumed = {LAST_EVENT_HEADER: last_event_id} if last_event_id else {}
        headers = self._headers({"accept": _EVENTS, **resumed})
        async with self._client.respond("GET", self._server.url, headers, may_be_silent=True) as response:
            if response.status >= 300 or _kind(response) != _EVENTS:
                raise HTTPExchangeError(response.status if response.status >= 300 else 405)
            yield response


class SSETransport(HTTPTransport):
    """The HTTP+SSE transport of 2024: one event stream, and an address for POSTs."""

    _endpoint = ""

    @asynccontextmanager
    async def stream(self) -> AsyncGenerator[None]:
        """Open the event stream, and wait for the address.

        Raises:
            CallError: UNAVAILABLE, or PROTOCOL_ERROR if the address is not at the server's own origin.
        """
        accept = {"accept": _EVENTS}
        try:
            async with self._client.respond("GET", self._server.url, accept, may_be_silent=True) as response:
                if response.status >= 300:
                    raise await self._client.failure_in(response, has_session=False)
                kind = _kind(response)
                if kind != _EVENTS:
                    words = f"broke the event stream: its content type is {kind[:100]!r}"
                    raise self._broken(words, ErrorCode.PROTOCOL_ERROR)
                events = self._parsed(response, SSEParser(max_event=self._max_message))
                event, data = await self._next(events)
                if event != "endpoint" or not self._takes(data.decode()):
                    words = "does not send an endpoint event for its own origin"
                    raise self._broken(words, ErrorCode.PROTOCOL_ERROR)
                reading = spawn(self._read(events), self._tasks)
                try:
                    yield
                finally:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
        except (HTTPExchangeError, RPCError) as error:
            raise call_error(error, self._server.name, "the event stream") from error

    def _takes(self, endpoint: str) -> bool:
        """Set the address for POSTs; return whether it is valid and of the server's origin."""
        try:
            self._endpoint = urljoin(self._server.url, endpoint)
            return urlsplit(self._endpoint)[:2] == urlsplit(self._server.url)[:2]
        except ValueError:  # an invalid URL
            return False

    async def _read(self, events: AsyncIterator[tuple[str, bytes]]) -> None:
        try:
            while True:
                kind, data = await self._next(events)
                message = read_message(data) if kind == "message" else None
                if message is not None:
                    await self._deliver(message)
        except CallError as error:
            words = f"broke the event stream: {error.message}; the connection is closed"
            is_final = error.code is ErrorCode.UNAVAILABLE
            self.failure = error if is_final else self._broken(words, ErrorCode.PROTOCOL_ERROR)
        except Exception:
            logger.exception("the event stream of the MCP server %s cannot be handled", self._server.name)
            self.failure = self._broken(
                "sent what could not be handled; the connection is closed", ErrorCode.UNAVAILABLE
            )
        self._events.ended()

    async def _next(self, events: AsyncIterator[tuple[str, bytes]]) -> tuple[str, bytes]:
        try:
            return await anext(events)
        except StopAsyncIteration:
            raise self._broken("ended the event stream; the connection is closed", ErrorCode.UNAVAILABLE) from None
        except HTTPExchangeError as error:
            raise self._broken("was cut off; the connection is closed", ErrorCode.UNAVAILABLE) from error

    async def _post(self, message: RPCMessage, body: bytes, headers: Mapping[str, str]) -> None:
        async with self._client.respond("POST", self._endpoint, {"content-type": _JSON}, body) as response:
            if response.status >= 300:
                raise await self._client.failure_in(response, has_session=False)


@asynccontextmanager
async def http_transport(
    server: HTTPServer, max_message: int, events: TransportEvents, auth: "MCPAuth | None" = None
) -> AsyncGenerator[HTTPTransport]:
    """Connect to a server. Streamable HTTP connects lazily: its first request fails.

    Raises:
        CallError: UNAVAILABLE, PROTOCOL_ERROR, or VALIDATION_ERROR for invalid options.
    """
    async with AsyncExitStack() as stack:
        kind = SSETransport if server.kind == "sse" else StreamableHTTP
        client = MCPHTTPClient(server, auth)
        stack.push_async_callback(client.close)
        transport = kind(server, client, max_message, events)
        if isinstance(transport, SSETransport):
            await stack.enter_async_context(transport.stream())
        stack.push_async_callback(transport.close)
        yield transport


def _kind(response: ClientResponse) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _for_request(
    id: RequestId, message: RPCResponse | RPCFailure | InvalidReply
) -> RPCResponse | RPCFailure | InvalidReply:
    """Return a response with the id of its own POST's request: some servers repeat it incorrectly."""
    return message if message.id == id else replace(message, id=id)


def resume_pause(parser: SSEParser) -> float:
    """Return the seconds until a stream is resumed: at 0 a server would be asked all the time."""
    milliseconds = _RESUME_MILLISECONDS if parser.retry is None else parser.retry
    return min(max(milliseconds, _MIN_RESUME_MILLISECONDS), _MAX_RESUME_MILLISECONDS) / 1000
