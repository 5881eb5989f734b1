"""Which calls are held by whom, where nobody says that a peer is gone: over brokers.

No I/O, no clock, no tasks: everything that opens, confirms or ends a lease is in this file.
Rule 1: a token is made for each request. It is known to the caller and to the server that the broker gave the request
    to, and to nobody else; whoever shows it is that server.
Rule 2: a server names the calls that it has in hand at every beat. A call that nobody names for as long as the patience
    lasts is lost: its server died, or the request or its answer never arrived.
Rule 3: a caller answers each beat. One that does not, for as long, is gone, and its calls can be stopped.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from opwire.call import Address, CallAborted, CallCompleted, CallEvent, CallFailed, CallResponded
from opwire.call.tokens import random_ids


class Asked(Struct):
    """A request of ours that is not answered yet. `server` is known from its first event or beat."""

    request_id: str
    operation_id: str
    token: str
    streams: bool
    heard: float
    server: Address | None = None


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
        self._held: dict[Address, dict[str, str]] = {}  # tokens by caller and request id
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
        asked = Asked(request_id, operation_id, token, streams, now, server)
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
        if is_final(event, streams=asked.streams):
            self._forget(asked)
        return True

    def end(self, token: str) -> Asked | None:
        """A request of ours is over: it could not be delivered, or nobody waits for it any more."""
        asked = self._by_token.get(token)
        if asked is not None:
            self._forget(asked)
        return asked

    def unanswered(self, operation_id: str) -> list[Asked]:
        """Requests for an operation that nobody has been heard of to have; they are over."""
        lost = [asked for asked in self._asked.values() if asked.operation_id == operation_id and asked.server is None]
        for asked in lost:
            self._forget(asked)
        return lost

    def confirm(self, server: Address, tokens: Iterable[str], now: float) -> list[str]:
        """A server names what it has in hand. Those of the tokens that nobody here waits for."""
        gone: list[str] = []
        for token in tokens:
            asked = self._by_token.get(token)
            if asked is None:
                gone.append(token)
            else:
                asked.server, asked.heard = server, now
        return gone

    def _forget(self, asked: Asked) -> None:
        del self._asked[asked.request_id], self._by_token[asked.token]

    # --- what we were asked -------------------------------------------------------------------------------------------

    def hold(self, caller: Address, request_id: str, token: str, now: float) -> bool:
        """A request arrived. False: one of that id, with another token, is in hand already, and goes on."""
        first = self._held.setdefault(caller, {}).setdefault(request_id, token)
        self._heard[caller] = now
        return first == token

    def held(self, caller: Address, request_id: str) -> str | None:
        """The token of a request that we have in hand."""
        held = self._held.get(caller)
        return None if held is None else held.get(request_id)

    def release(self, caller: Address, request_id: str) -> None:
        """A request has had its answer, or its caller does not want it any more."""
        held = self._held.get(caller)
        if held is not None and held.pop(request_id, None) is not None and not held:
            del self._held[caller], self._heard[caller]

    def heard(self, caller: Address, gone: Iterable[str], now: float) -> list[str]:
        """A caller answered a beat, and has given up these tokens. The request ids that can be stopped."""
        held = self._held.get(caller)
        if held is None:
            return []
        self._heard[caller] = now
        unwanted = set(gone)
        return [request_id for request_id, token in held.items() if token in unwanted]

    def beats(self) -> Iterator[tuple[Address, list[str]]]:
        """What to tell whom at a beat: the tokens of the calls in hand, by caller."""
        for caller, held in self._held.items():
            yield caller, list(held.values())

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
        callers = [caller for caller, held in self._held.items() if not named.isdisjoint(held.values())]
        return self._end(calls, callers)

    def _end(self, calls: list[Asked], callers: list[Address]) -> Ended:
        for asked in calls:
            self._forget(asked)
        for caller in callers:
            self._held.pop(caller, None)
            self._heard.pop(caller, None)
        return Ended(calls, callers)

    def clear(self) -> dict[Address, list[str]]:
        """End everything. Whom to tell ("": whoever has it), and what they need not wait for."""
        farewell: dict[Address, list[str]] = dict(self.beats())
        for asked in self._asked.values():
            farewell.setdefault(asked.server or "", []).append(asked.token)
        self._asked.clear()
        self._by_token.clear()
        self._held.clear()
        self._heard.clear()
        return farewell


def is_final(event: CallEvent, *, streams: bool = False) -> bool:
    """Whether a call has ended with this event."""
    if isinstance(event, CallResponded):
        return event.seq is None and not streams
    return isinstance(event, CallCompleted | CallFailed | CallAborted)
