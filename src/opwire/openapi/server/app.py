"""The HTTP surface as an ASGI app: route, parse, dispatch, respond."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack
from urllib.parse import quote

from starlette.middleware.cors import CORSMiddleware

from opwire.asgi.guard import CloseAfterUpgrade, GuardOptions, RequestGuard
from opwire.asgi.listener import ListeningApp
from opwire.asgi.problem import Header, HTTPStatusError, Send
from opwire.asgi.request import ADMITTED, AdmittedRequest, Receive, Scope
from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, check_choice, check_known, check_list
from opwire.model.envelope import ResponseEnvelope, ToolErrorPolicy
from opwire.model.operation import Context, Interceptor, OperationType, check_access
from opwire.model.origin import RESUMED, id_of, path_of
from opwire.names import suggestion
from opwire.observe.logs import CANCELLED
from opwire.observe.monitor import CallMonitor
from opwire.openapi.server.document import DocumentCache, DocumentInfo
from opwire.openapi.server.request import API_ROOT, READS, CancelOnDisconnect, Request, Route, is_spelled, parse_body
from opwire.openapi.server.responses import EventStream, encode_response, send_error
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher, operation_filter
from opwire.runtime.deadlines import CALL_TIMEOUT, Deadlines
from opwire.runtime.text import get_logger
from opwire.version import VERSION

if TYPE_CHECKING:
    from opwire.openapi.webhooks import WebhookReceiver

logger = get_logger("opwire.openapi.server")

_WEBHOOKS = "/webhooks/"
_NO_STORE = (b"cache-control", b"no-store")  # and no `vary`, which would only matter to a cache
_WITHOUT_LENGTH = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


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
    own = None if monitor is None else lambda: monitor.operations
    dispatcher = Dispatcher(registry, serves=operation_filter(include, exclude), own=own)
    if monitor is not None:
        dispatcher.use(monitor.interceptor("http"))
    for interceptor in interceptors:
        dispatcher.use(interceptor)
    options = HTTPAppOptions(timeout, heartbeat, is_error, list(cors_origins), webhooks or {}, mounts or {})
    return HTTPApp(dispatcher, info, options, guard)


class HTTPAppOptions(NamedTuple):
    """The options of `HTTPApp` besides those of its guard; see `serve_http`."""

    timeout: float | None
    heartbeat: float
    is_error: ToolErrorPolicy
    cors: Sequence[str]
    webhooks: "Mapping[str, WebhookReceiver]"
    mounts: Mapping[str, ListeningApp]


class HTTPApp(ListeningApp):
    """A registry as an ASGI app; `serve_http` returns one."""

    def __init__(
        self, dispatcher: Dispatcher, info: DocumentInfo, options: HTTPAppOptions, guard: GuardOptions
    ) -> None:
        check_above_zero(timeout=options.timeout, heartbeat=options.heartbeat)
        check_choice(ToolErrorPolicy, is_error=options.is_error)
        check_known(guard, GuardOptions.__annotations__, "serve_http")
        for name in options.webhooks:
            if path_of(f"webhooks.{name}") != _WEBHOOKS + name:
                raise UsageError(f"the name of a webhook receiver has letters, digits, -, _ and ., unlike {name!r}")
        for path in options.mounts:
            if not path.startswith("/") or path.endswith("/"):
                raise UsageError(f"an app is mounted at a path such as /console, not {path!r}")
        self.draining = False
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._options = options
        self._title = info.title
        self._documents = DocumentCache(dispatcher, info)
        if options.cors:
            guard["origins"] = [*guard.get("origins", ()), *options.cors]
        self._guarded = RequestGuard(self._handle, surface="http", **guard)
        if options.cors:
            wildcard = ["*"]
            answering = CORSMiddleware(
                self._guarded, options.cors, allow_methods=wildcard, allow_headers=wildcard, expose_headers=wildcard
            )
            self._guarded = CloseAfterUpgrade(answering)
        self._deadlines = Deadlines()
        self._routes: dict[str, Route] = {}
        self._streams: set[CancelOnDisconnect] = set()

    def __repr__(self) -> str:
        return f"<HTTPApp {self._title!r} of {self._registry!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's lifespan."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if self._options.mounts:
            root: str = scope.get("root_path", "")
            inner = scope["path"].removeprefix(root)
            for path, app in self._options.mounts.items():
                if (inner == path or inner.startswith(f"{path}/")) and is_spelled(scope, path):
                    await app({**scope, "root_path": root + path, API_ROOT: root}, receive, send)
                    return
        request = Request(scope, AdmittedRequest.of(scope))
        if request.path in ("/healthz", "/readyz") and request.is_plain:  # with any host name: probes use the address
            await CloseAfterUpgrade(self._probe)(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)

    async def _probe(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, AdmittedRequest.of(scope))
        if request.method not in READS:
            await _send_methods(send, request, ("GET", "HEAD"))
        elif request.path == "/readyz" and self.draining:
            await send_error(send, request, _shutting_down(), logger)
        else:
            headers = [(b"content-type", b"application/json"), _NO_STORE]
            await _send_response(send, request, HTTPStatus.OK, b'{"status":"ok"}', headers)

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call of this surface; the returned function removes it."""
        return self._dispatcher.use(interceptor)

    def drain(self) -> None:
        """Prepare for shutdown: not ready any more, and streams end. Calls in flight complete."""
        self.draining = True
        for stream in tuple(self._streams):
            stream.interrupt(_shutting_down())
        for app in self._options.mounts.values():
            app.drain()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, scope[ADMITTED])
        if request.access is not None:
            request.access.request_id = request.request_id
        try:
            if not (self._options.webhooks and await self._take_webhook(request, send)):
                await self._respond(request, receive, send)
        except asyncio.CancelledError:  # the server stops, and does not wait any longer
            if request.access is not None:
                request.access.outcome = CANCELLED
            raise
        except Exception as error:
            await send_error(send, request, error, logger)

    async def _respond(self, request: Request, receive: Receive, send: Send) -> None:
        route = self._route(request)
        if route is None:
            await self._send_document(request, send)
            return
        access = request.access
        if access is not None:
            access.operation = route.spec.id
        if request.method not in route.methods:
            await _send_methods(send, request, route.methods)
            return
        check_access(route.spec, request.identity)
        input = route.input(request)
        if route.spec.type is OperationType.SUBSCRIPTION:
            await self._stream(route, request, input, receive, send)
            return
        whole = request.wants_envelope
        context = request.context(self._options.timeout, self._registry.bind_env)
        envelope = await self._execute(route, input, context, receive)
        if envelope is None:  # the client has disconnected
            if access is not None:
                access.outcome = CANCELLED
            return
        if access is not None:
            access.answered(envelope)
        response = encode_response(
            envelope, whole=whole, is_error=self._options.is_error, request_id=request.request_id
        )
        headers = [(b"content-type", response.content_type), _NO_STORE, *response.headers]
        await _send_response(send, request, response.status, response.body, headers)

    async def _execute(
        self, route: Route, input: Any, context: Context, receive: Receive
    ) -> ResponseEnvelope[Any] | None:
        """Call an operation; return None if the client disconnects meanwhile."""
        with CancelOnDisconnect(receive, self._deadlines):
            return await self._dispatcher.execute(route.spec, input, context)
        return None

    async def _stream(self, route: Route, request: Request, input: Any, receive: Receive, send: Send) -> None:
        if self.draining:
            raise _shutting_down()
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

    async def _take_webhook(self, request: Request, send: Send) -> bool:
        """Respond to a webhook, and return whether it is one. Nothing of it is parsed before it is verified."""
        from opwire.openapi.webhooks import WebhookRequest  # only who has a receiver needs that module

        name, _, webhook = request.path.removeprefix(_WEBHOOKS).partition("/")
        receiver = self._options.webhooks.get(name)
        if receiver is None or not request.path.startswith(_WEBHOOKS) or not request.is_plain:
            return False
        if request.access is not None:
            request.access.operation = f"{name}.webhooks"
        if request.method != "POST":
            await _send_methods(send, request, ("POST",))
            return True
        if self.draining:
            raise _shutting_down()
        given = WebhookRequest(request.text_headers, request.admitted.body)
        delivery = await receiver.verify(given)
        request.check_json()
        id = id_of(f"/{name}/{webhook}")
        named = None if id is None else id.partition(".")[2]
        outcome = receiver.deliver(parse_body(given.body), given, delivery=delivery, webhook=named)
        headers: list[Header] = [(b"content-type", b"application/json"), _NO_STORE]
        await _send_response(send, request, HTTPStatus.OK, b'{"status":"%s"}' % outcome.encode(), headers)
        return True

    def _route(self, request: Request) -> Route | None:
        """Return the route of a request, or None for the document.

        The path has to be spelled exactly as `path_of` spells it. With several spellings, a proxy's rule for one of
        them could be evaded by another.

        Raises:
            CallError, HTTPStatusError: unknown path.
        """
        route = self._routes.get(request.path)
        if route is not None and request.is_plain and self._dispatcher.get_spec(route.spec.id) is route.spec:
            return route
        if request.path == "/openapi.json" and request.is_plain:
            return None
        operation_id = id_of(request.path)
        if operation_id is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "operations are at /{namespace}/{name}: see /openapi.json")
        spec = self._dispatcher.get_spec(operation_id)
        is_plain = request.is_plain and spec is not None and path_of(spec.id) == request.path
        if spec is not None and is_plain and self._dispatcher.is_served(spec):
            route = self._routes[request.path] = Route.of(spec)
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

    async def _send_document(self, request: Request, send: Send) -> None:
        if request.method not in READS:
            await _send_methods(send, request, ("GET", "HEAD"))
            return
        document = await self._documents.get(request.identity, request.query, request.root_path)
        headers = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"private, no-cache"),
            (b"vary", b"authorization, x-api-key"),
            (b"etag", document.etag),
        ]
        cached = request.headers.get(b"if-none-match", b"")
        if document.etag in cached or cached == b"*":
            await _send_response(send, request, HTTPStatus.NOT_MODIFIED, b"", headers)
        else:
            await _send_response(send, request, HTTPStatus.OK, document.body, headers)


def _shutting_down() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the server is shutting down: connect again", retry_after=1)


async def _send_methods(send: Send, request: Request, methods: tuple[str, ...]) -> None:
    """Respond to OPTIONS, or to a method that a path does not have."""
    allow = (b"allow", ", ".join((*methods, "OPTIONS")).encode())
    if request.method == "OPTIONS":
        await _send_response(send, request, HTTPStatus.NO_CONTENT, b"", [allow])
    else:
        wrong = CallError(ErrorCode.PROTOCOL_ERROR, f"the methods of this path are {', '.join(methods)} and OPTIONS")
        await send_error(send, request, HTTPStatusError(HTTPStatus.METHOD_NOT_ALLOWED, wrong, allow), logger)


async def _send_response(send: Send, request: Request, status: int, body: bytes, headers: list[Header]) -> None:
    headers.append((b"x-content-type-options", b"nosniff"))
    headers.append((b"x-request-id", request.request_id.encode()))
    if status not in _WITHOUT_LENGTH:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})
