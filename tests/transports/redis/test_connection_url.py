"""URLs of Redis servers."""

import pytest

from opwire.errors import UsageError
from opwire.transports.redis.connection import Target, parse_url


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://", Target("localhost", 6379)),
        ("redis://cache", Target("cache", 6379)),
        ("redis://10.0.0.1:7000/", Target("10.0.0.1", 7000)),
        ("redis://cache/2", Target("cache", 6379, db=2)),
        ("redis://cache?db=3", Target("cache", 6379, db=3)),
        ("redis://[::1]:7000", Target("::1", 7000)),
        ("rediss://cache", Target("cache", 6379, tls=True)),
        ("redis://:secret@cache", Target("cache", 6379, password="secret")),
        ("redis://ann:a%40b%2Fc%3A@cache", Target("cache", 6379, user="ann", password="a@b/c:")),
        ("redis://ann@cache", Target("cache", 6379, user="ann")),
        ("unix:///run/redis.sock", Target("localhost", 6379, path="/run/redis.sock")),
        (
            "unix://ann:secret@/run/my%20redis.sock?db=1",
            Target("localhost", 6379, path="/run/my redis.sock", user="ann", password="secret", db=1),
        ),
    ],
)
def test_a_url_has_the_address_of_the_server_and_our_credentials(url: str, target: Target) -> None:
    assert parse_url(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cache:6379",
        "http://ann:secret@cache",
        "redis://ann:secret@cache:port",
        "redis://ann:secret@cache:99999",
        "redis://ann:secret@cache/one",
        "redis://ann:secret@cache/-1",
        "redis://ann:secret@cache/1?db=2",
        "redis://ann:secret@cache?ssl=true",
        "redis://ann:secret@cache?secret",
        "redis://ann:secret@[::1",
        "redis://ann:secret@cache#2",
        "unix://ann:secret@host/run/redis.sock",
        "unix://ann:secret@",
    ],
)
def test_any_other_url_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(UsageError, match=r"not the URL of a Redis server.*rediss://") as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_a_target_shows_its_place_and_never_its_password() -> None:
    """A password appears in no message, name or repr."""
    target = parse_url("redis://ann:secret@[::1]:7000/4")
    assert target.name == "Redis at [::1]:7000"
    assert parse_url("unix://:secret@/run/redis.sock").name == "Redis at /run/redis.sock"
    assert "secret" not in repr(target)
