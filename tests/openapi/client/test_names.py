"""Names of operations."""

import random

import pytest

from opwire.openapi.client.operations import (
    NameCandidate,
    name_from_path,
    namespace_from,
    printable_name,
    stream_name,
    unique_names,
)


@pytest.mark.parametrize(
    ("title", "namespace"),
    [
        ("Petstore", "petstore"),
        ("Swagger Petstore - OpenAPI 3.0", "petstore"),
        ("GitHub v3 REST API", "github"),
        ("GitHub's official OpenAPI spec + Octokit extension", "github_octokit"),
        ("httpbin.org", "httpbin"),
        ("Office 365", "office_365"),
        ("Amazon Simple Storage Service, 2006-03-01", "amazon_simple"),
        ("The API", "the_api"),
        ("x" * 300, "x" * 20),
        ("a" * 19 + " b", "a" * 19),
        ("v1.2", "v1_2"),
        ("  ", "api"),
        ("Opwire API v1", "api"),  # reserved
        ("opwire hub", "opwire_hub"),
        ("Überblick", "uberblick"),
        ("日本", "api"),
        (None, "api"),
        (["x"], "api"),
    ],
)
def test_a_namespace_is_made_from_the_title(title: object, namespace: str) -> None:
    """A namespace from a title has at most 20 characters, without versions and filler words."""
    assert namespace_from(title) == namespace


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/pets/{petId}", "get_pets_petId"),
        ("POST", "/", "post"),
        ("GET", "/a.b/{c}-{d}/", "get_a_b_c_d"),
        ("DELETE", "/x/%20y", "delete_x_20y"),
    ],
)
def test_an_operation_without_a_name_gets_a_readable_one(method: str, path: str, name: str) -> None:
    assert name_from_path(method, path) == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("repos/get", "repos/get"),
        (" a b ", "a b"),
        ("a\nb\0", "a_b_"),
        ("", ""),
        ("x" * 300, "x" * 200),
    ],
)
def test_odd_ids_are_repaired(given: str, name: str) -> None:
    assert printable_name(given) == name


def test_clashes_are_resolved_in_any_order() -> None:
    wishes = [
        NameCandidate("GET", "/b", "list", True),
        NameCandidate("GET", "/a", "list", True),
        NameCandidate("POST", "/a", "list", True),
        NameCandidate("GET", "/list", "get_list", False),
        NameCandidate("PUT", "/z", "get_list", True),
    ]
    expected = {
        ("GET", "/a"): "list",
        ("POST", "/a"): "list_post_a",
        ("GET", "/b"): "list_get_b",
        ("PUT", "/z"): "get_list",
        ("GET", "/list"): "get_list_2",
    }
    for seed in range(5):
        random.Random(seed).shuffle(wishes)
        assert unique_names(wishes) == expected


def test_names_stay_distinct_and_short_when_thousands_are_alike() -> None:
    wishes = [NameCandidate("GET", f"/{'x' * 300}/{number}", "y" * 200, True) for number in range(3_000)]
    names = unique_names(wishes)
    assert len(set(names.values())) == len(wishes)
    assert max(map(len, names.values())) == 200


def test_the_streaming_form_of_an_operation_has_its_name() -> None:
    assert stream_name("chat") == "chat_stream"
    assert stream_name("x" * 200) == "x" * 193 + "_stream"
