"""A Redis server as a medium: inboxes are channels, and who serves what is kept in lists, beside leases that run out.

An end has one connection, for messages and commands alike. Nothing is sent twice, since a message whose reply got lost
may have arrived. The one exception is a script that Redis says it does not know: it has not run.
"""

import logging
from asyncio import timeout
from collections.abc import Iterable
from functools import partial
from random import randrange
from ssl import SSLContext, create_default_context
from typing import Any

from msgspec import Struct

from opwire.call import Address
from opwire.errors import CallError, ErrorCode
from opwire.transports.medium import Listener
from opwire.transports.redis.connection import Connection
from opwire.transports.redis.limits import SETTINGS, largest_message
from opwire.transports.redis.names import Names, seal, unseal
from opwire.transports.redis.presence import Presence
from opwire.transports.redis.refusals import is_refusal, refusal
from opwire.transports.redis.resp import Done, Part, command
from opwire.transports.redis.scripts import ROUTE, ROUTE_SHA
from opwire.transports.redis.url import Target

logger = logging.getLogger("opwire.transports")

_SILENCE = 2  # beats without a word, after which a server counts as frozen
_GRACE = 1.0  # seconds to say goodbye
_PING = command(b"PING")
_AGAIN = 100  # times that a request is routed again, past a thousand servers each that are gone


class _Route(Struct):
    """The way to those who serve an operation, and whose turn it is."""

    servers: bytes
    turn: int


