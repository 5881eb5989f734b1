"""Quick reconnection, for tests that are not about the pause between two attempts."""

from functools import partial

import pytest

from opwire.runtime import deadlines
from opwire.transports import broker
from opwire.transports.websocket import client


def reconnect_quickly(patch: pytest.MonkeyPatch) -> None:
    """For ends in this process. Those that are dropped often would otherwise take longer each time."""
    patch.setattr(broker, "_LONGEST_PAUSE", 0.1)
    patch.setattr(client, "back_off", partial(deadlines.back_off, first=0.1, longest=0.1))
