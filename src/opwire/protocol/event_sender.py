"""`EventSender`: the way of every event from one peer to its transport, past its observers."""

import asyncio
from collections.abc import Callable

from opwire.errors import CallError
from opwire.protocol.events import CallEvent, CallRequested
from opwire.protocol.transport import Address, Transport
from opwire.runtime.text import get_logger

logger = get_logger("opwire.protocol")

EventObserver = Callable[[CallEvent], None]


class EventSender:
    """Sends events over a transport, and shows those that are sent and received to observers.

    Observers run after the step that they observe and cannot fail it. They see a cause before its effect, and no event
    that the transport rejects.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.observers: dict[object, EventObserver] = {}

    def observe(self, observer: EventObserver) -> Callable[[], None]:
        """Add an observer; the returned function removes it."""
        key = object()  # the same observer may be added twice, and removed once
        self.observers[key] = observer
        return lambda: self.observers.pop(key, None) and None

    def show(self, event: CallEvent) -> asyncio.Handle:
        """Show an event to observers after the current step; the returned handle prevents it."""
        return asyncio.get_running_loop().call_soon(self._call_observers, event)

    def request(self, event: CallRequested) -> Address | None:
        """Send a request to one of the servers of its operation, as `Transport.request`."""
        showing = self.show(event) if self.observers else None
        try:
            return self._transport.request(event)
        except BaseException:
            if showing is not None:
                showing.cancel()
            raise

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, as `Transport.send`."""
        showing = self.show(event) if self.observers else None
        try:
            self._transport.send(event, to)
        except BaseException:
            if showing is not None:
                showing.cancel()
            raise

    def try_send(self, event: CallEvent, to: Address | None) -> bool:
        """Send an event that is optional. Return False if the transport rejected it."""
        try:
            self.send(event, to)
        except CallError:
            return False
        return True

    def _call_observers(self, event: CallEvent) -> None:
        for observer in tuple(self.observers.values()):
            try:
                observer(event)
            except Exception:
                logger.exception("an observer failed on %s", type(event).__name__)
