"""`serve_mcp`: a registry as an MCP server, over stdio, over any stream, or as an ASGI app over streamable HTTP.

An HTTP request of the stateless era is served here, one of the handshake era in its session.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from math import ceil
from typing import Any, Unpack
from urllib.parse import quote

from starlette.routing import Router

from opwire.agents.tools import MAX_NAME
from opwire.asgi.app import ExactRoute, ListeningApp, is_plain
from opwire.asgi.guard import GuardOptions, RequestGuard
from opwire.asgi.listener import ListenOptions
from opwire.asgi.problem import Header, HTTPStatusError, Send
from opwire.asgi.request import ADMITTED, AdmittedRequest, Receive, Scope
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, check_instance, check_known
from opwire.mcp.messages import (
    HTTP_STATUS,
    InvalidMessageError,
    RequestId,
    RPCCode,
    RPCError,
    RPCFailure,
    RPCNotification,
    RPCRequest,
    decode_message,
    encode_message,
)
from opwire.mcp.revisions import (
    HANDSHAKE_VERSIONS,
    METHOD_HEADER,
    NAME_HEADER,
    PARAM_HEADER,
    VERSION_HEADER,
    check_argument_headers,
    check_stateless_version,
    read_envelope,
)
from opwire.mcp.server.calls import CallLimits, ServedRequest, ServedTools
from opwire.mcp.server.clients import MAX_OPEN, RequestStates
from opwire.mcp.server.durable_tasks import DurableTasks, DurableTaskStore
from opwire.mcp.server.server import ImplementationInfo, RegistryServer
from opwire.mcp.server.sessions import EVENTS, JSON, Sessions, SessionTiming, accepts, challenge, send_error, send_json
from opwire.mcp.server.stdio import DuplexConnection, serve_files, standard_files
from opwire.mcp.server.streams import EventWriter, ends_soon, follow
from opwire.mcp.server.tasks import TASK_AFTER, CallTasks
from opwire.mcp.server.tools import MAX_OUTPUT_SCHEMA, MAX_PAGE, ToolCatalogue
from opwire.model.identity import Identity
from opwire.model.operation import Interceptor
from opwire.protocol import LOCAL_IDENTITY
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher, operation_filter
from opwire.runtime.deadlines import CALL_TIMEOUT
from opwire.runtime.tasks import start_eagerly
from opwire.typed.plain import as_dict
from opwire.version import VERSION

_ROUTING = frozenset(name.encode() for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER))
_PARAM = PARAM_HEADER.encode()


class MCPHTTPOptions(GuardOptions, total=False):
    """The options of an MCP server over HTTP, besides those of `RequestGuard`.

    `path` is the path of the server, below the one that the app is mounted at. `max_sessions` bounds concurrent
    sessions, and separately those of anonymous clients, so that these cannot displace the others. One identity has at
    most `max_sessions_per_identity`, by default half of them. When there are too many, the idle session with the oldest
    last request ends, of the same identity or of the one that has most. `session_idle` is the timeout of sessions
    without a request, in seconds. After `poll_after` seconds the server ends a stream of a session, and the client asks
    for the rest (2025-11-25): for proxies that end long connections; None: never.
    """

    path: str
    max_sessions: int
    max_sessions_per_identity: int | None
    session_idle: float
    poll_after: float | None


class MCPServeOptions(MCPHTTPOptions, ListenOptions, total=False):
    """The options of `MCPSurface.run_http`."""


def serve_mcp(
    registry: OperationRegistry,
    *,
    name: str = "opwire",
    version: str = VERSION,
    title: str | None = None,
    instructions: str | None = None,
    stdio_identity: Identity = LOCAL_IDENTITY,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    interceptors: Iterable[Interceptor] = (),
    timeout: float | None = CALL_TIMEOUT,
    max_items: int = 100,
    max_seconds: float = 30.0,
    max_bytes: int = 4 * 1024 * 1024,
    max_page: int = MAX_PAGE,
    max_name: int = MAX_NAME,
    tool_names: Mapping[str, str] | None = None,
    max_output_schema: int = MAX_OUTPUT_SCHEMA,
    tool_envelopes: bool = False,
    state_key: str | bytes | None = None,
    task_after: float | None = TASK_AFTER,
    durable_tasks: DurableTasks | None = None,
    all_tools: bool = False,
) -> "MCPSurface":
    """Return a registry as an MCP server: every operation is a tool, a resource or a prompt.

        server = serve_mcp(registry, name="shop", version="1.0")
        asyncio.run(server.run_stdio())

    `stdio_identity` is the identity of the client on stdio. `include` and `exclude` are patterns of ids or tags that
    select the served operations. `interceptors` run around each call, the first outermost. `timeout` is the time
    without progress, for operations without their own; None: never. A subscription is collected: at most `max_items`,
    `max_seconds`, and no item after `max_bytes` of JSON. Pages of lists have at most `max_page` bytes, tool names
    `max_name` characters, and listed output schemas `max_output_schema` bytes. `tool_names` overrides names by
    operation id. `tool_envelopes` encodes results and errors as ToolEnvelope V1. `state_key`, a secret of at least 16
    bytes, signs the state of calls with questions (2026-07-28); servers behind one address share it. A call of a client
    that supports tasks becomes one after `task_after` seconds; None: never. Those of `durable_tasks` survive a restart.
    With `all_tools`, resources and prompts are tools as well. Default `instructions` are those of followed MCP servers.

    Raises:
        UsageError: an option is invalid.
    """
    check_above_zero(timeout=timeout, max_seconds=max_seconds, task_after=task_after)
    check_counts(max_items=max_items, max_bytes=max_bytes, max_page=max_page)
    dispatcher, states = Dispatcher(registry, serves=operation_filter(include, exclude)), RequestStates(state_key)
    for interceptor in interceptors:
        dispatcher.use(interceptor)
    tools = ToolCatalogue(dispatcher, max_name, tool_names, max_output_schema=max_output_schema, all_tools=all_tools)
    served = ServedTools(
        dispatcher=dispatcher,
        catalogue=tools,
        limits=CallLimits(timeout=timeout, max_items=max_items, max_seconds=max_seconds, max_bytes=max_bytes),
        max_page=max_page,
        tool_envelopes=tool_envelopes,
        states=states,
        tasks=CallTasks(task_after),
        durable=None if durable_tasks is None else DurableTaskStore(durable_tasks, states, dispatcher, tools),
    )
    return MCPSurface(ImplementationInfo(name, version, title, instructions), served, stdio_identity)


class MCPSurface:
    """A registry as an MCP server that runs when one of its methods is called; `serve_mcp` returns one."""

    def __init__(self, info: ImplementationInfo, served: ServedTools, stdio_identity: Identity) -> None:
        check_instance(Identity, stdio_identity=stdio_identity)
        self._info = info
        self._served = served
        self._stdio_identity = stdio_identity

    def __repr__(self) -> str:
        return f"<MCPSurface {self._info.name!r} of {self._served.dispatcher.registry!r}>"

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call of this surface; the returned function removes it."""
        return self._served.dispatcher.use(interceptor)

    async def run_stdio(self) -> None:
        """Serve the parent process on standard input and output until it closes them.

        Raises:
            CallError: UNAVAILABLE, if they are closed already.
        """
        with standard_files() as (source, sink):
            await serve_files(self._trusting_server(), source, sink)

    async def serve_stream(self, messages: AsyncIterable[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Serve one client, as trusted as on stdio, over a transport of the application.

        `messages` are those of the client, each one JSON; the connection ends with them. `write` sends one.
        """
        connection = DuplexConnection(self._trusting_server(), write)
        try:
            async for message in messages:
                wait_for = connection.receive(message)
                if wait_for is not None:
                    await wait_for
        finally:
            await connection.close()

    def _trusting_server(self) -> RegistryServer:
        return RegistryServer(self._info, self._served, self._stdio_identity)

    async def run_http(self, host: str = "127.0.0.1", port: int = 8000, **options: Unpack[MCPServeOptions]) -> None:
        """Serve over streamable HTTP at `/mcp` until SIGINT or SIGTERM, or until the task is cancelled.

        Raises:
            CallError: UNAVAILABLE, if the address cannot be used.
        """
        http_options: Any = options
        listen: Any = {name: http_options.pop(name) for name in ListenOptions.__annotations__ if name in http_options}
        await self.asgi(**http_options).run(host, port, **listen)

    def asgi(self, **options: Unpack[MCPHTTPOptions]) -> "MCPApp":
        """Return the server as an ASGI app, for any ASGI server or to be mounted into another app.

            app = Starlette(routes=[Mount("/", surface.asgi(authenticate=..., hosts=["tools.example"]))])

        Without `authenticate` and without `anonymous` only public operations can be called.
        """
        return MCPApp(RegistryServer(self._info, self._served), **options)


class MCPApp(ListeningApp):
    """An ASGI app that serves MCP. It needs no start; `close`, or the end of the server's `lifespan`, ends sessions."""

    def __init__(
        self,
        server: RegistryServer,
        *,
        path: str = "/mcp",
        max_sessions: int = 1_000,
        max_sessions_per_identity: int | None = None,
        session_idle: float = 1_800.0,
        poll_after: float | None = None,
        **guard: Unpack[GuardOptions],
    ) -> None:
        check_known(guard, GuardOptions.__annotations__, "serve_mcp over HTTP")
        check_counts(max_sessions=max_sessions, max_sessions_per_identity=max_sessions_per_identity)
        check_above_zero(session_idle=session_idle, poll_after=poll_after)
        self._server = server
        path = path.rstrip("/") or "/"
        max_each = max_sessions_per_identity or ceil(max_sessions / 2)
        timing = SessionTiming(session_idle, poll_after)
        calls = max(MAX_OPEN, guard.get("max_requests", 0))  # with those of clients that have disconnected
        self._identified = Sessions(server, timing, max_sessions=max_sessions, max_each=max_each, max_calls=calls)
        # Separate, so that these cannot displace the others.
        self._anonymous = Sessions(server, timing, max_sessions=max_sessions, max_each=max_sessions, max_calls=calls)
        self._path = path
        paths = Router([ExactRoute(path, self._serve)], redirect_slashes=False, default=self._redirect_or_reject)
        super().__init__(default=RequestGuard(paths, surface="mcp", **guard))

    def drain(self) -> None:
        """End the streams on which clients listen for changes: they would delay the shutdown."""
        self._server.end_streams()
        for sessions in (self._identified, self._anonymous):
            sessions.end_streams()

    async def close(self) -> None:
        """End every session and its calls."""
        self.drain()
        await asyncio.gather(self._identified.close(), self._anonymous.close(), self._server.close())

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of the era that its header names, unless an anonymous client could call nothing."""
        request: AdmittedRequest = scope[ADMITTED]
        if request.identity is None and not self._server.catalogue.has_public():
            needed = CallError(ErrorCode.UNAUTHENTICATED, "a token is needed, as Authorization: Bearer")
            raise HTTPStatusError(HTTPStatus.UNAUTHORIZED, needed, (b"www-authenticate", b"Bearer"))
        version = request.headers.get(VERSION_HEADER.encode())
        if version is not None and version.decode("latin-1") not in HANDSHAKE_VERSIONS:
            await serve_stateless(self._server, request, receive, send)
            return
        sessions = self._anonymous if request.identity is None else self._identified
        await sessions.serve(request, receive, send)

    async def _redirect_or_reject(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Redirect from the path of the server with a slash too many, and reject others."""
        wrong = CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path; MCP is at {self._path}")
        root: str = scope.get("root_path", "")
        path: str = scope["path"].removeprefix(root)
        if path.rstrip("/") != self._path.rstrip("/") or not is_plain(scope):
            raise HTTPStatusError(HTTPStatus.NOT_FOUND, wrong)
        root = root.strip("/")
        location = quote(f"/{root}{self._path}" if root else self._path, safe="/~")
        raise HTTPStatusError(HTTPStatus.PERMANENT_REDIRECT, wrong, (b"location", location.encode()))


# --- the stateless era ------------------------------------------------------------------------------------------------


class StatelessRequest(ServedRequest, kw_only=True):
    """A request of the stateless era. Its response is JSON, or events from the first notification on."""

    writer: EventWriter

    async def send(self, message: RPCRequest | RPCNotification) -> None:
        """Send a message as an event."""
        await self.writer.event(encode_message(message))


async def serve_stateless(server: RegistryServer, post: AdmittedRequest, receive: Receive, send: Send) -> None:
    """Serve a request of the stateless era."""
    if post.method != "POST":
        await send_json(send, 405, headers=[(b"allow", b"POST")])
        return
    if not accepts(post.headers.get(b"accept", b""), JSON, EVENTS):
        await send_error(send, 406, RPCCode.INVALID_REQUEST, f"the client must accept {JSON} and {EVENTS}")
        return
    id: RequestId | None = None
    try:
        message = _read_message(post.take_body())
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in post.headers.items()}
        if isinstance(message, RPCNotification):  # accepted and ignored: a client cancels by disconnecting
            check_stateless_version(headers.get(VERSION_HEADER, ""))
            await send_json(send, 202)
            return
        id = message.id
        _check_headers(server, message, post.lines, headers)
    except RPCError as error:
        await send_json(send, HTTP_STATUS.get(error.code, 200), encode_message(RPCFailure.of(id, error)))
        return
    if post.offers_oauth and await challenge(server, message, post.identity, send):
        return
    writer = EventWriter(send)
    request = StatelessRequest(message, post.identity, token=post.token, writer=writer)
    request.task = task = start_eagerly(server.respond(request))
    wait_for_end = post.ended if message.method == "subscriptions/listen" else None
    try:
        is_done = await ends_soon(task) or await follow(task, writer, receive, wait_for_end=wait_for_end)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not is_done:
        await request.stop()
        await writer.end()
        return
    if writer.is_started:
        await writer.event(task.result())
        await writer.end()
    else:
        await send_json(send, HTTP_STATUS.get(request.error_code, 200), task.result())


def _read_message(body: bytes) -> RPCRequest | RPCNotification:
    try:
        message = decode_message(body, is_checked=True)  # by the guard
    except InvalidMessageError as error:
        code, problem = (RPCCode.INVALID_REQUEST, str(error)) if error.is_json else (RPCCode.PARSE_ERROR, "not JSON")
        raise RPCError(code, f"the body is {problem}") from None
    if not isinstance(message, RPCRequest | RPCNotification):
        raise RPCError(RPCCode.INVALID_REQUEST, "the body is not a JSON-RPC request")
    return message


def _check_headers(
    server: RegistryServer, message: RPCRequest, lines: Iterable[Header], headers: Mapping[str, str]
) -> None:
    """Check that the headers of a request say the same as its message: proxies route it by them.

    Raises:
        RPCError: they differ, or one of them is there twice.
    """
    routing = [name for name, _ in lines if name in _ROUTING or name.startswith(_PARAM)]
    if len(set(routing)) != len(routing):  # two proxies could read different ones
        raise RPCError(RPCCode.HEADER_MISMATCH, "a header of the request is there twice")
    read_envelope(message.method, message.params, headers)
    params = message.params or {}
    name = params.get("name") if message.method == "tools/call" else None
    tool = server.catalogue.find(name) if isinstance(name, str) else None
    if tool is not None and tool.headers:
        check_argument_headers(tool.headers, as_dict(params.get("arguments")), headers)
