"""Connections that are made again soon, for tests that are not about what is between two attempts."""

import pytest

from opwire.transports import broker
from opwire.transports.websocket import client


def reconnect_quickly(patch: pytest.MonkeyPatch) -> None:
    """For ends in this process. Those that are dropped often would otherwise take longer each time."""
    for module in (broker, client):
        patch.setattr(module, "_LONGEST_PAUSE", 0.1)
