"""What the checks of the contract are made with: ends of one medium, and waiting that ends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from inspect import isasyncgenfunction
from secrets import token_hex
from typing import Any, NamedTuple, Self, TypeVar

from opwire.call import (
    LOCAL_IDENTITY,
    Address,
    CallEvent,
    CallHandler,
    CallRequested,
    CallResponded,
    PendingRequestMap,
    Transport,
)
from opwire.envelope import local_envelope
from opwire.operation import Handler, OperationSpec, OperationType
from opwire.registry import OperationRegistry

Connect = Callable[[], Transport]
"""Makes a fresh end of always the same medium, not started yet."""

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds within which what a check waits for has to happen."""


def expect(holds: bool, complaint: str) -> None:
    """`assert`, which Python's `-O` does not remove.

    Raises:
        AssertionError: it does not hold.
    """
    if not holds:
        raise AssertionError(complaint)


async def soon(what: str, awaitable: Awaitable[T]) -> T:
    """Wait for something, with patience.

    Raises:
        AssertionError: it does not happen.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            return await awaitable
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE:g} s in vain: {what}") from None


def item(request_id: str, data: Any, seq: int | None = None) -> CallResponded:
    """An answer, or one item of a subscription."""
    return CallResponded(request_id=request_id, output=local_envelope(data, "contract.item"), seq=seq)


class Probe:
    """A bare end: keeps what arrives, and leaves the rest to the check."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.events: list[CallEvent] = []
        self.senders: list[Address] = []
        self._news = asyncio.Event()

    def received(self, event: CallEvent, sender: Address) -> None:
        """An event arrived."""
        self.events.append(event)
        self.senders.append(sender)
        self._news.set()

    def lost(self, peer: Address | None, reason: str) -> None:
        """A peer is gone; the checks look at what that does to calls."""

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something is true of what has arrived."""

        async def wait() -> None:
            while not condition():
                self._news.clear()
                await self._news.wait()

        await soon(what, wait())

    async def count(self, number: int) -> None:
        """Wait until so many events have arrived."""
        await self.until(f"{number} events arrive", lambda: len(self.events) >= number)


class Conversation(NamedTuple):
    """Two bare ends that know each other's address, by a request and its first item."""

    caller: Probe
    server: Probe
    caller_address: Address
    server_address: Address
    request_id: str


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # seen: whoever waited for it has dealt with it


class TransportHarness:
    """The ends that one check needs. All are closed when it is over."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._stack = AsyncExitStack()
        self._namespace = f"contract{token_hex(4)}"  # so that runs on the same broker do not meet

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def id(self, name: str) -> str:
        """The id of an operation of this harness."""
        return f"{self._namespace}.{name}"

    def begin(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Make a call whose answer is waited for later, or never."""
        task = asyncio.get_running_loop().create_task(call)
        self._stack.push_async_callback(_end, task)
        return task

    async def probe(self, *names: str) -> Probe:
        """A bare end that has announced these operations."""
        probe = Probe(self._connect())
        self._stack.push_async_callback(probe.transport.close)
        await probe.transport.start(probe)
        if names:
            await probe.transport.announce([self.id(name) for name in names])
        return probe

    async def caller(self, *, window: int = 64) -> PendingRequestMap:
        """An end that calls."""
        return await self._stack.enter_async_context(PendingRequestMap(self._connect(), window=window))

    async def server(self, **handlers: Handler) -> tuple[PendingRequestMap, CallHandler]:
        """An end that serves these operations: subscriptions where the handler is an async generator."""
        registry = OperationRegistry()
        for name, handler in handlers.items():
            type = OperationType.SUBSCRIPTION if isasyncgenfunction(handler) else OperationType.QUERY
            registry.register(OperationSpec(namespace=self._namespace, name=name, type=type), handler)
        calls = await self.caller()
        answers = CallHandler(registry, calls, anonymous=LOCAL_IDENTITY)
        return calls, await self._stack.enter_async_context(answers)

    async def conversation(self) -> Conversation:
        """Two bare ends, one of which has asked the other."""
        server, caller = await self.probe("talk"), await self.probe()
        request_id = token_hex(8)
        caller.transport.request(CallRequested(request_id=request_id, operation_id=self.id("talk")))
        await server.count(1)
        server.transport.send(item(request_id, None, 1), server.senders[0])
        await caller.count(1)
        return Conversation(caller, server, server.senders[0], caller.senders[0], request_id)
