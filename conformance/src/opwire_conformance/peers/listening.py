"""A hub of the kit's own, to which the peer under test connects: the promises of spokes and callers.

It serves the operations of `conformance.*` to callers, and watches what they send. `conformance.gap` yields items 1 and
3: a consumer has to notice that one is missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from msgspec import Struct, field
from websockets.asyncio.server import ServerConnection, serve

from opwire.runtime.tasks import spawn
from opwire_conformance.peers.server import NAMESPACE, Server, describe
from opwire_conformance.peers.wires import (
    PATIENCE,
    SETTLE,
    SUBPROTOCOL,
    Event,
    NotChecked,
    Problems,
    ServerLine,
    ServerRoute,
    WebSocketWire,
    expect,
    shown,
)

_CALLER = "kit-caller"
_IDENTITY: Event = {"id": "conformance", "scopes": ["*"], "resources": {}}
_MAX_MESSAGE = 1_032_192
_MARGIN = 4_352
_NORMAL = 1000  # the close code of a peer that is done
_MAX_ITEMS = 1_000
_WINDOW = 256  # items that a consumer may grant in advance when it knows how small they are
_MAX_CONNECTIONS = 10  # only the first is checked
_MAX_CALLS = 1_000  # of a peer that are watched


class WatchedCall(Struct):
    """A call that the peer under test has made."""

    request: Event
    window: int | None  # credits of the request
    granted: int = 0
    sent: int = 0
    to: int = 0
    has_ended: bool = False
    aborted: bool = False
    complaints: list[str] = field(default_factory=list[str])


class ConnectedPeer:
    """The peer under test, as the kit's hub sees it."""

    def __init__(self, connection: ServerConnection, problems: Problems) -> None:
        self.wire = WebSocketWire(connection, problems)
        self.wire.address = "peer"
        self.first: Event | None = None
        self.operations: set[str] = set()
        self.complaints: list[str] = []
        self.requests: set[str] = set()
        self.calls: dict[str, WatchedCall] = {}
        self.repeated: list[str] = []
        self.settled = asyncio.Event()  # it has announced, or called, or left
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, event: Event) -> None:
        """React to an event as a hub does."""
        if self.first is None:
            self.first = event
            if event["type"] != "session.hello" or event.get("version") != 1:
                await self.wire.connection.close(4401, "session.hello comes first")
                return
            await self.wire.send("session.welcome", version=1, peer="peer", maxMessage=_MAX_MESSAGE, heartbeatMs=3000)
            return
        id = event.get("id")
        match event["type"]:
            case "session.who":
                await self.wire.send("session.here", id=id, peers=["server"])
            case "session.announce":
                spawn(self._announce(event), self._tasks)
            case "session.withdraw":
                withdrawn_ids: list[str] = event.get("operations") or []
                self.operations.difference_update(withdrawn_ids)
                await self.wire.send("session.done", id=id)
            case "call.requested":
                await self._requested(event)
            case "call.credit":
                await self._credited(event)
            case "call.aborted" if event.get("requestId") in self.calls:
                call = self.calls[event["requestId"]]
                call.aborted = call.has_ended = True
            case _:
                pass

    async def close(self) -> None:
        """Close the connection."""
        for task in self._tasks:
            task.cancel()
        await self.wire.connection.close(1001, "the check is over")

    async def _announce(self, event: Event) -> None:
        announced: list[str] = event.get("operations") or []
        carried: list[Event] = event.get("descriptions") or []
        described = {str(description.get("id")) for description in carried}
        missing = [operation_id for operation_id in announced if operation_id not in described]
        try:
            if missing:
                descriptions = await describe(ServerLine(self.wire, ServerRoute({})), {"operations": missing})
                described |= {description["id"] for description in descriptions}
            for operation_id in announced:
                expect(operation_id in described, f"{operation_id} was announced, and is not described")
        except AssertionError as error:
            self.complaints.append(str(error))
        self.operations |= set(announced)
        await self.wire.send("session.done", id=event["id"])
        self.settled.set()

    # --- serving the peer's own calls -----------------------------------------------------------------------------

    async def _requested(self, event: Event) -> None:
        request_id = event.get("requestId")
        if not isinstance(request_id, str) or len(self.calls) >= _MAX_CALLS:
            return
        if request_id in self.requests or len(request_id) > 1000:
            self.repeated.append(request_id)
        self.requests.add(request_id)
        credits = event.get("credits")
        call = self.calls[request_id] = WatchedCall(event, credits, granted=credits or 0)
        self.settled.set()
        await self._serve(call, event.get("input"))

    async def _serve(self, call: WatchedCall, input: Any) -> None:
        event = call.request
        match str(event.get("operationId")).removeprefix(f"{NAMESPACE}."):
            case "echo":
                await self._respond(call, input)
            case "steps":
                for number in (1, 2, 3) if event.get("progress") else ():
                    await self.wire.send("call.progress", requestId=event["requestId"], progress=number, total=3)
                await self._respond(call, 3)
            case "count":
                to = cast("Event", input).get("to") if isinstance(input, dict) else None
                call.to = min(to, _MAX_ITEMS) if isinstance(to, int) else 0
                await self._produce(call)
            case "gap":
                for seq in (1, 3):
                    await self._respond(call, seq, seq=seq)
            case "wait":
                pass  # until it is aborted
            case "fail":
                await self._fail(call, "EXECUTION_ERROR", "The operation failed.")
            case _:
                await self._fail(call, "OPERATION_NOT_FOUND", "Operation not found")

    async def _respond(self, call: WatchedCall, data: Any, seq: int | None = None) -> None:
        call.has_ended = seq is None
        meta = {"source": "local", "operationId": call.request["operationId"], "timestamp": 1760000000000}
        numbered = {} if seq is None else {"seq": seq}
        output = {"data": data, "meta": meta}
        await self.wire.send("call.responded", requestId=call.request["requestId"], output=output, **numbered)

    async def _fail(self, call: WatchedCall, code: str, message: str) -> None:
        call.has_ended = True
        await self.wire.send("call.error", requestId=call.request["requestId"], code=code, message=message)

    async def _produce(self, call: WatchedCall) -> None:
        while call.sent < call.to and (call.window is None or call.sent < call.granted):
            call.sent += 1
            await self._respond(call, call.sent, seq=call.sent)
        if call.sent == call.to and not call.has_ended:
            call.has_ended = True
            await self.wire.send("call.completed", requestId=call.request["requestId"], seq=call.sent)

    async def _credited(self, event: Event) -> None:
        call = self.calls.get(str(event.get("requestId")))
        if call is None or call.window is None:
            return
        n, total, received = event.get("n"), event.get("total"), event.get("received")
        expected = call.granted + (n if isinstance(n, int) else 0)
        if total is not None and total != expected:
            call.complaints.append(f"{shown(event)} makes {expected} in total")
        if isinstance(received, int) and received > call.sent:
            call.complaints.append(f"{shown(event)}: only {call.sent} items were sent")
        if expected > call.sent + max(call.window, _WINDOW):
            call.complaints.append(f"{shown(event)}: the window is {call.window}, and {call.sent} items were sent")
        call.granted = expected
        if not call.has_ended:
            await self._produce(call)


