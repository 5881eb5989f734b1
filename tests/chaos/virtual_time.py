"""An event loop in virtual time: while every task waits, the clock jumps to the next timer.

A run takes the same steps at the same virtual times each time, and a deadline of a minute passes at once. For code
that does no real I/O and starts no threads.
"""

import asyncio
import selectors
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Advances the clock where another selector would wait."""

    now = 1000.0  # seconds; not zero, so that code that mistakes a time for a duration fails

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("the run is stuck: every task waits, and no timer will wake one")
        if not ready and timeout is not None:
            self.now += max(timeout, 0)
        return ready


_selectors: list[_Selector] = []  # of the run, if there is one


def skip(seconds: float) -> None:
    """Let time pass in which nothing runs, as if the process was blocked."""
    _selectors[-1].now += seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, which `time.monotonic` returns meanwhile in the whole process.

    Raises:
        RuntimeError: every task waits, without a timer that could wake one.
    """
    selector = _Selector()
    with (
        mock.patch.object(time, "monotonic", selector.time),
        mock.patch.object(sys.modules[__name__], "_selectors", [selector]),
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
    ):
        return runner.run(main)
