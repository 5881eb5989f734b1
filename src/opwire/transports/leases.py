"""Which calls are held by whom, where nobody says that a peer is gone: over brokers.

No I/O, no clock, no tasks: everything that opens, confirms or ends a lease is in this file.
Rule 1: a token is made for each request. It is known to the caller and to the server that the broker gave the request
    to, and to nobody else; whoever shows it is that server.
Rule 2: a server names the calls that it has in hand at every beat. A call that nobody names for as long as the patience
    lasts is lost: its server died, or the request or its answer never arrived.
Rule 3: a caller answers each beat. One that does not, for as long, is gone, and its calls can be stopped.
Rule 4: a call that takes longer than a moment is named early, so that its caller knows its server and can ask the
    broker whether that server is still there. How often depends on how long the call takes (`watch`).

Calls over a broker that take longer than a moment: servers name them early, and callers probe their servers.

When, and which, is decided in `leases`; this file has the timer, and sends.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from msgspec import Struct

from opwire.call import Address, CallAborted, CallCompleted, CallCredit, CallEvent, CallFailed, CallResponded
from opwire.call.events import Waiting, encode_session
from opwire.call.transport import random_ids
from opwire.errors import CallError
from opwire.transports.broker_connection import BrokerConnection

MOMENT = 0.02
"""Seconds after which a server names a call, and the caller probes the server. Shorter calls cost nothing."""

MAX_TOKEN = 64
"""Characters of a token that another end made."""

_SELDOM = 0.25  # seconds between two probes, at most
_PART = 64  # how many probes a call is worth: the next one comes after so small a part of the time that it has taken
_PROBES = 64  # at once; those that wait longest come first
_LOOK = 4e-6  # seconds of pause for each call that is looked at, which takes 0.15 µs: 4 % of the time at most
_KNOWN = 4096  # operations that are remembered to have been answered


class Asked(Struct):
    """A request of ours that is not answered yet.

    `server` is known from its first event or beat, or from the broker; it is empty for one that has no address.
    `probed` is when the broker was last asked whether its operation is served.
    """

    request_id: str
    operation_id: str
    token: str
    streams: bool
    heard: float
    server: Address | None = None
    since: float = 0.0
    probed: float = 0.0


class Ended(NamedTuple):
    """What is over: calls of ours, and callers with all that they asked of us."""

    calls: list[Asked]
    callers: list[Address]


class Leases:
    """The leases of one end: what it asked others, and what others asked of it."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._tokens = random_ids(8)
        self._asked: dict[str, Asked] = {}  # by request id
        self._by_token: dict[str, Asked] = {}
        self._answered: dict[str, None] = {}  # operations that an end like this one has answered
        self._probes: dict[
            tuple[Address, str], float
        ] = {}  # when a server was last probed or heard, or an operation probed
        self._held: dict[Address, dict[str, str]] = {}  # tokens by caller and request id
        self._holders: dict[str, Address] = {}  # callers by token
        self._new: list[tuple[Address, str, str]] = []  # what came in this moment: caller, request id, token
        self._recent: list[tuple[Address, str, str]] = []  # what came in the moment before
        self._heard: dict[Address, float] = {}  # callers that have something here, and when they were last heard of

    def __len__(self) -> int:
        return len(self._asked) + sum(map(len, self._held.values()))

    # --- what we asked ------------------------------------------------------------------------------------------------

    def ask(
        self, request_id: str, operation_id: str, now: float, *, streams: bool, server: Address | None = None
    ) -> str:
        """A request is about to leave; the token that goes with it."""
        token = next(self._tokens)
        if (before := self._asked.get(request_id)) is not None:
            self._forget(before)
        asked = Asked(request_id, operation_id, token, streams, now, server, now)
        self._asked[request_id] = self._by_token[token] = asked
        return token

    def asked(self, request_id: str) -> Asked | None:
        """An open request of ours."""
        return self._asked.get(request_id)

    def believe(self, event: CallEvent, sender: Address, token: str, now: float) -> bool:
        """Whether an answer comes from the one who has the request. An answer to nothing is not our business."""
        asked = self._asked.get(event.request_id)
        if asked is None:
            return True
        if asked.token != token:
            return False
        asked.server, asked.heard = sender, now
        self._probes[sender, ""] = now  # what comes from a server is as good as a probe
        if sender and asked.operation_id not in self._answered:
            if len(self._answered) >= _KNOWN:
                self._answered.clear()
            self._answered[asked.operation_id] = None
        if is_final(event, streams=asked.streams):
            self._forget(asked)
        return True

    def end(self, token: str) -> Asked | None:
        """A request of ours is over: it could not be delivered, or nobody waits for it any more."""
        asked = self._by_token.get(token)
        if asked is not None:
            self._forget(asked)
        return asked

    def routed(self, token: str, server: Address) -> None:
        """Note which server the broker gave a request to."""
        asked = self._by_token.get(token)
        if asked is not None and asked.server is None:
            asked.server = server

    def unanswered(self, operation_id: str, before: float = inf) -> list[Asked]:
        """End the requests for an operation that no server has named, of those from before a time; return them."""
        lost = [
            asked
            for asked in self._asked.values()
            if asked.operation_id == operation_id and asked.server is None and asked.since < before
        ]
        for asked in lost:
            self._forget(asked)
        return lost

    def undelivered(self, token: str) -> list[Asked]:
        """End the request that no server got; return what is over.

        Where it was a probe that no server got, no server has the operation any more: that ends every request for it
        that was sent before and has not been named.
        """
        asked = self._by_token.get(token)
        if asked is None or (asked.probed and asked.server is not None):
            return []
        if asked.probed:
            return self.unanswered(asked.operation_id, asked.probed)
        self._forget(asked)
        return [asked]

    def confirm(self, server: Address, tokens: Iterable[str], now: float) -> tuple[str, list[str]]:
        """Note what a server has in hand. Return one of the tokens that is waited for, and those that are not."""
        wanted, gone = "", list[str]()
        for token in tokens:
            asked = self._by_token.get(token)
            if asked is not None:
                asked.server, asked.heard = server, now
                wanted = token
            elif len(token) <= MAX_TOKEN:
                gone.append(token)
        return wanted, gone

    def watch(self, now: float) -> list[Asked]:
        """Return the calls to probe now: for each server that has some of ours, and each operation, the youngest."""
        watched: dict[tuple[Address, str], Asked] = {}
        for asked in self._asked.values():  # in the order in which they were asked
            if now - asked.since < MOMENT:
                break
            if asked.server:
                watched[asked.server, ""] = asked
            elif asked.server is None and asked.operation_id in self._answered:
                watched["", asked.operation_id] = asked
        last = {key: self._probes.get(key, 0.0) for key in watched}
        due = [key for key, asked in watched.items() if now - last[key] >= _interval(asked, now)]
        due = sorted(due, key=last.__getitem__)[:_PROBES]
        for key in due:
            last[key] = now
            watched[key].probed = now if key[1] else 0.0
        self._probes = last
        return [watched[key] for key in due]

    def pause(self, now: float) -> float | None:
        """Return the seconds until `watch` and `news` are to be called again; None if there is nothing to see."""
        if self._new or self._recent:
            return MOMENT
        youngest = next(reversed(self._asked.values()), None)
        return None if youngest is None else max(_interval(youngest, now), len(self._asked) * _LOOK)

    def _forget(self, asked: Asked) -> None:
        del self._asked[asked.request_id], self._by_token[asked.token]

    # --- what we were asked -------------------------------------------------------------------------------------------

    def hold(self, caller: Address, request_id: str, token: str, now: float) -> bool:
        """A request arrived. False: one of that id, with another token, is in hand already, and goes on."""
        held = self._held.setdefault(caller, {})
        first = held.get(request_id)
        self._heard[caller] = now
        if first is not None:
            return first == token
        held[request_id] = token
        self._holders[token] = caller
        self._new.append((caller, request_id, token))
        return True

    def held(self, caller: Address, request_id: str) -> str | None:
        """The token of a request that we have in hand."""
        held = self._held.get(caller)
        return None if held is None else held.get(request_id)

    def release(self, caller: Address, request_id: str) -> None:
        """A request has had its answer, or its caller does not want it any more."""
        held = self._held.get(caller)
        if held is not None and (token := held.pop(request_id, None)) is not None:
            self._holders.pop(token, None)
            if not held:
                del self._held[caller], self._heard[caller]

    def heard(self, caller: Address, token: str, gone: Iterable[str], now: float) -> list[str]:
        """A caller still waits, except for these tokens. Return the request ids that can be stopped.

        It shows a token of one of its calls, or has given some up: its address could be written by any other end.
        """
        unwanted = {each for each in gone if self._holders.get(each) == caller}
        if not unwanted and self._holders.get(token) != caller:
            return []
        self._heard[caller] = now
        return [request_id for request_id, each in self._held[caller].items() if each in unwanted] if unwanted else []

    def news(self) -> dict[Address, list[str]]:
        """Return what has been in hand for a moment or two and was not named yet: tokens by caller."""
        named: dict[Address, list[str]] = {}
        for caller, request_id, token in self._recent:
            if self.held(caller, request_id) == token:
                named.setdefault(caller, []).append(token)
        self._recent, self._new = self._new, []
        return named

    def beats(self) -> Iterator[tuple[Address, list[str]]]:
        """What to tell whom at a beat: the tokens of the calls in hand, by caller."""
        for caller, held in self._held.items():
            yield caller, list(held.values())

    def accepts(self, event: CallEvent, sender: Address, token: str, now: float) -> bool:
        """Whether an event comes from the end that has its call, or that asked for it."""
        held = self.held(sender, event.request_id) if isinstance(event, CallAborted | CallCredit) else None
        if held is None:
            return self.believe(event, sender, token, now)
        if held == token and isinstance(event, CallAborted):
            self.release(sender, event.request_id)
        return held == token

    # --- the end of leases --------------------------------------------------------------------------------------------

    def expire(self, now: float) -> Ended:
        """End what was not heard of for too long."""
        since = now - self._patience
        calls = [asked for asked in self._asked.values() if asked.heard < since]
        callers = [caller for caller, heard in self._heard.items() if heard < since]
        return self._end(calls, callers)

    def left(self, peer: Address) -> list[Asked]:
        """A peer is gone: what it had of ours. What we hold of its own is dropped, too."""
        return self._end([asked for asked in self._asked.values() if asked.server == peer], [peer]).calls

    def over(self, tokens: Iterable[str]) -> Ended:
        """Whoever shares these tokens with us is gone: the calls that it had, and the callers that it was."""
        named = set(tokens)
        calls = [asked for token in named if (asked := self._by_token.get(token)) is not None]
        callers = {caller for token in named if (caller := self._holders.get(token)) is not None}
        return self._end(calls, list(callers))

    def _end(self, calls: list[Asked], callers: list[Address]) -> Ended:
        for asked in calls:
            self._forget(asked)
        for caller in callers:
            for token in self._held.pop(caller, {}).values():
                self._holders.pop(token, None)
            self._heard.pop(caller, None)
        return Ended(calls, callers)

    def clear(self) -> dict[Address, list[str]]:
        """End everything. Whom to tell ("": whoever has it), and what they need not wait for."""
        farewell: dict[Address, list[str]] = dict(self.beats())
        for asked in self._asked.values():
            farewell.setdefault(asked.server or "", []).append(asked.token)
        for each in (self._asked, self._by_token, self._held, self._holders, self._heard, self._probes):
            each.clear()
        self._new, self._recent = [], []
        return farewell


