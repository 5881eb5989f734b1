"""kill -9 of workers, callers and engines at every step: each task is run at least once, and has one outcome."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opwire import CallError
from opwire.durable import DurableCalls
from tests.durable.engines import PATIENCE, NatsPlace, Place, RedisPlace
from tests.durable.process import LEASE, STEPS
from tests.properties import is_thorough
from tests.servers.brokers import NatsServer, RedisServer
from tests.servers.processes import Worker
from tests.transports.nats.cluster import nats_cluster
from tests.transports.nats.ends import plain_client
from tests.transports.redis.service import RedisCluster, RedisService, replicate

pytestmark = pytest.mark.slow

TIMES = ("before", "amid", "after")
WORKER_STEPS = [f"{when} {step}" for step in STEPS[:-1] for when in TIMES] + ["in handler"]
CALLER_STEPS = [f"{when} {step}" for step in STEPS[-1:] for when in TIMES] + ["while it waits"]
ENGINES = ("redis", "jetstream")


def at_steps(steps: list[str]) -> pytest.MarkDecorator:
    """Parametrise with each step in both engines, or in one of them in turn: a case starts a process."""
    pairs = [
        (engine, step)
        for number, step in enumerate(steps)
        for engine in (ENGINES if is_thorough() else ENGINES[number % 2 :][:1])
    ]
    return pytest.mark.parametrize(("place", "step"), pairs, indirect=["place"])


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place[Any]:
    """A journal of its own in a server of each engine."""
    server = request.getfixturevalue(f"{request.param}_server")
    return (
        RedisPlace(server.url, tmp_path / "runs")
        if request.param == "redis"
        else NatsPlace([server.url], tmp_path / "runs")
    )


async def death(process: Worker) -> None:
    """Wait until a process has killed itself."""
    async with asyncio.timeout(PATIENCE):
        assert await process.death() == -9, "\n".join(process.lines)


# --- workers and callers die ------------------------------------------------------------------------------------------


@at_steps(WORKER_STEPS)
async def test_a_worker_may_be_killed_at_any_step(step: str, place: Place[Any]) -> None:
    fail, take = int("release" in step), LEASE if "renew" in step else 0
    async with place.journal() as journal:
        durable = DurableCalls(journal)
        calling = asyncio.create_task(durable.call("job.run", {}, key="job", timeout=PATIENCE))
        async with place.process(die=step, fail=fail, take=take) as process:
            await death(process)
        async with place.worker(journal):
            assert (await calling).data == "job is done"
        first = await journal.outcome("job")
        assert (await durable.call("job.run", {}, key="job")).data == "job is done"
        assert await journal.outcome("job") == first
        await place.nothing_is_left(journal)
    once = ("before claim", "amid claim", "after claim", "after record")
    assert 1 <= place.runs["job"] <= (1 if step in once else 2)


@at_steps(CALLER_STEPS)
async def test_a_caller_may_be_killed_at_any_step_and_asks_again(step: str, place: Place[Any]) -> None:
    async with place.journal() as journal:
        if step == "after submit":  # it has waited for the outcome
            async with place.worker(journal), place.process("call", die=step) as process:
                await death(process)
        elif step == "while it waits":
            async with place.process("call") as process, asyncio.timeout(PATIENCE):
                while not await place.knows(journal, "job"):
                    await asyncio.sleep(0.01)
                process.kill()
        else:
            async with place.process("call", die=step) as process:
                await death(process)
        async with place.worker(journal):
            envelope = await DurableCalls(journal).call("job.run", {}, key="job", timeout=PATIENCE)
        assert envelope.data == "job is done"
        await place.nothing_is_left(journal)
    assert place.runs == {"job": 1}


async def test_a_task_that_kills_its_worker_becomes_a_dead_letter_after_as_many_attempts_as_are_allowed(
    place: Place[Any],
) -> None:
    async with place.journal() as journal:
        durable = DurableCalls(journal)
        calling = asyncio.create_task(durable.call("job.run", {}, key="job", timeout=3 * PATIENCE))
        for _ in range(2):
            async with place.process(die="in handler", max_attempts=2) as process:
                await death(process)
        assert place.runs == {"job": 2}
        async with place.worker(journal, max_attempts=2):
            with pytest.raises(CallError, match="its worker was lost in the last of 2 attempts"):
                await calling
            (dead_letter,) = [each async for each in durable.dead_letters()]
            assert (dead_letter.key, dead_letter.attempts) == ("job", 2)
            assert place.runs == {"job": 2}
            assert await durable.replay("job")
            assert (await durable.call("job.run", {}, key="job", timeout=PATIENCE)).data == "job is done"
        await place.nothing_is_left(journal)


@pytest.mark.parametrize("place", ENGINES if is_thorough() else ["redis"], indirect=True)
async def test_tasks_that_kill_their_worker_become_dead_letters_and_what_was_in_flight_with_them_is_done(
    place: Place[Any],
) -> None:
    poison = ["poison-1", "poison-2"]
    keys = [f"job-{number}" for number in range(20)]
    async with place.journal() as journal:
        durable = DurableCalls(journal)
        for key in [*keys[:3], poison[0], *keys[3:12], poison[1], *keys[12:]]:
            await durable.submit("job.run", {}, key=key)
        answers = [asyncio.create_task(journal.wait(key, 5 * PATIENCE)) for key in [*keys, *poison]]

        async def live_and_die() -> None:
            while not all(answer.done() for answer in answers):
                async with place.process(die="of poison", max_attempts=2, concurrency=8, take=0.02) as process:
                    dying = asyncio.create_task(process.death())
                    await asyncio.wait([dying, asyncio.gather(*answers)], return_when=asyncio.FIRST_COMPLETED)
                    if dying.done():
                        assert await dying == -9
                    dying.cancel()

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(live_and_die())
        outcomes = {each.result().key: each.result() for each in answers}
        assert [outcomes[key].dead_letter for key in keys] == [False] * len(keys)
        assert [outcomes[key].dead_letter for key in poison] == [True, True]
        assert set(place.runs) == {*keys, *poison}
        for key in poison:
            await durable.purge(key)
        await place.nothing_is_left(journal)


@pytest.mark.parametrize("place", ENGINES if is_thorough() else ["jetstream"], indirect=True)
async def test_two_workers_that_are_killed_at_random_finish_200_tasks(place: Place[Any]) -> None:
    dice = random.Random(5)
    keys = [f"job-{number}" for number in range(200)]
    async with place.journal() as journal:
        durable = DurableCalls(journal)

        async def answer(key: str) -> str:
            return (await durable.call("job.run", {}, key=key, timeout=90)).data

        answers = [asyncio.create_task(answer(key)) for key in keys]

        async def live_and_die(lives: int) -> None:
            for life in range(lives):
                async with place.process(take=0.03, max_attempts=50, lease=1.5) as process:
                    if life == lives - 1:
                        await asyncio.wait(answers)
                        return
                    await asyncio.sleep(dice.uniform(0.05, 0.4))  # when it is killed does not decide the result
                    process.kill()

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(live_and_die(3))
        assert [task.result() for task in answers] == [f"{key} is done" for key in keys]
        outcomes = [await journal.outcome(key) for key in keys]
        assert [outcome.key for outcome in outcomes if outcome is not None and not outcome.dead_letter] == keys
        await place.nothing_is_left(journal)
    runs = place.runs
    assert set(runs) == set(keys)
    assert sum(runs.values()) - len(keys) <= 4 * 4  # only tasks in flight when a worker died run again


async def test_a_worker_that_freezes_loses_its_task_and_cannot_spoil_it_when_it_wakes(place: Place[Any]) -> None:
    async with place.journal() as journal:
        durable = DurableCalls(journal)
        calling = asyncio.create_task(durable.call("job.run", {}, key="job", timeout=PATIENCE))
        async with place.process(take=1) as process:
            async with asyncio.timeout(PATIENCE):
                while not place.runs:
                    await asyncio.sleep(0.01)
            process.freeze()
            async with place.worker(journal):
                assert (await calling).data == "job is done"
            first = await journal.outcome("job")
            process.thaw()
            await process.stop()
        assert await journal.outcome("job") == first
        assert first is not None
        assert first.attempts == place.runs["job"] == 2
        await place.nothing_is_left(journal)


# --- the engine dies --------------------------------------------------------------------------------------------------


async def survive(place: Place[Any], disasters: list[Callable[[], None]]) -> None:
    """Call 150 times while the disasters happen: what was acknowledged is there after each, and all is done."""
    acknowledged: set[str] = set()
    keys = [f"job-{number}" for number in range(150)]
    async with place.journal() as journal, place.journal() as other:
        durable = DurableCalls(journal)

        async def call(key: str) -> str:
            """Ask until there is an answer, always with the same key."""
            while True:
                try:
                    await durable.submit("job.run", {}, key=key)
                    acknowledged.add(key)
                    return (await durable.call("job.run", {}, key=key, timeout=PATIENCE)).data
                except CallError as error:
                    if error.code not in ("UNAVAILABLE", "TIMEOUT"):
                        raise
                    await asyncio.sleep(0.02)

        async with place.worker(other, max_attempts=50):
            early = {key: await call(key) for key in keys[:20]}
            recorded = {key: await journal.outcome(key) for key in early}
            calls = [asyncio.create_task(call(key)) for key in keys[20:]]
            for disaster in disasters:
                known = len(acknowledged)
                while len(acknowledged) < min(known + 20, len(keys)):
                    await asyncio.sleep(0.001)
                before = set(acknowledged)
                disaster()
                assert {key for key in before if not await place.knows(journal, key)} == set()
            async with asyncio.timeout(3 * PATIENCE):
                assert await asyncio.gather(*calls) == [f"{key} is done" for key in keys[20:]]
        assert {key: await journal.outcome(key) for key in early} == recorded
        await place.nothing_is_left(journal)
    assert set(place.runs) == set(keys)


def crashes(server: RedisServer | NatsServer) -> list[Callable[[], None]]:
    def crash() -> None:
        server.kill()
        server.start()

    return [crash] * 3


async def test_what_redis_has_acknowledged_survives_its_crash(
    own_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """With appendfsync always, nothing that Redis acknowledged is lost when it is killed."""
    server = own_redis(appendonly="yes", appendfsync="always")
    await survive(RedisPlace(server.url, tmp_path / "runs"), crashes(server))


@pytest.mark.parametrize("kind", [RedisService, RedisCluster])
async def test_what_the_replica_had_survives_the_loss_of_its_primary(
    kind: type[RedisService | RedisCluster], brokers_run_here: None, tmp_path: Path
) -> None:
    """What the replica of a Redis service had is not lost when Sentinels replace its primary, and durable calls
    go on."""
    with kind() as service:

        def crash() -> None:
            replicate(service)
            service.primary.kill()

        place = RedisPlace(service.url, tmp_path / "runs")
        place.prefix = "opwire"
        await survive(place, [crash])


async def test_what_jetstream_has_acknowledged_survives_its_crash(
    own_nats: Callable[..., NatsServer], tmp_path: Path
) -> None:
    server = own_nats(jetstream=True)
    await survive(NatsPlace([server.url], tmp_path / "runs"), crashes(server))


async def test_what_a_cluster_has_acknowledged_survives_the_loss_of_its_leader(tmp_path: Path) -> None:
    with nats_cluster(jetstream=True) as servers:
        place = NatsPlace([server.url for server in servers], tmp_path / "runs", replicas=3)
        await formed(place)
        async with plain_client(servers[0].url) as client:
            info = await client.jetstream().stream_info(f"{place.prefix}_durable")
        assert info.cluster is not None
        (leader,) = [server for server in servers if server.name == info.cluster.leader]
        await survive(place, [leader.kill])


async def formed(place: NatsPlace) -> None:
    """Wait until a cluster has found together."""
    async with asyncio.timeout(2 * PATIENCE):
        while True:
            try:
                async with place.journal():
                    return
            except CallError:
                await asyncio.sleep(0.1)
