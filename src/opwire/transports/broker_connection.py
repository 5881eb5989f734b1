"""The interface of a broker: one connection, and how a request is routed to one of its servers.

A transport for another broker is one class with these methods; `BrokerTransport` does the rest. `request`, `send` and
`broadcast` never wait. Every message is sent with the address of its sender and a token, which the connection carries
beside it.
"""

from collections.abc import Iterable
from typing import Protocol

from opwire.protocol.events import CallRequested
from opwire.protocol.transport import Address


class BrokerListener(Protocol):
    """The user of a `BrokerConnection`. Its methods return at once and never raise."""

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        """Handle a message to this peer, with the token that was passed to `request` or `send`."""
        ...

    def overheard(self, sender: Address, token: str, message: bytes) -> None:
        """Handle a broadcast, with the token that was passed to `broadcast`."""
        ...

    def routed(self, token: str, peer: Address) -> None:
        """Record the server that received the request with this token. Optional: not every broker reports it."""
        ...

    def undelivered(self, token: str, reason: str) -> None:
        """Handle a request that no server received: the operation has none, or another reason."""
        ...

    def refused(self, operation_id: str, reason: str) -> None:
        """Handle missing permission to request an operation, where the broker does not report which request it was."""
        ...

    def unreachable(self, peer: Address) -> None:
        """Handle the report of the broker that a message found no listener at its address."""
        ...

    def forbidden(self, peer: Address) -> None:
        """Handle missing permission to send messages to a peer, where the broker does not report which one it was."""
        ...

    def disconnected(self, reason: str) -> None:
        """Handle the loss of the connection; called once, and not by `close`."""
        ...


class BrokerConnection(Protocol):
    """One connection to a broker. After it is lost, `connect` opens another."""

    name: str
    """The name of the broker in messages to users, without a password."""

    max_message: int
    """The broker's limit of a message in bytes; may change by connecting."""

    async def connect(self, address: Address, listener: BrokerListener) -> None:
        """Connect, and receive what is sent to `address`, and broadcasts.

        Raises:
            CallError: UNAVAILABLE if the broker cannot be reached or rejects the connection.
        """
        ...

    async def serve(self, operation_ids: Iterable[str]) -> None:
        """Route requests for further operations to this peer. They arrive when this returns.

        Raises:
            CallError: UNAVAILABLE if the connection is lost.
        """
        ...

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        """Stop routing requests for operations to this peer. No new ones arrive when this returns.

        Raises:
            CallError: UNAVAILABLE if the connection is lost.
        """
        ...

    def request(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        """Send a message to one of the servers of an operation. If there is none, `undelivered` is called.

        Messages with the same `sticky_key` go to the same server while it is connected, if the broker supports it.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if the queue is full.
        """
        ...

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Send a message to one peer. `control`: it is small, and ends or controls a call.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if the queue is full.
        """
        ...

    def broadcast(self, token: str, message: bytes) -> None:
        """Send a message to every peer, including this one.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if the queue is full.
        """
        ...

    def beat(self, every: float) -> None:
        """Renew the presence of this peer at the broker, if the broker needs it; called every `every` seconds."""
        ...

    async def close(self) -> None:
        """Flush the queue and disconnect, within a second or two. Idempotent; never raises."""
        ...


class RequestSigner(Protocol):
    """Proves requests; implemented by `SignedRequests`."""

    @property
    def verifies(self) -> bool: ...
    def leaving(self, event: CallRequested, to: Address | None = None) -> CallRequested: ...
    def arriving(self, event: CallRequested, here: Address | None = None) -> CallRequested: ...
    def ended(self, request_id: str) -> None: ...
