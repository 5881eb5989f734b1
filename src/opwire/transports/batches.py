"""Batches: small events for one end within a turn of the event loop, joined into one message of the broker.

A message costs an end and the broker more than the event in it: subject, token, parser, routing, dispatch. A server of
64 calls in flight responds to some twenty of them per turn.

Rules:

1. A batch is a JSON array of `[token, event]`, and each event counts as if it had been sent by itself, with its token.
2. Only ends whose address begins with `BATCHING` are sent batches; an event that is alone in its turn is sent as it is.
3. The order of the events to an end is kept.
"""

import logging
from contextlib import suppress

import msgspec

from opwire.call.events import CallEvent, CallResponded
from opwire.call.transport import Address
from opwire.envelope import arrived_envelope
from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.transports.broker_connection import BatchingConnection, BrokerConnection
from opwire.typed.plain import MAX_DEPTH, read_json, survey

logger = logging.getLogger("opwire.transports")

BATCHING = "batch"
"""The beginning of the address of an end that accepts batches."""

MAX_BATCH = 64 * 1024
"""Limit of a batch in bytes."""

# Events in a batch that is not sent at the end of the turn already, so that the receiver starts to work.
_EVENTS = 32
_SMALL = 1024  # bytes of an event in a batch: larger ones gain little


class Batches:
    """Sends messages to single ends over a connection: small events at the end of the turn, in batches."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._buffers = connection if isinstance(connection, BatchingConnection) else None
        self._waiting: dict[Address, list[tuple[str, bytes]]] = {}  # tokens and events, by receiver

    def add(self, to: Address, token: str, event: bytes, *, control: bool) -> None:
        """Send an event in this turn. `control` is that of `BrokerConnection.send`.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if the queue is full.
        """
        waiting = self._waiting.get(to)
        if len(event) > _SMALL or not token.isalnum():  # the token is not escaped
            self.send(to, token, event, control=control)
        elif waiting is not None:
            waiting.append((token, event))
            if len(waiting) >= _EVENTS:
                self._pass_on(to, self._waiting.pop(to))
        elif self._buffers is not None and to.startswith(BATCHING) and self._has_room(self._buffers):
            if not self._waiting:
                self._buffers.at_turn_end(self.flush)
            self._waiting[to] = [(token, event)]
        else:
            self._connection.send(to, token, event, control=control)

    def _has_room(self, connection: BatchingConnection) -> bool:
        """Return whether a batch can be sent. If not, the sender has to learn of it, for each event."""
        return not connection.congested and connection.max_message >= MAX_BATCH

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Send a message now, after the events that wait for the end of the turn.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if the queue is full.
        """
        if to in self._waiting:
            self._pass_on(to, self._waiting.pop(to))
        self._connection.send(to, token, message, control=control)

    def flush(self) -> None:
        """Send the events that wait for the end of the turn."""
        waiting, self._waiting = self._waiting, {}
        for to, events in waiting.items():
            self._pass_on(to, events)

    def clear(self) -> None:
        """Drop the events that wait: the connection is lost."""
        self._waiting.clear()

    def _pass_on(self, to: Address, events: list[tuple[str, bytes]]) -> None:
        token, message = events[0]
        if len(events) > 1:
            token, message = "", b"[%b]" % b",".join([b'["%b",%b]' % (token.encode(), each) for token, each in events])
        try:
            # It may use the reserve of the queue: there is no sender left to which an error could be raised.
            self._connection.send(to, token, message, control=True)
        except CallError as error:  # the callers see their calls missing from the heartbeats
            logger.warning("%d events to %s were lost: %s", len(events), to, error)


_decoder = msgspec.json.Decoder(list[tuple[str, CallEvent]])
_raw_decoder = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])


def decode_batch(batch: bytes, *, max_event: int) -> list[tuple[str, CallEvent | bytes]]:
    """Decode an array of `[token, event]`. If one of the events needs a closer look, return all of them as bytes.

    All events in one step: 0.5 µs each instead of 1.5. An event larger than `max_event` is left as bytes.

    Raises:
        CallError: PROTOCOL_ERROR if it is not an array of tokens and objects, or too large. Events that are left as
            bytes may be invalid.
    """
    if len(batch) > MAX_BATCH:
        size = f"a batch of {len(batch):,} bytes is above the limit of {MAX_BATCH:,}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, size)
    with suppress(ValueError, RecursionError, ConversionError):
        events = _decoder.decode(batch)
        # As in `decode_event`. Each pair has at least two brackets, which are not those of another.
        shallow = batch.count(b"[") + batch.count(b"{") <= MAX_DEPTH + 2 * len(events)
        small = len(batch) <= max_event
        for _, event in events:
            if not small or not _is_usual(event, shallow=shallow):
                break
        else:
            return list(events)
    try:
        raw = [(token, bytes(event)) for token, event in read_json(_raw_decoder, batch)]
    except (ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"invalid batch: {error}") from error
    if not all(event.startswith(b"{") for _, event in raw):
        raise CallError(ErrorCode.PROTOCOL_ERROR, "invalid batch: an event is not an object")
    return [*raw]


def _is_usual(event: CallEvent, *, shallow: bool) -> bool:
    """Return whether an event can be used as it was decoded. `shallow`: it is known not to be nested too deeply."""
    if type(event) is not CallResponded:
        return shallow
    return arrived_envelope(event.output) is event.output and (shallow or not survey(event.output.data).deep)
