"""kill -9 of workers, callers and Redis at every step: each task is run at least once, and has one outcome."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from opwire import CallError, OperationRegistry
from opwire.durable import DurableCalls, DurableWorker
from opwire.transports.redis.streams import RedisJournal
from tests.durable.process import operations
from tests.requirements import requirement
from tests.servers.brokers import RedisServer
from tests.servers.processes import Worker
from tests.transports.redis.ends import ask

LEASE = 0.5
PATIENCE = 20.0

WORKER_STEPS = [
    *(f"{when} {step}" for step in ("claim", "renew", "record", "release") for when in ("before", "amid", "after")),
    "in handler",
]
CALLER_STEPS = [f"{when} {step}" for step in ("submit", "wait") for when in ("before", "amid", "after")]


class Place:
    """A prefix of its own in a Redis server, and the file with the traces of the runs."""

    def __init__(self, server: RedisServer, file: Path) -> None:
        self.server = server
        self.file = file
        self.prefix = token_hex(4)

    def process(self, role: str = "work", **options: Any) -> Worker:
        arguments = (role, self.server.url, self.prefix, str(self.file), json.dumps({"lease": LEASE, **options}))
        return Worker("tests.durable.process", *arguments)

    @property
    def runs(self) -> Counter[str]:
        """How often each key was run."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return Counter(line.split()[0] for line in lines)

    @asynccontextmanager
    async def journal(self) -> AsyncIterator[RedisJournal]:
        async with RedisJournal(self.server.url, prefix=self.prefix) as journal:
            yield journal

    @asynccontextmanager
    async def worker(self, journal: RedisJournal, **options: Any) -> AsyncIterator[DurableWorker]:
        """A worker in this process."""
        settings = {"lease": LEASE, "back_off": 0.05, "concurrency": 8, **options}
        async with DurableWorker(operations(self.file), journal, **settings) as worker:
            yield worker

    async def nothing_is_left(self, journal: RedisJournal) -> None:
        (info,) = await journal.info()
        assert (info.waiting, info.claimed, info.buried) == (0, 0, 0)
        stream = journal._names.stream("job.run")
        assert (ask(self.server, "XLEN", stream), ask(self.server, "XPENDING", stream, "workers")[0]) == (0, 0)


@pytest.fixture
def place(redis_server: RedisServer, tmp_path: Path) -> Place:
    return Place(redis_server, tmp_path / "runs")


async def death(process: Worker) -> None:
    """Wait until a process has killed itself."""
    async with asyncio.timeout(PATIENCE):
        await process._process.wait()
    assert process._process.returncode == -9, "\n".join(process.lines)
    process._killed = True  # it need not be stopped


@requirement("durable.crash.worker", "durable.at-least-once", "durable.one-outcome")
@pytest.mark.parametrize("step", WORKER_STEPS)
async def test_a_worker_may_be_killed_at_any_step(step: str, place: Place) -> None:
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
    most = {"before claim": 1, "amid claim": 1, "after claim": 1, "after record": 1}.get(step, 2)
    assert 1 <= place.runs["job"] <= most


@requirement("durable.crash.caller", "durable.one-outcome")
@pytest.mark.parametrize("step", CALLER_STEPS)
async def test_a_caller_may_be_killed_at_any_step_and_asks_again(step: str, place: Place) -> None:
    async with place.journal() as journal:
        if step == "after wait":
            async with place.worker(journal), place.process("call", die=step) as process:
                await death(process)
        else:
            async with place.process("call", die=step) as process:
                await death(process)
        async with place.worker(journal):
            envelope = await DurableCalls(journal).call("job.run", {}, key="job", timeout=PATIENCE)
        assert envelope.data == "job is done"
        await place.nothing_is_left(journal)
    assert place.runs == {"job": 1}


@requirement("durable.poison")
async def test_a_task_that_kills_its_worker_is_buried_after_as_many_attempts_as_are_allowed(place: Place) -> None:
    async with place.journal() as journal:
        durable = DurableCalls(journal)
        calling = asyncio.create_task(durable.call("job.run", {}, key="job", timeout=3 * PATIENCE))
        for _ in range(3):
            async with place.process(die="in handler", max_attempts=3) as process:
                await death(process)
        assert place.runs == {"job": 3}
        async with place.worker(journal, max_attempts=3):
            with pytest.raises(CallError, match="its worker was lost in the last of 3 attempts"):
                await calling
            (buried,) = [each async for each in durable.buried()]
            assert (buried.key, buried.attempts) == ("job", 3)
            assert place.runs == {"job": 3}
            assert await durable.replay("job")
            assert (await durable.call("job.run", {}, key="job", timeout=PATIENCE)).data == "job is done"
        await place.nothing_is_left(journal)


@requirement("durable.crash.worker", "durable.at-least-once", "durable.one-outcome")
async def test_two_workers_that_are_killed_at_random_finish_200_tasks(place: Place) -> None:
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
                group.create_task(live_and_die(4))
        assert [task.result() for task in answers] == [f"{key} is done" for key in keys]
        outcomes = [await journal.outcome(key) for key in keys]
        assert [outcome.key for outcome in outcomes if outcome is not None and not outcome.buried] == keys
        await place.nothing_is_left(journal)
    runs = place.runs
    assert set(runs) == set(keys)
    assert sum(runs.values()) - len(keys) <= 6 * 4  # only what was in hand when a worker died is run again


@requirement("durable.crash.redis")
async def test_what_redis_has_acknowledged_survives_its_crash(
    own_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = own_redis(appendonly="yes", appendfsync="always")
    place = Place(server, tmp_path / "runs")
    acknowledged: set[str] = set()
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
                    if error.code != "UNAVAILABLE":
                        raise
                    await asyncio.sleep(0.02)

        async with place.worker(other, max_attempts=50):
            keys = [f"job-{number}" for number in range(150)]
            early = {key: await call(key) for key in keys[:20]}
            recorded = {key: await journal.outcome(key) for key in early}
            calls = [asyncio.create_task(call(key)) for key in keys[20:]]
            for _ in range(3):
                known = len(acknowledged)
                while len(acknowledged) < min(known + 20, len(keys)):
                    await asyncio.sleep(0.001)
                server.kill()
                before = set(acknowledged)
                server.start()
                assert {key for key in before if not ask(server, "EXISTS", journal._names.task(key))} == set()
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*calls) == [f"{key} is done" for key in keys[20:]]
        assert {key: await journal.outcome(key) for key in early} == recorded
        await place.nothing_is_left(journal)
    assert set(place.runs) == set(keys)


@requirement("durable.crash.worker")
async def test_a_worker_that_freezes_loses_its_task_and_cannot_spoil_it_when_it_wakes(place: Place) -> None:
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
        assert first.attempts == 2
        await place.nothing_is_left(journal)
    assert place.runs == {"job": 2}


def test_every_step_of_the_protocol_is_tried() -> None:
    steps = {step.split()[-1] for step in (*WORKER_STEPS, *CALLER_STEPS)}
    assert steps == {"claim", "renew", "record", "release", "handler", "submit", "wait"}


async def test_the_mutation_of_the_process_leaves_its_trace(tmp_path: Path) -> None:
    registry = operations(tmp_path / "runs")
    assert isinstance(registry, OperationRegistry)
    assert [spec.id for spec in registry.list()] == ["job.run"]
