"""Interceptors of a client: around every call, and around each item of a subscription, over every target."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire import CallError, Context, ErrorCode, Handler, OperationRegistry, OperationSpec, OperationType, SyncClient
from opwire.client import Client, Retries
from opwire.model.envelope import ResponseEnvelope, local_envelope
from tests.client.samples import Samples, Way


class Recorder:
    """An interceptor that records what passes through it."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.wrapped: list[tuple[str, OperationType]] = []
        self.log: list[Any] = []

    def __call__(self, spec: OperationSpec, handler: Handler) -> Handler:
        self.wrapped.append((spec.id, spec.type))

        async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
            self.log.append((f"{self.name}>", spec.id, input, context.deadline is not None))
            try:
                envelope = await handler(input, context)
            except CallError as error:
                self.log.append(error.code)
                raise
            self.log.append((f"<{self.name}", envelope.data))
            return envelope

        async def items(input: Any, context: Context) -> AsyncIterator[ResponseEnvelope[Any]]:
            try:
                async for item in handler(input, context):
                    self.log.append(item.data)
                    yield local_envelope(item.data * 10, spec.id)
            finally:
                self.log.append("closed")

        return items if spec.type is OperationType.SUBSCRIPTION else call


async def test_an_interceptor_is_around_every_call(way: Way, samples: Samples) -> None:
    recorder = Recorder()
    async with way(samples.registry) as client:
        client.use(recorder)
        assert await client.call("math.add", {"a": 1}) == 3
        assert (await client.call_envelope("math.add", {"a": 2})).data == 4
        with pytest.raises(CallError, match="once a minute"):
            await client.call("fail.always")
    assert recorder.log == [
        (">", "math.add", {"a": 1}, True),
        ("<", 3),
        (">", "math.add", {"a": 2}, True),
        ("<", 4),
        (">", "fail.always", None, True),
        ErrorCode.RATE_LIMITED,
    ]
    query = OperationType.QUERY
    assert recorder.wrapped == [("math.add", query), ("fail.always", query)]  # once for each operation


async def test_an_interceptor_is_around_each_item_of_a_subscription(way: Way, samples: Samples) -> None:
    recorder = Recorder()
    async with way(samples.registry) as client:
        client.use(recorder)
        assert [item async for item in client.subscribe("clock.ticks", {"count": 3})] == [0, 10, 20]
        assert recorder.log == [0, 1, 2, "closed"]
        items = client.subscribe("clock.quiet")
        assert await anext(items) == 10
        await items.aclose()  # and the producer stops
        assert recorder.log[4:] == [1, "closed"]
        assert await client.call("math.add", {"a": 1}) == 3
        await asyncio.wait_for(samples.stopped.wait(), 10)
    assert [type for _, type in recorder.wrapped] == [
        OperationType.SUBSCRIPTION,
        OperationType.SUBSCRIPTION,
        OperationType.QUERY,
    ]


async def test_the_first_interceptor_is_the_outermost_and_may_answer_itself() -> None:
    outer, inner = Recorder("outer"), Recorder("inner")

    def replace_answer(spec: OperationSpec, handler: Handler) -> Handler:
        async def call(input: Any, context: Context) -> Any:
            return local_envelope("approved", spec.id) if input == {"a": 0} else await handler(input, context)

        return call

    async with Client(Samples().registry) as client:
        remove = client.use(outer)
        client.use(inner)
        assert await client.call("math.add", {"a": 1}) == 3
        assert [entry[0] for entry in outer.log + inner.log] == ["outer>", "<outer", "inner>", "<inner"]
        client.use(replace_answer)
        assert await client.call("math.add", {"a": 0}) == "approved"
        assert inner.log[-1] == ("<inner", "approved")
        remove()
        remove()
        assert await client.call("math.add", {"a": 2}) == 4
        assert (inner.log[-1], outer.log[-1]) == (("<inner", 4), ("<outer", "approved"))


async def test_retries_are_inside_and_an_error_of_an_interceptor_is_a_call_error() -> None:
    samples, recorder = Samples(), Recorder()
    samples.failures["fail.at_first"] = 2
    async with Client(samples.registry, retries=Retries(back_off=0)) as client:
        client.use(recorder)
        assert await client.call("fail.at_first") == "done"
        assert (len(samples.calls), len(recorder.log)) == (3, 2)

        def broken(spec: OperationSpec, handler: Handler) -> Handler:
            def call(input: Any, context: Context) -> Any:
                raise ValueError("the secret is swordfish")

            return call

        client.use(broken)
        with pytest.raises(CallError, match="error id") as caught:
            await client.call("math.add", {"a": 1})
        assert caught.value.code is ErrorCode.EXECUTION_ERROR


async def test_over_a_registry_the_spec_is_that_of_the_operation() -> None:
    registry, seen = OperationRegistry(), list[OperationSpec]()

    async def write() -> int:
        return 1

    def keep(spec: OperationSpec, handler: Handler) -> Handler:
        seen.append(spec)
        return handler

    registry.mutation("a.write", title="Write")(write)
    async with Client(registry) as client:
        client.use(keep)
        assert [await client.call("a.write") for _ in range(2)] == [1, 1]
        registry.mutation("a.write", title="Other", replace=True)(write)
        await client.call("a.write")
    assert [(spec.type, spec.title) for spec in seen] == [
        (OperationType.MUTATION, "Write"),
        (OperationType.MUTATION, "Other"),
    ]


async def test_an_id_that_no_operation_can_have_is_not_found() -> None:
    async with Client(OperationRegistry()) as client:
        client.use(Recorder())
        for call in (client.call("nonsense"), anext(client.subscribe("nonsense"))):
            with pytest.raises(CallError) as caught:
                await call
            assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND


def test_a_sync_client_takes_interceptors_before_and_after_it_is_started() -> None:
    before, after = Recorder("before"), Recorder("after")
    client = SyncClient(Samples().registry)
    remove = client.use(before)
    with client:
        client.use(after)
        assert client.call("math.add", {"a": 1}) == 3
        assert list(client.subscribe("clock.ticks", {"count": 2})) == [0, 100]
        assert [entry[0] for entry in before.log[:2]] == ["before>", "<before"]
        assert after.log[2:] == [0, 1, "closed"]
        remove()
        assert client.call("math.add", {"a": 2}) == 4
    assert (before.log[-1], after.log[-1]) == ("closed", ("<after", 4))
