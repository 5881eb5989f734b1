"""Leases: which peers hold which calls over a broker, which does not report that a peer is gone.

The rules:

1. Each request gets a token. Only its caller and the server that the broker routed it to know the token, so a message
   with the token comes from one of them. An address proves nothing over a broker.
2. A server reports its calls in flight at every heartbeat, and early if a call takes longer than a moment. A call that
   is not reported in time is lost: its server died, or the request or the response got lost.
3. A caller answers each report. If it does not answer in time, it is gone, and its requests are stopped.
4. A caller asks the broker whether the servers of its long calls are still connected: the longer a call takes, the less
   often its server is probed.

No I/O, no clock, no tasks. Every method takes what happened and when, changes the state, and returns what to do.
"""

from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

from msgspec import Struct

from opwire.errors import ErrorCode
from opwire.protocol.events import (
    CallAborted,
    CallAnswer,
    CallCredit,
    CallEvent,
    CallFailed,
    CallResponded,
    Left,
    Serving,
    Waiting,
    is_final,
)
from opwire.protocol.transport import Address, random_ids
from opwire.runtime.bounded import BoundedDict
from opwire.transports.reroutes import Reroutes

MOMENT = 0.02
"""Seconds after which a server reports a call, and the caller probes the server. Shorter calls cost nothing."""

MAX_TOKEN_LENGTH = 64

_MAX_IDLE_CALLERS = 1024  # more of them are forgotten at once: any client can invent addresses
_MAX_OPERATIONS = 4096  # whose servers are remembered
_MAX_REASON_LENGTH = 200
MAX_PROBES_AT_ONCE = 64

_SHORTEST_PROBE_INTERVAL = 0.025  # seconds between two probes of a call that is up to a minute old
_LONGEST_PROBE_INTERVAL = 0.25  # seconds, of a call that is ten minutes old or older
_MIN_SECONDS_PER_PROBED_SERVER = 1e-4  # sending a probe takes 10 µs: probes take at most 10 % of the time
_MIN_SECONDS_PER_CHECKED_CALL = 4e-6  # checking a call takes 0.15 µs: checks take at most 4 % of the time

_EVENTS_OF_CALLERS = (CallAborted, CallCredit, CallAnswer)

LeaseEvent = Serving | Waiting | Left
"""The messages by which peers keep their leases."""


class OutgoingCall(Struct, gc=False):
    """A call that this peer made and that has not ended.

    `server` is set by the first event or report of the server, or by the broker; it is empty for a server without an
    address. `heard_at` is when the server last sent something about this call. `probed_at` is when the broker was last
    asked whether the operation has a server.
    """

    request_id: str
    operation_id: str
    token: str
    streams: bool
    sent_at: float
    heard_at: float
    server: Address | None = None
    rerouted: bool = False
    probed_at: float = 0.0


class ReceivedRequest(Struct, gc=False):
    """A request of a caller that this peer has not answered yet."""

    caller: Address
    request_id: str
    token: str
    received_at: float


class Caller(Struct):
    """A peer that has sent requests; `requests` are the open ones by their tokens."""

    heard_at: float
    requests: dict[str, ReceivedRequest]


class Deliver(NamedTuple):
    """Deliver an event to the receiver, as if the sender had sent it."""

    event: CallEvent
    sender: Address


class Send(NamedTuple):
    """Send an event to a peer."""

    to: Address
    token: str
    event: LeaseEvent


class LosePeer(NamedTuple):
    """Tell the receiver that a peer is gone."""

    peer: Address
    reason: str


Action = Deliver | Send | LosePeer


