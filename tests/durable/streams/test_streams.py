"""Durable streams: every reader gets each item once and in order, across restarts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import Any

import pytest

from opwire import Client, OperationRegistry
from opwire.client import Retries
from opwire.durable import streams
from opwire.durable.jetstream.session import ApiResponse
from opwire.durable.streams import MAX_BATCH_ITEMS, DurableStream, MemoryStream
from opwire.durable.streams.jetstream import NatsStream
from opwire.durable.streams.redis import RedisStream
from opwire.errors import CallError, ErrorCode, UsageError, is_resume_error
from opwire.hub import Hub, Spoke
from opwire_conformance.harness import soon
from tests.hub.meeting import OPEN
from tests.servers.brokers import NatsServer, RedisServer
from tests.servers.leaks import Leaks
from tests.transports.redis.ends import ask

Make = Callable[..., DurableStream]


@pytest.fixture(params=["memory", "redis", "nats"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes ends of one new stream."""
    name = f"test-{token_hex(4)}"
    if request.param == "memory":
        made: dict[str, MemoryStream] = {}
        yield lambda **options: made.setdefault(name, MemoryStream(name, **options))
    elif request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        async with Leaks():
            yield lambda **options: RedisStream(url, name, **options)
    else:
        url = request.getfixturevalue("jetstream_server").url
        async with Leaks():
            yield lambda **options: NatsStream(url, name, **options)


async def take(items: Any, count: int) -> list[Any]:
    return [(await soon("an item arrives", anext(items))).data for _ in range(count)]


async def failure(items: Any) -> CallError:
    with pytest.raises(CallError) as raised:
        await soon("it fails", anext(items))
    return raised.value


async def test_stored_items_come_first_and_new_ones_as_they_are_appended(make: Make) -> None:
    """A durable stream gives the stored items, then each new one, in order and once."""
    async with make() as writer, make() as reader:
        count = MAX_BATCH_ITEMS + 10
        cursors = [await writer.append({"n": number}) for number in range(count)]
        assert len(set(cursors)) == count
        async with aclosing(reader.follow()) as items, aclosing(reader.follow("new")) as fresh:
            assert await take(items, count) == [{"n": number} for number in range(count)]
            waiting = asyncio.create_task(take(fresh, 2))
            following = asyncio.create_task(take(items, 2))
            await asyncio.sleep(0.05)  # both wait by now, or read later: the result is the same
            for value in ("é", None):
                await writer.append(value)
            assert await following == ["é", None]
            assert (await waiting)[-1] is None


async def test_any_end_continues_behind_any_item(make: Make) -> None:
    async with make() as writer, make() as reader:
        cursors = [await writer.append(number) for number in range(5)]
        for number, cursor in enumerate(cursors[:-1]):
            async with aclosing(reader.follow(resume_from=cursor)) as items:
                assert await take(items, 4 - number) == list(range(number + 1, 5))
        async with aclosing(reader.follow(resume_from=cursors[-1])) as items:
            waiting = asyncio.create_task(take(items, 1))
            await writer.append("next")
            assert await waiting == ["next"]


async def test_items_that_were_discarded_are_an_error_and_not_a_gap(make: Make) -> None:
    """A durable stream is bounded; a reader that missed items gets an error, and never a gap."""
    async with make(max_items=10) as stream:
        first = await stream.append("first")
        async with aclosing(stream.follow()) as slow:
            assert await take(slow, 1) == ["first"]
            for number in range(400):  # Redis discards a hundred at a time
                last = await stream.append(number)
            for items in (slow, stream.follow(resume_from=first)):
                assert is_resume_error(await failure(items))
        async with aclosing(stream.follow()) as items:
            kept = await take(items, 10)
            assert kept == list(range(kept[0], kept[0] + 10))
            assert kept[0] > 0
        async with aclosing(stream.follow(resume_from=last)) as items:
            waiting = asyncio.create_task(take(items, 1))
            await stream.append("next")
            assert await waiting == ["next"]


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "999999",
        "9" * 30,
        "-1",
        "1-0",
        "99999999999999-0",
        f"{2**64}-0",
        f"{'9' * 20}-1",
        f"1-{2**64}",
        "1-0 ",
        "٣",
    ],
)
async def test_a_cursor_of_another_stream_is_refused(make: Make, cursor: str) -> None:
    async with make() as stream:
        await stream.append(1)
        assert is_resume_error(await failure(stream.follow(resume_from=cursor)))


async def test_what_has_no_json_form_or_is_too_large_is_not_stored(make: Make) -> None:
    async with make() as stream:
        for value, code in ((object(), ErrorCode.VALIDATION_ERROR), ("x" * 2**20, ErrorCode.PAYLOAD_TOO_LARGE)):
            with pytest.raises(CallError) as raised:
                await stream.append(value)
            assert raised.value.code is code
        await stream.append("stored")
        async with aclosing(stream.follow()) as items:
            assert await take(items, 1) == ["stored"]


