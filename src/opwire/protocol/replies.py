"""`Replies`: answers the requests that were received from peers, each once."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.model.context import Progress
from opwire.model.envelope import ResponseEnvelope, is_response_envelope, read_envelope
from opwire.protocol.event_sender import EventSender
from opwire.protocol.events import (
    CallAborted,
    CallCompleted,
    CallEvent,
    CallFailed,
    CallProgress,
    CallQuestion,
    CallResponded,
)
from opwire.protocol.transport import Address
from opwire.runtime.text import get_logger

logger = get_logger("opwire.protocol")

_MAX_SHORT_MESSAGE = 200  # characters of an error message that fit into any event


class Replies:
    """The received requests that have not ended, and the events that answer them."""

    def __init__(self, events: EventSender) -> None:
        self.callers: dict[str, Address] = {}
        """The peers that wait for a reply, by request id."""
        self._events = events
        self._failure_listeners: list[Callable[[CallError], None]] = []

    def on_failed(self, listener: Callable[[CallError], None]) -> Callable[[], None]:
        """Call the listener with the error of each request that fails here; the returned function removes it."""
        self._failure_listeners.append(listener)
        return lambda: self._failure_listeners.remove(listener) if listener in self._failure_listeners else None

    def respond(
        self,
        request_id: str,
        output: ResponseEnvelope[Any] | Mapping[str, Any],
        seq: int | None = None,
        resumed: bool | None = None,
    ) -> bool:
        """Send the response to a request, or item `seq` of a subscription. Return False if its caller is gone.

        `resumed`: it is the first item behind the `resume_from` of the request.

        Raises:
            ConversionError: the output is not a valid envelope.
            CallError: PAYLOAD_TOO_LARGE; the request is then still open.
        """
        if not isinstance(output, ResponseEnvelope):
            if not is_response_envelope(output):
                raise ConversionError(f"respond() takes an envelope, not {type(output).__name__}")
            output = read_envelope(cast("Mapping[str, Any]", output))
        event = CallResponded(request_id=request_id, output=output, seq=seq, resumed=resumed)
        return self._reply(event, final=seq is None)

    def complete(self, request_id: str, seq: int | None = None) -> bool:
        """End a subscription; `seq` is the number of its last item."""
        return self._end(CallCompleted(request_id=request_id, seq=seq))

    def fail(self, request_id: str, error: CallError, *, not_started: bool = False) -> bool:
        """Fail a request. If the error is too large to be sent, its details are omitted and its message is truncated.

        `not_started`: no handler has run, and the caller may retry at another server.
        """
        for listener in self._failure_listeners:
            listener(error)
        event = replace(CallFailed.of(request_id, error), not_started=not_started or None)
        return self._end(event, replace(event, message=event.message[:_MAX_SHORT_MESSAGE], details=None))

    def stopped(self, request_id: str, reason: str) -> bool:
        """Report that a request was stopped at this peer."""
        return self._end(CallAborted(request_id=request_id, reason=reason))

    def forget(self, request_id: str) -> None:
        """Drop a request without a reply: it is a duplicate of one that has ended."""
        self.callers.pop(request_id, None)

    def refuse(self, request_id: str, caller: Address, error: CallError) -> None:
        """Fail a request of another caller than the one that the id belongs to."""
        self._events.try_send(CallFailed.of(request_id, error), caller)

    def report(self, request_id: str, progress: Progress) -> None:
        """Send the progress of a request to its caller, unless the request has ended or the queue is full."""
        caller, event = self.callers.get(request_id), CallProgress.of(request_id, progress)
        if caller is not None and event is not None:
            self._events.try_send(event, caller)

    def ask(self, event: CallQuestion) -> bool:
        """Send a question to the caller of a request. Return False if it is gone, or the question cannot be sent."""
        caller = self.callers.get(event.request_id)
        return caller is not None and self._events.try_send(event, caller)

    def _end(self, *alternatives: CallEvent) -> bool:
        """End a request with the first of these events that can be sent."""
        for event in alternatives:
            try:
                return self._reply(event, final=True)
            except CallError as error:
                logger.warning("%s could not be sent: %s", type(event).__name__, error)
        self.forget(alternatives[0].request_id)
        return False

    def _reply(self, event: CallEvent, *, final: bool) -> bool:
        callers, request_id = self.callers, event.request_id
        # Removed before the event is sent: the caller's reaction may arrive at once.
        caller = callers.pop(request_id, None) if final else callers.get(request_id)
        if caller is None:
            return False
        try:
            self._events.send(event, caller)
        except CallError as error:
            if error.code is ErrorCode.UNAVAILABLE:
                callers.pop(request_id, None)
                return False
            callers[request_id] = caller
            # Not retryable, unlike a request that was rejected: the handler has run.
            raise CallError(error.code, error.message, error.details, retryable=False) from error
        return True