class OutgoingCalls:
    """The caller's side: the calls that this peer made, in the order in which they were sent.

    `servers_heard` is when each server last sent something. `latest_servers` are the servers that responded last, by
    operation; an empty address is that of a server that is gone.
    """

    def __init__(self, patience: float) -> None:
        self.reroutes = Reroutes(patience)
        self.servers_heard: dict[Address, float] = {}
        self.latest_servers: BoundedDict[str, Address] = BoundedDict(_MAX_OPERATIONS)
        self._patience = patience
        self._tokens = random_ids(8)
        self.by_request_id: dict[str, OutgoingCall] = {}
        self._by_token: dict[str, OutgoingCall] = {}

    def __len__(self) -> int:
        return len(self.by_request_id)

    def __iter__(self) -> Iterator[OutgoingCall]:
        return iter(self.by_request_id.values())

    def with_tokens(self, tokens: Iterable[str]) -> list[OutgoingCall]:
        """Return the open calls with these tokens."""
        return [call for token in tokens if (call := self._by_token.get(token)) is not None]

    def start(
        self,
        request_id: str,
        operation_id: str,
        now: float,
        *,
        streams: bool = False,
        server: Address | None = None,
        rerouted: bool = False,
    ) -> OutgoingCall:
        """Add a call whose request is about to be sent: to this server, or to the one that the broker chooses."""
        if (previous := self.by_request_id.get(request_id)) is not None:
            self.end(previous)
        call = OutgoingCall(request_id, operation_id, next(self._tokens), streams, now, now, server, rerouted)
        self.by_request_id[request_id] = self._by_token[call.token] = call
        return call

    def end(self, call: OutgoingCall) -> None:
        """Remove a call that has ended, or could not be sent."""
        if self._by_token.pop(call.token, None) is not None:
            del self.by_request_id[call.request_id]

    def fail(self, call: OutgoingCall, reason: str, *, not_started: bool | None = None) -> Deliver:
        """End a call with an error."""
        self.end(call)
        failure = CallFailed(
            request_id=call.request_id, code=ErrorCode.UNAVAILABLE, message=reason, not_started=not_started
        )
        return Deliver(failure, call.server or "")

    def routed(self, token: str, server: Address) -> None:
        """Record the server that the broker routed a request to."""
        call = self._by_token.get(token)
        if call is not None and call.server is None:
            call.server = server

    def answered(self, call: OutgoingCall, event: CallEvent, server: Address, now: float) -> None:
        """Record an event from the server of a call."""
        call.server, call.heard_at = server, now
        if server:
            self.servers_heard[server] = now
            if self.latest_servers.get(call.operation_id) != server:
                self.latest_servers[call.operation_id] = server
        if type(event) is CallFailed:
            self.reroutes.failed(call.operation_id, event)
        if is_final(event, streams=call.streams):
            self.end(call)

    def reported(self, server: Address, tokens: Iterable[str], now: float) -> list[Action]:
        """Record that a server reports these calls; answer it with those that this peer does not wait for."""
        token_of_open_call, ended_tokens = "", list[str]()
        for token in tokens:
            call = self._by_token.get(token)
            if call is not None:
                call.server, call.heard_at = server, now
                token_of_open_call = token
            elif len(token) <= MAX_TOKEN_LENGTH:
                ended_tokens.append(token)
        return (
            [Send(server, token_of_open_call, Waiting(gone=ended_tokens))] if token_of_open_call or ended_tokens else []
        )

    def undelivered(self, token: str, reason: str) -> list[Deliver]:
        """Fail the request that no server received.

        If it was a probe, the operation has no server any more. That ends every earlier call of it that no server has
        reported.
        """
        call = self._by_token.get(token)
        if call is None or (call.probed_at and call.server is not None):
            return []
        if not call.probed_at:
            return [self.fail(call, f"{call.operation_id}: {reason}")]
        lost_calls = self._unreported(call.operation_id, sent_before=call.probed_at)
        return [self.fail(lost, f"{lost.operation_id}: no server is left; it may have run") for lost in lost_calls]

    def refused(self, operation_id: str, reason: str) -> list[Deliver]:
        """Fail the calls of an operation that this peer may not call."""
        return [self.fail(call, f"{operation_id}: {reason}") for call in self._unreported(operation_id)]

    def forbidden(self, server: Address) -> list[Deliver]:
        """Fail the calls that were rerouted to a server that this peer may not send messages to: reroute no more."""
        self.reroutes.forbid()
        denied = [call for call in self if call.rerouted and call.server == server and call.heard_at == call.sent_at]
        return [self.fail(call, "no permission to send it to its server", not_started=True) for call in denied]

    def lost_server(self, server: Address, reason: str) -> list[Deliver]:
        """Fail the calls of a server that is gone."""
        self._forget_server(server)
        calls = [call for call in self if call.server == server]
        return [self.fail(call, f"{reason} before {call.operation_id} ended") for call in calls]

    def expire(self, now: float) -> list[Deliver]:
        """Fail the calls that no server has reported in time."""
        expired = [call for call in self if call.heard_at < now - self._patience]
        for server in {call.server for call in expired if call.server}:
            self._forget_server(server)
        for operation_id in {call.operation_id for call in expired if call.server is None}:
            self.reroutes.unanswered(operation_id, self.latest_servers.get(operation_id, ""), now)
        silence = f"no message from it for {self._patience:g} s"
        return [self.fail(call, f"the server of {call.operation_id} is gone: {silence}") for call in expired]

    def clear(self) -> None:
        """Forget all calls: the connection is lost."""
        for state in (self.by_request_id, self._by_token, self.servers_heard):
            state.clear()
        self.latest_servers.update(dict.fromkeys(self.latest_servers, ""))
        self.reroutes.reset()

    def _forget_server(self, server: Address) -> None:
        self.reroutes.lost_server(server)
        operation_ids = [id for id, latest_server in self.latest_servers.items() if latest_server == server]
        self.latest_servers.update(dict.fromkeys(operation_ids, ""))

    def _unreported(self, operation_id: str, *, sent_before: float = inf) -> list[OutgoingCall]:
        """Return the calls of an operation that no server has reported."""
        calls = (call for call in self if call.operation_id == operation_id and call.server is None)
        return [call for call in calls if call.sent_at < sent_before]


