"""One attempt at a task: what is an outcome, what is tried again, what is given up."""

import asyncio
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.durable import Outcome
from opwire.durable.attempt import MAX_DELAY_SECONDS, AttemptPolicy, Retry, TaskRunner
from opwire.errors import ERROR_TABLE, ErrorCode
from opwire.protocol import LOCAL_IDENTITY, CallFailed, CallRequested, CallResponded, encode_event
from tests.durable.samples import Shop, claim, task

TEA = task(input={"article": "tea"})
ANN = Identity(id="ann")


def attempts(shop: Shop, **options: Any) -> TaskRunner:
    patience = AttemptPolicy(max_attempts=3, back_off=2, max_back_off=60)
    return TaskRunner(shop.registry, patience, **{"anonymous": LOCAL_IDENTITY, "trusted": True} | options)


def failed(result: object) -> CallFailed:
    assert isinstance(result, Outcome)
    event = result.read()
    assert isinstance(event, CallFailed)
    return event


async def test_an_envelope_is_an_outcome() -> None:
    result = await attempts(Shop()).run(claim(TEA, attempt=2))
    assert isinstance(result, Outcome)
    assert (result.key, result.operation_id, result.attempts, result.dead_letter) == ("k", "shop.order", 2, False)
    event = result.read()
    assert isinstance(event, CallResponded)
    assert (event.request_id, event.output.data) == ("k", "tea is ordered")


async def test_the_handler_knows_key_attempt_identity_and_parent() -> None:
    shop = Shop()
    event = CallRequested(
        request_id="k", operation_id="shop.order", input={"article": "tea"}, parent_request_id="p", identity=ANN
    )
    await attempts(shop).run(claim(replace(TEA, request=encode_event(event)), attempt=2))
    (context,) = shop.contexts
    assert (context.request_id, context.parent_request_id, context.identity) == ("k", "p", ANN)
    assert context.metadata == {"idempotency_key": "k", "attempt": 2}
    assert context.deadline is None


@pytest.mark.parametrize("code", ErrorCode)
async def test_the_error_table_says_what_is_tried_again(code: ErrorCode) -> None:
    shop = Shop()
    shop.failures = [CallError(code, "no")]
    result = await attempts(shop).run(claim(TEA))
    if ERROR_TABLE[code].retryable:
        assert isinstance(result, Retry)
        assert result.error.code is code
    else:
        assert (failed(result).code, getattr(result, "dead_letter", None)) == (code, False)


@pytest.mark.parametrize(("code", "retryable"), [("TIMEOUT", False), ("EXECUTION_ERROR", True)])
async def test_an_error_may_say_otherwise(code: str, retryable: bool) -> None:
    shop = Shop()
    shop.failures = [CallError(code, "no", retryable=retryable)]
    assert isinstance(await attempts(shop).run(claim(TEA)), Retry) is retryable


async def test_an_unforeseen_exception_is_an_outcome_that_tells_no_secret() -> None:
    shop = Shop()
    shop.failures = [ValueError("the password is 1234")]
    event = failed(await attempts(shop).run(claim(TEA)))
    assert event.code == "EXECUTION_ERROR"
    assert "1234" not in event.message


async def test_the_last_attempt_buries_with_its_error_which_is_not_to_be_retried() -> None:
    shop = Shop()
    shop.failures = [CallError("UNAVAILABLE", "the warehouse is closed", {"until": 9})]
    result = await attempts(shop).run(claim(TEA, attempt=3, failures=2))
    event = failed(result)
    assert (event.code, event.message, event.details) == ("UNAVAILABLE", "the warehouse is closed", {"until": 9})
    assert isinstance(result, Outcome)
    assert (result.dead_letter, result.attempts, event.retryable) == (True, 3, False)


async def test_a_task_that_was_lost_too_often_becomes_a_dead_letter_without_running() -> None:
    shop = Shop()
    result = await attempts(shop).run(claim(TEA, attempt=4, losses=3, lone_losses=2))
    event = failed(result)
    assert shop.runs == []
    assert isinstance(result, Outcome)
    assert (result.dead_letter, result.attempts, event.code) == (True, 3, "EXECUTION_ERROR")
    assert "its worker was lost in the last of 3 attempts, 2 of them alone" in event.message


@pytest.mark.parametrize(
    "past",
    [
        {"attempt": 1000, "losses": 999, "lone_losses": 0},
        {"attempt": 1000, "losses": 999, "lone_losses": 1},
        {"attempt": 3, "losses": 2, "lone_losses": 2, "failures": 2},
        {"attempt": 1000},  # it was released when its workers closed
    ],
)
async def test_a_task_that_was_lost_with_others_or_given_back_is_run_however_often(past: dict[str, int]) -> None:
    shop = Shop()
    result = await attempts(shop).run(claim(TEA, **past))
    assert isinstance(result, Outcome)
    assert (result.dead_letter, len(shop.runs)) == (False, 1)


async def test_one_attempt_is_enough_for_no_task_that_was_lost_once() -> None:
    shop = Shop()
    once = TaskRunner(shop.registry, AttemptPolicy(max_attempts=1), anonymous=LOCAL_IDENTITY, trusted=True)
    await once.run(claim(TEA, attempt=2, losses=1, suspect=True))
    assert len(shop.runs) == 1
    result = await once.run(claim(TEA, attempt=3, losses=2, lone_losses=1, suspect=True))
    assert isinstance(result, Outcome)
    assert (result.dead_letter, len(shop.runs)) == (True, 1)


