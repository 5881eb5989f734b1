"""Calls within one process: events are passed by reference, or encoded and decoded with `codec=True`."""

from collections.abc import Iterable
from itertools import count

from opwire.errors import CallError, ErrorCode, check_counts
from opwire.protocol.events import MAX_MESSAGE, CallAborted, CallEvent, CallRequested, decode_event, encode_event
from opwire.protocol.transport import Address, Receiver


class MemoryBus:
    """Connects the `MemoryTransport`s of one process.

        bus = MemoryBus()
        server, client = MemoryTransport(bus), MemoryTransport(bus)

    With `codec=True` each event is encoded and decoded, as over a network. `max_message` limits its size in bytes.
    """

    def __init__(self, *, codec: bool = False, max_message: int = MAX_MESSAGE) -> None:
        check_counts(max_message=max_message)
        self.codec = codec
        self.max_message = max_message
        self._numbers = count(1)
        self.peers: dict[Address, MemoryTransport] = {}
        self._serving: dict[str, list[Address]] = {}  # servers by operation id, the next one first

    def join(self, peer: "MemoryTransport") -> Address:
        """Add a peer, and return its address."""
        address = f"memory-{next(self._numbers)}"
        self.peers[address] = peer
        return address

    def leave(self, address: Address) -> None:
        """Remove a peer, and report its loss to the others."""
        self.peers.pop(address, None)
        self.withdraw(address, list(self._serving))
        for peer in tuple(self.peers.values()):
            peer.lose(address)

    def announce(self, address: Address, operation_ids: Iterable[str]) -> None:
        """Route requests for operations to a peer."""
        for operation_id in operation_ids:
            serving = self._serving.setdefault(operation_id, [])
            if address not in serving:
                serving.append(address)

    def withdraw(self, address: Address, operation_ids: Iterable[str]) -> None:
        """Stop routing requests for operations to a peer."""
        for operation_id in operation_ids:
            serving = self._serving.get(operation_id, [])
            if address in serving:
                serving.remove(address)
                if not serving:
                    del self._serving[operation_id]

    def route(self, operation_id: str) -> Address:
        """Return the next server of an operation, round robin.

        Raises:
            CallError: UNAVAILABLE if the bus has no server at all.
        """
        serving = self._serving.get(operation_id)
        if serving is None:
            # Any other server can return the best OPERATION_NOT_FOUND error, with suggestions.
            serving = next(iter(self._serving.values()), None)
            if serving is None:
                raise CallError(ErrorCode.UNAVAILABLE, f"no server on this bus serves {operation_id}")
            return serving[0]
        if len(serving) > 1:
            serving.append(serving.pop(0))
        return serving[-1]

    def operations(self) -> list[str]:
        """Return the ids of the operations that a server announces."""
        return list(self._serving)

    def servers(self) -> list[Address]:
        """Return the addresses of all servers."""
        return list(dict.fromkeys(address for serving in self._serving.values() for address in serving))


class MemoryTransport:
    """One peer of a `MemoryBus`."""

    local = True
    trusted = True
    vouches = True
    lossy = False

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self._address: Address | None = None
        self._receiver: Receiver | None = None

    def __repr__(self) -> str:
        return f"<MemoryTransport {self._address or 'closed'}>"

    async def start(self, receiver: Receiver) -> None:
        """Join the bus."""
        self._receiver = receiver
        self._address = self._bus.join(self)

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve further operations."""
        self._bus.announce(self._here(), operation_ids)

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving operations."""
        if self._address is not None:
            self._bus.withdraw(self._address, operation_ids)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Return the addresses of all servers."""
        self._here()
        return self._bus.servers()

    def request(self, event: CallRequested) -> Address:
        """Send a request to one of the servers of its operation."""
        address = self._bus.route(event.operation_id)
        self.send(event, address)
        return address

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer. The abort of a request that is being sent, without an address, goes to all."""
        here, bus = self._address or self._here(), self._bus
        if to is None and isinstance(event, CallAborted):  # by the first step of its own handler
            *others, to = bus.servers() or [None]
            for address in others:
                self.send(event, address)
        there = None if to is None else bus.peers.get(to)
        if there is None:
            raise CallError(ErrorCode.UNAVAILABLE, "the peer is gone")
        if bus.codec:
            event = decode_event(encode_event(event, limit=bus.max_message), limit=bus.max_message)
        there.deliver(event, here)

    def deliver(self, event: CallEvent, sender: Address) -> None:
        """Deliver an event synchronously: a receiver never waits, and a turn of the event loop would cost 2 µs."""
        if self._receiver is not None:
            self._receiver.received(event, sender)

    def lose(self, peer: Address) -> None:
        """Report the loss of a peer to the receiver."""
        if self._receiver is not None:
            self._receiver.lost(peer, "the peer left the bus")

    async def close(self) -> None:
        """Leave the bus."""
        address, self._address, self._receiver = self._address, None, None
        if address is not None:
            self._bus.leave(address)

    def _here(self) -> Address:
        if self._address is None:
            raise CallError(ErrorCode.UNAVAILABLE, "this end of the bus is closed")
        return self._address
