"""The console as an ASGI app: the routes of the page and of the API that it uses."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, Unpack
from urllib.parse import quote

from starlette.responses import Response
from starlette.routing import Router

from opwire.asgi.app import ExactRoute, ListeningApp, PrefixRoute
from opwire.asgi.guard import GuardOptions, RequestGuard
from opwire.asgi.problem import Send
from opwire.asgi.request import App, Receive, Scope
from opwire.console.call_log import CallLog
from opwire.console.calls import ConsoleCalls
from opwire.console.endpoints import OperationEndpoints, SessionEndpoints, SystemEndpoints
from opwire.console.session import SessionStore
from opwire.console.system import ConsoleSystem
from opwire.console.web import (
    SECURITY,
    Endpoint,
    StaticFile,
    Streams,
    cached_reply,
    check_sender,
    no_such_path,
    read_files,
    reply,
    signed_out,
    unknown_path,
    wrong_method,
)
from opwire.errors import CallError, ErrorCode, check_above_zero, check_known
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import Interceptor
from opwire.observe.monitor import CallMonitor
from opwire.openapi.server.request import READS, REQUEST, Request
from opwire.openapi.server.responses import Requests
from opwire.registry import OperationRegistry, RegistryView
from opwire.registry.dispatch import Dispatcher, operation_filter
from opwire.runtime.text import get_logger
from opwire.version import VERSION

logger = get_logger("opwire.console")

STATIC = Path(__file__).parent / "static"
"""The files of the page, which `make console` builds."""


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
        self._sessions = sessions = SessionStore(guard.get("authenticate"))
        self._streams = streams = Streams(sessions)
        is_here = monitor.remote is None
        calls = ConsoleCalls(dispatcher, streams, timeout=info.timeout, acts=is_here)
        operations = self._operations = OperationEndpoints(dispatcher, system.sources, monitor.remote)
        log = CallLog(dispatcher.registry, monitor, streams, system.approvals, lambda: self.revision)
        session = SessionEndpoints(sessions, streams, info.title, info.version, is_here=is_here)
        overview = SystemEndpoints(monitor, system)
        api = Router(
            [
                ExactRoute("/api/session", Endpoint(GET=session.show, POST=session.log_in, DELETE=session.log_out)),
                ExactRoute("/api/operations", Endpoint(GET=operations.list)),
                PrefixRoute("/api/operations", Endpoint(GET=operations.describe)),
                ExactRoute("/api/search", Endpoint(GET=operations.search)),
                ExactRoute("/api/snippets", Endpoint(POST=operations.show_snippets)),
                ExactRoute("/api/call", Endpoint(POST=calls.run)),
                PrefixRoute("/api/calls", Endpoint(GET=log.show_values, POST=calls.answer)),
                PrefixRoute("/api/results", Endpoint(GET=calls.download)),
                ExactRoute("/api/events", Endpoint(GET=log.run, is_endless=True)),
                ExactRoute("/api/system", Endpoint(GET=overview.show)),
                PrefixRoute("/api/approvals", Endpoint(POST=overview.approve)),
                PrefixRoute("/api/journal", Endpoint(POST=overview.decide_task)),
            ],
            redirect_slashes=False,
            default=unknown_path,
        )
        pages = Router(
            [PrefixRoute("/api", OwnPageOnly(api, sessions))],
            redirect_slashes=False,
            default=Page(read_files(STATIC)),
        )
        guarded = RequestGuard(Requests(pages, logger, SECURITY), surface="console", session=sessions.find, **guard)
        super().__init__(default=guarded)

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


class OwnPageOnly:
    """Middleware that rejects requests of other pages, and of a session that has ended."""

    def __init__(self, app: App, sessions: SessionStore) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the sender of a request, then serve it.

        Raises:
            CallError: ACCESS_DENIED, UNAUTHENTICATED.
        """
        request: Request = scope[REQUEST]
        check_sender(request)
        has_lost_session = request.identity is None and self._sessions.has_ended(request.headers)
        if has_lost_session and request.path != "/api/session":  # otherwise the page would silently show less
            raise signed_out()
        await self._app(scope, receive, send)


class Page:
    """The files of the page."""

    def __init__(self, files: Mapping[str, StaticFile]) -> None:
        self._files = files
        self._endpoint = Endpoint(GET=self._show)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request: Request = scope[REQUEST]
        if request.method not in READS:
            raise wrong_method("GET", "HEAD")
        await self._endpoint(scope, receive, send)

    async def _show(self, request: Request) -> Response:
        if request.path == request.root_path:  # the address without its slash
            headers = {"location": quote(f"{request.root_path}/")}
            return reply(request, status=HTTPStatus.TEMPORARY_REDIRECT, headers=headers)
        file = self._files.get(request.path.removeprefix("/") or "index.html")
        if file is None and not self._files:
            raise CallError(ErrorCode.UNAVAILABLE, "the page was not built: run `make console`, and start again")
        if file is None:
            raise no_such_path(request)
        is_immutable = request.path.startswith("/assets/")  # their names change with their content
        cache_control = "public, max-age=31536000, immutable" if is_immutable else "no-cache"
        return cached_reply(request, file, cache_control=cache_control)
