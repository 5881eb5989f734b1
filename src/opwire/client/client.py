"""`Client`: one way to call operations in this process, over a hub or a broker, or over HTTP.

Retries happen here and nowhere else: adapters, transports and spokes make every call once. Two limits apply. A call has
a number of attempts, with a back-off before each retry. And a client has one budget for all its calls: each call adds a
share of a retry, each retry takes a whole one. When everything fails, retries are that share of the load instead of a
multiple of it.
"""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from opwire.client.backends import Backend, CallsBackend, RegistryBackend, resuming
from opwire.client.pages import Cursor, Pagination
from opwire.errors import (
    CallError,
    ErrorCode,
    UsageError,
    check_above_zero,
    check_choice,
    check_counts,
    check_instance,
    check_not_below_zero,
    needs_extra,
)
from opwire.model.context import Context
from opwire.model.envelope import MCPResponseMeta, ResponseEnvelope, ToolErrorPolicy, tool_error_text
from opwire.model.identity import Identity
from opwire.model.operation import Interceptor, OperationSpec, OperationType
from opwire.model.questions import Question, question_callback
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Transport
from opwire.registry import OperationRegistry
from opwire.registry.interceptors import InterceptedCall, remote_spec
from opwire.registry.pipeline import typed_envelope
from opwire.runtime.deadlines import Deadlines, back_off
from opwire.runtime.tasks import AsyncResource
from opwire.transports.connect import connect

if TYPE_CHECKING:
    from opwire.transports.broker import RequestSigner

T = TypeVar("T")

Target = OperationRegistry | PendingRequestMap | Transport | str | Sequence[str]
"""What a client calls: a registry, a transport, the URL of a hub or broker, or a served HTTP address."""


class ConnectionOptions(TypedDict, total=False):
    """Options of the connection to a URL: those of its transport, or of an HTTP address."""

    # a transport
    heartbeat: float | None
    max_message: int
    max_backlog: int
    tls_first: bool
    prefix: str
    queue: str
    user: str | None
    password: str | None
    credentials_file: str | PathLike[str] | None
    signed: "RequestSigner | None"
    # an HTTP address
    headers: Mapping[str, str]
    proxy: str | None
    ca_file: str | None
    client_certificate: str | None
    client_key: str | None
    client_key_password: str | None
    trust_env: bool
    follow_redirects: bool
    max_redirects: int
    max_connections: int
    max_per_host: int
    max_response: int
    max_item: int
    trust_annotations: bool
    # either
    connect_timeout: float | None
    ssl: SSLContext | bool | None


class ClientParameters(ConnectionOptions, total=False):
    """The options of `Client`."""

    token: str | Callable[[], str] | None
    act_as: Identity | None
    timeout: float
    is_error: ToolErrorPolicy
    retries: "Retries | None"
    on_question: Callable[[Question], Any] | None


class RequestOptions(TypedDict, total=False):
    """Options of calls: `timeout` in seconds, and the context of the call that they are part of.

    `version` asks for a version of the operation; a call without it gets the one that is listed.
    """

    timeout: float | None
    context: Context | None
    version: str | None


class SubscribeOptions(RequestOptions, total=False):
    """Options of subscriptions: `idle_timeout` is the time between two items, in seconds.

    `resume` resumes it after a loss, `resume_from` is the cursor to begin behind.
    """

    idle_timeout: float | None
    resume: bool
    resume_from: str | None


class PageOptions(RequestOptions, total=False):
    """Options of `Client.paginate`."""

    cursor: Cursor | None
    items: str | None
    max_items: int | None
    max_pages: int
    output_type: Any


_RESUME, _VERSION = "opwire.resume", "opwire.version"  # in the metadata of a context
_MAX_INTERCEPTED_CALLS = 10_000


class Retries(Struct, frozen=True, kw_only=True):
    """How a client retries queries that failed with a retryable error.

        Client(url, retries=Retries(max_attempts=5, max_back_off=30))
        Client(url, retries=None)  # never

    Raises:
        UsageError: `max_attempts` is not a whole number above zero, or another number is invalid.
    """

    max_attempts: int = 3  # in all, including the first one
    back_off: float = 0.1  # seconds: the upper bound of the first back-off, which doubles each time
    max_back_off: float = 5.0  # seconds: the upper bound of any back-off; a `retry_after` of the server comes on top
    share: float = 0.2  # retries that each call adds to the budget
    reserve: float = 10.0  # retries that the budget holds, at first and at most
    outage: float = 60.0  # seconds: how long a lost subscription is resumed without success

    def __post_init__(self) -> None:
        check_counts(max_attempts=self.max_attempts or 0)
        for option in ("back_off", "max_back_off", "share", "reserve", "outage"):
            value = getattr(self, option)
            check_not_below_zero(**{option: -1 if value is None else value})


