"""The relay between the peers of a server: it passes the events of calls from one of them to another.

It never waits for a slow peer: a message that cannot be queued fails its own call, and no other.

The relay header is the field `peer`: the sender, in what the server sends, and the receiver, in what a client sends. An
event without it is from or for the server itself; a request without it is for any server of its operation.

Payloads are not decoded on the way. The field is spliced into the bytes as the last one: `…,"peer":"c7"}`. A client's
own is cut off if it has exactly this form. Elsewhere in the message it stays, and is ignored: of two fields with one
name, msgspec and `JSON.parse` take the last. Events without an open call also get `unmatched`. On a request, the
caller's `identity` is written before it in the same way, and its `credential` is overwritten by null.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from opwire.auth.tokens import Grant
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity
from opwire.model.operation import OWN
from opwire.observe.logs import CANCELLED
from opwire.protocol import events
from opwire.protocol.events import MAX_ID, CallAborted, CallEvent, CallFailed, SessionMessage, encode_event
from opwire.protocol.transport import Address
from opwire.runtime.limits import TokenBucket
from opwire.runtime.text import get_logger
from opwire.transports.websocket.connection import WebSocketConnection
from opwire.transports.websocket.routes import (
    ANONYMOUS,
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
    decode_head,
    read_head,
)

logger = get_logger("opwire.transports.websocket")

MAX_IDENTITY = 4 * 1024  # bytes that a relay writes
MARGIN = MAX_IDENTITY + 256  # bytes that a relay header adds to a message

_PEER_FIELD, _UNMATCHED_FIELD = b',"peer":"', b',"unmatched":true'
_MAX_HEADER_BYTES = 128  # that are searched for it; a longer one is decoded
_UNMATCHED_KB_PER_SECOND, _UNMATCHED_KB_AT_ONCE = 100.0, 2_000  # of a peer
_BULK_HEADS = (RespondedHead, ProgressHead)  # they have no reserved room, like requests
_MAX_CONTROL_BYTES = 1024  # larger events have no reserved room

# --- headers ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def relay_header(peer: Address, *, unmatched: bool = False) -> bytes:
    """Return the end of a message from, or for, a peer."""
    return (_UNMATCHED_FIELD if unmatched else b"") + b',"peer":' + msgspec.json.encode(peer) + b"}"


def identity_json(identity: Identity | None) -> bytes:
    """Encode an identity for requests."""
    return msgspec.json.encode(identity)


@lru_cache(maxsize=4096)
def read_identity(identity: bytes) -> Identity | None:
    """Decode an identity that `identity_json` encoded."""
    return msgspec.json.decode(identity, type=Identity | None)


@lru_cache(maxsize=4096)
def request_header(peer: Address, identity: bytes) -> bytes:
    """Return the end of a request from a peer."""
    return b',"identity":' + identity + b',"credential":null' + relay_header(peer)


def with_header(message: bytes, header: bytes) -> bytes:
    """Return a message with this header in place of its own."""
    message = message if message.endswith(b"}") else message.rstrip()
    begin = message.rfind(_PEER_FIELD, -_MAX_HEADER_BYTES)
    return message[: -1 if begin < 0 or _named_peer(message[begin:]) is None else begin] + header


def read_origin(message: bytes) -> tuple[Address, bool]:
    """Return the sender of a message from the server, and whether it is unmatched.

    Raises:
        CallError: PROTOCOL_ERROR, if the message is invalid.
    """
    begin = message.rfind(_PEER_FIELD, -_MAX_HEADER_BYTES)
    if begin >= 0 and (peer := _named_peer(message[begin:])) is not None:
        return peer, message.endswith(_UNMATCHED_FIELD, 0, begin)
    if b'"peer"' not in message:
        return SERVER, False
    head = read_head(message)
    return head.peer or SERVER, head.unmatched


@lru_cache(maxsize=4096)
def _named_peer(header: bytes) -> Address | None:
    """Return the peer of a header, or None if these last bytes of a message are something else.

    They begin with `_PEER_FIELD`, which cannot be part of a string, where quotes are escaped: it is a field, and since
    the message ends right after its value, a field of the message itself.
    """
    peer = header[len(_PEER_FIELD) : -2]
    is_header = len(header) > len(_PEER_FIELD) + 1 and header.endswith(b'"}') and b'"' not in peer and b"\\" not in peer
    return peer.decode() if is_header else None


# --- peers ------------------------------------------------------------------------------------------------------------


class Peer:
    """A client, as the server sees it."""

    connection: WebSocketConnection
    hub = False  # it is another hub

    def __init__(self, address: Address, rate: TokenBucket | None = None) -> None:
        self.address = address
        self.rate = rate  # of its requests and unmatched events
        self.unmatched = TokenBucket(_UNMATCHED_KB_PER_SECOND, _UNMATCHED_KB_AT_ONCE)
        self.greeted = False  # it has sent hello
        self.group: str | None = None  # connections of one group share their room: the identity; None without a token
        self.welcomed = False
        self.moved = False  # it sends no new requests
        self.grant: Grant | None = None
        self.identity = ANONYMOUS  # as JSON
        self.turn: asyncio.Future[None] | None = None  # to have its token checked
        self.expiry: asyncio.Task[None] | None = None  # of its grant
        self.changes: deque[events.WireAnnounce | events.Withdraw] = deque()  # undecided
        self.changing = 0  # operations in these
        self.carried = 0  # bytes of descriptions in these
        self.notice: asyncio.TimerHandle | None = None  # that changes are pending
        self.invalid_messages = 0
        self.max_message = events.MAX_MESSAGE
        self.header = relay_header(address)  # of the events that it sends

    @property
    def host(self) -> str:
        """Return the host that it connects from."""
        return self.connection.link.remote

    def send(self, message: bytes, *, control: bool, caller: Address | None = None) -> None:
        """Send a message. `control`: it ends or controls a call. `caller`: that of a call which the peer serves.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, RATE_LIMITED if it does not read, UNAVAILABLE if it is gone.
        """
        if len(message) > self.max_message + MARGIN:
            size = f"the message has {len(message):,} bytes; {self.address} accepts {self.max_message:,}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size)
        self.connection.send(message, control=control)

    def notify(self, event: CallEvent | events.SessionEvent, sender: Address = SERVER) -> None:
        """Send an event without raising; an event of a call is sent on behalf of the call's other side."""
        if isinstance(event, SessionMessage):
            message = events.encode_session(event)
        else:
            message = encode_event(event)
            message = message if sender == SERVER else message[:-1] + relay_header(sender)
        try:
            self.connection.send(message, control=True)
        except CallError as error:
            logger.debug("could not notify %s: %s", self.address, error)

    def refuse(self, error: CallError, number: int = 0) -> None:
        """Refuse a session request; 0 is the number of the hello."""
        self.notify(events.Refused(id=number, code=error.code.value, message=error.message))

    def stop_timers(self) -> None:
        """Cancel the timers of its grant and of its changes."""
        for timer in (self.notice, self.expiry):
            if timer is not None:
                timer.cancel()


