"""`Client`: one way to call, wherever the operations are.

Retries live here and nowhere else: adapters, transports and spokes make every call once.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from msgspec.structs import replace

from opwire.call import PendingRequestMap, Transport
from opwire.client.backends import BackEnd, CallsBackEnd, RegistryBackEnd
from opwire.client.pages import Cursor, Pages, Retries, RetryBudget, check_number
from opwire.deadlines import Deadlines
from opwire.envelope import MCPContentBlock, MCPResponseMeta, ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.hub import connect
from opwire.operation import Context, Identity, OperationSpec, OperationType
from opwire.pipeline import typed_envelope
from opwire.registry import OperationRegistry

T = TypeVar("T")

Target = OperationRegistry | PendingRequestMap | Transport | str | Sequence[str]
"""What a client calls: a registry, a transport, the URL of a hub or broker, or a served HTTP address."""

IsErrorPolicy = Literal["raise", "return"]
"""What becomes of the result of an MCP tool that says `isError`, where only data is asked for.

`raise`: a `CallError`, EXECUTION_ERROR, with the text of its blocks. `return`: data like any other. Who asks for the
envelope gets the envelope, which says so itself.
"""


class CallOptions(TypedDict, total=False):
    """What calls take beside the call itself: `timeout` in seconds, and the context of which they are part."""

    timeout: float | None
    context: Context | None


class StreamOptions(CallOptions, total=False):
    """What subscriptions take: `idle_timeout` is in seconds, between two items."""

    idle_timeout: float | None


class PageOptions(CallOptions, total=False):
    """What `paginate` takes; explained there."""

    cursor: Cursor | None
    items: str | None
    max_items: int | None
    max_pages: int
    output_type: Any


_MAX_TEXT = 2_000
_NOBODY = Context()


class Client:
    """Calls operations, and gives their data.

        async with Client(registry) as client: ...                        # in this process
        async with Client("ws://hub.example:9000", token="…") as client:  # a hub; redis://, nats:// a broker
        async with Client("https://api.example", token="…") as client:    # what `serve_http` serves
        async with Client(MemoryTransport(bus)) as client: ...

            data = await client.call("math.add", {"a": 1, "b": 2}, timeout=5)

    Over a registry it is the trusted local caller, unless `identity` says who calls: then access is checked. A
    `PendingRequestMap` is used as it is, and stays open; whatever else is given is opened and closed by the client.

    `timeout` is in seconds, for calls that say nothing of it; it spans all attempts of a call. `retries` says how often
    a QUERY is repeated that failed with a retryable error. A MUTATION never is: only its caller knows if it may be.
    `options` are those of the transport, or of the HTTP client (`ssl`, `headers`, `proxy`, `max_response`, …).

    Raises:
        CallError: VALIDATION_ERROR, if there is no way to such a target or an option cannot be used; UNAVAILABLE, if a
            package is missing for it.
    """

    def __init__(
        self,
        target: Target,
        *,
        token: str | Callable[[], str] | None = None,
        identity: Identity | None = None,
        timeout: float = 30.0,
        is_error: IsErrorPolicy = "raise",
        retries: Retries | None = Retries(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        check_number("timeout", timeout, above=True)
        if token is not None:
            options["token"] = token
        self._back_end = _back_end(target, identity, options)
        self._identity = identity
        self._timeout = timeout
        self._is_error: IsErrorPolicy = is_error
        self._budget = RetryBudget(retries or Retries(attempts=1))
        self._deadlines = Deadlines()
        self._is_open = False

    async def start(self) -> Self:
        """Connect.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, if the token is not good.
        """
        await self._back_end.start()
        self._is_open = True
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. Calls that are under way on a connection of the client's own end with UNAVAILABLE."""
        self._is_open = False
        await self._back_end.close()

    # --- calls ------------------------------------------------------------------------------------------------------

    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[CallOptions]
    ) -> T: ...
    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[CallOptions]
    ) -> Any: ...
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[CallOptions]
    ) -> Any:
        """The data of a query or mutation. With `output_type` it really is of that type.

        Raises:
            CallError: whatever went wrong there or on the way; TIMEOUT when there was no answer in time.
        """
        envelope = await self.call_envelope(operation_id, input, **options)
        return self._data(envelope, output_type, operation_id)

    @overload
    async def call_envelope(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[CallOptions]
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call_envelope(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[CallOptions]
    ) -> ResponseEnvelope[Any]: ...
    async def call_envelope(
        self,
        operation_id: str,
        input: Any = None,
        *,
        output_type: Any = None,
        timeout: float | None = None,
        context: Context | None = None,
    ) -> ResponseEnvelope[Any]:
        """The whole envelope of a query or mutation, `isError` or not.

        Raises:
            CallError: as `call`.
        """
        within = self._context(context, self._timeout if timeout is None else timeout)
        self._budget.called()
        envelope = await self._call(operation_id, input, within)
        return envelope if output_type is None else typed_envelope(envelope, output_type, operation_id)

    async def _call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call until there is an answer, or no more attempt."""
        attempts = 0
        while True:
            attempts += 1
            self._check_open()
            try:
                return await self._back_end.call(operation_id, input, context)
            except CallError as error:
                attempts = await self._pause(operation_id, context, error, attempts)

    async def _pause(self, operation_id: str, context: Context, error: CallError, attempts: int) -> int:
        """Wait before the next attempt; how many there were by then.

        Not to know whether an operation may be repeated is a failed attempt, too: who could say is not there yet.

        Raises:
            CallError: the error itself, if there is no next attempt.
        """
        while True:
            left = (context.deadline or 0.0) - time.monotonic()
            delay = self._budget.wait(error, attempts, left) if self._is_open else None
            may_repeat = False if delay is None else await self._may_repeat(operation_id, context)
            if delay is None or may_repeat is False or not self._budget.spend():
                raise error
            await asyncio.sleep(delay)
            if may_repeat:
                return attempts
            attempts += 1

    async def _may_repeat(self, operation_id: str, context: Context) -> bool | None:
        """Whether an operation is a query; None if nobody can say at the moment."""
        try:
            spec = await self._find(operation_id, context.deadline)
        except CallError as error:
            return None if error.retryable else False
        return None if spec is None else spec.type is OperationType.QUERY

    async def _find(self, operation_id: str, deadline: float | None) -> OperationSpec | None:
        complaint = f"nobody said what {operation_id} is"
        return await self._deadlines.limit(lambda: self._back_end.find(operation_id), deadline, complaint)

    # --- subscriptions ----------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[StreamOptions]
    ) -> AsyncGenerator[T]: ...
    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[StreamOptions]
    ) -> AsyncGenerator[Any]: ...
    async def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[StreamOptions]
    ) -> AsyncGenerator[Any]:
        """The data of each item of a subscription. Leaving the loop stops the producer.

        A subscription has no limit of time, unless `timeout` says how long it may last, or `idle_timeout` how long the
        next item may take.

        Raises:
            CallError: what ended the stream.
        """
        envelopes = self.subscribe_envelopes(operation_id, input, **options)
        try:
            async for envelope in envelopes:
                yield self._data(envelope, output_type, operation_id)
        finally:
            await envelopes.aclose()

    async def subscribe_envelopes(
        self,
        operation_id: str,
        input: Any = None,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        context: Context | None = None,
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The envelopes of a subscription; otherwise as `subscribe`."""
        self._check_open()
        items = self._back_end.subscribe(operation_id, input, self._context(context, timeout))
        complaint = f"{operation_id} gave no item"
        try:
            while True:
                idle = None if idle_timeout is None else time.monotonic() + idle_timeout
                item = await self._deadlines.limit(lambda: anext(items, None), idle, complaint)
                if item is None:
                    return
                yield item
        finally:
            await items.aclose()

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
    ) -> AsyncGenerator[Any]:
        """The items of all pages of a query, one page asked for after the other.

            async for repository in client.paginate("github.repos/list-for-org", {"org": "python"}, max_items=500): ...
            async for row in client.paginate("db.rows", cursor=("page.next", "token"), items="page.rows"): ...

        The next page is found by a Link header, by a field of the answer (`next_cursor`, `nextPageToken`, `next`,
        `has_more`, …), or by counting pages or items, where the input takes `page` or `offset`. `cursor` says it
        outright: the field of the answer, and the field of the input that takes it. `items` is the field of the answer
        that holds the items. Fields within fields are written with dots. `timeout` is for each page.

        Raises:
            CallError: as `call`; VALIDATION_ERROR, if there are no items, or no way to the next page, or `max_items` is
                below zero or `max_pages` below one; EXECUTION_ERROR,
                if there are more pages than `max_pages`, or the same one comes again.
        """
        if max_items is not None:
            check_number("max_items", max_items, whole=True)
        pages = Pages(operation_id, input, cursor=cursor, items=items, max_pages=max_pages)
        left, spec, asked = max_items, None, cursor is not None
        while pages.input is not None and left != 0:
            envelope = await self.call_envelope(operation_id, pages.input, timeout=timeout, context=context)
            self._data(envelope, None, operation_id)
            found = pages.items(envelope)
            for item in found if left is None else found[:left]:
                yield self._data(ResponseEnvelope(item, envelope.meta), output_type, operation_id)
            left = None if left is None else max(left - len(found), 0)
            if left != 0:
                if not asked:
                    within = self._context(context, self._timeout if timeout is None else timeout)
                    spec, asked = await self._find_if_possible(operation_id, within), True
                pages.advance(envelope, found, spec)

    async def _find_if_possible(self, operation_id: str, context: Context) -> OperationSpec | None:
        try:
            return await self._find(operation_id, context.deadline)
        except CallError:  # pages can be found without a schema, too, if not as many
            return None

    # --- looking around ---------------------------------------------------------------------------------------------

    async def operations(self, *, timeout: float | None = None) -> list[OperationSpec]:
        """What can be called, in the order of ids.

        Raises:
            CallError: UNAVAILABLE, TIMEOUT, or whatever else keeps the other side from answering.
        """
        self._check_open()
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        found = await self._deadlines.limit(self._back_end.operations, deadline, "nobody said what there is")
        return sorted(found, key=lambda spec: spec.id)

    def _context(self, context: Context | None, timeout: float | None) -> Context:
        context = (context or _NOBODY).within(timeout)
        if self._identity is None or context.inbound is not None:  # a nested call keeps the identity of its caller
            return context
        return replace(context, identity=self._identity)

    def _data(self, envelope: ResponseEnvelope[Any], output_type: Any, operation_id: str) -> Any:
        meta = envelope.meta
        if isinstance(meta, MCPResponseMeta) and meta.is_error and self._is_error == "raise":
            raise _tool_failed(meta.content, operation_id)
        return envelope.data if output_type is None else typed_envelope(envelope, output_type, operation_id).data

    def _check_open(self) -> None:
        if not self._is_open:
            closed = "the client is not open: it is used within `async with Client(…)`"
            raise CallError(ErrorCode.UNAVAILABLE, closed, retryable=False)


