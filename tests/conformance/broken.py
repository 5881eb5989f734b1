"""Transports that break one promise each: what the contract has to notice."""

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from opwire.errors import CallError
from opwire.protocol import Address, CallAborted, CallCredit, CallEvent, CallFailed, CallRequested, CallResponded
from opwire.transports.memory import MemoryBus, MemoryTransport

LIMIT = 40_000


class DropsEveryTenth(MemoryTransport):
    arrived = 0

    def deliver(self, event: CallEvent, sender: Address) -> None:
        self.arrived += 1
        if self.arrived % 10:
            super().deliver(event, sender)


class DeliversTwice(MemoryTransport):
    def deliver(self, event: CallEvent, sender: Address) -> None:
        super().deliver(event, sender)
        super().deliver(event, sender)


class Reorders(MemoryTransport):
    """Items overtake each other in pairs."""

    held: tuple[CallEvent, Address] | None = None

    def deliver(self, event: CallEvent, sender: Address) -> None:
        held, self.held = self.held, None
        if held is None and isinstance(event, CallResponded) and event.seq is not None and event.seq % 2 == 0:
            self.held = event, sender
            return
        super().deliver(event, sender)
        if held is not None:
            super().deliver(*held)


class SwapsReplies(MemoryTransport):
    """Two answers that arrive one after the other change places."""

    held: tuple[CallResponded, Address] | None = None

    def deliver(self, event: CallEvent, sender: Address) -> None:
        if not isinstance(event, CallResponded) or event.seq is not None:
            super().deliver(event, sender)
        elif self.held is None:
            self.held = event, sender
        else:
            (first, first_sender), self.held = self.held, None
            super().deliver(replace(event, request_id=first.request_id), first_sender)
            super().deliver(replace(first, request_id=event.request_id), sender)


class AnswersTheLastCaller(MemoryTransport):
    """Keeps one address for answers instead of one for each caller."""

    last: Address | None = None

    def deliver(self, event: CallEvent, sender: Address) -> None:
        if isinstance(event, CallRequested):
            self.last = sender
        super().deliver(event, sender)

    def send(self, event: CallEvent, to: Address | None) -> None:
        super().send(event, to if isinstance(event, CallRequested) else self.last or to)


class MutatesPayloads(MemoryTransport):
    def deliver(self, event: CallEvent, sender: Address) -> None:
        if isinstance(event, CallRequested) and isinstance(event.input, int):
            event = replace(event, input=float(event.input))
        super().deliver(event, sender)


class ForgetsFields(MemoryTransport):
    """As a peer that knows only the older fields of the events."""

    def deliver(self, event: CallEvent, sender: Address) -> None:
        match event:
            case CallRequested():
                event = replace(
                    event, credits=None, timeout_ms=None, deadline=None, progress=None, questions=None, resume_from=None
                )
            case CallFailed():
                event = replace(event, retryable=None, retry_after_ms=None)
            case _:
                pass
        super().deliver(event, sender)


class LeaksTasks(MemoryTransport):
    async def start(self, receiver: Any) -> None:
        await super().start(receiver)
        self.reader = asyncio.get_running_loop().create_task(asyncio.Event().wait())


class HidesLosses(MemoryTransport):
    def lose(self, peer: Address) -> None:
        pass


class AcceptsAfterClose(MemoryTransport):
    def send(self, event: CallEvent, to: Address | None) -> None:
        if self._address is not None:
            super().send(event, to)


class CannotBeClosedTwice(MemoryTransport):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        await super().close()


class AnnouncesLater(MemoryTransport):
    async def announce(self, operation_ids: Iterable[str]) -> None:
        ids = list(operation_ids)
        asyncio.get_running_loop().call_later(0.1, lambda: self._address and self._bus.announce(self._address, ids))


class NeverWithdraws(MemoryTransport):
    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        pass


class WithdrawsAndForgetsWhatWasNotBegun(MemoryTransport):
    """A server that withdrew still gets requests, and its refusal looks as if a handler had begun."""

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        pass

    def deliver(self, event: CallEvent, sender: Address) -> None:
        super().deliver(replace(event, not_started=None) if isinstance(event, CallFailed) else event, sender)


