"""The console as an ASGI app: the page, its session, and the API that the page uses."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Literal, NamedTuple, Unpack
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from opwire.agents.search_mode import token_cost
from opwire.agents.snippets import curl_snippet, mcp_snippet, python_snippet
from opwire.agents.tools import ToolNames
from opwire.asgi.guard import GuardOptions, RequestGuard
from opwire.asgi.listener import ListeningApp
from opwire.asgi.problem import HTTPStatusError, Send
from opwire.asgi.request import ADMITTED, App, Receive, Scope
from opwire.console.calls import ConsoleCalls, Text
from opwire.console.session import ACT_AS, LIFETIME, SessionStore, cookie_name
from opwire.console.system import (
    ConsoleSystem,
    KnownServers,
    SourceCatalog,
    decide_task,
    shown_journal,
    shown_timings,
)
from opwire.console.tape import APPROVE, VALUES, Tape
from opwire.console.web import (
    SECURITY,
    StaticFile,
    Streams,
    cached_reply,
    check_sender,
    empty_reply,
    etag_of,
    json_reply,
    read_body,
    read_files,
    reply,
    require,
    signed_out,
)
from opwire.errors import CallError, ErrorCode, check_above_zero, check_known
from opwire.model.operation import LOCAL_IDENTITY, Identity, Interceptor, holds
from opwire.observe.monitor import OBSERVE, CallMonitor
from opwire.openapi.server.request import Request
from opwire.openapi.server.responses import send_error
from opwire.registry import OperationRegistry, RegistryView
from opwire.registry.dispatch import Dispatcher, operation_filter
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.text import get_logger
from opwire.version import VERSION

logger = get_logger("opwire.console")

STATIC = Path(__file__).parent / "static"
"""The files of the page, which `make console` builds."""

JOURNAL = "opwire:journal"
"""The scope that submits buried tasks again, and discards them."""

_MAX_FOUND = 200  # operations of one search
_MAX_QUERY = 400  # characters of one search
_MAX_SNIPPET = 100_000  # bytes of a request for snippets: 0.8 MB of `{}` took 0.6 s
_CACHED = 8  # lists of operations, by identity

Handle = Callable[[Request], Awaitable[App]]
"""Returns the response to a request, or the app that streams it."""


def serve_console(
    registry: OperationRegistry,
    *,
    title: str = "opwire",
    version: str = VERSION,
    timeout: float | None = 300.0,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    interceptors: Iterable[Interceptor] = (),
    monitor: CallMonitor | None = None,
    system: ConsoleSystem | None = None,
    **guard: Unpack[GuardOptions],
) -> "ConsoleApp":
    """Return the console of a registry as an ASGI app, to be mounted or to listen itself.

        console = serve_console(registry, authenticate=StaticTokens({...}))
        app = serve_http(registry, mounts={"/console": console}, authenticate=StaticTokens({...}))

    A person signs in by a token that `authenticate` accepts, or by the link of `ConsoleApp.create_link`. Without a
    login the page shows public operations only, unless `anonymous` gives callers an identity. `timeout` is the default
    of calls in seconds; persons wait longer than programs, and answer questions. `system` names what the page shows
    beside operations and calls. `include`, `exclude`, `interceptors`, `monitor` and the options of `RequestGuard` are
    those of `serve_http`; pass the `monitor` of the other surfaces, so that the page shows their calls.

    The registry, or the one that it is a view of, gets an interceptor that shows nested calls.

    Raises:
        UsageError: an option is invalid.
    """
    check_known(guard, GuardOptions.__annotations__, "serve_console")
    dispatcher = Dispatcher(registry, serves=operation_filter(include, exclude))
    monitor = monitor or CallMonitor(registry, name=title, version=version)
    dispatcher.use(monitor.interceptor("console"))
    for interceptor in interceptors:
        dispatcher.use(interceptor)
    called = registry
    while isinstance(called, RegistryView):  # nested calls are made in the registry that is viewed
        called = called.source
    called.use(monitor.inner_interceptor())
    monitor.keep_timings()
    return ConsoleApp(dispatcher, monitor, ConsoleInfo(title, version, timeout), system or ConsoleSystem(), guard)


class ConsoleInfo(NamedTuple):
    """The name and version that the page shows, and the default timeout of calls."""

    title: str
    version: str
    timeout: float | None


class ConsoleApp(ListeningApp):
    """The console of a registry; `serve_console` returns one."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        monitor: CallMonitor,
        info: ConsoleInfo,
        system: ConsoleSystem,
        guard: GuardOptions,
    ) -> None:
        check_above_zero(timeout=info.timeout)
        self._title, self._registry = info.title, dispatcher.registry
        self._files = read_files(STATIC)
        self._sessions = SessionStore(guard.get("authenticate"))
        self._guarded = RequestGuard(self._handle, surface="console", session=self._sessions.find, **guard)
        self._streams = Streams(self._sessions)
        self._calls = ConsoleCalls(dispatcher, self._streams, timeout=info.timeout, acts=monitor.remote is None)
        operations = self._operations = OperationRoutes(dispatcher, system.sources, monitor.remote)
        self._tape = Tape(dispatcher.registry, monitor, self._streams, system.approvals, lambda: self.revision)
        session = SessionRoutes(self._sessions, self._streams, info.title, info.version, is_here=monitor.remote is None)
        shown = SystemRoutes(monitor, system)
        self._routes: Mapping[tuple[str, str], Handle] = {
            ("GET", "session"): session.show,
            ("POST", "session"): session.log_in,
            ("DELETE", "session"): session.log_out,
            ("GET", "operations"): operations.list,
            ("GET", "operations/*"): operations.describe,
            ("GET", "search"): operations.search,
            ("POST", "snippets"): operations.show_snippets,
            ("POST", "call"): self._calls.run,
            ("GET", "calls/*"): self._tape.show_values,
            ("POST", "calls/*"): self._calls.answer,
            ("GET", "results/*"): self._calls.download,
            ("GET", "events"): self._tape.run,
            ("GET", "system"): shown.show,
            ("POST", "approvals/*"): shown.approve,
            ("POST", "journal/*"): shown.decide_task,
        }

    def __repr__(self) -> str:
        return f"<ConsoleApp {self._title!r} of {self._registry!r}>"

    @property
    def revision(self) -> str:
        """The version of the list of operations."""
        return self._operations.revision

    def create_link(self, identity: Identity = LOCAL_IDENTITY) -> str:
        """Return the code of a link that signs a person in, once, within five minutes.

            print(f"{address}/console/#link={console.create_link()}")

        By default the person may do everything: show the link only to the operator of this process.
        """
        return self._sessions.create_link(identity)

    def drain(self) -> None:
        """Prepare for shutdown: calls and streams of the page end."""
        self._streams.interrupt(CallError(ErrorCode.UNAVAILABLE, "the server is shutting down", retry_after=1))

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, scope[ADMITTED])
        try:
            response = await self._response(request)
            if isinstance(response, Response) and request.method == "HEAD":
                response.body = b""  # with the headers of the whole
            await response(scope, receive, send)
        except Exception as error:
            await send_error(send, request, error, logger, SECURITY)

    async def _response(self, request: Request) -> App:
        if request.path.startswith("/api/"):
            check_sender(request)
            is_lost = request.identity is None and self._sessions.has_ended(request.headers)
            if is_lost and request.path != "/api/session":  # otherwise the page would silently show less
                raise signed_out()
            name = request.path.removeprefix("/api/")
            head, slash, rest = name.partition("/")
            pattern = f"{head}/*" if slash and rest else name
            method = "GET" if request.method == "HEAD" and name != "events" else request.method  # a stream has no end
            is_plain = request.is_plain or (pattern != name and request.is_spelled(f"/api/{head}"))
            if is_plain and (handle := self._routes.get((method, pattern))) is not None:
                return await handle(request)
            if is_plain and (methods := [method for method, path in self._routes if path == pattern]):
                raise _wrong_method(*methods)
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path {request.path[:200]}")
        if request.method not in ("GET", "HEAD"):
            raise _wrong_method("GET", "HEAD")
        if request.path == request.root_path:  # the address without its slash
            headers = {"location": quote(f"{request.root_path}/")}
            return reply(request, status=HTTPStatus.TEMPORARY_REDIRECT, headers=headers)
        file = self._files.get(request.path.removeprefix("/") or "index.html")
        if file is None and not self._files:
            raise CallError(ErrorCode.UNAVAILABLE, "the page was not built: run `make console`, and start again")
        if file is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path {request.path[:200]}")
        is_immutable = request.path.startswith("/assets/")  # their names change with their content
        cache_control = "public, max-age=31536000, immutable" if is_immutable else "no-cache"
        return cached_reply(request, file, cache_control=cache_control)


