"""The registry: registering, looking up, calling."""

import asyncio
import difflib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pydantic
import pytest

from opwire import (
    AccessControl,
    CallError,
    Context,
    ErrorCode,
    LocalResponseMeta,
    Operation,
    OperationRegistry,
    OperationSpec,
    OperationType,
    RegistrationError,
    ResponseEnvelope,
    Schema,
    SchemaError,
    UsageError,
    http_envelope,
)
from opwire.model.access import may_access
from opwire.model.operation import Change, PreparedRequest
from opwire.registry.source import SourceChange


def spec(id: str, **fields: Any) -> OperationSpec:
    namespace, _, name = id.partition(".")
    return OperationSpec(namespace=namespace, name=name, **fields)


def echo(input: Any, context: Context) -> Any:
    return input


def ids(specs: tuple[OperationSpec, ...]) -> list[str]:
    return [each.id for each in specs]


async def call_error(awaitable: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await awaitable
    return caught.value


@pytest.fixture
def registry() -> OperationRegistry:
    return OperationRegistry()


# --- registering ------------------------------------------------------------------------------------------------------


async def test_a_registered_operation_is_known_and_callable(registry: OperationRegistry) -> None:
    """A spec and a handler that takes input and context make a callable operation. The spec and the handler of an
    operation can be asked for by its id."""
    operation = spec("a.b")
    registry.register(operation, echo)
    assert registry.get_spec("a.b") is operation
    assert registry.get_handler("a.b") is echo
    assert "a.b" in registry
    assert len(registry) == 1
    assert repr(registry) == "<OperationRegistry of 1 operation>"
    assert (await registry.execute("a.b", 1)).data == 1


async def test_the_handler_of_a_decorated_function_takes_input_and_context_as_any_other(
    registry: OperationRegistry,
) -> None:
    @registry.query("a.b")
    async def add(a: int, context: Context) -> int:
        return a + 1

    handler = registry.get_handler("a.b")
    assert handler is not None
    assert await handler({"a": 1}, Context()) == 2


def test_what_is_not_there_is_none(registry: OperationRegistry) -> None:
    assert registry.get_spec("a.b") is None
    assert registry.get_handler("a.b") is None
    assert "a.b" not in registry
    assert len(registry) == 0


async def test_a_second_operation_of_the_same_id_is_refused_and_the_first_stays(registry: OperationRegistry) -> None:
    registry.query("a.b")(lambda: "first")
    with pytest.raises(RegistrationError, match=r"a\.b is already registered; replace=True"):
        registry.register(spec("a.b"), echo)
    with pytest.raises(RegistrationError, match="already registered"):
        registry.mutation("a.b")(lambda: "second")
    assert (await registry.execute("a.b")).data == "first"


async def test_a_second_operation_may_replace_the_first(registry: OperationRegistry) -> None:
    registry.query("a.b")(lambda: "first")
    registry.query("a.b", replace=True)(lambda: "second")
    assert (await registry.execute("a.b")).data == "second"
    registry.register(spec("a.b"), echo, replace=True)
    assert (await registry.execute("a.b", "third")).data == "third"
    assert len(registry) == 1


async def test_a_spec_without_a_handler_is_known_but_not_callable(registry: OperationRegistry) -> None:
    """A spec without a handler is known, but calling it is OPERATION_NOT_FOUND, and says why."""
    registry.register(spec("a.b"))
    registry.register(spec("a.stream", type=OperationType.SUBSCRIPTION))
    assert registry.get_spec("a.b") is not None
    assert registry.get_handler("a.b") is None
    error = await call_error(registry.execute("a.b"))
    assert str(error) == "OPERATION_NOT_FOUND: No handler registered for operation: a.b"
    error = await call_error(anext(registry.subscribe("a.stream")))
    assert str(error) == "OPERATION_NOT_FOUND: No handler registered for operation: a.stream"


async def test_a_handler_can_be_given_later(registry: OperationRegistry) -> None:
    registry.register(spec("a.b"))
    registry.register(spec("a.b"), echo, replace=True)
    assert (await registry.execute("a.b", 1)).data == 1


async def test_many_operations_are_registered_in_their_order(registry: OperationRegistry) -> None:
    registry.register_all([Operation(spec("a.one"), echo), Operation(spec("a.two")), Operation(spec("a.three"), echo)])
    assert ids(registry.list()) == ["a.one", "a.two", "a.three"]
    assert (await registry.execute("a.three", 3)).data == 3
    assert (await call_error(registry.execute("a.two"))).code is ErrorCode.OPERATION_NOT_FOUND


def items(input: Any, context: Context) -> Iterator[Any]:
    yield input


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        (Operation(spec("a.taken"), echo), r"already registered: a\.taken"),
        (Operation(spec("a.new"), echo), r"already registered: a\.new"),
        (Operation(spec("a.items"), items), r"a\.items yields"),
    ],
    ids=["taken", "twice", "wrong kind"],
)
def test_if_one_cannot_be_registered_none_is(registry: OperationRegistry, second: Operation, complaint: str) -> None:
    registry.register(spec("a.taken"), echo)
    changes: list[Change] = []
    registry.on_change(changes.append)
    with pytest.raises(RegistrationError, match=complaint):
        registry.register_all([Operation(spec("a.new"), echo), second])
    assert ids(registry.list()) == ["a.taken"]
    assert changes == []