class ListeningHub:
    """The kit's hub: waits for one peer."""

    def __init__(self, host: str, port: int, problems: Problems) -> None:
        self._host, self._port = host, port
        self._problems = problems
        self._connected: asyncio.Queue[ConnectedPeer] = asyncio.Queue()
        self._server: Any = None

    async def start(self) -> str:
        """Listen; return the URL.

        Raises:
            OSError: the port is in use.
        """
        self._server = await serve(
            self._connection,
            self._host,
            self._port,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            max_size=_MAX_MESSAGE + _MARGIN,
            ping_interval=None,
            close_timeout=1,
        )
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://{self._host}:{port}"

    async def _connection(self, connection: ServerConnection) -> None:
        if self._connected.qsize() >= _MAX_CONNECTIONS:
            return
        peer = ConnectedPeer(connection, self._problems)
        self._connected.put_nowait(peer)
        await peer.wire.read(peer.handle)
        peer.settled.set()

    async def peer(self, wait: float) -> ConnectedPeer:
        """Return the next peer that connects, when it has announced or called something.

        Raises:
            TimeoutError: none came.
        """
        async with asyncio.timeout(wait):
            peer = await self._connected.get()
        try:
            async with asyncio.timeout(PATIENCE):
                await peer.settled.wait()
        except TimeoutError:
            pass  # it does neither, and is checked as far as it goes
        return peer

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


def as_server(peer: ConnectedPeer) -> Server:
    """Return the peer as a server, called by another peer of the hub."""
    route = ServerRoute({"identity": _IDENTITY, "credential": None, "peer": _CALLER})
    return Server(ServerLine(peer.wire, route), peer.operations)


async def watch(peer: ConnectedPeer, seconds: float) -> None:
    """Wait until the peer leaves, or for some time."""
    await _until(peer, lambda: False, seconds)


# --- promises ---------------------------------------------------------------------------------------------------------


def _connected(peer: ConnectedPeer) -> None:
    if peer.wire.closing is not None:
        raise NotChecked("it has disconnected")