class RedisMedium:
    """One end of a Redis server: a `Medium`."""

    def __init__(self, target: Target, *, prefix: str, heartbeat: float, ssl: SSLContext | None = None) -> None:
        self.name = target.name
        self.max_message = largest_message([])  # until the server says otherwise
        self.ignored = 0  # messages on our channels that are not ours
        self._target = target
        self._ssl = create_default_context() if ssl is None and target.tls else ssl
        self._names = Names(prefix, target.db)
        self._presence = Presence(self._names, heartbeat)
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self._address = b""
        self._silent = 0  # beats without a word from the server
        self._routes: dict[str, _Route] = {}

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def connect(self, address: Address, listener: Listener) -> None:
        """Connect, and listen to our own channel and to the one for all.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._listener = listener
        connection = Connection(self._target, self._arrived, self._lost)
        try:
            await connection.open(self._ssl)
            # Until the connection was lost we served, which Redis may not have noticed yet.
            before = [command(b"DEL", self._presence.end)] if self._presence.served else []
            await connection.greet(*before)
            await self._listen(connection, address)
        except BaseException:
            await connection.close()
            raise
        self._connection, self._address = connection, address.encode()
        self._presence.begin(address)
        self._routes.clear()

    async def _listen(self, connection: Connection, address: Address) -> None:
        settings: list[Any] = []
        for each in SETTINGS:  # not asked for with the others, since many servers refuse to say
            connection.send(command(b"CONFIG", b"GET", each), settings.append)
        channels = (self._names.end(address), self._names.all)
        await connection.ask(*(command(b"SUBSCRIBE", each) for each in channels), command(b"SCRIPT", b"LOAD", ROUTE))
        self.max_message = largest_message(settings)

    def _lost(self, reason: str) -> None:
        if self._connection is not None and self._listener is not None:
            self._connection = None
            self._listener.disconnected(reason)

    async def close(self) -> None:
        """Take our name off every list, and leave. Closing again does nothing."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            for each in (*self._presence.absence(), command(b"UNSUBSCRIBE", self._presence.end)):
                connection.send(each, _whatever, control=True)
            async with timeout(_GRACE):
                await connection.ask(_PING)  # when it is answered, all that was sent before has been read
        except (CallError, TimeoutError) as error:
            logger.debug("%s heard no goodbye: %s", self.name, error)
        self._presence.remove(self._presence.served)
        await connection.close()

    # --- serving ------------------------------------------------------------------------------------------------------

    async def serve(self, operation_ids: Iterable[str]) -> None:
        """Enter the lists of those who serve these operations.

        Raises:
            CallError: UNAVAILABLE, if Redis refuses or the connection is gone.
        """
        connection, presence = self._here(), self._presence
        new = presence.add(operation_ids)
        try:
            # Where there is nothing new, what was announced before may still be on its way.
            replies = await connection.ask(*presence.entries(new) or [_PING])
            if 1 in replies and presence.served != new:  # without a lease, other lists may have lost us, too
                await connection.ask(*presence.entries(presence.served))
        except BaseException:
            presence.remove(new)
            raise

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        """Leave the lists of those who serve these operations.

        Raises:
            CallError: UNAVAILABLE, if Redis refuses or the connection is gone.
        """
        leaving = list(operation_ids)
        self._presence.remove(leaving)
        await self._here().ask(*self._presence.departures(leaving))

    def beat(self, every: float) -> None:
        """Renew our lease, and notice whether the server still answers."""
        connection = self._connection
        if connection is None:
            return
        # Anything that arrives will do: behind a large backlog, the reply to a beat takes longer than a beat.
        self._silent = 0 if connection.heard else self._silent + 1
        connection.heard = False
        if self._silent >= _SILENCE:
            connection.abort("it does not answer")
        else:
            self._renew(connection, [self._presence.renewal(every)], self._renewed)
            self._renew(connection, self._presence.pruning(), _whatever)

    def _renew(self, connection: Connection, commands: list[bytes], done: Done) -> None:
        try:
            for each in commands:
                connection.send(each, done, control=True)
        except CallError as error:
            logger.warning("the lease at %s was not renewed: %s", self.name, error.message)

    def _renewed(self, reply: Any) -> None:
        connection, served = self._connection, self._presence.served
        if connection is None:
            return
        if is_refusal(reply, "READONLY"):
            connection.abort("it has become a read-only replica")
        elif is_refusal(reply) and served:
            logger.warning("the lease was not renewed: %s", refusal(self.name, reply).message)
        elif reply == 1 and served:  # Redis lost its data, or we were silent for too long
            self._renew(connection, self._presence.entries(served), self._reentered)

    def _reentered(self, reply: Any) -> None:
        if is_refusal(reply):
            logger.warning("operations are not served: %s", refusal(self.name, reply).message)

    # --- messages -----------------------------------------------------------------------------------------------------

    def ask(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        """Let Redis give a message to the next of those who serve an operation, or to the one for this key.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        route = self._routes.get(operation_id)
        if route is None:
            route = _Route(self._names.serving(operation_id), randrange(1_000_000))  # noqa: S311
        route.turn += 1
        letter = seal(self._address, token, message)
        run: tuple[Part, ...] = (1, route.servers, route.turn, letter, self._names.ends)
        if sticky_key is not None:
            run = (*run, sticky_key.encode(errors="surrogatepass"))
        self._here().send(command(b"EVALSHA", ROUTE_SHA, *run), partial(self._routed, operation_id, token, run))
        self._routes[operation_id] = route

    def _routed(self, operation_id: str, token: str, run: tuple[Part, ...], reply: Any, tries: int = 0) -> None:
        if self._connection is None or self._listener is None:
            return
        if type(reply) is bytes:
            self._listener.routed(token, self._names.address(reply))
            return
        again = (reply == -1 and tries < _AGAIN) or is_refusal(reply, "NOSCRIPT")
        if again:  # nobody got it: Redis does not know the script any more, or took those off the list that are gone
            done = partial(self._routed, operation_id, token, run, tries=tries + 1)
            try:
                self._connection.send(command(b"EVAL", ROUTE, *run), done)
            except CallError as error:
                self._listener.undelivered(token, error.message)
            return
        self._routes.pop(operation_id, None)  # so that only operations are remembered that somebody serves
        reason = refusal(self.name, reply).message if is_refusal(reply) else "nobody serves it"
        self._listener.undelivered(token, reason)

    def tell(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Publish a message to one end.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        letter = command(b"PUBLISH", self._names.end(to), seal(self._address, token, message))
        self._here().send(letter, partial(self._told, to), control=control)

    def _told(self, to: Address, reply: Any) -> None:
        if reply == 0 and self._listener is not None:
            self._listener.unreachable(to)
        elif is_refusal(reply):
            logger.warning("a message was not sent: %s", refusal(self.name, reply).message)

    def tell_all(self, token: str, message: bytes) -> None:
        """Publish a message to all ends.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        letter = command(b"PUBLISH", self._names.all, seal(self._address, token, message))
        self._here().send(letter, _whatever, control=True)

    def _arrived(self, channel: bytes, published: bytes) -> None:
        letter = unseal(published)
        if letter is None or self._listener is None:
            self.ignored += 1
        elif channel == self._names.all:
            self._listener.overheard(*letter)
        else:
            self._listener.arrived(*letter)

    def _here(self) -> Connection:
        if self._connection is None:
            raise CallError(ErrorCode.UNAVAILABLE, f"there is no connection to {self.name}")
        return self._connection


def _whatever(_: Any) -> None:
    """Takes a reply that nobody needs."""
