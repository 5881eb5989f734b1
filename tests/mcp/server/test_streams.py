"""Streams of sessions that break or are ended, and are resumed with `Last-Event-ID`."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire import CallError, Context, OperationRegistry
from opwire.mcp.client import HTTPServer, from_mcp
from opwire.mcp.server import streams
from opwire.mcp.server.streams import EventLog, EventStore, EventWriter, ResumableStream, follow
from opwire.model.origin import ITEM_META
from tests.mcp.server.raw import HANDSHAKE, call
from tests.mcp.server.shop import PATIENCE, until
from tests.mcp.server.test_app import GUEST, Browser, browsing

EVENTS_FIRST = "text/event-stream, application/json"


class Work:
    """A registry with a call that reports each step it is let do, and ends after the last."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.steps: asyncio.Queue[int | None] = asyncio.Queue()
        self.reported: list[int] = []

        @self.registry.mutation("a.work")
        async def work(context: Context) -> str:
            while (step := await self.steps.get()) is not None:
                context.report(step)
                self.reported.append(step)
            return "done"

        @self.registry.subscription("a.follow")
        async def follow() -> AsyncIterator[int]:
            while (step := await self.steps.get()) is not None:
                self.reported.append(step)
                yield step

        @self.registry.mutation("a.ask")
        async def ask(context: Context) -> bool:
            await self.steps.get()
            return bool(await context.elicit(bool, "Go on?", timeout=PATIENCE))

    def let(self, *steps: int | None) -> None:
        for step in steps:
            self.steps.put_nowait(step)


