"""Where a redirect leads, and what goes along."""

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.http.client import HTTPRequest, redirected

HEADERS = [("Accept", "*/*"), ("Content-Type", "a/b"), ("X-Key", "secret"), ("Cookie", "c=1"), ("authorization", "t")]


def request(method: str = "GET", url: str = "https://api.example/v1/pets?key=secret") -> HTTPRequest:
    return HTTPRequest(
        method=method,
        url=url,
        headers=HEADERS,
        body=b"body",
        secret_headers=frozenset({"x-key"}),
        secret_query=frozenset({"key"}),
    )


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/v2", "https://api.example/v2"),
        ("dogs?a=1#part", "https://api.example/v1/dogs?a=1"),
        ("?page=2", "https://api.example/v1/pets?page=2"),
        ("//api.example/x", "https://api.example/x"),
        ("https://cdn.example/signed?sig=a%2Fb%20c", "https://cdn.example/signed?sig=a%2Fb%20c"),
        ("/a b/é", "https://api.example/a%20b/%C3%A9"),
        (" /spaced ", "https://api.example/spaced"),
        ("https://user:password@api.example/x", "https://api.example/x"),
    ],
)
def test_a_location_is_read_relative_to_the_request(location: str, url: str) -> None:
    assert redirected(request(), 302, location).url == url


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (301, "PUT", "PUT"),
        (302, "DELETE", "DELETE"),
        (307, "POST", "POST"),
        (308, "PATCH", "PATCH"),
    ],
)
def test_the_method_changes_as_fetch_changes_it(status: int, method: str, then: str) -> None:
    following = redirected(request(method), status, "/x")
    assert following.method == then
    kept = then == method
    assert following.body == (b"body" if kept else None)
    assert (("Content-Type", "a/b") in following.headers) is kept


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.example/",
        "//evil.example/",
        "https://api.example:8443/",
        "https://sub.api.example/",
        "https://api.example.evil.example/",
        "https://api.example@evil.example/",
    ],
)
def test_credentials_do_not_cross_to_another_origin(location: str) -> None:
    following = redirected(request(), 307, location)
    assert following.headers == [("Accept", "*/*"), ("Content-Type", "a/b")]
    assert "secret" not in following.url


def test_credentials_stay_within_their_origin() -> None:
    assert redirected(request(), 307, "https://API.example:443/x").headers == HEADERS


def test_credentials_do_not_come_back_with_a_redirect_that_returns() -> None:
    away = redirected(request(), 307, "https://evil.example/")
    assert redirected(away, 307, "https://api.example/").headers == [("Accept", "*/*"), ("Content-Type", "a/b")]


def test_a_secret_in_the_query_is_not_sent_again() -> None:
    following = redirected(request(), 302, "/other")
    assert following.url == "https://api.example/other"


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("https://new.example/v1/pets?key=secret", "https://new.example/v1/pets"),
        ("https://new.example/v1/pets?a=1&key=%73ecret&b=", "https://new.example/v1/pets?a=1&b="),
        ("https://new.example/v1/pets?api_key=secret#x", "https://new.example/v1/pets"),
        ("https://new.example/signed?key=its-own&sig=a%2Fb", "https://new.example/signed?key=its-own&sig=a%2Fb"),
        ("/v2/pets?key=secret", "https://api.example/v2/pets?key=secret"),
    ],
)
def test_a_redirect_with_the_query_of_its_request_takes_no_secret_to_another_origin(location: str, url: str) -> None:
    assert redirected(request(), 301, location).url == url
    within = redirected(request(), 307, "/moved?key=secret")
    assert redirected(within, 301, location).url == url


@pytest.mark.parametrize(
    "location",
    [
        "http://api.example/",
        "ftp://api.example/",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "http://[::1",
    ],
)
def test_a_redirect_to_a_worse_place_is_refused(location: str) -> None:
    """No redirect leads from https to http or to another scheme."""
    with pytest.raises(CallError) as caught:
        redirected(request(), 302, location)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    assert "api.example" in caught.value.message
    assert "secret" not in caught.value.message


def test_a_redirect_from_http_to_https_is_another_origin() -> None:
    following = redirected(request(url="http://api.example/"), 301, "https://api.example/")
    assert following.url == "https://api.example/"
    assert ("X-Key", "secret") not in following.headers
