"""The signals that ask a process to stop, on every platform."""

import asyncio
import signal
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)  # SIGBREAK: Ctrl+Break on Windows, where another process cannot send SIGTERM


@contextmanager
def stop_signals() -> Generator[asyncio.Event]:
    """Provide an event that a stop signal sets. Signals act as before once the block is left.

    Only the main thread can handle signals: in another one, the event stays clear.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    with ExitStack() as handlers:
        if threading.current_thread() is threading.main_thread():
            for signal_number in STOP_SIGNALS:
                # Afterwards: the event loop would leave Python's default, also for a signal that was ignored.
                handlers.callback(signal.signal, signal_number, signal.getsignal(signal_number) or signal.SIG_DFL)
                try:
                    loop.add_signal_handler(signal_number, stop.set)
                    handlers.callback(loop.remove_signal_handler, signal_number)
                except NotImplementedError:  # Windows: its event loops wake up for Python's own handlers
                    signal.signal(signal_number, lambda _number, _frame: loop.call_soon_threadsafe(stop.set))
        yield stop