class Events:
    """The events of a response, as (id, message); an event without data has the message None."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.last = ""

    async def next(self) -> tuple[str, Any]:
        """The next event; there has to be one."""
        found = await self._read()
        assert found is not None
        return found

    async def _read(self) -> tuple[str, Any] | None:
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            async for line in self._response.content:
                name, _, value = line.decode().strip("\r\n").partition(": ")
                if name:
                    fields[name] = value
                elif "data" in fields:
                    self.last = fields.get("id", self.last)
                    return self.last, json.loads(fields["data"]) if fields["data"] else None
        return None

    async def all(self) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        while (event := await self._read()) is not None:
            found.append(event)
        return found


async def opened(browser: Browser, version: str = "2025-11-25", **capabilities: Any) -> str:
    """The id of a session of a revision, of a client with these capabilities."""
    params = {**HANDSHAKE[0]["params"], "protocolVersion": version, "capabilities": capabilities}
    async with browser.post({**HANDSHAKE[0], "params": params}) as response:
        session = response.headers["mcp-session-id"]
    async with browser.post(HANDSHAKE[1], Mcp_Session_Id=session) as response:
        assert response.status == 202
    return session


def progress_of(events: list[tuple[str, Any]]) -> list[float]:
    return [message["params"]["progress"] for _, message in events if message and "params" in message]


@pytest.mark.parametrize("while_away", [True, False])
async def test_after_its_connection_broke_a_client_gets_the_events_that_it_has_missed_and_the_response(
    while_away: bool,
) -> None:
    work = Work()
    async with browsing(work.registry, anonymous=GUEST) as browser:
        session = await opened(browser)
        work.let(1)
        async with browser.post(call("a_work", progressToken=1), Mcp_Session_Id=session) as response:
            events = Events(response)
            primed, progress = await events.next(), await events.next()
            assert primed[1] is None
            assert progress[1]["params"]["progress"] == 1
        work.let(2, *([None] if while_away else []))  # the response was closed in the middle
        await until(lambda: work.reported == [1, 2])
        async with browser.get(Mcp_Session_Id=session, Last_Event_ID=events.last) as response:
            if not while_away:
                work.let(3, None)
            resumed = await Events(response).all()
    assert progress_of(resumed) == ([2] if while_away else [2, 3])
    answers = [message for _, message in resumed if message and "result" in message]
    assert [answer["result"]["structuredContent"] for answer in answers] == [{"result": "done"}]
    assert len({id for id, _ in resumed}) == len(resumed)


async def test_a_server_that_ends_its_streams_is_polled_until_the_response_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "RETRY_MILLISECONDS", 100)
    work = Work()
    options: dict[str, Any] = {"anonymous": GUEST, "poll_after": 0.05}
    registry, seen = OperationRegistry(), list[float]()
    async with (
        browsing(work.registry, **options) as browser,
        from_mcp(HTTPServer(browser.url), namespace="far", revision="2025-11-25") as source,
    ):
        registry.follow(source)
        context = Context(on_progress=lambda report: seen.append(report.progress))
        calling = asyncio.create_task(registry.execute("far.a_work", {}, context))
        for step in (1, 2, 3):
            work.let(step)
            await until(lambda step=step: seen == [*range(1, step + 1)])
        work.let(None)
        assert (await calling).data == "done"


async def test_a_client_that_loses_its_stream_in_the_middle_of_a_subscription_gets_the_rest() -> None:
    work = Work()
    async with browsing(work.registry, anonymous=GUEST) as browser:
        session = await opened(browser)
        work.let(10)
        async with browser.post(call("a_follow", progressToken=1), Mcp_Session_Id=session) as response:
            events = Events(response)
            await events.next()
            first = (await events.next())[1]
        work.let(20)
        await until(lambda: work.reported == [10, 20])
        async with browser.get(Mcp_Session_Id=session, Last_Event_ID=events.last) as response:
            work.let(30, None)
            messages = [message for _, message in await Events(response).all() if message]
    *items, answer = [first, *messages]
    assert [item["params"]["_meta"][ITEM_META] for item in items] == [
        {"n": 0, "data": 10},
        {"n": 1, "data": 20},
        {"n": 2, "data": 30},
    ]
    assert answer["result"]["structuredContent"] == {"items": [10, 20, 30], "complete": True}


async def test_a_subscription_of_another_opwire_goes_on_when_its_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RETRY_MILLISECONDS", 100)
    work = Work()
    options: dict[str, Any] = {"anonymous": GUEST, "poll_after": 0.05}
    registry, seen = OperationRegistry(), list[int]()
    async with (
        browsing(work.registry, **options) as browser,
        from_mcp(HTTPServer(browser.url), revision="2025-11-25", trust_annotations=True) as source,
    ):
        registry.follow(source)

        async def consume() -> None:
            async for envelope in registry.subscribe("a.follow"):
                seen.append(envelope.data)

        consuming = asyncio.create_task(consume())
        for step in (1, 2, 3):
            work.let(step)
            await until(lambda step=step: seen == [*range(1, step + 1)])
        work.let(None)
        async with asyncio.timeout(PATIENCE):
            await consuming
    assert seen == [1, 2, 3]


async def test_an_event_is_known_in_its_own_session_only() -> None:
    work = Work()
    async with browsing(work.registry, anonymous=GUEST) as browser:
        session, other = await opened(browser), await opened(browser)
        work.let(1)
        async with browser.post(call("a_work", progressToken=1), Mcp_Session_Id=session) as response:
            events = Events(response)
            await events.next()
        for id in (events.last, "99.1", "-1.0", "a.b", "1" * 5000, ""):
            async with browser.get(Mcp_Session_Id=other, Last_Event_ID=id) as response:
                assert response.status == 400, id
                assert "not kept" in (await response.json())["error"]["message"]
        async with browser.get(Mcp_Session_Id=session, Last_Event_ID=events.last) as response:
            work.let(None)
            assert response.status == 200
            assert "result" in (await Events(response).all())[-1][1]


async def test_the_stream_of_a_session_is_resumed_even_if_the_server_believes_in_the_old_connection() -> None:
    work = Work()
    async with browsing(work.registry, anonymous=GUEST) as browser:
        session = await opened(browser)
        async with browser.get(Mcp_Session_Id=session) as first:
            old = Events(first)
            primed = await old.next()
            work.registry.query("a.more")(lambda: 1)
            await old.next()
            async with browser.get(Mcp_Session_Id=session, Last_Event_ID=primed[0]) as second:
                new = Events(second)
                assert (await new.next())[1]["method"] == "notifications/tools/list_changed"
                assert (await new.next())[1] is None
                assert await old.all() == []  # the old one has ended
                work.registry.unregister("a.more")
                assert (await new.next())[1]["method"] == "notifications/tools/list_changed"


async def test_a_question_waits_for_a_client_that_resumes_the_stream() -> None:
    work = Work()
    async with browsing(work.registry, anonymous=GUEST, poll_after=0.5) as browser:
        session = await opened(browser, elicitation={})
        async with browser.post(call("a_ask"), Mcp_Session_Id=session) as response:
            events = Events(response)
            assert [message for _, message in await events.all()] == [None]
        work.let(1)
        seen, asked = events.last, None
        while asked is None:
            async with browser.get(Mcp_Session_Id=session, Last_Event_ID=seen) as response:
                events = Events(response)
                asked = next((message for _, message in await events.all() if message), None)
                seen = events.last
        assert asked["method"] == "elicitation/create"
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"value": True}}}
        async with browser.post(answer, Mcp_Session_Id=session) as response:
            assert response.status == 202
        async with browser.get(Mcp_Session_Id=session, Last_Event_ID=seen) as response:
            assert (await Events(response).all())[-1][1]["result"]["structuredContent"] == {"result": True}


async def test_a_question_after_the_response_is_rejected_at_once() -> None:
    registry, asking = OperationRegistry(), list[asyncio.Task[Any]]()

    @registry.mutation("a.later")
    async def later(context: Context) -> str:
        async def ask() -> None:
            async with asyncio.timeout(PATIENCE):
                await answered.wait()
                await context.elicit(bool, "Go on?", timeout=2 * PATIENCE)

        asking.append(asyncio.create_task(ask()))
        return "done"

    answered = asyncio.Event()
    async with browsing(registry, anonymous=GUEST) as browser:
        session = await opened(browser, elicitation={})
        async with browser.post(call("a_later"), Mcp_Session_Id=session) as response:
            assert response.content_type == "application/json"
        answered.set()
        with pytest.raises(CallError, match="disconnected, and cannot be asked"):
            await asking[0]


@pytest.mark.parametrize(("version", "accept", "kind"), [
    ("2025-11-25", EVENTS_FIRST, "text/event-stream"),
    ("2025-11-25", "application/json, text/event-stream", "application/json"),
    ("2025-06-18", EVENTS_FIRST, "application/json"),
])  # fmt: skip
async def test_a_client_that_prefers_events_gets_a_stream_at_once_if_its_revision_can_begin_with_an_id(
    version: str, accept: str, kind: str
) -> None:
    async with browsing(anonymous=GUEST) as browser:
        session = await opened(browser, version)
        adding = call("math_add", {"a": 1, "b": 2})
        async with browser.post(adding, Mcp_Session_Id=session, Accept=accept) as response:
            assert response.content_type == kind
            assert ("retry: 1000" in await response.text()) is (kind != "application/json")


async def test_events_of_older_revisions_have_ids_but_none_is_without_data() -> None:
    work = Work()
    work.let(1, None)
    async with browsing(work.registry, anonymous=GUEST) as browser:
        session = await opened(browser, "2025-06-18")
        async with browser.post(call("a_work", progressToken=1), Mcp_Session_Id=session) as response:
            events = await Events(response).all()
    assert [bool(id and message) for id, message in events] == [True, True]


# --- what is kept -----------------------------------------------------------------------------------------------------


async def discard(message: Any) -> None:
    """Send nothing."""


async def stream_of(log: EventLog) -> ResumableStream:
    """A stream that has begun, after its client has left."""
    stream = ResumableStream(log)
    writer = EventWriter(discard, (), stream.preface)
    stream.attach(writer)
    await writer.ping()
    stream.detach()
    return stream


def resumes(log: EventLog, stream: ResumableStream) -> bool:
    return log.find(f"{stream.number}.0") is not None


@pytest.mark.parametrize(("limit", "value"), [("MAX_EVENTS", 2), ("MAX_EVENT_BYTES", 20), ("MAX_ALL_EVENT_BYTES", 20)])
async def test_the_oldest_events_are_forgotten_and_a_stream_with_its_response(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """Events for resumption are bounded in count, bytes and time."""
    monkeypatch.setattr(streams, limit, value)
    log = EventLog(EventStore())
    old, new = await stream_of(log), await stream_of(log)
    await old.finish(b"1" * 10)
    await new.event(b"2" * 10)
    assert resumes(log, old)
    await new.event(b"3" * 10)
    assert not resumes(log, old)
    assert [each.data[:1] for each in log.after(new, 0)] == [b"2", b"3"]
    await new.finish(b"4" * 21)
    assert resumes(log, new) is (limit == "MAX_EVENTS")
    log.clear()
    assert log.size == 0


async def test_the_session_with_most_events_makes_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_ALL_EVENT_BYTES", 40)
    store = EventStore()
    small, large = EventLog(store), EventLog(store)
    first, second = await stream_of(small), await stream_of(large)
    await first.event(b"1" * 10)
    for _ in range(5):
        await second.event(b"2" * 10)
    assert (small.size, large.size) == (10, 30)
    large.clear()
    await first.event(b"1" * 30)
    assert small.size == 40


async def test_a_long_event_displaces_a_thousand_short_ones_and_an_ended_session_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MAX_ALL_EVENT_BYTES", 8_000)
    monkeypatch.setattr(streams, "MAX_EVENTS", 10_000)
    store = EventStore()
    first, second = EventLog(store), EventLog(store)
    short, long = await stream_of(first), await stream_of(second)
    for _ in range(5_000):
        await short.event(b"1")
    await long.event(b"2" * 4_000)
    assert (first.size, second.size) == (4_000, 4_000)
    second.clear()
    await long.finish(b"3")
    assert (second.size, len(second.after(long, 0))) == (0, 0)


async def test_events_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EVENT_LIFETIME", 0.05)
    log = EventLog(EventStore())
    stream = await stream_of(log)
    await stream.finish(b"1")
    await until(lambda: not resumes(log, stream))
    assert log.size == 0


async def test_a_connection_that_blocks_does_not_delay_the_client_that_comes_back() -> None:
    log = EventLog(EventStore())
    stream, sent = ResumableStream(log), list[Any]()

    async def block(message: Any) -> None:
        if message["type"] == "http.response.body" and b"data: 1" in message["body"]:
            await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    stream.attach(EventWriter(block, (), stream.preface))
    blocked = asyncio.create_task(stream.event(b"1"))
    await until(lambda: log.size == 1)
    assert not blocked.done()
    writer = EventWriter(send)
    stream.attach(writer)
    await stream.resume(writer, 0)
    async with asyncio.timeout(PATIENCE):
        await blocked
    await stream.finish(b"2")
    assert [line for line in b"".join(sent).decode().splitlines() if "data" in line] == ["data: 1", "data: 2"]


async def test_a_response_past_its_time_begins_so_that_its_stream_can_be_resumed() -> None:
    log, sent = EventLog(EventStore()), list[Any]()
    log.primes = True
    stream = ResumableStream(log)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    writer = EventWriter(send, (), stream.preface)
    call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(PATIENCE):
        assert not await follow(call, writer, receive, within=0)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert log.find(sent[1]["body"].split()[1].decode()) == (stream, 1)
