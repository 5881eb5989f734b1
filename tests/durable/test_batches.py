"""Concurrent calls without a key that share a task: each has its own outcome, whatever happens to the others."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry
from opwire.durable import Claim, DurableCalls, DurableWorker, MemoryJournal, Outcome, Task
from opwire.durable import batches as batches_module
from opwire.protocol.batch import encode_batch
from opwire.protocol.events import CallFailed, encode_event
from tests.chaos.virtual_time import run_virtually
from tests.durable.samples import outcome, task

PUBLIC = AccessControl(public=True)
ANN = Context(identity=Identity(id="ann"))
COUNT = 20


class WatchedJournal(MemoryJournal):
    """Records the tasks that are submitted; fails to submit a number of them, before or after they are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task] = []
        self.lose: dict[str, int] = {"before": 0, "after": 0}
        self.limit = 1_000_000  # bytes of an outcome or request

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        self.tasks.append(task)
        if len(task.request) > self.limit:
            raise CallError("PAYLOAD_TOO_LARGE", "too large for this journal")
        if self.lose["before"]:
            self.lose["before"] -= 1
            raise CallError("UNAVAILABLE", "the journal is lost")
        if self.lose["after"]:
            self.lose["after"] -= 1
            await super().submit(task)
            raise CallError("UNAVAILABLE", "the journal is lost")
        return await super().submit(task, wait=wait)

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        if len(outcome.event) > self.limit:
            raise CallError("PAYLOAD_TOO_LARGE", "too large for this journal")
        return await super().record(claim, outcome)

    async def record_all(self, ended: Any) -> Any:
        if any(len(outcome.event) > self.limit for _, outcome in ended):
            return [CallError("PAYLOAD_TOO_LARGE", "too large for this journal")] * len(ended)
        return await super().record_all(ended)

    @property
    def batched(self) -> list[Task]:
        return [each for each in self.tasks if each.request.startswith(b"[")]