def _wrong_method(*methods: str) -> HTTPStatusError:
    wrong = CallError(ErrorCode.PROTOCOL_ERROR, f"the methods of this path are {', '.join(methods)}")
    return HTTPStatusError(HTTPStatus.METHOD_NOT_ALLOWED, wrong, (b"allow", ", ".join(methods).encode()))


# --- routes -----------------------------------------------------------------------------------------------------------


class Login(Struct, frozen=True):
    """The body of a login: a token, or the code of a link."""

    token: Annotated[str, Meta(max_length=16 * 1024)] | None = None
    link: Annotated[str, Meta(max_length=200)] | None = None


class ApprovalDecision(Struct, frozen=True):
    """The body of a decision about a call that waits for approval."""

    approve: bool
    reason: Text = ""


class TaskDecision(Struct, frozen=True):
    """The body of a decision about a buried task."""

    action: Literal["retry", "discard"]


class SnippetBody(Struct, frozen=True, rename="camel"):
    """The body of a request for snippets."""

    operation_id: Text
    input: Any = None


class OperationRoutes:
    """Lists, describes and finds operations. `remote` is the address of the server, if that is another one."""

    def __init__(self, dispatcher: Dispatcher, sources: SourceCatalog | None, remote: str | None) -> None:
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._sources = sources
        self._remote = remote
        self._start = token_hex(4)  # revisions of two runs differ
        self._listed: BoundedDict[str, StaticFile] = BoundedDict(_CACHED)  # by ETag
        self._names: tuple[int, ToolNames] = (-1, ToolNames())  # with the changes of the registry that they are for

    @property
    def revision(self) -> str:
        """The version of the list of operations."""
        return f"{self._start}.{self._registry.changes}"

    async def list(self, request: Request) -> Response:
        """Return the operations that the caller may see; the list has an ETag."""
        identity = request.identity
        etag = etag_of(f"{self.revision} {identity!r}".encode("utf-8", "replace"))
        file = self._listed.get(etag)
        if file is None:
            listed = [
                {
                    "id": spec.id,
                    "type": spec.type.value,
                    "title": spec.title,
                    "summary": spec.description.strip().partition("\n")[0][:200],
                    "tags": spec.tags,
                    "source": self._source(spec.id),
                    "readOnly": spec.mcp.annotations.read_only,
                    "destructive": spec.mcp.annotations.destructive,
                }
                for spec in self._dispatcher.visible(identity)
            ]
            plain = msgspec.json.encode({"revision": self.revision, "operations": listed})
            packed = await asyncio.to_thread(gzip.compress, plain, 4)
            file = self._listed[etag] = StaticFile("application/json", plain, packed, etag)
        return cached_reply(request, file, cache_control="private, no-cache", vary="accept-encoding, cookie")

    def _source(self, operation_id: str) -> str | None:
        return None if self._sources is None else self._sources.source_of(operation_id)

    async def describe(self, request: Request) -> Response:
        """Return everything about one operation."""
        spec = self._dispatcher.find(request.path.removeprefix("/api/operations/"), request.identity)
        access = spec.access
        found = {
            "id": spec.id,
            "type": spec.type.value,
            "title": spec.title,
            "description": spec.description,
            "version": spec.version,
            "tags": spec.tags,
            "source": self._source(spec.id),
            "role": spec.mcp.role,
            "uri": spec.mcp.uri,
            "annotations": spec.mcp.annotations.to_mcp(),
            "access": None
            if access is None
            else {
                "public": access.public,
                "requiredScopes": access.required_scopes,
                "requiredScopesAny": access.required_scopes_any,
                "resources": access.resources,
            },
            "timeout": spec.timeout,
            "examples": spec.examples,
            "inputSchema": spec.input_schema.json,
            "outputSchema": None if spec.output_schema.is_unknown else spec.output_schema.json,
            "tokens": token_cost(spec),
        }
        return json_reply(request, found)

    async def search(self, request: Request) -> Response:
        """Return the ids of the operations that match a query, best first."""
        query = dict(parse_qsl(request.query.decode("latin-1")[: 8 * _MAX_QUERY]))
        limit = query.get("limit", "50")
        count = min(int(limit), _MAX_FOUND) if limit.isascii() and limit.isdigit() and len(limit) < 10 else 50
        identity = request.identity
        found = self._registry.search(
            query.get("q", "")[:_MAX_QUERY],
            limit=max(count, 1),
            visible=lambda spec: self._dispatcher.is_visible(spec, identity),
        )
        return json_reply(request, {"ids": [spec.id for spec in found]})

    async def show_snippets(self, request: Request) -> Response:
        """Return code that calls an operation with an input."""
        if len(request.admitted.body) > _MAX_SNIPPET:
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"snippets show inputs of at most {_MAX_SNIPPET:,} bytes")
        body = read_body(request, SnippetBody)
        spec = self._dispatcher.find(body.operation_id, request.identity)
        url = self._remote
        if url is None and request.api_root is not None:
            host = request.headers.get(b"host", b"").decode("latin-1")
            url = f"{'https' if request.is_secure else 'http'}://{host}{request.api_root}"
        changes, names = self._names
        if changes != self._registry.changes:
            names = ToolNames()
            names.add(each.id for each in self._dispatcher.served())
            self._names = self._registry.changes, names
        is_http, has_token = ((url or "").startswith(schemes) for schemes in (("http",), ("http", "ws")))
        found = {
            "curl": curl_snippet(spec, body.input, url) if url and is_http else None,
            "python": python_snippet(spec, body.input, url) if url and has_token else None,  # a broker needs more
            "mcp": mcp_snippet(spec, body.input, names[spec.id]) if spec.mcp.role == "tool" else None,
        }
        return json_reply(request, found)


