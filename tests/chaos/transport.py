"""Fault injection: a transport that loses, duplicates, delays and reorders events, and closes at random.

Faults are injected where events arrive, so that they affect every kind of event, and a duplicated request reaches the
same peer twice, as on a network. They are drawn from a seeded generator.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Literal, Self, get_args

from opwire.errors import CallError, ErrorCode
from opwire.protocol import Address, CallEvent, CallRequested, Receiver, Transport

Fault = Literal["drop", "duplicate", "delay", "reorder", "close"]
FAULTS: tuple[Fault, ...] = get_args(Fault)


class Chaos:
    """The rate of each fault (0 to 1 per event), a seeded generator, and the number of injected faults.

    An event is delayed by at most `longest` seconds.
    """

    def __init__(
        self,
        seed: int,
        *,
        drop: float = 0.0,
        duplicate: float = 0.0,
        delay: float = 0.0,
        reorder: float = 0.0,
        close: float = 0.0,
        longest: float = 0.05,
    ) -> None:
        self.random = Random(seed)
        self.counts: Counter[Fault] = Counter()
        self._longest = longest
        self._chances: dict[Fault, float] = {
            "drop": drop,
            "duplicate": duplicate,
            "delay": delay,
            "reorder": reorder,
            "close": close,
        }

    @classmethod
    def storm(cls, seed: int) -> Self:
        """Return rates at which every kind of call meets every fault, and most calls succeed."""
        return cls(seed, drop=0.003, duplicate=0.05, delay=0.05, reorder=0.003, close=0.0005)

    def strikes(self, fault: Fault) -> bool:
        """Return whether to inject this fault now, and count it."""
        struck = self.random.random() < self._chances[fault]
        if struck:
            self.counts[fault] += 1
        return struck

    def pause(self) -> float:
        """Return the delay of an event, in seconds."""
        return self.random.uniform(0, self._longest)


class ChaosTransport:
    """Wraps any transport, and injects faults.

    chaos = Chaos(seed=1, drop=0.01, duplicate=0.01, delay=0.1)
    calls = PendingRequestMap(ChaosTransport(MemoryTransport(bus), chaos))
    """

    def __init__(self, inner: Transport, chaos: Chaos) -> None:
        self._inner = inner
        self._chaos = chaos
        self._receiver: Receiver | None = None
        self._fall: asyncio.Task[None] | None = None
        self._held: dict[Address, list[CallEvent]] = {}  # events queued behind a delayed one of the same sender
        self._timers: dict[Address, set[asyncio.TimerHandle]] = {}

    @property
    def local(self) -> bool:
        """The property of the wrapped transport."""
        return self._inner.local

    @property
    def trusted(self) -> bool:
        """The property of the wrapped transport."""
        return self._inner.trusted

    @property
    def vouches(self) -> bool:
        """The property of the wrapped transport."""
        return self._inner.vouches

    @property
    def lossy(self) -> bool:
        """True, since events are dropped."""
        return True

    @property
    def fallen(self) -> bool:
        """Whether a fault has closed this end."""
        return self._fall is not None

    async def start(self, receiver: Receiver) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._receiver = receiver
        await self._inner.start(self)

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._check()
        await self._inner.announce(operation_ids)

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving these operations."""
        await self._inner.withdraw(operation_ids)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Return the addresses of all servers."""
        return await self._inner.servers(wait)

    def request(self, event: CallRequested) -> Address | None:
        """Send a request.

        Raises:
            CallError: UNAVAILABLE, PAYLOAD_TOO_LARGE.
        """
        self._check()
        return self._inner.request(event)

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event.

        Raises:
            CallError: UNAVAILABLE, PAYLOAD_TOO_LARGE.
        """
        self._check()
        self._inner.send(event, to)

    async def close(self) -> None:
        """Disconnect; after a fault that closes this end, wait until it is closed."""
        self._forget_all()
        self._receiver = None
        if self._fall is not None:
            await self._fall
        await self._inner.close()

    def _check(self) -> None:
        if self.fallen:
            raise CallError(ErrorCode.UNAVAILABLE, "chaos has closed this end")

    # --- events of the wrapped transport ------------------------------------------------------------------------------

    def received(self, event: CallEvent, sender: Address) -> None:
        """Deliver an event, unless a fault is injected."""
        if self.fallen or self._chaos.strikes("drop"):
            return
        if self._chaos.strikes("close"):
            self._fall_over()
            return
        self._pass_on(event, sender)
        if self._chaos.strikes("duplicate"):
            self._again(event, sender)

    def lost(self, peer: Address | None, reason: str) -> None:
        """Handle the loss of a peer, and drop its delayed events."""
        if peer is None:
            self._forget_all()
        else:
            self._forget(peer)
        if self._receiver is not None and not self.fallen:
            self._receiver.lost(peer, reason)

    def _pass_on(self, event: CallEvent, sender: Address) -> None:
        if self._chaos.strikes("reorder"):
            self._later(sender, lambda: self._deliver(event, sender))  # later events overtake it
        elif sender in self._held:
            self._held[sender].append(event)
        elif self._chaos.strikes("delay"):
            self._held[sender] = [event]
            self._later(sender, lambda: self._release(sender))
        else:
            self._deliver(event, sender)

    def _again(self, event: CallEvent, sender: Address) -> None:
        """Deliver an event again: right after the first time, or when that was handled long ago."""
        if self._chaos.random.random() < 0.5:
            self._pass_on(event, sender)
        else:
            self._later(sender, lambda: self._deliver(event, sender))

    def _release(self, sender: Address) -> None:
        for event in self._held.pop(sender, ()):
            self._deliver(event, sender)

    def _deliver(self, event: CallEvent, sender: Address) -> None:
        if self._receiver is not None and not self.fallen:
            self._receiver.received(event, sender)

    def _later(self, sender: Address, action: Callable[[], None]) -> None:
        timers = self._timers.setdefault(sender, set())

        def act() -> None:
            timers.discard(timer)
            action()

        timer = asyncio.get_running_loop().call_later(self._chaos.pause(), act)
        timers.add(timer)

    def _forget(self, sender: Address) -> None:
        self._held.pop(sender, None)
        for timer in self._timers.pop(sender, ()):
            timer.cancel()

    def _forget_all(self) -> None:
        for sender in list(self._timers):
            self._forget(sender)

    def _fall_over(self) -> None:
        """Close this end like a broken connection."""
        self._fall = asyncio.get_running_loop().create_task(self._inner.close())
        self._forget_all()
        if self._receiver is not None:
            self._receiver.lost(None, "chaos closed the connection")
