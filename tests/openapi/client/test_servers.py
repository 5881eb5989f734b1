"""The address of an API."""

from typing import Any

import pytest

from tests.openapi.client.documents import Read, document

DOCUMENT = "https://docs.test/api/openapi.json"


def server(root: dict[str, Any], uri: str = "", **options: Any) -> str:
    return Read(root, uri=uri, **options).only.plan.server


def api(servers: Any = None, *, path: Any = None, operation: Any = None) -> dict[str, Any]:
    root = document({"/a": {"get": {}}})
    for owner, given in ((root, servers), (root["paths"]["/a"], path), (root["paths"]["/a"]["get"], operation)):
        if given is not None:
            owner["servers"] = given
    return root


def at(url: str, **variables: Any) -> list[dict[str, Any]]:
    return [{"url": url, "variables": variables}]


def test_the_closest_server_counts() -> None:
    assert server(api(at("https://a.test"))) == "https://a.test"
    assert server(api(at("https://a.test"), path=at("https://b.test"))) == "https://b.test"
    assert (
        server(api(at("https://a.test"), path=at("https://b.test"), operation=at("https://c.test"))) == "https://c.test"
    )
    assert server(api(at("https://a.test"), operation=[])) == "https://a.test"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("/v1", "https://docs.test/v1"),
        ("v1", "https://docs.test/api/v1"),
        ("../v2/", "https://docs.test/v2/"),
        ("//other.test/x", "https://other.test/x"),
        ("https://other.test", "https://other.test"),
        ("", "https://docs.test/"),
    ],
)
def test_a_relative_address_is_read_against_that_of_the_document(url: str, address: str) -> None:
    assert server(api(at(url)), DOCUMENT) == address


def test_without_any_address_it_stays_relative() -> None:
    assert server(api()) == "/"
    assert server(api(at("/v1"))) == "/v1"
    assert server(api(), DOCUMENT) == "https://docs.test/"
    assert server(api([None, {"url": 7}, "x"])) == "/"


def test_variables_have_defaults_and_can_be_given() -> None:
    variables = {"region": {"default": "eu", "enum": ["eu", "us"]}, "port": {"default": 443}, "path": {"enum": ["v1"]}}
    root = api(at("https://{region}.test:{port}/{path}", **variables))
    assert server(root) == "https://eu.test:443/v1"
    assert server(root, server_variables={"region": "us", "port": "8443"}) == "https://us.test:8443/v1"
    read = Read(root, server_variables={"region": "mars"})
    assert read.only.plan.server == "https://mars.test:443/v1"
    assert "'region' is one of eu, us, not 'mars'" in read.report.warnings[0]
    assert server(api(at("https://{unknown}.test"))) == "https://{unknown}.test"


@pytest.mark.parametrize(
    ("fields", "uri", "address"),
    [
        ({"host": "a.test", "basePath": "/v1", "schemes": ["http", "https"]}, "", "https://a.test/v1"),
        ({"host": "a.test:81", "schemes": ["http"]}, "", "http://a.test:81/"),
        ({"host": "a.test", "basePath": "v1/"}, "", "https://a.test/v1"),
        ({"basePath": "/v1"}, DOCUMENT, "https://docs.test/v1"),
        ({"host": "a.test", "schemes": ["ws"]}, "http://docs.test/x", "http://a.test/"),
        ({"basePath": "/v1"}, "", "/v1"),
    ],
)
def test_swagger_says_it_in_three_fields(fields: dict[str, Any], uri: str, address: str) -> None:
    assert server(document({"/a": {"get": {}}}, "2.0", **fields), uri) == address


def test_what_the_user_fixes_is_kept_beside_it() -> None:
    plan = Read(api(at("https://a.test")), base_url="https://mine.test").only.plan
    assert (plan.server, plan.base_url) == ("https://a.test", "https://mine.test")


def test_variables_do_not_multiply_the_address() -> None:
    long = {"default": "x" * 100_000, "enum": [str(number) for number in range(10_000)]}
    found = Read(api(at("https://a.test/" + "{v}" * 10_000, v=long)))
    assert found.only.plan.server == "/"
    assert "8,192 characters" in found.report.warnings[0]
