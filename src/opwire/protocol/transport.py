"""The interface between the call protocol and what carries its events.

A transport is one end of a bus in this process, a WebSocket or a broker. It carries events and knows nothing of
registries.

- `request` and `send` never wait: a transport that cannot pass an event on at once queues it, and raises when its
  bounded queue is full.
- Events are delivered to the receiver one at a time, in the order in which a peer sent them.
- Nothing is retransmitted: an event arrives once or not at all.
- A transport authenticates senders, and only `CallTable` decides which of them may reply to a call: the one that
  `request` returned, or else the sender of the first event. If `request` returns None, the transport therefore proves
  that the first event comes from the peer that received the request: brokers by a token, a hub by its routes.

`opwire_conformance.check_transport` is the contract suite for implementations.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from secrets import token_hex
from typing import Protocol, TypedDict, runtime_checkable

from opwire.model.context import Context
from opwire.protocol.events import CallEvent, CallRequested

Address = str
"""The address of one end of a transport; opaque to everything but the transport."""

_IDS_PER_DRAW = 128  # 0.1 µs for each id instead of 1 µs


class Receiver(Protocol):
    """The user of a transport. Its methods return at once and never raise."""

    def received(self, event: CallEvent, sender: Address) -> None:
        """Handle an event. `sender` is set by the transport: a peer cannot choose it."""
        ...

    def lost(self, peer: Address | None, reason: str) -> None:
        """Handle the loss of a peer, or (None) of the connection to all of them."""
        ...


@runtime_checkable
class Transport(Protocol):
    """One end of a bus, a connection or a broker."""

    @property
    def local(self) -> bool:
        """Whether peers run in this process: callers without an identity are then as trusted as local code."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether the identity on a request is authentic: the transport verified it, or peers are local."""
        ...

    @property
    def vouches(self) -> bool:
        """Whether peers accept any identity that a request from here states: in this process, or at a hub itself.

        Elsewhere a request has the identity of this end, or that of the caller on behalf of which it is made.
        """
        ...

    @property
    def lossy(self) -> bool:
        """Whether an event can be lost while the connection stays up, as over a broker."""
        ...

    async def start(self, receiver: Receiver) -> None:
        """Connect, and deliver events to the receiver from now on.

        Raises:
            CallError: UNAVAILABLE if the connection fails.
        """
        ...

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve further operations. Requests for them are routed here when this returns.

        Raises:
            CallError: UNAVAILABLE if not connected; ACCESS_DENIED or VALIDATION_ERROR if some operations are rejected.
                The others are served.
        """
        ...

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving operations. No new requests for them are routed here when this returns."""
        ...

    def request(self, event: CallRequested) -> Address | None:
        """Send a request to one of the servers of its operation.

        Returns the server's address, or None if it is not known yet. In that case the transport itself fails calls to
        lost peers, and rejects replies from any other sender.

        Raises:
            CallError: UNAVAILABLE if the operation has no server or the transport is closed, PAYLOAD_TOO_LARGE,
                RATE_LIMITED if the queue is full.
        """
        ...

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer; None sends it to the server of the request. A request goes to exactly this peer.

        Raises:
            CallError: UNAVAILABLE if the peer is gone or the transport is closed, PAYLOAD_TOO_LARGE, RATE_LIMITED if
                the queue is full.
        """
        ...

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Return the addresses of all servers. Where they have to be polled, wait this many seconds for replies.

        Raises:
            CallError: UNAVAILABLE if not connected.
        """
        ...

    async def close(self) -> None:
        """Disconnect: no new requests are routed here, and peers see this end as lost. Idempotent."""
        ...


@runtime_checkable
class MovableReceiver(Receiver, Protocol):
    """A receiver with calls in flight that can go on over an old connection, while new ones use another."""

    def open_requests(self) -> list[str]:
        """Return the ids of the outgoing calls and received requests that have not ended."""
        ...

    def lost_requests(self, request_ids: list[str], reason: str) -> None:
        """Handle the loss of the connection of these calls."""
        ...


@runtime_checkable
class Announcing(Protocol):
    """A transport that announces its operations to a single peer, a hub, which shows them to others."""

    @property
    def hub(self) -> Address:
        """The address of the hub, which may see every announced operation."""
        ...


class CallRoute(TypedDict, total=False):
    """Keyword arguments of a call that choose its server."""

    to: Address | None
    sticky_key: str | None
    version: str | None


class RemoteCallOptions(CallRoute, total=False):
    """Keyword arguments of `PendingRequestMap.call`, except for `output_type`."""

    context: Context | None
    timeout: float | None


def random_ids(size: int) -> Iterator[str]:
    """Return an endless iterator of random ids of `size` bytes, in hexadecimal."""

    def draw() -> list[str]:
        digits = token_hex(size * _IDS_PER_DRAW)
        return [digits[start : start + 2 * size] for start in range(0, len(digits), 2 * size)]

    return chain.from_iterable(iter(draw, None))
