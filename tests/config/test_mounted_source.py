"""The operations of a source in a registry."""

from collections.abc import Iterator

from opwire import OperationRegistry, OperationSpec
from opwire.config.runtime import MountedSource
from opwire.config.views import ConfigRegistry
from opwire.model.operation import Operation
from opwire.registry.source import AdapterSource, SourceChange
from opwire.registry.view import ViewRules


class Changing(AdapterSource):
    """A source with operations that return numbers, and change on demand."""

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


async def test_changes_of_the_source_are_followed_while_it_is_mounted() -> None:
    registry = ConfigRegistry()
    source = Changing(one=1)
    mounted = MountedSource("one", source, registry)
    source.change("a.one", two=2)
    assert ids(registry) == ["a.two"]
    source.change(two=22)
    assert (await registry.execute("a.two")).data == 22
    mounted.unmount()
    assert ids(registry) == []
    source.change(three=3)
    assert ids(registry) == []


async def test_ids_of_another_source_are_duplicates() -> None:
    registry = ConfigRegistry()
    MountedSource("one", Changing(one=1), registry)
    other = Changing(one=11, two=2)
    second = MountedSource("two", other, registry)
    assert (second.ids, second.duplicates) == ({"a.two": "a.two"}, {"a.one"})
    other.change(one=111)
    assert (await registry.execute("a.one")).data == 1
    other.change("a.one")
    assert second.duplicates == set()
    second.unmount()
    assert ids(registry) == ["a.one"]


def test_an_operation_that_was_unregistered_by_hand_is_ignored() -> None:
    registry = ConfigRegistry()
    mounted = MountedSource("one", Changing(one=1), registry)
    registry.unregister("a.one")
    mounted.unmount()
    assert ids(registry) == []


async def test_operations_are_selected_and_renamed_as_they_come_and_go() -> None:
    registry = ConfigRegistry()
    source = Changing(one=1, two=2)
    rules = ViewRules({"exclude": ["a.two", "a.tow"], "rename": {"a": "b"}})
    mounted = MountedSource("one", source, registry, rules)
    assert ids(registry) == ["b.one"]
    assert registry.sources == {"b.one": "one"}
    assert mounted.problems == ("exclude: 'a.tow' matches nothing; did you mean a.two?",)
    source.change("a.one", two=22, three=3)
    assert (await registry.execute("b.three")).data == 3
    assert ids(registry) == ["b.three"]
    mounted.unmount()
    assert (ids(registry), registry.sources) == ([], {})
