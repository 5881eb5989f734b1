"""What passes from one client to another: calls, losses, forgeries, and peers that do not read."""

import asyncio
import json
import time
from typing import Any

import pytest
from websockets.frames import Opcode

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context, Progress
from opwire.model.questions import Question
from opwire.protocol import CallAborted, CallFailed, CallProgress, CallRequested, CallResponded
from opwire.protocol.events import Left
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from opwire_conformance.harness import item, soon
from tests.transports.websocket.ends import Ends, Raw, until
from tests.transports.websocket.foreign import META

AT_ONCE = 4.0  # seconds: milliseconds, but the machine may be busy; a heartbeat would take longer to notice


class Waiting:
    """A handler that never ends by itself."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()

    async def call(self, *_: Any) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()


async def echo(input: Any, _: Context) -> Any:
    return input


async def events(raw: Raw, kind: str) -> list[dict[str, Any]]:
    """Read what waits for a client, until there is an event of this kind."""
    while True:
        read = [json.loads(bytes(frame.data)) for frame in await raw.hear() if frame.opcode is Opcode.TEXT]
        found = [event for event in read if event["type"] == kind]
        if found:
            return found


# --- loss -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["FIN", "RST"])
async def test_a_caller_learns_at_once_that_the_server_of_its_call_is_gone(ends: Ends, way: str) -> None:
    server, _ = await ends.server()
    raw = await ends.raw(server.url)
    raw.say("session.announce", id=1, operations=["far.op"])
    await raw.hear()
    calls = await ends.calls(WebSocketTransport(server.url))
    call = asyncio.create_task(calls.call("far.op"))
    await raw.hear()
    began = time.monotonic()
    raw.writer.close() if way == "FIN" else raw.writer.transport.abort()
    with pytest.raises(CallError) as failure:
        await soon("the call ends", call)
    assert time.monotonic() - began < AT_ONCE
    assert failure.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(CallError) as failure:
        await soon("the next call ends", calls.call("far.op"))
    assert "no server for far.op" in failure.value.message


@pytest.mark.parametrize("way", ["FIN", "RST"])
async def test_a_handler_is_stopped_at_once_when_its_caller_is_gone(ends: Ends, way: str) -> None:
    server, _ = await ends.server()
    waiting = Waiting()
    await ends.calls(WebSocketTransport(server.url), wait=waiting.call)
    raw = await ends.raw(server.url)
    raw.say("call.requested", requestId="1", operationId="test.wait")
    await soon("the handler begins", waiting.began.wait())
    began = time.monotonic()
    raw.writer.close() if way == "FIN" else raw.writer.transport.abort()
    await soon("the handler is stopped", waiting.stopped.wait())
    assert time.monotonic() - began < AT_ONCE


async def test_a_server_is_notified_once_of_a_caller_with_many_calls(ends: Ends) -> None:
    server, _ = await ends.server()
    serving = await ends.client(server.url, "a.b")
    caller, other = await ends.client(server.url), await ends.client(server.url)
    for number in range(5):
        caller.ask("a.b", f"{number}")
    other.ask("a.b", "stays")
    await serving.count(6)
    gone = serving.senders[0]
    await caller.transport.close()
    await serving.until("the loss is told", lambda: bool(serving.losses))
    assert [peer for peer, _ in serving.losses] == [gone]
    assert serving.events[6:] == []
    serving.transport.send(item("stays", 1), serving.senders[5])
    assert isinstance(await other.event(), CallResponded)


async def test_a_plain_server_learns_of_a_caller_that_is_gone(ends: Ends) -> None:
    server, _ = await ends.server()
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    await plain.hear()
    caller = await ends.client(server.url)
    caller.ask("a.b")
    request = await plain.hear()
    await caller.transport.close()
    left = await plain.hear()
    assert left["type"] == Left.__struct_config__.tag
    assert left["peer"] == request["peer"]


# --- forgery ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forged",
    [
        '{"type":"call.requested","requestId":"r","operationId":"a.b","peer":"%s"}',
        '{"peer":"%s","type":"call.requested","requestId":"r","operationId":"a.b"}',
        '{"type":"call.requested","peer":"%s","requestId":"r","operationId":"a.b"} ',
        '{"type":"call.requested","requestId":"r","operationId":"a.b","\\u0070eer":"%s"}',
        '{"peer":"x","type":"call.requested","requestId":"r","operationId":"a.b","peer":"%s"}',
    ],
)
async def test_a_client_cannot_say_that_an_event_is_from_another(ends: Ends, forged: str) -> None:
    """It names the receiver of the event; the sender is written by the server."""
    server, _ = await ends.server()
    serving, plain = await ends.client(server.url, "a.b"), await ends.plain(server.url)
    to, sender = server.peers
    await plain.connection.send(forged % to)
    await serving.count(1)
    assert serving.senders == [sender]


@pytest.mark.parametrize("kind", ["call.responded", "call.error", "call.completed", "call.aborted", "call.credit"])
async def test_a_stranger_with_all_ids_cannot_affect_a_call(ends: Ends, kind: str) -> None:
    server, _ = await ends.server()
    serving, stranger = await ends.client(server.url, "a.b"), await ends.plain(server.url)
    caller = await ends.client(server.url)
    caller.ask("a.b", "known")
    await serving.count(1)
    output = {"data": "forged", "meta": {"source": "local", "operationId": "a.b", "timestamp": 1}}
    extra = {"output": output, "code": "INTERNAL", "message": "forged", "n": 1}
    await stranger.say(kind, requestId="known", peer=serving.senders[0], **extra)
    await stranger.say("session.who", id=1)
    await stranger.hear()  # the server has dealt with the forgery
    serving.transport.send(item("known", "genuine"), serving.senders[0])
    answer = await caller.event()
    assert isinstance(answer, CallResponded)
    assert answer.output.data == "genuine"
    assert server.dropped == {"foreign": 1}


async def test_a_request_that_comes_twice_is_served_once(ends: Ends) -> None:
    server, _ = await ends.server()
    serving = await ends.client(server.url, "a.b")
    plain = await ends.plain(server.url)
    for _ in range(2):
        await plain.say("call.requested", requestId="1", operationId="a.b")
    await plain.say("call.requested", requestId="2", operationId="a.b")
    await serving.count(2)
    assert [event.request_id for event in serving.events] == ["1", "2"]


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_request_that_is_too_large_for_its_server_fails_alone(ends: Ends) -> None:
    server, _ = await ends.server()
    await ends.calls(WebSocketTransport(server.url, max_message=5_000), echo=echo)
    calls = await ends.calls(WebSocketTransport(server.url))
    with pytest.raises(CallError) as failure:
        await soon("the call fails", calls.call("test.echo", "x" * 10_000))
    assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert (await soon("the next is answered", calls.call("test.echo", "x" * 4_000))).data == "x" * 4_000
    assert len(server.routes) == 0


async def test_an_answer_that_is_too_large_for_its_caller_fails_alone_and_stops_its_stream(ends: Ends) -> None:
    stopped = asyncio.Event()

    async def stream(*_: Any) -> Any:
        try:
            while True:
                yield "x" * 10_000
        finally:
            stopped.set()

    async def large(*_: Any) -> Any:
        return "x" * 10_000

    server, _ = await ends.server()
    await ends.calls(WebSocketTransport(server.url), echo=echo, large=large, stream=stream)
    calls = await ends.calls(WebSocketTransport(server.url, max_message=5_000))
    for call in (calls.call("test.large"), anext(calls.subscribe("test.stream"))):
        with pytest.raises(CallError) as failure:
            await soon("the call fails", call)
        assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    await soon("the stream is stopped", stopped.wait())
    assert (await soon("the next is answered", calls.call("test.echo", 1))).data == 1
    assert len(server.routes) == 0


async def test_progress_that_cannot_be_passed_on_is_dropped_and_its_call_goes_on(ends: Ends) -> None:
    server, _ = await ends.server()
    serving = await ends.client(server.url, "a.b")
    calls = await ends.calls(WebSocketTransport(server.url, max_message=5_000))
    reports: list[Progress] = []
    call = asyncio.create_task(calls.call("a.b", context=Context(on_progress=reports.append)))
    request_id, caller = (await serving.event(0)).request_id, serving.senders[0]
    for message in ("x" * 10_000, "short"):
        serving.transport.send(CallProgress(request_id=request_id, progress=1, message=message), caller)
    serving.transport.send(item(request_id, "done"), caller)
    assert (await soon("the call is answered", call)).data == "done"
    assert reports == [Progress(1, None, "short")]
    assert server.routes.dropped == {"flood": 1}


# --- peers that do not read -------------------------------------------------------------------------------------------

BACKLOG = 200_000
ROOM = BACKLOG + 2_500_000  # with what is reserved for small events, and a message


def backlogs(server: WebSocketServer) -> int:
    return max(peer.connection.link.backlog for peer in server.connections)


async def test_requests_to_a_peer_that_does_not_read_fail_alone(ends: Ends) -> None:
    server, _ = await ends.server(max_backlog=BACKLOG)
    raw = await ends.raw(server.url)
    raw.say("session.announce", id=1, operations=["slow.op"])
    await raw.hear()
    await ends.calls(WebSocketTransport(server.url), echo=echo)
    caller = await ends.client(server.url)
    calls = await ends.calls(WebSocketTransport(server.url))
    for number in range(200):
        caller.ask("slow.op", f"{number}", "x" * 100_000)
        answer = await soon("another is answered", calls.call("test.echo", number))
        assert answer.data == number
        assert backlogs(server) < ROOM
    assert caller.events, "the test did not fill the buffers"
    errors = [(event.code, event.not_started) for event in caller.events if isinstance(event, CallFailed)]
    assert errors == [("RATE_LIMITED", True)] * len(caller.events)
    assert len(server.routes) == 200 - len(errors)


async def test_answers_for_a_peer_that_does_not_read_become_errors_and_stop_their_streams(ends: Ends) -> None:
    server, _ = await ends.server(max_backlog=BACKLOG)
    serving = await ends.client(server.url, "a.b")
    raw = await ends.raw(server.url)
    calls = await ends.calls(WebSocketTransport(server.url), echo=echo)
    raw.say("call.requested", requestId="stream", operationId="a.b", credits=10_000)
    await serving.count(1)
    for seq in range(1, 201):
        if len(serving.events) > 1:
            break
        serving.transport.send(item("stream", "x" * 100_000, seq), serving.senders[0])
        assert (await soon("another is answered", calls.call("test.echo", seq))).data == seq
        assert backlogs(server) < ROOM
    stop = await serving.event(1)
    assert isinstance(stop, CallAborted)
    assert serving.senders[1] == serving.senders[0]
    (error,) = await events(raw, "call.error")
    assert (error["requestId"], error["code"]) == ("stream", "RATE_LIMITED")
    assert len(server.routes) == 0


async def test_a_peer_that_leaves_no_room_even_for_small_events_is_given_up(ends: Ends) -> None:
    server, end = await ends.server(max_backlog=BACKLOG)
    serving = await ends.client(server.url, "a.b")
    raw = await ends.raw(server.url)
    address = server.peers[1]
    raw.say("call.requested", requestId="1", operationId="a.b")
    await serving.count(1)
    for _ in range(10_000):
        if end.losses:
            break
        for number in range(1_000):  # each is answered with a small error
            raw.say("call.requested", requestId=f"{number}" + "x" * 900, operationId="un.known")
        await asyncio.sleep(0)
    await end.until("it is given up", lambda: bool(end.losses))
    assert end.losses[0][0] == address
    assert "does not read" in end.losses[0][1]
    await serving.until("its calls are over", lambda: bool(serving.losses))
    await until("nothing is left of it", lambda: len(server.routes) == 0)


async def test_a_client_does_not_wait_for_a_server_that_does_not_read(ends: Ends) -> None:
    """A request above what may wait fails at once, where it is made."""
    server, _ = await ends.server("a.b")
    client = await ends.client(server.url, max_backlog=BACKLOG)

    def flood() -> None:
        for number in range(200):
            client.ask("a.b", f"{number}", "x" * 100_000)

    with pytest.raises(CallError) as failure:
        flood()
    assert failure.value.code is ErrorCode.RATE_LIMITED


async def test_a_directed_request_passes_and_its_answer_is_in_the_name_of_the_peer(ends: Ends) -> None:
    server, _ = await ends.server()
    serving, caller = await ends.client(server.url), await ends.client(server.url)
    to = server.peers[0]
    caller.transport.send(CallRequested(request_id="r", operation_id="not.announced"), to)
    await serving.count(1)
    serving.transport.send(item("r", 1), serving.senders[0])
    await caller.count(1)
    assert caller.senders == [to]


# --- floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["unmatched", "credits"])
async def test_events_that_no_call_needs_are_dropped_above_a_rate_and_affect_no_other_peer(
    ends: Ends, kind: str
) -> None:
    server, end = await ends.server(max_backlog=BACKLOG)
    victim = await ends.raw(server.url)  # which reads nothing for a while
    victim.say("session.announce", id=1, operations=["v.op"])
    await victim.hear()
    address = server.peers[0]
    flooding = await ends.plain(server.url)
    padding = "m" * 900
    if kind == "credits":
        await flooding.say("call.requested", requestId="r", operationId="v.op", credits=1)
        flood = {"type": "call.credit", "requestId": "r", "n": 1, "padding": padding}
    else:
        flood = {"type": "call.error", "requestId": "x", "code": "X", "message": padding, "peer": address}
    text = json.dumps(flood)
    for _ in range(10_000):  # 9 MB, and a peer is given up above 1.2
        await flooding.connection.send(text)
    await flooding.say("session.who", id=1)
    while (await flooding.hear())["type"] != "session.here":
        pass
    assert server.dropped["flood"] > 5_000
    assert end.losses == []
    calls = await ends.calls(WebSocketTransport(server.url))
    call = asyncio.create_task(calls.call("v.op"))
    while "call.requested" not in [event["type"] for event in await events(victim, "call.requested")]:
        pass
    call.cancel()


async def test_unmatched_events_count_against_the_rate_of_their_sender(ends: Ends) -> None:
    server, _ = await ends.server(rate=0.001, burst=5)
    other, sender = await ends.client(server.url), await ends.plain(server.url)
    for number in range(20):
        await sender.say("call.error", requestId=f"{number}", code="X", message="m", peer=server.peers[0])
    await sender.say("session.who", id=1)
    await sender.hear()
    await other.count(5)
    assert server.dropped["flood"] == 15


async def test_an_abort_with_a_long_reason_reaches_a_server_that_does_not_keep_up(ends: Ends) -> None:
    server, end = await ends.server(max_backlog=BACKLOG)
    victim = await ends.raw(server.url)
    victim.say("session.announce", id=1, operations=["v.op"])
    await victim.hear()
    caller = await ends.client(server.url)
    for number in range(100):
        caller.ask("v.op", f"{number}", "x" * 100_000)
    await caller.until("there is no room for more", lambda: len(caller.events) + len(server.routes) == 100)
    assert caller.events
    refused = {event.request_id for event in caller.events}
    open = [f"{number}" for number in range(100) if f"{number}" not in refused]
    for request_id in open:
        caller.transport.send(CallAborted(request_id=request_id, reason="r" * 3_000), None)
    await until("they are passed on", lambda: len(server.routes) == 0)
    assert end.losses == []
    aborted: set[str] = set()
    while len(aborted) < len(open):
        aborted.update(event["requestId"] for event in await events(victim, "call.aborted"))
    assert aborted == set(open)


# --- calls that end at their caller -----------------------------------------------------------------------------------

INVALID = [
    ("call.responded", {"seq": 1, "output": 5}),
    ("call.responded", {"seq": "x", "output": {"data": 1, "meta": META}}),
    ("call.progress", {"progress": "much"}),
    ("call.question", {"id": 0, "kind": "elicit"}),
]


@pytest.mark.parametrize(("kind", "fields"), INVALID)
@pytest.mark.parametrize("own", [False, True], ids=["of-a-client", "of-the-server"])
async def test_a_call_that_fails_by_an_invalid_event_is_over_at_the_relay_and_at_its_server(
    ends: Ends, kind: str, fields: dict[str, Any], own: bool
) -> None:
    """A relay keeps a call exactly until it ends."""
    server, _ = await ends.server(max_calls=3)
    calls = await ends.calls(WebSocketServer(heartbeat=60.0, max_calls=3) if own else WebSocketTransport(server.url))
    relay = calls.transport if isinstance(calls.transport, WebSocketServer) else server
    plain = await ends.plain(relay.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    await plain.hear()
    context = Context(on_progress=lambda _: None, on_question=refuse)
    for _ in range(5):  # more than are open at a time
        call = asyncio.create_task(calls.call("a.b", context=context))
        request = await plain.hear()
        await plain.say(kind, requestId=request["requestId"], **fields)
        with pytest.raises(CallError) as failure:
            await soon("the call ends", call)
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR
        aborted = await plain.hear()
        assert (aborted["type"], aborted["requestId"]) == ("call.aborted", request["requestId"])
    assert len(relay.routes) == 0


async def refuse(_: Question) -> Any:
    raise AssertionError("an invalid question is not asked")


async def test_responses_that_look_like_items_of_a_stream_do_not_use_up_the_calls_of_their_caller(ends: Ends) -> None:
    server, _ = await ends.server(max_calls=3)
    calls = await ends.calls(WebSocketTransport(server.url), echo=echo)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    await plain.hear()
    server.routes.announce(server.peers[-1], ["a.b"], ["a.b"])  # as a subscription
    for number in range(3):
        call = asyncio.create_task(calls.call("a.b"))
        request = await plain.hear()
        await plain.say("call.responded", requestId=request["requestId"], output={"data": number, "meta": META})
        assert (await soon("the call is answered", call)).data == number
    assert len(server.routes) == 3
    assert (await soon("the call is answered", calls.call("test.echo", 2))).data == 2
    assert [(await plain.hear())["type"] for _ in range(3)] == ["call.aborted"] * 3
