"""Python names of operations and fields with any names."""

import keyword
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.client.codegen_types import pascal, quoted, snake


@pytest.mark.parametrize(
    ("text", "of_function", "of_class"),
    [
        ("repos/get", "repos_get", "ReposGet"),
        ("listFiles", "list_files", "ListFiles"),
        ("getHTTPResponse", "get_http_response", "GetHTTPResponse"),
        ("class", "class_", "Class"),
        ("none", "none", "None_"),
        ("9 lives", "x_9_lives", "x_9Lives"),
        ("", "x", "x"),
        ("!!", "x", "x"),
        ("__init__", "init", "Init"),
        ("Größe", "größe", "Größe"),
        ("ﬁle", "file", "File"),
    ],
)
def test_names_are_in_the_style_of_python(text: str, of_function: str, of_class: str) -> None:
    assert snake(text, "x") == of_function
    assert pascal(text, "x") == of_class


@given(st.text())
def test_any_text_becomes_a_name(text: str) -> None:
    for name in (snake(text, "x"), pascal(text, "x")):
        assert name.isidentifier()
        assert name == unicodedata.normalize("NFKC", name)
        assert not keyword.iskeyword(name)


@given(st.text())
def test_quoted_text_is_ascii_that_means_the_text(text: str) -> None:
    assert quoted(text).isascii()
    assert eval(quoted(text)) == text