class RetryBudget:
    """The retries that one client has left. No I/O, no clock."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._left = retries.reserve

    def called(self) -> None:
        """Add the share of a new call."""
        self._left = min(self._left + self._retries.share, self._retries.reserve)

    def wait(self, error: CallError, attempts: int, remaining: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None after the last one.

        `remaining` are the seconds until the deadline: a retry has to begin before it.
        """
        policy = self._retries
        if not error.retryable or attempts >= policy.max_attempts:
            return None
        # What the server asks for comes before the back-off, or all rejected callers would return at the same time.
        delay = (error.retry_after or 0.0) + back_off(attempts, first=policy.back_off, longest=policy.max_back_off)
        return delay if delay < remaining else None

    def spend(self) -> bool:
        """Take a retry; return False if the budget is empty."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Client(AsyncResource):
    """Calls operations and returns their data.

        async with Client(registry) as client: ...                        # in this process
        async with Client("ws://hub.example:8700", token="…") as client:  # a hub; redis://, nats:// a broker
        async with Client("https://api.example", token="…") as client:    # an API of `serve_http`
        async with Client(MemoryTransport(bus)) as client: ...

            data = await client.call("math.add", {"a": 1, "b": 2}, timeout=5)

    Over a registry the client is the trusted local caller. With `act_as` it calls as that identity, and access is
    checked. A `PendingRequestMap` stays open when the client closes; every other target is opened and closed with it.

    `timeout` is the default of calls, in seconds; it spans all attempts of a call. `retries` says how a QUERY that
    failed with a retryable error is retried. A MUTATION never is: only its caller knows whether that is safe.
    `on_question` answers questions of operations (`Context.elicit`); a plain function runs in a thread. `options` are
    those of the transport, or of the HTTP client: see `ConnectionOptions`.

        def answer(question: Question) -> dict[str, Any]:
            if question.kind == "elicit" and input(f"{question.params['message']} [y/n] ") == "y":
                return {"action": "accept", "content": {"value": True}}
            return {"action": "decline"}

        Client(registry, on_question=answer)

    Raises:
        UsageError: the target is not supported, or an option is invalid.
        MissingExtraError: the target needs an optional dependency.
    """

    def __init__(
        self,
        target: Target,
        *,
        token: str | Callable[[], str] | None = None,
        act_as: Identity | None = None,
        timeout: float = 30.0,
        is_error: ToolErrorPolicy = "raise",
        retries: Retries | None = Retries(),  # noqa: B008 - frozen
        on_question: Callable[[Question], Any] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        check_above_zero(timeout=timeout or 0)
        check_choice(ToolErrorPolicy, is_error=is_error)
        check_instance(Retries, retries=retries)
        check_instance(Identity, act_as=act_as)
        self._target = target
        self._backend = _backend_for(target, act_as, {**options, **({} if token is None else {"token": token})})
        self._registry = target if isinstance(target, OperationRegistry) else None
        self._act_as = act_as
        self._timeout = timeout
        self._is_error: ToolErrorPolicy = is_error
        self._retries = retries or Retries(max_attempts=1)
        self._budget = RetryBudget(self._retries)
        self._deadlines = Deadlines()
        self._on_question = None if on_question is None else question_callback(on_question)
        self._interceptors: list[Interceptor] = []
        self._intercepted: dict[tuple[str, OperationType], tuple[OperationSpec, InterceptedCall]] = {}
        self._is_open = False

    def __repr__(self) -> str:
        return f"<Client of {shown_target(self._target)}{'' if self._is_open else ', not open'}>"

    async def start(self) -> Self:
        """Connect.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, the token is invalid.
        """
        await self._backend.start()
        self._is_open = True
        return self

    async def close(self) -> None:
        """Disconnect. Calls in flight on a connection of the client's own end with UNAVAILABLE."""
        self._is_open = False
        await self._backend.close()

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call, inside those already installed; the returned function removes it.

            def audit(spec: OperationSpec, handler: Handler) -> Handler:
                async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
                    log.info("calling %s", spec.id)
                    return await handler(input, context)

                return handler if spec.type is OperationType.SUBSCRIPTION else call

            client.use(audit)

        It runs once per operation, not once per call. The handler that it wraps makes the call, retries included; that
        of a subscription returns an async iterator of envelopes. Over a registry the spec is the operation's own.
        Otherwise it holds the id and the type that the method implies: QUERY for calls, SUBSCRIPTION for subscriptions.
        """
        self._interceptors.append(interceptor)
        self._intercepted.clear()

        def remove() -> None:
            if interceptor in self._interceptors:
                self._interceptors.remove(interceptor)
                self._intercepted.clear()

        return remove

    # --- calls ------------------------------------------------------------------------------------------------------

    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RequestOptions]
    ) -> T: ...
    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RequestOptions]
    ) -> Any: ...
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RequestOptions]
    ) -> Any:
        """Call a query or mutation; return its data, converted to `output_type` if that is given.

            await client.call("shop.order", {"id": 17}, version="2", timeout=5)

        Raises:
            CallError: the call failed; TIMEOUT, it did not end in time; UNAVAILABLE (over a hub or a broker) or
                OPERATION_NOT_FOUND (in a registry), the requested version is not served.
        """
        return self._data(await self.call_envelope(operation_id, input, **options), output_type, operation_id)

    @overload
    async def call_envelope(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RequestOptions]
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call_envelope(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RequestOptions]
    ) -> ResponseEnvelope[Any]: ...
    async def call_envelope(
        self,
        operation_id: str,
        input: Any = None,
        *,
        output_type: Any = None,
        timeout: float | None = None,
        context: Context | None = None,
        version: str | None = None,
    ) -> ResponseEnvelope[Any]:
        """Call a query or mutation; return its whole envelope, with `isError` or without.

        Raises:
            CallError: as `call`.
        """
        within = self._context(context, self._timeout if timeout is None else timeout, version)
        self._budget.called()
        if self._interceptors:
            envelope = await self._through(operation_id, OperationType.QUERY, self._call).execute(input, within)
        else:
            envelope = await self._call(operation_id, input, within)
        return envelope if output_type is None else typed_envelope(envelope, output_type, operation_id)

    async def _call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call until there is a response, or the attempts are used up."""
        context, version = _taken(context, _VERSION)
        attempts = 0
        while True:
            attempts += 1
            self._check_open()
            try:
                return await self._backend.call(operation_id, input, context, version)
            except CallError as error:
                attempts = await self._wait_for_retry(operation_id, context, error, attempts)

    async def _wait_for_retry(self, operation_id: str, context: Context, error: CallError, attempts: int) -> int:
        """Wait before the next attempt and return the number of those made; raise the error after the last one.

        A failed lookup of the operation's type counts as a failed attempt: its server may not be connected yet.
        """
        while True:
            remaining = (context.deadline or 0.0) - time.monotonic()
            delay = self._budget.wait(error, attempts, remaining) if self._is_open else None
            if delay is None:
                raise error
            try:
                spec = await self._find(operation_id, context)
                is_query = None if spec is None else spec.type is OperationType.QUERY
            except CallError as unknown:
                is_query = None if unknown.retryable else False
            if is_query is False or not self._budget.spend():
                raise error
            await asyncio.sleep(delay)
            if time.monotonic() >= (context.deadline or math.inf):  # a busy loop: the failure says more than a timeout
                raise error
            if is_query:
                return attempts
            attempts += 1

    async def _find(self, operation_id: str, context: Context) -> OperationSpec | None:
        complaint = f"the type of {operation_id} was not returned"
        return await self._deadlines.limit(lambda: self._backend.find(operation_id), context.deadline, complaint)

    # --- subscriptions ----------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[SubscribeOptions]
    ) -> AsyncGenerator[T]: ...
    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[SubscribeOptions]
    ) -> AsyncGenerator[Any]: ...
    async def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[SubscribeOptions]
    ) -> AsyncGenerator[Any]:
        """Stream the data of each item of a subscription. Leaving the loop stops the producer.

        By default a subscription has no timeout: `timeout` limits all of it, `idle_timeout` the wait for the next item.

        A subscription to items with cursors can be resumed: with `resume`, whenever it is lost, behind the last item
        that the loop got, at any server of the operation; with `resume_from`, behind the item that has that cursor
        (`subscribe_envelopes` yields them). No item is left out, and none comes twice.

        Raises:
            CallError: the stream failed; VALIDATION_ERROR, with `{"reason": "RESUME"}`, it cannot be resumed.
        """
        async with aclosing(self.subscribe_envelopes(operation_id, input, **options)) as envelopes:
            async for envelope in envelopes:
                yield self._data(envelope, output_type, operation_id)

    async def subscribe_envelopes(
        self,
        operation_id: str,
        input: Any = None,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        context: Context | None = None,
        version: str | None = None,
        resume: bool = False,
        resume_from: str | None = None,
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Stream the envelope of each item of a subscription; otherwise as `subscribe`.

        async for envelope in client.subscribe_envelopes("orders.follow", resume=True, resume_from=stored):
            handle(envelope.data)
            store(envelope.cursor)
        """
        self._check_open()
        within = self._context(context, timeout, version)
        if within.is_served:  # the cursor of the served call is not one of this call
            within = replace(within, resume_from=None)
        if resume_from is not None:
            within = replace(within.child() if within.is_served else within, resume_from=resume_from)
        if resume:
            within = replace(within, metadata={**within.metadata, _RESUME: True})
        if self._interceptors:
            items = self._through(operation_id, OperationType.SUBSCRIPTION, self._subscribe).subscribe(input, within)
        else:
            items = self._subscribe(operation_id, input, within)
        complaint = f"{operation_id} returned no item"
        try:
            while True:
                idle = None if idle_timeout is None else time.monotonic() + idle_timeout
                item = await self._deadlines.limit(lambda: anext(items, None), idle, complaint)
                if item is None:
                    return
                yield item
        finally:
            await items.aclose()

    def _subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Return the items, resumed if the metadata says so: interceptors pass the context on, and no other options."""
        context, version = _taken(context, _VERSION)
        context, resume = _taken(context, _RESUME)
        if not resume:
            return self._backend.subscribe(operation_id, input, context, version)
        return resuming(
            lambda context: self._backend.subscribe(operation_id, input, context, version),
            context,
            operation_id,
            lambda: self._is_open,
            longest=self._retries.max_back_off,
            outage=self._retries.outage,
        )

    # --- pages ------------------------------------------------------------------------------------------------------

    async def paginate(
        self,
        operation_id: str,
        input: Any = None,
        *,
        cursor: Cursor | None = None,
        items: str | None = None,
        max_items: int | None = None,
        max_pages: int = 1_000,
        output_type: Any = None,
        timeout: float | None = None,
        context: Context | None = None,
        version: str | None = None,
    ) -> AsyncGenerator[Any]:
        """Stream the items of all pages of a query, requesting one page after the other.

            async for repository in client.paginate("github.repos/list-for-org", {"org": "python"}, max_items=500): ...
            async for row in client.paginate("db.rows", cursor=("page.next", "token"), items="page.rows"): ...

        The next page is found by a Link header, or by `cursor`: the field of the response that holds it, and the field
        of the input that takes it. `items` is the field of the response that holds the items; by default the response
        itself, or its only list. Nested fields are written with dots. `timeout` applies to each page.

        Raises:
            UsageError: `max_items`, `max_pages` or the input is invalid.
            CallError: as `call`; VALIDATION_ERROR, the items or the way to the next page are missing; EXECUTION_ERROR,
                there are more pages than `max_pages`, or a page repeats.
        """
        if max_items != 0:
            check_counts(max_items=max_items)
        pages = Pagination(operation_id, input, cursor=cursor, items=items, max_pages=max_pages)
        remaining_items, spec, looked_up = max_items, None, cursor is not None
        while pages.input is not None and remaining_items != 0:
            envelope = await self.call_envelope(
                operation_id, pages.input, timeout=timeout, context=context, version=version
            )
            self._data(envelope, None, operation_id)
            page_items = pages.items(envelope)
            for item in page_items if remaining_items is None else page_items[:remaining_items]:
                yield self._data(ResponseEnvelope(item, envelope.meta), output_type, operation_id)
            remaining_items = None if remaining_items is None else max(remaining_items - len(page_items), 0)
            if remaining_items != 0:
                if not looked_up:
                    looked_up = True
                    within = self._context(context, self._timeout if timeout is None else timeout)
                    with suppress(CallError):  # the spec is optional
                        spec = await self._find(operation_id, within)
                pages.advance(envelope, spec)

    # --- discovery --------------------------------------------------------------------------------------------------

    async def operations(self, *, timeout: float | None = None) -> list[OperationSpec]:
        """Return the operations that can be called, ordered by id.

        Raises:
            CallError: UNAVAILABLE, TIMEOUT, or another error of the server.
        """
        self._check_open()
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        specs = await self._deadlines.limit(self._backend.operations, deadline, "the operations were not returned")
        return sorted(specs, key=lambda spec: spec.id)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _through(self, operation_id: str, type: OperationType, call: Callable[..., Any]) -> InterceptedCall:
        """Return the intercepted call of an operation, built once so that interceptors can keep state in it."""
        spec = None if self._registry is None else self._registry.get_spec(operation_id)
        intercepted_call = self._intercepted.get((operation_id, type))
        if intercepted_call is not None and (spec is None or intercepted_call[0] is spec):
            return intercepted_call[1]
        spec = spec or remote_spec(operation_id, type)
        if len(self._intercepted) >= _MAX_INTERCEPTED_CALLS:
            self._intercepted.clear()
        made = InterceptedCall(spec, partial(call, operation_id), self._interceptors)
        self._intercepted[operation_id, type] = (spec, made)
        return made

    def _context(self, context: Context | None, timeout: float | None, version: str | None = None) -> Context:
        if context is None:  # not by `within`, which copies every field: 0.5 µs
            context = Context(deadline=None if timeout is None else time.monotonic() + timeout)
        else:
            context = context.within(timeout)
        if version is not None:
            context = replace(context, metadata={**context.metadata, _VERSION: version})
        if self._on_question is not None and context.on_question is None:
            context = replace(context, on_question=self._on_question)
        if self._act_as is None or context.inbound is not None:  # a nested call keeps the identity of its caller
            return context
        return replace(context, identity=self._act_as)

    def _data(self, envelope: ResponseEnvelope[Any], output_type: Any, operation_id: str) -> Any:
        meta = envelope.meta
        if isinstance(meta, MCPResponseMeta) and meta.is_error and self._is_error == "raise":
            message = tool_error_text(meta, f"{operation_id} returned isError without a message")
            raise CallError(ErrorCode.EXECUTION_ERROR, message, {"content": meta.content})
        return envelope.data if output_type is None else typed_envelope(envelope, output_type, operation_id).data

    def _check_open(self) -> None:
        if not self._is_open:
            message = "the client is not open: use it within `async with Client(…)`"
            raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False)


