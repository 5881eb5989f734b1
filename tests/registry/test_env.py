"""Operations as callables, and calls made on behalf of another call."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire import (
    AccessControl,
    CallError,
    Context,
    ErrorCode,
    Identity,
    OperationRegistry,
    OperationSpec,
    ResponseEnvelope,
    build_env,
)
from tests.chaos.virtual_time import run_virtually

ANN = Identity(id="ann", scopes=("read",))


def described(context: Context) -> dict[str, Any]:
    return {
        "request": context.request_id,
        "parent": context.parent_request_id,
        "identity": context.identity.id if context.identity else None,
        "deadline": context.deadline,
        "metadata": dict(context.metadata),
    }


@pytest.fixture
def registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("math.add")
    async def add(a: int, b: int = 10) -> int:
        return a + b

    @registry.query("context.own")
    async def own(context: Context) -> dict[str, Any]:
        return described(context)

    @registry.query("context.nested")
    async def nested(context: Context) -> list[Any]:
        inner = await context.env.context.own()
        return [described(context), inner.data]

    @registry.subscription("clock.ticks")
    async def ticks(count: int = 2) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    registry.register(OperationSpec(namespace="api", name="repos/get.v1"), lambda input, context: input)
    return registry


async def test_operations_are_callables_by_attribute_and_by_item(registry: OperationRegistry) -> None:
    env = build_env(registry)
    envelopes = [
        await env.math.add(a=1, b=2),
        await env["math"]["add"](a=1, b=2),
        await env.math["add"]({"a": 1, "b": 2}),
        await env["math"].add({"a": 1}, b=2),
    ]
    assert all(isinstance(envelope, ResponseEnvelope) for envelope in envelopes)
    assert [envelope.data for envelope in envelopes] == [3, 3, 3, 3]
    assert (await env.math.add({"a": 1})).data == 11


async def test_names_that_are_not_identifiers_are_reached_by_item_and_input_need_not_be_an_object(
    registry: OperationRegistry,
) -> None:
    env = build_env(registry)
    assert (await env.api["repos/get.v1"]([1, 2])).data == [1, 2]
    assert (await env.api["repos/get.v1"]()).data is None
    assert (await env.api["repos/get.v1"](input=5, context=6)).data == {"input": 5, "context": 6}


async def test_a_subscription_is_a_callable_that_gives_envelopes(registry: OperationRegistry) -> None:
    assert [envelope.data async for envelope in build_env(registry).clock.ticks(count=3)] == [0, 1, 2]


async def test_an_env_sees_operations_that_are_registered_after_it_was_made(registry: OperationRegistry) -> None:
    env = build_env(registry)
    with pytest.raises(CallError, match="OPERATION_NOT_FOUND"):
        await env.late.one()
    registry.query("late.one")(lambda: 1)
    assert (await env.late.one()).data == 1


def test_an_env_says_what_it_is_and_has_no_dunder_attributes_of_its_own(registry: OperationRegistry) -> None:
    env = build_env(registry)
    assert repr(env) == f"<Env of {registry!r}>"
    assert (repr(env.math), repr(env.math.add)) == ("<Namespace math>", "<EnvCall math.add>")
    assert not hasattr(env, "__wrapped__")
    assert not hasattr(env.math, "__wrapped__")


def test_an_env_and_its_namespaces_read_like_mappings(registry: OperationRegistry) -> None:
    """An env and its namespaces have the mapping protocol: iteration, length, membership, dir()."""
    env: Any = build_env(registry)
    assert list(env) == ["math", "context", "clock", "api"]
    assert (len(env), len(env.context), len(env.nothing)) == (4, 2, 0)
    assert "math" in env
    assert "add" in env.math
    assert ("mat" in env, 0 in env, "sub" in env.math, "any" in env.nothing) == (False, False, False, False)
    assert list(env.context) == ["own", "nested"]
    assert {name: repr(each) for name, each in dict(env).items()}["math"] == "<Namespace math>"
    assert {name: repr(each) for name, each in {**env.math}.items()} == {"add": "<EnvCall math.add>"}
    registry.query("late.one")(lambda: 1)
    assert list(env)[-1] == "late"


def test_dir_names_what_can_be_written_as_an_attribute(registry: OperationRegistry) -> None:
    env = build_env(registry)
    assert {"math", "clock", "__class__"} <= set(dir(env))
    assert "add" in dir(env.math)
    assert "repos/get.v1" not in dir(env.api)
    assert list(env.api._ipython_key_completions_()) == ["repos/get.v1"]


async def test_operations_may_have_the_names_of_methods_of_mappings(registry: OperationRegistry) -> None:
    for name in ("keys", "get", "items", "values"):
        registry.query(f"store.{name}")(lambda name=name: name)
    env = build_env(registry)
    assert [(await env.store[name]()).data for name in env.store] == ["keys", "get", "items", "values"]
    assert (await env.store.keys()).data == "keys"
    assert (await env.store.get()).data == "get"


def test_what_is_not_a_name_is_not_a_key(registry: OperationRegistry) -> None:
    env: Any = build_env(registry)
    for each in (env, env.math):
        with pytest.raises(KeyError):
            each[0]
        with pytest.raises(TypeError):
            reversed(each)
    assert env
    assert build_env(OperationRegistry())


def test_a_checked_env_shows_what_its_identity_may_call(guarded: OperationRegistry) -> None:
    env = build_env(guarded, Context(identity=ANN), checked=True)
    assert "files" in env
    assert list(env.files) == ["read", "motd"]
    assert list(build_env(guarded, checked=True)) == ["files"]
    assert "math" in build_env(guarded)
    assert list(build_env(guarded).files) == ["read", "purge", "motd", "watch"]


async def test_a_nested_call_carries_identity_deadline_and_metadata_on_and_knows_its_parent(
    registry: OperationRegistry,
) -> None:
    deadline = time.monotonic() + 60
    context = Context(request_id="r1", identity=ANN, deadline=deadline, metadata={"trace": 7})
    outer, inner = (await registry.execute("context.nested", context=context)).data
    assert outer == {"request": "r1", "parent": None, "identity": "ann", "deadline": deadline, "metadata": {"trace": 7}}
    assert inner["request"] not in (None, "r1")
    assert inner == {**outer, "request": inner["request"], "parent": "r1"}


async def test_calls_through_an_env_of_a_context_are_its_children(registry: OperationRegistry) -> None:
    env = build_env(registry, Context(request_id="r1", identity=ANN))
    first, second = (await env.context.own()).data, (await env.context.own()).data
    assert [each["parent"] for each in (first, second)] == ["r1", "r1"]
    assert [each["identity"] for each in (first, second)] == ["ann", "ann"]
    assert first["request"] != second["request"]


async def test_a_call_two_levels_down_knows_the_call_one_level_down_as_its_parent(registry: OperationRegistry) -> None:
    @registry.query("context.deep")
    async def deep(context: Context) -> list[Any]:
        return [described(context), *(await context.env.context.nested()).data]

    outer, middle, inner = (await registry.execute("context.deep", context=Context(request_id="r1"))).data
    assert (outer["request"], middle["parent"], inner["parent"]) == ("r1", "r1", middle["request"])


async def test_a_handler_called_without_a_context_can_still_call_others(registry: OperationRegistry) -> None:
    _, inner = (await registry.execute("context.nested")).data
    assert (inner["identity"], inner["deadline"]) == (None, None)


async def test_the_timeout_of_an_operation_bounds_the_calls_that_it_makes(registry: OperationRegistry) -> None:
    @registry.query("a.inner", timeout=60)
    async def inner(context: Context) -> float | None:
        return context.remaining

    @registry.query("a.outer", timeout=5)
    async def outer(context: Context) -> float:
        return (await context.env.a.inner()).data

    @registry.query("a.hurried", timeout=2)
    async def hurried(context: Context) -> float:
        return (await context.env.a.outer()).data

    assert 5 < (await registry.execute("a.inner")).data <= 60
    assert 0 < (await registry.execute("a.outer")).data <= 5
    assert 0 < (await registry.execute("a.hurried")).data <= 2


def test_a_nested_call_that_hangs_ends_at_the_deadline_of_the_outermost(registry: OperationRegistry) -> None:
    cancelled = asyncio.Event()

    @registry.query("a.hang")
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @registry.query("a.outer", timeout=5)
    async def outer(context: Context) -> None:
        await context.env.a.hang()

    async def run() -> None:
        async with asyncio.timeout(10):
            await registry.execute("a.outer")

    with pytest.raises(CallError) as caught:
        run_virtually(run())
    assert caught.value.code is ErrorCode.TIMEOUT
    assert cancelled.is_set()


async def test_cancelling_a_call_cancels_the_calls_that_it_makes(registry: OperationRegistry) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @registry.query("a.hang")
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @registry.query("a.outer")
    async def outer(context: Context) -> None:
        await context.env.a.hang()

    task = asyncio.create_task(registry.execute("a.outer"))
    async with asyncio.timeout(10):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cancelled.is_set()


async def test_an_error_of_a_nested_call_is_the_error_of_the_outer_one_unless_it_is_caught(
    registry: OperationRegistry,
) -> None:
    @registry.query("a.outer")
    async def outer(context: Context) -> None:
        await context.env.math.add(a="one")

    with pytest.raises(CallError, match=r"VALIDATION_ERROR: math\.add"):
        await registry.execute("a.outer")


@pytest.fixture
def guarded(registry: OperationRegistry) -> OperationRegistry:
    registry.query("files.read", access=AccessControl(required_scopes=("read",)))(lambda: "text")
    registry.query("files.purge", access=AccessControl(required_scopes=("purge",)))(lambda: "gone")
    registry.query("files.motd", access=AccessControl(public=True))(lambda: "hello")

    @registry.subscription("files.watch", access=AccessControl(required_scopes=("watch",)))
    async def watch() -> AsyncIterator[int]:
        yield 1

    return registry


async def test_a_checked_env_lets_pass_what_the_identity_may_call_and_nothing_else(guarded: OperationRegistry) -> None:
    env = build_env(guarded, Context(identity=ANN), checked=True)
    assert (await env.files.read()).data == "text"
    with pytest.raises(CallError, match="ACCESS_DENIED"):
        await env.files.purge()
    with pytest.raises(CallError, match="ACCESS_DENIED"):
        env.files.watch()


async def test_a_checked_env_without_an_identity_reaches_public_operations_only(guarded: OperationRegistry) -> None:
    for env in (build_env(guarded, checked=True), build_env(guarded, Context(), checked=True)):
        assert (await env.files.motd()).data == "hello"
        with pytest.raises(CallError, match="UNAUTHENTICATED"):
            await env.files.read()


async def test_a_handler_that_is_called_through_a_checked_env_has_a_checked_env_too(guarded: OperationRegistry) -> None:
    """A checked env applies access control to the calls made through it."""

    @guarded.query("files.tidy", access=AccessControl(required_scopes=("read",)))
    async def tidy(context: Context) -> object:
        return (await context.env.files.purge()).data

    assert (await build_env(guarded, Context(identity=ANN)).files.tidy()).data == "gone"
    with pytest.raises(CallError, match="ACCESS_DENIED"):
        await build_env(guarded, Context(identity=ANN), checked=True).files.tidy()


async def test_an_env_is_trusted_unless_it_is_checked(guarded: OperationRegistry) -> None:
    assert (await build_env(guarded).files.purge()).data == "gone"
    assert (await build_env(guarded, Context(identity=ANN)).files.purge()).data == "gone"


async def test_an_unknown_operation_is_not_found_in_a_checked_env_too(guarded: OperationRegistry) -> None:
    with pytest.raises(CallError, match="OPERATION_NOT_FOUND"):
        await build_env(guarded, checked=True).files.rename()


async def test_a_subscription_through_an_env_carries_the_context_on_too() -> None:
    registry = OperationRegistry()

    @registry.subscription("who.asks")
    async def asks(context: Context) -> AsyncIterator[Any]:
        yield [context.identity and context.identity.id, context.parent_request_id]

    env = build_env(registry, Context(request_id="parent", identity=ANN))
    assert [envelope.data async for envelope in env.who.asks()] == [[ANN.id, "parent"]]
