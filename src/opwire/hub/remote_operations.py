"""Operations of peers in a local registry: with their schemas, and handlers that forward calls to their servers.

So remote operations are listed, described, validated and served like local ones.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable
from contextlib import aclosing
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, RegistrationError, SchemaError
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import Handler, OperationSpec, OperationType, is_own
from opwire.protocol.description import OperationInfo
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address
from opwire.registry import OperationRegistry
from opwire.runtime.bounded import BoundedDict

HUB = Identity(id="hub", scopes=("*",))
"""The identity of calls that the hub's own program makes without one. Peers cannot use it for calls of their own."""


_MAX_VERSIONS_PER_OPERATION = 16
_EXPIRY_DELAY = 0.01  # seconds
_MAX_EXPIRED_PER_TURN = 5_000  # operations: 30 ms
_MAX_CACHED_OPERATIONS = 1_000  # whose servers are cached by version
_NO_VERSIONS: dict[str | None, set[Address]] = {}


class DescribedOperation(NamedTuple):
    """A valid description of a remote operation, and its digest."""

    spec: OperationSpec
    digest: str


class _RemoteOperation(Struct, eq=False):
    spec: OperationSpec
    digest: str
    peers: dict[Address, None] = field(default_factory=dict[Address, None])  # its servers
    local: int = 0  # servers that are not other hubs
    expected_until: float = 0.0  # the monotonic time until which a lost server may return


