"""One connection, over a real socket: order, bounds, and an end that is reported once."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.transports import link
from opwire.transports.link import Backlogs, Link, keep_running
from opwire_conformance.harness import soon
from tests.servers.leaks import Leaks


class End:
    """A link, and what it was told."""

    def __init__(self, *, max_backlog: int = 16 * 2**20) -> None:
        self.received = bytearray()
        self.reasons: list[str] = []
        self.news = asyncio.Event()
        self.transport = asyncio.Transport()  # until it is connected
        self.link = Link(self.receive, self.lose, max_backlog=max_backlog)

    def receive(self, data: bytes) -> None:
        if data.startswith(b"poison"):
            raise ValueError("it does not taste")
        if data.startswith(b"bug"):
            raise KeyError("ours")
        self.received += data
        self.news.set()

    def lose(self, reason: str) -> None:
        self.reasons.append(reason)
        self.news.set()

    async def until(self, size: int) -> None:
        async with asyncio.timeout(5):
            while len(self.received) < size:
                self.news.clear()
                await self.news.wait()

    async def lost(self) -> str:
        async with asyncio.timeout(5):
            while not self.reasons:
                self.news.clear()
                await self.news.wait()
        return self.reasons[0]


@asynccontextmanager
async def connected(*, max_backlog: int = 16 * 2**20) -> AsyncIterator[tuple[End, End]]:
    here, there = End(max_backlog=max_backlog), End()
    loop = asyncio.get_running_loop()
    one, two = socket.socketpair()
    for end, sock in ((here, one), (there, two)):
        sock.setblocking(False)
        end.transport, _ = await loop.create_connection(lambda end=end: end.link, sock=sock)
    try:
        yield here, there
    finally:
        await asyncio.gather(here.link.close(), there.link.close())


@asynccontextmanager
async def with_silent_peer(max_backlog: int) -> AsyncIterator[tuple[End, socket.socket]]:
    """A peer that reads nothing, unless the test does it."""
    here = End(max_backlog=max_backlog)
    one, two = socket.socketpair()
    one.setblocking(False)
    two.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: here.link, sock=one)
    try:
        yield here, two
    finally:
        here.link.abort("the test is over")
        two.close()
        await here.lost()


async def fill(write: Callable[[bytes], None]) -> int:
    """Write until it is refused. How many bytes were taken."""
    for number in range(10_000):
        try:
            write(b"x" * 1000)
        except CallError as refused:
            if refused.code is not ErrorCode.RATE_LIMITED:
                raise
            return number * 1000
        await asyncio.sleep(0)
    raise AssertionError("everything was taken")


async def read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    async with asyncio.timeout(5):
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(sock, 2**20)
    return bytes(data)


async def test_writes_of_any_size_arrive_in_order() -> None:
    async with connected() as (here, there):
        sent = bytearray()
        for number in range(2_000):
            piece = f"{number},".encode() * (1 + number % 40)
            (here.link.control if number % 3 else here.link.write)(piece)
            sent += piece
        await there.until(len(sent))
        assert there.received == sent


async def test_what_is_written_in_a_turn_leaves_at_its_end() -> None:
    async with connected() as (here, there):
        here.link.write(b"one ")
        here.link.write(b"two")
        assert here.link.backlog == 7
        await asyncio.sleep(0)
        assert here.link.backlog == 0
        await there.until(7)
        assert bytes(there.received) == b"one two"


async def test_a_peer_that_does_not_read_costs_no_more_than_the_bound() -> None:
    async with with_silent_peer(200_000) as (here, peer):
        sent = await fill(here.link.write)
        assert here.link.backlog <= 200_000
        here.link.control(b"y" * 1000)  # what ends or steers calls still has room
        assert set((await read(peer, sent + 1000))[-1000:]) == {ord("y")}
        here.link.write(b"z")  # and there is room again
        assert await read(peer, 1) == b"z"


async def test_even_control_events_have_a_bound() -> None:
    async with with_silent_peer(1_000) as (here, _):
        assert await fill(here.link.control) < 3_000_000


async def test_what_is_urgent_goes_past_what_waits() -> None:
    """Signs of life go past what waits to be sent."""
    async with with_silent_peer(4 * 2**20) as (here, peer):
        for _ in range(3_000):
            here.link.write(b"x" * 1000)
            await asyncio.sleep(0)
        here.link.urgent(b"!")
        data = await read(peer, 3_000_001)
        assert data.index(b"!") < 2_900_000


async def test_a_peer_that_reads_nothing_cannot_make_us_answer_for_ever() -> None:
    async with with_silent_peer(100_000) as (here, _):
        await fill(here.link.control)
        for _ in range(4_000):
            here.link.urgent(b"!" * 1000)
        assert here.link.backlog <= 100_000 + 2 * 2**20
        assert here.link.open


async def test_what_is_written_in_one_turn_leaves_in_few_pieces() -> None:
    async with connected() as (here, there):
        transport = here.transport
        pieces, write = list[int](), transport.write
        transport.write = lambda data: (pieces.append(len(data)), write(data))[1]
        for _ in range(100):
            here.link.write(b"x" * 30)
        assert pieces == []
        await there.until(3_000)
        assert pieces == [3_000]


async def test_draining_waits_for_a_peer_that_reads_late_and_no_longer_than_the_connection_lasts() -> None:
    async with with_silent_peer(4 * 2**20) as (here, peer):
        here.link.write(b"x" * 2_000_000)
        drained = asyncio.ensure_future(here.link.drain())
        await asyncio.sleep(0)
        assert not drained.done()
        await read(peer, 2_000_000)
        await asyncio.wait_for(drained, 5)
        here.link.write(b"x" * 2_000_000)
        drained = asyncio.ensure_future(here.link.drain())
        await asyncio.sleep(0)
        here.link.abort("enough")
        await asyncio.wait_for(drained, 5)


async def test_a_close_that_is_cancelled_ends_the_connection_all_the_same() -> None:
    """A connection ends once, in bounded time, and tells why."""
    async with Leaks(), with_silent_peer(10 * 2**20) as (here, _):
        here.link.write(b"x" * 9_000_000)
        closings = [asyncio.ensure_future(here.link.close(grace=60)) for _ in range(2)]
        await asyncio.sleep(0)
        closings[0].cancel()
        await asyncio.wait_for(asyncio.wait(closings), 5)
        assert (closings[0].cancelled(), closings[1].exception()) == (True, None)
        assert not here.link.open
        here.lose("so that the test ends")


async def test_nothing_goes_out_and_nothing_comes_in_after_the_close() -> None:
    async with Leaks(), connected() as (here, there):
        here.link.write(b"last")
        closing = asyncio.ensure_future(here.link.close())
        await asyncio.sleep(0)
        here.link.data_received(b"late")
        for write in (here.link.write, here.link.control):
            with pytest.raises(CallError) as refused:
                write(b"late")
            assert refused.value.code is ErrorCode.UNAVAILABLE
        here.link.urgent(b"late")
        await closing
        await there.lost()
        assert (here.received, there.received, here.reasons) == (b"", b"last", [])


async def test_a_connection_that_is_closed_has_sent_everything_and_both_sides_are_done() -> None:
    async with connected() as (here, there):
        here.link.write(b"x" * 3_000_000)
        await here.link.close()
        await there.until(3_000_000)
        assert await there.lost() == "the peer closed the connection"
        assert here.reasons == []
        await here.link.close()


async def test_closing_does_not_wait_for_a_peer_that_never_reads() -> None:
    async with with_silent_peer(10 * 2**20) as (here, _):
        here.link.write(b"x" * 9_000_000)
        async with asyncio.timeout(5):
            await here.link.close(grace=0.05)
        assert not here.link.open
        here.lose("so that the test ends")


async def test_an_aborted_connection_is_lost_once_and_takes_nothing_more() -> None:
    async with connected() as (here, there):
        here.link.abort("enough")
        assert await here.lost() == "enough"
        here.link.abort("again")
        await there.lost()
        for write in (here.link.write, here.link.control):
            with pytest.raises(CallError) as refused:
                write(b"x")
            assert refused.value.code is ErrorCode.UNAVAILABLE
        here.link.urgent(b"x")
        await here.link.drain()
        assert here.reasons == ["enough"]


async def test_what_the_receiver_cannot_bear_ends_this_connection_and_no_other() -> None:
    """A peer that breaks the protocol loses its own connection."""
    async with connected() as (here, there), connected() as (other, far):
        here.link.write(b"poison")
        assert await there.lost() == "the peer broke the protocol: it does not taste"
        other.link.write(b"fine")
        await far.until(4)


async def test_a_fault_of_ours_ends_the_connection_and_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connected() as (here, there):
        with caplog.at_level(logging.ERROR, "opwire.transports"):
            here.link.write(b"bug")
            assert await there.lost() == "data of the peer could not be handled"
        assert "KeyError: 'ours'" in caplog.text


async def test_a_link_that_is_not_connected_refuses() -> None:
    end = End()
    assert not end.link.open
    with pytest.raises(CallError) as refused:
        end.link.write(b"x")
    assert refused.value.code is ErrorCode.UNAVAILABLE
    await end.link.close()


async def test_work_that_fails_is_logged_and_started_again_until_it_returns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    monkeypatch.setattr(link, "back_off", lambda attempt, **_: attempts.append(attempt) or 0.0)
    left = 5

    async def work() -> None:
        nonlocal left
        left -= 1
        if left:
            raise RuntimeError("the vault is sealed")

    await soon("it returns", keep_running("the reconnection", work))
    assert (left, attempts) == (0, [1, 2, 3, 4])
    assert [each.getMessage() for each in caplog.records] == 4 * ["the reconnection failed and is restarted"]
    assert "the vault is sealed" in caplog.text


async def test_work_that_is_cancelled_is_not_started_again() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running("the work", work))
    await soon("it begins", begun.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_links_together_keep_no_more_than_their_total_and_the_worst_of_them_ends() -> None:
    shared = Backlogs(1_300_000)
    async with with_silent_peer(800_000) as (worst, _), with_silent_peer(800_000) as (other, two):
        for end in (worst, other):
            end.link.backlogs = shared
        for _ in range(300):
            other.link.write(b"x" * 1_000)
            await asyncio.sleep(0)
        taken = await fill(worst.link.write)
        assert taken > 700_000
        for _ in range(450):
            other.link.write(b"x" * 1_000)
            await asyncio.sleep(0)
        assert "does not read" in await worst.lost()
        assert other.link.open
        assert shared.used <= 1_300_000
        await read(two, 750_000)
        async with asyncio.timeout(5):
            while shared.used:
                await asyncio.sleep(0.01)
        assert shared.used == 0


async def test_a_link_that_is_aborted_before_it_is_connected_ends_when_it_is() -> None:
    here = End()
    one, two = socket.socketpair()
    one.setblocking(False)
    here.link.abort("it came too late")
    await asyncio.get_running_loop().create_connection(lambda: here.link, sock=one)
    assert await here.lost() == "it came too late"
    two.close()


async def test_a_peer_that_sends_much_at_once_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends thousands of requests at once has a hundredth of a second per turn of the event loop."""
    clock = 0.0
    monkeypatch.setattr(link.time, "monotonic", lambda: clock)
    turns: list[int] = []  # in which data was handled

    class Busy(End):
        def receive(self, data: bytes) -> None:
            nonlocal clock
            clock += 0.004  # for each piece
            turns.append(turn)
            super().receive(data)

    turn, busy = 0, Busy()
    one, two = socket.socketpair()
    one.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: busy.link, sock=one)
    sent = bytes(range(256)) * 512
    busy.link.data_received(sent)
    busy.link.data_received(b"the rest")
    while len(busy.received) < len(sent) + len(b"the rest"):
        turn += 1
        assert turn < 100
        await asyncio.sleep(0)
    assert busy.received == sent + b"the rest"
    assert max(map(turns.count, turns)) <= 3
    two.send(b", and more")
    await busy.until(len(sent) + len(b"the rest, and more"))  # it reads again
    await busy.link.close()
    two.close()


async def test_an_event_loop_that_reads_again_in_the_same_turn_waits_after_a_read_that_took_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr(link.time, "monotonic", lambda: clock)

    class Busy(End):
        def receive(self, data: bytes) -> None:
            nonlocal clock
            clock += 0.0006  # for each piece
            super().receive(data)

    busy = Busy()
    one, two = socket.socketpair()
    one.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: busy.link, sock=one)
    busy.link.data_received(bytes(10_000))
    assert transport.is_reading()
    busy.link.data_received(bytes(30_000))
    assert len(busy.received) == 40_000
    assert not transport.is_reading()
    await asyncio.sleep(0)
    assert transport.is_reading()
    await busy.link.close()
    two.close()


async def test_what_is_left_of_a_connection_that_ended_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_MAX_SECONDS_PER_TURN", 0.0)
    async with connected() as (here, _):
        here.link.data_received(bytes(100_000))
        handled = len(here.received)
        assert 0 < handled < 100_000
        here.link.abort("enough")
        assert await here.lost() == "enough"
        await asyncio.sleep(0)
        assert len(here.received) == handled
