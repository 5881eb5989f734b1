"""The door of a server: who may come in, and what they may announce. A `Gate` decides, and may take its time.

Nobody waits for a gate but the peer that it decides about, whose announcements and withdrawals keep their order.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import takewhile
from typing import Any, Protocol

from opwire.auth import Grant
from opwire.call import Address
from opwire.call.session import Announce, Done, GoAway, Hello, Refused, Withdraw
from opwire.errors import CallError, ErrorCode
from opwire.transports.websocket.relay import Peer
from opwire.transports.websocket.routes import Routes
from opwire.transports.websocket.stamps import MAX_IDENTITY, identity_json

logger = logging.getLogger("opwire.transports")

UNAUTHENTICATED, FORBIDDEN, TOO_MUCH = 4401, 4403, 4413
"""Why a connection is closed: its token is not good (any more), it is not wanted, it asks for more than is kept."""


class Gate(Protocol):
    """Whoever decides about the peers of a server."""

    async def admit(self, token: str | None) -> Grant | None:
        """What a connection with this token may do; None: call what is public, and nothing more.

        Raises:
            CallError: it is not let in.
        """
        ...

    async def announced(self, peer: Address, grant: Grant | None, operation_ids: list[str]) -> None:
        """A peer wants to serve these operations; it does when this returns.

        Raises:
            CallError: none of them.
        """
        ...

    def withdrawn(self, peer: Address, operation_ids: list[str]) -> None:
        """A peer serves these operations no longer."""
        ...

    def lost(self, peer: Address) -> None:
        """A peer is gone."""
        ...

    def unserved(self, operation_id: str) -> None:
        """Somebody calls an operation that nobody serves. When this returns, the server itself answers.

        Raises:
            CallError: what the caller is told instead.
        """
        ...


class Door:
    """Without a gate, everybody comes in as nobody, and may announce whatever it likes."""

    def __init__(self, gate: Gate | None, routes: Routes, welcome: Callable[[Peer, Hello], None]) -> None:
        self._gate = gate
        self._routes = routes
        self._welcome = welcome
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self, peers: Iterable[Peer]) -> None:
        """Decide nothing more, and let no grant of these peers expire."""
        for peer in peers:
            if peer.expiry is not None:
                peer.expiry.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- coming and going ---------------------------------------------------------------------------------------------

    def enter(self, peer: Peer, hello: Hello) -> None:
        """A peer has said hello."""
        if self._gate is None:
            self._welcome(peer, hello)
        else:
            self._start(self._admit(peer, hello, self._gate))

    async def _admit(self, peer: Peer, hello: Hello, gate: Gate) -> None:
        try:
            grant = await gate.admit(hello.token)
            identity = identity_json(grant and grant.identity)
            if len(identity) > MAX_IDENTITY:
                large = f"the identity has {len(identity):,} bytes, and at most {MAX_IDENTITY:,} are passed on"
                raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, large)
        except Exception as error:  # an authenticator may be a user's own
            self._turn_away(peer, _told(error))
            return
        if peer.connection.over:
            return
        peer.grant, peer.identity = grant, identity
        self._welcome(peer, hello)
        if grant is not None and grant.expires is not None:
            left = grant.expires - time.time()
            peer.expiry = asyncio.get_running_loop().call_later(max(0.0, left), self._expired, peer)

    def _turn_away(self, peer: Peer, error: CallError) -> None:
        peer.tell(Refused(code=error.code.value, message=error.message))
        code = UNAUTHENTICATED if error.code is ErrorCode.UNAUTHENTICATED else FORBIDDEN
        peer.connection.end(code, error.message)

    def _expired(self, peer: Peer) -> None:
        reason = "the token has expired"
        peer.tell(GoAway(reason=reason))
        peer.connection.end(UNAUTHENTICATED, reason)

    def leave(self, peer: Peer) -> None:
        """A peer is gone."""
        peer.wishes.clear()
        if peer.expiry is not None:
            peer.expiry.cancel()
        if self._gate is not None:
            self._gate.lost(peer.address)

    # --- what is served -----------------------------------------------------------------------------------------------

    def ask(self, peer: Peer, wish: Announce | Withdraw) -> None:
        """A peer wants to serve more, or less."""
        try:
            self._routes.check_room(peer.address, wish.operations, peer.wished)
        except CallError as error:
            peer.connection.end(TOO_MUCH, error.message)
            return
        if self._gate is None:
            self._settle(peer, wish)
            return
        peer.wishes.append(wish)
        peer.wished += _size(wish)
        if len(peer.wishes) == 1:  # else those before it are being decided
            self._start(self._decide(peer, self._gate))

    def withdraw_all(self, peer: Peer) -> None:
        """A peer takes no more calls."""
        self._withdraw(peer, self._routes.operations(peer.address))

    async def _decide(self, peer: Peer, gate: Gate) -> None:
        while peer.wishes:
            together = _leading(peer.wishes)
            if isinstance(together[0], Announce):
                await self._announced(peer, gate, together)
            else:
                self._settle(peer, together[0])
            del peer.wishes[: len(together)]
            peer.wished -= sum(map(_size, together))

    async def _announced(self, peer: Peer, gate: Gate, wishes: list[Announce | Withdraw]) -> None:
        """Announcements that came together are decided together: a gate that asks the peer back asks once."""
        try:
            await gate.announced(peer.address, peer.grant, [each for wish in wishes for each in wish.operations])
        except Exception as error:
            if len(wishes) > 1:  # one of them is to blame
                for wish in wishes:
                    await self._announced(peer, gate, [wish])
                return
            told = _told(error)
            peer.tell(Refused(id=wishes[0].id, code=told.code.value, message=told.message))
            return
        if peer.connection.over:
            gate.lost(peer.address)  # it went while the gate decided
            return
        for wish in wishes:
            self._settle(peer, wish)

    def _settle(self, peer: Peer, wish: Announce | Withdraw) -> None:
        if isinstance(wish, Withdraw):
            self._withdraw(peer, wish.operations)
        else:
            self._routes.announce(peer.address, wish.operations)
        peer.tell(Done(id=wish.id))

    def _withdraw(self, peer: Peer, operation_ids: list[str]) -> None:
        self._routes.withdraw(peer.address, operation_ids)
        if self._gate is not None:
            self._gate.withdrawn(peer.address, operation_ids)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _size(wish: Announce | Withdraw) -> int:
    return max(1, len(wish.operations))


def _leading(wishes: list[Announce | Withdraw]) -> list[Announce | Withdraw]:
    """The announcements at the beginning, or else the one withdrawal that is there."""
    return list(takewhile(lambda wish: isinstance(wish, Announce), wishes)) or wishes[:1]


def _told(error: Exception) -> CallError:
    """What the peer is told of an error."""
    if isinstance(error, CallError):
        return error
    logger.error("a gate failed", exc_info=error)
    return CallError(ErrorCode.INTERNAL, "it could not be decided")