class SessionRoutes:
    """Signs a person in and out. `is_here`: false at a remote server, which sends no values."""

    def __init__(self, sessions: SessionStore, streams: Streams, title: str, version: str, *, is_here: bool) -> None:
        self._sessions = sessions
        self._streams = streams
        self._title = title
        self._version = version
        self._is_here = is_here  # another server sends no values, and knows its token only

    async def show(self, request: Request) -> Response:
        """Return the identity of the session, and what it may do."""
        response = self._shown(request, request.identity, request.admitted.expires)
        if self._sessions.has_ended(request.headers):  # from now on it shows what is public
            self._set_cookie(request, response, "", 0)
        return response

    async def log_in(self, request: Request) -> Response:
        """Open a session with a token, or with the code of a link."""
        body = read_body(request, Login)
        if (body.token is None) == (body.link is None):
            raise CallError(ErrorCode.VALIDATION_ERROR, "the body has a token or a link")
        secret, session = await self._sessions.open(token=body.token, link=body.link)
        self._streams.log_out(request)  # of the session before it
        response = self._shown(request, session.grant.identity, session.expires)
        self._set_cookie(request, response, secret, round(LIFETIME))
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session and its streams."""
        self._streams.log_out(request)
        response = empty_reply(request)
        self._set_cookie(request, response, "", 0)
        return response

    def _set_cookie(self, request: Request, response: Response, secret: str, seconds: int) -> None:
        """Set the cookie of the session; delete it with 0 seconds."""
        path = request.root_path or "/"
        name, secure = cookie_name(request.headers), request.is_secure
        response.set_cookie(name, secret, seconds, path=path, secure=secure, httponly=True, samesite="strict")

    def _shown(self, request: Request, identity: Identity | None, expires: float | None) -> Response:
        found = {
            "identity": None if identity is None else {"id": identity.id, "scopes": identity.scopes},
            "login": identity is None,
            "mayObserve": holds(identity, OBSERVE),
            "mayShowValues": self._is_here and holds(identity, VALUES),
            "mayActAs": self._is_here and holds(identity, ACT_AS),
            "mayApprove": holds(identity, APPROVE),
            "mayRunJournal": holds(identity, JOURNAL),
            "title": self._title,
            "version": self._version,
            "expires": None if expires is None else round(expires * 1000),
        }
        return json_reply(request, found)


class SystemRoutes:
    """Shows the system, and decides about calls that wait for approval and about buried tasks."""

    def __init__(self, monitor: CallMonitor, system: ConsoleSystem) -> None:
        self._monitor = monitor
        self._system = system
        self._servers = KnownServers(monitor, system.servers)

    async def show(self, request: Request) -> Response:
        """Return the servers, sources, timings and the journal."""
        require(request, OBSERVE)
        system = self._system
        shows_messages = holds(request.identity, VALUES)
        found = {
            "servers": await self._servers.shown(),
            "sources": () if system.sources is None else tuple(system.sources.statuses()),
            "operations": shown_timings(self._monitor.timings or {}),
            "journal": None if system.journal is None else await shown_journal(system.journal, messages=shows_messages),
        }
        return json_reply(request, found)

    async def approve(self, request: Request) -> Response:
        """Approve or deny a call that waits."""
        identity = require(request, APPROVE)
        body = read_body(request, ApprovalDecision)
        id, queue = request.path.removeprefix("/api/approvals/"), self._system.approvals
        if queue is None or not (
            queue.approve(id, by=identity.id) if body.approve else queue.deny(id, body.reason, by=identity.id)
        ):
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "the call does not wait for approval any more")
        return empty_reply(request)

    async def decide_task(self, request: Request) -> Response:
        """Submit a buried task again, or discard it."""
        identity = require(request, JOURNAL)
        body = read_body(request, TaskDecision)
        key = request.path.removeprefix("/api/journal/")
        if self._system.journal is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "this server has no journal")
        await decide_task(self._system.journal, key, body.action)
        logger.info("%s: %s of the buried task %r", identity.id, body.action, key[:200])
        return empty_reply(request)
