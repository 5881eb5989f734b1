"""Serve each operation at its path: find it, parse its input, call it, respond."""

from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

from opwire.asgi.problem import HTTPStatusError, Send
from opwire.asgi.request import Receive, Scope
from opwire.errors import CallError, ErrorCode
from opwire.model.access import check_access
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope, ToolErrorPolicy
from opwire.model.operation import OperationSpec, OperationType
from opwire.model.origin import RESUMED, id_of, path_of
from opwire.names import suggestion
from opwire.observe.logs import CANCELLED
from opwire.openapi.server.endpoints import NO_STORE, send_methods, send_response, shutting_down
from opwire.openapi.server.request import REQUEST, CancelOnDisconnect, OperationRoute, Request
from opwire.openapi.server.responses import EventStream, encode_response
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.deadlines import Deadlines


class CallOptions(NamedTuple):
    """How operations are called over HTTP; see `serve_http`."""

    timeout: float | None
    heartbeat: float
    is_error: ToolErrorPolicy


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
        envelope = await self._execute(route.spec, input, context, receive)
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

    async def _execute(
        self, spec: OperationSpec, input: Any, context: Context, receive: Receive
    ) -> ResponseEnvelope[Any] | None:
        """Call an operation; return None if the client disconnects meanwhile."""
        with CancelOnDisconnect(receive, self._deadlines):
            return await self._dispatcher.execute(spec, input, context)
        return None

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
