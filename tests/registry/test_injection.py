"""Parameters that the program fills for each call."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Annotated, Any

import pytest

from opwire import CallError, Context, Depends, Identity, OperationRegistry, RegistrationError


class Database:
    """A connection that counts."""

    def __init__(self, log: list[str], owner: str = "") -> None:
        self.log, self.owner = log, owner
        log.append("open")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def registry() -> OperationRegistry:
    return OperationRegistry()


async def test_a_value_is_opened_for_each_call_and_closed_after_it(registry: OperationRegistry, log: list[str]) -> None:
    """A parameter with Depends is hidden, filled for each call, and closed after it."""

    async def connect(context: Context) -> AsyncIterator[Database]:
        try:
            yield Database(log, context.identity.id if context.identity else "")
        finally:
            log.append("close")

    @registry.query("shop.orders")
    async def orders(customer: str, database: Annotated[Database, Depends(connect)], limit: int = 2) -> str:
        database.log.append("use")
        if limit > 5:
            raise ValueError("too many")
        return f"{limit} of {customer} for {database.owner}"

    spec = registry.get_spec("shop.orders")
    assert spec is not None
    schema: Any = spec.input_schema.json
    assert list(schema["properties"]) == ["customer", "limit"]
    context = Context(identity=Identity(id="ada"))
    assert (await registry.execute("shop.orders", {"customer": "bob"}, context)).data == "2 of bob for ada"
    assert log == ["open", "use", "close"]
    with pytest.raises(CallError, match="failed unexpectedly"):
        await registry.execute("shop.orders", {"customer": "bob", "limit": 6})
    assert log == 2 * ["open", "use", "close"]
    with pytest.raises(CallError, match="database"):
        await registry.execute("shop.orders", {"customer": "bob", "database": "mine"})
    assert len(log) == 6


async def test_providers_are_functions_and_generators_sync_or_async(
    registry: OperationRegistry, log: list[str]
) -> None:
    def plain() -> int:
        return 1

    async def asynchronous() -> int:
        return 20

    def generator() -> Iterator[int]:
        yield 300
        log.append("closed")

    one: Any = Depends(plain)
    two: Any = Depends(asynchronous)

    @registry.query("a.sum")  # a sync function, on a worker thread
    def total(
        extra: int,
        three: Annotated[int, Depends(generator)],
        a: int = one,
        b: int = two,
    ) -> int:
        return extra + three + a + b

    assert (await registry.execute("a.sum", {"extra": 4000})).data == 4321
    assert log == ["closed"]
    view = registry.view(rename={"a": "b"})
    assert (await view.execute("b.sum", {"extra": 0})).data == 321


async def test_the_value_of_a_subscription_is_closed_with_its_stream(
    registry: OperationRegistry, log: list[str]
) -> None:
    async def connect() -> AsyncIterator[Database]:
        try:
            yield Database(log)
        finally:
            log.append("close")

    @registry.subscription("a.numbers")
    async def numbers(database: Annotated[Database, Depends(connect)]) -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            database.log.append("stop")

    async with aclosing(registry.subscribe("a.numbers")) as items:
        assert (await anext(items)).data == 0
    assert log == ["open", "stop", "close"]


def test_a_provider_with_other_parameters_is_rejected(registry: OperationRegistry) -> None:
    def wrong(name: str) -> str:
        return name

    with pytest.raises(RegistrationError, match=r"wrong has the parameter 'name'; a provider takes nothing"):

        @registry.query("a.b")
        async def operation(value: Annotated[str, Depends(wrong)]) -> str:
            return value


async def test_methods_of_an_object_are_operations_and_methods_without_one_are_rejected(
    registry: OperationRegistry,
) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        async def order(self, article: str) -> str:
            return f"{article} from {self.name}"

    registry.mutation("shop.order")(Shop("here").order)
    assert (await registry.execute("shop.order", {"article": "tea"})).data == "tea from here"
    registry.mutation("shop.late")(Shop.order)  # an operation of the objects that are registered
    assert "shop.late" not in registry


def test_parameters_are_described_by_annotations_and_docstrings(registry: OperationRegistry) -> None:
    @registry.query("shop.find")
    async def find(name: Annotated[str, "The name"], limit: int = 3, offset: int = 0) -> str:
        """Find articles.

        Args:
            name: Not used.
            limit: The largest number.
        """
        return name

    spec = registry.get_spec("shop.find")
    assert spec is not None
    assert spec.description == "Find articles."
    schema: Any = spec.input_schema.json
    assert schema["properties"] == {
        "name": {"type": "string", "description": "The name"},
        "limit": {"type": "integer", "default": 3, "description": "The largest number."},
        "offset": {"type": "integer", "default": 0},
    }
