"""Fixtures of the tests of hubs and spokes."""

from collections.abc import AsyncIterator

import pytest

from tests.hub.meeting import Meeting
from tests.servers.leaks import Leaks


@pytest.fixture(params=["redis", "nats"])
def broker(request: pytest.FixtureRequest) -> str:
    """The URL of a broker. It is started before the meeting, which looks for processes that are left."""
    return request.getfixturevalue(f"{request.param}_server").url


@pytest.fixture
async def meeting() -> AsyncIterator[Meeting]:
    """Makes the hubs and spokes of a test. When they are closed, no task and no socket is left."""
    async with Leaks(), Meeting() as meeting:
        yield meeting
