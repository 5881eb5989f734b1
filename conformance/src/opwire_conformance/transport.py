"""The contract suite of transports.

    @pytest.mark.parametrize("promise", TRANSPORT_CONTRACT)
    async def test_my_transport(promise: str) -> None:
        await TRANSPORT_CONTRACT[promise](lambda: MyTransport(url))

Each check connects ends of the transport, exchanges events, and closes them. It waits for expected events with a
timeout of a few seconds, and never for absent ones. The checks here look at bare events; `contract_calls` has those
that make calls.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import reduce
from typing import Any, cast

from opwire.model.envelope import LocalResponseMeta, ResponseEnvelope
from opwire.protocol.events import CallAborted, CallCompleted, CallCredit, CallFailed, CallRequested, CallResponded
from opwire.typed.plain import MAX_DEPTH
from opwire_conformance import transport_calls as calls
from opwire_conformance.harness import Connect, TransportHarness, expect, item, named_checks, refused

_MANY = 300


VALUES: tuple[Any, ...] = (
    None,
    False,
    0,
    1.0,
    -0.1e-7,
    "",
    10**39 + 7,
    -(10**39) - 7,
    'línea\u2028 \u0000 \\ " 𝒳 🜚 \u200f',
    [],
    {},
    [None, [], {"": {}}],
    {"🗝": 1, "a.b": 2, "": 3, "type": "call.completed"},
    reduce(lambda value, level: [value] if level % 2 else {"": value}, range(MAX_DEPTH), cast("Any", "bottom")),
    list(range(5_000)),
)


async def events_arrive_once_and_in_order(harness: TransportHarness) -> None:
    """Send many events in both directions at the same time."""
    caller, server, to_caller, to_server, request_id = await harness.conversation()
    for number in range(1, _MANY + 1):
        server.transport.send(item(request_id, number, number + 1), to_caller)
        caller.transport.send(CallCredit(request_id=request_id, n=number), to_server)
    await caller.count(_MANY + 1)
    await server.count(_MANY + 1)
    server.transport.send(CallCompleted(request_id=request_id), to_caller)  # the last event of the stream
    await caller.until("the end arrives", lambda: isinstance(caller.events[-1], CallCompleted))
    caller.transport.send(CallAborted(request_id=request_id), to_server)
    await server.until("the end arrives", lambda: isinstance(server.events[-1], CallAborted))
    items = [event.seq for event in caller.events if isinstance(event, CallResponded)]
    credits = [event.n for event in server.events if isinstance(event, CallCredit)]
    expect(items == list(range(1, _MANY + 2)), f"items arrived as {_shown(items)}")
    expect(credits == list(range(1, _MANY + 1)), f"credits arrived as {_shown(credits)}")


def _shown(numbers: list[Any]) -> str:
    wrong = next((place for place, number in enumerate(numbers) if number != numbers[0] + place), len(numbers))
    return f"{len(numbers)} events, and not in order from place {wrong}: {numbers[wrong : wrong + 5]}"


async def same_request_ids_do_not_meet(harness: TransportHarness) -> None:
    """Use the same request id from two callers at one server; each receives its own response."""
    server = await harness.probe("talk")
    callers = [await harness.probe(), await harness.probe()]
    for number, caller in enumerate(callers):
        caller.transport.request(CallRequested(request_id="same", operation_id=harness.id("talk"), input=number))
    await server.count(2)
    for event, sender in zip(server.events, server.senders, strict=True):
        expect(isinstance(event, CallRequested), f"a request arrived as {event}")
        call_input = getattr(event, "input", None)
        server.transport.send(item("same", call_input, 1), sender)
        server.transport.send(item("same", call_input, 2), sender)
    for number, caller in enumerate(callers):
        await caller.count(2)
        data = [event.output.data for event in caller.events if isinstance(event, CallResponded)]
        expect(data == [number, number], f"caller {number} got {data}")


async def data_arrives_as_it_was_sent(harness: TransportHarness) -> None:
    """Send values as input, as response, and as the details of an error; they decode to the same values."""
    caller, server, to_caller, _, request_id = await harness.conversation()
    operation_id = harness.id("talk")
    for number, value in enumerate(VALUES):
        caller.transport.request(CallRequested(request_id=f"{number}", operation_id=operation_id, input=value))
        server.transport.send(item(request_id, value), to_caller)
        server.transport.send(
            CallFailed(request_id=request_id, code="EXECUTION_ERROR", message="no", details=value), to_caller
        )
    server.transport.send(item(request_id, b"\x00\xff bytes"), to_caller)
    await server.count(len(VALUES) + 1)
    await caller.count(2 * len(VALUES) + 2)
    inputs = [event.input for event in server.events if isinstance(event, CallRequested)][1:]
    outputs = [event.output.data for event in caller.events if isinstance(event, CallResponded)][1:]
    details = [event.details for event in caller.events if isinstance(event, CallFailed)]
    _same(list(VALUES), inputs, "input")
    _same([*VALUES, b"\x00\xff bytes"], outputs, "output")
    _same(list(VALUES), details, "details")


def _same(sent: list[Any], arrived: list[Any], where: str) -> None:
    expect(len(sent) == len(arrived), f"{len(sent)} values of {where} arrived as {len(arrived)}")
    for before, after in zip(sent, arrived, strict=True):
        # By `repr`, since 1, 1.0 and True are equal.
        expect(repr(before) == repr(after), f"{where} {before!r:.80} arrived as {after!r:.80}")


_POSITIONED = ResponseEnvelope([1], LocalResponseMeta("talk", 1_700_000_000_000, cursor="26-1"))


async def fields_arrive_as_they_were_sent(harness: TransportHarness) -> None:
    """Encode and decode every field of every event."""
    caller, server, to_caller, to_server, request_id = await harness.conversation()
    request = CallRequested(
        request_id="full",
        operation_id=harness.id("talk"),
        input={"a": 1},
        parent_request_id="parent",
        deadline=1_700_000_000_000,
        timeout_ms=1500.5,
        credits=7,
        resume_from="26-0",
    )
    to_server_events = [CallCredit(request_id=request_id, n=3), CallAborted(request_id=request_id, reason="enough")]
    to_caller_events = [
        CallResponded(request_id=request_id, output=_POSITIONED, seq=2, resumed=True),
        CallCompleted(request_id=request_id, seq=2),
        CallFailed(
            request_id=request_id,
            code="RATE_LIMITED",
            message="slow down",
            details={"limit": [1, None]},
            retryable=False,
            retry_after_ms=1500.0,
        ),
        CallAborted(request_id=request_id, reason="stopped"),
    ]
    caller.transport.request(request)
    for event in to_server_events:
        caller.transport.send(event, to_server)
    for event in to_caller_events:
        server.transport.send(event, to_caller)
    await server.count(4)
    await caller.count(5)
    expect(server.events[1:] == [request, *to_server_events], f"sent {request} …, arrived {server.events[1:]}")
    expect(caller.events[1:] == to_caller_events, f"sent {to_caller_events}, arrived {caller.events[1:]}")


async def announced_operations_are_reachable_at_once(harness: TransportHarness) -> None:
    """Send a request right after `announce` returns, for each of many operations."""
    server, caller = await harness.probe(), await harness.probe()
    for number in range(20):
        await server.transport.announce([harness.id(f"late-{number}")])
        caller.transport.request(CallRequested(request_id=f"{number}", operation_id=harness.id(f"late-{number}")))
    await server.count(20)


async def withdrawn_operations_are_not_routed_here(harness: TransportHarness) -> None:
    """Withdraw an operation; requests go to the other server, and other operations still arrive."""
    leaving, staying, caller = await harness.probe("talk", "stay"), await harness.probe("talk"), await harness.probe()
    await leaving.transport.withdraw([harness.id("talk")])
    for number in range(20):
        caller.transport.request(CallRequested(request_id=f"{number}", operation_id=harness.id("talk")))
    caller.transport.request(CallRequested(request_id="stay", operation_id=harness.id("stay")))
    await staying.count(20)
    await leaving.count(1)
    expect([event.request_id for event in leaving.events] == ["stay"], f"{len(leaving.events)} requests went astray")


async def a_closed_end_refuses(harness: TransportHarness) -> None:
    """Close an end twice; afterwards `request`, `send` and `announce` raise UNAVAILABLE."""
    caller, server, to_caller, to_server, request_id = await harness.conversation()
    arrived = len(server.events)
    for _ in range(2):
        await caller.transport.close()

    async def late(act: Callable[..., object], *arguments: object) -> None:
        act(*arguments)

    request = CallRequested(request_id="late", operation_id=harness.id("talk"))
    credit = CallCredit(request_id=request_id, n=1)
    await refused("request on a closed end", late(caller.transport.request, request))
    await refused("send on a closed end", late(caller.transport.send, credit, to_server))
    await server.transport.close()
    await refused("send on a closed end", late(server.transport.send, item(request_id, 1), to_caller))
    own_abort = CallAborted, request_id  # a transport may report the end of the request that the caller had open
    sent = [event for event in server.events[arrived:] if (type(event), event.request_id) != own_abort]
    expect(not sent, "a closed end still sends")
    await refused("announce on a closed end", server.transport.announce([harness.id("talk")]))


Check = Callable[[Connect], Awaitable[None]]
LimitCheck = Callable[[Connect, int], Awaitable[None]]


TRANSPORT_CONTRACT: Mapping[str, Check] = named_checks(
    TransportHarness,
    {
        "events arrive once, in the order in which they were sent": events_arrive_once_and_in_order,
        "two callers with the same request id see only their own answers": same_request_ids_do_not_meet,
        "data arrives as it was sent": data_arrives_as_it_was_sent,
        "every field of every event arrives as it was sent": fields_arrive_as_they_were_sent,
        "operations are reachable when announce returns": announced_operations_are_reachable_at_once,
        "operations are routed elsewhere when withdraw returns": withdrawn_operations_are_not_routed_here,
        "a closed end refuses to send, and can be closed again": a_closed_end_refuses,
        "a call is answered": calls.a_call_is_answered,
        "an error arrives with all its fields": calls.an_error_arrives_whole,
        "progress arrives before the outcome, if it was asked for": calls.progress_arrives_before_the_outcome,
        "questions reach a caller that accepts them": calls.questions_reach_the_caller,
        "many calls at once are not mixed up": calls.many_calls_at_once_are_not_mixed_up,
        "the items of many subscriptions arrive in order": calls.items_arrive_in_order,
        "a slow consumer slows its producer, and no other": calls.a_slow_consumer_slows_its_producer,
        "a subscription is resumed at another server": calls.a_subscription_is_resumed_at_another_server,
        "leaving a subscription stops its producer": calls.leaving_a_subscription_stops_its_producer,
        "cancelling a caller stops its handler": calls.cancelling_a_caller_stops_its_handler,
        "deadlines travel with the call": calls.deadlines_travel,
        "several servers share the calls, and one that leaves gets no more": calls.servers_share_the_calls,
        "an end may call while it serves, even itself": calls.an_end_may_call_while_it_serves,
        "all servers are found, and each can be asked": calls.all_servers_are_found,
        "a server that drains finishes what it has, and others get the rest": calls.draining_loses_no_call,
        "a call without a server fails in time": calls.a_call_without_a_server_fails_in_time,
        "closing a server ends its calls in flight": calls.closing_a_server_ends_its_calls,
        "closing a caller stops its handlers, and no others": calls.closing_a_caller_stops_its_handlers,
        "events of unknown requests are ignored": calls.unknown_request_ids_are_ignored,
        "only the server that a call was routed to can answer it": calls.a_stranger_cannot_answer,
        "no task is left behind": calls.no_task_is_left_behind,
    },
)
"""The promises of every transport, each with a check that raises AssertionError if it is broken."""

LIMIT_CONTRACT: Mapping[str, LimitCheck] = named_checks(
    TransportHarness,
    {
        "a message above the limit fails its own call alone": calls.too_large_messages_fail_alone,
        "a message just below the limit passes": calls.large_messages_below_the_limit_pass,
    },
)
"""The promises of a transport that limits the size of a message, in bytes."""


async def check_transport(connect: Connect, *, max_message: int | None = None) -> None:
    """Check every promise of the contract in turn.

    `connect` returns a fresh end of the same bus, server or broker, not started. `max_message` is the size in bytes
    above which the transport rejects a message, if it has a limit.

    Raises:
        AssertionError: names the first broken promise.
    """
    for check in TRANSPORT_CONTRACT.values():
        await check(connect)
    if max_message is not None:
        for sized in LIMIT_CONTRACT.values():
            await sized(connect, max_message)
