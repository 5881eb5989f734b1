"""The one interface between the call protocol and whatever carries its events.

A transport is one end of a medium: a bus in this process, a WebSocket, a broker. It carries events and knows nothing
of registries. `send` and `request` never wait: a transport that cannot pass an event on at once keeps it in a bounded
queue of its own, and raises when that is full. What arrives is handed to the receiver, one event after the other, in
the order in which one peer sent them. Nothing is re-sent: an event arrives once or not at all.

`opwire.testing.check_transport` is the contract that every implementation passes.

Ids that nobody else makes or guesses.
"""

from collections.abc import Iterable, Iterator
from secrets import token_hex
from typing import Protocol, runtime_checkable

from opwire.call.events import CallEvent, CallRequested

Address = str
"""Where an end of a transport can be reached; made and understood by the transport alone."""


class Receiver(Protocol):
    """Whoever uses a transport. Its methods return at once and raise nothing."""

    def received(self, event: CallEvent, sender: Address) -> None:
        """An event arrived. `sender` is stamped by the transport: a peer cannot choose it."""
        ...

    def lost(self, peer: Address | None, reason: str) -> None:
        """A peer is gone, or (None) the connection to all of them: nothing more will come from there."""
        ...


class Transport(Protocol):
    """One end of a medium."""

    @property
    def local(self) -> bool:
        """Whether peers are this very process: a caller without an identity is then as trusted as the code here."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether the identity on a request can be believed: the transport vouches for it, or peers are local."""
        ...

    @property
    def vouches(self) -> bool:
        """Whether peers believe the identity that a request from here states: in this process, or at a hub itself.

        Elsewhere a request has the identity of this end, or that of the caller whose request it serves.
        """
        ...

    @property
    def lossy(self) -> bool:
        """Whether an event can be lost while the connection stays up, as over a broker."""
        ...

    async def start(self, receiver: Receiver) -> None:
        """Connect, and hand events to the receiver from now on.

        Raises:
            CallError: UNAVAILABLE, if the medium cannot be reached.
        """
        ...

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations too: when this returns, requests for them are routed here.

        Raises:
            CallError: UNAVAILABLE, if the medium cannot be reached; ACCESS_DENIED or VALIDATION_ERROR, if some of them
                are refused. The others are served.
        """
        ...

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations no longer: when this returns, no new request for them is routed here."""
        ...

    def request(self, event: CallRequested) -> Address | None:
        """Send a request to one of those who serve its operation.

        Returns their address; None where only the answer will tell. The transport then fails by itself what it sent
        to a peer that is lost, and refuses answers from any other.

        Raises:
            CallError: UNAVAILABLE if nobody serves it or the transport is closed, PAYLOAD_TOO_LARGE, RATE_LIMITED if
                the peer does not keep up.
        """
        ...

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer; None: to whoever has the request. A request goes to this very server.

        Raises:
            CallError: UNAVAILABLE if the peer is gone or the transport is closed, PAYLOAD_TOO_LARGE, RATE_LIMITED if
                the peer does not keep up.
        """
        ...

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Who serves anything. Where they have to be asked, wait so many seconds for their answers.

        Raises:
            CallError: UNAVAILABLE, if the medium cannot be reached.
        """
        ...

    async def close(self) -> None:
        """Leave: when this returns, no new request is routed here, and peers learn that this end is lost.

        Closing again does nothing.
        """
        ...


@runtime_checkable
class Announcing(Protocol):
    """A transport whose operations are announced to one peer, which shows them to others: a hub."""

    @property
    def hub(self) -> Address:
        """The address of that peer: it is told everything about the operations that are announced to it."""
        ...


_AT_ONCE = 128  # drawn together: one by one they cost 1 µs each, so 0.1


def random_ids(size: int) -> Iterator[str]:
    """Texts of so many random bytes, in hexadecimal digits."""
    while True:
        many = token_hex(size * _AT_ONCE)
        for start in range(0, len(many), 2 * size):
            yield many[start : start + 2 * size]
