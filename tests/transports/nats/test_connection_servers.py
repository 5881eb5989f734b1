"""Which servers are tried, and what their URLs say."""

import pytest

from opwire.errors import UsageError
from opwire.transports.nats.connection import NatsCredentials, NatsServers, ServerAddress, parse_server


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("nats://example", ServerAddress("example")),
        ("nats://example:4333", ServerAddress("example", 4333)),
        ("example:4333", ServerAddress("example", 4333)),
        ("tls://example", ServerAddress("example", tls=True)),
        ("nats://[::1]:4333", ServerAddress("::1", 4333)),
        ("nats://ann:p%40ss%2F@example", ServerAddress("example", credentials=NatsCredentials("ann", "p@ss/"))),
        ("nats://ann:@example", ServerAddress("example", credentials=NatsCredentials("ann", ""))),
        ("nats://t0ken@example", ServerAddress("example", credentials=NatsCredentials(token="t0ken"))),
    ],
)
def test_a_url_has_the_address_of_the_server_and_our_credentials(url: str, server: ServerAddress) -> None:
    assert parse_server(url) == server


@pytest.mark.parametrize(
    "url", ["", "http://ann:s3cret@example", "nats://", "nats://ann:s3cret@example:port", "ws://x"]
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a NATS server") as failure:
        parse_server(url)
    assert "s3cret" not in str(failure.value)


def test_servers_are_shown_without_users_and_passwords() -> None:
    servers = NatsServers(["nats://ann:s3cret@a:1", "tls://t0ken@[::1]"])
    assert str(servers) == "nats://a:1, tls://[::1]:4222"
    assert "s3cret" not in repr(parse_server("nats://ann:s3cret@a"))
    assert "t0ken" not in repr(parse_server("nats://t0ken@a"))


def test_there_has_to_be_a_server() -> None:
    with pytest.raises(UsageError, match="give at least one URL"):
        NatsServers([])


def test_all_known_servers_are_tried_in_random_order() -> None:
    servers = NatsServers([f"nats://s{number}" for number in range(8)])
    orders = {tuple(map(str, servers.shuffled())) for _ in range(20)}
    assert len(orders) > 1
    assert {frozenset(order) for order in orders} == {frozenset(f"nats://s{number}:4222" for number in range(8))}


def test_servers_tell_of_others_which_are_reached_the_same_way() -> None:
    servers = NatsServers("tls://ann:s3cret@cluster.example")
    first = servers.shuffled()[0]
    servers.discover(first, ["10.0.0.1:4222", "[::1]:4333", "cluster.example:4222", "what is this://"])
    found = {(server.host, server.port): server for server in servers.shuffled()}
    assert found.keys() == {("cluster.example", 4222), ("10.0.0.1", 4222), ("::1", 4333)}
    assert all(server.tls and server.credentials == NatsCredentials("ann", "s3cret") for server in found.values())
    assert found["10.0.0.1", 4222].tls_name == "cluster.example"  # the name in the certificates of a cluster
    servers.discover(found["10.0.0.1", 4222], ["10.0.0.2:4222"])
    names = {server.host: server.tls_name for server in servers.shuffled()}
    assert names == {"cluster.example": None, "10.0.0.2": "cluster.example"}


def test_a_server_cannot_name_neighbours_without_bound() -> None:
    servers = NatsServers("nats://a:1")
    servers.discover(ServerAddress("a", 1), [f"h{number}:4222" for number in range(10_000)])
    assert len(servers.shuffled()) == 65
    servers.discover(ServerAddress("a", 1), ["x" * 300 + ":1", "b:2", "b:99999999999999999999", "[::1", "\0:1"])
    assert {(each.host, each.port) for each in servers.shuffled()} >= {("a", 1), ("b", 2)}
    assert all(len(each.host) <= 253 for each in servers.shuffled())
