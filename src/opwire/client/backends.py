"""The interface between a client and what answers it, with the backends for registries and transports.

The backend for served HTTP addresses, which needs aiohttp, is in `http_backend`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from math import inf
from typing import Any, Protocol

from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, RegistrationError, resume_error
from opwire.model.access import may_access
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import OperationSpec
from opwire.protocol.discovery import discover
from opwire.protocol.pending import PendingRequestMap
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.deadlines import back_off
from opwire.runtime.text import get_logger

logger = get_logger("opwire.client")

_FIRST_DELAY_SECONDS = 0.1

STALE = 0.5
"""Seconds for which a cached listing without the requested operation stays valid."""


class Backend(Protocol):
    """The target of a client's calls. It respects the deadline of the context, which is always set, and never retries.

    Its methods raise `CallError` and nothing else. `version` is the requested one; None accepts any.
    """

    async def start(self) -> None:
        """Connect."""
        ...

    async def close(self) -> None:
        """Disconnect; calls in flight end."""
        ...

    def call(
        self, operation_id: str, input: Any, context: Context, version: str | None
    ) -> Awaitable[ResponseEnvelope[Any]]:
        """Call a query or mutation."""
        ...

    def subscribe(
        self, operation_id: str, input: Any, context: Context, version: str | None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Stream the items of a subscription; closing the generator stops the producer."""
        ...

    async def operations(self) -> Sequence[OperationSpec]:
        """Return the specs of the operations that can be called."""
        ...

    async def find(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of one operation, possibly from a cache, or None."""
        ...


async def resuming(
    subscribe: Callable[[Context], AsyncGenerator[ResponseEnvelope[Any]]],
    context: Context,
    operation_id: str,
    may_retry: Callable[[], bool],
    *,
    longest: float,
    outage: float,
) -> AsyncGenerator[ResponseEnvelope[Any]]:
    """Stream the items of a subscription, and resume it behind the last item whenever it is lost, while `may_retry`.

    A back-off of at most `longest` seconds precedes each attempt. After `outage` seconds without success, the loss is
    final.

    Raises:
        CallError: VALIDATION_ERROR, with RESUME in its details, if an item has no cursor, or the server cannot resume.
    """
    attempts, lost, cursor = 0, 0.0, None
    while True:
        opened = time.monotonic()
        items = subscribe(context if cursor is None else replace(context, resume_from=cursor))
        try:
            async for item in items:
                attempts, cursor = 0, item.cursor
                if cursor is None:
                    raise resume_error(f"{operation_id} cannot be resumed: its items have no cursor")
                yield item
            return
        except CallError as error:
            # A server that restarts is unknown for a moment.
            absent = cursor is not None and error.code is ErrorCode.OPERATION_NOT_FOUND
            if error.code is ErrorCode.TIMEOUT or not (error.retryable or absent) or not may_retry():
                raise
            now = time.monotonic()
            if attempts == 0 or now - opened > longest:  # after an item, or a while without one
                attempts, lost = 0, now
            attempts += 1
            delay = (error.retry_after or 0.0) + back_off(attempts, first=_FIRST_DELAY_SECONDS, longest=longest)
            if now + delay > lost + outage or (context.deadline is not None and now + delay > context.deadline):
                raise
            logger.info("%s: lost the subscription, resuming in %.3g s: %s", operation_id, delay, error.message)
        finally:
            await items.aclose()
        await asyncio.sleep(delay)


def check_version(spec: OperationSpec | None, version: str | None) -> None:
    """Check that an operation has the requested version, at a target that has one version of each.

    Raises:
        CallError: OPERATION_NOT_FOUND.
    """
    if spec is not None and version is not None and spec.version != version:
        served = f"as version {spec.version}" if spec.version else "without a version"
        message = f"{spec.id} is served here {served}, and not as version {version[:80]}"
        raise CallError(ErrorCode.OPERATION_NOT_FOUND, message)


class SpecCache:
    """The specs of a peer, loaded lazily on the first lookup, and again when the requested one is missing."""

    def __init__(self, load: Callable[[], Awaitable[Sequence[OperationSpec]]]) -> None:
        self._load = load
        self._specs: dict[str, OperationSpec] = {}
        self._loaded: float | None = None
        self._lock = asyncio.Lock()  # a hundred calls that fail at once send one request

    async def find(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of an operation, or None; raise what loading raises."""
        async with self._lock:
            if operation_id not in self._specs and (self._loaded is None or time.monotonic() > self._loaded + STALE):
                self._specs = {spec.id: spec for spec in await self._load()}
                self._loaded = time.monotonic()
            return self._specs.get(operation_id)


class RegistryBackend:
    """A registry in this process.

    Without `act_as` calls are trusted, and made by `LOCAL_IDENTITY` unless their context has another identity. With it,
    access is checked as on any other surface.
    """

    def __init__(self, registry: OperationRegistry, act_as: Identity | None) -> None:
        self._registry = registry
        self._dispatcher = Dispatcher(registry)
        self._act_as = act_as

    async def start(self) -> None:
        """No-op."""

    async def close(self) -> None:
        """No-op: the registry stays usable."""

    async def call(self, operation_id: str, input: Any, context: Context, version: str | None) -> ResponseEnvelope[Any]:
        """Call a query or mutation."""
        check_version(self._registry.get_spec(operation_id), version)
        return await self._registry.execute(operation_id, input, self._admit(operation_id, context))

    async def subscribe(
        self, operation_id: str, input: Any, context: Context, version: str | None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Stream the items of a subscription."""
        check_version(self._registry.get_spec(operation_id), version)
        async with aclosing(self._registry.subscribe(operation_id, input, self._admit(operation_id, context))) as items:
            async for item in items:
                yield item

    async def operations(self) -> Sequence[OperationSpec]:
        """Return the specs that have a handler and may be called."""
        if self._act_as is not None:
            return self._dispatcher.visible(self._act_as)
        return [spec for spec in self._registry.list() if self._dispatcher.is_served(spec)]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of one operation, or None."""
        return self._registry.get_spec(operation_id)

    def _admit(self, operation_id: str, context: Context) -> Context:
        """Check access; return the context of the call."""
        if self._act_as is None:
            is_own = context.identity is None and context.inbound is None  # an anonymous inbound caller stays anonymous
            return replace(context, identity=LOCAL_IDENTITY) if is_own else context
        self._dispatcher.find(operation_id, context.identity)
        return context


class CallsBackend:
    """One end of a transport: a hub, a broker, or another end in this process.

    `owned`: the client starts and closes it. `act_as` filters the listing; within one process the transport trusts
    that identity, elsewhere it determines the identity itself.
    """

    def __init__(self, calls: PendingRequestMap, *, owned: bool, act_as: Identity | None = None) -> None:
        self._calls = calls
        self._act_as = act_as
        self._owned = owned
        self._cache = SpecCache(self.operations)

    async def start(self) -> None:
        """Connect, unless the connection has another owner."""
        if self._owned:
            await self._calls.start()

    async def close(self) -> None:
        """Disconnect, unless the connection has another owner."""
        if self._owned:
            await self._calls.close()

    def call(
        self, operation_id: str, input: Any, context: Context, version: str | None
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call a query or mutation."""
        return self._calls.call(operation_id, input, context=context, timeout=inf, version=version)

    def subscribe(
        self, operation_id: str, input: Any, context: Context, version: str | None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Stream the items of a subscription."""
        return self._calls.subscribe(operation_id, input, context=context, version=version)

    async def operations(self) -> Sequence[OperationSpec]:
        """Return the specs of every server; of several servers of one operation, the first one counts."""
        specs: dict[str, OperationSpec] = {}
        for server in await discover(self._calls):
            for info in server.operations:
                if info.id in specs:
                    continue
                try:
                    specs[info.id] = info.spec()
                except RegistrationError as error:
                    logger.warning("ignoring an invalid operation of a peer: %s", error)
        return [spec for spec in specs.values() if self._act_as is None or may_access(spec, self._act_as)]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of one operation, or None."""
        return await self._cache.find(operation_id)
