"""The harness of the transport contract: ends of one transport, and bounded waiting."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from inspect import isasyncgenfunction
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from opwire.errors import CallError, ErrorCode
from opwire.model.envelope import local_envelope
from opwire.model.identity import LOCAL_IDENTITY
from opwire.model.operation import Handler, OperationSpec, OperationType
from opwire.protocol.events import CallEvent, CallRequested, CallResponded
from opwire.protocol.handler import CallHandler
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address, Transport
from opwire.registry import OperationRegistry
from opwire.runtime.tasks import cancel_tasks

Connect = Callable[[], Transport]
"""Returns a fresh end of the same bus, server or broker, not started."""

T = TypeVar("T")

PATIENCE = 20.0
"""Timeout of everything that a check awaits, in seconds. A busy machine may take several of them."""


def expect(holds: bool, complaint: str) -> None:
    """Raise AssertionError unless the condition holds. Unlike `assert`, it is not removed by `python -O`."""
    if not holds:
        raise AssertionError(complaint)


async def soon(what: str, awaitable: Awaitable[T]) -> T:
    """Await with a timeout.

    Raises:
        AssertionError: the timeout has passed.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            return await awaitable
    except TimeoutError:
        raise AssertionError(f"timeout after {PATIENCE:g} s: {what}") from None


async def refused(what: str, awaitable: Awaitable[object], code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
    """Check that an awaitable raises a `CallError` with this code.

    Raises:
        AssertionError: it does not.
    """
    try:
        await soon(what, awaitable)
    except CallError as error:
        expect(error.code is code, f"{what} raised {error}, and not {code.value}")
    else:
        raise AssertionError(f"{what} was not refused")


def item(request_id: str, data: Any, seq: int | None = None) -> CallResponded:
    """Return a response, or one item of a subscription."""
    return CallResponded(request_id=request_id, output=local_envelope(data, "contract.item"), seq=seq)


class Probe:
    """A receiver that records events."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.events: list[CallEvent] = []
        self.senders: list[Address] = []
        self._news = asyncio.Event()

    def received(self, event: CallEvent, sender: Address) -> None:
        """Record an event."""
        self.events.append(event)
        self.senders.append(sender)
        self._news.set()

    def lost(self, peer: Address | None, reason: str) -> None:
        """Ignore lost peers: the checks look at the effect on calls."""

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds for the recorded events."""

        async def wait() -> None:
            while not condition():
                self._news.clear()
                await self._news.wait()

        await soon(what, wait())

    async def count(self, number: int) -> None:
        """Wait until this many events were recorded."""
        await self.until(f"{number} events arrive", lambda: len(self.events) >= number)


class Conversation(NamedTuple):
    """Two probes that know the address of each other, from a request and its first item."""

    caller: Probe
    server: Probe
    caller_address: Address
    server_address: Address
    request_id: str


async def _end(task: asyncio.Task[Any]) -> None:
    await cancel_tasks(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log it


class Harness(Generic[T]):
    """Connects the ends of one check, and closes them afterwards."""

    def __init__(self, connect: Callable[[], T]) -> None:
        self._connect = connect
        self._stack = AsyncExitStack()
        self._namespace = f"contract{token_hex(4)}"  # unique, so that runs on the same broker are isolated

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def id(self, name: str = "do") -> str:
        """Return the id of an operation of this check."""
        return f"{self._namespace}.{name}"


def named_checks(
    harness: Callable[[Any], Harness[Any]], checks: Mapping[str, Callable[..., Awaitable[None]]]
) -> Mapping[str, Callable[..., Awaitable[None]]]:
    """Return checks that take the function that connects an end. Any exception is raised as a broken promise."""

    async def keep(promise: str, connect: Any, *limit: int) -> None:
        try:
            async with harness(connect) as connected:
                await checks[promise](connected, *limit)
        except Exception as error:
            raise AssertionError(f"broken promise: {promise}: {error!r}") from error

    return MappingProxyType({promise: partial(keep, promise) for promise in checks})


class TransportHarness(Harness[Transport]):
    """Connects the ends of a transport."""

    def begin(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call in a task, which is cancelled at the end of the check."""
        task = asyncio.get_running_loop().create_task(call)
        self._stack.push_async_callback(_end, task)
        return task

    async def probe(self, *names: str) -> Probe:
        """Connect a probe that announces these operations."""
        probe = Probe(self._connect())
        self._stack.push_async_callback(probe.transport.close)
        await probe.transport.start(probe)
        if names:
            await probe.transport.announce([self.id(name) for name in names])
        return probe

    async def caller(self, *, window: int = 64) -> PendingRequestMap:
        """Connect an end that calls."""
        return await self._stack.enter_async_context(PendingRequestMap(self._connect(), window=window))

    async def server(self, **handlers: Handler) -> tuple[PendingRequestMap, CallHandler]:
        """Connect an end that serves these handlers; async generators are subscriptions that can be resumed."""
        registry = OperationRegistry()
        for name, handler in handlers.items():
            streams = isasyncgenfunction(handler)
            type = OperationType.SUBSCRIPTION if streams else OperationType.QUERY
            spec = OperationSpec(namespace=self._namespace, name=name, type=type, resumable=streams)
            registry.register(spec, handler)
        calls = await self.caller()
        return calls, await self._stack.enter_async_context(CallHandler(registry, calls, anonymous=LOCAL_IDENTITY))

    async def conversation(self) -> Conversation:
        """Connect two probes, and send a request from one to the other."""
        server, caller = await self.probe("talk"), await self.probe()
        request_id = token_hex(8)
        caller.transport.request(CallRequested(request_id=request_id, operation_id=self.id("talk")))
        await server.count(1)
        server.transport.send(item(request_id, None, 1), server.senders[0])
        await caller.count(1)
        return Conversation(caller, server, server.senders[0], caller.senders[0], request_id)
