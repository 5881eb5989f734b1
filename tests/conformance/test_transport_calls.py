"""What the checks of calls say when they fail, so that the author of a transport finds the place."""

import pytest

from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire_conformance import transport_calls as calls
from opwire_conformance.harness import TransportHarness
from tests.chaos.virtual_time import run_virtually
from tests.conformance import broken


def complaint(check: object, kind: type[MemoryTransport], *limit: int) -> str:
    bus = MemoryBus(codec=True, max_message=broken.LIMIT)

    async def run() -> None:
        async with TransportHarness(lambda: kind(bus)) as harness:
            await check(harness, *limit)  # pyright: ignore

    with pytest.raises(AssertionError) as failure:
        run_virtually(run())
    return str(failure.value)


@pytest.mark.parametrize(
    ("check", "kind", "said"),
    [
        (calls.a_call_is_answered, broken.NeverAnswers, "after 20 s: the call is answered"),
        (calls.an_error_arrives_whole, broken.ForgetsFields, "arrived as (<ErrorCode.RATE_LIMITED"),
        (calls.progress_arrives_before_the_outcome, broken.ForgetsFields, "the reports were []"),
        (calls.many_calls_at_once_are_not_mixed_up, broken.SwapsReplies, "answers went to other calls"),
        (calls.a_slow_consumer_slows_its_producer, broken.InflatesCredits, "the window is 8"),
        (calls.leaving_a_subscription_stops_its_producer, broken.SwallowsAborts, "the producer is stopped"),
        (calls.cancelling_a_caller_stops_its_handler, broken.SwallowsAborts, "the handler is stopped"),
        (calls.deadlines_travel, broken.ForgetsFields, "of 0.5 s the handler had"),
        (calls.servers_share_the_calls, broken.AsksAlwaysTheSame, "only the servers [0] got calls"),
        (calls.servers_share_the_calls, broken.AsksEverybody, "60 calls were served"),
        (calls.an_end_may_call_while_it_serves, broken.OneAtATime, "after 20 s: the nested calls are answered"),
        (calls.closing_a_server_ends_its_calls, broken.HidesLosses, "after 20 s: the call ends"),
        (calls.closing_a_caller_stops_its_handlers, broken.HidesLosses, "after 20 s: the handlers are stopped"),
        (calls.a_stranger_cannot_answer, broken.BelievesTheSender, "the answer was forged"),
        (calls.no_task_is_left_behind, broken.LeaksTasks, "2 tasks are left behind"),
    ],
)
def test_a_check_says_what_it_saw(check: object, kind: type[MemoryTransport], said: str) -> None:
    assert said in complaint(check, kind)


def test_the_checks_of_the_limit_say_what_they_saw() -> None:
    """The sender checks the size of a message; one above the limit fails its own call alone."""
    limit = broken.LIMIT
    assert "['UNAVAILABLE'" in complaint(calls.too_large_messages_fail_alone, broken.ClosesAboveTheLimit, limit)
    assert "PAYLOAD_TOO_LARGE" not in complaint(calls.too_large_messages_fail_alone, broken.HasNoLimit, limit)
