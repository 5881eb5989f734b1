"""Fixtures of the WebSocket tests."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.leaks import Leaks
from tests.transports.websocket.ends import Ends


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """Makes the ends of a test. When they are closed, no task and no socket is left."""
    async with Leaks(), Ends() as ends:
        yield ends
