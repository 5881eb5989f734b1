"""A broker in memory: the simplest `BrokerConnection`, with latency, for tests of what brokers share.

Runs in virtual time. It can be stopped, and loses messages when told to.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from opwire.errors import CallError, ErrorCode
from opwire.protocol import Address
from opwire.transports.broker_connection import BrokerListener


class MemoryBroker:
    """Knows the listeners of each address. `latency` is how long a message takes, `loses` says which are lost."""

    def __init__(self, *, latency: float = 0.001) -> None:
        self.latency = latency
        self.loses: Callable[[bytes], bool] = lambda message: False
        self.running = True
        self.ends: dict[Address, MemoryBrokerConnection] = {}
        self.serving: dict[str, list[Address]] = {}
        self._on_the_way: deque[Callable[[], None]] = deque()  # timers of the same moment have no order of their own

    def stop(self) -> None:
        """Every connection breaks."""
        self.running = False
        for end in list(self.ends.values()):
            end.break_off("the broker stopped")

    def pass_on(self, act: Callable[[], None], message: bytes = b"") -> None:
        if not self.loses(message):
            self._on_the_way.append(act)
            asyncio.get_running_loop().call_later(self.latency, self._arrive)

    def _arrive(self) -> None:
        self._on_the_way.popleft()()


class MemoryBrokerConnection:
    """One connection to a `MemoryBroker`."""

    name = "the broker in memory"

    def __init__(self, broker: MemoryBroker, *, max_message: int = 2**20) -> None:
        self.max_message = max_message
        self.beats = 0
        self.largest = 0  # bytes of a message that was sent
        self.connections = 0
        self._broker = broker
        self.address: Address | None = None
        self.listener: BrokerListener | None = None

    async def connect(self, address: Address, listener: BrokerListener) -> None:
        await self._round_trip()
        self.address, self.listener = address, listener
        self._broker.ends[address] = self
        self.connections += 1

    async def serve(self, operation_ids: Iterable[str]) -> None:
        await self._round_trip()
        for operation_id in operation_ids:
            self._broker.serving.setdefault(operation_id, []).append(self._here())

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        await self._round_trip()
        for operation_id in operation_ids:
            self._broker.serving[operation_id].remove(self._here())

    def request(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        here, listener = self._here(), self.listener
        assert listener is not None

        def route() -> None:  # on arrival, as brokers do: a server may have left meanwhile
            serving = [each for each in self._broker.serving.get(operation_id, []) if each in self._broker.ends]
            if not serving:
                listener.undelivered(token, "nobody serves it")
                return
            self._broker.serving[operation_id] = [*serving[1:], serving[0]]
            self.deliver(serving[0], here, token, message)

        self._broker.pass_on(route, message)

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        here = self._here()
        self.largest = max(self.largest, len(message))
        self._broker.pass_on(lambda: self.deliver(to, here, token, message), message)

    def broadcast(self, token: str, message: bytes) -> None:
        here = self._here()
        for end in self._broker.ends.values():
            if (listener := end.listener) is not None:
                self._broker.pass_on(lambda listener=listener: listener.overheard(here, token, message), message)

    def beat(self, every: float) -> None:
        self.beats += 1

    async def close(self) -> None:
        if self.address is not None:
            self._broker.ends.pop(self.address, None)
        self.address = self.listener = None

    def break_off(self, reason: str) -> None:
        """The connection breaks."""
        listener = self.listener
        if self.address is not None:
            self._broker.ends.pop(self.address, None)
        self.address = self.listener = None
        if listener is not None:
            listener.disconnected(reason)

    def deliver(self, to: Address, sender: Address, token: str, message: bytes) -> None:
        end = self._broker.ends.get(to)
        if end is not None and end.listener is not None:
            end.listener.arrived(sender, token, message)
        elif self.listener is not None:
            self.listener.unreachable(to)

    async def _round_trip(self) -> None:
        await asyncio.sleep(self._broker.latency)
        if not self._broker.running:
            raise CallError(ErrorCode.UNAVAILABLE, "the broker is not there")

    def _here(self) -> Address:
        if self.address is None:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is gone")
        return self.address
