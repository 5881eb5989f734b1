"""The ASGI application: finds the operation, reads the request, calls, answers.

An operation seen from its path: by which methods it is called, and how a request becomes its input.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any, NamedTuple, Unpack, cast
from urllib.parse import quote

from msgspec import UNSET
from starlette.middleware.cors import CORSMiddleware

from opwire.deadlines import Deadlines
from opwire.errors import CallError, ErrorCode, check_above_zero
from opwire.operation import Context, Inbound, OperationSpec, OperationType, check_access, may_access
from opwire.origin import id_of, path_of
from opwire.registry import OperationRegistry
from opwire.serve.guard import App, Door, DoorOptions, Header, Receive, Refusal, Scope, Send, send_problem
from opwire.serve.http.document import (
    About,
    Documents,
    Parameter,
    parameter_of,
    parameters_of,
    read_query,
    takes_get,
    typed,
)
from opwire.serve.http.request import Guard, Request
from opwire.serve.http.responses import EventStream, IsErrorPolicy, answer
from opwire.serve.listener import listening, run_until_signalled

READS = frozenset({"GET", "HEAD"})


class Route(NamedTuple):
    """What is known of an operation's path."""

    spec: OperationSpec
    methods: tuple[str, ...]
    parameters: Mapping[str, Parameter] | None  # of a query string, where it can be called by one
    resume: Parameter | None  # the id of the last event, where the operation takes it

    @classmethod
    def of(cls, spec: OperationSpec) -> "Route":
        """The route of an operation."""
        parameters = parameters_of(spec.input_schema) if takes_get(spec) else None
        reads = () if parameters is None else ("GET",) if spec.type is OperationType.SUBSCRIPTION else ("GET", "HEAD")
        return cls(spec, (*reads, "POST"), parameters, parameter_of(spec.input_schema, "last_event_id"))

    async def input(self, request: Request, receive: Receive) -> Any:
        """The input that a request gives.

        Raises:
            Refusal, CallError: it cannot be read.
        """
        if self.parameters is not None and request.method in READS:
            return read_query(self.parameters, request.query)
        body = await request.json(receive)
        takes_object = self._takes_object()
        if body is None and takes_object:  # None stands for no arguments, which `null` is not
            raise self._wrong('the value is not of type "object"')
        if body is UNSET and not takes_object and not self.spec.input_schema.is_unknown:
            raise self._wrong("there is no body")  # the document says that it is required, also where it may be null
        return None if body is UNSET else body

    def resumed(self, input: Any, last_event_id: str | None) -> Any:
        """The input of a subscription that goes on behind an event, unless the input itself says behind which."""
        if self.resume is None or last_event_id is None or not (input is None or isinstance(input, dict)):
            return input
        given = cast("dict[str, Any]", input or {})
        return {"last_event_id": typed(last_event_id, self.resume.kinds), **given}

    def _takes_object(self) -> bool:
        json = self.spec.input_schema.json
        return isinstance(json, dict) and json.get("type") == "object"

    def _wrong(self, message: str) -> CallError:
        details = {"problems": [{"path": "", "message": message}]}
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self.spec.id}: the input: {message}", details)


logger = logging.getLogger("opwire.serve.http")


def serve_http(
    registry: OperationRegistry,
    *,
    title: str = "opwire",
    version: str = "1.0",
    description: str = "",
    timeout: float | None = 30.0,
    heartbeat: float = 15.0,
    is_error: IsErrorPolicy = "return",
    cors_origins: Iterable[str] = (),
    **door: Unpack[DoorOptions],
) -> "HTTPApp":
    """The registry as an ASGI application.

        app = serve_http(registry, title="Shop", version="1.0", authenticate=StaticTokens({...}))

    Without `authenticate` only public operations can be called, unless `identity` says who everybody is. By default
    it answers to loopback names alone: `hosts=["shop.example"]` gives it others. These and the limits are explained at
    `Door`. `cors_origins` are pages of other hosts that may call, and read the answers.

    `timeout` is in seconds, for calls whose client says nothing of it. A stream that is quiet for `heartbeat` seconds
    gets a comment line. `is_error` says what becomes of MCP results that are errors: see `IsErrorPolicy`.

    Raises:
        CallError: VALIDATION_ERROR, if one of the numbers is not above zero.
    """
    check_above_zero(timeout=timeout, heartbeat=heartbeat)
    about = About(
        title=title,
        version=version,
        description=description,
        takes_tokens=door.get("authenticate") is not None,
        needs_none=door.get("identity") is not None,
    )
    cors = list(cors_origins)
    if cors:
        door["origins"] = [*door.get("origins", ()), *cors]
    return HTTPApp(registry, about, timeout=timeout, heartbeat=heartbeat, is_error=is_error, cors=cors, door=door)


