"""Tool names: what every client takes, one for each id, and readable."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.serve.mcp.tools import MAX_NAME, is_truncated, operation_id, tool_name
from tests.requirements import requirement

_printable = st.text(min_size=1, max_size=30).filter(str.isprintable)
_tricky = st.text(alphabet="a0f-_./é2d5", min_size=1, max_size=12)
_namespaces = (_printable | _tricky).filter(lambda text: "." not in text)
ids = st.builds("{}.{}".format, _namespaces, _printable | _tricky)
long_ids = st.builds("{}.{}".format, _namespaces, st.text(alphabet="a-_2d/0", min_size=50, max_size=90))


@requirement("serve-mcp.names")
@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("math.add", "math_add"),
        ("shop.get_item", "shop_get_item"),
        ("my_shop.get_item", "my__shop_get_item"),
        ("brave-search.list-for-org", "brave-search_list-for-org"),
        ("github.repos/list", "github_repos-2f-list"),
        ("a.b.c", "a_b-2e-c"),
        ("a._b", "a_-5f-b"),
        ("ads.my-ad-list", "ads_my-2d-ad-list"),
    ],
)
def test_usual_ids_have_readable_names(id: str, name: str) -> None:
    assert tool_name(id) == name
    assert operation_id(name) == id


@requirement("serve-mcp.names")
@given(ids | long_ids)
def test_every_name_is_one_that_clients_take(id: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool_name(id))


@requirement("serve-mcp.names")
@given(ids | long_ids)
def test_a_name_that_is_not_cut_says_its_id(id: str) -> None:
    name = tool_name(id)
    assert operation_id(name) == id or (operation_id(name) is None and len(name) == MAX_NAME)


@requirement("serve-mcp.names")
@given(st.sets(ids | long_ids, max_size=20))
def test_different_ids_have_different_names(several: set[str]) -> None:
    assert len({tool_name(id) for id in several}) == len(several)


def test_long_ids_that_begin_alike_have_different_names() -> None:
    first, second = (tool_name(f"shop.{'x' * 100}{end}") for end in "ab")
    assert first != second
    assert len(first) == len(second) == MAX_NAME
    assert first[:40] == second[:40]


def test_a_long_namespace_leaves_room_for_the_name() -> None:
    assert "_repos-2f-list_-0-" in tool_name(f"{'n' * 100}.repos/list")
    assert tool_name(f"{'n' * 100}.{'x' * 100}").startswith(f"{'n' * 12}_xxx")
    assert tool_name(f"shop.{'x' * 100}").startswith("shop_xxx")


def test_a_cut_name_is_never_the_name_of_another_id() -> None:
    # Wherever the cut is: in the middle of a code, or where what follows could complete one.
    for length in range(30, 60):
        cut = tool_name(f"ns.{'-ab/' * 20}"[:length] + "z" * 60)
        assert operation_id(cut) is None
        assert tool_name(f"ns.{cut[3:]}") != cut


@given(st.text(max_size=70))
def test_whatever_a_client_sends_as_a_name_is_read_without_an_error(name: str) -> None:
    id = operation_id(name)
    assert id is None or tool_name(id) == name


@pytest.mark.parametrize(
    "name", ["", "add", "_add", "math_", "math__add", "a_-110000-", "a_-ffffffffffffffff-", "a_-61-"]
)
def test_what_is_no_name_of_ours_stands_for_nothing(name: str) -> None:
    assert operation_id(name) is None


def test_only_a_name_that_was_cut_is_looked_for_among_all_operations() -> None:
    assert is_truncated(tool_name("shop." + "x" * 100))
    assert not is_truncated(tool_name("shop.order"))
    assert not is_truncated("x" * 64)
    assert not is_truncated(tool_name("shop." + "x" * 100) + "x")
