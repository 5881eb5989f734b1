"""What differs from one broker to another: one connection, and how a request finds one of those who serve it.

A transport for another broker is one class with these methods; `BrokerTransport` does the rest. `request`, `send` and
`broadcast` never wait. Every message goes with the address of its sender and a token, which the medium carries beside
it.
"""

from collections.abc import Iterable
from typing import Protocol

from opwire.call import Address


class BrokerListener(Protocol):
    """Whoever uses a medium. Its methods return at once and raise nothing."""

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        """A message for this end arrived, with the token that was given to `request` or `send`."""
        ...

    def overheard(self, sender: Address, token: str, message: bytes) -> None:
        """A message for all ends arrived, with the token that was given to `broadcast`."""
        ...

    def routed(self, token: str, peer: Address) -> None:
        """The request with this token was given to this end. A medium that does not know says nothing."""
        ...

    def undelivered(self, token: str, reason: str) -> None:
        """Nobody got the request with this token: nobody serves it, or why else."""
        ...

    def refused(self, operation_id: str, reason: str) -> None:
        """The broker does not let this end ask for an operation, and does not say which request it refused."""
        ...

    def unreachable(self, peer: Address) -> None:
        """The broker says that nobody listens at this address any more."""
        ...

    def disconnected(self, reason: str) -> None:
        """The connection is gone; called once, and not by `close`."""
        ...


class BrokerConnection(Protocol):
    """One connection to a broker. After it is gone, `connect` makes another."""

    name: str
    """How the broker is called in messages to people: no password in it."""

    max_message: int
    """Bytes of a message that the broker lets through; may be learned by connecting."""

    async def connect(self, address: Address, listener: BrokerListener) -> None:
        """Connect, and receive from now on what is sent to `address` or to all.

        Raises:
            CallError: UNAVAILABLE, if the broker cannot be reached or refuses.
        """
        ...

    async def serve(self, operation_ids: Iterable[str]) -> None:
        """When this returns, requests for these operations are given to this end, too.

        Raises:
            CallError: UNAVAILABLE, if the connection is gone.
        """
        ...

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        """When this returns, no new request for these operations arrives here.

        Raises:
            CallError: UNAVAILABLE, if the connection is gone.
        """
        ...

    def request(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        """Send a message to one of those who serve an operation. If there is none, the listener is told.

        A medium that can gives messages with the same `sticky_key` to the same one, as long as it is there.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        ...

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Send a message to one end. `control`: it is small, and ends or steers a call.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        ...

    def broadcast(self, token: str, message: bytes) -> None:
        """Send a message to every end, this one included.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        ...

    def beat(self, every: float) -> None:
        """Called once in `every` seconds: tell the broker that this end is alive, if it wants to know."""
        ...

    async def close(self) -> None:
        """Send what is waiting, and leave, within a second or two. Closing again does nothing. Raises nothing."""
        ...