class FindsNobody(MemoryTransport):
    async def servers(self, wait: float = 0.5) -> list[Address]:
        return []


class AsksEverybody(MemoryTransport):
    """Every server of an operation gets every request."""

    def request(self, event: CallRequested) -> Address:
        for address in tuple(self._bus._serving.get(event.operation_id, ())):
            self.send(event, address)
        return super().request(event)


class AsksAlwaysTheSame(MemoryTransport):
    def request(self, event: CallRequested) -> Address:
        serving = self._bus._serving.get(event.operation_id, [])
        if not serving:
            return super().request(event)
        self.send(event, serving[0])
        return serving[0]


class BelievesTheSender(MemoryTransport):
    """Ignores the sender: each response counts as one of the last server."""

    asked: Address | None = None

    def request(self, event: CallRequested) -> Address:
        self.asked = super().request(event)
        return self.asked

    def deliver(self, event: CallEvent, sender: Address) -> None:
        super().deliver(event, self.asked if isinstance(event, CallResponded) and self.asked else sender)


class SwallowsAborts(MemoryTransport):
    def send(self, event: CallEvent, to: Address | None) -> None:
        if not isinstance(event, CallAborted):
            super().send(event, to)


class InflatesCredits(MemoryTransport):
    """Asks for more than the consumer does, as a prefetching proxy would."""

    def deliver(self, event: CallEvent, sender: Address) -> None:
        if isinstance(event, CallCredit):
            event = replace(event, n=event.n * 10, total=event.total and event.total * 10)
        super().deliver(event, sender)


class OneAtATime(MemoryTransport):
    """Takes the next request only when the one before is answered."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.waiting: list[tuple[CallEvent, Address]] = []
        self.busy = False

    def deliver(self, event: CallEvent, sender: Address) -> None:
        if not isinstance(event, CallRequested):
            super().deliver(event, sender)
        elif self.busy:
            self.waiting.append((event, sender))
        else:
            self.busy = True
            super().deliver(event, sender)

    def send(self, event: CallEvent, to: Address | None) -> None:
        super().send(event, to)
        if isinstance(event, CallResponded | CallFailed) and self.busy:
            self.busy = False
            if self.waiting:
                self.deliver(*self.waiting.pop(0))


class RaisesItsOwnErrors(MemoryTransport):
    def request(self, event: CallRequested) -> Address:
        try:
            return super().request(event)
        except CallError as error:
            raise ConnectionError(str(error)) from error


class BreaksOnStrays(MemoryTransport):
    """Closes when an event comes for a request that it does not know."""

    def deliver(self, event: CallEvent, sender: Address) -> None:
        if event.request_id == "unknown":
            self._bus.leave(sender)
        else:
            super().deliver(event, sender)


class HasNoLimit(MemoryTransport):
    def send(self, event: CallEvent, to: Address | None) -> None:
        limit, self._bus.max_message = self._bus.max_message, 1_000_000_000
        try:
            super().send(event, to)
        finally:
            self._bus.max_message = limit


class ClosesAboveTheLimit(MemoryTransport):
    """As WebSocket libraries do by themselves."""

    def send(self, event: CallEvent, to: Address | None) -> None:
        try:
            super().send(event, to)
        except CallError as error:
            address, self._address = self._address, None
            if address is not None:
                self._bus.leave(address)
            raise CallError("UNAVAILABLE", "1009") from error


class RefusesTooEarly(MemoryTransport):
    """Its limit is half of what it says."""

    def send(self, event: CallEvent, to: Address | None) -> None:
        limit, self._bus.max_message = self._bus.max_message, LIMIT // 2
        try:
            super().send(event, to)
        finally:
            self._bus.max_message = limit


class NeverAnswers(MemoryTransport):
    def deliver(self, event: CallEvent, sender: Address) -> None:
        if isinstance(event, CallRequested):
            super().deliver(event, sender)
