"""The connection between an end and its engine breaks, stalls, drips and loses bytes."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.servers.brokers import Server
from tests.servers.faults import FaultProxy, Way
from tests.transports.engines import Engine
from tests.transports.faults.harness import Side, combined, staged
from tests.transports.faults.load import Load

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_reconnects")]


def swallow(proxy: FaultProxy) -> None:
    proxy.drop_replies = True


async def break_once(proxy: FaultProxy, fault: Callable[[FaultProxy], None], load: Load) -> None:
    """Break a connection. Calls fail only if in flight at that moment; but there is another connection soon."""
    connections = proxy.accepted
    fault(proxy)
    await load.wait("another connection", lambda: proxy.accepted > connections)


def mend(proxy: FaultProxy) -> None:
    if proxy.drop_replies:  # no network loses bytes in the middle of a connection that goes on
        proxy.cut()
    proxy.flow()


BREAKS: dict[str, Callable[[FaultProxy], None]] = {"cut": FaultProxy.cut, "closed": FaultProxy.close_all}
SILENCES: dict[str, Callable[[FaultProxy], None]] = {
    "stalled": FaultProxy.stall,
    "stalled on the way out": lambda proxy: proxy.stall("up"),
    "stalled on the way in": lambda proxy: proxy.stall("down"),
    "answers are swallowed": swallow,
}
HINDRANCES: dict[str, Callable[[FaultProxy], None]] = {
    "halved": FaultProxy.halve,
    "dripping": lambda proxy: proxy.drip(300, 0.001),
}


@pytest.mark.parametrize(("engine", "fault", "side"), combined(BREAKS), indirect=["engine"])
async def test_calls_succeed_again_after_the_connection_broke(
    engine: Engine, server: Server, fault: str, side: Side
) -> None:
    async with staged(engine, server) as stage, Load(stage.calls) as load:
        await load.until(answers=100)
        await break_once(stage.proxies[side], BREAKS[fault], load)
        await load.until(answers=100, streams=1)
    load.check(stage.notes.lines)


@pytest.mark.parametrize(("engine", "way", "side"), combined(("up", "down")), indirect=["engine"])
async def test_calls_succeed_again_after_a_cut_in_the_middle_of_a_message(
    engine: Engine, server: Server, way: Way, side: Side
) -> None:
    async with staged(engine, server) as stage, Load(stage.calls) as load:
        for size in (1, 199, 1_009, 4_099):
            await break_once(stage.proxies[side], partial(FaultProxy.cut_after, size=size, way=way), load)
            await load.until(answers=50)
        await load.until(streams=1)
    load.check(stage.notes.lines)


@pytest.mark.parametrize(("engine", "fault", "side"), combined(SILENCES), indirect=["engine"])
async def test_calls_over_a_silent_connection_fail_and_later_ones_succeed(
    engine: Engine, server: Server, fault: str, side: Side
) -> None:
    """However a connection breaks, stalls or delivers in pieces, each call has one outcome, streams have no gap
    and no repetition, and later calls succeed."""
    async with staged(engine, server) as stage, Load(stage.calls) as load:
        await load.until(answers=100)
        SILENCES[fault](stage.proxies[side])
        await load.until(failures=1, broken=1)
        mend(stage.proxies[side])
        await load.until(answers=100, streams=1)
    load.check(stage.notes.lines)


async def test_a_server_that_cannot_be_heard_gets_no_more_calls(engine: Engine, server: Server) -> None:
    """A server whose answers do not get through gets no more calls."""
    async with staged(engine, server) as mute, staged(engine, server) as healthy:
        async with Load(healthy.calls) as load:
            await load.until(answers=100)
            mute.proxies["server"].stall("up")
            await load.until(failures=1)
            await load.until_none_fails()
            last = len(mute.notes.lines)
            await load.until(answers=200)
            assert len(mute.notes.lines) == last
        load.check(mute.notes.lines + healthy.notes.lines)


@pytest.mark.parametrize(("engine", "fault", "side"), combined(HINDRANCES), indirect=["engine"])
async def test_no_call_fails_because_bytes_arrive_in_pieces(
    engine: Engine, server: Server, fault: str, side: Side
) -> None:
    async with staged(engine, server, heartbeat=2.0) as stage:
        HINDRANCES[fault](stage.proxies[side])
        async with Load(stage.calls, callers=8, followers=1) as load:
            await load.until(answers=100, streams=1)
        load.check(stage.notes.lines)
        assert not load.failed
