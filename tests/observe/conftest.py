"""The ways that a call may go, and what is recorded of it."""

import pytest

from tests.observe.tape import Tape
from tests.observe.ways import WAYS, Way, over_broker


@pytest.fixture(params=[*WAYS, "redis", "nats"])
def way(request: pytest.FixtureRequest) -> Way:
    """One of the ways."""
    if request.param in WAYS:
        return WAYS[request.param]
    return over_broker(request.getfixturevalue(f"{request.param}_server").url)


@pytest.fixture
def tape() -> Tape:
    """A recorder of spans and metrics of this test alone."""
    return Tape()
