"""The HTTP surface as an ASGI app: probes, mounted apps, the document, webhooks and operations, as routes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Unpack

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router

from opwire.asgi.app import AppMount, ExactRoute, ListeningApp
from opwire.asgi.guard import GuardOptions, RequestGuard
from opwire.asgi.problem import Send
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope
from opwire.errors import UsageError, check_above_zero, check_choice, check_known, check_list
from opwire.model.envelope import ToolErrorPolicy
from opwire.model.operation import Interceptor
from opwire.observe.monitor import CallMonitor
from opwire.openapi.server.document import DocumentCache, DocumentInfo
from opwire.openapi.server.endpoints import JSON, NO_STORE, Requests, send_methods, send_response, shutting_down
from opwire.openapi.server.operations import CallOptions, OperationEndpoint
from opwire.openapi.server.request import READS, REQUEST, Request
from opwire.openapi.server.webhooks import WebhookRoute
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher, operation_filter
from opwire.runtime.deadlines import CALL_TIMEOUT
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
        scope[ADMITTED] = AdmittedRequest.of(scope)
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
