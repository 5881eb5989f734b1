"""Whoever watches events read-only: a tape, metrics, an audit."""

import asyncio
import logging
from collections.abc import Callable

from opwire.call.events import CallEvent

logger = logging.getLogger("opwire.call")


class Observers:
    """Functions that are shown every event, after the step that they watch: they can neither slow nor fail it."""

    __slots__ = ("_observers",)

    def __init__(self) -> None:
        self._observers: dict[object, Callable[[CallEvent], None]] = {}  # one may be added twice, and leave once

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: Callable[[CallEvent], None]) -> Callable[[], None]:
        """Show events to an observer; the function that is returned ends it."""
        place = object()
        self._observers[place] = observer
        return lambda: self._observers.pop(place, None) and None

    def show(self, event: CallEvent) -> asyncio.Handle:
        """Show an event, in a moment. The handle takes it back: what could not be sent has not happened."""
        return asyncio.get_running_loop().call_soon(self._show, event)

    def _show(self, event: CallEvent) -> None:
        for observer in tuple(self._observers.values()):
            try:
                observer(event)
            except Exception:
                logger.exception("an observer failed on %s", type(event).__name__)
