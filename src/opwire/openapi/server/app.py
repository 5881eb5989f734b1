"""`serve_http`: a registry as an ASGI app, from its probes and mounted apps to the call of an operation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack
from urllib.parse import quote

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router

from opwire.asgi.app import AppMount, ExactRoute, ListeningApp
from opwire.asgi.guard import GuardOptions, RequestGuard
from opwire.asgi.problem import HTTPStatusError, Send
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope
from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, check_choice, check_known, check_list
from opwire.model.access import check_access
from opwire.model.envelope import ToolErrorPolicy
from opwire.model.operation import Interceptor, OperationType
from opwire.model.origin import RESUMED, id_of, path_of
from opwire.names import suggestion
from opwire.observe.logs import CANCELLED
from opwire.observe.monitor import CallMonitor
from opwire.openapi.server.document import DocumentCache, DocumentInfo
from opwire.openapi.server.request import READS, REQUEST, CancelOnDisconnect, OperationRoute, Request
from opwire.openapi.server.responses import (
    JSON,
    NO_STORE,
    EventStream,
    Requests,
    encode_response,
    send_methods,
    send_response,
    shutting_down,
)
from opwire.openapi.server.webhooks import WebhookRoute
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher, operation_filter
from opwire.runtime.deadlines import CALL_TIMEOUT, Deadlines
from opwire.runtime.text import get_logger
from opwire.version import VERSION

if TYPE_CHECKING:
    from opwire.openapi.webhooks import WebhookReceiver

logger = get_logger("opwire.openapi.server")


def serve_http(
    registry: OperationRegistry,
    *,
    title: str = "opwire",
    version: str = VERSION,
    description: str = "",
    servers: Iterable[str] = (),
    timeout: float | None = CALL_TIMEOUT,
    heartbeat: float = 15.0,
    is_error: ToolErrorPolicy = "raise",
    cors_origins: Iterable[str] = (),
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    interceptors: Iterable[Interceptor] = (),
    monitor: CallMonitor | None = None,
    webhooks: "Mapping[str, WebhookReceiver] | None" = None,
    mounts: Mapping[str, ListeningApp] | None = None,
    **guard: Unpack[GuardOptions],
) -> "HTTPApp":
    """Return the registry as an ASGI app.

        app = serve_http(registry, title="Shop", version="1.0", authenticate=StaticTokens({...}))

    Without `authenticate` only public operations can be called, unless `anonymous` gives callers an identity. The
    default hosts are the loopback names: `hosts=["shop.example"]` replaces them. These and the limits are options of
    `RequestGuard`. Pages of the origins `cors_origins` may call and read the responses.

    `servers` are the public URLs of this server, for its document: ["https://shop.example/api"]. By default the
    document has the path under which the app is mounted.

    `include` and `exclude` are patterns of ids or tags that select the served operations. `interceptors` run around
    every call of this surface, the first outermost. `timeout` is the default of calls in seconds. A stream that is
    silent for `heartbeat` seconds gets a comment line. `is_error`: see `ToolErrorPolicy`. `monitor` counts the calls,
    and serves its two operations, unlisted, to callers with the scope `opwire:observe`.

    `webhooks` are receivers by name: senders POST to `/webhooks/NAME`, or to `/webhooks/NAME/WEBHOOK` for one of them.
    They need a signature instead of a token. `mounts` are other apps by path, such as {"/console": serve_console(…)},
    with guards of their own. Both have priority over a namespace of that name.

    Raises:
        UsageError: an option is invalid.
    """
    check_list("URLs", servers=servers)
    check_list("origins", cors_origins=cors_origins)
    info = DocumentInfo(
        title=title,
        version=version,
        description=description,
        servers=tuple(servers),
        takes_tokens=guard.get("authenticate") is not None,
        allows_anonymous=guard.get("anonymous") is not None,
    )
    own_operations = None if monitor is None else lambda: monitor.operations
    dispatcher = Dispatcher(registry, serves=operation_filter(include, exclude), own=own_operations)
    if monitor is not None:
        dispatcher.use(monitor.interceptor("http"))
    for interceptor in interceptors:
        dispatcher.use(interceptor)
    options = HTTPAppOptions(
        CallOptions(timeout, heartbeat, is_error), list(cors_origins), webhooks or {}, mounts or {}
    )
    return HTTPApp(dispatcher, info, options, guard)


class CallOptions(NamedTuple):
    """How operations are called over HTTP; see `serve_http`."""

    timeout: float | None
    heartbeat: float
    is_error: ToolErrorPolicy


class HTTPAppOptions(NamedTuple):
    """The options of `HTTPApp` besides those of its guard; see `serve_http`."""

    calls: CallOptions
    cors: Sequence[str]
    webhooks: "Mapping[str, WebhookReceiver]"
    mounts: Mapping[str, ListeningApp]


class HTTPApp(ListeningApp):
    """A registry as an ASGI app; `serve_http` returns one."""

    def __init__(
        self, dispatcher: Dispatcher, info: DocumentInfo, options: HTTPAppOptions, guard: GuardOptions
    ) -> None:
        check_above_zero(timeout=options.calls.timeout, heartbeat=options.calls.heartbeat)
        check_choice(ToolErrorPolicy, is_error=options.calls.is_error)
        check_known(guard, GuardOptions.__annotations__, "serve_http")
        for path in options.mounts:
            if not path.startswith("/") or path.endswith("/"):
                raise UsageError(f"an app is mounted at a path such as /console, not {path!r}")
        self.draining = False
        self._dispatcher = dispatcher
        self._title = info.title
        self._mounts = options.mounts
        self._operations = OperationEndpoint(dispatcher, options.calls)
        api = Router(
            [
                *(WebhookRoute(name, receiver, lambda: self.draining) for name, receiver in options.webhooks.items()),
                ExactRoute("/openapi.json", DocumentEndpoint(DocumentCache(dispatcher, info))),
            ],
            redirect_slashes=False,
            default=self._operations,
        )
        if options.cors:
            guard["origins"] = [*guard.get("origins", ()), *options.cors]
        guarded: App = RequestGuard(Requests(api, logger), surface="http", **guard)
        if options.cors:
            any_name = ["*"]
            guarded = CORSMiddleware(
                guarded, options.cors, allow_methods=any_name, allow_headers=any_name, expose_headers=any_name
            )
        super().__init__(
            default=guarded,
            routes=[
                *(AppMount(path, app) for path, app in options.mounts.items()),
                ExactRoute("/healthz", Probe(lambda: True)),
                ExactRoute("/readyz", Probe(lambda: not self.draining)),
            ],
        )

    def __repr__(self) -> str:
        return f"<HTTPApp {self._title!r} of {self._dispatcher.registry!r}>"

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call of this surface; the returned function removes it."""
        return self._dispatcher.use(interceptor)

    def drain(self) -> None:
        """Prepare for shutdown: not ready any more, and streams end. Calls in flight complete."""
        self.draining = True
        self._operations.drain()
        for app in self._mounts.values():
            app.drain()


