"""Operation ids as URL paths."""

import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.model.origin import id_of, path_of

names = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1)
namespaces = names.filter(lambda name: "." not in name)


@pytest.mark.parametrize(
    ("id", "path"),
    [
        ("math.add", "/math/add"),
        ("github.repos/get", "/github/repos~2Fget"),
        ("a.b.c", "/a/b.c"),
        ("a..", "/a/~2E"),
        ("a...", "/a/~2E~2E"),
        ("a.b ~é", "/a/b~20~7E~C3~A9"),
        ("a/b.c?d#e%2F", "/a~2Fb/c~3Fd~23e~252F"),
    ],
)
def test_ids_are_readable_and_safe_in_a_path(id: str, path: str) -> None:
    assert path_of(id) == path
    assert id_of(path) == id


@given(namespaces, names)
def test_every_id_survives_its_path_however_often_it_is_decoded(namespace: str, name: str) -> None:
    """Every id has a path that survives servers and proxies."""
    path = path_of(f"{namespace}.{name}")
    assert re.fullmatch(r"/[A-Za-z0-9._~-]+/[A-Za-z0-9._~-]+", path)
    assert not {".", ".."} & set(path.split("/"))
    assert unquote(unquote(path)) == path
    assert id_of(path) == f"{namespace}.{name}"


@given(namespaces.filter(lambda name: "/" not in name), names)
def test_a_name_that_is_percent_encoded_is_understood_too(namespace: str, name: str) -> None:
    if "~" not in namespace + name:
        assert id_of(unquote(f"/{quote(namespace, safe='')}/{quote(name, safe='')}")) == f"{namespace}.{name}"


@pytest.mark.parametrize("path", ["", "/", "/math", "/math/", "//add", "//"])
def test_what_is_not_namespace_and_name_is_not_an_id(path: str) -> None:
    assert id_of(path) is None


@given(st.text())
def test_no_path_breaks_it(path: str) -> None:
    id_of(path)


def test_escapes_that_are_not_ours_stand_for_themselves() -> None:
    assert id_of("/a/b~ff~FF~C3~2Fc") == "a.b~ff~FF~C3~2Fc"
    assert id_of("/a/~2") == "a.~2"