async def test_many_operations_may_replace_known_ones_but_not_each_other(registry: OperationRegistry) -> None:
    registry.register(spec("a.one"))
    registry.register_all([Operation(spec("a.one"), echo), Operation(spec("a.two"), echo)], replace=True)
    assert (await registry.execute("a.one", 1)).data == 1
    with pytest.raises(RegistrationError, match=r"already registered: a\.two"):
        registry.register_all([Operation(spec("a.two")), Operation(spec("a.two"))], replace=True)


async def test_an_operation_may_be_declared_inline(registry: OperationRegistry) -> None:
    import threading

    def thread(input: Any, context: Context) -> bool:
        return threading.current_thread() is threading.main_thread()

    registry.register_all([Operation(spec("a.inline"), thread, inline=True), Operation(spec("a.pool"), thread)])
    assert [(await registry.execute(id)).data for id in ("a.inline", "a.pool")] == [True, False]


async def test_an_operation_that_is_unregistered_is_gone_and_its_id_free(registry: OperationRegistry) -> None:
    """An operation that is unregistered is neither known nor callable any more."""
    registry.register(spec("a.b"), echo)
    registry.unregister("a.b")
    assert "a.b" not in registry
    assert (await call_error(registry.execute("a.b"))).code is ErrorCode.OPERATION_NOT_FOUND
    with pytest.raises(CallError, match="OPERATION_NOT_FOUND"):
        registry.unregister("a.b")
    registry.register(spec("a.b"), echo)
    assert (await registry.execute("a.b", 1)).data == 1


def test_an_invalid_schema_given_to_a_decorator_is_refused_and_nothing_is_registered(
    registry: OperationRegistry,
) -> None:
    with pytest.raises(SchemaError):
        registry.query("a.b", input_schema={"type": "objekt"})(lambda: 1)
    with pytest.raises(SchemaError):
        registry.query("a.b", output_schema={"type": "objekt"})(lambda: 1)
    assert len(registry) == 0


# --- looking up -------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(registry: OperationRegistry) -> OperationRegistry:
    registry.register(spec("stock.watch", type=OperationType.SUBSCRIPTION, description="Levels of an order"))
    registry.register(spec("shop.order", type=OperationType.MUTATION, tags=("sale",), description="Buy a basket"))
    registry.register(spec("shop.orders", tags=("sale", "report"), title="All of them"))
    registry.register(spec("stock.level", tags=("report",), description="How much is left of a Shop's article"))
    return registry


def test_operations_are_listed_in_the_order_of_registration_and_filtered(shop: OperationRegistry) -> None:
    assert ids(shop.list()) == ["stock.watch", "shop.order", "shop.orders", "stock.level"]
    assert ids(shop.list(namespace="stock")) == ["stock.watch", "stock.level"]
    assert ids(shop.list(type=OperationType.QUERY)) == ["shop.orders", "stock.level"]
    assert ids(shop.list(type="mutation")) == ["shop.order"]
    assert ids(shop.list(tag="report")) == ["shop.orders", "stock.level"]
    assert ids(shop.list(namespace="shop", type="query", tag="sale")) == ["shop.orders"]
    assert shop.list(namespace="sho") == ()
    with pytest.raises(UsageError, match="type must be one of query, mutation, subscription, not 'command'"):
        shop.list(type="command")