class Probe:
    """Tell a load balancer or an orchestrator about this server, with any host name: probes use the address."""

    def __init__(self, is_ok: Callable[[], bool]) -> None:
        self._is_ok = is_ok
        self._responding = Requests(self._respond, logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, which no guard has admitted."""
        scope[ADMITTED] = AdmittedRequest(scope["method"], scope["headers"], dict(scope["headers"]))
        await self._responding(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope[REQUEST]
        if request.method not in READS:
            await send_methods(send, request, "GET", "HEAD")
        elif not self._is_ok():
            raise shutting_down()
        else:
            await send_response(send, request, HTTPStatus.OK, b'{"status":"ok"}', [JSON, NO_STORE])


class DocumentEndpoint:
    """The OpenAPI document, with the operations that the caller may see."""

    def __init__(self, documents: DocumentCache) -> None:
        self._documents = documents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request: Request = scope[REQUEST]
        if request.method not in READS:
            await send_methods(send, request, "GET", "HEAD")
            return
        document = await self._documents.get(request.identity, request.query, request.root_path)
        headers = [
            JSON,
            (b"cache-control", b"private, no-cache"),
            (b"vary", b"authorization, x-api-key"),
            (b"etag", document.etag),
        ]
        cached = request.headers.get(b"if-none-match", b"")
        if document.etag in cached or cached == b"*":
            await send_response(send, request, HTTPStatus.NOT_MODIFIED, b"", headers)
        else:
            await send_response(send, request, HTTPStatus.OK, document.body, headers)


class OperationEndpoint:
    """Every operation of a surface, as an ASGI app: the registry decides which paths there are."""

    def __init__(self, dispatcher: Dispatcher, options: CallOptions) -> None:
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._options = options
        self._deadlines = Deadlines()
        self._routes: dict[str, OperationRoute] = {}  # by path
        self._streams: set[CancelOnDisconnect] = set()
        self._is_draining = False

    def drain(self) -> None:
        """End streams, and open no others. Calls in flight complete."""
        self._is_draining = True
        for stream in tuple(self._streams):
            stream.interrupt(shutting_down())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request.

        Raises:
            CallError, HTTPStatusError: it is rejected, or its call fails.
        """
        request: Request = scope[REQUEST]
        route = self._route(request)
        access = request.access
        if access is not None:
            access.operation = route.spec.id
        if request.method not in route.methods:
            await send_methods(send, request, *route.methods)
            return
        check_access(route.spec, request.identity)
        input = route.input(request)
        if route.spec.type is OperationType.SUBSCRIPTION:
            await self._stream(route, request, input, receive, send)
            return
        context = request.context(self._options.timeout, self._registry.bind_env)
        envelope = None
        with CancelOnDisconnect(receive, self._deadlines):
            envelope = await self._dispatcher.execute(route.spec, input, context)
        if envelope is None:  # the client has disconnected
            if access is not None:
                access.outcome = CANCELLED
            return
        if access is not None:
            access.answered(envelope)
        response = encode_response(
            envelope, whole=request.wants_envelope, is_error=self._options.is_error, request_id=request.request_id
        )
        headers = [(b"content-type", response.content_type), NO_STORE, *response.headers]
        await send_response(send, request, response.status, response.body, headers)

    async def _stream(self, route: OperationRoute, request: Request, input: Any, receive: Receive, send: Send) -> None:
        if self._is_draining:
            raise shutting_down()
        items = self._dispatcher.subscribe(route.spec, input, request.context(None, self._registry.bind_env))
        headers = [(b"x-request-id", request.request_id.encode())]
        if request.last_event_id is not None:  # otherwise the subscription fails
            headers.append((RESUMED.encode(), b"true"))
        running = CancelOnDisconnect(receive, self._deadlines)
        self._streams.add(running)
        try:
            stream = EventStream(
                request, running, send, headers, heartbeat=self._options.heartbeat, has_ids=route.spec.resumable
            )
            error = await stream.run(items)
        finally:
            self._streams.discard(running)
        if request.access is not None:
            if error is not None:
                request.access.failed(error)
            elif running.interrupted:
                request.access.outcome = CANCELLED

    def _route(self, request: Request) -> OperationRoute:
        """Return the route of a request.

        The path has to be spelled exactly as `path_of` spells it. With several spellings, a proxy's rule for one of
        them could be evaded by another.

        Raises:
            CallError, HTTPStatusError: unknown path.
        """
        route = self._routes.get(request.path)
        if route is not None and request.is_plain and self._dispatcher.get_spec(route.spec.id) is route.spec:
            return route
        operation_id = id_of(request.path)
        if operation_id is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "operations are at /{namespace}/{name}: see /openapi.json")
        spec = self._dispatcher.get_spec(operation_id)
        is_plain = request.is_plain and spec is not None and path_of(spec.id) == request.path
        if spec is not None and is_plain and self._dispatcher.is_served(spec):
            route = self._routes[request.path] = OperationRoute.of(spec)
            return route
        path = request.path.rstrip("/")
        if spec is None:
            self._routes.pop(request.path, None)
            spec = self._registry.get_spec(id_of(path) or "")
        if spec is not None and self._dispatcher.is_visible(spec, request.identity):
            place = path_of(spec.id)
            error = CallError(ErrorCode.OPERATION_NOT_FOUND, f"an operation has one path, and this one is at {place}")
            if path != place:
                raise error
            root = request.root_path.strip("/")
            location = quote(f"/{root}{place}" if root else place, safe="/~").encode()
            query = b"?" + request.query if request.query else b""
            raise HTTPStatusError(HTTPStatus.PERMANENT_REDIRECT, error, (b"location", location + query))
        is_visible = partial(self._dispatcher.is_visible, identity=request.identity)
        hint = suggestion(map(path_of, self._registry.suggestions(operation_id, visible=is_visible)))
        raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path {request.path[:200]}{hint}")