class HTTPApp:
    """A registry as an ASGI application; made by `serve_http`."""

    def __init__(
        self,
        registry: OperationRegistry,
        about: About,
        *,
        timeout: float | None,
        heartbeat: float,
        is_error: IsErrorPolicy,
        cors: Sequence[str],
        door: DoorOptions,
    ) -> None:
        self._registry = registry
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._is_error: IsErrorPolicy = is_error
        self._documents = Documents(registry, about)
        self._door: App = Door(self._inside, **door)
        if cors:
            wildcard = ["*"]
            self._door = CORSMiddleware(
                self._door, cors, allow_methods=wildcard, allow_headers=wildcard, expose_headers=wildcard
            )
        self._deadlines = Deadlines()
        self._routes: dict[str, Route] = {}
        self._streams: set[Guard] = set()
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's lifespan."""
        if scope["type"] == "http" and scope["path"].endswith(("/healthz", "/readyz")):
            request = Request(scope)
            if (
                request.path in ("/healthz", "/readyz") and request.is_plain
            ):  # by any host name: probes come by address, and learn nothing
                await self._health(request, send)
                return
        await self._door(scope, receive, send)

    async def run(self, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
        """Listen until SIGINT or SIGTERM, then drain; `options` are those of `listening`.

        Raises:
            CallError: UNAVAILABLE, if the address cannot be listened on.
        """
        await run_until_signalled(self, host, port, on_drain=self.drain, **options)

    def listening(self, host: str = "127.0.0.1", port: int = 0, **options: Any) -> AbstractAsyncContextManager[str]:
        """Listen as long as the block lasts; gives the address. Port 0 is a free one.

        async with app.listening() as address: ...
        """
        return listening(self, host, port, on_drain=self.drain, **options)

    def drain(self) -> None:
        """Begin to go away: not ready any more, and streams are told. Calls that run go on to their end."""
        self.draining = True
        for stream in tuple(self._streams):
            stream.interrupt(_leaving())

    async def _inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        request = Request(scope)
        try:
            await self._answer(request, receive, send)
        except (CallError, Refusal) as error:
            await _refuse(send, request, error)
        except Exception:
            logger.exception("request %s failed", request.request_id)
            wrong = f"an error of the server; its log has it under request id {request.request_id}"
            await _refuse(send, request, CallError(ErrorCode.INTERNAL, wrong))

    async def _answer(self, request: Request, receive: Receive, send: Send) -> None:
        if request.path == "/openapi.json" and request.is_plain:
            await self._document(request, send)
            return
        route = self._find(request)
        if request.method not in route.methods:
            await _other_method(send, request, route.methods)
            return
        check_access(route.spec, request.identity)
        input = await route.input(request, receive)
        if route.spec.type is OperationType.SUBSCRIPTION:
            await self._stream(route, request, input, receive, send)
        else:
            await self._call(route.spec, request, input, receive, send)

    async def _call(self, spec: OperationSpec, request: Request, input: Any, receive: Receive, send: Send) -> None:
        context = _context(request, self._timeout)
        envelope = None
        with Guard(receive, self._deadlines):
            envelope = await self._registry.execute(spec.id, input, context)
        if envelope is None:
            return  # the client left, and nobody is there to answer to
        found = answer(envelope, whole=request.wants_envelope, is_error=self._is_error)
        headers = [
            (b"content-type", found.content_type),
            (b"cache-control", b"no-store"),
            (b"vary", b"accept"),
            *found.headers,
        ]
        await _respond(send, request, HTTPStatus.OK, found.body, headers)

    async def _stream(self, route: Route, request: Request, input: Any, receive: Receive, send: Send) -> None:
        if self.draining:
            raise _leaving()
        after = None if route.resume is None else request.last_event_id
        items = self._registry.subscribe(
            route.spec.id, route.resumed(input, request.last_event_id), _context(request, None)
        )
        headers = [(b"x-request-id", request.request_id.encode())]
        guard = Guard(receive, self._deadlines)
        stream = EventStream(request, guard, send, headers, heartbeat=self._heartbeat)
        self._streams.add(guard)
        try:
            await stream.run(items, after)
        finally:
            self._streams.discard(guard)

    def _find(self, request: Request) -> Route:
        """Return the operation at a path, which has to be written exactly as `path_of` writes it.

        With several spellings a proxy's rule for one of them could be evaded by another.
        """
        route = self._routes.get(request.path)
        if route is None or not request.is_plain or self._registry.get_spec(route.spec.id) is not route.spec:
            operation_id = id_of(request.path)
            spec = self._registry.get_spec(operation_id or "")
            if spec is None or not request.is_plain or path_of(spec.id) != request.path:
                raise self._not_found(request, operation_id)
            route = self._routes[request.path] = Route.of(spec)
        return route

    def _not_found(self, request: Request, operation_id: str | None) -> CallError | Refusal:
        def is_visible(spec: OperationSpec) -> bool:
            return self._registry.get_handler(spec.id) is not None and may_access(spec, request.identity)

        if operation_id is None:
            return CallError(ErrorCode.OPERATION_NOT_FOUND, "operations are at /{namespace}/{name}: see /openapi.json")
        plain = request.path.rstrip("/")
        spec = self._registry.get_spec(operation_id)
        if spec is None:
            self._routes.pop(request.path, None)
            spec = self._registry.get_spec(id_of(plain) or "")
        if spec is not None and is_visible(spec):
            place = path_of(spec.id)
            return _moved(request, place) if plain == place else _elsewhere(place)
        close = self._registry.suggestions(operation_id, visible=is_visible)
        hint = f"; did you mean {' or '.join(map(path_of, close))}?" if close else ""
        return CallError(ErrorCode.OPERATION_NOT_FOUND, f"there is no operation at {request.path[:200]}{hint}")

    async def _document(self, request: Request, send: Send) -> None:
        if request.method not in READS:
            await _other_method(send, request, ("GET", "HEAD"))
            return
        document = await self._documents.document(request.identity, request.query, request.root_path)
        headers = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"private, no-cache"),
            (b"vary", b"authorization, x-api-key"),
            (b"etag", document.etag),
        ]
        known = request.headers.get(b"if-none-match", b"")
        if document.etag in known or known == b"*":
            await _respond(send, request, HTTPStatus.NOT_MODIFIED, b"", headers)
        else:
            await _respond(send, request, HTTPStatus.OK, document.body, headers)

    async def _health(self, request: Request, send: Send) -> None:
        if request.method not in READS:
            await _other_method(send, request, ("GET", "HEAD"))
        elif request.path == "/readyz" and self.draining:
            await _refuse(send, request, _leaving())
        else:
            headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
            await _respond(send, request, HTTPStatus.OK, b'{"status":"ok"}', headers)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                self.drain()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return