class ReceivedRequests:
    """The server's side: the requests that this peer received, and the callers that wait for them."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.by_caller_and_id: dict[tuple[Address, str], ReceivedRequest] = {}
        self._callers: dict[Address, Caller] = {}
        self._by_token: dict[str, ReceivedRequest] = {}
        self._unreported: dict[str, ReceivedRequest] = {}  # those that their callers have not heard of, oldest first

    def __len__(self) -> int:
        return len(self._by_token)

    def add(self, caller: Address, request_id: str, token: str, now: float) -> bool:
        """Add a request. Return False if its id or token is that of another one in flight."""
        sender = self._callers.get(caller)
        if sender is None:
            sender = self._callers[caller] = Caller(now, {})
        sender.heard_at = now
        same_id, same_token = self.by_caller_and_id.get((caller, request_id)), self._by_token.get(token)
        if same_id is not None or same_token is not None:
            return same_id is same_token
        request = ReceivedRequest(caller, request_id, token, now)
        self.by_caller_and_id[caller, request_id] = self._by_token[token] = self._unreported[token] = request
        sender.requests[token] = request
        return True

    def end(self, request: ReceivedRequest) -> None:
        """Remove a request that was answered or aborted."""
        if self._by_token.pop(request.token, None) is None:
            return
        del self.by_caller_and_id[request.caller, request.request_id]
        self._unreported.pop(request.token, None)
        open_requests = self._callers[request.caller].requests
        del open_requests[request.token]
        # A caller without requests stays until it expires: to add and remove it with each of its calls takes longer
        # than the rest of this method.
        if not open_requests and len(self._callers) > _MAX_IDLE_CALLERS:
            del self._callers[request.caller]

    def abort(self, request: ReceivedRequest, reason: str) -> Deliver:
        """End a request, and stop its handler."""
        self.end(request)
        return Deliver(CallAborted(request_id=request.request_id, reason=reason), request.caller)

    def reports(self) -> Iterator[tuple[Address, list[str]]]:
        """Yield the requests in flight as a heartbeat reports them: tokens by caller. Requests may end meanwhile."""
        for address in list(self._callers):
            caller = self._callers.get(address)
            if caller is not None and caller.requests:
                yield address, list(caller.requests)

    def early_reports(self, now: float) -> dict[Address, list[str]]:
        """Return the requests that have taken longer than a moment and were not reported yet: tokens by caller."""
        tokens: dict[Address, list[str]] = {}
        while self._unreported:
            token, request = next(iter(self._unreported.items()))
            if request.received_at > now - MOMENT:
                break
            del self._unreported[token]
            tokens.setdefault(request.caller, []).append(token)
        return tokens

    @property
    def callers(self) -> int:
        """The number of callers that are remembered, also without requests."""
        return len(self._callers)

    @property
    def are_reported(self) -> bool:
        """Whether no request waits for its first report."""
        return not self._unreported

    def answered(self, caller: Address, token: str, ended_tokens: Iterable[str], now: float) -> list[Deliver]:
        """Record the answer of a caller to a report: it still waits for its requests, except for the ended ones.

        The answer has to contain a token of the caller, since any other peer could forge its address.
        """
        requests = (self._by_token.get(ended_token) for ended_token in set(ended_tokens))
        ended_requests = [request for request in requests if request is not None and request.caller == caller]
        request = self._by_token.get(token)
        if ended_requests or (request is not None and request.caller == caller):
            self._callers[caller].heard_at = now
        return [self.abort(request, "the caller is not waiting") for request in ended_requests]

    def with_tokens(self, tokens: Iterable[str]) -> list[ReceivedRequest]:
        """Return the open requests with these tokens."""
        return [request for token in tokens if (request := self._by_token.get(token)) is not None]

    def lost_caller(self, caller: Address) -> None:
        """Remove the requests of a caller that is gone."""
        lost_caller = self._callers.pop(caller, None)
        for request in () if lost_caller is None else lost_caller.requests.values():
            del self._by_token[request.token], self.by_caller_and_id[caller, request.request_id]
            self._unreported.pop(request.token, None)

    def expire(self, now: float) -> list[LosePeer]:
        """Remove the callers that have not answered in time; return those that had open requests."""
        silence = f"no message from it for {self._patience:g} s"
        silent = {
            address: caller for address, caller in self._callers.items() if caller.heard_at < now - self._patience
        }
        for address in silent:
            self.lost_caller(address)
        return [LosePeer(address, silence) for address, caller in silent.items() if caller.requests]

    def clear(self) -> None:
        """Forget all requests: the connection is lost."""
        for state in (self.by_caller_and_id, self._callers, self._by_token, self._unreported):
            state.clear()


class Leases:
    """The leases of one peer: `calls` that it made, and `requests` that it received.

    A lease is lost after `patience` seconds of silence.
    """

    def __init__(self, patience: float) -> None:
        self.calls = OutgoingCalls(patience)
        self.requests = ReceivedRequests(patience)

    def __len__(self) -> int:
        return len(self.calls) + len(self.requests)

    def accept(self, event: CallEvent, sender: Address, token: str, now: float) -> bool:
        """Check by its token that an event comes from the other side of its call, and update the lease.

        Events of unknown calls pass: the `CallTable`, which decides which sender may respond, drops them. But none with
        the id of an open request of its sender: what this peer would send back, such as the end of a stream, would have
        the token of that request.
        """
        if type(event) is not CallResponded and isinstance(event, _EVENTS_OF_CALLERS):
            request = self.requests.by_caller_and_id.get((sender, event.request_id))
            if request is not None:
                if request.token == token and isinstance(event, CallAborted):
                    self.requests.end(request)
                return request.token == token
        call = self.calls.by_request_id.get(event.request_id)
        if call is None:
            return self.requests.by_caller_and_id.get((sender, event.request_id)) is None
        if call.token != token:
            return False
        self.calls.answered(call, event, sender, now)
        return True

    def handle(self, event: LeaseEvent, sender: Address, token: str, now: float) -> list[Action]:
        """Handle a message by which a peer keeps its leases, or gives them up."""
        match event:
            case Serving():
                return self.calls.reported(sender, event.tokens, now)
            case Waiting():
                return list(self.requests.answered(sender, token, event.gone, now))
            case Left():
                return self._left(set(event.tokens), event.reason[:_MAX_REASON_LENGTH])

    def _left(self, tokens: set[str], reason: str) -> list[Action]:
        """End what these tokens name, and nothing else of their sender: its address may be forged."""
        calls, requests = self.calls.with_tokens(tokens), self.requests.with_tokens(tokens)
        failures = [self.calls.fail(call, f"{reason} before {call.operation_id} ended") for call in calls]
        return [*failures, *(self.requests.abort(request, reason) for request in requests)]

    def lose(self, peer: Address) -> list[Action]:
        """End all leases of a peer that the broker reports as gone."""
        reason = "the peer is gone"
        self.requests.lost_caller(peer)
        return [*self.calls.lost_server(peer, reason), LosePeer(peer, reason)]

    def expire(self, now: float) -> list[Action]:
        """End the leases that were not confirmed in time."""
        return [*self.calls.expire(now), *self.requests.expire(now)]

    def clear(self) -> dict[Address, list[str]]:
        """End all leases. Return the tokens to report as ended, by peer (an empty address: to all)."""
        farewells = dict(self.requests.reports())
        for call in self.calls:
            farewells.setdefault(call.server or "", []).append(call.token)
        self.calls.clear()
        self.requests.clear()
        return farewells


_Target = tuple[Address, str]  # a server, or an operation whose server is unknown


class ProbeSchedule:
    """Decides which servers to probe, and when to check again."""

    def __init__(self, calls: OutgoingCalls) -> None:
        self._calls = calls
        self._probed_at: dict[_Target, float] = {}  # or when its server last sent something
        self._next_check = inf

    def next_check(self, now: float) -> float:
        """Return when to call `due` again, after a call at `now`."""
        return max(self._next_check, now + MOMENT / 4, now + len(self._calls) * _MIN_SECONDS_PER_CHECKED_CALL)

    def due(self, now: float) -> list[OutgoingCall]:
        """Return the calls to probe: the latest of each server, and of each operation with an unknown server."""
        latest_calls: dict[_Target, OutgoingCall] = {}
        next_check = inf
        for call in self._calls:
            if now - call.sent_at < MOMENT:
                next_check = min(next_check, call.sent_at + MOMENT)
                break
            if call.server:
                latest_calls[call.server, ""] = call
            elif call.server is None and call.operation_id in self._calls.latest_servers:
                latest_calls["", call.operation_id] = call
            else:  # its server may be known at the next check
                next_check = min(next_check, now + _probe_interval(now - call.sent_at))

        heard_at = self._calls.servers_heard  # a message is as good as a probe
        last_at = {
            target: max(self._probed_at.get(target, -inf), heard_at.get(target[0], -inf)) for target in latest_calls
        }
        shortest_interval = len(latest_calls) * _MIN_SECONDS_PER_PROBED_SERVER

        def due_at(target: _Target) -> float:
            # The interval is that for the age of the call at its beginning: the one for the present age, which grows
            # meanwhile, would end after the check at its end, and take twice as long.
            interval = _probe_interval(last_at[target] - latest_calls[target].sent_at)
            return last_at[target] + max(interval, shortest_interval)

        targets = sorted((target for target in latest_calls if due_at(target) <= now), key=last_at.__getitem__)
        calls_to_probe = [latest_calls[target] for target in targets[:MAX_PROBES_AT_ONCE]]
        last_at.update(dict.fromkeys(targets[:MAX_PROBES_AT_ONCE], now))
        for call in calls_to_probe:
            call.probed_at = 0.0 if call.server else now
        self._probed_at = last_at
        self._calls.servers_heard = {server: heard_at[server] for server, _ in latest_calls if server in heard_at}
        self._next_check = min(next_check, *map(due_at, latest_calls), inf)
        return calls_to_probe


def _probe_interval(age: float) -> float:
    """Return the seconds between two probes of a call that has taken `age` seconds."""
    return min(max(age * _SHORTEST_PROBE_INTERVAL / 60, _SHORTEST_PROBE_INTERVAL), _LONGEST_PROBE_INTERVAL)
