"""The place of a source in a registry."""

from collections.abc import Callable, Iterator

from opwire import OperationRegistry, OperationSpec
from opwire.config.runtime import Slot
from opwire.config.sources import OpenSource
from opwire.operation import Operation, SourceChange
from opwire.registry import Change


class Changing:
    """A source that says what it is told to."""

    def __init__(self, **answers: int) -> None:
        self.operations = [operation(name, answer) for name, answer in answers.items()]
        self.listeners: list[Callable[[SourceChange], None]] = []

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def change(self, *gone: str, **answers: int) -> None:
        change = SourceChange(put=tuple(operation(name, answer) for name, answer in answers.items()), gone=gone)
        for each in tuple(self.listeners):
            each(change)


def operation(name: str, answer: int) -> Operation:
    return Operation(OperationSpec(namespace="a", name=name), lambda input, context: answer)


async def close() -> None:
    """There is nothing."""


def opened(source: Changing) -> OpenSource:
    return OpenSource(source, close)


def ids(registry: OperationRegistry) -> list[str]:
    return [spec.id for spec in registry.list()]


async def test_what_is_exchanged_is_replaced_and_not_removed_first() -> None:
    registry = OperationRegistry()
    slot = Slot(registry)
    old, new = opened(Changing(one=1, two=2)), opened(Changing(two=22, three=3))
    assert slot.fill(old) is None
    changes: list[Change] = []
    registry.on_change(changes.append)
    assert slot.fill(new) is old
    assert [(change.kind, change.spec.id) for change in changes] == [
        ("replaced", "a.two"),
        ("added", "a.three"),
        ("removed", "a.one"),
    ]
    assert (await registry.execute("a.two")).data == 22
    assert slot.clear() is new
    assert ids(registry) == []
    assert slot.clear() is None


def test_changes_of_the_source_are_followed_as_long_as_it_is_there() -> None:
    registry = OperationRegistry()
    slot = Slot(registry)
    first, second = Changing(one=1), Changing(one=1)
    slot.fill(opened(first))
    first.change("a.one", two=2)
    assert ids(registry) == ["a.two"]
    slot.fill(opened(second))
    assert first.listeners == []
    second.change(three=3)
    slot.clear()
    assert second.listeners == []
    assert ids(registry) == []


async def test_ids_of_somebody_else_stay_with_him() -> None:
    registry = OperationRegistry()
    first, second = Slot(registry), Slot(registry)
    first.fill(opened(Changing(one=1)))
    other = Changing(one=11, two=2)
    second.fill(opened(other))
    assert (second.ids, second.taken) == ({"a.two"}, {"a.one"})
    other.change(one=111)
    assert (await registry.execute("a.one")).data == 1
    other.change("a.one")
    second.clear()
    assert ids(registry) == ["a.one"]


async def test_an_id_that_somebody_else_has_let_go_of_is_reclaimed() -> None:
    registry = OperationRegistry()
    first, second = Slot(registry), Slot(registry)
    first.fill(opened(Changing(one=1)))
    other = Changing(one=11, two=2)
    second.fill(opened(other))
    second.reclaim()
    assert second.taken == {"a.one"}
    first.clear()
    second.reclaim()
    assert (second.taken, (await registry.execute("a.one")).data) == (set(), 11)
    first.fill(opened(Changing(three=3)))
    other.change(three=33)
    other.change("a.three")
    assert (second.taken, (await registry.execute("a.three")).data) == (set(), 3)


def test_an_operation_that_somebody_else_took_out_is_no_trouble() -> None:
    registry = OperationRegistry()
    slot = Slot(registry)
    slot.fill(opened(Changing(one=1)))
    registry.unregister("a.one")
    slot.clear()
    assert ids(registry) == []
