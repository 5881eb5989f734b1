"""The address of a request but for its query."""

import pytest

from opwire.openapi.client.plan import CallPlan
from opwire.openapi.client.request import BaseURL, PathTemplate, base_url_of


def address(server: str, base_url: str | None = None) -> BaseURL:
    return base_url_of(CallPlan(operation_id="a.b", method="GET", path="/", server=server, base_url=base_url))


@pytest.mark.parametrize(
    ("server", "read"),
    [
        ("https://api.example", ("https://api.example", "", "")),
        ("https://api.example/", ("https://api.example", "", "")),
        ("https://api.example/v1/", ("https://api.example", "/v1", "")),
        ("https://api.example//v1//", ("https://api.example", "//v1/", "")),
        ("https://api.example:443/v1?key=a%20b#top", ("https://api.example", "/v1", "key=a%20b")),
        ("http://[::1]:8080/v1", ("http://[::1]:8080", "/v1", "")),
        ("https://bücher.example/ä b", ("https://xn--bcher-kva.example", "/%C3%A4%20b", "")),
        ("HTTPS://API.Example/V1", ("https://api.example", "/V1", "")),
    ],
)
def test_the_servers_path_and_query_are_kept(server: str, read: tuple[str, str, str]) -> None:
    assert address(server) == read


def test_what_the_user_fixed_stands_before_what_the_document_says() -> None:
    assert address("https://document.example/v1", "http://127.0.0.1:1/x").origin == "http://127.0.0.1:1"
    assert address("not an address", "http://127.0.0.1:1").origin == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("https://{host}/v1", r"variable \{host\} of its"),
        ("/v1", "no complete URL"),
        ("", "no complete URL"),
        ("https://", "no complete URL"),
        ("https://h:port/", "no complete URL"),
        ("ftp://h/", "neither http:// nor https://"),
        ("https://user:password@h/", "use credentials= instead"),
        ("https://user@h/", "use credentials= instead"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_it(server: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        address(server)
    assert "password" not in str(caught.value).replace("user name or password", "")


def test_a_template_is_filled_by_name_and_may_have_several_variables_in_a_segment() -> None:
    template = PathTemplate("/a b/{x}/{y}.{z}//:go", {"x", "y", "z"})
    assert template.fill({"y": "2", "z": "3", "x": "1"}) == "/a%20b/1/2.3//:go"
    assert PathTemplate("pets/{x}/", {"x"}).fill({"x": "1"}) == "/pets/1/"
    assert PathTemplate("/", set()).fill({}) == "/"


def test_a_query_in_a_template_is_kept_and_a_fragment_is_not() -> None:
    template = PathTemplate("/{x}?action=get it#first", {"x"})
    assert (template.fill({"x": "1"}), template.fill_query({"x": "1"})) == ("/1", "action=get%20it")


def test_variables_in_the_query_of_a_template_are_filled_except_those_that_are_query_parameters() -> None:
    template = PathTemplate("/{x}?a={a}&at={x},{y}&b={b}&c", {"x", "y", "b"}, {"a", "c"})
    assert template.fill_query({"x": "1", "y": "2&3+4", "b": "5"}) == "at=1,2%263%2B4&b=5&c"
    with pytest.raises(ValueError, match=r"no parameter describes the variable \{y\}"):
        PathTemplate("/x?a={y}", {"x"}, {"a"})


def test_a_variable_that_nothing_describes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no parameter describes the variable \{y\}"):
        PathTemplate("/{x}/{y}", {"x"})


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        ("/a/{x}", {"x": ""}),
        ("/a/{x}{y}/b", {"x": "", "y": ""}),
        ("/a/{x}/b", {"x": "."}),
        ("/a/{x}", {"x": ".."}),
        ("/a/{x}{y}", {"x": ".", "y": "."}),
        ("/a/.{x}", {"x": "."}),
        ("/a/%2E{x}", {"x": "%2e"}),
        ("/a/{x}{y}", {"x": "..", "y": ";v=1"}),
    ],
)
def test_no_values_make_a_segment_that_servers_take_for_another_path(template: str, texts: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is another path"):
        PathTemplate(template, set(texts)).fill(texts)


@pytest.mark.parametrize("path", ["/../admin", "/a/../../b", "/a/.", "/.%2E/x", "/..;v=1/x"])
def test_no_path_of_a_document_leads_out_of_the_base_url(path: str) -> None:
    with pytest.raises(ValueError, match="is another path"):
        PathTemplate(path, set())


@pytest.mark.parametrize("text", ["...", ".a", "a.."])
def test_dots_that_mean_nothing_are_let_through(text: str) -> None:
    assert PathTemplate("/{x}", {"x"}).fill({"x": text}) == f"/{text}"


def test_a_value_may_be_empty_where_its_segment_is_not() -> None:
    assert PathTemplate("/report{suffix}", {"suffix"}).fill({"suffix": ""}) == "/report"
