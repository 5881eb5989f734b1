"""Passes the events of calls on, from one peer of a server to another. `Routes` says where to.

Nobody waits for a slow peer: what cannot be written to it at once fails its own call, and no other.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from opwire.auth import Grant, RateLimit
from opwire.call import MAX_MESSAGE, Address, CallAborted, CallEvent, CallFailed, encode_event
from opwire.call.session import Announce, Left, Session, SessionEvent, Withdraw, encode_session
from opwire.errors import CallError, ErrorCode
from opwire.transports.websocket.connection import Connection
from opwire.transports.websocket.routes import Call, Routes, Way
from opwire.transports.websocket.stamps import (
    MARGIN,
    NOBODY,
    SERVER,
    Aborted,
    Head,
    Requested,
    Responded,
    request_stamp,
    stamp,
    stamped,
)

logger = logging.getLogger("opwire.transports")

_UNMATCHED = 100.0, 2_000  # events of a peer that no call needs, in kB: in a second, and at once
_SMALL = 1024  # bytes of an event that ends or steers a call: larger ones have no room of their own


class Peer:
    """A client as the server sees it."""

    connection: Connection

    def __init__(self, address: Address, rate: RateLimit | None = None) -> None:
        self.address = address
        self.rate = rate  # of its requests, and of what belongs to no call
        self.unmatched = RateLimit(*_UNMATCHED)
        self.greeted = False  # it has said hello
        self.group: str | None = None  # connections with one share their room: the identity; None without a token
        self.welcomed = False
        self.grant: Grant | None = None
        self.identity = NOBODY  # as JSON
        self.turn: asyncio.Future[None] | None = None  # to have its token checked
        self.expiry: asyncio.TimerHandle | None = None  # the end of its grant
        self.wishes: deque[Announce | Withdraw] = deque()  # that are not decided yet
        self.wished = 0  # operations in these
        self.reminder: asyncio.TimerHandle | None = None  # of those: the peer is told that they are not forgotten
        self.strikes = 0  # messages of it that could not be read
        self.max_message = MAX_MESSAGE
        self.stamps = {stray: stamp(address, stray=stray) for stray in (False, True)}

    @property
    def host(self) -> str:
        """The address that it connects from."""
        return self.connection.link.remote

    def send(self, message: bytes, *, control: bool) -> None:
        """Send a message. `control`: it ends or steers a call.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, RATE_LIMITED if it does not read, UNAVAILABLE if it is gone.
        """
        if len(message) > self.max_message + MARGIN:
            size = f"the message has {len(message):,} bytes, and {self.address} takes {self.max_message:,}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size)
        self.connection.send(message, control=control)

    def tell(self, event: CallEvent | SessionEvent, sender: Address = SERVER) -> None:
        """Tell it something that it can do without if it is gone; of a call, in the name of the call's other side."""
        if isinstance(event, Session):
            message = encode_session(event)
        else:
            message = encode_event(event)
            message = message if sender == SERVER else message[:-1] + stamp(sender)
        try:
            self.connection.send(message, control=True)
        except CallError as error:
            logger.debug("%s could not be told: %s", self.address, error)


class Relay:
    """What is for the server itself is handed to `deliver`."""

    def __init__(self, routes: Routes, deliver: Callable[[Peer, bytes, Head], None]) -> None:
        self._routes = routes
        self._deliver = deliver
        self.peers: dict[Address, Peer] = {}

    def join(self, peer: Peer) -> None:
        """A peer is there."""
        self.peers[peer.address] = peer
        delegates = peer.grant is not None and peer.grant.delegates
        self._routes.join(peer.address, peer.identity, delegates=delegates)

    def leave(self, peer: Peer, reason: str) -> None:
        """A peer is gone: those who share calls with it are told."""
        gone = peer.address
        del self.peers[gone]
        calls = self._routes.leave(gone)
        for call in calls:
            if call.caller not in (gone, SERVER):  # the server's own calls are ended by its books
                error = CallError(ErrorCode.UNAVAILABLE, f"the peer that had the call is gone: {reason}")
                self.peers[call.caller].tell(CallFailed.of(call.request_id, error), gone)
        for server in {call.server for call in calls} - {gone, SERVER}:
            self.peers[server].tell(Left(peer=gone, reason=reason))

    def pass_on(self, sender: Peer, message: bytes, head: Head) -> None:
        """An event arrived from a peer."""
        if isinstance(head, Requested):
            self._request(sender, message, head)
            return
        way = self._routes.follow(sender.address, head)
        if way is None:
            return
        if way.call is None:
            self._pass_unmatched(sender, message, head, way)
            return
        try:
            self._carry(sender, message, head, way)
        except CallError as error:
            if way.to == way.call.caller:
                self._cut_short(way.call, error)
            elif isinstance(head, Aborted):  # with a reason too long for a peer that does not keep up
                gave_up = CallAborted(request_id=head.request_id, reason="the caller gave up")
                self.peers[way.to].tell(gave_up, sender.address)

    def _pass_unmatched(self, sender: Peer, message: bytes, head: Head, way: Way) -> None:
        """An event arrived that no call needs: pass it on if that costs its receiver nothing, or else drop it."""
        now = time.monotonic()
        busy = way.to != SERVER and self.peers[way.to].connection.link.paused
        limited = sender.rate is not None and sender.rate.take(now)
        if busy or limited or any(sender.unmatched.take(now) for _ in range(1 + len(message) // _SMALL)):
            self._routes.dropped["flood"] += 1
            return
        try:
            self._carry(sender, message, head, way)
        except CallError as error:
            logger.debug("an unmatched event was dropped: %s", error)

    def refuse(self, caller: Peer, head: Head, error: CallError) -> None:
        """A request did not reach anybody. Whoever addressed it to a peer expects the answer from there."""
        failed = CallFailed.of(head.request_id, error)
        if error.retryable:  # what is too large for one is not offered to others
            failed = replace(failed, not_started=True)
        caller.tell(failed, head.peer or SERVER)

    def _request(self, sender: Peer, message: bytes, head: Requested) -> None:
        way = None
        if sender.rate is not None and (wait := sender.rate.take(time.monotonic())):
            error = CallError(ErrorCode.RATE_LIMITED, "this connection calls too often", retry_after=wait)
            sender.tell(CallFailed.of(head.request_id, error), head.peer or SERVER)
            return
        try:
            way = self._routes.request(sender.address, head)
            if way is not None:
                self._carry(sender, message, head, way)
        except CallError as error:
            if way is not None and way.call is not None:
                self._routes.end(way.call)
            self.refuse(sender, head, error)

    def _carry(self, sender: Peer, message: bytes, head: Head, way: Way) -> None:
        if isinstance(head, Requested):
            message = stamped(message, request_stamp(sender.address, way.identity))
        elif way.to != SERVER:
            message = stamped(message, sender.stamps[way.call is None])
        if way.to == SERVER:
            self._deliver(sender, message, head)
        else:
            control = not isinstance(head, (Requested, Responded)) and len(message) <= _SMALL
            self.peers[way.to].send(message, control=control)

    def _cut_short(self, call: Call, error: CallError) -> None:
        """An answer cannot be passed on: the caller gets the error in its place, and who serves the call may stop."""
        told = CallError(error.code, f"the answer could not be passed on: {error.message}")
        self.peers[call.caller].tell(CallFailed.of(call.request_id, told), call.server)
        if self._routes.end(call):
            self.peers[call.server].tell(CallAborted(request_id=call.request_id, reason=told.message), call.caller)
