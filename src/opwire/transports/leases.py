"""Leases: which peers hold which calls over a broker, which does not report that a peer is gone.

`Leases` has no I/O, no clock and no tasks. Its rules:

1. Each request gets a token. Only the caller and the server that the broker routed the request to know it, so a message
   with the token comes from that server.
2. A server reports its calls in flight at every heartbeat. A call that is not reported in time is lost: its server
   died, or the request or its reply was lost.
3. A caller replies to each heartbeat. If it does not, for as long, it is gone, and its calls can be stopped.
4. A call that takes longer than a moment is reported early, so that its caller knows the server and can ask the broker
   whether that server is still connected. The longer a call takes, the less often it is probed (`watch`).

`Probes` adds the timer, and sends the probes.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from msgspec import Struct

from opwire.errors import CallError
from opwire.protocol.batch import MAX_TOKEN
from opwire.protocol.events import CallAborted, CallAnswer, CallCredit, CallEvent, CallFailed, CallResponded, is_final
from opwire.protocol.transport import Address, random_ids
from opwire.runtime.text import get_logger

logger = get_logger("opwire.transports")

MOMENT = 0.02
"""Seconds after which a server reports a call, and the caller probes the server. Shorter calls cost nothing."""

_OFTEN = 0.025  # seconds between two probes of a call that is up to a minute old
_SELDOM = 0.25  # of one that is ten minutes old or older
_PROBES = 64  # at once; the longest waiting first
_SHARE = 1e-4  # seconds of pause per probed server; sending a probe takes 10 µs: 10 % of the time at most
_LOOK = 4e-6  # seconds of pause per open call; checking one takes 0.15 µs: 4 % of the time at most
_STEERING = (CallAborted, CallCredit, CallAnswer)  # events from the caller; not a union, which takes 0.3 µs to test
_KNOWN = 4096  # operations that are remembered to have had a reply
_ALIKE = 64  # responses in a row from one server, after which it may be the only one of its operation
# Seconds without a request, after which the broker routes the next one. Calls that are made one at a time take longer,
# and so does what separates one of 64 in flight from the others: such a call costs 2 µs less than as a batch of one.
_PAUSE = 0.0002
_SAMPLE = 0.005  # seconds after which the broker routes a request in any case
_WARY = 60.0  # seconds after a request without any reply, in which the broker routes a few samples only
_IDLE = 1024  # callers, above which those without requests are forgotten at once: any client can invent addresses


class Asked(Struct, gc=False):
    """An outgoing request that has not ended.

    `server` is set by its first event or heartbeat, or by the broker; it is empty for a server without an address.
    `probed` is when the broker was last asked whether the operation has a server. `batch` is the number of the batch
    in which it was sent to its server directly.
    """

    request_id: str
    operation_id: str
    token: str
    streams: bool
    heard: float
    server: Address | None = None
    since: float = 0.0
    probed: float = 0.0
    batch: int = 0


class LatestServer(Struct, gc=False):
    """The server that sent the latest responses to requests for an operation.

    `direct`: requests may be sent to it directly. That was tried with one request first, at `tried`: the broker may not
    allow it. `latest` is when the latest request was made, and `sampled` when the broker last routed one, which another
    server may respond to. `silent` is when a request last expired without a word from any server: the broker routes
    requests to one that is frozen, until it notices. `wary`: it was recently, so this server is to be preferred.
    """

    server: Address
    responses: int = 1  # in a row
    direct: bool = False
    tried: float = -inf
    latest: float = 0.0
    sampled: float = 0.0
    silent: float = -inf
    wary: bool = False

    def restart(self, server: Address) -> None:
        """Let the broker route all requests again, until as many responses in a row are from one server."""
        self.server, self.responses, self.direct, self.tried = server, 0, False, -inf


class Ended(NamedTuple):
    """Outgoing calls that ended, and callers that are gone with all their requests."""

    calls: list[Asked]
    callers: list[Address]


class Leases:
    """The leases of one end: its outgoing requests, and those that it received."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._tokens = random_ids(8)
        self._asked: dict[str, Asked] = {}  # by request id
        self._by_token: dict[str, Asked] = {}
        self._routes: dict[str, LatestServer] = {}  # of operations with a reply from an opwire server
        self._probes: dict[tuple[Address, str], float] = {}  # last probe or message, by server and operation
        self._next = inf  # when the next probe is due
        # Tokens by caller and request id. A caller without requests stays until it expires: to add and remove it with
        # each of its calls takes longer than the rest.
        self._held: dict[Address, dict[str, str]] = {}
        self._heard: dict[Address, float] = {}  # when these callers last sent something
        # Callers by token: of requests received in this moment, in the one before, and earlier. Nearly all end in the
        # first, so that a call that is not reported leaves nothing to look at later.
        self._new: dict[str, Address] = {}
        self._recent: dict[str, Address] = {}
        self._reported: dict[str, Address] = {}

    def __len__(self) -> int:
        return len(self._asked) + sum(map(len, self._held.values()))

    # --- outgoing requests --------------------------------------------------------------------------------------------

    def ask(
        self, request_id: str, operation_id: str, now: float, *, streams: bool, server: Address | None = None
    ) -> Asked:
        """Add a request that is about to be sent, with a new token."""
        token = next(self._tokens)
        if (before := self._asked.get(request_id)) is not None:
            self._forget(before)
        if self._next > now + MOMENT:  # noqa: PLR1730 - `min` takes 0.1 µs
            self._next = now + MOMENT
        asked = Asked(request_id, operation_id, token, streams, now, server, now)
        self._asked[request_id] = self._by_token[token] = asked
        return asked

    def sole_server(self, operation_id: str, now: float, streams: bool = False) -> LatestServer | None:
        """Return the server to which a request can be sent directly; None if the broker has to route it.

        It is probably the only one, or another does not respond. Subscriptions last: the broker spreads them, unless
        another does not respond.
        """
        route = self._routes.get(operation_id)
        if route is None:
            return None
        route.wary = route.wary and now - route.silent < _WARY
        if route.responses < (1 if route.wary else _ALIKE) or (streams and not route.wary):
            return None
        paused, route.latest = now - route.latest > _PAUSE, now
        if route.wary:  # a sample that expires is followed by other requests, not by the next sample
            is_sample = now - max(route.sampled, route.silent) > self._patience
        else:
            is_sample = paused or now - route.sampled > _SAMPLE
        if is_sample:
            route.sampled = now
            return None
        if not route.direct:
            if now - route.tried < self._patience:
                return None
            route.tried = now
        return route

    def asked(self, request_id: str) -> Asked | None:
        """Return an open outgoing request."""
        return self._asked.get(request_id)

    def end(self, token: str) -> Asked | None:
        """Remove an outgoing request that was not delivered or was aborted."""
        asked = self._by_token.get(token)
        if asked is not None:
            self._forget(asked)
        return asked

    def routed(self, token: str, server: Address) -> None:
        """Record the server that the broker routed a request to."""
        asked = self._by_token.get(token)
        if asked is not None and asked.server is None:
            asked.server = server

    def unanswered(self, operation_id: str, before: float = inf) -> list[Asked]:
        """End and return the requests for an operation that no server has reported, sent before a time."""
        lost = [
            asked
            for asked in self._asked.values()
            if asked.operation_id == operation_id and asked.server is None and asked.since < before
        ]
        for asked in lost:
            self._forget(asked)
        return lost

    def undelivered(self, token: str) -> list[Asked]:
        """End the request that no server received; return the ended ones.

        If it was a probe, the operation has no server any more: that ends every earlier request for it that no server
        has reported.
        """
        asked = self._by_token.get(token)
        if asked is None or (asked.probed and asked.server is not None):
            return []
        if asked.probed:
            return self.unanswered(asked.operation_id, asked.probed)
        self._forget(asked)
        return [asked]

    def confirm(self, server: Address, tokens: Iterable[str], now: float) -> tuple[str, list[str]]:
        """Record the calls that a server reports. Return one token that is still wanted, and those that are not."""
        wanted, gone = "", list[str]()
        for token in tokens:
            asked = self._by_token.get(token)
            if asked is not None:
                asked.server, asked.heard = server, now
                if asked.batch and (route := self._routes.get(asked.operation_id)) is not None:
                    route.direct = route.direct or route.server == server
                wanted = token
            elif len(token) <= MAX_TOKEN:
                gone.append(token)
        return wanted, gone

    def watch(self, now: float) -> list[Asked]:
        """Return the calls to probe now: the latest of each server, and of each operation with an unknown server."""
        watched: dict[tuple[Address, str], Asked] = {}
        unnamed: Asked | None = None
        self._next = inf
        for asked in self._asked.values():  # in the order in which they were sent
            if now - asked.since < MOMENT:
                self._next = asked.since + MOMENT
                break
            if asked.server:
                watched[asked.server, ""] = asked
            elif asked.server is None and asked.operation_id in self._routes:
                watched["", asked.operation_id] = asked
            else:
                unnamed = asked  # its server may be known at the next check
        # An interval starts with the last probe or message, and its length is that for the call's age at this time: for
        # the present age, which grows meanwhile, it would end after the check at its end, and take twice as long.
        share = len(watched) * _SHARE
        last = {key: self._probes.get(key, -inf) for key in watched}
        at = {key: last[key] + max(_interval(last[key] - asked.since), share) for key, asked in watched.items()}
        due = sorted((key for key in watched if at[key] <= now), key=last.__getitem__)[:_PROBES]
        for key in due:
            asked = watched[key]
            last[key], at[key] = now, now + max(_interval(now - asked.since), share)
            asked.probed = now if key[1] else 0.0
        self._probes = last
        self._next = min(self._next, *at.values(), inf if unnamed is None else now + _interval(now - unnamed.since))
        return [watched[key] for key in due]

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next call of `watch` and `news`, after one at `now`; None if none is needed."""
        news = MOMENT if self._new or self._recent else inf
        look = inf if self._next == inf else max(self._next - now, MOMENT / 4, len(self._asked) * _LOOK)
        pause = min(news, look)
        return None if pause == inf else pause

    def _forget(self, asked: Asked) -> None:
        del self._asked[asked.request_id], self._by_token[asked.token]

    # --- received requests --------------------------------------------------------------------------------------------

    def hold(self, caller: Address, request_id: str, token: str, now: float) -> bool:
        """Add a received request. Return False if one with that id and another token is in flight."""
        held = self._held.get(caller)
        if held is None:
            held = self._held[caller] = {}
        self._heard[caller] = now
        if request_id in held:
            return held[request_id] == token
        held[request_id] = token
        self._new[token] = caller
        return True

    def held(self, caller: Address, request_id: str) -> str | None:
        """Return the token of a received request."""
        held = self._held.get(caller)
        return None if held is None else held.get(request_id)

    def release(self, caller: Address, request_id: str) -> str | None:
        """Remove a received request that has ended or was aborted, and return its token."""
        held = self._held.get(caller)
        if held is None or (token := held.pop(request_id, None)) is None:
            return None
        if self._new.pop(token, None) is None:
            self._drop_holder(token)
        if not held and len(self._held) > _IDLE:
            del self._held[caller], self._heard[caller]
        return token

    def heard(self, caller: Address, token: str, gone: Iterable[str], now: float) -> list[str]:
        """Record that a caller still waits, except for these tokens. Return the ids of requests that can be stopped.

        The message has to contain a token of the caller, since any other end could forge its address.
        """
        unwanted = {each for each in gone if self._holder(each) == caller}
        if not unwanted and self._holder(token) != caller:
            return []
        self._heard[caller] = now
        return [request_id for request_id, each in self._held[caller].items() if each in unwanted] if unwanted else []

    def news(self) -> dict[Address, list[str]]:
        """Return the calls that took longer than a moment and were not reported yet: tokens by caller."""
        named: dict[Address, list[str]] = {}
        for token, caller in self._recent.items():
            named.setdefault(caller, []).append(token)
        self._reported.update(self._recent)
        self._recent, self._new = self._new, {}
        return named

    def beats(self) -> Iterator[tuple[Address, list[str]]]:
        """Yield the calls in flight to report at a heartbeat: tokens by caller. Calls may end meanwhile."""
        for caller in list(self._held):
            if held := self._held.get(caller):
                yield caller, list(held.values())

    def _holder(self, token: str) -> Address | None:
        """Return the caller of a received request."""
        return self._new.get(token) or self._recent.get(token) or self._reported.get(token)

    def _drop_holder(self, token: str) -> None:
        if self._new.pop(token, None) is None and self._recent.pop(token, None) is None:
            self._reported.pop(token, None)

    def authenticates(self, event: CallEvent, sender: Address, token: str, now: float) -> bool:
        """Check by its token that an event comes from the other end of its call, and update the lease.

        An address proves nothing over a broker. Events of unknown requests pass: the `CallTable`, which decides which
        sender may reply, drops them. But none from the address of a caller with a request of that id here: what this
        end would send back, such as the end of a stream, would have the token of that request.
        """
        is_response = type(event) is CallResponded  # nearly all are
        steers = not is_response and isinstance(event, _STEERING)
        if steers and (held := self.held(sender, event.request_id)) is not None:
            if held == token and isinstance(event, CallAborted):
                self.release(sender, event.request_id)
            return held == token
        asked = self._asked.get(event.request_id)
        if asked is None:
            return self.held(sender, event.request_id) is None
        if asked.token != token:
            return False
        asked.server, asked.heard = sender, now
        self._probes[sender, ""] = now  # as good as a probe
        route = self._routes.get(asked.operation_id)
        if is_response and route is not None and route.server == sender:
            route.responses += 1
            if asked.batch:
                route.direct = True
        else:
            self._learn_route(asked.operation_id, route, sender, event)
        if not asked.streams if is_response and event.seq is None else is_final(event, streams=asked.streams):
            del self._asked[event.request_id], self._by_token[token]
        return True

    def _learn_route(self, operation_id: str, route: LatestServer | None, sender: Address, event: CallEvent) -> None:
        if route is None:
            if sender:
                if len(self._routes) >= _KNOWN:
                    self._routes.clear()
                self._routes[operation_id] = LatestServer(sender)
        else:
            rejected = isinstance(event, CallFailed) and event.not_started
            if rejected or (route.server != sender and not (route.wary and route.responses)):
                route.restart(sender)
                route.responses = 0 if rejected else 1

    # --- expiry -------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> Ended:
        """End the leases that were not confirmed in time."""
        since = now - self._patience
        calls = [asked for asked in self._asked.values() if asked.heard < since]
        for asked in calls:
            if asked.server is None and (route := self._routes.get(asked.operation_id)) is not None:
                route.silent, route.wary = now, True
        callers = [caller for caller, heard in self._heard.items() if heard < since]
        lost = [caller for caller in callers if self._held[caller]]  # the others have no requests here any more
        self._end(calls, callers)
        return Ended(calls, lost)

    def left(self, peer: Address, batch: int = 0) -> tuple[list[Asked], list[Asked]]:
        """Drop the requests of a peer that is gone; end the calls that it served, and return them.

        `batch` is that in which the broker noticed it, if any. Return its calls apart: they have not reached the peer,
        and neither have those of later batches. These go on until the broker has said the same of them. Those of
        earlier batches may have run, as the broker has not said so.
        """
        served, unsent = list[Asked](), list[Asked]()
        for asked in self._asked.values():
            if asked.server == peer and asked.batch <= batch:
                (unsent if batch and asked.batch == batch else served).append(asked)
        self._end([*served, *unsent], [peer])
        return served, unsent

    def forbidden(self, peer: Address) -> list[Asked]:
        """Send nothing to a peer directly any more. End and return the requests with which that was tried.

        If it was allowed before, some requests may have reached the peer: those expire.
        """
        tried = [
            asked
            for asked in self._asked.values()
            if asked.batch
            and asked.server == peer
            and ((route := self._routes.get(asked.operation_id)) is None or not route.direct)
        ]
        for asked in tried:
            self._forget(asked)
        for route in self._routes.values():
            if route.server == peer:
                route.direct = False
        return tried

    def over(self, tokens: Iterable[str]) -> tuple[list[Asked], list[tuple[Address, str]]]:
        """End the leases with these tokens; return the calls, and the received requests by caller and id.

        Other requests with the same caller's address go on: the token proves one request, and any end can send a
        request with the address of another.
        """
        named = set(tokens)
        calls = [asked for token in named if (asked := self._by_token.get(token)) is not None]
        callers = {caller for token in named if (caller := self._holder(token)) is not None}
        requests = [
            (caller, request_id)
            for caller in callers
            for request_id, token in self._held[caller].items()
            if token in named and self._holder(token) == caller
        ]
        for asked in calls:
            self._forget(asked)
        for caller, request_id in requests:
            self.release(caller, request_id)
        return calls, requests

    def _end(self, calls: list[Asked], callers: list[Address]) -> None:
        for asked in calls:
            self._forget(asked)
            if (route := self._routes.get(asked.operation_id)) is not None and route.server == asked.server:
                route.restart("")
        for caller in callers:
            for token in self._held.pop(caller, {}).values():
                self._drop_holder(token)
            self._heard.pop(caller, None)

    def clear(self) -> dict[Address, list[str]]:
        """End all leases. Return the tokens to report as ended, by peer (an empty address: broadcast)."""
        farewell: dict[Address, list[str]] = dict(self.beats())
        for asked in self._asked.values():
            farewell.setdefault(asked.server or "", []).append(asked.token)
        self._next = inf
        state = (self._asked, self._by_token, self._probes, self._held, self._heard)
        for each in (*state, self._new, self._recent, self._reported):
            each.clear()
        for route in self._routes.values():
            route.restart("")
        return farewell


def _interval(age: float) -> float:
    """Return the seconds between two probes of a call that has taken `age` seconds."""
    return min(max(age * _OFTEN / 60, _OFTEN), _SELDOM)


class Probes:
    """Probes the servers of long calls.

    `send` sends one to the server of a call, or to those of its operation; `report` sends the calls in flight to
    their callers: tokens by caller.
    """

    def __init__(
        self, leases: Leases, send: Callable[[Asked], None], report: Callable[[Mapping[Address, list[str]]], None]
    ) -> None:
        self._leases = leases
        self._send = send
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        self.due = inf  # when the next check is

    def soon(self, now: float) -> None:
        """Schedule a check for a new call."""
        if self.due > now + MOMENT:
            self._later(MOMENT)

    def stop(self) -> None:
        """Cancel the timer until there is a new call."""
        self._later(None)

    def _later(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.due = None, inf
        if seconds is not None:
            self.due = time.monotonic() + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        try:
            self._report(self._leases.news())
            for asked in self._leases.watch(time.monotonic()):
                # If it cannot be delivered, the broker calls `BrokerListener.unreachable` or `undelivered`.
                try:
                    self._send(asked)
                except CallError as error:
                    logger.debug("%s was not probed: %s", asked.operation_id, error)
        except Exception:  # the timer has to go on
            logger.exception("calls in flight could not be probed")
        self._later(self._leases.pause(time.monotonic()))
