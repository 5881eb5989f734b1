"""A transport that is allowed to be unlike memory: events take time, and the server of a request is unknown."""

import asyncio
from collections.abc import Callable

from opwire.protocol import Address, CallEvent, CallFailed, CallProgress, CallRequested, CallResponded
from opwire.transports.memory import MemoryTransport


class BrokerLike(MemoryTransport):
    """`request` returns None; the transport itself remembers where each request went, and refuses other senders."""

    latency = 0.01

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # pyright: ignore[reportArgumentType]
        self.routes: dict[str, Address] = {}

    def request(self, event: CallRequested) -> None:
        self.routes[event.request_id] = super().request(event)

    def send(self, event: CallEvent, to: Address | None) -> None:
        super().send(event, to or self.routes.get(event.request_id))

    def deliver(self, event: CallEvent, sender: Address) -> None:
        self._later(lambda: self._arrive(event, sender))

    def lose(self, peer: Address) -> None:
        self._later(lambda: self._lose(peer))

    def _later(self, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self.latency, act)

    def _arrive(self, event: CallEvent, sender: Address) -> None:
        if isinstance(event, CallResponded | CallProgress) and self.routes.get(event.request_id, sender) != sender:
            return
        super().deliver(event, sender)

    def _lose(self, peer: Address) -> None:
        for request_id, server in list(self.routes.items()):
            if server == peer:
                super().deliver(CallFailed(request_id=request_id, code="UNAVAILABLE", message="the server left"), peer)
        super().lose(peer)
