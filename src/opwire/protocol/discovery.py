"""Discovery: the operations by which a server describes itself, and the search for all servers.

Each `CallHandler` serves two operations beside those of its registry, so that discovery uses ordinary calls with
ordinary limits on every transport: the query `opwire.about`, and the subscription `opwire.operations`, which lists what
the caller may call. Only the hub to which the operations are announced sees all of them: it is identified by its
connection, so its requests need no credentials.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any

from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.model.access import AccessControl, may_access
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.model.operation import Change, OperationSpec
from opwire.observe.monitor import json_size
from opwire.protocol.description import Description, OperationInfo, ServerInfo, Statistics, Unchanged
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address, Transport
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.limits import LimitedLog
from opwire.runtime.text import get_logger

logger = get_logger("opwire.protocol")
_failures = LimitedLog(logger, per_second=10)

ABOUT = "opwire.about"
OPERATIONS = "opwire.operations"

_NO_CALLS = Statistics()
_DESCRIPTIONS_PER_TURN = 8
_MAX_CONCURRENT_DESCRIPTIONS = 32  # one after another, the last of 1,000 servers would be too late
_MAX_TIMEOUTS = 24  # that a server may take for all of its operations
_MAX_DESCRIPTION_BYTES = 128 * 1024 * 1024  # twice what a hub accepts of a spoke
_MIN_DESCRIPTION_BYTES = 512  # a small one takes as much memory


class FoundServer(Struct, frozen=True):
    """A server that `discover` found, with its address and operations."""

    address: Address
    server: ServerInfo
    operations: list[OperationInfo]


class AnnouncedDispatcher(Dispatcher):
    """Suggests only announced operations for an unknown one."""

    def __init__(
        self,
        registry: OperationRegistry,
        serves: Callable[[OperationSpec], bool] | None,
        announces: Callable[[OperationSpec], bool] | None,
        own: Callable[[], OperationRegistry],
    ) -> None:
        super().__init__(registry, serves=serves, own=own)
        self._announces = announces

    def is_announced(self, spec: OperationSpec) -> bool:
        return (self._serves is None or self._serves(spec)) and (self._announces is None or self._announces(spec))

    def is_visible(self, spec: OperationSpec, identity: Identity | None) -> bool:
        return self.is_announced(spec) and super().is_visible(spec, identity)

    def other_version(self, operation_id: str, version: str | None) -> CallError | None:
        """Return the error for a version of an operation that is not the one that is served here, or None."""
        spec = None if version is None else self.get_spec(operation_id)
        if spec is None or spec.version == version:
            return None
        message = f"{operation_id} is served here in version {spec.version or 'unknown'}, not in the requested one"
        return CallError(ErrorCode.UNAVAILABLE, message)


class Announcements:
    """Announces the operations of a registry to peers, and their changes."""

    def __init__(self, dispatcher: AnnouncedDispatcher, transport: Transport) -> None:
        self._dispatcher = dispatcher
        self._transport = transport
        self._changes: dict[str, bool] = {}  # ids to announce (True) or withdraw
        self._announcing: asyncio.Task[None] | None = None
        self._stop_watching: Callable[[], object] = lambda: None

    def ids(self) -> list[str]:
        """Return the ids of the announced operations."""
        return [spec.id for spec in self._dispatcher.registry.list() if self._dispatcher.is_announced(spec)]

    async def start(self) -> None:
        """Announce all operations, and from now on their changes.

        Raises:
            CallError: UNAVAILABLE; ACCESS_DENIED or VALIDATION_ERROR if some operations are rejected.
        """
        self._stop_watching = self._dispatcher.registry.on_change(self._changed)
        try:
            await self._transport.announce(self.ids())
        except CallError as error:
            self._stop_watching()
            if error.code is not ErrorCode.UNAVAILABLE:
                await self._transport.withdraw(self.ids())
            raise

    async def stop(self, grace: float) -> None:
        """Withdraw all operations."""
        self._stop_watching()
        if self._announcing is not None:  # an announcement after the withdrawal would persist
            await asyncio.wait([self._announcing], timeout=grace)
        await self._transport.withdraw(self.ids())

    def _changed(self, change: Change) -> None:
        """Announce changes of the registry; simultaneous changes are announced together."""
        if not self._dispatcher.is_announced(change.spec):
            return
        self._changes[change.spec.id] = change.kind != "removed"
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.get_running_loop().create_task(self._announce_changes())

    async def _announce_changes(self) -> None:
        while self._changes:
            changes, self._changes = self._changes, {}
            try:
                if withdrawn_ids := [operation_id for operation_id, there in changes.items() if not there]:
                    await self._transport.withdraw(withdrawn_ids)
                if new := [operation_id for operation_id, there in changes.items() if there]:
                    await self._transport.announce(new)
            except Exception as error:
                logger.warning("changes of the registry could not be announced: %s", error)


class SelfDescription:
    """The two operations by which a server describes itself."""

    def __init__(
        self,
        registry: OperationRegistry,
        about: Callable[[], ServerInfo],
        serves: Callable[[OperationSpec], bool] | None,
        statistics: Mapping[str, Statistics],
    ) -> None:
        self._registry = registry
        self._serves = serves
        self._about = about
        self._statistics = statistics

    @cached_property
    def operations(self) -> Dispatcher:
        """The two operations for ordinary callers; created lazily."""
        return self._dispatcher()

    @cached_property
    def announced(self) -> Dispatcher:
        """The two operations for the hub to which the registry is announced; created lazily."""
        return self._dispatcher(to_hub=True)

    def of(self, serves: Callable[[OperationSpec], bool]) -> "SelfDescription":
        """Return the description of the same server with other operations."""
        return SelfDescription(self._registry, self._about, serves, self._statistics)

    def _dispatcher(self, *, to_hub: bool = False) -> Dispatcher:
        registry, public = OperationRegistry(normalize="off"), AccessControl(public=True)

        async def about() -> ServerInfo:
            """Describe this server."""
            return self._about()

        async def operations(
            context: Context, operations: list[str] | None = None, known: dict[str, str] | None = None
        ) -> AsyncIterator[OperationInfo | Unchanged]:
            """Describe the operations that the caller may call, with schemas and statistics.

            `operations` are the ids to describe, by default all. An operation in `known` is omitted if its digest is
            unchanged; a last item lists the omitted ones.
            """
            allowed = None if to_hub else partial(may_access, identity=context.identity)
            async for item in self._described(allowed, operations, known or {}):
                yield item

        registry.query(ABOUT, access=public)(about)
        registry.subscription(OPERATIONS, access=public)(operations)
        return Dispatcher(registry)

    def describe(self) -> Description:
        """Return the description of this server with all its operations."""
        return Description(self._about(), [self._info(spec) for spec in filter(self._serves, self._registry.list())])

    def _info(self, spec: OperationSpec) -> OperationInfo:
        return OperationInfo.of(spec, self._statistics.get(spec.id, _NO_CALLS))

    async def _described(
        self,
        allowed: Callable[[OperationSpec], bool] | None,
        operations: list[str] | None,
        known_digests: dict[str, str],
    ) -> AsyncIterator[Any]:
        specs: Iterable[OperationSpec | None] = self._registry.list()
        if operations is not None:
            specs = map(self._registry.get_spec, dict.fromkeys(operations))
        served = [spec for spec in specs if spec is not None and (self._serves is None or self._serves(spec))]
        unchanged: list[str] = []
        for number, spec in enumerate(served):
            if number % _DESCRIPTIONS_PER_TURN == 0:
                await asyncio.sleep(0)  # schemas may be built lazily: up to a millisecond each
            if allowed is not None and not allowed(spec):
                continue
            info = self._info(spec)
            if spec.id in known_digests and info.fingerprint().digest == known_digests[spec.id]:
                unchanged.append(spec.id)
            else:
                yield info.plain()
        if unchanged:
            yield {"unchanged": unchanged}


async def discover(calls: PendingRequestMap, *, wait: float = 0.5, timeout: float = 5.0) -> list[FoundServer]:
    """Return all servers on the transport, with their operations. Servers that are silent for `timeout` are omitted.

        for found in await discover(calls):
            print(found.server.name, [operation.id for operation in found.operations])

    Raises:
        CallError: UNAVAILABLE if not connected.
    """
    addresses = await calls.transport.servers(wait)
    turns = asyncio.Semaphore(_MAX_CONCURRENT_DESCRIPTIONS)
    servers = await asyncio.gather(*(_describe(calls, address, timeout, turns) for address in addresses))
    return [server for server in servers if server is not None]


async def _describe(
    calls: PendingRequestMap, address: Address, timeout: float, turns: asyncio.Semaphore
) -> FoundServer | None:
    operations: list[OperationInfo] = []
    room, is_warned = _MAX_DESCRIPTION_BYTES, False
    try:
        # Of all servers at once: any client of a broker can invent thousands of addresses, which never respond.
        server = await _server_info(calls, address, timeout)
        # 100,000 operations take ten seconds: what counts is that they keep coming.
        items = calls.subscribe(OPERATIONS, to=address, idle_timeout=timeout, timeout=_MAX_TIMEOUTS * timeout)
        async with turns, aclosing(items):
            async for envelope in items:
                room -= max(json_size(envelope.data) or 0, _MIN_DESCRIPTION_BYTES)
                if room < 0:
                    most = f"{_MAX_DESCRIPTION_BYTES:,}"
                    logger.warning("the server at %s described more than %s bytes: the rest is omitted", address, most)
                    break
                try:
                    operations.append(OperationInfo.read(envelope.data))
                except CallError as error:
                    if not is_warned:  # more of them would fill the log
                        logger.warning("ignoring an operation of the server at %s: %s", address, error.message)
                    is_warned = True
        return FoundServer(address, server, operations)
    except CallError as error:
        _failures.write(logging.WARNING, "the server at %s did not describe itself: %s", address, error)
        return None


async def _server_info(calls: PendingRequestMap, address: Address, timeout: float) -> ServerInfo:
    """Return what a server says about itself; a foreign one may not serve `opwire.about`."""
    try:
        return (await calls.call(ABOUT, to=address, output_type=ServerInfo, timeout=timeout)).data
    except CallError as error:
        if error.code not in (ErrorCode.OPERATION_NOT_FOUND, ErrorCode.ACCESS_DENIED):
            raise
        return ServerInfo(id=address, name=address)
