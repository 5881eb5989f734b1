"""Fixtures: the engines one after the other, and the leak check that every fault ends with."""

import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.servers.brokers import Server
from tests.servers.leaks import Leaks
from tests.transports.engines import ENGINES, Engine
from tests.transports.reconnecting import reconnect_quickly


@pytest.fixture(scope="session", params=ENGINES.values(), ids=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    return request.param


@pytest.fixture(scope="session")
def server(engine: Engine) -> Iterator[Server]:
    """A server of the engine, for every test that leaves it as it was."""
    with engine.start() as server:
        yield server


@pytest.fixture
def own_server(engine: Engine) -> Iterator[Server]:
    """A server of the engine that this test may kill and freeze."""
    with engine.start() as server:
        yield server


@pytest.fixture
def quick_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that wait for connections, and not for what is between two attempts."""
    reconnect_quickly(monkeypatch)


@pytest.fixture(autouse=True)
async def nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task, no socket, no process; and no unhandled exception."""
    async with Leaks():
        yield
    gc.collect()
    assert [each.getMessage() for each in caplog.get_records("call") if each.name == "asyncio"] == []
