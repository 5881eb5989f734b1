"""Fixtures with real servers. `tests/conftest.py` imports most of them for every test."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.servers.brokers import NatsServer, RedisServer


@pytest.fixture(scope="session")
def brokers_run_here() -> None:
    """Skip where no broker can be started; on Linux and macOS, a missing one is an error that says what to install."""
    if sys.platform == "win32":
        pytest.skip("brokers are not tested on Windows")


@pytest.fixture(scope="session")
def redis_server(brokers_run_here: None) -> Iterator[RedisServer]:
    """A Redis server for every test that leaves it as it was."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def nats_server(brokers_run_here: None) -> Iterator[NatsServer]:
    """A NATS server for every test that leaves it as it was."""
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def jetstream_server(brokers_run_here: None) -> Iterator[NatsServer]:
    """A NATS server with JetStream, for every test that leaves it as it was."""
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture
def own_redis(brokers_run_here: None) -> Iterator[Callable[..., RedisServer]]:
    """Starts Redis servers, with the settings of `RedisServer`, that this test may stop, kill and freeze."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(RedisServer(**settings))


@pytest.fixture
def own_nats(brokers_run_here: None) -> Iterator[Callable[..., NatsServer]]:
    """Starts NATS servers, with the settings of `NatsServer`, that this test may stop, kill and freeze."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(NatsServer(**settings))