async def hello_is_first(peer: ConnectedPeer) -> None:
    """Look at the first message, and at the subprotocol."""
    first = peer.first or {"type": "nothing"}
    expect(first["type"] == "session.hello", f"session.hello was expected, and {shown(first)} arrived")
    subprotocol = peer.wire.connection.subprotocol
    expect(subprotocol == SUBPROTOCOL, f"the subprotocol is {subprotocol!r} instead of {SUBPROTOCOL!r}")


async def announcements_are_described(peer: ConnectedPeer) -> None:
    """Look at the descriptions of what was announced."""
    if not peer.operations and not peer.complaints:
        raise NotChecked("it announces nothing")
    expect(not peer.complaints, "; ".join(peer.complaints))


async def pings_are_answered(peer: ConnectedPeer) -> None:
    """Send a ping."""
    _connected(peer)
    await peer.wire.pong()


async def nonsense_is_ignored(peer: ConnectedPeer) -> None:
    """Send what is not an event, and events of unknown calls; the peer stays."""
    _connected(peer)
    for text in ("nonsense", "[]", '{"type":"call.unknown"}', '{"type":"session.unknown"}'):
        await peer.wire.send_text(text)
    meta = {"source": "local", "operationId": "a.b", "timestamp": 1}
    unknown = {"requestId": "unknown-call", "peer": "another"}
    await peer.wire.send("call.responded", output={"data": 1, "meta": meta}, **unknown)
    await peer.wire.send("call.error", code="NEWER", message="x", **unknown)
    await peer.wire.send("session.left", peer="another")
    await peer.wire.pong()
    await asyncio.sleep(SETTLE)
    code, reason = peer.wire.closing or (_NORMAL, "")
    expect(code == _NORMAL, f"it closed the connection: {code} {reason}")


async def request_ids_are_new(peer: ConnectedPeer) -> None:
    """Look at the ids of all requests."""
    if not peer.calls:
        raise NotChecked("it makes no calls")
    expect(not peer.repeated, f"{len(peer.repeated)} requests have a used or too long id: {shown(peer.repeated[:1])}")


async def consumers_grant_their_window(peer: ConnectedPeer) -> None:
    """Look at the credits of subscriptions."""
    streams = [call for call in peer.calls.values() if call.window is not None and call.to]
    if not streams:
        raise NotChecked(f"it does not subscribe to {NAMESPACE}.count with credits")
    complaints = [complaint for call in streams for complaint in call.complaints]
    expect(not complaints, complaints[0] if complaints else "")
    await _until(peer, lambda: all(call.has_ended for call in streams))
    stuck = [call for call in streams if not call.has_ended]
    expect(not stuck, f"after {stuck[0].sent} of {stuck[0].to} items no more credit was granted" if stuck else "")


async def gaps_are_noticed(peer: ConnectedPeer) -> None:
    """Look for the abort of a subscription with a missing item."""
    gaps = [call for call in peer.calls.values() if call.request.get("operationId") == f"{NAMESPACE}.gap"]
    if not gaps:
        raise NotChecked(f"it does not subscribe to {NAMESPACE}.gap")
    await _until(peer, lambda: gaps[0].aborted)
    expect(gaps[0].aborted, "items 1 and 3 arrived, and the subscription was not aborted")


async def callers_abort_what_they_give_up(peer: ConnectedPeer) -> None:
    """Look for the abort of a call that is never answered."""
    waits = [call for call in peer.calls.values() if call.request.get("operationId") == f"{NAMESPACE}.wait"]
    if not waits:
        raise NotChecked(f"it does not call {NAMESPACE}.wait with a deadline")
    remaining_seconds = max(float(call.request.get("timeoutMs") or 0) for call in waits) / 1000
    await _until(peer, lambda: all(call.aborted for call in waits), min(remaining_seconds, 30.0) + PATIENCE)
    expect(all(call.aborted for call in waits), "a call whose deadline has passed was not aborted")


async def _until(peer: ConnectedPeer, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until a condition holds, the peer leaves, or the time is up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while not condition() and peer.wire.closing is None and loop.time() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


PeerCheck = Callable[[ConnectedPeer], Awaitable[None]]

SESSION_CHECKS: Mapping[str, tuple[str, PeerCheck]] = {
    "the first message is session.hello": ("Order", hello_is_first),
    "what is announced is described": ("Announcing", announcements_are_described),
    "pings are answered": ("Heartbeats", pings_are_answered),
    "invalid messages leave it open": ("Errors", nonsense_is_ignored),
}
CALLER_CHECKS: Mapping[str, tuple[str, PeerCheck]] = {
    "every request has a new id": ("Ids", request_ids_are_new),
    "a consumer grants what it has consumed": ("Subscriptions and credits", consumers_grant_their_window),
    "a missing item ends a subscription": ("Subscriptions and credits", gaps_are_noticed),
    "a caller aborts what it gives up": ("Deadlines", callers_abort_what_they_give_up),
}