def shown_target(target: Target | Path) -> str:
    """Return what a client calls; of URLs without credentials."""
    if isinstance(target, str):
        return re.sub(r"(?<=//)[^/]*@|[?#].*", "", target)
    return ", ".join(map(shown_target, target)) if isinstance(target, Sequence) else str(target)


def _taken(context: Context, name: str) -> tuple[Context, Any]:
    """Return an option of a call from the metadata of its context, and the context without it."""
    if name not in context.metadata:
        return context, None
    other_metadata = {key: value for key, value in context.metadata.items() if key != name}
    return replace(context, metadata=other_metadata), context.metadata[name]


def _backend_for(target: Target, act_as: Identity | None, options: dict[str, Any]) -> Backend:
    if isinstance(target, str | Sequence):
        if act_as is not None:
            raise UsageError("act_as= needs a registry or transport; over a network the token identifies the caller")
        if isinstance(target, str) and target.startswith(("http://", "https://")):
            with needs_extra("openapi"):
                from opwire.client.http_backend import HTTPBackend
            return HTTPBackend(target, options.pop("token", None), options)
        return CallsBackend(PendingRequestMap(connect(target, **options)), owned=True)
    if options:
        raise UsageError(f"unknown options for {type(target).__name__}: {', '.join(sorted(options))}")
    if isinstance(target, OperationRegistry):
        return RegistryBackend(target, act_as)
    if isinstance(target, PendingRequestMap):
        return CallsBackend(target, owned=False, act_as=act_as)
    if not isinstance(target, Transport):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a client calls a registry, a transport, or the URL of a server, not {type(target).__name__}")
    return CallsBackend(PendingRequestMap(target), owned=True, act_as=act_as)
