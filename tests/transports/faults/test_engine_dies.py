"""The server of the engine is killed and started again, or frozen, in the middle of the calls."""

import asyncio

import pytest

from opwire import CallError
from opwire.protocol import CallRequested
from opwire.transports import broker
from opwire.transports.websocket import client
from tests.servers.brokers import Server
from tests.transports.engines import Engine
from tests.transports.faults.harness import engines, processes, staged
from tests.transports.faults.load import CALLERS, Load

pytestmark = pytest.mark.slow


@engines("redis", "websocket")
async def test_calls_succeed_again_when_a_killed_engine_is_started_again(engine: Engine, own_server: Server) -> None:
    async with processes(engine, own_server) as (calls, one, other), Load(calls, callers=CALLERS) as load:
        await load.until(answers=400)
        own_server.kill()
        await load.until(failures=4 * CALLERS)  # what was in flight, and what is asked meanwhile
        own_server.start()
        await load.until_served_by(one.pid, other.pid)
        await load.until(answers=400, streams=1)
    load.check(one.lines + other.lines)
    assert len(load.outcomes) >= 800 + 4 * CALLERS


@engines("nats", "websocket")
async def test_calls_fail_soon_while_the_engine_is_frozen_and_succeed_again_afterwards(
    engine: Engine, own_server: Server
) -> None:
    async with processes(engine, own_server) as (calls, one, other), Load(calls, callers=CALLERS) as load:
        await load.until(answers=400)
        own_server.freeze()
        await load.until(failures=4 * CALLERS)
        # which is known now, without waiting for a lease
        with pytest.raises(CallError, match=r"is not reachable|does not answer"):
            calls.transport.request(CallRequested(request_id="late", operation_id="fault.run"))
        own_server.thaw()
        await load.until_served_by(one.pid, other.pid)
        await load.until(answers=400, streams=1)
    load.check(one.lines + other.lines)
    assert len(load.outcomes) >= 800 + 4 * CALLERS


async def test_an_outage_does_not_cause_a_busy_loop(
    engine: Engine, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an engine is away, ends try to reach it ever more rarely."""
    monkeypatch.setattr(broker, "PATIENCE", 0.2)
    monkeypatch.setattr(client, "_MIN_STEADY_SECONDS", 0.2)
    async with staged(engine, own_server) as stage:
        await asyncio.sleep(0.3)  # both connections have lasted
        own_server.kill()
        await asyncio.sleep(1)
        attempts = [proxy.accepted - 1 for proxy in stage.proxies.values()]
        assert all(1 <= number <= 30 for number in attempts), attempts