class Relay:
    """Pass the events of calls from one peer to another.

    Those for the server itself go to `deliver`, and other messages of a peer to `session_message`.
    """

    def __init__(
        self,
        routes: Routes,
        deliver: Callable[[Peer, bytes, EventHead, bytes], None],
        session_message: Callable[[Peer, bytes], None],
    ) -> None:
        self._routes = routes
        self._deliver = deliver
        self._session_message = session_message
        self.peers: dict[Address, Peer] = {}
        self.ended = self.failed = 0  # calls between peers
        self.observer: Callable[[RoutedCall, str], None] | None = None  # of ended calls, with the error code or ""

    def join(self, peer: Peer) -> None:
        """Add a peer."""
        self.peers[peer.address] = peer
        delegates = peer.grant is not None and peer.grant.delegates
        self._routes.join(peer.address, peer.identity, delegates=delegates, hub=peer.hub)

    def leave(self, peer: Peer, reason: str, *, connected: bool = False) -> None:
        """Remove a peer, and fail its calls at their other sides; if it is still connected, at its side as well."""
        address = peer.address
        del self.peers[address]
        calls = self._routes.leave(address)
        for call in calls:
            self._observe(call, CANCELLED if call.caller == address else ErrorCode.UNAVAILABLE)
            if call.caller not in (address, SERVER):  # the server's own calls are ended by its call table
                error = CallError(ErrorCode.UNAVAILABLE, f"the peer that had the call is gone: {reason}")
                self.peers[call.caller].notify(CallFailed.of(call.request_id, error), address)
            if connected and call.caller == address:
                error = CallError(ErrorCode.UNAVAILABLE, reason)
                peer.notify(CallFailed.of(call.request_id, error), call.server)
            elif connected:
                peer.notify(CallAborted(request_id=call.request_id, reason=reason), call.caller)
        for server in {call.server for call in calls} - {address, SERVER}:
            self.peers[server].notify(events.Left(peer=address, reason=reason))
        for call in calls:  # another hub cannot know which calls were made by the peer that left
            if call.server not in (address, SERVER) and self.peers[call.server].hub:
                self.peers[call.server].notify(CallAborted(request_id=call.request_id, reason=reason), address)

    def arrived(self, sender: Peer, message: bytes) -> None:
        """Handle a message from a peer."""
        try:
            head = decode_head(message)
        except RecursionError:
            self._unreadable(sender, message)
            return
        except ValueError:  # of a session, or not in the usual form
            try:
                head = read_head(message)
            except CallError:
                self._session_message(sender, message)
                return
        if type(head) is RequestedHead:
            self.pass_request(sender, message, head)
        else:
            self.pass_on(sender, message, head)

    def _unreadable(self, sender: Peer, message: bytes) -> None:
        """Fail the call of an event that is nested too deeply to be decoded, at its sender and at its caller."""
        with suppress(CallError):
            head = read_head(message)
            if not head.from_caller and type(head) is not RequestedHead:
                failed = CallFailed.of(head.request_id, events.too_deep())
                failure = FailedHead(request_id=head.request_id, peer=head.peer, code=failed.code)
                self.pass_on(sender, encode_event(failed), failure)
        self._session_message(sender, message)  # last: it may end the connection

    def pass_on(self, sender: Peer, message: bytes, head: EventHead) -> None:
        """Pass on an event from a peer, other than a request."""
        route = self._routes.follow(sender.address, head)
        if route is None:
            return
        if route.call is None:
            self._pass_unmatched(sender, message, head, route)
            return
        if self.observer is not None and isinstance(head, RespondedHead):
            route.call.items += 1
            route.call.response_bytes += len(message)
        if route.to != SERVER:
            message = with_header(message, sender.header)
        if not route.call.open:
            self._observe(route.call, head.code if type(head) is FailedHead else head.outcome)
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

    def pass_request(self, sender: Peer, message: bytes, head: RequestedHead, identity: bytes = ANONYMOUS) -> None:
        """Pass on a request, or fail it. `identity` is that of a request from another hub."""
        call = None
        if sender.rate is not None and (wait := sender.rate.take(time.monotonic())):
            error = CallError(ErrorCode.RATE_LIMITED, "this connection calls too often", retry_after=wait)
            sender.notify(CallFailed.of(head.request_id, error), head.peer or SERVER)
            return
        try:
            call = self._routes.request(sender.address, head, identity)
            if call is None:  # a duplicate
                return
            if call.server == SERVER:
                self._deliver(sender, message, head, call.identity)
            else:
                call.began, call.request_bytes = time.monotonic(), len(message)
                message = with_header(message, request_header(sender.address, call.identity))
                self.peers[call.server].send(message, control=False, caller=sender.address)
        except CallError as error:
            if call is None and error.code is ErrorCode.RATE_LIMITED:  # there is room for the next one
                for doubtful in self._routes.doubtful(sender.address):
                    self._cut_short(doubtful, error)
            if call is None:  # rejected before it was routed
                unrouted = (head.request_id, sender.address, "", False, sender.identity)
                call = RoutedCall(*unrouted, operation_id=head.operation_id[:MAX_ID], began=time.monotonic())
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
        to = self.peers.get(route.to)
        busy = to is not None and (to.hub or to.connection.link.paused)
        limited = sender.rate is not None and sender.rate.take(now)
        if busy or limited or any(sender.unmatched.take(now) for _ in range(1 + len(message) // _MAX_CONTROL_BYTES)):
            self._routes.dropped["flood"] += 1
            return
        if to is not None:
            message = with_header(message, relay_header(sender.address, unmatched=True))
        try:
            self._carry(sender, message, head, route)
        except CallError as error:
            logger.debug("an unmatched event was dropped: %s", error)

    def _carry(self, sender: Peer, message: bytes, head: EventHead, route: EventRoute) -> None:
        """Send an event other than a request, which has its header if it is not for the server."""
        if route.to == SERVER:
            self._deliver(sender, message, head, ANONYMOUS)
            return
        control = type(head) not in _BULK_HEADS and len(message) <= _MAX_CONTROL_BYTES
        serves = route.call is not None and route.to == route.call.server
        self.peers[route.to].send(message, control=control, caller=sender.address if serves else None)

    def _observe(self, call: RoutedCall, outcome: str) -> None:
        """Count a call between peers that has ended. The server counts those that it serves itself."""
        if call.server == SERVER or call.operation_id.startswith(OWN):
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
