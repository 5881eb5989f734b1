"""One side of a JSON-RPC connection: which requests are pending, in both directions. No I/O, no clock, no tasks.

The caller sends what a method returns, and passes on what was received:

    request = peer.request("tools/call", params, waiter)     # send it
    match peer.receive(message):
        case Answer(waiter=waiter): ...                      # of a request of this side
        case RPCRequest(): ...                               # of the peer; then `finish`
        case CancelledRequest(): ...                         # the peer does not wait any more
        case Rejection(reply=reply): ...                     # send it: the request is over a limit
        case Reported(waiter=waiter): ...                    # progress
        case RPCNotification(): ...
        case None: ...                                       # nothing to do

An entry leaves its table in the step that decides its outcome, so every request ends once. Everything that the peer
can increase is bounded: its open requests, its requests for each one of this side, its ids. Responses to unknown
requests, and repeated ones, are ignored.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import (
    InvalidReply,
    ReceivedMessage,
    RequestId,
    RPCCode,
    RPCError,
    RPCFailure,
    RPCNotification,
    RPCRequest,
    RPCResponse,
)

MAX_OPEN_REQUESTS = 100
"""Requests of the peer without a response, or with one that it has not read."""

MAX_REQUESTS = 1000
"""Requests of the peer for each request of this side, if that limit is wanted."""

MAX_PENDING = 100_000
"""Requests of this side without a response."""

W = TypeVar("W")

REPLIES = (RPCResponse, RPCFailure, InvalidReply)  # a union would be built for every message


class PendingRequest(Struct, Generic[W]):
    """A request of this side. `waiter` is what its caller wants back."""

    method: str
    waiter: W


class Answer(Struct, Generic[W], frozen=True):
    """The response to a request of this side."""

    waiter: W
    message: RPCResponse | RPCFailure | InvalidReply


class Reported(Struct, Generic[W], frozen=True):
    """Progress of a request of this side."""

    waiter: W
    params: dict[str, Any]


class CancelledRequest(Struct, frozen=True):
    """The peer has cancelled one of its requests, which is still open."""

    id: RequestId


class Rejection(Struct, frozen=True):
    """A request of the peer that is not served, and the response to it."""

    reply: RPCFailure


Effect = Answer[W] | Reported[W] | RPCRequest | RPCNotification | CancelledRequest | Rejection | None
"""What to do with a message."""


class JsonRpcPeer(Generic[W]):
    """The pending requests of both sides of one connection.

    `max_requests` bounds the requests of the peer for each one of this side; pings are not counted.
    """

    def __init__(
        self, *, max_open: int = MAX_OPEN_REQUESTS, max_requests: int | None = None, max_pending: int = MAX_PENDING
    ) -> None:
        self._max_open = max_open
        self._max_requests = self._left = max_requests
        self._max_pending = max_pending
        self._ids = itertools.count(1)
        self._pending: dict[RequestId, PendingRequest[W]] = {}
        self._open: set[RequestId] = set()

    # --- requests of this side ----------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        waiter: W,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        reports: bool = False,
    ) -> RPCRequest:
        """Register a request and return it. `meta` is added to its `_meta`; `reports` asks for progress, by its id.

        Raises:
            CallError: UNAVAILABLE, if too many requests are pending.
        """
        if len(self._pending) >= self._max_pending:
            raise CallError(ErrorCode.UNAVAILABLE, f"{self._max_pending:,} requests are pending already")
        key = next(self._ids) if id is None else id
        self._pending[key] = PendingRequest(method, waiter)
        self._left = self._max_requests
        if reports:
            meta = {**(meta or {}), "progressToken": key}
        return RPCRequest(key, method, with_meta(params, meta) if meta else params)

    def abandon(self, id: RequestId) -> RPCNotification | None:
        """Forget a request; return the notification for the peer, if the request was pending."""
        pending = self._pending.pop(id, None)
        if pending is None or pending.method in ("initialize", "server/discover"):  # those cannot be cancelled
            return None
        return RPCNotification("notifications/cancelled", {"requestId": id})

    def fail(self, id: RequestId) -> PendingRequest[W] | None:
        """Remove a request that has failed on this side, and return it; None if it has ended already."""
        return self._pending.pop(id, None)

    def close(self) -> Iterable[W]:
        """Remove all requests, and return their waiters."""
        waiters = [pending.waiter for pending in self._pending.values()]
        self._pending.clear()
        self._open.clear()
        return waiters

    # --- what was received --------------------------------------------------------------------------------------------

    def receive(self, message: ReceivedMessage) -> Effect[W]:
        """Apply a message, and return what to do."""
        if isinstance(message, REPLIES):
            pending = None if message.id is None else self._pending.pop(message.id, None)
            if pending is None and (key := self._key_of(message.id)) is not None:
                pending = self._pending.pop(key)
            return None if pending is None else Answer(pending.waiter, message)
        if isinstance(message, RPCRequest):
            return self._admit(message)
        params = message.params or {}
        if message.method == "notifications/progress":
            key = self._key_of(params.get("progressToken"))
            return None if key is None else Reported(self._pending[key].waiter, params)
        if message.method == "notifications/cancelled":
            id = params.get("requestId")
            if type(id) in (int, str) and id in self._open:
                return CancelledRequest(id)
        return message

    def finish(self, id: RequestId) -> None:
        """Close a request of the peer, after its response was sent, or when it was cancelled."""
        self._open.discard(id)

    def _key_of(self, id: Any) -> RequestId | None:
        """Return the key of a pending request; some servers return a number as a string."""
        if type(id) not in (int, str):
            return None
        if id in self._pending:
            return id
        number = int(id) if type(id) is str and id.isdecimal() and id.isascii() and len(id) < 20 else None
        return number if number is not None and number in self._pending else None

    def _admit(self, request: RPCRequest) -> RPCRequest | Rejection:
        if self._left is not None and request.method != "ping":
            self._left -= 1
        if request.id in self._open:
            reason = "a request with this id is open already"
        elif len(self._open) >= self._max_open:
            reason = f"more than {self._max_open} requests are open"
        elif self._left is not None and self._left < 0:
            reason = f"more than {self._max_requests} requests came for one of the client"
        else:
            self._open.add(request.id)
            return request
        return Rejection(RPCFailure.of(request.id, RPCError(RPCCode.INVALID_REQUEST, f"rejected: {reason}")))


def with_meta(params: Mapping[str, Any] | None, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a request with more fields in their `_meta`."""
    params_sent = params or {}
    return {**params_sent, "_meta": {**(params_sent.get("_meta") or {}), **meta}}
