"""Operations of peers in a local registry: with their schemas, and handlers that forward calls to their servers.

So remote operations are listed, described, validated and served like local ones.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from opwire.call.description import OperationInfo
from opwire.call.pending import PendingRequestMap
from opwire.call.transport import Address
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode, RegistrationError, SchemaError
from opwire.operation import Context, Handler, Identity, OperationSpec, OperationType, is_own
from opwire.registry import OperationRegistry

HUB = Identity(id="hub", scopes=("*",))
"""The identity of calls that the hub's own program makes without one. Peers cannot use it for calls of their own."""


class DescribedOperation(NamedTuple):
    """A valid description of a remote operation, and its digest."""

    spec: OperationSpec
    digest: str


class _RemoteOperation(Struct, eq=False):
    spec: OperationSpec
    digest: str
    peers: dict[Address, None] = field(default_factory=dict[Address, None])  # its servers
    local: int = 0  # of these, the number of those that are not other hubs
    expected: float = 0.0  # the monotonic time until which a lost server may return


class RemoteOperations:
    """Registers the operations of peers, each one while at least one peer serves it.

    Operations of a lost peer stay registered for `linger` seconds, in which calls of them raise UNAVAILABLE: it may
    reconnect soon, and listings should not flicker. For as long after `begin`, operations that were never announced
    count as late instead of unknown.
    """

    def __init__(self, registry: OperationRegistry, calls: PendingRequestMap, *, linger: float = 30.0) -> None:
        self._registry = registry
        self._calls = calls
        self._linger = linger
        self._operations: dict[str, _RemoteOperation] = {}
        self._served: dict[Address, dict[str, None]] = {}  # by peer: losing one costs only what it announced
        self._timers: set[asyncio.TimerHandle] = set()
        self.hubs: set[Address] = set()  # peers that are other hubs
        self.on_local: Callable[[str], object] = lambda _: (
            None
        )  # called when an operation is served here, or not any more
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
        known = operation_id in self._registry or is_own(operation_id)
        if not known and time.monotonic() < self._complete:
            late = "the hub has just started, and its spokes may still be connecting"
            raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} is not served yet: {late}")

    def digest(self, operation_id: str) -> str | None:
        """Return the digest of an operation's description, or None."""
        known = self._operations.get(operation_id)
        return None if known is None else known.digest

    def is_subscription(self, operation_id: str) -> bool:
        """Return whether a remote operation is a subscription."""
        known = self._operations.get(operation_id)
        return known is not None and known.spec.type is OperationType.SUBSCRIPTION

    def check(self, info: OperationInfo, digest: str | None = None) -> DescribedOperation:
        """Parse a description.

        Raises:
            CallError: VALIDATION_ERROR, the description is invalid.
        """
        try:  # results were normalised by their server
            spec = info.spec(normalize="off", compact=True)
        except (RegistrationError, SchemaError) as error:
            raise _invalid(f"{info.id} cannot be registered: {error}") from error
        return DescribedOperation(spec, digest or info.fingerprint().digest)

    def conflict(self, peer: Address, operation: DescribedOperation) -> CallError | None:
        """Return why a peer cannot serve an operation: the hub serves it, or other peers serve another version."""
        id, known = operation.spec.id, self._operations.get(operation.spec.id)
        if known is None:
            local = f"{id} is an operation of the hub itself: serve it under another name"
            return _invalid(local) if id in self._registry else None
        if known.digest == operation.digest or not known.peers.keys() - {peer}:  # the same, or without other servers
            return None
        for part in ("type", "input_schema", "output_schema"):
            if getattr(known.spec, part) != getattr(operation.spec, part):
                served = f"{id} is served by another peer with another {part.replace('_', ' ')}"
                return _invalid(f"{served}: serve the same version, or use another name")
        return None

    def add(self, peer: Address, operations: Iterable[DescribedOperation]) -> None:
        """Register operations of a peer for which `conflict` returned None."""
        served = self._served.setdefault(peer, {})
        for operation in operations:
            id, known = operation.spec.id, self._operations.get(operation.spec.id)
            if known is not None and known.digest != operation.digest and not known.peers.keys() - {peer}:
                self._unregister(id)  # another version
                known = None
            if known is None:
                known = self._operations[id] = _RemoteOperation(operation.spec, operation.digest)
                self._registry.register(operation.spec, self._handler(operation.spec))
            served[id] = None
            self._attach(peer, known)

    def join(self, peer: Address, operation_ids: Iterable[str]) -> None:
        """Add a peer to the servers of registered operations that it describes in the same way."""
        served = self._served.setdefault(peer, {})
        for operation_id in operation_ids:
            served[operation_id] = None
            self._attach(peer, self._operations[operation_id])

    def _attach(self, peer: Address, known: _RemoteOperation) -> None:
        if peer not in known.peers:
            known.peers[peer] = None
            if peer not in self.hubs:
                known.local += 1
                if known.local == 1:
                    self.on_local(known.spec.id)

    def _detach(self, peer: Address, known: _RemoteOperation) -> None:
        del known.peers[peer]
        if peer not in self.hubs:
            known.local -= 1
            if not known.local:
                self.on_local(known.spec.id)

    def served_here(self, operation_id: str) -> tuple[OperationSpec | None, bool]:
        """Return an operation if spokes of this hub serve it, and otherwise whether a lost one is expected back."""
        known = self._operations.get(operation_id)
        if known is None:
            return None, False
        return (known.spec if known.local else None), known.expected > time.monotonic()

    def remove(self, peer: Address, operation_ids: Iterable[str]) -> None:
        """Remove a peer from the servers of operations; unregister those without a present or expected server."""
        served = self._served.get(peer, {})
        for operation_id in list(operation_ids):
            if operation_id in served:
                del served[operation_id]
                known = self._operations[operation_id]
                self._detach(peer, known)
                if not known.peers and known.expected <= time.monotonic():
                    self._unregister(operation_id)
        if not served:
            self._served.pop(peer, None)

    def lost(self, peer: Address, operation_ids: Iterable[str] | None = None) -> None:
        """Remove a peer that disconnected without withdrawing, or its spoke with these operations; they linger."""
        served = self._served.get(peer, {})
        if operation_ids is not None:
            served = {each: None for each in operation_ids if served.pop(each, 0) is None}
        if operation_ids is None or not self._served.get(peer):
            self._served.pop(peer, None)
        if not served:
            return
        expected = time.monotonic() + self._linger
        for operation_id in served:
            known = self._operations[operation_id]
            known.expected = expected
            self._detach(peer, known)

        def expire() -> None:
            self._timers.discard(timer)
            for operation_id in served:
                known = self._operations.get(operation_id)
                if known is not None and not known.peers and known.expected <= expected:
                    self._unregister(operation_id)

        # One timer per peer, not per operation: 20,000 operations may be lost at once.
        timer = asyncio.get_running_loop().call_later(self._linger, expire)
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

    def _handler(self, spec: OperationSpec) -> Handler:
        operation_id = spec.id

        async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
            context = await self._forwarded(operation_id, context)
            return await self._calls.call(operation_id, input, context=context)

        async def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
            context = await self._forwarded(operation_id, context)
            items = self._calls.subscribe(operation_id, input, context=context)
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()

        return stream if spec.type is OperationType.SUBSCRIPTION else call

    async def _forwarded(self, operation_id: str, context: Context) -> Context:
        """Check that an operation has a server; return the context of the forwarded call.

        `execute()` without a context is a call of the hub's own program, and trusted. A context with a request id
        belongs to a request: without an identity it stays anonymous. Over a broker the program is the connection.
        """
        known = self._operations.get(operation_id)
        if known is not None and not known.peers and self.look_up is not None:
            await self.look_up(operation_id)  # it may have moved
            known = self._operations.get(operation_id)
        if known is not None and not known.peers:
            # The transport would route the call back to the hub, which is the one to know.
            raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} has no server at the moment")
        if context.identity is None and context.request_id is None and self._calls.transport.vouches:
            context = replace(context, identity=HUB)
        # The same call at another place.
        return replace(context.child(), on_progress=context.on_progress, resume_from=context.resume_from)


def _invalid(message: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, message)
