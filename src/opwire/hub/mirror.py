"""What others serve, shown in a registry of ours: with their schemas, and handlers that pass calls on.

So that remote operations are listed, described, checked and served outward like local ones.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from opwire.call import Address, OperationInfo, PendingRequestMap
from opwire.call.about import ABOUT, OPERATIONS
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode, RegistrationError, SchemaError
from opwire.operation import Context, Handler, Identity, OperationSpec, OperationType
from opwire.registry import OperationRegistry

HUB = Identity(id="hub", scopes=("*",))
"""Who calls when it is the hub itself: somebody who may do everything."""


class _Shown(Struct, eq=False):
    info: OperationInfo
    peers: dict[Address, None] = field(default_factory=dict[Address, None])
    expected: float = 0.0  # the monotonic time until which a peer that was lost may be back


class Mirror:
    """Operations of peers in a registry. An operation is shown as long as one of them serves it.

    Those of a peer that was lost stay for `linger` seconds, during which calls of them are UNAVAILABLE: it may be back
    soon, and whoever has listed them is not to lose them for a moment. For as long after `begin`, those that were never
    shown may be on their way, too.
    """

    def __init__(self, registry: OperationRegistry, calls: PendingRequestMap, *, linger: float = 30.0) -> None:
        self._registry = registry
        self._calls = calls
        self._linger = linger
        self._shown: dict[str, _Shown] = {}
        self._orphans: dict[str, asyncio.TimerHandle] = {}  # shown, while nobody serves them
        self._complete = 0.0  # the monotonic time from which on what is not shown counts as unknown

    def __contains__(self, operation_id: str) -> bool:
        """Whether an operation is one of others, and only shown here."""
        return operation_id in self._shown

    def begin(self) -> None:
        """Expect peers from now on."""
        self._complete = time.monotonic() + self._linger

    def check_unknown(self, operation_id: str) -> None:
        """Whether an operation that nobody serves is one that nobody knows.

        Raises:
            CallError: UNAVAILABLE, if its peer may still come.
        """
        known = operation_id in self._registry or operation_id in (ABOUT, OPERATIONS)
        if not known and time.monotonic() < self._complete:
            later = "the hub was started a moment ago, and spokes that serve it may be on their way"
            raise CallError(ErrorCode.UNAVAILABLE, f"nobody serves {operation_id} yet: {later}")

    def show(self, peer: Address, operations: Iterable[OperationInfo]) -> None:
        """A peer serves these operations, too: all of them are shown, or none.

        Raises:
            CallError: VALIDATION_ERROR, if one is served by others with other schemas, is an operation of this
                registry, or could not be registered.
        """
        specs = [(info, self._checked(info)) for info in operations]
        for info, spec in specs:
            orphan = self._orphans.pop(info.id, None)
            if orphan is not None:
                orphan.cancel()
                if spec is not None:
                    self._remove(info.id)
            if info.id not in self._shown and spec is not None:
                self._shown[info.id] = _Shown(info)
                self._registry.register(spec, self._handler(info))
            self._shown[info.id].peers[peer] = None

    def hide(self, peer: Address, operation_ids: Iterable[str]) -> None:
        """A peer has withdrawn these operations."""
        for operation_id in list(operation_ids):
            self._forget(peer, operation_id)

    def lost(self, peer: Address) -> None:
        """A peer is gone, without a word."""
        for operation_id, shown in list(self._shown.items()):
            if peer in shown.peers:
                shown.expected = time.monotonic() + self._linger
                self._forget(peer, operation_id)

    def clear(self) -> None:
        """Show nothing any more."""
        for operation_id in list(self._shown):
            self._remove(operation_id)

    def _forget(self, peer: Address, operation_id: str) -> None:
        """A peer does not serve an operation any more. If it was the last one, somebody else may yet be back."""
        shown = self._shown.get(operation_id)
        if shown is None or peer not in shown.peers:
            return
        del shown.peers[peer]
        if shown.peers:
            return
        left = shown.expected - time.monotonic()
        if left > 0:
            loop = asyncio.get_running_loop()
            self._orphans[operation_id] = loop.call_later(left, self._remove, operation_id)
        else:
            self._remove(operation_id)

    def _remove(self, operation_id: str) -> None:
        orphan = self._orphans.pop(operation_id, None)
        if orphan is not None:
            orphan.cancel()
        if operation_id in self._registry:
            self._registry.unregister(operation_id)  # while it is in this mirror: it is not ours to withdraw
        del self._shown[operation_id]

    def _checked(self, info: OperationInfo) -> OperationSpec | None:
        """What is to be registered for an operation; None: what is there already."""
        shown = self._shown.get(info.id)
        if shown is None:
            if info.id in self._registry:
                raise _disagreement(f"{info.id} is an operation of the hub itself: serve it under another name")
            return _spec(info)
        for what in ("type", "input_schema", "output_schema"):
            if getattr(shown.info, what) != getattr(info, what):
                if info.id in self._orphans:
                    return _spec(info)  # nobody is left who would disagree
                others = f"{info.id} is served by others with another {what.replace('_', ' ')}"
                raise _disagreement(f"{others}: serve the same version, or another name")
        return None

    def _handler(self, info: OperationInfo) -> Handler:
        calls, operation_id = self._calls, info.id

        async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
            self._check_served(operation_id)
            return await calls.call(operation_id, input, _passed_on(context))

        async def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
            self._check_served(operation_id)
            items = calls.subscribe(operation_id, input, _passed_on(context))
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()

        return stream if info.type is OperationType.SUBSCRIPTION else call

    def _check_served(self, operation_id: str) -> None:
        # Not left to the transport: it would hand the call to the hub, which knows best what is not served.
        if operation_id in self._orphans:
            raise CallError(ErrorCode.UNAVAILABLE, f"nobody serves {operation_id} at the moment")


def _passed_on(context: Context) -> Context:
    """The context of the call over there. `execute()` without a context is a call of the hub itself, and trusted.

    What belongs to a request has its request id: if nobody made that, nobody makes this one.
    """
    if context.identity is None and context.request_id is None:
        context = replace(context, identity=HUB)
    return context.child()


def _spec(info: OperationInfo) -> OperationSpec:
    """What the registry shows. Its results were normalised where they were made."""
    try:
        return info.spec(normalize="off")
    except (RegistrationError, SchemaError) as error:
        raise _disagreement(f"{info.id} cannot be registered: {error}") from error


def _disagreement(message: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, message)
