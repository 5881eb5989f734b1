"""Tool names: what every client and provider takes, one for each operation, and readable."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import UsageError
from opwire.agents.tools import MAX_NAME, SHORTEST_MAX_NAME, ToolNames

_printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30)
_tricky = st.text(alphabet="a0f-_./é2d5", min_size=1, max_size=12)
_namespaces = (_printable | _tricky).map(lambda text: text.replace(".", "_"))
ids = st.builds("{}.{}".format, _namespaces, _printable | _tricky)
long_ids = st.builds("{}.{}".format, _namespaces, st.text(alphabet="a-_2d/0", min_size=50, max_size=90))


def names_of(*operation_ids: str, max_name: int = MAX_NAME) -> list[str]:
    names = ToolNames(max_name=max_name)
    names.add(operation_ids)
    return [names[id] for id in operation_ids]


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("math.add", "math_add"),
        ("my_shop.get_item", "my_shop_get_item"),
        ("brave-search.list-for-org", "brave-search_list-for-org"),
        ("github.repos/get", "github_repos_get"),
        ("a.b.c", "a_b_c"),
        ("a._b", "a_b"),
        ("café.crème brûlée", "cafe_creme_brulee"),
        ("1password.list", "_1password_list"),
        (
            "graph.users.calendarGroups.calendars.events.instances.deleteExtension",
            "graph_user_cale_cale_even_inst_deleteExtension",
        ),
    ],
)
def test_usual_ids_have_readable_names(id: str, name: str) -> None:
    assert names_of(id) == [name]


def test_ids_that_differ_in_their_separators_have_different_names_without_digests() -> None:
    """Tool names are readable: letters, digits, _ and -, at most 50 by default, different for different ids also
    without their digests, and kept while the operation is served."""
    ids = ("gh.repos/get", "gh.repos_get", "gh.repos-get", "gh.repos.get")
    assert names_of(*ids) == ["gh__repos_get", "gh-repos_get", "gh_repos-get", "gh_repos_get"]


@given(st.sets(ids | long_ids, max_size=20), st.integers(SHORTEST_MAX_NAME, 64))
def test_every_operation_has_a_name_of_its_own_that_clients_take(several: set[str], max_name: int) -> None:
    names = ToolNames(max_name=max_name)
    names.add(several)
    assert len(names) == len(several)
    for id in several:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", names[id])
        assert len(names[id]) <= max_name
        assert names.operation_id(names[id]) == id


@given(st.lists(ids | long_ids, unique=True, max_size=20), st.randoms())
def test_names_do_not_depend_on_the_order_of_registration(several: list[str], chance: random.Random) -> None:
    shuffled = chance.sample(several, len(several))
    assert dict(zip(shuffled, names_of(*shuffled), strict=True)) == dict(zip(several, names_of(*several), strict=True))


def test_an_operation_keeps_its_name_when_others_come_and_go() -> None:
    names = ToolNames()
    names.add(["gh.repos_get"])
    names.add(["gh.repos-get", "gh.repos.get"])
    assert names["gh.repos_get"] == "gh_repos_get"
    names.keep(["gh.repos.get"])
    kept = names["gh.repos.get"]
    assert ("gh.repos_get" in names, names.operation_id("gh_repos_get"), kept) == (False, None, "gh__repos_get")
    names.add(["gh.repos_get"])
    assert names["gh.repos_get"] == "gh_repos_get"


def test_long_ids_that_differ_at_one_end_have_names_that_differ_readably() -> None:
    for first, second in (
        (f"shop.{'x' * 100}a", f"shop.{'x' * 100}b"),
        (f"shop.a{'x' * 100}", f"shop.b{'x' * 100}"),
        (f"shop.{'very_long_words_' * 9}get", f"shop.{'very_long_words_' * 9}set"),
    ):
        names = names_of(first, second)
        assert len({re.sub(r"_[0-9a-f]{6}$", "", name) for name in names}) == 2


def test_a_chosen_name_belongs_to_its_operation_alone() -> None:
    names = ToolNames(chosen_names={"shop.find": "search", "shop.all": "shop_item"})
    names.add(["shop.item", "shop.other"])
    names.add(["shop.find", "shop.all"])
    assert [names[id] for id in ("shop.find", "shop.all", "shop.item")] == ["search", "shop_item", "shop__item"]
    assert names.operation_id("search") == "shop.find"


@pytest.mark.parametrize(
    "chosen", [{"a.b": "1st"}, {"a.b": ""}, {"a.b": "x" * 129}, {"a.b": "ü"}, {"a.b": "x", "a.c": "x"}]
)
def test_a_chosen_name_that_clients_reject_is_an_error(chosen: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="name"):
        ToolNames(chosen_names=chosen)


def test_many_ids_with_one_spelling_are_named_in_linear_time() -> None:
    ids = [f"a.{'/' * n}b" for n in range(1, 2_000)]
    names = names_of(*ids)
    assert len(set(names)) == len(ids)
    assert sum(bool(re.search(r"_[0-9a-f]{6,8}$", name)) for name in names) == len(ids) - 3


@pytest.mark.parametrize("max_name", [SHORTEST_MAX_NAME, MAX_NAME])
def test_long_names_of_one_word_that_are_shortened_alike_have_different_names(max_name: int) -> None:
    # The third one was an error, and with it the names of all operations.
    names = names_of(*(f"e.{'n' * 100}{number}{'m' * 100}" for number in range(1_000)), max_name=max_name)
    assert len(set(names)) == 1_000
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name) and len(name) <= max_name for name in names)