async def test_an_item_that_no_message_can_hold_is_text_and_the_next_one_follows(make: Make) -> None:
    registry = OperationRegistry()
    async with make() as stream, Hub(url="ws://127.0.0.1:0", authenticate=OPEN) as hub:
        registry.subscription("orders.follow")(stream.follow)
        deep, flat = b"[" * 300 + b"]" * 300, b"[" + b"[]," * 300 + b"[]]"
        dense = b"[" + b"[]," * 100_000 + b"0]"
        for stored in (deep, dense, flat, b'"next"'):
            await stream.store(stored)
        async with (
            Spoke(registry, hub.url),
            Spoke(None, hub.url) as reader,
            aclosing(reader.calls.subscribe("orders.follow")) as items,
        ):
            assert await take(items, 4) == [deep.decode(), dense.decode(), [[]] * 301, "next"]


async def test_items_are_decoded_one_by_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(streams, "decode_item", lambda encoded: decoded.append(encoded) or encoded)
    async with make() as stream:
        for number in range(MAX_BATCH_ITEMS):
            await stream.append(number)
        async with aclosing(stream.follow()) as items:
            await take(items, 2)
    assert decoded == [b"0", b"1"]  # 64 items of 1 MB can take gigabytes


async def test_entries_of_other_programs_in_redis_are_objects(redis_server: RedisServer) -> None:
    """What other programs have written to a stream of Redis or JetStream is read, too."""
    name = f"foreign-{token_hex(4)}"
    async with RedisStream(redis_server.url, name) as stream:
        following = asyncio.create_task(take(stream.follow(), 2))
        ask(redis_server, "XADD", name, "*", "article", "tea", "price", "4.5")
        ask(redis_server, "XADD", name, "*", "data", b"\xff")
        assert await following == [{"article": "tea", "price": "4.5"}, b"\xff"]


async def test_messages_of_other_programs_in_jetstream_are_json_or_text(jetstream_server: NatsServer) -> None:
    name = f"foreign-{token_hex(4)}"
    async with NatsStream(jetstream_server.url, name, subject=f"{name}.a") as stream:
        following = asyncio.create_task(take(stream.follow(), 3))
        for payload in (b"{}", b"plain text", b"3"):
            stream.session.send(f"{name}.a", payload)
        assert await following == [{}, "plain text", 3]
        await stream.session.api(ApiResponse, f"STREAM.MSG.DELETE.{name}", {"seq": 2})
        assert await take(stream.follow(), 2) == [{}, 3]
        assert await take(stream.follow(resume_from="1"), 1) == [3]


def test_invalid_names_and_numbers_are_rejected() -> None:
    for make in (
        lambda: RedisStream("redis://127.0.0.1", ""),
        lambda: RedisStream("redis://127.0.0.1", "a", max_items=0),
        lambda: NatsStream("nats://127.0.0.1", "a.b"),
        lambda: NatsStream("nats://127.0.0.1", "a", replicas=0),
        *(
            partial(NatsStream, "nats://127.0.0.1", "a", subject=each)
            for each in ("a b", "a\r\nPING", "a.*", ">", "a..b", "")
        ),
        lambda: MemoryStream(max_items=0),
    ):
        with pytest.raises(UsageError):
            make()


# --- restarts ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(make: Callable[[], DurableStream], url: str) -> AsyncIterator[None]:
    async with make() as stream:
        registry = OperationRegistry()
        registry.subscription("log.follow")(stream.follow)
        async with Spoke(registry, url):
            yield


@pytest.mark.parametrize("engine", ["redis", "nats"])
async def test_a_subscription_survives_restarts_of_the_broker_and_of_its_server(
    engine: str, own_redis: Callable[..., RedisServer], own_nats: Callable[..., NatsServer]
) -> None:
    broker = own_redis(appendonly="yes", appendfsync="always") if engine == "redis" else own_nats(jetstream=True)
    kind = RedisStream if engine == "redis" else NatsStream
    got, last = list[int](), 300

    async def append(writer: DurableStream) -> None:
        for number in range(last + 1):
            for attempt in range(200):
                try:
                    await writer.append([number, attempt])
                    break
                except CallError:  # may be stored nevertheless, so that the next attempt is a second item
                    await asyncio.sleep(0.05)

    async def follow(client: Client) -> None:
        async for number, _ in client.subscribe("log.follow", resume=True):
            if not got or got[-1] != number:
                got.append(number)
            if number == last:
                return

    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(Hub(None, "ws://127.0.0.1:0", authenticate=OPEN))
        writer = await stack.enter_async_context(kind(broker.url, "log"))
        client = await stack.enter_async_context(Client(hub.url, retries=Retries(max_back_off=0.1)))
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(serving(lambda: kind(broker.url, "log"), hub.url))
        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(append(writer))
            group.create_task(follow(client))
            for _ in range(2):
                await asyncio.sleep(0.1)  # when it is killed does not decide the result
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            await stack.enter_async_context(serving(lambda: kind(broker.url, "log"), hub.url))
            await first.aclose()
    assert got == list(range(last + 1))
