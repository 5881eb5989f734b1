"""The connections of both ends break again and again."""

import asyncio
import gc
import logging
from asyncio import TimerHandle
from collections import Counter

import pytest

from tests.servers.brokers import Server
from tests.servers.leaks import PATIENCE
from tests.transports.engines import Engine
from tests.transports.faults.harness import Stage, staged
from tests.transports.faults.load import Load

pytestmark = pytest.mark.usefixtures("quick_reconnects")

CUTS, EVERY = 10, 0.1  # seconds
FEW = 2  # of a kind that may come and go at any time
OURS = {"opwire", "asyncio", "_asyncio", "functools"}


@pytest.mark.slow
async def test_connections_that_break_again_and_again_lose_no_call_and_leave_nothing_behind(
    engine: Engine, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(
        logging.CRITICAL, "opwire"
    )  # a record keeps the error of a failed attempt, and all that it refers to
    async with staged(engine, server) as stage:
        await flap(stage)
        before, connections = objects(), accepted(stage)
        await flap(stage)
        assert accepted(stage) - connections > FEW
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while grown := {kind: number for kind, number in (objects() - before).items() if number > FEW}:
            assert asyncio.get_running_loop().time() < deadline, grown
            await asyncio.sleep(0.05)  # connections that were cut may still be closing


async def flap(stage: Stage) -> None:
    async with Load(stage.calls) as load:
        for number in range(CUTS):
            stage.proxies["server" if number % 2 else "caller"].cut()
            await asyncio.sleep(EVERY)
        await load.until(answers=200, streams=1)
    load.check(stage.notes.lines)
    stage.notes.lines.clear()


def accepted(stage: Stage) -> int:
    return sum(proxy.accepted for proxy in stage.proxies.values())


def objects() -> Counter[str]:
    """What is in memory of ours and of asyncio, by kind. Without timers: those of deadlines stay until they are due."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    return Counter(  # a type may have something else than a text as its module
        kind.__name__ for kind in kinds if str(kind.__module__).partition(".")[0] in OURS and kind is not TimerHandle
    )
