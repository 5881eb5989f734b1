"""The primary of a Redis service is replaced in the middle of the calls, or a server of a NATS cluster dies."""

import asyncio

import pytest

from tests.properties import is_thorough
from tests.servers.brokers import RedisServer
from tests.transports.engines import ENGINES
from tests.transports.faults import load as loads
from tests.transports.faults.harness import processes
from tests.transports.faults.load import CALLERS, Load
from tests.transports.nats.cluster import nats_cluster
from tests.transports.redis.ends import ask
from tests.transports.redis.service import PATIENCE, RedisCluster, RedisService

pytestmark = pytest.mark.slow

WAYS = [("crash", RedisService), ("switch", RedisCluster), ("crash", RedisCluster), ("switch", RedisService)]
"""How the primary is replaced; two of them use all code of both kinds."""


def ends(server: RedisServer) -> int:
    try:
        return ask(server, "CLIENT", "LIST").count(b"name=opwire")
    except ConnectionError:  # a server that is promoted closes its connections
        return 0


@pytest.mark.parametrize(("way", "kind"), WAYS if is_thorough() else WAYS[:2])
async def test_all_ends_follow_the_primary_and_each_call_ends_once(
    kind: type[RedisService | RedisCluster], way: str, brokers_run_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster, ends find the server of their prefix, follow it when it is replaced or killed, and each call
    has one outcome."""
    monkeypatch.setattr(loads, "PATIENCE", PATIENCE)  # an election takes seconds
    with kind() as service:
        await fail_over(service, way)


async def fail_over(service: RedisService | RedisCluster, way: str) -> None:
    engine, successor = ENGINES["redis"], service.successor
    async with processes(engine, service) as (calls, one, other), Load(calls, callers=CALLERS) as load:
        await load.until(answers=400)
        if way == "crash":
            service.primary.kill()
        else:
            service.switch()
        async with asyncio.timeout(PATIENCE):
            while ends(successor) < 3:
                await asyncio.sleep(0.05)
        await load.until_served_by(one.pid, other.pid)
        await load.until_none_fails()
        await load.until(answers=400, streams=1)
    load.check(one.lines + other.lines)
    assert load.failed


async def test_ends_find_another_server_of_a_nats_cluster_and_each_call_ends_once(
    brokers_run_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They know the URL of the first server only, which tells them of the others."""
    monkeypatch.setattr(loads, "PATIENCE", PATIENCE)
    engine = ENGINES["nats"]
    with nats_cluster(**engine.settings) as servers:
        async with processes(engine, servers[0]) as (calls, one, other), Load(calls, callers=CALLERS) as load:
            await load.until(answers=400)
            servers[0].kill()
            await load.until(failures=1)
            await load.until_served_by(one.pid, other.pid)
            await load.until_none_fails()
            await load.until(answers=400, streams=1)
        load.check(one.lines + other.lines)
