from types import NoneType
from typing import Any

import pytest

from opwire.typed.from_hint import from_hint
from opwire.typed.nodes import SCALAR_NODES, ChoiceNode, Misfit, expected, kind_of, reachable
from tests.typed.catalogue import Colour, Level, Point, Tree


@pytest.mark.parametrize(
    ("value", "kind"),
    [({}, "object"), ([], "array"), ((), "array"), ("", "string"), (True, "boolean"), (1, "integer"), (1.0, "number")],
)
def test_plain_values_have_a_json_type(value: Any, kind: str) -> None:
    assert kind_of(value) == kind


def test_subclasses_count_as_their_base_and_other_values_by_their_own_name() -> None:
    assert kind_of(Level.LOW) == "integer"
    assert kind_of(Point(1)) == "Point"


def test_the_path_of_a_misfit_is_gathered_from_the_inside_out() -> None:
    misfit = Misfit("no").under("when").under(2).under("my items").under("a")
    assert misfit.path == "$.a['my items'][2].when"


def test_reasons_and_names_in_paths_are_cut() -> None:
    misfit = Misfit("x" * 1_000).under("y" * 1_000)
    assert len(misfit.reason) == 300
    assert len(misfit.path) < 70


def test_messages_name_the_kind_of_value_with_its_article() -> None:
    assert expected("a string", []).reason == "expected a string, got an array"
    assert expected("a string", True).reason == "expected a string, got a boolean"
    assert expected("a string", None).reason == "expected a string, got null"


def test_a_choice_tells_one_from_true() -> None:
    choice = ChoiceNode(None, "choice", [(1, "one"), (True, "yes")], native=False)
    assert (choice.convert(1), choice.convert(1.0), choice.convert(True)) == ("one", "one", "yes")
    with pytest.raises(Misfit, match="is not one of 1, True"):
        choice.convert(False)
    with pytest.raises(Misfit, match="expected boolean or integer, got an array"):
        choice.convert([])


def test_a_long_choice_is_not_listed_in_full() -> None:
    choice = ChoiceNode(None, "choice", [(index, index) for index in range(100)], native=False)
    with pytest.raises(Misfit, match=r"8, 9, \.\.\.$"):
        choice.convert(-1)


def test_choices_as_keys_are_read_from_text() -> None:
    node = from_hint(Level)
    assert isinstance(node, ChoiceNode)
    assert node.as_keys().convert("2") is Level.HIGH


def test_a_node_is_whole_if_nothing_that_fits_is_changed() -> None:
    assert SCALAR_NODES[str].whole
    assert SCALAR_NODES[Any].whole
    assert not SCALAR_NODES[int].whole
    assert not from_hint(Colour).whole
    assert from_hint(str | None).identity == {str, NoneType}


def test_everything_under_a_node_is_reached_once_even_in_a_circle() -> None:
    root = from_hint(Tree)
    names = [each.name for each in reachable(root)]
    assert names == ["Tree", "integer", "array"]


def test_a_node_without_parts_has_nothing_that_tells_it_apart() -> None:
    node = SCALAR_NODES[int]
    assert (list(node.parts()), node.constants(), node.known({"a": 1})) == ([], {}, 0)
