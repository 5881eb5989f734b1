"""The console as an ASGI app: the page, its session, and the API that the page uses."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, Unpack

from opwire.dispatch import Dispatcher, operation_filter
from opwire.errors import CallError, ErrorCode, check_above_zero
from opwire.monitor import CallMonitor
from opwire.operation import LOCAL_IDENTITY, Identity, Interceptor
from opwire.registry import OperationRegistry, RegistryView
from opwire.serve.console.calls import ConsoleCalls
from opwire.serve.console.routes import OperationRoutes, SessionRoutes, SystemRoutes
from opwire.serve.console.session import SessionStore
from opwire.serve.console.system import ConsoleSystem
from opwire.serve.console.tape import Tape
from opwire.serve.console.web import (
    SECURITY,
    Streams,
    check_sender,
    read_files,
    send_bytes,
    send_file,
    signed_out,
)
from opwire.serve.guard import (
    GuardOptions,
    HTTPStatusError,
    Receive,
    RequestGuard,
    Scope,
    Send,
    send_problem,
)
from opwire.serve.http.request import Request
from opwire.serve.listener import ListeningApp

logger = logging.getLogger("opwire.serve.console")

STATIC = Path(__file__).parent / "static"
"""The files of the page, which `make console` builds."""


Handle = Callable[[Request, Receive, Send], Awaitable[None]]


def serve_console(
    registry: OperationRegistry,
    *,
    title: str = "opwire",
    version: str = "1.0",
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
    info = ConsoleInfo(title, version, timeout)
    return ConsoleApp(dispatcher, monitor, info, system or ConsoleSystem(), guard)


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's lifespan."""
        await self._guarded(scope, receive, send)

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
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.drain()
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = Request(scope)
        try:
            await self._respond(request, receive, send)
        except (CallError, HTTPStatusError) as error:
            await self._fail(send, request, error)
        except Exception:
            logger.exception("request %s failed", request.request_id)
            wrong = f"internal error; the server's log has it under request id {request.request_id}"
            await self._fail(send, request, CallError(ErrorCode.INTERNAL, wrong))

    async def _fail(self, send: Send, request: Request, error: CallError | HTTPStatusError) -> None:
        if request.access is not None:
            request.access.failed(error.error if isinstance(error, HTTPStatusError) else error)
        await send_problem(
            send, error, request_id=request.request_id, headers=SECURITY, with_body=request.method != "HEAD"
        )

    async def _respond(self, request: Request, receive: Receive, send: Send) -> None:
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
                await handle(request, receive, send)
                return
            if is_plain and (methods := [method for method, path in self._routes if path == pattern]):
                raise _wrong_method(*methods)
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path {request.path[:200]}")
        if request.method not in ("GET", "HEAD"):
            raise _wrong_method("GET", "HEAD")
        if request.path == request.root_path:  # the address without its slash
            location = (b"location", f"{request.root_path}/".encode("latin-1", "replace"))
            await send_bytes(send, request, b"", b"", location, status=HTTPStatus.TEMPORARY_REDIRECT)
            return
        file = self._files.get(request.path.removeprefix("/") or "index.html")
        if file is None and not self._files:
            raise CallError(ErrorCode.UNAVAILABLE, "the page was not built: run `make console`, and start again")
        if file is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path {request.path[:200]}")
        await send_file(send, request, file, is_immutable=request.path.startswith("/assets/"))


def _wrong_method(*methods: str) -> HTTPStatusError:
    wrong = CallError(ErrorCode.PROTOCOL_ERROR, f"the methods of this path are {', '.join(methods)}")
    return HTTPStatusError(HTTPStatus.METHOD_NOT_ALLOWED, wrong, (b"allow", ", ".join(methods).encode()))
