"""The relay of a server: passes the events of calls from one client to another.

It never waits for a slow peer: a message that cannot be queued fails its own call, and no other.
"""

import logging
import time
from collections.abc import Callable

from msgspec.structs import replace

from opwire.call import Address, CallAborted, CallFailed
from opwire.call.events import Left
from opwire.errors import CallError, ErrorCode
from opwire.logs import CANCELLED
from opwire.operation import is_own
from opwire.transports.websocket.admission import Peer
from opwire.transports.websocket.routes import (
    SERVER,
    AbortedHead,
    EventHead,
    EventRoute,
    FailedHead,
    ProgressHead,
    RequestedHead,
    RespondedHead,
    RoutedCall,
    Routes,
    request_header,
    with_header,
)

logger = logging.getLogger("opwire.transports")

_MAX_SMALL = 1024  # bytes of an event that ends or steers a call: larger ones have no reserved room


class Relay:
    """Pass the events of calls from one peer to another; those for the server itself go to `deliver`."""

    def __init__(self, routes: Routes, deliver: Callable[[Peer, bytes, EventHead], None]) -> None:
        self._routes = routes
        self._deliver = deliver
        self.peers: dict[Address, Peer] = {}
        self.ended = self.failed = 0  # calls between peers
        self.observer: Callable[[RoutedCall, str], None] | None = None

    def join(self, peer: Peer) -> None:
        """Add a peer."""
        self.peers[peer.address] = peer
        delegates = peer.grant is not None and peer.grant.delegates
        self._routes.join(peer.address, peer.identity, delegates=delegates)

    def leave(self, peer: Peer, reason: str) -> None:
        """Remove a peer, and fail its calls at their other sides."""
        gone = peer.address
        del self.peers[gone]
        calls = self._routes.leave(gone)
        for call in calls:
            self._observe(call, CANCELLED if call.caller == gone else ErrorCode.UNAVAILABLE)
            if call.caller not in (gone, SERVER):  # the server's own calls are ended by its call table
                error = CallError(ErrorCode.UNAVAILABLE, f"the peer that had the call is gone: {reason}")
                self.peers[call.caller].notify(CallFailed.of(call.request_id, error), gone)
        for server in {call.server for call in calls} - {gone, SERVER}:
            self.peers[server].notify(Left(peer=gone, reason=reason))

    def pass_on(self, sender: Peer, message: bytes, head: EventHead) -> None:
        """Pass on an event from a peer."""
        if isinstance(head, RequestedHead):
            self._pass_request(sender, message, head)
            return
        route = self._routes.follow(sender.address, head)
        if route is None:
            return
        if route.call is None:
            self._pass_unmatched(sender, message, head, route)
            return
        if self.observer is not None and isinstance(head, RespondedHead):
            route.call.items += 1
            route.call.response_bytes += len(message)
        if not route.call.open:
            self._observe(route.call, _outcome(head))
        try:
            self._carry(sender, message, head, route)
        except CallError as error:
            if isinstance(head, ProgressHead):
                self._routes.dropped["flood"] += 1
            elif route.to == route.call.caller:
                self._cut_short(route.call, error)
            elif isinstance(head, AbortedHead):  # its reason is too long for a peer that does not keep up
                gave_up = CallAborted(request_id=head.request_id, reason="the caller gave up")
                self.peers[route.to].notify(gave_up, sender.address)

    def _pass_request(self, sender: Peer, message: bytes, head: RequestedHead) -> None:
        route = None
        if sender.rate is not None and (wait := sender.rate.take(time.monotonic())):
            error = CallError(ErrorCode.RATE_LIMITED, "this connection calls too often", retry_after=wait)
            sender.notify(CallFailed.of(head.request_id, error), head.peer or SERVER)
            return
        try:
            route = self._routes.request(sender.address, head)
            if route is not None and route.call is not None:
                route.call.began, route.call.request_bytes = time.monotonic(), len(message)
                self._carry(sender, message, head, route)
        except CallError as error:
            call = None if route is None else route.call
            if call is None:  # rejected before it was routed
                unrouted = (head.request_id, sender.address, "", False, sender.identity)
                call = RoutedCall(*unrouted, operation_id=head.operation_id, began=time.monotonic())
            else:
                self._routes.end(call)
            self._observe(call, error.code)
            failed = CallFailed.of(head.request_id, error)
            if error.retryable:  # a request that is too large for one server is not offered to others
                failed = replace(failed, not_started=True)
            # The response to a request that names a peer is expected from there.
            sender.notify(failed, head.peer or SERVER)

    def _pass_unmatched(self, sender: Peer, message: bytes, head: EventHead, route: EventRoute) -> None:
        """Pass on an unmatched event if that costs its receiver nothing, or else drop it."""
        now = time.monotonic()
        busy = route.to != SERVER and self.peers[route.to].connection.link.paused
        limited = sender.rate is not None and sender.rate.take(now)
        if busy or limited or any(sender.unmatched.take(now) for _ in range(1 + len(message) // _MAX_SMALL)):
            self._routes.dropped["flood"] += 1
            return
        try:
            self._carry(sender, message, head, route)
        except CallError as error:
            logger.debug("an unmatched event was dropped: %s", error)

    def _carry(self, sender: Peer, message: bytes, head: EventHead, route: EventRoute) -> None:
        if isinstance(head, RequestedHead):
            message = with_header(message, request_header(sender.address, route.identity))
        elif route.to != SERVER:
            message = with_header(message, sender.headers[route.call is None])
        if route.to == SERVER:
            self._deliver(sender, message, head)
        else:
            control = not isinstance(head, (RequestedHead, RespondedHead, ProgressHead)) and len(message) <= _MAX_SMALL
            self.peers[route.to].send(message, control=control)

    def _observe(self, call: RoutedCall, outcome: str) -> None:
        """Count a call between peers that has ended. The server counts those that it serves itself."""
        if call.server == SERVER or is_own(call.operation_id):
            return
        self.ended += 1
        self.failed += outcome not in ("", CANCELLED)
        if self.observer is not None:
            self.observer(call, outcome)

    def _cut_short(self, call: RoutedCall, error: CallError) -> None:
        """Fail a call because its response cannot be passed on, and abort it at its server."""
        failure = CallError(error.code, f"the answer could not be passed on: {error.message}")
        self.peers[call.caller].notify(CallFailed.of(call.request_id, failure), call.server)
        if self._routes.end(call):
            aborted = CallAborted(request_id=call.request_id, reason=failure.message)
            self.peers[call.server].notify(aborted, call.caller)


def _outcome(head: EventHead) -> str:
    """Return the error code of a call that this event has ended, or an empty string."""
    match head:
        case FailedHead():
            return head.code if head.code in ErrorCode.__members__ else ErrorCode.EXECUTION_ERROR
        case AbortedHead():
            return CANCELLED
        case _:
            return ""
