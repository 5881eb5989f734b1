"""Batches: small events for one end within a turn of the event loop, joined into one message of the broker.

A message costs an end and the broker more than the event in it: subject, token, parser, routing, dispatch. A server of
64 calls in flight responds to some twenty of them per turn.

Rules:

1. A batch is a JSON array of `[token, event]`, and each event counts as if it had been sent by itself, with its token.
2. Only ends with an address that begins with `BATCHING` are sent batches. An event that is alone in its turn is sent
   unchanged, unless it is a request.
3. The order of the events of a call is kept.
4. Requests are batched for a server while it seems to be the only one of their operations (`Leases.sole_server`). Such
   a batch has a number in place of a token, by which the broker reports that it was not delivered. So has a probe: the
   batches before it may have been delivered, and those after it were not.
"""

from itertools import count

from opwire.errors import CallError
from opwire.protocol.batch import MAX_BATCH, encode_batch
from opwire.protocol.events import Waiting, encode_session
from opwire.protocol.transport import Address
from opwire.runtime.text import get_logger
from opwire.transports.broker_connection import BatchingConnection, BrokerConnection
from opwire.transports.leases import Asked, LatestServer

logger = get_logger("opwire.transports")

BATCHING = "batch"
"""The beginning of the address of an end that accepts batches."""

# Events in a batch that is not sent at the end of the turn already, so that the receiver starts to work.
_EVENTS = 33
_REQUESTS = 32  # one less: the broker may have routed the one before them
_SMALL = 1024  # bytes of an event in a batch: larger ones gain little
_PROBE = encode_session(Waiting())  # without news: only whether the broker can deliver it matters
_FRAME = 100  # bytes of a batch of one event, beside the event
_NUMBERED = "q"  # before the number of a batch of requests: tokens of this end are hexadecimal
_DIGITS = 15  # of such a number, at most


class Batches:
    """Sends messages to single ends over a connection: small events at the end of the turn, in batches.

    What sends raises `CallError`, as `BrokerConnection.send` does.
    """

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._buffers = connection if isinstance(connection, BatchingConnection) else None
        self._waiting: dict[Address, list[tuple[str, bytes]]] = {}  # tokens and events, by receiver
        self._requests: dict[Address, tuple[int, list[tuple[str, bytes]]]] = {}  # and numbers, by server
        self._numbers = count(1)

    def add(self, to: Address, token: str, event: bytes, *, control: bool) -> None:
        """Send an event in this turn. `control` is that of `BrokerConnection.send`."""
        waiting = self._waiting.get(to)
        if len(event) > _SMALL or not token.isalnum():  # the token is not escaped
            self.send(to, token, event, control=control)
        elif waiting is not None:
            waiting.append((token, event))
            if len(waiting) >= _EVENTS:
                self._pass_on(to, self._waiting.pop(to))
        elif self._begin(to):
            self._waiting[to] = [(token, event)]
        else:
            self._connection.send(to, token, event, control=control)

    def request(self, route: LatestServer, asked: Asked, request: bytes) -> bool:
        """Send a request to a server in this turn. Return False if the broker has to route it."""
        server, is_large = route.server, len(request) > _SMALL
        if is_large and not (route.wary and len(request) + _FRAME <= self._connection.max_message):
            return False
        batch = self._requests.get(server)
        if batch is not None and is_large:
            self._pass_on_requests(server)
            batch = None
        if batch is None:
            if not self._begin(server):
                return False
            batch = self._requests[server] = next(self._numbers), []
        asked.server, asked.batch = server, batch[0]
        batch[1].append((asked.token, request))
        if is_large or len(batch[1]) >= _REQUESTS:
            self._pass_on_requests(server)
        return True

    def _begin(self, to: Address) -> bool:
        """Return whether events for an end may wait for the end of this turn.

        Not while messages queue up: the sender of each event has to learn that there is no room for it.
        """
        link = None if self._buffers is None else self._buffers.link
        if link is None or link.paused or not to.startswith(BATCHING) or self._connection.max_message < MAX_BATCH:
            return False
        if not self._waiting and not self._requests:
            link.at_turn_end(self.flush)
        return True

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Send a message now, after the events that wait for the end of the turn."""
        if to in self._waiting:
            self._pass_on(to, self._waiting.pop(to))
        if to in self._requests:
            self._pass_on_requests(to)
        self._connection.send(to, token, message, control=control)

    def probe(self, asked: Asked) -> None:
        """Probe the server of a request, or those of its operation; with a batch's number if it accepts batches."""
        server, token = asked.server, asked.token
        if not server:
            self._connection.request(asked.operation_id, token, _PROBE)
        elif self._buffers is not None and server.startswith(BATCHING):
            if server in self._requests:
                self._pass_on_requests(server)
            self._pass_on(server, [(token, _PROBE)], next(self._numbers))
        else:
            self._connection.send(server, token, _PROBE, control=True)

    def flush(self) -> None:
        """Send the events that wait for the end of the turn."""
        waiting, self._waiting = self._waiting, {}
        for to, events in waiting.items():
            self._pass_on(to, events)
        if self._requests:
            requests, self._requests = self._requests, {}
            for server, (number, events) in requests.items():
                self._pass_on(server, events, number)

    def clear(self) -> None:
        """Drop the events that wait: the connection is lost."""
        self._waiting.clear()
        self._requests.clear()

    def _pass_on_requests(self, server: Address) -> None:
        number, requests = self._requests.pop(server)
        self._pass_on(server, requests, number)

    def _pass_on(self, to: Address, events: list[tuple[str, bytes]], number: int = 0) -> None:
        token, message = events[0]
        if number or len(events) > 1:
            token = f"{_NUMBERED}{number}" if number else ""
            message = encode_batch(events)
        try:
            # It may use the reserve of the queue: there is no sender left to which an error could be raised.
            self._connection.send(to, token, message, control=True)
        except CallError as error:  # the callers see their calls missing from the heartbeats
            logger.warning("%d events to %s were lost: %s", len(events), to, error)


def batch_number(token: str) -> int:
    """Return the number of the batch of requests that was sent with this token; 0 for other messages."""
    digits = token[len(_NUMBERED) :]
    return int(digits) if token.startswith(_NUMBERED) and digits.isdecimal() and len(digits) <= _DIGITS else 0
