"""The lag of the event loop."""

import asyncio
import math
import time
from typing import Any
from unittest import mock

from opwire.runtime.loop_lag import LoopLag


async def test_a_loop_that_runs_has_no_lag_and_one_that_was_stopped_says_for_how_long() -> None:
    """How long the event loop was blocked lately is known to what it reads afterwards."""
    clock = [100.0]
    checks: list[Any] = []
    loop_lag, loop = LoopLag(), asyncio.get_running_loop()
    with (
        mock.patch.object(time, "monotonic", side_effect=lambda: clock[0]),
        mock.patch.object(loop, "call_later", lambda delay, check: checks.append((delay, check)) or mock.Mock()),
    ):
        assert loop_lag.recent(clock[0]) == 0, "it has not started"
        assert loop_lag.calm_until == math.inf
        loop_lag.start()
        for _ in range(3):
            delay, check = checks.pop()
            clock[0] += delay
            assert loop_lag.recent(clock[0]) == 0
            check()
            assert clock[0] < loop_lag.calm_until <= clock[0] + delay
        clock[0] += 7.25
        assert loop_lag.calm_until < clock[0]
        assert loop_lag.recent(clock[0]) == 7, "what is read before the timer runs has waited, too"
        checks.pop()[1]()
        assert loop_lag.recent(clock[0]) == 7
        assert loop_lag.calm_until < clock[0]
        assert loop_lag.recent(clock[0] + 4.9) == 7, "what has waited is not read all at once"
        assert loop_lag.recent(clock[0] + 10) > 0, "nothing has looked since"
        for _ in range(40):
            delay, check = checks.pop()
            clock[0] += delay
            check()
        assert loop_lag.recent(clock[0]) == 0
        assert loop_lag.calm_until > clock[0]
        loop_lag.stop()
        assert loop_lag.recent(clock[0] + 60) == 0