def _context(request: Request, timeout: float | None) -> Context:
    deadline = request.deadline(timeout)
    return Context(
        request_id=request.request_id,
        identity=request.identity,
        deadline=deadline,
        metadata=request.metadata,
        inbound=Inbound(request.request_id),
    )


def _moved(request: Request, path: str) -> Refusal:
    """Return the answer to a path that is percent-encoded, or ends with a slash: the path as it should be."""
    root = request.root_path.strip("/")
    where = quote(f"/{root}{path}" if root else path, safe="/~").encode()
    query = b"?" + request.query if request.query else b""
    return Refusal(HTTPStatus.PERMANENT_REDIRECT, _elsewhere(path), (b"location", where + query))


def _elsewhere(path: str) -> CallError:
    return CallError(ErrorCode.OPERATION_NOT_FOUND, f"an operation has one path, and this one is at {path}")


def _leaving() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the server is going away: connect again", retry_after=1)


async def _other_method(send: Send, request: Request, methods: tuple[str, ...]) -> None:
    allow = (b"allow", ", ".join((*methods, "OPTIONS")).encode())
    if request.method == "OPTIONS":
        await _respond(send, request, HTTPStatus.NO_CONTENT, b"", [allow])
    else:
        wrong = CallError(ErrorCode.PROTOCOL_ERROR, f"the methods of this path are {', '.join(methods)} and OPTIONS")
        await _refuse(send, request, Refusal(HTTPStatus.METHOD_NOT_ALLOWED, wrong, allow))


async def _refuse(send: Send, request: Request, error: CallError | Refusal) -> None:
    headers = [(b"x-request-id", request.request_id.encode())]
    with_body = request.method != "HEAD"
    await send_problem(send, error, request_id=request.request_id, headers=headers, with_body=with_body)


async def _respond(send: Send, request: Request, status: HTTPStatus, body: bytes, headers: list[Header]) -> None:
    headers.append((b"x-content-type-options", b"nosniff"))
    headers.append((b"x-request-id", request.request_id.encode()))
    if status is not HTTPStatus.NO_CONTENT and status is not HTTPStatus.NOT_MODIFIED:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})
