"""The contract of transports: every one that is shipped passes it, and yours can be tested with it too.

    @pytest.mark.parametrize("promise", TRANSPORT_CONTRACT)
    async def test_my_transport(promise: str) -> None:
        await TRANSPORT_CONTRACT[promise](lambda: MyTransport(url))

A check makes ends of the medium, lets them talk, and closes them. It waits a few seconds for what has to happen, and
never for what must not.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

from opwire.testing import contract_calls as calls
from opwire.testing import contract_events as events
from opwire.testing.scene import Connect, Scene

Check = Callable[[Connect], Awaitable[None]]
LimitCheck = Callable[[Connect, int], Awaitable[None]]


async def _keep(promise: str, check: Callable[..., Awaitable[None]], connect: Connect, *limit: int) -> None:
    """Run one check; whatever it raises is a broken promise."""
    try:
        async with Scene(connect) as scene:
            await check(scene, *limit)
    except Exception as error:
        raise AssertionError(f"broken promise: {promise}: {error!r}") from error


def _named(checks: Mapping[str, Callable[..., Awaitable[None]]]) -> Mapping[str, Callable[..., Awaitable[None]]]:
    return MappingProxyType({promise: partial(_keep, promise, check) for promise, check in checks.items()})


TRANSPORT_CONTRACT: Mapping[str, Check] = _named(
    {
        "events arrive once, in the order in which they were sent": events.events_arrive_once_and_in_order,
        "two callers with the same request id see only their own answers": events.same_request_ids_do_not_meet,
        "data arrives as it was sent": events.data_arrives_as_it_was_sent,
        "every field of every event arrives as it was sent": events.fields_arrive_as_they_were_sent,
        "operations are reachable when announce returns": events.announced_operations_are_reachable_at_once,
        "operations are routed elsewhere when withdraw returns": events.withdrawn_operations_are_not_routed_here,
        "a closed end refuses to send, and can be closed again": events.a_closed_end_refuses,
        "a call is answered": calls.a_call_is_answered,
        "an error arrives with all its fields": calls.an_error_arrives_whole,
        "many calls at once are not mixed up": calls.many_calls_at_once_are_not_mixed_up,
        "the items of many subscriptions arrive in order": calls.items_arrive_in_order,
        "a slow consumer slows its producer, and nobody else": calls.a_slow_consumer_slows_its_producer,
        "leaving a subscription stops its producer": calls.leaving_a_subscription_stops_its_producer,
        "cancelling a caller stops its handler": calls.cancelling_a_caller_stops_its_handler,
        "deadlines travel with the call": calls.deadlines_travel,
        "several servers share the calls, and one that leaves gets no more": calls.servers_share_the_calls,
        "an end may call while it serves, even itself": calls.an_end_may_call_while_it_serves,
        "all who serve are found, and each can be asked": calls.all_who_serve_are_found,
        "a server that drains finishes what it has, and others get the rest": calls.draining_loses_no_call,
        "a call that nobody serves fails in time": calls.a_call_that_nobody_serves_fails_in_time,
        "closing a server ends the calls that it has in hand": calls.closing_a_server_ends_its_calls,
        "closing a caller stops its handlers, and no others": calls.closing_a_caller_stops_its_handlers,
        "events of unknown requests are ignored": calls.unknown_request_ids_are_ignored,
        "only the server that a call was routed to can answer it": calls.a_stranger_cannot_answer,
        "no task is left behind": calls.no_task_is_left_behind,
    }
)
"""What every transport promises: a sentence, and the check that raises AssertionError if it is not kept."""

LIMIT_CONTRACT: Mapping[str, LimitCheck] = _named(
    {
        "a message above the limit fails its own call alone": calls.too_large_messages_fail_alone,
        "a message just below the limit passes": calls.large_messages_below_the_limit_pass,
    }
)
"""What a transport promises that has a limit on the size of a message, in bytes."""


async def check_transport(connect: Connect, *, limit: int | None = None) -> None:
    """Check every promise of the contract, one after the other.

    `connect` makes a fresh end, not started, of always the same medium. `limit` is the size in bytes above which the
    transport refuses a message, if it has one.

    Raises:
        AssertionError: names the first promise that is broken.
    """
    for check in TRANSPORT_CONTRACT.values():
        await check(connect)
    if limit is not None:
        for sized in LIMIT_CONTRACT.values():
            await sized(connect, limit)
