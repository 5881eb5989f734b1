"""Fixtures of the tests on NATS."""

from collections.abc import Iterator

import pytest

from tests.servers.brokers import NatsServer


@pytest.fixture(scope="session")
def jetstream_server() -> Iterator[NatsServer]:
    """A NATS server with JetStream, for every test that leaves it as it was."""
    with NatsServer(jetstream=True) as server:
        yield server
