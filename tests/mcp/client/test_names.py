"""Names of servers and tools as namespaces and names of operations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.mcp.client.servers import usable_namespace, usable_namespaces
from opwire.mcp.client.tools import MAX_NAME, is_usable_name
from opwire.model.operation import OperationSpec
from tests.properties import examples


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("time", "time"),
        ("com.example/tools", "com_example/tools"),
        (" a\tb ", "a_b"),
        ("", "mcp"),
        ("日本", "日本"),
        ("opwire", "mcp"),  # reserved
        (" opwire\n", "mcp"),
        ("opwire.hub", "opwire_hub"),
        ("Opwire", "Opwire"),
    ],
)
def test_a_servers_name_becomes_a_namespace(name: str, namespace: str) -> None:
    assert usable_namespace(name) == namespace


def test_names_that_would_be_the_same_namespace_are_numbered_and_others_stay() -> None:
    assert usable_namespaces(["a.b", "a_b", "a\nb", "c"]) == {"a.b": "a_b_2", "a_b": "a_b", "a\nb": "a_b_3", "c": "c"}


def test_a_server_with_the_name_of_opwire_does_not_get_its_reserved_namespace() -> None:
    assert usable_namespaces(["opwire", "mcp", " opwire"]) == {"opwire": "mcp_2", "mcp": "mcp", " opwire": "mcp_3"}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.text(alphabet="ab._2\n", max_size=6), unique=True, max_size=8))
def test_every_server_of_a_file_has_a_namespace_of_its_own(names: list[str]) -> None:
    namespaces = usable_namespaces(names)
    assert list(namespaces) == names
    assert len(set(namespaces.values())) == len(names)
    for namespace in namespaces.values():
        OperationSpec(namespace=namespace, name="any")


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        ("a", True),
        ("with space", True),
        ("日本語", True),
        ("x" * 200, True),
        ("", False),
        ("a\tb", False),
        (None, False),
    ],
)
def test_only_printable_text_can_name_an_operation(name: object, usable: bool) -> None:
    """Any printable name works: spaces, dots, slashes, other scripts, two hundred letters."""
    assert is_usable_name(name) is usable


def test_names_are_bounded() -> None:
    assert len(usable_namespace("x" * 10_000)) == 100
    assert is_usable_name("x" * MAX_NAME)
    assert not is_usable_name("x" * (MAX_NAME + 1))
