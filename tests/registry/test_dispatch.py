"""Interceptors around calls, and the dispatcher that every surface uses."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from opwire import AccessControl, CallError, Context, ErrorCode, Identity, OperationRegistry, OperationSpec
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import Handler, Interceptor, OperationType
from opwire.registry.dispatch import Dispatcher

READER = Identity(id="ann", scopes=("read",))


def shop() -> OperationRegistry:
    registry = OperationRegistry(namespace="shop")

    @registry.query
    async def price(article: str) -> float:
        if article == "gold":
            raise RuntimeError("sold out")
        return len(article) * 1.5

    @registry.query(access=AccessControl(required_scopes=("admin",)))
    async def margin() -> float:
        return 0.4

    @registry.subscription(access=AccessControl(public=True))
    async def prices() -> AsyncGenerator[float]:
        yield 1.0
        yield 2.0

    registry.register(OperationSpec(namespace="shop", name="planned"))
    return registry


def recorder(log: list[str], name: str) -> Interceptor:
    """An interceptor that records what goes in and out."""

    def intercept(spec: OperationSpec, handler: Handler) -> Handler:
        async def call(input: Any, context: Context) -> Any:
            log.append(f"{name} > {spec.name}")
            try:
                envelope = await handler(input, context)
            except CallError as error:
                log.append(f"{name} ! {error.code}")
                raise
            log.append(f"{name} < {envelope.data}")
            return envelope

        async def stream(input: Any, context: Context) -> AsyncIterator[Any]:
            async for envelope in handler(input, context):
                log.append(f"{name} < {envelope.data}")
                yield envelope

        return stream if spec.type is OperationType.SUBSCRIPTION else call

    return intercept


async def test_the_first_interceptor_is_the_outermost() -> None:
    registry, log = shop(), list[str]()
    registry.use(recorder(log, "a"))
    registry.use(recorder(log, "b"))
    assert (await registry.execute("shop.price", {"article": "tea"})).data == 4.5
    assert log == ["a > price", "b > price", "b < 4.5", "a < 4.5"]


async def test_an_interceptor_that_is_removed_is_not_called_again() -> None:
    registry, log = shop(), list[str]()
    remove = registry.use(recorder(log, "a"))
    registry.use(recorder(log, "b"))
    remove()
    remove()
    await registry.execute("shop.price", {"article": "tea"})
    assert log == ["b > price", "b < 4.5"]


async def test_operations_that_are_registered_later_are_intercepted_too() -> None:
    registry, log = shop(), list[str]()
    registry.use(recorder(log, "a"))

    @registry.query("shop.late")
    async def late() -> int:
        return 1

    await registry.execute("shop.late")
    assert log == ["a > late", "a < 1"]


async def test_an_interceptor_sees_each_item_of_a_subscription() -> None:
    registry, log = shop(), list[str]()
    registry.use(recorder(log, "a"))
    assert [each.data async for each in registry.subscribe("shop.prices")] == [1.0, 2.0]
    assert log == ["a < 1.0", "a < 2.0"]


async def test_an_interceptor_sees_invalid_input_and_failures_as_call_errors() -> None:
    registry, log = shop(), list[str]()
    registry.use(recorder(log, "a"))
    for input in ({"article": 1}, {"article": "gold"}):
        with pytest.raises(CallError):
            await registry.execute("shop.price", input)
    assert log == ["a > price", "a ! VALIDATION_ERROR", "a > price", "a ! EXECUTION_ERROR"]


async def test_an_interceptor_may_answer_itself_reject_and_change_the_input() -> None:
    registry = shop()

    def decide(spec: OperationSpec, handler: Handler) -> Handler:
        async def call(input: Any, context: Context) -> Any:
            match input:
                case {"article": "cached"}:
                    return 9.0
                case {"article": "forbidden"}:
                    raise CallError(ErrorCode.ACCESS_DENIED, "rejected by a person")
                case {"article": "broken"}:
                    raise RuntimeError("a fault of the interceptor")
                case _:
                    return await handler({"article": "tea"}, context)

        return call

    registry.use(decide)
    envelope = await registry.execute("shop.price", {"article": "cached"})
    assert isinstance(envelope, ResponseEnvelope)
    assert (envelope.data, envelope.meta.source) == (9.0, "local")
    assert (await registry.execute("shop.price", {"article": 1})).data == 4.5
    for article, code in (("forbidden", "ACCESS_DENIED"), ("broken", "EXECUTION_ERROR")):
        with pytest.raises(CallError) as caught:
            await registry.execute("shop.price", {"article": article})
        assert caught.value.code == code
        assert "fault" not in caught.value.message


async def test_a_subscription_that_is_left_closes_interceptor_and_handler() -> None:
    registry, closed = OperationRegistry(namespace="shop"), list[str]()

    @registry.subscription
    async def endless() -> AsyncGenerator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append("handler")

    def watch(spec: OperationSpec, handler: Handler) -> Handler:
        async def stream(input: Any, context: Context) -> AsyncIterator[Any]:
            items = handler(input, context)
            try:
                async for each in items:
                    yield each
            finally:
                closed.append("interceptor")
                await items.aclose()

        return stream

    registry.use(watch)
    items = registry.subscribe("shop.endless")
    await anext(items)
    await items.aclose()
    assert closed == ["interceptor", "handler"]


async def test_a_dispatcher_finds_calls_and_streams_what_its_caller_may_use() -> None:
    dispatcher = Dispatcher(shop())
    assert [spec.name for spec in dispatcher.visible(READER)] == ["price", "prices"]
    assert [spec.name for spec in dispatcher.visible(None)] == ["prices"]
    spec = dispatcher.find("shop.price", READER)
    assert (await dispatcher.execute(spec, {"article": "tea"}, Context(identity=READER))).data == 4.5
    items = dispatcher.subscribe(dispatcher.find("shop.prices", None), None, Context())
    assert [each.data async for each in items] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("operation_id", "identity", "code"),
    [
        ("shop.margin", READER, "ACCESS_DENIED"),
        ("shop.price", None, "UNAUTHENTICATED"),
        ("shop.planned", READER, "OPERATION_NOT_FOUND"),
        ("shop.prise", READER, "OPERATION_NOT_FOUND"),
    ],
)
def test_a_dispatcher_refuses_what_its_caller_may_not_use(
    operation_id: str, identity: Identity | None, code: str
) -> None:
    with pytest.raises(CallError) as caught:
        Dispatcher(shop()).find(operation_id, identity)
    assert caught.value.code == code
    assert "margin" not in caught.value.message.removeprefix("shop.margin")


def test_what_a_surface_does_not_serve_is_unknown_and_not_suggested() -> None:
    dispatcher = Dispatcher(shop(), serves=lambda spec: spec.name != "price")
    for id in ("shop.price", "shop.pric"):
        with pytest.raises(CallError, match="not found") as caught:
            dispatcher.find(id, READER)
        assert "mean shop.price?" not in caught.value.message


async def test_the_interceptors_of_a_surface_are_outside_those_of_the_registry() -> None:
    registry, log = shop(), list[str]()
    dispatcher = Dispatcher(registry)
    registry.use(recorder(log, "registry"))
    dispatcher.use(recorder(log, "surface"))
    spec = dispatcher.find("shop.price", READER)
    await dispatcher.execute(spec, {"article": "tea"}, Context(identity=READER))
    assert log == ["surface > price", "registry > price", "registry < 4.5", "surface < 4.5"]
    log.clear()
    await registry.execute("shop.price", {"article": "tea"})
    assert log == ["registry > price", "registry < 4.5"]
    log.clear()
    assert [each.data async for each in dispatcher.subscribe(dispatcher.find("shop.prices", None), None, Context())]
    assert log == ["registry < 1.0", "surface < 1.0", "registry < 2.0", "surface < 2.0"]


async def test_an_interceptor_keeps_its_state_from_call_to_call() -> None:
    registry, asked = shop(), list[Any]()
    dispatcher = Dispatcher(registry)

    def cache(spec: OperationSpec, handler: Handler) -> Handler:
        known: dict[str, Any] = {}

        async def call(input: Any, context: Context) -> Any:
            if input["article"] not in known:
                asked.append(input["article"])
                known[input["article"]] = await handler(input, context)
            return known[input["article"]]

        return call

    dispatcher.use(cache)
    for article in ("tea", "tea", "salt"):
        spec = dispatcher.find("shop.price", READER)
        await dispatcher.execute(spec, {"article": article}, Context(identity=READER))
    assert asked == ["tea", "salt"]


async def test_calls_without_an_operation_to_run_are_reported_to_listeners() -> None:
    registry, seen = shop(), list[tuple[str, Context, ErrorCode]]()
    remove = registry.on_rejected(lambda id, context, error: seen.append((id, context, error.code)))
    context = Context(request_id="r1")
    for operation_id in ("shop.nothing", "shop.planned", "shop.prices"):
        with pytest.raises(CallError):
            await registry.execute(operation_id, None, context)
    with pytest.raises(CallError):
        assert [item async for item in registry.subscribe("shop.price")]
    assert [(id, code) for id, _, code in seen] == [
        ("shop.nothing", ErrorCode.OPERATION_NOT_FOUND),
        ("shop.planned", ErrorCode.OPERATION_NOT_FOUND),
        ("shop.prices", ErrorCode.VALIDATION_ERROR),
        ("shop.price", ErrorCode.VALIDATION_ERROR),
    ]
    assert [each for _, each, _ in seen][:3] == [context] * 3
    await registry.execute("shop.price", {"article": "tea"})
    remove()
    remove()
    with pytest.raises(CallError):
        await registry.execute("shop.nothing")
    assert len(seen) == 4


async def test_a_rerouted_operation_is_called_within_the_interceptors_of_the_surface_and_nowhere_else() -> None:
    registry, log = shop(), list[str]()
    dispatcher, other = Dispatcher(registry), Dispatcher(registry)
    dispatcher.use(recorder(log, "surface"))
    registry.use(recorder(log, "registry"))

    async def elsewhere(input: Any, context: Context) -> ResponseEnvelope[Any]:
        log.append(f"elsewhere {input['article']}")
        return await other.execute(spec, {"article": "tea"}, context)

    dispatcher.reroute("shop.price", elsewhere)
    spec = dispatcher.find("shop.price", READER)
    envelope = await dispatcher.execute(spec, {"article": "gold"}, Context())
    assert envelope.data == 4.5
    assert log == ["surface > price", "elsewhere gold", "registry > price", "registry < 4.5", "surface < 4.5"]


async def test_the_input_of_a_call_that_is_made_elsewhere_is_validated_without_the_call() -> None:
    registry, log = shop(), list[str]()
    registry.use(recorder(log, "registry"))
    assert registry.check_input("shop.price", {"article": "gold"}) == {"article": "gold"}
    for id, input, code in (("shop.price", {}, "VALIDATION_ERROR"), ("shop.none", {}, "OPERATION_NOT_FOUND")):
        with pytest.raises(CallError, match=code):
            registry.check_input(id, input)
    assert log == []
