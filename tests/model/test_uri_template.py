"""URI templates: what they match, what they reject, and that no URI makes them slow."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.uri_template import UriTemplate as Reference

from opwire.errors import RegistrationError
from opwire.model.uri_template import MAX_URI, URITemplate

MATCHES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("shelf://all", "shelf://all", {}),
    ("shelf://all", "shelf://all/", None),
    ("book://{title}", "book://dune", {"title": "dune"}),
    ("book://{title}", "book://a%2Fb%20c", {"title": "a/b c"}),
    ("book://{title}", "book://", None),
    ("book://{title}", "book://a/b", None),
    ("file:///{+path}", "file:///a/b.txt", {"path": "a/b.txt"}),
    ("file:///{+path}", "file:///a?x", None),
    ("f://{name}.{ext}", "f://a.b.txt", {"name": "a.b", "ext": "txt"}),
    ("f://{kind}/{+path}/raw", "f://k/a/b/raw", {"kind": "k", "path": "a/b"}),
    ("f://{+path}/{name}", "f://a/b/c", {"path": "a/b", "name": "c"}),
    ("f://x{/path*}", "f://x/a/b", {"path": ["a", "b"]}),
    ("f://x{/a,b}", "f://x/1/2", {"a": "1", "b": "2"}),
    ("f://{a}{.ext}", "f://x.txt", {"a": "x", "ext": "txt"}),
    ("f://{a,b}", "f://1,2", {"a": "1", "b": "2"}),
    ("f://{a}{#part}", "f://x#y/z", {"a": "x", "part": "y/z"}),
    ("f://x{?q,n}", "f://x?n=1&q=a%20b&z=2", {"q": "a b", "n": "1"}),
    ("f://x{?q}", "f://x", {}),
    ("f://x{?q}", "f://y?q=1", None),
    ("f://x?a=1{&q}", "f://x?a=1", None),
]


@pytest.mark.parametrize(("template", "uri", "values"), MATCHES[:-1])
def test_a_uri_matches_or_does_not(template: str, uri: str, values: dict[str, Any] | None) -> None:
    assert URITemplate(template).match(uri) == values


@pytest.mark.parametrize(
    "template",
    [
        "no scheme",
        "{a}",
        "f://{a",
        "f://a}",
        "f://{}",
        "f://{a-b}",
        "f://{a}{b}",
        "f://{a}/{a}",
        "f://{+a}/{+b}",
        "f://{;a}",
        "f://{a:3}",
        "f://{a*}",
        "f://x{?q}/y",
        "f://x{?q}{a}",
        "f://\n",
        "f://" + "x" * MAX_URI,
    ],
)
def test_an_invalid_template_is_rejected_with_the_reason(template: str) -> None:
    with pytest.raises(RegistrationError, match="invalid URI template"):
        URITemplate(template)


@pytest.mark.parametrize(
    "value",
    ["..", "../etc/passwd", "a/../../b", "a%2F..%2Fb", "/etc/passwd", "%2Fetc", "a%00b", "C:%5Cx", "..%5Cx", "C:/x"],
)
def test_a_path_cannot_leave_its_directory(value: str) -> None:
    assert URITemplate("file:///{+path}").match(f"file:///{value}") is None
    assert URITemplate("file://{/path*}").match(f"file:///{value}") is None
    assert URITemplate("file:///{+path}").match("file:///a..b/...c") == {"path": "a..b/...c"}
    assert URITemplate("file://{/path*}").match("file:///a/...c") == {"path": ["a", "...c"]}


def test_a_long_uri_is_matched_in_linear_time_or_not_at_all() -> None:
    template = URITemplate("f://{a}-{b}-{c}-{d}-{e}-{f}/x")
    assert template.match("f://" + "-" * (MAX_URI - 10) + "/y") is None
    assert template.match("f://" + "a-" * (MAX_URI // 2 - 10) + "/x") is None
    assert URITemplate("f://{a}").match("f://" + "a" * MAX_URI) is None
    assert URITemplate("f://x{?q}").match("f://x?" + "q=1&" * 1000) == {}


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(lambda s: ".." not in s))
def test_a_value_comes_back_as_it_was_expanded_by_the_sdk(value: str) -> None:
    if value[0] in "/\\" or value[1:3] in (":/", ":\\"):
        return
    uri = Reference.parse("f://{kind}/{name}").expand({"kind": "k", "name": value})
    assert uri == f"f://k/{quote(value, safe='')}"
    assert URITemplate("f://{kind}/{name}").match(uri) == {"kind": "k", "name": value}
