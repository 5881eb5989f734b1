"""`ChaosTransport` injects each fault at its rate, and changes nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.protocol import Address, CallCredit, CallEvent, CallRequested
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire_conformance import check_transport
from tests.chaos.transport import Chaos, ChaosTransport
from tests.chaos.virtual_time import run_virtually


class Log:
    """A receiver that records its events."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.lost_peers: list[Address | None] = []

    def received(self, event: CallEvent, sender: Address) -> None:
        assert isinstance(event, CallCredit)
        self.numbers.append(event.n)

    def lost(self, peer: Address | None, reason: str) -> None:
        self.lost_peers.append(peer)


class Pair:
    """A sender without faults, and a receiver with them."""

    def __init__(self, chaos: Chaos) -> None:
        self.bus = MemoryBus()
        self.sender = MemoryTransport(self.bus)
        self.stormy = ChaosTransport(MemoryTransport(self.bus), chaos)
        self.log = Log()

    async def open(self) -> "Pair":
        await self.sender.start(Log())
        await self.stormy.start(self.log)
        return self

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.sender.send(CallCredit(request_id="r", n=number), "memory-2")


def arrivals(chaos: Chaos, number: int) -> list[int]:
    """Send numbers from 0 in order, and return them in the order of arrival."""

    async def run() -> list[int]:
        pair = await Pair(chaos).open()
        pair.send(*range(number))
        await asyncio.sleep(1)
        return pair.log.numbers

    return run_virtually(run())


def test_without_faults_everything_arrives_as_it_was_sent() -> None:
    chaos = Chaos(1)
    assert arrivals(chaos, 100) == list(range(100))
    assert chaos.counts.total() == 0


def test_dropped_events_do_not_arrive() -> None:
    chaos = Chaos(1, drop=0.3)
    numbers = arrivals(chaos, 200)
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 200 - chaos.counts["drop"]
    assert 20 < chaos.counts["drop"] < 120


def test_duplicated_events_arrive_twice() -> None:
    """A wrapper for any transport drops, duplicates, delays and reorders events, and closes at random."""
    chaos = Chaos(1, duplicate=0.3)
    numbers = arrivals(chaos, 200)
    assert sorted(set(numbers)) == list(range(200))
    assert len(numbers) == 200 + chaos.counts["duplicate"]
    assert 20 < chaos.counts["duplicate"] < 120


def test_delayed_events_hold_up_what_comes_after_them_and_keep_their_order() -> None:
    async def run() -> None:
        pair = await Pair(Chaos(1, delay=1.0, longest=0.05)).open()
        pair.send(1, 2, 3)
        assert pair.log.numbers == []
        await asyncio.sleep(0.05)
        assert pair.log.numbers == [1, 2, 3]

    run_virtually(run())


def test_reordered_events_are_overtaken() -> None:
    chaos = Chaos(1, reorder=0.3)
    numbers = arrivals(chaos, 200)
    assert sorted(numbers) == list(range(200))
    assert numbers != sorted(numbers)
    assert 20 < chaos.counts["reorder"] < 120


def test_an_end_that_falls_over_tells_its_receiver_and_its_peers_and_refuses_to_send() -> None:
    async def run() -> None:
        pair = await Pair(Chaos(1, close=1.0)).open()
        peer_log = Log()
        peer = MemoryTransport(pair.bus)
        await peer.start(peer_log)
        pair.send(1)
        assert pair.stormy.fallen
        assert pair.log.lost_peers == [None]
        sends: tuple[Callable[[], object], ...] = (
            lambda: pair.stormy.send(CallCredit(request_id="r", n=1), "memory-1"),
            lambda: pair.stormy.request(CallRequested(request_id="r", operation_id="a.b")),
        )
        for send in sends:
            with pytest.raises(CallError) as failure:
                send()
            assert failure.value.code is ErrorCode.UNAVAILABLE
        with pytest.raises(CallError):
            await pair.stormy.announce(["a.b"])
        await pair.stormy.close()
        assert peer_log.lost_peers == ["memory-2"]
        assert pair.log.numbers == []

    run_virtually(run())


async def _the_sender_closes(pair: Pair) -> None:
    await pair.sender.close()


async def _the_receiver_closes(pair: Pair) -> None:
    await pair.stormy.close()


async def _the_connection_is_lost(pair: Pair) -> None:
    pair.stormy.lost(None, "the cable")


@pytest.mark.parametrize("leave", [_the_sender_closes, _the_receiver_closes, _the_connection_is_lost])
@pytest.mark.parametrize("fault", ["delay", "reorder"])
def test_what_is_late_when_an_end_leaves_never_arrives(fault: Any, leave: Callable[[Pair], Awaitable[None]]) -> None:
    async def run() -> None:
        pair = await Pair(Chaos(1, **{fault: 1.0})).open()
        pair.send(1, 2)
        await leave(pair)
        await asyncio.sleep(1)
        assert pair.log.numbers == []

    run_virtually(run())


def test_the_same_seed_strikes_the_same_events() -> None:
    faults = {"drop": 0.1, "duplicate": 0.1, "delay": 0.1, "reorder": 0.1}
    assert arrivals(Chaos(7, **faults), 200) == arrivals(Chaos(7, **faults), 200)
    assert arrivals(Chaos(7, **faults), 200) != arrivals(Chaos(8, **faults), 200)


@pytest.mark.parametrize("delay", [0.0, 0.5])
async def test_a_wrapper_that_injects_nothing_but_delays_keeps_the_contract(delay: float) -> None:
    bus, chaos = MemoryBus(), Chaos(1, delay=delay, longest=0.002)
    await check_transport(lambda: ChaosTransport(MemoryTransport(bus), chaos))


@pytest.mark.parametrize("codec", [False, True])
def test_the_wrapper_is_trusted_as_what_it_wraps(codec: bool) -> None:
    inner = MemoryTransport(MemoryBus(codec=codec))
    assert ChaosTransport(inner, Chaos(1)).trusted is inner.trusted