def test_a_search_ranks_by_words_of_id_title_description_and_tags(shop: OperationRegistry) -> None:
    """A search ranks the operations by a request in plain words, 20 of them unless told otherwise."""
    assert ids(shop.search("orders")) == ["shop.orders", "shop.order", "stock.watch"]
    assert ids(shop.search("ORDER shop"))[:2] == ["shop.orders", "shop.order"]
    assert ids(shop.search("article left"))[:1] == ["stock.level"]
    assert ids(shop.search("report")) == ["shop.orders", "stock.level"]
    assert ids(shop.search("buying")) == ["shop.order", "shop.orders", "stock.watch"]
    assert ids(shop.search("orders", limit=2)) == ["shop.orders", "shop.order"]
    assert ids(shop.search("orders nowhere", limit=1)) == ["shop.orders"]
    assert len(shop.search("")) == 4
    for number in range(30):
        shop.register(spec(f"many.{number}"))
    assert len(shop.search("many")) == 20


def test_listeners_are_notified_of_every_change(registry: OperationRegistry) -> None:
    changes: list[Change] = []
    stop = registry.on_change(changes.append)
    first, second = spec("a.b"), spec("a.b", title="new")
    registry.register(first)
    registry.register(second, replace=True)
    registry.unregister("a.b")
    assert changes == [Change("added", first), Change("replaced", second), Change("removed", second)]
    stop()
    stop()
    registry.register(first)
    assert len(changes) == 3