class Desk:
    """Operations that cannot suspend, and one that does; a run is noted with its key and attempt."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.runs: list[tuple[int, str, int]] = []
        self.contexts: dict[int, Context] = {}
        self.fail: dict[int, list[CallError | Exception]] = {}
        self.results: dict[int, Any] = {}
        self.registry.mutation("desk.stamp", access=PUBLIC)(self.stamp)
        self.registry.mutation("desk.post", access=PUBLIC)(self.post)

    async def stamp(self, number: int, context: Context) -> Any:
        self.runs.append((number, context.metadata["idempotency_key"], context.metadata["attempt"]))
        self.contexts[number] = context
        if self.fail.get(number):
            raise self.fail[number].pop(0)
        return self.results.get(number, number * 2)

    async def post(self, number: int, context: Context) -> int:
        self.runs.append((number, context.metadata["idempotency_key"], context.metadata["attempt"]))
        await asyncio.sleep(0.001)
        return number * 2

    @property
    def times(self) -> list[int]:
        """How often each number was run."""
        counted = Counter(number for number, *_ in self.runs)
        return [counted[number] for number in range(COUNT)]


async def calls(durable: DurableCalls, operation: str = "stamp", **options: Any) -> list[Any]:
    """Make concurrent calls; return data and errors."""
    coroutines = (durable.call(f"desk.{operation}", {"number": number}, **options) for number in range(COUNT))
    found = await asyncio.gather(*coroutines, return_exceptions=True)
    return [each if isinstance(each, BaseException) else each.data for each in found]


DOUBLES = [number * 2 for number in range(COUNT)]


def at_a_desk(
    run: Callable[[Desk, DurableCalls, WatchedJournal], Awaitable[None]], *, open_: bool = True, **options: Any
) -> None:
    """Run something in virtual time, with a worker unless the desk is closed."""

    async def scene() -> None:
        desk = Desk()
        async with WatchedJournal() as journal:
            if not open_:
                await run(desk, DurableCalls(journal), journal)
                return
            async with DurableWorker(desk.registry, journal, **options):
                await run(desk, DurableCalls(journal), journal)

    run_virtually(scene())


def test_concurrent_calls_share_a_task_and_each_gets_its_own_result() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        assert await calls(durable) == DOUBLES
        assert [len(journal.tasks), len(journal.batched)] == [2, 1]  # the first was alone when it was made
        assert desk.times == [1] * COUNT
        assert len({key for _, key, _ in desk.runs}) == COUNT
        assert {attempt for *_, attempt in desk.runs} == {1}
        (info,) = await durable.info()
        assert (info.waiting, info.claimed, info.buried) == (0, 0, 0)

    at_a_desk(run)


def test_calls_one_at_a_time_and_calls_with_keys_are_tasks_of_their_own() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        for number in range(3):
            await durable.call("desk.stamp", {"number": number})
        keyed = (durable.call("desk.stamp", {"number": number}, key=f"k{number}") for number in range(COUNT))
        await asyncio.gather(*keyed)
        await asyncio.gather(*(durable.submit("desk.stamp", {"number": number}) for number in range(COUNT)))
        assert journal.batched == []
        large = (durable.call("desk.post", {"number": number, "note": "x" * 2_000}) for number in range(3))
        await asyncio.gather(*large, return_exceptions=True)
        assert journal.batched == []

    at_a_desk(run)


def test_a_handler_in_a_batch_knows_its_key_and_its_caller() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        contexts = [Context(identity=Identity(id=f"caller {number % 3}")) for number in range(COUNT)]
        await asyncio.gather(
            *(durable.call("desk.stamp", {"number": number}, context=contexts[number]) for number in range(COUNT))
        )
        for number, key, _ in desk.runs:
            context = desk.contexts[number]
            assert context.identity == contexts[number].identity
            assert context.request_id == key == context.metadata["idempotency_key"]
        assert len(journal.batched) > 3
        fingerprints = {each.fingerprint for each in journal.batched}
        assert len(fingerprints) == 3, "a task is that of one caller"

    at_a_desk(run)


def test_calls_of_a_handler_that_suspends_become_tasks_and_later_ones_are_not_batched() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        assert await calls(durable, "post") == DOUBLES
        assert (len(journal.batched), desk.times) == (1, [1] * COUNT)
        assert await calls(durable, "post") == DOUBLES
        assert (len(journal.batched), desk.times) == (1, [2] * COUNT)
        await asyncio.sleep(61)
        assert await calls(durable, "post") == DOUBLES
        assert (len(journal.batched), desk.times) == (2, [3] * COUNT)

    at_a_desk(run)


def test_the_first_batch_of_an_operation_is_tried_alone() -> None:
    async def run(_: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        waiting = [asyncio.create_task(calls(durable, "post")) for _ in range(5)]
        await asyncio.gather(*waiting)
        assert len(journal.batched) == 1

    at_a_desk(run)


def test_an_error_in_a_batch_is_that_of_its_call_alone() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        desk.fail = {3: [CallError("ACCESS_DENIED", "not you", {"who": 1})], 5: [ZeroDivisionError()]}
        found = await calls(durable)
        assert [each for number, each in enumerate(found) if number not in (3, 5)] == [
            each for number, each in enumerate(DOUBLES) if number not in (3, 5)
        ]
        assert (found[3].code, found[3].message, found[3].details) == ("ACCESS_DENIED", "not you", {"who": 1})
        assert (found[5].code, desk.times) == ("EXECUTION_ERROR", [1] * COUNT)
        assert len(journal.tasks) == 2

    at_a_desk(run)


def test_a_call_that_fails_in_a_batch_is_retried_by_itself_and_no_earlier_than_the_error_says() -> None:
    async def run(desk: Desk, durable: DurableCalls, _: WatchedJournal) -> None:
        desk.fail = {7: [CallError("UNAVAILABLE", "later", retry_after=5), CallError("UNAVAILABLE", "again")]}
        begun = asyncio.get_running_loop().time()
        found = await calls(durable)
        assert (found, asyncio.get_running_loop().time() - begun >= 5) == (DOUBLES, True)
        assert desk.times == [3 if number == 7 else 1 for number in range(COUNT)]
        runs = [(key, attempt) for number, key, attempt in desk.runs if number == 7]
        assert [attempt for _, attempt in runs] == [1, 2, 3]
        assert len({key for key, _ in runs}) == 1

    at_a_desk(run)


@pytest.mark.parametrize("allowed", [1, 2, 3])
def test_a_call_of_a_batch_is_buried_after_exactly_the_allowed_runs_and_can_be_replayed(allowed: int) -> None:
    async def run(desk: Desk, durable: DurableCalls, _: WatchedJournal) -> None:
        desk.fail = {7: [CallError("UNAVAILABLE", "later")] * allowed}
        found = await calls(durable)
        assert (found[7].code, found[7].retryable) == ("UNAVAILABLE", False)
        assert desk.times == [allowed if number == 7 else 1 for number in range(COUNT)]
        (buried,) = [each async for each in durable.buried()]
        assert buried.attempts == allowed
        assert await durable.replay(buried.key)
        envelope = await durable.outcome(buried.key, timeout=60)
        assert envelope is not None
        assert envelope.data == 14

    at_a_desk(run, max_attempts=allowed)


def test_a_large_result_in_a_batch_is_recorded_by_itself_and_its_call_is_not_run_again() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        desk.results = dict.fromkeys((3, 4), "x" * 900_000)
        found = await calls(durable)
        assert found == [desk.results.get(number, number * 2) for number in range(COUNT)]
        assert desk.times == [1] * COUNT
        assert len([each for each in journal.tasks if len(each.request) > 900_000]) == 2

    at_a_desk(run)


def test_an_outcome_that_is_too_large_for_the_journal_is_recorded_call_by_call() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        await durable.call("desk.stamp", {"number": 0})
        desk.results, journal.limit = dict.fromkeys(range(COUNT), "x" * 500), 4_000
        assert await calls(durable) == ["x" * 500] * COUNT
        assert len(journal.batched) == 1
        assert desk.times == [2, *[1] * (COUNT - 1)]

    at_a_desk(run)


def test_a_batch_that_is_too_large_for_the_journal_is_submitted_call_by_call() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        journal.limit = 1_000
        assert await calls(durable) == DOUBLES
        assert (len(journal.batched), desk.times) == (1, [1] * COUNT)

    at_a_desk(run)


@pytest.mark.parametrize("keys", [True, False])
def test_slow_handlers_leave_turns_to_the_event_loop(keys: bool) -> None:
    async def scene() -> None:
        registry, turns, runs = OperationRegistry(), 0, list[int]()

        @registry.mutation("desk.stamp", access=PUBLIC)
        async def stamp(number: int) -> int:
            runs.append(turns)
            time.sleep(0.015)
            return number * 2

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with WatchedJournal() as journal:
            durable = DurableCalls(journal)
            own = [f"key {number}" if keys else None for number in range(COUNT)]
            calling = [
                asyncio.create_task(durable.call("desk.stamp", {"number": number}, timeout=60, key=key))
                for number, key in enumerate(own)
            ]
            await asyncio.sleep(0.01)
            counting = asyncio.create_task(count_turns())
            async with DurableWorker(registry, journal, concurrency=COUNT):
                assert [(await each).data for each in calling] == DOUBLES
            counting.cancel()
            assert len(journal.batched) == (not keys)
            assert max(Counter(runs).values()) <= 4  # of 20 ms, twice in a turn

    asyncio.run(scene())


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_the_calls_of_a_batch_that_lost_its_worker_become_tasks() -> None:
    """A submitted mutation is run at least once, across crashes of any process."""

    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        waiting = asyncio.create_task(calls(durable, timeout=300))
        lost: list[Claim] = []
        while len(lost) < 2:
            lost += await journal.claim(["desk.stamp"], lease=1, wait=1, limit=10)
        await asyncio.sleep(2)
        async with DurableWorker(desk.registry, journal):
            assert await waiting == DOUBLES
        assert desk.times == [1] * COUNT
        for each in lost:  # the lost worker returns, and its results are late
            other = outcome(each, "another")
            recorded = await journal.record(each, other)
            assert recorded is not None
            assert recorded != other
        (info,) = await durable.info()
        assert (info.waiting, info.claimed, info.buried) == (0, 0, 0)

    at_a_desk(run, open_=False)


def test_the_outcome_of_a_worker_that_lost_a_batch_counts_if_it_is_the_first() -> None:
    async def run(_: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        waiting = asyncio.create_task(calls(durable, timeout=300))
        (first,) = await journal.claim(["desk.stamp"], lease=1, wait=1)
        (batch,) = await journal.claim(["desk.stamp"], lease=1, wait=1)
        await asyncio.sleep(2)
        for each in (first, batch):
            failed = CallFailed.of("", CallError("EXECUTION_ERROR", "recorded late", retryable=False))
            late = Outcome(
                key=each.task.key, operation_id="desk.stamp", event=encode_event(failed), attempts=1, recorded=1
            )
            await journal.record(each, late)
        assert {each.message for each in await waiting} == {"recorded late"}  # a single event is that of each call

    at_a_desk(run, open_=False)


@pytest.mark.parametrize("request_", [b"[", b"[1]", b'[["0",{}]]', b'[["77",{"type":"call.requested"}]]'])
def test_a_batch_that_cannot_be_decoded_is_buried(request_: bytes) -> None:
    async def run(_: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        broken = Task(key="k", operation_id="desk.stamp", request=request_, fingerprint="f", submitted=1)
        found = await journal.submit(broken, wait=30)
        assert found is not None
        assert found.buried
        assert await durable.info()

    at_a_desk(run)


def test_a_result_that_cannot_be_decoded_buries_its_task() -> None:
    async def run(desk: Desk, _: DurableCalls, journal: WatchedJournal) -> None:
        plain = task("k", "desk.stamp", {"number": 1})
        broken = Task(
            key="k", operation_id="desk.stamp", request=plain.request + b"\x1e{}", fingerprint="f", submitted=1
        )
        found = await journal.submit(broken, wait=30)
        assert found is not None
        assert (found.buried, desk.runs) == (True, [])

    at_a_desk(run)


def test_a_worker_that_cannot_submit_the_tasks_of_a_batch_insists() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        waiting = asyncio.create_task(calls(durable, "post", timeout=300))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        journal.lose["before"] = 30
        async with DurableWorker(desk.registry, journal):
            found = await waiting
        lost = [each for each in found if isinstance(each, CallError)]
        assert {each.code for each in lost} <= {"UNAVAILABLE"}
        for error in lost:  # callers that met the outage ask again
            assert "key" in error.details
        assert max(desk.times) == 1

    at_a_desk(run, open_=False)


# --- repeated calls ---------------------------------------------------------------------------------------------------


async def keys_of_lost_calls(durable: DurableCalls, code: str, **options: Any) -> list[str]:
    found = await calls(durable, **options)
    assert {each.code for each in found} == {code}
    return [each.details["key"] for each in found]


def test_a_call_of_a_batch_that_has_timed_out_can_be_asked_for_by_its_key() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        keys = await keys_of_lost_calls(durable, "TIMEOUT", timeout=1)
        assert len(set(keys)) == COUNT
        assert [await durable.outcome(key) for key in keys] == [None] * COUNT
        assert await durable.outcome(keys[1], timeout=1) is None
        again = [
            asyncio.create_task(durable.call("desk.stamp", {"number": number}, key=key, timeout=100))
            for number, key in enumerate(keys)
        ]
        asked = [asyncio.create_task(durable.outcome(key, timeout=100)) for key in keys]
        async with DurableWorker(desk.registry, journal):
            assert [(await each).data for each in again] == DOUBLES
            found = [await each for each in asked]
        assert [None if each is None else each.data for each in found] == DOUBLES
        known = [await durable.outcome(key) for key in keys]
        assert [None if each is None else each.data for each in known] == DOUBLES
        assert desk.times == [1] * COUNT

    at_a_desk(run, open_=False)


@pytest.mark.parametrize("when", ["before", "after"])
def test_calls_of_a_batch_whose_submission_was_lost_are_repeated_and_run_once(when: str) -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        first = asyncio.create_task(durable.call("desk.stamp", {"number": 0}, key="first"))
        await asyncio.sleep(0)
        journal.lose[when] = 1
        keys = await keys_of_lost_calls(durable, "UNAVAILABLE")
        again = [
            asyncio.create_task(durable.call("desk.stamp", {"number": number}, key=key, timeout=100))
            for number, key in enumerate(keys)
        ]
        await asyncio.sleep(0)
        await journal.submit(journal.batched[0])  # arrives after all
        async with DurableWorker(desk.registry, journal):
            await first
            assert [(await each).data for each in again] == DOUBLES
            for number, key in enumerate(keys):
                assert (await durable.call("desk.stamp", {"number": number}, key=key)).data == number * 2
                known = await durable.outcome(key)
                assert known is not None
                assert known.data == number * 2
        assert desk.times == [2, *[1] * (COUNT - 1)]

    at_a_desk(run, open_=False)


def test_the_key_of_a_call_in_a_batch_stands_for_that_call() -> None:
    async def run(_: Desk, durable: DurableCalls, __: WatchedJournal) -> None:
        keys = await keys_of_lost_calls(durable, "TIMEOUT", timeout=1, context=ANN)
        for operation_id, input, context in [
            ("desk.post", {"number": 1}, ANN),
            ("desk.stamp", {"number": 2}, ANN),
            ("desk.stamp", {"number": 1}, Context(identity=Identity(id="bob"))),
            ("desk.stamp", {"number": 1}, None),
        ]:
            with pytest.raises(CallError, match="belongs to another call"):
                await durable.call(operation_id, input, context=context, key=keys[1])
            with pytest.raises(CallError, match="belongs to another call"):  # as the handler knows it
                await durable.call("desk.post", input, context=context, key=keys[1].rpartition("-")[0])
        with pytest.raises(CallError, match="repeat it by `call`"):
            await durable.submit("desk.stamp", {"number": 1}, key=keys[1])

    at_a_desk(run, open_=False)


def test_a_call_in_a_batch_cannot_be_cancelled_or_purged_by_itself() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        keys = await keys_of_lost_calls(durable, "TIMEOUT", timeout=1)
        assert await durable.cancel("desk.stamp", keys[0]) is True  # it was alone
        assert [await durable.cancel("desk.stamp", key) for key in keys[1:]] == [False] * (COUNT - 1)
        async with DurableWorker(desk.registry, journal):
            found = [await durable.outcome(key, timeout=10) for key in keys[1:]]
        assert [None if each is None else each.data for each in found] == DOUBLES[1:]
        assert [await durable.purge(key) for key in keys[1:]] == [False] * (COUNT - 1)

    at_a_desk(run, open_=False)


def test_each_call_of_a_batch_has_its_own_deadline() -> None:
    async def run(desk: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        loop, ended = asyncio.get_running_loop(), list[float]()
        begun = loop.time()

        async def call(number: int) -> None:
            with pytest.raises(CallError, match="has no outcome after"):
                await durable.call("desk.stamp", {"number": number}, timeout=number + 1)
            ended.append(loop.time() - begun)

        calling = [asyncio.create_task(call(number)) for number in range(5)]
        cancelled = asyncio.create_task(durable.call("desk.stamp", {"number": 9}, timeout=50))
        await asyncio.sleep(0.5)
        cancelled.cancel()
        await asyncio.gather(*calling)
        assert [round(each) for each in ended] == [1, 2, 3, 4, 5]
        assert len(journal.batched) == 1
        async with DurableWorker(desk.registry, journal):
            await asyncio.sleep(1)
        assert desk.times[:5] == [1] * 5

    at_a_desk(run, open_=False)


def test_the_calls_of_many_operations_do_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "_OPERATIONS", 10)

    async def run(_: Desk, durable: DurableCalls, __: WatchedJournal) -> None:
        calling = [durable.call(f"desk.nr{number}", {}, timeout=0.1) for number in range(50)]
        found = await asyncio.gather(*calling, return_exceptions=True)
        assert {getattr(each, "code", None) for each in found} == {"TIMEOUT"}
        assert len(durable._batches._operations) == 10

    at_a_desk(run, open_=False)


@given(st.binary(max_size=60) | st.sampled_from([encode_batch([]), encode_batch([("0", b"{}")]), b'[["0",null]]']))
def test_an_outcome_of_another_program_is_an_error_and_leaves_no_call_waiting(event: bytes) -> None:
    async def run(_: Desk, durable: DurableCalls, journal: WatchedJournal) -> None:
        waiting = asyncio.create_task(calls(durable, timeout=5))
        (first,) = await journal.claim(["desk.stamp"], lease=100, wait=1)
        (batch,) = await journal.claim(["desk.stamp"], lease=100, wait=1)
        for each in (first, batch):
            other = Outcome(key=each.task.key, operation_id="desk.stamp", event=event, attempts=1, recorded=1)
            await journal.record(each, other)
        codes = {each.code for each in await waiting}
        assert codes <= {"PROTOCOL_ERROR", "TIMEOUT", "PAYLOAD_TOO_LARGE"}

    at_a_desk(run, open_=False)