def _interval(asked: Asked, now: float) -> float:
    """Seconds between two probes for a call."""
    return min(max((now - asked.since) / _PART, 0.75 * MOMENT), _SELDOM)


def is_final(event: CallEvent, *, streams: bool = False) -> bool:
    """Whether a call has ended with this event."""
    if isinstance(event, CallResponded):
        return event.seq is None and not streams
    return isinstance(event, CallCompleted | CallFailed | CallAborted)


logger = logging.getLogger("opwire.transports")

_STILL_WAITING = encode_session(Waiting())  # a probe: it says nothing new, but the broker knows whether it arrives


class Probes:
    """The probes of one end. `name` tells callers which calls are in hand: tokens by caller."""

    def __init__(
        self, leases: Leases, connection: BrokerConnection, name: Callable[[Mapping[Address, list[str]]], None]
    ) -> None:
        self._leases = leases
        self._connection = connection
        self._name = name
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf  # when the next look is due

    def soon(self, now: float) -> None:
        """Look at calls in a moment: there is a new one."""
        if self._at > now + MOMENT:
            self._later(MOMENT)

    def stop(self) -> None:
        """Look no more, until there is a new call."""
        self._later(None)

    def _later(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, inf
        if seconds is not None:
            self._at = time.monotonic() + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        try:
            self._name(self._leases.news())
            for asked in self._leases.watch(time.monotonic()):
                self._probe(asked)
        except Exception:  # the next time has to come all the same
            logger.exception("calls in flight could not be probed")
        self._later(self._leases.pause(time.monotonic()))

    def _probe(self, asked: Asked) -> None:
        """Send something to the server of a call, or to one that serves its operation.

        If there is none the broker says so, and `BrokerListener.unreachable` or `undelivered` is called.
        """
        try:
            if asked.server:
                self._connection.send(asked.server, asked.token, _STILL_WAITING, control=True)
            else:
                self._connection.request(asked.operation_id, asked.token, _STILL_WAITING)
        except CallError as error:
            logger.debug("%s was not probed: %s", asked.operation_id, error)