def _back_end(target: Target, identity: Identity | None, options: dict[str, Any]) -> BackEnd:
    match target:
        case OperationRegistry():
            _take_none(options, "a registry")
            return RegistryBackEnd(target, identity)
        case PendingRequestMap():
            _take_none(options, "a PendingRequestMap")
            return CallsBackEnd(target, owned=False, identity=identity)
        case str() | Sequence() if identity is not None:
            nobody = "over a network the token says who calls, and not identity="
            raise CallError(ErrorCode.VALIDATION_ERROR, nobody)
        case str() if target.startswith(("http://", "https://")):
            return _over_http(target, options)
        case str() | Sequence():
            return CallsBackEnd(PendingRequestMap(connect(target, **options)), owned=True)
        case _:
            _take_none(options, "a transport")
            return CallsBackEnd(PendingRequestMap(target), owned=True, identity=identity)


def _over_http(url: str, options: dict[str, Any]) -> BackEnd:
    try:
        from opwire.client.backends import HTTPBackEnd
    except ModuleNotFoundError as error:
        missing = f"{url.partition(':')[0]}:// needs the package {error.name}: pip install 'opwire[openapi]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing, retryable=False) from error
    return HTTPBackEnd(url, options.pop("token", None), options)


def _take_none(options: dict[str, Any], what: str) -> None:
    if options:
        unused = f"{what} takes no options: {', '.join(sorted(options))}"
        raise CallError(ErrorCode.VALIDATION_ERROR, unused)


def _tool_failed(content: list[MCPContentBlock], operation_id: str) -> CallError:
    texts = [str(block["text"]) for block in content if block["type"] == "text"]
    said = "\n".join(texts)[:_MAX_TEXT] or f"{operation_id} says that it failed"
    return CallError(ErrorCode.EXECUTION_ERROR, said, {"content": content})
