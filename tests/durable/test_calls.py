"""The caller's side of durable calls: one key, one outcome, and errors that say how to ask again."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.durable import DurableCalls, DurableWorker, MemoryJournal, MemoryJournalState, Task
from opwire.durable.calls import MAX_NAME_CHARACTERS, fingerprint
from opwire.errors import UsageError
from opwire.protocol import CallRequested
from tests.chaos.virtual_time import run_virtually
from tests.durable.samples import Shop

TEA = {"article": "tea"}


def in_a_shop(run: Callable[[Shop, DurableCalls, MemoryJournal], Awaitable[None]], *, open_: bool = True) -> None:
    """Run something in virtual time, with a worker if the shop is open."""

    async def scene() -> None:
        shop = Shop()
        async with MemoryJournal() as journal:
            if not open_:
                await run(shop, DurableCalls(journal), journal)
                return
            async with DurableWorker(shop.registry, journal):
                await run(shop, DurableCalls(journal), journal)

    run_virtually(scene())


def test_a_call_gives_the_envelope_of_its_handler() -> None:
    async def run(shop: Shop, durable: DurableCalls, _: MemoryJournal) -> None:
        envelope = await durable.call("shop.order", TEA, key="order-17")
        assert (envelope.data, envelope.meta.source) == ("tea is ordered", "local")
        assert shop.contexts[0].metadata == {"idempotency_key": "order-17", "attempt": 1}

    in_a_shop(run)


def test_the_callers_trace_reaches_the_handler() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

    async def run(shop: Shop, durable: DurableCalls, _: MemoryJournal) -> None:
        await durable.call("shop.order", TEA, key="order-18", context=Context(metadata=trace))
        assert trace.items() <= shop.contexts[0].metadata.items()

    in_a_shop(run)


def test_a_second_call_with_the_same_key_runs_nothing_and_gets_the_same_outcome() -> None:
    async def run(shop: Shop, durable: DurableCalls, _: MemoryJournal) -> None:
        first = await durable.call("shop.order", TEA, key="order-17")
        assert await durable.call("shop.order", TEA, key="order-17") == first
        answers = await asyncio.gather(*(durable.call("shop.order", {"article": "oat"}, key="o") for _ in range(50)))
        assert answers == [answers[0]] * 50
        assert shop.runs == [("tea", 1), ("oat", 1)]

    in_a_shop(run)


def test_a_recorded_error_is_raised_to_duplicates_too() -> None:
    async def run(shop: Shop, durable: DurableCalls, journal: MemoryJournal) -> None:
        shop.failures = [CallError("ACCESS_DENIED", "not you", {"who": 1}, retry_after=3)]
        for _ in range(2):
            with pytest.raises(CallError) as caught:
                await durable.call("shop.order", TEA, key="order-17")
            error = caught.value
            assert (error.code, error.message, error.details) == ("ACCESS_DENIED", "not you", {"who": 1})
            assert error.retry_after == 3
        assert len(shop.runs) == 1

    in_a_shop(run)


def test_a_key_stands_for_one_operation_one_input_and_one_caller() -> None:
    async def run(_: Shop, durable: DurableCalls, __: MemoryJournal) -> None:
        ann, bob = (Context(identity=Identity(id=name)) for name in ("ann", "bob"))
        await durable.submit("shop.order", TEA, context=ann, key="order-17")
        others = [("shop.cancel", TEA, ann), ("shop.order", {"article": "oat"}, ann), ("shop.order", TEA, bob)]
        for operation_id, input, context in others:
            for ask in (durable.call, durable.submit):
                with pytest.raises(CallError, match="belongs to another call") as caught:
                    await ask(operation_id, input, context=context, key="order-17")
                assert caught.value.code == "VALIDATION_ERROR"

    in_a_shop(run)


def fingerprint_of(input: Any) -> str:
    return fingerprint(CallRequested(request_id="k", operation_id="shop.order", input=input))


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
OBJECTS = st.dictionaries(st.text(max_size=3), LEAVES | st.lists(LEAVES, max_size=3), max_size=4)


@given(OBJECTS, OBJECTS)
def test_the_order_of_keys_does_not_make_another_call(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    one = {**outer, "inner": inner}
    other = dict(reversed(({**outer, "inner": dict(reversed(inner.items()))}).items()))
    assert fingerprint_of(one) == fingerprint_of(other)


def test_what_is_the_same_on_the_wire_is_the_same_call() -> None:
    @dataclass
    class Line:
        article: str

    assert fingerprint_of(Line("tea")) == fingerprint_of(TEA)
    assert fingerprint_of({1: "a", "b": 2}) == fingerprint_of({"b": 2, "1": "a"})
    assert fingerprint_of({"tags": {"x", "y", "z"}}) == fingerprint_of({"tags": ["x", "y", "z"]})
    assert fingerprint_of([1]) != fingerprint_of([1.0]) != fingerprint_of([True])


def test_a_call_that_is_not_finished_in_time_goes_on_and_can_be_asked_for_again() -> None:
    async def run(shop: Shop, durable: DurableCalls, _: MemoryJournal) -> None:
        shop.gate = asyncio.Event()
        began = asyncio.get_running_loop().time()
        with pytest.raises(CallError, match="continues: retry with the same key") as caught:
            await durable.call("shop.order", TEA, timeout=3)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.02)
        assert (caught.value.code, caught.value.retryable) == ("TIMEOUT", True)
        shop.gate.set()
        key = caught.value.details["key"]
        assert (await durable.call("shop.order", TEA, key=key)).data == "tea is ordered"
        assert len(shop.runs) == 1

    in_a_shop(run)


def test_the_deadline_of_the_context_limits_the_waiting() -> None:
    async def run(_: Shop, durable: DurableCalls, __: MemoryJournal) -> None:
        loop = asyncio.get_running_loop()
        context = Context().within(2)
        with pytest.raises(CallError, match="TIMEOUT"):
            await durable.call("shop.order", TEA, context=context, timeout=30)
        assert loop.time() == pytest.approx(context.deadline, abs=0.02)
        with pytest.raises(CallError, match="before it was submitted"):
            await durable.call("shop.order", TEA, context=context, key="late")
        assert [info.waiting for info in await durable.info()] == [1]

    in_a_shop(run, open_=False)


class SilentJournal(MemoryJournal):
    """A journal whose engine never replies."""

    async def submit(self, task: Task, *, wait: float = 0.0) -> Any:
        await asyncio.Event().wait()

    async def wait(self, key: str, timeout: float) -> Any:
        await asyncio.Event().wait()

    async def outcome(self, key: str) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("seconds", "message", "ask"),
    [
        (2, "TIMEOUT: shop.order has no outcome", lambda durable: durable.call("shop.order", TEA, timeout=2)),
        (30, "UNAVAILABLE: .* did not return within 30 s", lambda durable: durable.submit("shop.order", TEA)),
        (30, "UNAVAILABLE: .* did not return within 30 s", lambda durable: durable.outcome("mine")),
    ],
)
def test_a_request_to_a_journal_that_never_returns_ends_in_time(
    seconds: int, message: str, ask: Callable[[DurableCalls], Awaitable[Any]]
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(CallError, match=message):
            await ask(DurableCalls(SilentJournal()))
        assert loop.time() - began == pytest.approx(seconds, abs=0.1)

    run_virtually(run())


def test_a_wait_for_an_outcome_ends_in_time_if_the_journal_never_returns() -> None:
    async def run() -> None:
        began = asyncio.get_running_loop().time()
        assert await DurableCalls(SilentJournal()).outcome("mine", timeout=3) is None
        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.1)

    run_virtually(run())


def test_an_unreachable_journal_is_unavailable_and_the_error_has_the_key() -> None:
    """A journal that cannot be reached is UNAVAILABLE, and asking again with the same key is safe."""

    async def run(shop: Shop, durable: DurableCalls, journal: MemoryJournal) -> None:
        shop.gate = asyncio.Event()
        waiting = asyncio.create_task(durable.call("shop.order", TEA))
        await asyncio.sleep(1)
        await journal.close()
        with pytest.raises(CallError) as caught:
            await waiting
        errors = [caught.value]
        for ask in (durable.call, durable.submit):
            with pytest.raises(CallError) as caught:
                await ask("shop.order", TEA, key="mine")
            errors.append(caught.value)
        for error in errors:
            assert (error.code, error.retryable) == ("UNAVAILABLE", True)
            assert "a retry with the same key is safe" in error.message
        assert [error.details["key"] for error in errors[1:]] == ["mine", "mine"]
        await journal.start()
        shop.gate.set()
        again = await durable.call("shop.order", TEA, key=errors[0].details["key"])
        assert again.data == "tea is ordered"
        assert {key for key, _ in shop.runs} == {"tea"}

    in_a_shop(run)


def test_a_task_that_is_not_known_to_be_stored_in_time_times_out_with_its_key() -> None:
    class Silent(MemoryJournal):
        async def submit(self, task: Task, *, wait: float = 0.0) -> None:
            await asyncio.sleep(wait)
            raise CallError("TIMEOUT", "it does not answer")

    async def run() -> None:
        with pytest.raises(CallError, match=r"TIMEOUT: shop\.order has no outcome after 2 s") as failure:
            await DurableCalls(Silent()).call("shop.order", TEA, key="k", timeout=2)
        assert failure.value.details == {"key": "k"}

    run_virtually(run())


def test_submit_does_not_wait_and_outcome_tells_later() -> None:
    async def run(shop: Shop, durable: DurableCalls, _: MemoryJournal) -> None:
        shop.gate = asyncio.Event()
        assert await durable.submit("shop.order", TEA, key="order-17") == "order-17"
        made_up = await durable.submit("shop.order", TEA)
        assert made_up not in ("", "order-17")
        assert await durable.outcome("order-17") is None
        assert await durable.outcome("order-17", timeout=1) is None
        assert await durable.outcome("unknown") is None
        shop.gate.set()
        for key in ("order-17", made_up):
            envelope = await durable.outcome(key, timeout=10)
            assert envelope is not None
            assert envelope.data == "tea is ordered"

    in_a_shop(run)


def test_the_data_of_an_outcome_is_of_the_type_that_is_asked_for() -> None:
    @dataclass
    class Receipt:
        number: int

    async def run() -> None:
        registry = OperationRegistry()
        registry.mutation("shop.order")(lambda: {"number": 17})
        async with MemoryJournal() as journal, DurableWorker(registry, journal):
            durable = DurableCalls(journal)
            assert (await durable.call("shop.order", key="k", output_type=Receipt)).data == Receipt(17)
            told = await durable.outcome("k", output_type=Receipt)
            assert told is not None
            assert told.data == Receipt(17)
            with pytest.raises(CallError, match="does not fit int"):
                await durable.call("shop.order", key="k", output_type=int)

    asyncio.run(run())


def test_what_no_worker_has_begun_can_be_cancelled_and_never_runs() -> None:
    async def run(shop: Shop, durable: DurableCalls, journal: MemoryJournal) -> None:
        waiting = asyncio.create_task(durable.call("shop.order", TEA, key="one", timeout=100))
        await asyncio.sleep(0.1)
        assert not await durable.cancel("shop.cancel", "one")
        assert await durable.cancel("shop.order", "one")
        assert await durable.cancel("shop.order", "one")
        for asked in (waiting, durable.call("shop.order", TEA, key="one"), durable.outcome("one")):
            with pytest.raises(CallError, match=r"ABORTED: shop\.order was cancelled before it began") as caught:
                await asked
            assert not caught.value.retryable
        assert not await durable.cancel("shop.order", "unknown")
        async with DurableWorker(shop.registry, journal):
            await durable.call("shop.order", {"article": "oat"}, key="two")
            assert not await durable.cancel("shop.order", "two")
        assert shop.runs == [("oat", 1)]
        assert [(info.waiting, info.claimed, info.dead_letters) for info in await durable.info()] == [(0, 0, 0)]

    in_a_shop(run, open_=False)


def test_what_failed_and_waits_for_its_next_attempt_can_be_cancelled() -> None:
    async def run(shop: Shop, durable: DurableCalls, _: MemoryJournal) -> None:
        shop.failures = [CallError("UNAVAILABLE", "closed")]
        await durable.submit("shop.order", TEA, key="one")
        await asyncio.sleep(0.1)
        assert len(shop.runs) == 1
        assert await durable.cancel("shop.order", "one")  # it has failed, and waits for its next attempt
        with pytest.raises(CallError, match="ABORTED"):
            await durable.outcome("one", timeout=1000)
        assert len(shop.runs) == 1

    in_a_shop(run)


def test_what_was_given_up_can_be_looked_at_replayed_and_purged() -> None:
    async def run(shop: Shop, durable: DurableCalls, _: MemoryJournal) -> None:
        shop.failures = [CallError("UNAVAILABLE", "closed") for _ in range(10)]
        for key in ("one", "two"):
            with pytest.raises(CallError, match="closed"):
                await durable.call("shop.order", TEA, key=key, timeout=1000)
        dead_letter = [outcome async for outcome in durable.dead_letters()]
        assert sorted((each.key, each.attempts) for each in dead_letter) == [("one", 5), ("two", 5)]
        assert str(dead_letter[0].read().error()) == "UNAVAILABLE: closed"  # pyright: ignore[reportAttributeAccessIssue]
        assert [info.dead_letters for info in await durable.info()] == [2]
        assert await durable.replay("one")
        assert (await durable.call("shop.order", TEA, key="one")).data == "tea is ordered"
        assert await durable.purge("two")
        assert await durable.outcome("two") is None
        assert [each async for each in durable.dead_letters("shop.order")] == []
        assert not await durable.replay("two")
        assert not await durable.purge("two")

    in_a_shop(run)


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARACTERS + 1), "\ud800"])
async def test_keys_and_operations_that_no_engine_can_carry_are_refused(name: str) -> None:
    async with MemoryJournal(MemoryJournalState()) as journal:
        durable = DurableCalls(journal)
        for operation_id, key in (("shop.order", name), (name, "k")):
            with pytest.raises(CallError, match="VALIDATION_ERROR"):
                await durable.submit(operation_id, key=key)
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await durable.submit("shop.order", object())
        assert await durable.info() == []


async def test_a_timeout_that_is_not_a_number_is_refused_before_anything_is_submitted() -> None:
    async with MemoryJournal() as journal:
        durable = DurableCalls(journal)
        for waiting in (durable.call("shop.order", timeout=float("nan")), durable.outcome("k", timeout=float("nan"))):
            with pytest.raises(UsageError, match="timeout is a number"):
                await waiting
        assert await journal.info() == []
