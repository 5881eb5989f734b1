"""The interface between the call protocol and what carries its events.

A transport is one end of a bus in this process, a WebSocket or a broker. It carries events and knows nothing of
registries.

- `request` and `send` never wait: a transport that cannot pass an event on at once queues it, and raises when its
  bounded queue is full.
- Events are delivered to the receiver one at a time, in the order in which a peer sent them.
- Nothing is retransmitted: an event arrives once or not at all.
- A transport authenticates senders, and only `CallTable` decides which of them may reply to a call: the one that
  `request` returned, or else the sender of the first event. If `request` returns None, the transport therefore proves
  that the first event comes from the peer that received the request: brokers by a token, a hub by its routes.

`opwire_conformance.check_transport` is the contract suite for implementations.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from secrets import token_hex
from typing import Any, Protocol, TypedDict, runtime_checkable

from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.trace import trace_of
from opwire.protocol.events import CallEvent, CallRequested

Address = str
"""The address of one end of a transport; opaque to everything but the transport."""

_AT_ONCE = 128  # ids drawn together: 0.1 µs each instead of 1 µs


class Receiver(Protocol):
    """The user of a transport. Its methods return at once and never raise."""

    def received(self, event: CallEvent, sender: Address) -> None:
        """Handle an event. `sender` is set by the transport: a peer cannot choose it."""
        ...

    def lost(self, peer: Address | None, reason: str) -> None:
        """Handle the loss of a peer, or (None) of the connection to all of them."""
        ...


@runtime_checkable
class Transport(Protocol):
    """One end of a bus, a connection or a broker."""

    @property
    def local(self) -> bool:
        """Whether peers run in this process: callers without an identity are then as trusted as local code."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether the identity on a request is authentic: the transport verified it, or peers are local."""
        ...

    @property
    def vouches(self) -> bool:
        """Whether peers accept any identity that a request from here states: in this process, or at a hub itself.

        Elsewhere a request has the identity of this end, or that of the caller on behalf of which it is made.
        """
        ...

    @property
    def lossy(self) -> bool:
        """Whether an event can be lost while the connection stays up, as over a broker."""
        ...

    async def start(self, receiver: Receiver) -> None:
        """Connect, and deliver events to the receiver from now on.

        Raises:
            CallError: UNAVAILABLE if the connection fails.
        """
        ...

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve further operations. Requests for them are routed here when this returns.

        Raises:
            CallError: UNAVAILABLE if not connected; ACCESS_DENIED or VALIDATION_ERROR if some operations are rejected.
                The others are served.
        """
        ...

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving operations. No new requests for them are routed here when this returns."""
        ...

    def request(self, event: CallRequested) -> Address | None:
        """Send a request to one of the servers of its operation.

        Returns the server's address, or None if it is not known yet. In that case the transport itself fails calls to
        lost peers, and rejects replies from any other sender.

        Raises:
            CallError: UNAVAILABLE if the operation has no server or the transport is closed, PAYLOAD_TOO_LARGE,
                RATE_LIMITED if the queue is full.
        """
        ...

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer; None sends it to the server of the request. A request goes to exactly this peer.

        Raises:
            CallError: UNAVAILABLE if the peer is gone or the transport is closed, PAYLOAD_TOO_LARGE, RATE_LIMITED if
                the queue is full.
        """
        ...

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Return the addresses of all servers. Where they have to be polled, wait this many seconds for replies.

        Raises:
            CallError: UNAVAILABLE if not connected.
        """
        ...

    async def close(self) -> None:
        """Disconnect: no new requests are routed here, and peers see this end as lost. Idempotent."""
        ...


@runtime_checkable
class MovableReceiver(Receiver, Protocol):
    """A receiver with calls in flight that can go on over an old connection, while new ones use another."""

    def open_requests(self) -> list[str]:
        """Return the ids of the outgoing calls and received requests that have not ended."""
        ...

    def lost_requests(self, request_ids: list[str], reason: str) -> None:
        """Handle the loss of the connection of these calls."""
        ...


@runtime_checkable
class Announcing(Protocol):
    """A transport that announces its operations to a single peer, a hub, which shows them to others."""

    @property
    def hub(self) -> Address:
        """The address of the hub, which may see every announced operation."""
        ...


class CallRoute(TypedDict, total=False):
    """Keyword arguments of a call that choose its server."""

    to: Address | None
    sticky_key: str | None
    version: str | None


class RemoteCallOptions(CallRoute, total=False):
    """Keyword arguments of `PendingRequestMap.call`, except for `output_type`."""

    context: Context | None
    timeout: float | None


def on_behalf_of(
    context: Context, operation_id: str, connection: object, *, vouches: bool
) -> tuple[str | None, Identity | None]:
    """Return the parent request of a call with an identity or of a served call, and the identity that it states.

    Raises:
        CallError: ACCESS_DENIED if the connection cannot carry the identity of the context.
    """
    inbound, identity = context.inbound, context.identity
    if vouches or (inbound is not None and inbound.connection is connection):
        return (context.parent_request_id if inbound is None else inbound.request_id), identity
    if identity is LOCAL_IDENTITY:  # this process: the peer identifies it by the connection
        return None, None
    caller = "an anonymous caller" if identity is None else f"the identity {identity.id!r}"
    raise CallError(
        ErrorCode.ACCESS_DENIED,
        f"{operation_id} is called on behalf of {caller}, which this connection cannot carry: call over the "
        "connection that delivered the request, or pass context.detached() to call as this process itself",
    )


class Connection(Protocol):
    """An end of the call protocol."""

    transport: Transport


def request_event(  # noqa: PLR0917 - keywords take 0.5 µs
    request_id: str,
    operation_id: str,
    input: Any,
    context: Context,
    connection: Connection,
    remaining: float | None,
    credits: int | None,
    route: CallRoute,
) -> CallRequested:
    """Return the request of a call with this context, and its `remaining` seconds.

    Raises:
        CallError: TIMEOUT, none are left; ACCESS_DENIED, as `on_behalf_of`.
    """
    if remaining is not None and remaining <= 0:
        raise CallError(ErrorCode.TIMEOUT, f"the deadline of {operation_id} passed before it was called")
    vouches = connection.transport.vouches
    parent, identity = context.parent_request_id if vouches else None, None
    if context.inbound is not None or context.identity is not None:
        parent, identity = on_behalf_of(context, operation_id, connection, vouches=vouches)
    event = CallRequested(
        request_id=request_id,
        operation_id=operation_id,
        input=input,
        parent_request_id=parent,
        identity=identity,
        deadline=None if remaining is None else round((time.time() + remaining) * 1000),
        timeout_ms=None if remaining is None else int(remaining * 1e6) / 1e3,  # `round` to digits costs 0.3 µs more
        credits=credits,
        sticky_key=route.get("sticky_key"),
        version=route.get("version"),
        progress=None if context.on_progress is None or context.is_served else True,
        questions=None if context.on_question is None else True,
        resume_from=None if context.resume_from is None or context.is_served else context.resume_from,
    )
    return replace(event, **trace_of(context.metadata)) if context.metadata else event


def random_ids(size: int) -> Iterator[str]:
    """Return an endless iterator of random ids of `size` bytes, in hexadecimal."""

    def draw() -> list[str]:
        digits = token_hex(size * _AT_ONCE)
        return [digits[start : start + 2 * size] for start in range(0, len(digits), 2 * size)]

    return chain.from_iterable(iter(draw, None))
