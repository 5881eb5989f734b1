"""`ResponseCache`, in front of a real HTTP API and of functions."""

import asyncio
from email.utils import formatdate
from typing import Any

import pytest

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.errors import UsageError
from opwire.openapi.client import from_openapi
from opwire.policies.cache import ResponseCache
from tests.openapi.client.documents import document
from tests.openapi.client.echo import EchoServer, Exchange, answer, json_answer

OK: dict[str, Any] = {"responses": {"200": {"description": ""}}}
QUERY = {"name": "q", "in": "query", "schema": {"type": "string"}}
ROOT = document(
    {
        "/x": {"get": {"operationId": "get", "parameters": [QUERY], **OK}, "post": {"operationId": "change", **OK}},
    }
)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """An API behind a registry with a cache."""

    def __init__(self, server: EchoServer, registry: OperationRegistry, clock: Clock, cache: ResponseCache) -> None:
        self.server = server
        self.registry = registry
        self.clock = clock
        self.cache = cache

    async def get(self, who: str | None = None, **input: Any) -> Any:
        context = Context(identity=None if who is None else Identity(id=who))
        return (await self.registry.execute("api.get", input, context)).data

    def says(self, value: Any, **headers: str) -> None:
        self.server.on(
            "/x", json_answer(value, headers={name.replace("_", "-"): each for name, each in headers.items()})
        )

    @property
    def asked(self) -> int:
        return len(self.server.arrived)


@pytest.fixture
async def stage() -> Any:
    clock = Clock()
    cache = ResponseCache(max_bytes=100_000, max_entries=50, clock=clock)
    async with EchoServer() as server, from_openapi(ROOT, namespace="api", base_url=server.url) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        registry.use(cache)
        yield Stage(server, registry, clock, cache)


async def test_a_result_is_returned_until_it_is_stale(stage: Stage) -> None:
    """A cached result is returned, as a copy, as long as the rules of the API call it fresh."""
    stage.says([1], Cache_Control='public, MAX-AGE="60"', Age="10")
    first = await stage.get()
    first.append("changed by a caller")
    stage.clock.now += 49
    second = await stage.get()
    second.append("as well")
    assert await stage.get() == [1]
    assert stage.asked == 1
    stage.clock.now += 2
    await stage.get()
    assert stage.asked == 2


@pytest.mark.parametrize(
    ("headers", "stored"),
    [
        ({}, False),
        ({"Cache_Control": "no-store, max-age=60"}, False),
        ({"Cache_Control": "max-age=60", "Vary": "*"}, False),
        ({"Cache_Control": "max-age=60", "Vary": "Accept-Language"}, True),
        ({"Cache_Control": "private, max-age=60"}, True),
        ({"Cache_Control": "no-cache, max-age=60"}, False),
        ({"Cache_Control": "max-age=x"}, False),
        ({"Cache_Control": "max-age=" + "9" * 400}, False),
        ({"Cache_Control": "max-age=60", "Age": "61"}, False),
        ({"Expires": formatdate(Clock.now + 60, usegmt=True)}, True),
        ({"Expires": formatdate(Clock.now - 60, usegmt=True)}, False),
        ({"Expires": "0"}, False),
        ({"Expires": "Thu, 99 Foo 99999 99:99:99"}, False),
    ],
)
async def test_the_rules_of_the_api_decide(stage: Stage, headers: dict[str, str], stored: bool) -> None:
    stage.says(1, **headers)
    assert [await stage.get(), await stage.get()] == [1, 1]
    assert stage.asked == (1 if stored else 2)


async def test_identities_and_inputs_have_their_own_results(stage: Stage) -> None:
    stage.says(1, Cache_Control="max-age=60")
    for who, q in (("ada", "x"), ("bob", "x"), (None, "x"), ("ada", "y")):
        await stage.get(who, q=q)
        await stage.get(who, q=q)
    assert stage.asked == 4


