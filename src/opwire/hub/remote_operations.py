"""What others serve, shown in a registry of ours: with their schemas, and handlers that pass calls on.

So that remote operations are listed, described, checked and served outward like local ones.

What a hub does on a broker, where nobody comes to a door: it looks around, again and again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Container, Iterable
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from opwire.call import Address, FoundServer, OperationInfo, PendingRequestMap, discover
from opwire.call.discovery import ABOUT, OPERATIONS
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode, RegistrationError, SchemaError
from opwire.operation import Context, Handler, Identity, OperationSpec, OperationType
from opwire.registry import OperationRegistry

HUB = Identity(id="hub", scopes=("*",))
"""The identity of calls that the hub's own program makes without one. No peer can call on with it."""


class Checked(NamedTuple):
    """What a registry shows of a description, and the digest of that."""

    spec: OperationSpec
    digest: str


class _Shown(Struct, eq=False):
    spec: OperationSpec
    digest: str
    peers: dict[Address, None] = field(default_factory=dict[Address, None])
    expected: float = 0.0  # the monotonic time until which a peer that was lost may be back


class Mirror:
    """Operations of peers in a registry. An operation is shown as long as one of them serves it.

    Those of a peer that was lost stay for `linger` seconds, during which calls of them are UNAVAILABLE: it may be back
    soon, and listings are not to lose them for a moment. For as long after `begin`, those that were never shown may be
    on their way, too.
    """

    def __init__(self, registry: OperationRegistry, calls: PendingRequestMap, *, linger: float = 30.0) -> None:
        self._registry = registry
        self._calls = calls
        self._linger = linger
        self._shown: dict[str, _Shown] = {}
        self._served: dict[Address, dict[str, None]] = {}  # by peer: the loss of one costs what it announced
        self._timers: set[asyncio.TimerHandle] = set()
        self._complete = 0.0  # the monotonic time from which on what is not shown counts as unknown

    def __contains__(self, operation_id: str) -> bool:
        """Whether an operation is one of others, and only shown here."""
        return operation_id in self._shown

    def begin(self) -> None:
        """Expect peers from now on."""
        self._complete = time.monotonic() + self._linger

    def check_unknown(self, operation_id: str) -> None:
        """Check that an operation without a server is unknown, and not only late.

        Raises:
            CallError: UNAVAILABLE, if its peer may still come.
        """
        known = operation_id in self._registry or operation_id in (ABOUT, OPERATIONS)
        if not known and time.monotonic() < self._complete:
            later = "the hub was started a moment ago, and spokes that serve it may be on their way"
            raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} is not served yet: {later}")

    def digest(self, operation_id: str) -> str | None:
        """Return the digest of the description that is shown, or None."""
        shown = self._shown.get(operation_id)
        return None if shown is None else shown.digest

    def check(self, info: OperationInfo, digest: str | None = None) -> Checked:
        """Return what would be shown of a description.

        Raises:
            CallError: VALIDATION_ERROR, if it cannot be registered.
        """
        try:  # results were normalised where they were made
            return Checked(info.spec(normalize="off", compact=True), digest or info.fingerprint().digest)
        except (RegistrationError, SchemaError) as error:
            raise _disagreement(f"{info.id} cannot be registered: {error}") from error

    def conflict(self, peer: Address, operation: Checked) -> CallError | None:
        """Return why a peer cannot serve an operation: others serve it otherwise, or the hub itself does."""
        id, shown = operation.spec.id, self._shown.get(operation.spec.id)
        if shown is None:
            if id in self._registry:
                return _disagreement(f"{id} is an operation of the hub itself: serve it under another name")
            return None
        if shown.digest == operation.digest or not shown.peers.keys() - {peer}:  # the same, or without other servers
            return None
        for what in ("type", "input_schema", "output_schema"):
            if getattr(shown.spec, what) != getattr(operation.spec, what):
                others = f"{id} is served by others with another {what.replace('_', ' ')}"
                return _disagreement(f"{others}: serve the same version, or another name")
        return None

    def show(self, peer: Address, operations: Iterable[Checked]) -> None:
        """Show operations that a peer serves, too; `conflict` has found nothing against them."""
        served = self._served.setdefault(peer, {})
        for operation in operations:
            id, shown = operation.spec.id, self._shown.get(operation.spec.id)
            if shown is not None and shown.digest != operation.digest and not shown.peers.keys() - {peer}:
                self._remove(id)  # another version of it
                shown = None
            if shown is None:
                shown = self._shown[id] = _Shown(operation.spec, operation.digest)
                self._registry.register(operation.spec, self._handler(operation.spec))
            shown.peers[peer] = served[id] = None

    def join(self, peer: Address, operation_ids: Iterable[str]) -> None:
        """Show that a peer serves operations, too, that are shown already and described by it in the same way."""
        served = self._served.setdefault(peer, {})
        for operation_id in operation_ids:
            self._shown[operation_id].peers[peer] = served[operation_id] = None

    def streams(self, operation_id: str) -> bool:
        """Whether an operation that is shown is a subscription."""
        shown = self._shown.get(operation_id)
        return shown is not None and shown.spec.type is OperationType.SUBSCRIPTION

    def hide(self, peer: Address, operation_ids: Iterable[str]) -> None:
        """Show no longer what a peer has withdrawn, unless others serve it, or one that was lost may be back."""
        served = self._served.get(peer, {})
        for operation_id in list(operation_ids):
            if operation_id in served:
                del served[operation_id]
                shown = self._shown[operation_id]
                del shown.peers[peer]
                if not shown.peers and shown.expected <= time.monotonic():
                    self._remove(operation_id)
        if not served:
            self._served.pop(peer, None)

    def lost(self, peer: Address) -> None:
        """A peer is gone, without a word: keep for a while what only it has served."""
        served = self._served.pop(peer, None)
        if served is None:
            return
        expected = time.monotonic() + self._linger
        for operation_id in served:
            shown = self._shown[operation_id]
            shown.expected = expected
            del shown.peers[peer]
        # One timer for the peer, not one for each operation: 20,000 operations may be lost at once.
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._linger, lambda: self._overdue(served, expected, timer))
        self._timers.add(timer)

    def clear(self) -> None:
        """Show nothing any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._served.clear()
        for operation_id in list(self._shown):
            self._remove(operation_id)

    def _overdue(self, operation_ids: Iterable[str], expected: float, timer: asyncio.TimerHandle) -> None:
        """A peer that was lost is not expected back: forget what it alone has served."""
        self._timers.discard(timer)
        for operation_id in operation_ids:
            shown = self._shown.get(operation_id)
            if shown is not None and not shown.peers and shown.expected <= expected:
                self._remove(operation_id)

    def _remove(self, operation_id: str) -> None:
        if operation_id in self._registry:
            self._registry.unregister(operation_id)  # while it is in this mirror: it is not ours to withdraw
        del self._shown[operation_id]

    def _handler(self, spec: OperationSpec) -> Handler:
        return self._stream(spec.id) if spec.type is OperationType.SUBSCRIPTION else self._call(spec.id)

    def _call(self, operation_id: str) -> Handler:
        async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
            self._check_served(operation_id)
            return await self._calls.call(operation_id, input, context=self._passed_on(context))

        return call

    def _stream(self, operation_id: str) -> Handler:
        async def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
            self._check_served(operation_id)
            items = self._calls.subscribe(operation_id, input, context=self._passed_on(context))
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()

        return stream

    def _passed_on(self, context: Context) -> Context:
        """Return the context of the call over there.

        `execute()` without a context is a call of the hub's own program, and trusted. What belongs to a request has its
        request id: without an identity it stays anonymous. Over a broker the program is the connection itself.
        """
        if context.identity is None and context.request_id is None and self._calls.transport.vouches:
            context = replace(context, identity=HUB)
        return context.child()

    def _check_served(self, operation_id: str) -> None:
        # Not left to the transport: it would hand the call to the hub, which knows best what is not served.
        shown = self._shown.get(operation_id)
        if shown is not None and not shown.peers:
            raise CallError(ErrorCode.UNAVAILABLE, f"nobody serves {operation_id} at the moment")


def _disagreement(message: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, message)


logger = logging.getLogger("opwire.hub")


class Lookout:
    """Keeps a mirror up to date with what is served on a broker. `own` are the operations that are not to be shown."""

    def __init__(self, calls: PendingRequestMap, mirror: Mirror, own: Container[object], server_id: str) -> None:
        self._calls = calls
        self._mirror = mirror
        self._own = own
        self._server_id = server_id
        self._seen: dict[Address, set[str]] = {}
        self._refused: set[str] = set()  # what was logged already

    async def look(self) -> None:
        """Show what is served now.

        Raises:
            CallError: UNAVAILABLE.
        """
        found = [each for each in await discover(self._calls) if each.server.id != self._server_id]
        # Those who are new before those who are gone: whoever has reconnected has another address.
        for each in found:
            before = self._seen.get(each.address, set())
            now = self._seen[each.address] = self._show(each)
            self._mirror.hide(each.address, before - now)
        for gone in self._seen.keys() - {each.address for each in found}:
            del self._seen[gone]
            self._mirror.lost(gone)

    async def keep_looking(self, every: float) -> None:
        """Look once in so many seconds."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.look()
            except CallError as error:
                logger.info("the hub could not look around: %s", error)

    def _show(self, found: FoundServer) -> set[str]:
        shown: set[str] = set()
        for info in found.operations:
            if info.id in self._own and info.id not in self._mirror:
                continue  # it is served here as well
            try:
                self._show_one(found.address, info)
                shown.add(info.id)
            except CallError as error:
                if info.id not in self._refused:
                    self._refused.add(info.id)
                    logger.warning("%s at %s is not shown: %s", found.server.name, found.address, error.message)
        return shown

    def _show_one(self, address: Address, info: OperationInfo) -> None:
        digest = info.fingerprint().digest
        if digest == self._mirror.digest(info.id):
            self._mirror.join(address, [info.id])
            return
        operation = self._mirror.check(info, digest)
        conflict = self._mirror.conflict(address, operation)
        if conflict is not None:
            raise conflict
        self._mirror.show(address, [operation])