class RemoteOperations:
    """Registers the operations of peers, each one while at least one peer serves it.

    Operations of a lost peer stay registered for `linger` seconds, in which calls of them raise UNAVAILABLE: it may
    reconnect soon, and listings should not flicker. For as long after `begin`, operations that were never announced
    count as late instead of unknown.
    """

    def __init__(
        self, registry: OperationRegistry, calls: PendingRequestMap, *, linger: float = 30.0, versions: bool = False
    ) -> None:
        self._registry = registry
        self._calls = calls
        self._linger = linger
        self._has_versions = versions
        self._operations: dict[str, _RemoteOperation] = {}  # the listed version of each
        self.split: dict[str, dict[str, _RemoteOperation]] = {}  # the other versions of some, by id and version
        self._eligible = BoundedDict[str, dict[str | None, set[Address]]](
            _MAX_CACHED_OPERATIONS
        )  # results of `eligible`
        self._served: dict[Address, dict[str, None]] = {}  # by peer: losing one costs only what it announced
        self._timers: set[asyncio.TimerHandle] = set()
        self.hubs: set[Address] = set()  # peers that are other hubs
        # Called with an id and a version when that is served by a peer that is not a hub, or not any more.
        self.on_local: Callable[[str, str], object] = lambda _id, _version: None
        self.look_up: Callable[[str], Awaitable[None]] | None = None  # awaited before an operation has no server
        self._complete = 0.0  # the monotonic time from which unannounced operations count as unknown

    def __contains__(self, operation_id: str) -> bool:
        """Return whether an operation is remote."""
        return operation_id in self._operations

    def begin(self) -> None:
        """Start the time in which peers are expected to connect."""
        self._complete = time.monotonic() + self._linger

    def check_unknown(self, operation_id: str) -> None:
        """Check that an operation without a server is unknown, and not only late.

        Raises:
            CallError: UNAVAILABLE, its server may still connect.
        """
        is_known = operation_id in self._registry or is_own(operation_id)
        if not is_known and time.monotonic() < self._complete:
            reason = "the hub has just started, and its spokes may still be connecting"
            raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} is not served yet: {reason}")

    def is_absent(self, operation_id: str) -> bool:
        """Return whether a remote operation has no server at the moment."""
        operation = self._operations.get(operation_id)
        return operation is not None and not operation.peers

    def digest(self, operation_id: str) -> str | None:
        """Return the digest of an operation's description, or None."""
        operation = self._operations.get(operation_id)
        return None if operation is None else operation.digest

    def is_subscription(self, operation_id: str) -> bool:
        """Return whether a remote operation is a subscription."""
        operation = self._operations.get(operation_id)
        return operation is not None and operation.spec.type is OperationType.SUBSCRIPTION

    def check(self, info: OperationInfo, digest: str) -> DescribedOperation:
        """Parse a description.

        Raises:
            CallError: VALIDATION_ERROR, the description is invalid, or its id is reserved for opwire itself.
        """
        if is_own(info.id):
            raise _invalid(f"{info.id} is reserved: opwire itself serves it at every server")
        try:  # results were normalised by their server
            spec = info.spec(normalize="off", compact=True)
        except (RegistrationError, SchemaError) as error:
            raise _invalid(f"{info.id} cannot be registered: {error}") from error
        return DescribedOperation(spec, digest)

    def _versions(self, operation_id: str) -> list[_RemoteOperation]:
        listed = self._operations.get(operation_id)
        return [] if listed is None else [listed, *self.split.get(operation_id, {}).values()]

    def _version(self, spec: OperationSpec) -> _RemoteOperation | None:
        """Return the known operation of the version of a spec; without support for versions, the only one."""
        versions = self._versions(spec.id)
        matching = (
            operation for operation in versions if operation.spec.version == spec.version or not self._has_versions
        )
        return next(matching, None)

    def eligible(self, operation_id: str, version: str | None) -> Container[Address] | None:
        """Return the servers of a version or, for None, those with the schemas of the listed one; None is all."""
        cached = self._eligible.get(operation_id, _NO_VERSIONS).get(version)
        if cached is not None:
            return cached
        versions = self._versions(operation_id)
        if not versions or (version is None and len(versions) == 1):
            return None
        if version is None:
            operations = [operation for operation in versions if _difference(operation.spec, versions[0].spec) is None]
        else:
            operations = [operation for operation in versions if operation.spec.version == version]
        servers = {peer for operation in operations for peer in operation.peers}
        if servers:  # otherwise unknown versions would fill it
            self._eligible[operation_id] = self._eligible.get(operation_id, {}) | {version: servers}
        return servers

    def check_conflict(self, peer: Address, operation: DescribedOperation) -> None:
        """Check that a peer can serve an operation. Versions may differ in their schemas.

        Raises:
            CallError: VALIDATION_ERROR, the hub serves it, or others serve it in another way.
        """
        spec, versions = operation.spec, self._versions(operation.spec.id)
        if not versions and spec.id in self._registry:
            raise _invalid(f"{spec.id} is an operation of the hub itself: serve it under another name")
        for registered in versions:
            if registered.digest == operation.digest:
                return
            if not registered.peers.keys() - {peer}:  # without other servers
                continue
            part = _difference(registered.spec, spec)
            is_other = (
                self._has_versions
                and registered.spec.version
                and spec.version
                and registered.spec.version != spec.version
            )
            if part is not None and not (is_other and part != "type"):
                served = f"{spec.id} is served by another peer with another {part.replace('_', ' ')}"
                another = ", give each its own `version`" if self._has_versions and part != "type" else ""
                raise _invalid(f"{served}: serve the same version{another}, or use another name")
        if self._version(spec) is None and len(versions) >= _MAX_VERSIONS_PER_OPERATION:
            raise _invalid(f"{spec.id} is served in {len(versions)} versions already, which is the most")

    def add(self, peer: Address, operations: Iterable[DescribedOperation]) -> None:
        """Register operations of a peer that passed `check_conflict`."""
        served = self._served.setdefault(peer, {})
        for operation in operations:
            spec, id = operation.spec, operation.spec.id
            registered = self._version(spec)
            for other in self._versions(id):
                if other is not registered and peer in other.peers and peer not in self.hubs:
                    self._detach(peer, other)  # a spoke serves one version of an operation
            if registered is None or (registered.digest != operation.digest and not registered.peers.keys() - {peer}):
                replacement = _RemoteOperation(spec, operation.digest)
                if registered is None and id in self._operations:
                    self.split.setdefault(id, {})[spec.version] = replacement
                elif registered is None or registered is self._operations[id]:
                    self._operations[id] = replacement
                    self._registry.register(spec, self._handler(spec), replace=id in self._registry)
                else:
                    self.split[id][spec.version] = replacement
                registered = replacement
            served[id] = None
            if peer not in registered.peers:
                registered.peers[peer] = None
                if peer not in self.hubs:
                    registered.local += 1
                    if registered.local == 1:
                        self.on_local(id, registered.spec.version)
            self._settle(id)

    def join(self, peer: Address, operation_ids: Iterable[str]) -> None:
        """Add a peer to the servers of registered operations that it describes in the same way."""
        operations = [self._operations[operation_id] for operation_id in operation_ids]
        self.add(peer, [DescribedOperation(operation.spec, operation.digest) for operation in operations])

    def _detach(self, peer: Address, operation: _RemoteOperation) -> None:
        del operation.peers[peer]
        if peer not in self.hubs:
            operation.local -= 1
            if not operation.local:
                self.on_local(operation.spec.id, operation.spec.version)

    def _settle(self, operation_id: str) -> None:
        """Forget the versions without a present or expected server, and list the lowest of the others.

        Follows each change of an operation's servers.
        """
        self._eligible.pop(operation_id, None)
        now, listed = time.monotonic(), self._operations[operation_id]
        if operation_id not in self.split and (listed.peers or listed.expected_until > now):  # nearly always
            return
        versions = [
            operation for operation in self._versions(operation_id) if operation.peers or operation.expected_until > now
        ]
        if not versions:
            self._unregister(operation_id)
            return
        lowest, *others = sorted(versions, key=lambda operation: _version_order(operation.spec.version))
        self.split.pop(operation_id, None)
        if others:
            self.split[operation_id] = {operation.spec.version: operation for operation in others}
        if lowest is not listed:
            self._operations[operation_id] = lowest
            self._registry.register(lowest.spec, self._handler(lowest.spec), replace=True)

    def served_here(self, operation_id: str, version: str) -> tuple[OperationSpec | None, bool]:
        """Return a version if spokes of this hub serve it, and otherwise whether a lost one is expected back."""
        for operation in self._versions(operation_id):
            if operation.spec.version == version:
                return (operation.spec if operation.local else None), operation.expected_until > time.monotonic()
        return None, False

    def serves(self, peer: Address, operation_id: str) -> bool:
        """Return whether a peer serves an operation, in any version."""
        return operation_id in self._served.get(peer, {})

    def remove(self, peer: Address, operation_ids: Iterable[str], version: str | None = None) -> None:
        """Remove a peer from the servers of operations; unregister those without a present or expected server."""
        self._leave(peer, list(operation_ids), version, 0.0)

    def _leave(
        self, peer: Address, operation_ids: Iterable[str], version: str | None, expected_until: float
    ) -> list[str]:
        """Remove a peer from the servers of operations, or of one version of them; return those that it served."""
        served, removed_ids = self._served.get(peer, {}), list[str]()
        for id in operation_ids:
            if id not in served:
                continue
            removed_ids.append(id)
            serves_another = False
            for operation in self._versions(id):
                if peer not in operation.peers:
                    continue
                if version is None or operation.spec.version == version:
                    operation.expected_until = max(operation.expected_until, expected_until)
                    self._detach(peer, operation)
                else:
                    serves_another = True
            if not serves_another:
                del served[id]
            self._settle(id)
        if not served:
            self._served.pop(peer, None)
        return removed_ids

    def lost(self, peer: Address, operation_ids: Iterable[str] | None = None, version: str | None = None) -> None:
        """Remove a peer that disconnected without withdrawing, or lost these operations; they linger."""
        if operation_ids is None:
            operation_ids = list(self._served.get(peer, {}))
        removed_ids = self._leave(peer, operation_ids, version, time.monotonic() + self._linger)
        if removed_ids and self._linger:
            # One timer per peer, not per operation: 200,000 operations may be lost at once. A moment later, since the
            # times of the operations have to be over.
            self._expire_after(self._linger + _EXPIRY_DELAY, removed_ids)

    def _expire_after(self, seconds: float, operation_ids: list[str]) -> None:
        def expire() -> None:
            self._timers.discard(timer)
            if len(operation_ids) > _MAX_EXPIRED_PER_TURN:
                self._expire_after(0, operation_ids[_MAX_EXPIRED_PER_TURN:])
            for id in operation_ids[:_MAX_EXPIRED_PER_TURN]:
                if id in self._operations:
                    self._settle(id)

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        self._timers.add(timer)

    def clear(self) -> None:
        """Unregister everything."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._served.clear()
        for operation_id in list(self._operations):
            self._unregister(operation_id)

    def _unregister(self, operation_id: str) -> None:
        if operation_id in self._registry:
            self._registry.unregister(operation_id)  # while it is still known as remote: it is not announced
        del self._operations[operation_id]
        self.split.pop(operation_id, None)
        self._eligible.pop(operation_id, None)

    def _handler(self, spec: OperationSpec) -> Handler:
        operation_id = spec.id

        async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
            context = await self._forwarded(operation_id, context)
            return await self._calls.call(operation_id, input, context=context)

        async def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
            context = await self._forwarded(operation_id, context)
            async with aclosing(self._calls.subscribe(operation_id, input, context=context)) as items:
                async for item in items:
                    yield item

        return stream if spec.type is OperationType.SUBSCRIPTION else call

    async def _forwarded(self, operation_id: str, context: Context) -> Context:
        """Check that an operation has a server; return the context of the forwarded call.

        `execute()` without a context is a call of the hub's own program, and trusted. A context with a request id
        belongs to a request: without an identity it stays anonymous. Over a broker the program is the connection.
        """
        if self.look_up is not None:
            await self.look_up(operation_id)  # it may have moved
        if self.is_absent(operation_id):
            # The transport would route the call back to the hub, which is the one to know.
            raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} has no server at the moment")
        if context.identity is None and context.request_id is None and self._calls.transport.vouches:
            context = replace(context, identity=HUB)
        # The same call at another place.
        return replace(context.child(), on_progress=context.on_progress, resume_from=context.resume_from)


def _difference(one: OperationSpec, other: OperationSpec) -> str | None:
    """Return the part in which two operations disagree, or None."""
    parts = ("type", "input_schema", "output_schema")
    return next((part for part in parts if getattr(one, part) != getattr(other, part)), None)


def _version_order(version: str) -> list[tuple[int, int, str]]:
    """Return a sort key of a version: 1.9 is below 1.10."""
    parts = (part for part in re.split(r"(\d{1,18})", version[:100]) if part)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _invalid(message: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, message)
