"""The ways in which a client reaches operations: every test of the contract goes all of them."""

from collections.abc import AsyncIterator

import pytest

from tests.client.samples import WAYS, Samples, Way, over_broker
from tests.servers.leaks import Leaks


@pytest.fixture(params=[*WAYS, "redis", "nats"])
def way(request: pytest.FixtureRequest) -> Way:
    """One of the ways. A broker is started before the test looks for what is left behind."""
    if request.param in WAYS:
        return WAYS[request.param]
    return over_broker(request.getfixturevalue(f"{request.param}_server").url)


@pytest.fixture
async def samples(way: Way) -> AsyncIterator[Samples]:
    """Operations to be called; at the end of the test no task and no socket is left."""
    async with Leaks():
        yield Samples()