def test_a_listener_that_fails_is_logged_and_affects_no_other_peer(
    registry: OperationRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Listeners hear of every addition, replacement and removal; a failing one affects no other."""

    def fail(change: Change) -> None:
        raise ValueError("listener")

    changes: list[Change] = []
    registry.on_change(fail)
    registry.on_change(changes.append)
    registry.register(spec("a.b"))
    assert "a.b" in registry
    assert len(changes) == 1
    assert "a listener failed on added of a.b" in caplog.text


def test_a_listener_sees_the_change_done_and_may_change_the_listeners(registry: OperationRegistry) -> None:
    seen: list[bool] = []

    def once(change: Change) -> None:
        seen.append(change.spec.id in registry)
        stop()

    stop = registry.on_change(once)
    registry.register(spec("a.b"))
    registry.unregister("a.b")
    assert seen == [True]


# --- calling ----------------------------------------------------------------------------------------------------------


async def test_an_unknown_id_is_not_found_and_similar_ones_are_named(shop: OperationRegistry) -> None:
    """Calling an unknown id is OPERATION_NOT_FOUND, with the ids that look alike."""
    error = await call_error(shop.execute("shop.oder"))
    assert error.code is ErrorCode.OPERATION_NOT_FOUND
    assert error.message == "Operation not found: shop.oder; did you mean shop.order or shop.orders?"
    error = await call_error(anext(shop.subscribe("stock.wach")))
    assert "did you mean stock.watch" in error.message
    assert (await call_error(shop.execute("zzz"))).message == "Operation not found: zzz"


def many(number: int, *, access: AccessControl | None = None) -> OperationRegistry:
    registry = OperationRegistry()
    for n in range(number):
        spec = OperationSpec(namespace="api", name=f"repos/{n}/issues/{n * 7919 % 1000}/list", access=access)
        registry.register(spec, lambda input, context: 1)
    return registry


def test_ids_are_suggested_only_if_the_caller_may_see_them() -> None:
    registry = many(100, access=AccessControl(required_scopes=("admin",)))
    registry.register(OperationSpec(namespace="api", name="repos/7/issues/list", access=AccessControl(public=True)))
    wanted = "api.repos/7/issues/lst"
    assert len(registry.suggestions(wanted)) == 3
    assert registry.suggestions(wanted, visible=lambda spec: may_access(spec, None)) == ["api.repos/7/issues/list"]
    assert registry.not_found(wanted, visible=lambda spec: False).message == f"Operation not found: {wanted}"


def test_an_unknown_id_is_echoed_shortened() -> None:
    error = many(3).not_found("api." + "ab" * 500_000)
    assert len(error.message) < 300
    assert error.message.endswith("…")


def test_the_work_for_suggestions_does_not_grow_with_the_id_or_the_registry() -> None:
    compared: list[int] = []

    class Counting(difflib.SequenceMatcher[str]):
        def set_seq1(self, a: Any) -> None:
            compared.append(len(a))
            super().set_seq1(a)

    with mock.patch.object(difflib, "SequenceMatcher", Counting):
        registry = many(2_000)
        assert "api.repos/77/issues/763/list" in registry.suggestions("api.repos/77/issues/763/lst")
        assert registry.suggestions("api." + "x" * 1_000_000) == []
        assert registry.suggestions("") == []
    assert len(compared) < 100
    assert max(compared) <= 200


async def test_the_wrong_verb_is_a_clear_error(registry: OperationRegistry) -> None:
    """`execute` of a subscription and `subscribe` of a query are clear CallErrors."""

    @registry.subscription("a.stream")
    async def stream() -> AsyncIterator[int]:
        yield 1

    registry.query("a.query")(lambda: 1)
    registry.mutation("a.mutation")(lambda: 1)
    error = await call_error(registry.execute("a.stream"))
    assert str(error) == "VALIDATION_ERROR: a.stream is a subscription: use subscribe(), not execute()"
    error = await call_error(anext(registry.subscribe("a.query")))
    assert str(error) == "VALIDATION_ERROR: a.query is a query: use execute(), not subscribe()"
    error = await call_error(anext(registry.subscribe("a.mutation")))
    assert "a.mutation is a mutation" in error.message


async def test_a_call_returns_an_envelope_for_any_result_of_the_handler(registry: OperationRegistry) -> None:
    own = http_envelope(1, status_code=200, headers={}, content_type="text/plain")
    for number, result in enumerate((1, None, {"a": 1}, own)):
        registry.register(spec(f"a.{number}"), lambda input, context, result=result: result)  # type: ignore[misc]
        envelope = await registry.execute(f"a.{number}")
        assert isinstance(envelope, ResponseEnvelope)
        assert envelope == own if result is own else envelope.data == result


async def test_execute_and_subscribe_check_no_access_rules(registry: OperationRegistry) -> None:
    access = AccessControl(required_scopes=("admin",))

    @registry.subscription("a.watch", access=access)
    async def watch() -> AsyncIterator[int]:
        yield 1

    registry.query("a.purge", access=access)(lambda: "done")
    assert (await registry.execute("a.purge")).data == "done"
    assert [envelope.data async for envelope in registry.subscribe("a.watch")] == [1]


async def test_a_deadline_that_the_caller_watches_over_itself_is_left_to_it(registry: OperationRegistry) -> None:
    @registry.query("a.b")
    async def remaining(context: Context) -> bool:
        return context.remaining is not None and context.remaining < 0

    watched = Context(deadline=time.monotonic() - 1, watched=True)
    assert (await registry.execute("a.b", context=watched)).data is True
    assert not watched.child().watched
    assert not watched.within(-2).watched


async def test_calls_in_the_event_loops_of_several_threads_have_their_own_deadlines(
    registry: OperationRegistry,
) -> None:
    @registry.query("a.slow", timeout=0.2)
    async def slow() -> None:
        await asyncio.sleep(60)

    def call() -> ErrorCode:
        with pytest.raises(CallError) as caught:
            asyncio.run(registry.execute("a.slow"))
        return caught.value.code

    async with asyncio.timeout(30):
        ended = await asyncio.gather(*(asyncio.to_thread(call) for _ in range(4)))
    assert ended == [ErrorCode.TIMEOUT] * 4


async def test_each_item_has_the_time_at_which_it_was_yielded(registry: OperationRegistry) -> None:
    @registry.subscription("a.watch")
    async def watch() -> AsyncIterator[int]:
        yield 1
        yield 2

    stream = registry.subscribe("a.watch")
    first = (await anext(stream)).meta
    assert isinstance(first, LocalResponseMeta)
    later = first.timestamp + 3
    while time.time_ns() // 1_000_000 < later:
        pass
    second = (await anext(stream)).meta
    assert isinstance(second, LocalResponseMeta)
    assert second.timestamp >= later
    assert first.operation_id == second.operation_id == "a.watch"


async def test_the_handler_of_a_subscription_has_a_context_and_its_env(registry: OperationRegistry) -> None:
    @registry.query("a.own")
    async def own(context: Context) -> Any:
        return context.parent_request_id

    @registry.subscription("a.watch")
    async def watch(context: Context) -> AsyncIterator[Any]:
        yield context.request_id
        yield (await context.env.a.own()).data

    stream = registry.subscribe("a.watch", context=Context(request_id="r1"))
    assert [envelope.data async for envelope in stream] == ["r1", "r1"]


async def test_invalid_input_ends_a_subscription_before_its_handler_starts(registry: OperationRegistry) -> None:
    started: list[int] = []

    @registry.subscription("a.watch")
    async def watch(count: int) -> AsyncIterator[int]:
        started.append(count)
        yield count

    assert (await call_error(anext(registry.subscribe("a.watch", {"count": "x"})))).code is ErrorCode.VALIDATION_ERROR
    assert started == []


@dataclass
class Sum:
    total: int
    note: str = ""


class SumModel(pydantic.BaseModel):
    total: int
    note: str = "model"


@pytest.fixture
def sums(registry: OperationRegistry) -> OperationRegistry:
    @registry.query("a.sum")
    async def total(numbers: list[int]) -> Sum:
        return Sum(sum(numbers))

    @registry.query("a.sums")
    async def totals() -> list[Sum]:
        return [Sum(1), Sum(2)]

    @registry.subscription("a.running")
    async def running() -> AsyncIterator[Sum]:
        yield Sum(1)
        yield Sum(2)

    return registry


async def test_data_is_plain_unless_a_type_is_asked_for(sums: OperationRegistry) -> None:
    assert (await sums.execute("a.sum", {"numbers": [1, 2]})).data == {"total": 3, "note": ""}


async def test_with_an_output_type_the_data_really_is_of_that_type(sums: OperationRegistry) -> None:
    envelope = await sums.execute("a.sum", {"numbers": [1, 2]}, output_type=Sum)
    assert envelope.data == Sum(3)
    assert envelope.meta.source == "local"
    model = await sums.execute("a.sum", {"numbers": [1]}, output_type=SumModel)
    assert model.data == SumModel(total=1, note="")
    several = await sums.execute("a.sums", output_type=list[Sum])
    assert several.data == [Sum(1), Sum(2)]
    named = await sums.execute("a.sums", output_type=list[dict[str, Any]])
    assert named.data == [{"total": 1, "note": ""}, {"total": 2, "note": ""}]


async def test_each_item_of_a_subscription_can_be_of_a_type_too(sums: OperationRegistry) -> None:
    assert [envelope.data async for envelope in sums.subscribe("a.running", output_type=Sum)] == [Sum(1), Sum(2)]


@pytest.mark.parametrize(
    ("output_type", "name"), [(int, "int"), (str, "str"), (list[Sum], "list"), (int | str, r"int | str")]
)
async def test_data_that_does_not_fit_the_output_type_is_an_execution_error(
    sums: OperationRegistry, output_type: Any, name: str
) -> None:
    error = await call_error(sums.execute("a.sum", {"numbers": [1]}, output_type=output_type))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.message.startswith(f"a.sum: the data does not fit {name}: ")


async def test_a_handler_that_breaks_its_schema_cannot_make_the_type_lie(registry: OperationRegistry) -> None:
    registry.register(spec("a.sum", output_schema=Schema({"type": "object"})), lambda input, context: {"total": "3"})
    error = await call_error(registry.execute("a.sum", output_type=Sum))
    assert error.code is ErrorCode.EXECUTION_ERROR


async def test_registries_do_not_share_operations_or_threads() -> None:
    one, two = OperationRegistry(), OperationRegistry()
    one.query("a.b")(lambda: 1)
    assert (await one.execute("a.b")).data == 1
    assert (await call_error(two.execute("a.b"))).code is ErrorCode.OPERATION_NOT_FOUND


# --- sources that change --------------------------------------------------------------------------------------------


class Tools:
    """A source with operations that come and go."""

    def __init__(self, *operations: Operation) -> None:
        self.operations = operations
        self.listeners: list[Callable[[SourceChange], None]] = []

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def tell(self, *put: Operation, gone: tuple[str, ...] = ()) -> None:
        for listener in self.listeners:
            listener(SourceChange(put, gone))


async def test_a_registry_that_follows_a_source_has_what_the_source_adds_changes_and_removes() -> None:
    registry, changes = OperationRegistry(), list[tuple[str, str]]()
    tools = Tools(Operation(spec("t.one"), echo), Operation(spec("t.two"), echo))
    registry.follow(tools)
    registry.on_change(lambda change: changes.append((change.kind, change.spec.id)))
    tools.tell(
        Operation(spec("t.two"), lambda input, context: "changed"), Operation(spec("t.three"), echo), gone=("t.one",)
    )
    assert ids(registry.list()) == ["t.two", "t.three"]
    assert (await registry.execute("t.two")).data == "changed"
    assert changes == [("replaced", "t.two"), ("added", "t.three"), ("removed", "t.one")]


def test_a_registry_that_no_longer_follows_keeps_what_it_has() -> None:
    registry, tools = OperationRegistry(), Tools(Operation(spec("t.one"), echo))
    stop = registry.follow(tools)
    stop()
    tools.tell(Operation(spec("t.two"), echo), gone=("t.one",))
    assert ids(registry.list()) == ["t.one"]


def test_a_source_takes_nothing_from_others_neither_at_first_nor_later(caplog: pytest.LogCaptureFixture) -> None:
    registry, tools = OperationRegistry(), Tools(Operation(spec("t.one"), echo))
    registry.register(spec("t.mine", title="mine"), echo)
    with pytest.raises(RegistrationError, match=r"already registered: t\.mine"):
        registry.follow(Tools(Operation(spec("t.mine"), echo)))
    registry.follow(tools)
    tools.tell(Operation(spec("t.mine", title="theirs"), echo), gone=("t.mine", "t.unknown"))
    assert [each.title for each in registry.list()] == ["mine", ""]
    assert "t.mine is ignored" in caplog.text


def test_an_operation_that_was_unregistered_by_hand_can_still_be_withdrawn_by_its_source() -> None:
    registry, tools = OperationRegistry(), Tools(Operation(spec("t.one"), echo))
    registry.follow(tools)
    registry.unregister("t.one")
    tools.tell(gone=("t.one",))
    assert ids(registry.list()) == []


async def test_objects_that_are_not_plain_are_prepared_before_they_are_checked_and_plain_input_is_not() -> None:
    """An adapter may turn objects of its callers into plain input before that is checked; input that is plain
    already never reaches it."""

    class Opened:
        text = "hello"

    prepared: list[Any] = []

    def prepare(input: Any) -> Any:
        prepared.append(input)
        return {"file": input["file"].text}

    schema = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}
    registry = OperationRegistry()
    registry.register_all([Operation(spec("t.send", input_schema=schema), echo, prepare=prepare)])
    assert (await registry.execute("t.send", {"file": Opened()})).data == {"file": "hello"}
    assert (await registry.execute("t.send", {"file": "plain"})).data == {"file": "plain"}
    assert len(prepared) == 1


async def test_a_preview_rejects_invalid_input_and_does_not_run_a_function() -> None:
    registry = OperationRegistry()

    @registry.mutation("math.add")
    def add(a: int) -> int:
        raise AssertionError(a)

    assert await registry.preview("math.add", {"a": 1}) == PreparedRequest(protocol="local", body=b'{"a":1}')
    with pytest.raises(CallError) as failure:
        await registry.preview("math.add", {"a": "x"})
    assert failure.value.code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(CallError) as failure:
        await registry.preview("math.sub")
    assert failure.value.code is ErrorCode.OPERATION_NOT_FOUND