@pytest.mark.parametrize(
    ("validator", "condition"),
    [(("ETag", '"v1"'), "If-None-Match"), (("Last_Modified", "yesterday"), "If-Modified-Since")],
)
async def test_an_old_result_is_revalidated(stage: Stage, validator: tuple[str, str], condition: str) -> None:
    """An old result is revalidated with its ETag or date; a 304 makes it fresh again."""
    stage.says({"a": 1}, Cache_Control="max-age=10", **dict([validator]))
    assert await stage.get() == {"a": 1}
    assert stage.server.arrived[0].header(condition) is None
    stage.clock.now += 11
    stage.server.on("/x", answer(304, headers={"Cache-Control": "max-age=100"}))
    assert await stage.get() == {"a": 1}
    assert stage.server.arrived[1].header(condition) == validator[1]
    stage.clock.now += 99
    assert await stage.get() == {"a": 1}
    assert stage.asked == 2  # the 304 made it fresh
    stage.clock.now += 2
    stage.says({"a": 2})
    assert await stage.get() == {"a": 2}
    assert stage.server.arrived[2].header(condition) == validator[1]
    assert await stage.get() == {"a": 2}
    assert stage.server.arrived[3].header(condition) is None  # the newest result must not be stored


async def test_a_validator_that_is_not_a_valid_header_is_not_sent(stage: Stage) -> None:
    stage.says(1, Cache_Control="no-cache", ETag='"' + "x" * 2000 + '"')
    assert [await stage.get(), await stage.get()] == [1, 1]
    assert stage.server.arrived[1].header("if-none-match") is None


async def test_a_condition_is_not_inherited_by_nested_calls(stage: Stage) -> None:
    @stage.registry.query("outer.get")
    async def outer(context: Context) -> Any:
        return await context.env.api.get(q="nested")

    stage.says(1, Cache_Control="no-cache", ETag='"v1"')
    for _ in range(2):
        assert (await stage.registry.execute("outer.get")).data == 1
    stage.cache.clear("api")
    assert (await stage.registry.execute("outer.get")).data == 1
    assert stage.server.arrived[-1].header("if-none-match") is None


async def test_a_mutation_invalidates_its_namespace_even_if_it_fails(stage: Stage) -> None:
    stage.says(1, Cache_Control="max-age=60")
    await stage.get()
    await stage.registry.execute("api.change")
    await stage.get()
    assert stage.asked == 3
    stage.server.on("/x", answer(500))
    with pytest.raises(CallError):
        await stage.registry.execute("api.change")
    stage.says(2)
    assert await stage.get() == 2


async def test_what_was_read_before_a_mutation_is_not_stored_after_it(stage: Stage) -> None:
    go = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await go.wait()
        await exchange.send(json_answer("old", headers={"Cache-Control": "max-age=60"}))

    stage.server.on("/x", slow, json_answer("changed"), json_answer("new"))
    reading = asyncio.ensure_future(stage.get())
    await stage.server.requests(1)
    await stage.registry.execute("api.change")
    go.set()
    assert await reading == "old"
    assert await stage.get() == "new"


async def test_a_cache_is_bounded_in_entries_and_bytes(stage: Stage) -> None:
    stage.says("x" * 5_000, Cache_Control="max-age=60")
    for number in range(30):
        await stage.get(q=str(number))
    kept = len(stage.cache)
    assert 15 <= kept <= 18  # of 5.5 kB each
    await stage.get(q="29")
    assert stage.asked == 30
    stage.says("x" * 20_000, Cache_Control="max-age=60")
    await stage.get(q="large")
    assert len(stage.cache) == kept  # larger than an eighth of it
    stage.cache.clear()
    stage.says(1, Cache_Control="max-age=60")
    for number in range(60):
        await stage.get(q=str(number))
    assert len(stage.cache) == 50


async def test_functions_are_cached_for_a_time_if_that_is_given() -> None:
    clock, calls = Clock(), list[int]()
    registry = OperationRegistry()

    @registry.query("math.half")
    async def half(number: int) -> float:
        calls.append(number)
        return number / 2

    @registry.subscription("math.count")
    async def count() -> Any:
        yield 1

    remove = registry.use(ResponseCache(ttl=10, clock=clock))
    for _ in range(2):
        assert (await registry.execute("math.half", {"number": 3})).data == 1.5
    clock.now += 11
    await registry.execute("math.half", {"number": 3})
    assert calls == [3, 3]
    assert [item.data async for item in registry.subscribe("math.count")] == [1]
    remove()
    registry.use(ResponseCache())
    for _ in range(2):
        await registry.execute("math.half", {"number": 4})
    assert calls == [3, 3, 4, 4]


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"max_entries": 0}, {"ttl": -1}])
def test_numbers_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ResponseCache(**options)