async def test_losses_are_not_failures() -> None:
    shop = Shop()
    shop.failures = [CallError("UNAVAILABLE")]
    assert isinstance(await attempts(shop).run(claim(TEA, attempt=9, losses=8, failures=0)), Retry)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\xff\x00",
        b'{"type": "call.aborted", "requestId": "k"}',
        b"[" * 60_000,
        b'{"type": "call.requested", "requestId": "k", "operationId": "shop.order", "input": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "binary", "of another kind", "deep", "a long number"],
)
async def test_a_task_that_cannot_be_read_becomes_a_dead_letter_at_once(request_: bytes) -> None:
    shop = Shop()
    result = await attempts(shop).run(claim(replace(TEA, request=request_)))
    assert shop.runs == []
    assert isinstance(result, Outcome)
    assert (result.dead_letter, failed(result).code) == (True, "PROTOCOL_ERROR")


@pytest.mark.parametrize(
    ("stated", "worker", "trusted", "code"),
    [
        (None, None, True, "UNAUTHENTICATED"),
        (ANN, None, True, None),
        (ANN, None, False, "UNAUTHENTICATED"),  # any peer could have written that
        (ANN, LOCAL_IDENTITY, False, None),
        (None, ANN, False, None),
    ],
)
async def test_access_is_checked(
    stated: Identity | None, worker: Identity | None, trusted: bool, code: str | None
) -> None:
    seen: list[Identity | None] = []
    registry = OperationRegistry()

    @registry.mutation("shop.order")
    async def order(context: Context) -> None:
        seen.append(context.identity)

    request = encode_event(CallRequested(request_id="k", operation_id="shop.order", identity=stated))
    runner = TaskRunner(registry, AttemptPolicy(), anonymous=worker, trusted=trusted)
    result = await runner.run(claim(replace(TEA, request=request)))
    if code is None:
        assert seen == [stated if trusted and stated else worker]
    else:
        assert (failed(result).code, seen) == (code, [])


async def test_input_that_is_not_valid_is_an_outcome() -> None:
    assert failed(await attempts(Shop()).run(claim(task(input={"article": 5})))).code == "VALIDATION_ERROR"


async def test_an_operation_that_has_left_the_registry_is_for_another_worker() -> None:
    shop = Shop()
    shop.registry.unregister("shop.order")
    result = await attempts(shop).run(claim(TEA))
    assert isinstance(result, Retry)
    assert not result.failed
    assert "does not serve shop.order any more" in result.error.message


async def test_answers_and_errors_that_are_too_large_are_outcomes_that_say_so() -> None:
    shop = Shop()
    large = "x" * 2_000_000
    shop.failures = [CallError("ACCESS_DENIED", large, {"why": large})]
    event = failed(await attempts(shop).run(claim(TEA)))
    assert (event.code, len(event.message), event.details) == ("ACCESS_DENIED", 200, None)
    registry = OperationRegistry()
    registry.mutation("shop.order")(lambda: large)
    runner = TaskRunner(registry, AttemptPolicy(), anonymous=LOCAL_IDENTITY, trusted=True)
    assert failed(await runner.run(claim(task(input={})))).code == "PAYLOAD_TOO_LARGE"


async def test_cancelling_an_attempt_ends_it() -> None:
    shop = Shop()
    shop.gate = asyncio.Event()
    running = asyncio.create_task(attempts(shop).run(claim(TEA)))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert shop.stopped == 1


@given(
    attempt=st.integers(1, 2000),
    first=st.floats(0.01, 10),
    most=st.floats(10, 1000),
    asked=st.none() | st.floats(0, 50),
)
def test_the_delay_grows_up_to_its_limit_and_is_at_least_that_of_the_error(
    attempt: int, first: float, most: float, asked: float | None
) -> None:
    patience = AttemptPolicy(max_attempts=9, back_off=first, max_back_off=most)
    delay = patience.delay(attempt, CallError("UNAVAILABLE", retry_after=asked))
    longest = min(most, first * 2 ** min(attempt - 1, 40))
    assert max(longest / 2, asked or 0) <= delay <= max(longest, asked or 0)


NUMBERS = [inf, -inf, nan, 10**400, -(10**400), 1e308, -1, "soon", [], True]


@pytest.mark.parametrize("asked", NUMBERS, ids=lambda value: f"{value!r:.12}")
@pytest.mark.parametrize("retryable", [True, False])
async def test_any_delay_that_an_error_requests_is_bounded_and_the_outcome_is_recorded(
    asked: Any, retryable: bool
) -> None:
    shop = Shop()
    shop.failures = [CallError("RATE_LIMITED", "later", retryable=retryable, retry_after=asked)]
    result = await attempts(shop).run(claim(TEA))
    if retryable:
        assert isinstance(result, Retry)
        assert 1 <= result.delay <= MAX_DELAY_SECONDS
    else:
        assert failed(result).code == "RATE_LIMITED"


@pytest.mark.parametrize("attempt", [1, 10**6, 2**64, 10**400], ids=lambda value: f"{value!r:.9}")
def test_however_often_a_task_was_tried_the_delay_is_bounded(attempt: int) -> None:
    assert 30 <= AttemptPolicy(max_back_off=60).delay(attempt) <= 60 or attempt == 1
    assert AttemptPolicy(back_off=1e308, max_back_off=1e308).delay(attempt) <= MAX_DELAY_SECONDS


async def test_an_error_with_details_without_a_json_form_is_an_outcome_without_them() -> None:
    shop = Shop()
    loop: list[Any] = []
    loop.append(loop)
    for details in ({"why": object()}, loop, 10**400, nan):
        shop.failures = [CallError("ACCESS_DENIED", "no", details)]
        event = failed(await attempts(shop).run(claim(TEA)))
        assert (event.code, event.message) == ("ACCESS_DENIED", "no")
