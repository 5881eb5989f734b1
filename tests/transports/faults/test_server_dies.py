"""One of two serving processes is killed or frozen in the middle of the calls."""

import asyncio

import pytest

from opwire import Context
from opwire.errors import CallError, ErrorCode
from opwire.protocol import PendingRequestMap
from opwire_conformance.harness import soon
from tests.servers.brokers import NatsServer, Server
from tests.transports.engines import ENGINES, Engine
from tests.transports.faults.harness import engines, process, processes
from tests.transports.faults.load import CALLERS, Load, runs_in

pytestmark = pytest.mark.slow


@engines("nats", "websocket")
async def test_a_killed_server_fails_the_calls_in_its_hands_and_no_others(engine: Engine, server: Server) -> None:
    """Calls in the hands of a serving process that is killed fail with UNAVAILABLE; all others, and all later
    ones, are answered by another."""
    async with processes(engine, server) as (calls, doomed, other), Load(calls, callers=CALLERS) as load:
        await load.until(answers=400)
        doomed.kill()
        later = await load.until_none_fails(server=other.pid)
        await load.until(answers=600)
    load.check(doomed.lines + other.lines)
    assert len(load.answered) >= 1000
    assert 1 <= len(load.failed) <= CALLERS
    assert not load.failed & runs_in(other.lines).keys(), "what may have begun was asked again"
    assert load.made_since(later) == {other.pid}


async def test_a_killed_server_is_noticed_long_before_its_beats_are_missed(engine: Engine, server: Server) -> None:
    """The caller's heartbeat is a minute: what ends the calls is what the engine knows."""

    async def running(number: int) -> None:
        while sum(line.startswith("ran") for line in doomed.lines) < number:
            await asyncio.sleep(0.01)

    async with PendingRequestMap(engine.connect(server.url, heartbeat=60.0)) as calls:
        async with process("serve", engine, server) as doomed:
            await soon("it serves", calls.call("fault.run", timeout=30))
            waiting = [asyncio.ensure_future(calls.call("fault.run", {"delay": 300}, timeout=300)) for _ in range(5)]
            await soon("they run", running(6))
            doomed.kill()
            outcomes = await soon("they fail", asyncio.gather(*waiting, return_exceptions=True))
        codes = [each.code for each in outcomes if isinstance(each, CallError)]
        assert codes == 5 * [ErrorCode.UNAVAILABLE]


@engines("redis", "websocket")
async def test_a_frozen_server_fails_its_calls_and_serves_again_when_it_wakes(engine: Engine, server: Server) -> None:
    async with processes(engine, server) as (calls, sleeper, other), Load(calls, callers=CALLERS) as load:
        await load.until(answers=400)
        sleeper.freeze()
        asleep = await load.until_none_fails(server=other.pid)
        await load.until(answers=400)
        assert load.made_since(asleep) == {other.pid}
        sleeper.thaw()
        await load.until_served_by(sleeper.pid)
        await load.until(answers=400, streams=1)
    load.check(sleeper.lines + other.lines)
    assert len(load.answered) >= 1000
    assert len(load.failed) >= 1
    assert not load.failed & runs_in(other.lines).keys(), "what may have begun was asked again"


@pytest.mark.parametrize(("what", "size"), [("calls", 1), ("calls", 100_000), ("subscriptions", 0)])
async def test_a_frozen_server_gets_few_requests_although_nats_routes_to_it(what: str, size: int) -> None:
    with NatsServer() as server:  # whose pings are minutes apart
        async with processes(ENGINES["nats"], server) as (calls, sleeper, _):

            async def use() -> None:
                if what == "subscriptions":
                    async for _ in calls.subscribe("fault.numbers", {"end": 2}, timeout=30):
                        pass
                else:
                    await calls.call("fault.run", {"ballast": "x" * size}, timeout=30)

            async def fails() -> bool:
                outcome, *_ = await asyncio.gather(use(), return_exceptions=True)
                return isinstance(outcome, CallError) and outcome.code is ErrorCode.UNAVAILABLE

            assert not any([await fails() for _ in range(20)])
            sleeper.freeze()
            while not await fails():  # one call in two, until the first has expired
                pass
            # One may try the frozen server, others are routed until one has got a response, and then a few are samples.
            assert sum([await fails() for _ in range(60)]) <= 15, "one in two, unless it is avoided"
            sleeper.thaw()


async def test_a_call_that_the_last_server_got_before_nats_dropped_it_may_have_run() -> None:
    engine = ENGINES["nats"]
    with engine.start() as server:
        async with (
            process("serve", engine, server) as frozen,
            PendingRequestMap(engine.connect(server.url, heartbeat=30.0)) as calls,
        ):
            await calls.call("fault.run")
            frozen.freeze()
            with pytest.raises(CallError, match=r"fault\.run: no server is left; it may have run") as caught:
                await soon("NATS drops the server", calls.call("fault.run", context=Context(request_id="late")))
            assert caught.value.code is ErrorCode.UNAVAILABLE
            frozen.thaw()
            await frozen.until("ran late")
