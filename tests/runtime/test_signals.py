"""The signals that ask a process to stop."""

import asyncio
import signal

import pytest

from opwire.runtime.signals import STOP_SIGNALS, stop_signals


class LoopWithoutHandlers(asyncio.SelectorEventLoop):
    """An event loop that handles no signals, as those of Windows."""

    def add_signal_handler(self, *_: object) -> None:
        raise NotImplementedError


async def stopped_by(number: int) -> bool:
    with stop_signals() as stop:
        signal.raise_signal(number)
        async with asyncio.timeout(30):
            return await stop.wait()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, LoopWithoutHandlers])
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_sets_the_event_with_every_kind_of_event_loop(
    number: int, loop: type[asyncio.AbstractEventLoop]
) -> None:
    """SIGINT and SIGTERM stop what is served on every platform, Windows included."""
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(stopped_by(number))
    assert {each: signal.getsignal(each) for each in STOP_SIGNALS} == before


def test_a_signal_that_was_ignored_is_ignored_again() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job of a script
    try:
        with asyncio.Runner() as runner:
            assert runner.run(stopped_by(signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


async def test_another_thread_waits_without_handlers() -> None:
    async def enter() -> bool:
        with stop_signals() as stop:
            return stop.is_set()

    before = signal.getsignal(signal.SIGTERM)
    assert await asyncio.to_thread(asyncio.run, enter()) is False
    assert signal.getsignal(signal.SIGTERM) == before
