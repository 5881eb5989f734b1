"""The operations of a source in a registry."""

from collections.abc import Iterator

from opwire import OperationRegistry, OperationSpec
from opwire.adapters.source import AdapterSource
from opwire.config.runtime import MountedSource
from opwire.operation import Operation, SourceChange


class Changing(AdapterSource):
    """A source whose operations return numbers, and change on demand."""

    def __init__(self, **answers: int) -> None:
        super().__init__()
        self.operations = [operation(name, answer) for name, answer in answers.items()]

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def change(self, *gone: str, **answers: int) -> None:
        put = tuple(operation(name, answer) for name, answer in answers.items())
        self.notify(SourceChange(put=put, gone=gone))


def operation(name: str, answer: int) -> Operation:
    return Operation(OperationSpec(namespace="a", name=name), lambda input, context: answer)


def ids(registry: OperationRegistry) -> list[str]:
    return [spec.id for spec in registry.list()]


async def test_changes_of_the_source_are_followed_as_long_as_it_is_mounted() -> None:
    registry = OperationRegistry()
    source = Changing(one=1)
    mounted = MountedSource(source, registry)
    source.change("a.one", two=2)
    assert ids(registry) == ["a.two"]
    source.change(two=22)
    assert (await registry.execute("a.two")).data == 22
    mounted.unmount()
    assert ids(registry) == []
    source.change(three=3)
    assert ids(registry) == []


async def test_ids_of_another_source_are_duplicates() -> None:
    registry = OperationRegistry()
    MountedSource(Changing(one=1), registry)
    other = Changing(one=11, two=2)
    second = MountedSource(other, registry)
    assert (second.ids, second.duplicates) == ({"a.two"}, {"a.one"})
    other.change(one=111)
    assert (await registry.execute("a.one")).data == 1
    other.change("a.one")
    assert second.duplicates == set()
    second.unmount()
    assert ids(registry) == ["a.one"]


def test_an_operation_that_was_unregistered_by_hand_is_no_trouble() -> None:
    registry = OperationRegistry()
    mounted = MountedSource(Changing(one=1), registry)
    registry.unregister("a.one")
    mounted.unmount()
    assert ids(registry) == []
