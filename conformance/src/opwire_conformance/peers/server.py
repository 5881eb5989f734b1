"""The promises of a server: of a spoke, of an end on a broker, which keeps some more, and of a hub itself.

Some need operations with a known behaviour. A peer serves them to have these promises checked, too:

| operation | type | behaviour |
|---|---|---|
| `conformance.echo` | query | returns its input |
| `conformance.fail` | mutation | raises an unexpected exception with the text `secret` of its input |
| `conformance.count` | subscription | yields 1 to `to` of its input |
| `conformance.wait` | query | ends only by cancellation or its deadline |
| `conformance.waiting` | query | returns how many calls of `conformance.wait` are running |
| `conformance.steps` | query | reports progress 1, 2, 3 of 3, and returns 3 |
| `conformance.ask` | query | asks its caller for a text by `elicit`, and returns it |
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from secrets import randbelow, token_hex
from typing import Any, NamedTuple, cast

from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.envelope import read_envelope
from opwire.model.operation import OperationSpec, OperationType
from opwire.registry import OperationRegistry
from opwire.transports.broker_connection import BrokerConnection
from opwire_conformance.peers.wires import (
    PATIENCE,
    SETTLE,
    BrokerWire,
    Event,
    NotChecked,
    Problems,
    ServerLine,
    ServerRoute,
    broken,
    expect,
    shown,
)

NAMESPACE = "conformance"
_MANY = 40
_NONE: list[Any] = []
_VALUES: tuple[Any, ...] = (
    dict[str, Any](),
    {"text": 'línea\u2028 \\ " 𝒳 🜚', "": [None, True, 0, -1.5, "", _NONE, {"": _NONE}]},
    {"integer": 2**53 - 1, "nested": [[[[[[[[[[{"deep": 1}]]]]]]]]]], "type": "call.completed", "requestId": "x"},
)


async def echo(input: Any, _: Context) -> Any:
    """Return the input."""
    return input


async def fail(secret: str) -> None:
    """Raise an unexpected exception."""
    raise ValueError(secret)


async def count(to: int) -> AsyncIterator[int]:
    """Yield numbers."""
    for number in range(1, to + 1):
        yield number


async def steps(context: Context) -> int:
    """Report progress."""
    for number in (1, 2, 3):
        context.report(number, 3)
    return 3


async def ask(context: Context) -> str:
    """Ask the caller."""
    return (await context.elicit(str, "Which text?")).unwrap()


def conformance_operations(registry: OperationRegistry | None = None) -> OperationRegistry:
    """Add the operations that a server needs to have all its promises checked. They are public."""
    registry = OperationRegistry() if registry is None else registry
    public = AccessControl(public=True)
    open_calls = 0

    async def wait() -> None:
        nonlocal open_calls
        open_calls += 1
        try:
            await asyncio.Event().wait()
        finally:
            open_calls -= 1

    async def waiting() -> int:
        return open_calls

    registry.register(OperationSpec(namespace=NAMESPACE, name="echo", type=OperationType.QUERY, access=public), echo)
    registry.mutation(f"{NAMESPACE}.fail", access=public)(fail)
    registry.subscription(f"{NAMESPACE}.count", access=public)(count)
    for query in (wait, waiting, steps, ask):
        registry.query(f"{NAMESPACE}.{query.__name__}", access=public)(query)
    return registry


class Server(NamedTuple):
    """A server under test: the way to it, and what it serves."""

    line: ServerLine
    operations: set[str]

    def needs(self, name: str) -> str:
        """Return the id of an operation of this module.

        Raises:
            NotChecked: the peer does not serve it.
        """
        id = f"{NAMESPACE}.{name}"
        if id not in self.operations:
            raise NotChecked(f"the peer itself does not serve {id}")
        return id


def envelope_data(event: Event) -> Any:
    """Return the data of a response; its envelope has to be valid."""
    output = event.get("output")
    if not isinstance(output, Mapping):
        broken(f"the output is not an envelope: {shown(event)}")
    try:
        return read_envelope(cast("Event", output)).data
    except (ConversionError, TypeError, KeyError) as error:
        broken(f"the output is not an envelope: {error}")


async def describe(line: ServerLine, input: Any = None, **fields: Any) -> list[Event]:
    """Return the descriptions of a server, by its subscription `opwire.operations`."""
    request_id = await line.request("opwire.operations", input, credits=1000, **fields)
    descriptions: list[Event] = []
    while True:
        event = await line.take(request_id, "a description", ("call.responded", "call.completed"))
        if event["type"] == "call.completed":
            expect(
                event.get("seq") in (None, len(descriptions)), f"{len(descriptions)} items ended with {shown(event)}"
            )
            return descriptions
        expect(
            event.get("seq") in (None, len(descriptions) + 1),
            f"item {len(descriptions) + 1} has another seq: {shown(event)}",
        )
        data = envelope_data(event)
        match data:
            case {"id": str(), "type": str(type)} if type.lower() in ("query", "mutation", "subscription"):
                descriptions.append(data)
            case _:
                broken(f"not a description of an operation: {shown(data)}")


async def described_server(line: ServerLine) -> Server:
    """Return a server with the operations that it describes; an invalid description counts as an empty one."""
    try:
        return Server(line, {description["id"] for description in await describe(line)})
    except AssertionError:
        return Server(line, set())  # checked as far as it goes


async def _alive(server: Server) -> None:
    """Check that a server still answers."""
    outcome = await server.line.call(f"{NAMESPACE}.unknown-{token_hex(4)}", {})
    expect(outcome["type"] == "call.error", f"an unknown operation was answered by {shown(outcome)}")


async def unknown_operations_are_not_found(server: Server) -> None:
    """Call an operation that does not exist."""
    outcome = await server.line.call(f"{NAMESPACE}.unknown-{token_hex(4)}", {})
    codes = ("OPERATION_NOT_FOUND", "UNAVAILABLE", "ACCESS_DENIED", "UNAUTHENTICATED")
    expect(outcome["type"] == "call.error" and outcome["code"] in codes, f"it was answered by {shown(outcome)}")


async def operations_are_described(server: Server) -> None:
    """Read the descriptions, all and of one operation."""
    descriptions = await describe(server.line)
    if descriptions:
        first_id = [descriptions[0]["id"]]
        some = [description["id"] for description in await describe(server.line, {"operations": first_id})]
        expect(set(first_id) <= set(some), f"{first_id[0]} is not described when it is asked for alone")


async def invalid_events_fail_their_call_alone(server: Server) -> None:
    """Send a request with negative credits; other calls go on."""
    request_id = await server.line.request(f"{NAMESPACE}.echo", {}, credits=-1)
    await server.line.take(request_id, "PROTOCOL_ERROR", "call.error", code="PROTOCOL_ERROR")
    await _alive(server)


async def unknown_calls_are_ignored(server: Server) -> None:
    """Send events of calls that were never made; other calls go on."""
    request_id = token_hex(8)
    await server.line.send("call.credit", requestId=request_id, n=3)
    await server.line.send("call.aborted", requestId=request_id)
    await server.line.send("call.completed", requestId=request_id)
    await _alive(server)
    await server.line.absent(request_id, "an event of an unknown call was answered")


async def unknown_fields_are_ignored(server: Server) -> None:
    """Send a request with fields of a newer version, null for the others, and counts with a fraction of zero."""
    fields = {"newer": {"requestId": 5}, "parentRequestId": None, "stickyKey": None, "timeoutMs": 5000.0}
    outcome = await server.line.call(server.needs("echo"), {"a": 1}, **fields)
    expect(outcome["type"] == "call.responded", f"it was answered by {shown(outcome)}")


async def data_arrives_as_it_was_sent(server: Server) -> None:
    """Echo values of all kinds."""
    id = server.needs("echo")
    for value in _VALUES:
        outcome = await server.line.call(id, value)
        expect(outcome["type"] == "call.responded", f"it was answered by {shown(outcome)}")
        data = envelope_data(outcome)
        expect(data == value, f"{shown(value)} came back as {shown(data)}")


async def many_calls_are_not_mixed_up(server: Server) -> None:
    """Make many calls at the same time; each ends exactly once, with its own response."""
    id = server.needs("echo")
    ids = [await server.line.request(id, {"number": number}) for number in range(_MANY)]
    for number, request_id in enumerate(ids):
        outcome = await server.line.take(request_id, f"response {number}", "call.responded")
        expect(envelope_data(outcome) == {"number": number}, f"call {number} got {shown(outcome)}")
    await asyncio.sleep(SETTLE)
    again = [request_id for request_id in ids if server.line.wire.here(requestId=request_id)]
    expect(not again, f"{len(again)} of {_MANY} calls were answered more than once")


async def exceptions_are_not_shown(server: Server) -> None:
    """Raise an exception in a handler; its text stays there."""
    secret = f"secret-{token_hex(8)}"
    outcome = await server.line.call(server.needs("fail"), {"secret": secret})
    expect(outcome["type"] == "call.error", f"a failed call was answered by {shown(outcome)}")
    expect(outcome["code"] == "EXECUTION_ERROR", f"the code of an unexpected exception is {outcome['code']!r}")
    expect(secret not in shown(outcome), "the message contains the text of the exception")


async def _items(server: Server, request_id: str, first: int, last: int) -> None:
    for number in range(first, last + 1):
        item = await server.line.take(request_id, f"item {number}", "call.responded")
        data = envelope_data(item)
        expect(data == number, f"item {number} is {shown(data)}")
        expect(item.get("seq") in (None, number), f"item {number} has another seq: {shown(item)}")


async def producers_wait_for_credit(server: Server) -> None:
    """Grant two items, then two more, once by `total` and once by `n` alone."""
    id = server.needs("count")
    for by_total in (True, False):
        request_id = await server.line.request(id, {"to": 5}, credits=2)
        await _items(server, request_id, 1, 2)
        await server.line.absent(request_id, "an item without credit")
        total = {"total": 4, "received": 2} if by_total else {}
        await server.line.send("call.credit", requestId=request_id, n=2, **total)
        await _items(server, request_id, 3, 4)
        await server.line.absent(request_id, "an item without credit")
        await server.line.send("call.credit", requestId=request_id, n=9, **({"total": 13} if by_total else {}))
        await _items(server, request_id, 5, 5)
        end = await server.line.take(request_id, "the end of the subscription", "call.completed")
        expect(end.get("seq") in (None, 5), f"5 items ended with {shown(end)}")


async def consumers_may_leave_credits_out(server: Server) -> None:
    """Subscribe without credits."""
    request_id = await server.line.request(server.needs("count"), {"to": 70})
    await _items(server, request_id, 1, 70)
    await server.line.take(request_id, "the end of the subscription", "call.completed")


async def an_empty_subscription_ends(server: Server) -> None:
    """Subscribe to nothing."""
    request_id = await server.line.request(server.needs("count"), {"to": 0}, credits=1)
    end = await server.line.take(request_id, "the end of the subscription", "call.completed")
    expect(end.get("seq") in (None, 0), f"no items ended with {shown(end)}")


async def running(server: Server, expected_count: int, complaint: str = "the handler was not stopped") -> None:
    """Wait until this many calls of `conformance.wait` are running."""
    id = server.needs("waiting")
    try:
        async with asyncio.timeout(PATIENCE):
            while envelope_data(outcome := await server.line.call(id)) != expected_count:
                expect(outcome["type"] == "call.responded", f"{id} was answered by {shown(outcome)}")
                await asyncio.sleep(0.05)
    except TimeoutError:
        broken(complaint)


async def start_waiting(server: Server, **fields: Any) -> tuple[str, int]:
    """Start a call that does not end; return its id, and how many others are running."""
    before = envelope_data(await server.line.call(server.needs("waiting")))
    request_id = await server.line.request(server.needs("wait"), {}, **fields)
    await running(server, before + 1, "conformance.wait does not run")
    return request_id, before


async def stop_waiting(server: Server, request_id: str, before: int) -> None:
    """Abort a call of `start_waiting`, and wait until its handler has ended."""
    await server.line.send("call.aborted", requestId=request_id, reason="enough")
    await running(server, before)


async def deadlines_are_enforced(server: Server) -> None:
    """Call with a timeout; the server stops the handler, and says so."""
    request_id, before = await start_waiting(server, timeoutMs=800)
    await server.line.take(request_id, "TIMEOUT", "call.error", code="TIMEOUT")
    await running(server, before)


async def expired_requests_are_not_started(server: Server) -> None:
    """Send a request without any time left."""
    outcome = await server.line.call(server.needs("echo"), {}, timeoutMs=0)
    expect(outcome.get("code") == "TIMEOUT", f"it was answered by {shown(outcome)}")


async def aborted_calls_are_stopped(server: Server) -> None:
    """Abort a call; its handler is stopped, and nothing of it arrives any more but the confirmation."""
    request_id, before = await start_waiting(server)
    await stop_waiting(server, request_id, before)
    await server.line.absent(request_id, "an aborted call was answered", but="call.aborted")


async def duplicates_run_once(server: Server) -> None:
    """Send a request twice while it runs."""
    request_id, before = await start_waiting(server)
    await server.line.request(server.needs("wait"), {}, requestId=request_id)
    await asyncio.sleep(SETTLE)
    number = envelope_data(await server.line.call(server.needs("waiting")))
    expect(number == before + 1, f"a request that was sent twice runs {number - before} times")
    await stop_waiting(server, request_id, before)


async def progress_is_for_those_who_ask(server: Server) -> None:
    """Call with and without `progress`."""
    id = server.needs("steps")
    for wants in (True, False):
        request_id = await server.line.request(id, {}, **({"progress": True} if wants else {}))
        await server.line.take(request_id, "the response", "call.responded")
        reports = server.line.wire.here(requestId=request_id, type="call.progress")
        if wants:
            expect(len(reports) <= 3, f"3 steps were reported {len(reports)} times")
        else:
            expect(not reports, "progress was sent to a caller that did not ask for it")


async def questions_are_for_those_who_answer(server: Server) -> None:
    """Call an operation that asks, with and without `questions`."""
    id = server.needs("ask")
    request_id = await server.line.request(id, {}, questions=True)
    question = await server.line.take(request_id, "the question", "call.question", kind="elicit")
    fields: Event = question.get("params", {}).get("requestedSchema", {}).get("properties") or {"value": {}}
    answer = {"action": "accept", "content": {next(iter(fields)): "kit"}}
    await server.line.send("call.answer", requestId=request_id, id=question["id"], answer=answer)
    outcome = await server.line.take(request_id, "the response", "call.responded")
    expect(envelope_data(outcome) == "kit", f"the answer was read as {shown(outcome)}")
    refused = await server.line.call(id, {})
    expect(refused.get("code") == "ABORTED", f"a caller that answers nothing got {shown(refused)}")


ServerCheck = Callable[[Server], Awaitable[None]]

# Each promise, with the section of docs/reference/protocol.md that makes it.
SERVER_CHECKS: Mapping[str, tuple[str, ServerCheck]] = {
    "an unknown operation is not found": ("Errors", unknown_operations_are_not_found),
    "operations are described on request": ("Announcing", operations_are_described),
    "an invalid event fails its call alone": ("Errors", invalid_events_fail_their_call_alone),
    "events of unknown calls are ignored": ("The end of a call", unknown_calls_are_ignored),
    "unknown fields, null and 5.0 are accepted": ("The protocol", unknown_fields_are_ignored),
    "data arrives as it was sent": ("Envelopes", data_arrives_as_it_was_sent),
    "calls at once are not mixed up": ("The end of a call", many_calls_are_not_mixed_up),
    "the text of an exception is not sent": ("Errors", exceptions_are_not_shown),
    "a producer waits for credit": ("Subscriptions and credits", producers_wait_for_credit),
    "a consumer may leave credits out": ("Subscriptions and credits", consumers_may_leave_credits_out),
    "a subscription without items ends": ("Subscriptions and credits", an_empty_subscription_ends),
    "a call is stopped at its deadline": ("Deadlines", deadlines_are_enforced),
    "an expired request is not started": ("Deadlines", expired_requests_are_not_started),
    "an aborted call is stopped": ("The end of a call", aborted_calls_are_stopped),
    "a request that arrives twice runs once": ("Ids", duplicates_run_once),
    "progress is sent only if it is asked for": ("Progress", progress_is_for_those_who_ask),
    "questions are sent only to those who answer": ("Questions", questions_are_for_those_who_answer),
}


# --- servers on a broker ----------------------------------------------------------------------------------------------

_MAX_SERVERS = 20  # that are asked what they serve


async def open_end(connection: BrokerConnection, problems: Problems) -> BrokerWire:
    """Connect an end to a broker.

    Raises:
        CallError: UNAVAILABLE.
    """
    end = BrokerWire(connection, problems)
    async with asyncio.timeout(PATIENCE):
        await connection.connect(end.address, end)
    return end


async def find_server(end: BrokerWire) -> Server:
    """Return the server that serves `conformance.*`, or else any.

    Raises:
        CallError: UNAVAILABLE, there is none.
    """
    await end.send("session.who", id=1 + randbelow(2**31))
    await asyncio.sleep(5 * SETTLE)
    addresses = dict.fromkeys(str(event["sender"]) for event in end.here(type="session.here"))
    found_server: Server | None = None
    for address in list(addresses)[:_MAX_SERVERS]:
        server = await described_server(ServerLine(end, ServerRoute({}, address)))
        if found_server is None or any(id.startswith(f"{NAMESPACE}.") for id in server.operations):
            found_server = server
    if found_server is None:
        raise CallError(ErrorCode.UNAVAILABLE, f"no server answers session.who on {end.connection.name}")
    return found_server


async def who_is_answered(server: Server) -> None:
    """Ask for all servers."""
    end, number = cast("BrokerWire", server.line.wire), 1 + randbelow(2**31)
    await end.send("session.who", id=number)
    here = await end.take("session.here", type="session.here", id=number)
    expect(here["peers"] == [here["sender"]], f"an end names another address than its own: {shown(here)}")


async def requests_are_routed(server: Server) -> None:
    """Send a request by its operation."""
    end, id, token = cast("BrokerWire", server.line.wire), server.needs("echo"), token_hex(8)
    request = {"type": "call.requested", "requestId": token, "operationId": id, "input": {"a": 1}}
    end.connection.request(id, token, json.dumps(request).encode())
    answer = await end.take("the response", type=("call.responded", "call.error"), requestId=token)
    expect(answer["token"] == token, f"the response has another token: {shown(answer)}")
    expect(envelope_data(answer) == {"a": 1}, f"it was answered by {shown(answer)}")


async def calls_in_flight_are_confirmed(server: Server) -> None:
    """Wait for the confirmation of a call in flight, and answer it."""
    end = cast("BrokerWire", server.line.wire)
    request_id, before = await start_waiting(server)
    token = server.line.token(request_id)
    try:
        async with asyncio.timeout(PATIENCE):
            while not any(token in event["tokens"] for event in end.here(type="session.serving")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        broken(f"session.serving did not name a call in flight within {PATIENCE:g} s")
    finally:
        await stop_waiting(server, request_id, before)


async def calls_end_with_their_caller(server: Server) -> None:
    """Report that the caller is gone; the handler is stopped."""
    request_id, before = await start_waiting(server)
    token = server.line.token(request_id)
    left_event = json.dumps({"type": "session.left", "tokens": [token]}).encode()
    cast("BrokerWire", server.line.wire).connection.send(server.line.end, token, left_event, control=True)
    await running(server, before)


BROKER_CHECKS: Mapping[str, tuple[str, ServerCheck]] = {
    "all servers are found": ("Brokers", who_is_answered),
    "requests are routed by their operation": ("Brokers", requests_are_routed),
    "calls in flight are confirmed": ("Brokers", calls_in_flight_are_confirmed),
    "a call ends with its caller": ("Brokers", calls_end_with_their_caller),
}
