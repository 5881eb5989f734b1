"""A Redis server as a medium: inboxes are channels, and who serves what is kept in lists, beside leases that run out.

An end has one connection, for messages and commands alike. Nothing is sent twice, since a message whose reply got lost
may have arrived. The one exception is a script that Redis says it does not know: it has not run.

What things are called in Redis, and what is written in front of a message. No I/O.

What Redis does for us in one step, in its own Lua.

An end is known by one name: the channel of its inbox, the key of its lease, and its entry in the lists of those who
serve an operation. A request goes to one of such a list whose lease has not run out and whose inbox somebody reads.

Which operations an end serves, and the commands that tell Redis so. No I/O.
"""

import logging
from asyncio import timeout
from collections.abc import Iterable
from functools import partial
from hashlib import sha1
from math import ceil
from random import randrange
from ssl import SSLContext, create_default_context
from typing import Any

from msgspec import Struct

from opwire.call import Address
from opwire.errors import CallError, ErrorCode
from opwire.transports.broker_connection import BrokerListener
from opwire.transports.redis.connection import (
    SETTINGS,
    Connection,
    Done,
    Part,
    Target,
    command,
    is_refusal,
    largest_message,
    refusal,
)

_MAX_HEAD = 128  # bytes of an address and a token


class Names:
    """The names of channels and keys, all under one prefix: ends with different prefixes do not meet."""

    def __init__(self, prefix: str, db: int = 0) -> None:
        self._end = f"{prefix}:end:"
        self.ends = self._end.encode()  # what the names of all ends begin with
        self._serving = f"{prefix}:serving:"
        # Channels belong to the whole server, keys to one database: without its number, databases would meet here.
        self.all = f"{prefix}:all:{db}".encode()

    def end(self, address: Address) -> bytes:
        """An end: the channel of its inbox, the key of its lease, its entry in the lists of those who serve."""
        return (self._end + address).encode(errors="replace")

    def address(self, end: bytes) -> Address:
        """The address of an end, from its name."""
        return end[len(self.ends) :].decode(errors="replace")

    def serving(self, operation_id: str) -> bytes:
        """The key of the list of those who serve an operation."""
        # A caller may ask for any text. One that has no UTF-8 is nobody's operation, and no reason to fail otherwise.
        return (self._serving + operation_id).encode("utf-8", "surrogatepass")


def seal(sender: bytes, token: str, message: bytes) -> bytes:
    """What is published."""
    return b"%b %b\n%b" % (sender, token.encode(), message)


def unseal(published: bytes) -> tuple[Address, str, bytes] | None:
    """Return sender, token and message of what was published; None if it is not ours: any client can publish."""
    head, newline, message = published.partition(b"\n")
    sender, space, token = head.partition(b" ")
    if not (newline and space and sender.isalnum() and (not token or token.isalnum()) and len(head) <= _MAX_HEAD):
        return None
    return sender.decode(), token.decode(), message


ROUTE = """\
local servers = redis.call('LLEN', KEYS[1])
if servers == 0 then return 0 end
local function give(server)
  return string.sub(server, 1, #ARGV[3]) == ARGV[3] and redis.call('EXISTS', server) == 1
    and redis.call('PUBLISH', server, ARGV[2]) > 0
end
local gone, left, sent = {}, {}, 0
if not ARGV[4] then
  local server = redis.call('LINDEX', KEYS[1], ARGV[1] % servers)
  if give(server) then return server end
  gone[server] = true
end
local listed = redis.call('LRANGE', KEYS[1], 0, 999)
local order, rank = {}, {}
for i, server in ipairs(listed) do
  order[i] = listed[(ARGV[1] + i) % #listed + 1]
  if ARGV[4] then rank[server] = redis.sha1hex(ARGV[4] .. server) end
end
if ARGV[4] then table.sort(order, function(a, b) return rank[a] < rank[b] end) end
for _, server in ipairs(order) do
  if not gone[server] and give(server) then
    sent = server
    break
  end
  gone[server] = true
end
for _, server in ipairs(listed) do
  if not gone[server] then left[#left + 1] = server end
end
if #left < #listed and (#left == 0 or type(redis.pcall('RPUSH', KEYS[1], unpack(left))) == 'number') then
  redis.pcall('LTRIM', KEYS[1], #listed, -1)
end
if sent == 0 and servers > #listed then return -1 end
return sent
"""
"""Give a message to a server. KEYS: the list; ARGV: whose turn it is, the message, what the names of ends begin with.

Returns the name of the server, 0 if nobody got it, or -1 if a thousand servers were tried that are gone: then they are
off the list, and it is to be run again, so that Redis is not kept busy by a long list of them.

With a fourth ARGV it is not their turn that counts: for each such key the servers have an order of their own, which
stays when others come and go. (Of more than a thousand, the first thousand count.)

It writes nothing unless it meets a server that is gone, so that requests pass while Redis has no memory left or cannot
save. (A list that turns by LMOVE would not, and is no quicker.) Whatever else was written to the list is not the name
of an end, and gets nothing: the caller may be allowed to publish where the writer is not.
"""

ROUTE_SHA = sha1(ROUTE.encode(), usedforsecurity=False).hexdigest().encode()

ENTER = """\
local expired = redis.call('PEXPIRE', KEYS[1], ARGV[1])
if expired == 0 then redis.call('SET', KEYS[1], '', 'PX', ARGV[1]) end
for i = 2, #KEYS do
  if not redis.call('LPOS', KEYS[i], KEYS[1]) then redis.call('RPUSH', KEYS[i], KEYS[1]) end
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return 1 - expired
"""
"""Renew a lease, and enter its end where it is not listed. KEYS: the end, the lists; ARGV: milliseconds for both.

Returns 1 if there was no lease, since then the end may be missing in other lists, too. PEXPIRE comes first because it
needs no memory, and Redis lets a script that has begun to write go on: servers come and stay when it has none left.
"""

PRUNE = """\
local budget, known, removed = tonumber(ARGV[2]), {}, 0
for _, key in ipairs(KEYS) do
  if budget <= 0 then break end
  local listed, left = redis.call('LRANGE', key, 0, budget - 1), {}
  budget = budget - #listed
  for _, server in ipairs(listed) do
    if known[server] == nil then
      known[server] = string.sub(server, 1, #ARGV[1]) == ARGV[1] and redis.call('EXISTS', server) == 1
    end
    if known[server] then left[#left + 1] = server end
  end
  if #left < #listed or (budget <= 0 and redis.call('LLEN', key) > #listed) then
    if #left == 0 or type(redis.pcall('RPUSH', key, unpack(left))) == 'number' then
      redis.pcall('LTRIM', key, #listed, -1)
      removed = removed + #listed - #left
    end
  end
end
return removed
"""
"""Take servers off lists whose lease has run out. KEYS: the lists; ARGV: what names of ends begin with, and how many
entries to look at. Of a list that is longer it looks at the first ones, and puts those that stay at its end, so that
the next time it looks at others. Returns how many were taken off.
"""


_ROUND = 60.0  # seconds within which every list that we are in is renewed, some of them at each beat
_KEPT = 3_600_000  # milliseconds until a list is gone that nobody renews
_PRUNED = 50  # lists that are looked through at a beat, for servers that are gone
_LOOKED_AT = 200  # entries of them, at most: Redis is kept busy for a fifth of a millisecond
_AT_ONCE = 500  # lists in one script, which keeps everybody else waiting for about a millisecond


class Presence:
    """A lease that lasts three beats, and an entry in the list of each operation."""

    def __init__(self, names: Names, heartbeat: float) -> None:
        self._names = names
        self._lease = ceil(3000 * heartbeat)  # milliseconds
        self.end = b""  # our name
        self._served: dict[str, None] = {}
        self._due: list[str] = []  # what is left to renew in this round
        self._to_prune: list[str] = []  # and to look through

    @property
    def served(self) -> list[str]:
        """The operations that are served."""
        return list(self._served)

    def begin(self, address: Address) -> None:
        """Another connection, with another address: nothing is served there yet."""
        self.end = self._names.end(address)
        self._served, self._due, self._to_prune = {}, [], []

    def add(self, operation_ids: Iterable[str]) -> list[str]:
        """Serve these, too. Those that were not served before."""
        new = [each for each in dict.fromkeys(operation_ids) if each not in self._served]
        self._served.update(dict.fromkeys(new))
        return new

    def remove(self, operation_ids: Iterable[str]) -> None:
        """Serve these no longer."""
        for each in operation_ids:
            self._served.pop(each, None)

    def entries(self, operation_ids: list[str]) -> list[bytes]:
        """Commands that enter us in the lists of these operations. Each gives 1 if there was no lease."""
        starts = range(0, len(operation_ids), _AT_ONCE)
        return [self._entry(operation_ids[start : start + _AT_ONCE]) for start in starts]

    def _entry(self, operation_ids: list[str]) -> bytes:
        lists = map(self._names.serving, operation_ids)
        return command(b"EVAL", ENTER, 1 + len(operation_ids), self.end, *lists, self._lease, _KEPT)

    def departures(self, operation_ids: Iterable[str]) -> list[bytes]:
        """Commands that take us off the lists of these operations."""
        return [command(b"LREM", self._names.serving(each), 0, self.end) for each in operation_ids]

    def absence(self) -> list[bytes]:
        """Commands that take us off all lists, our lease with them."""
        return [*self.departures(self._served), command(b"DEL", self.end)]

    def renewal(self, every: float) -> bytes:
        """The command of one beat: it renews the lease and some of the lists, and gives 1 if there was no lease."""
        if not self._served:  # then there is no lease; trying to renew it tells whether the server takes writes
            return command(b"PEXPIRE", self.end, self._lease)
        if not self._due:
            self._due = self.served
        number = ceil(len(self._served) * every / _ROUND)
        due, self._due = self._due[:number], self._due[number:]
        return self._entry([each for each in due if each in self._served])

    def pruning(self) -> list[bytes]:
        """Return the command of one beat that takes servers that are gone off some of the lists, if there are any."""
        if not self._to_prune:
            self._to_prune = self.served
        due, self._to_prune = self._to_prune[:_PRUNED], self._to_prune[_PRUNED:]
        lists = [self._names.serving(each) for each in due]
        return [command(b"EVAL", PRUNE, len(lists), *lists, self._names.ends, _LOOKED_AT)] if lists else []


logger = logging.getLogger("opwire.transports")

_SILENCE = 2  # beats without a word, after which a server counts as frozen
_GRACE = 1.0  # seconds to say goodbye
_PING = command(b"PING")
_AGAIN = 100  # times that a request is routed again, past a thousand servers each that are gone


class _Route(Struct):
    """The way to those who serve an operation, and whose turn it is."""

    servers: bytes
    turn: int


class RedisBrokerConnection:
    """One end of a Redis server: a `BrokerConnection`."""

    def __init__(self, target: Target, *, prefix: str, heartbeat: float, ssl: SSLContext | None = None) -> None:
        self.name = target.name
        self.max_message = largest_message([])  # until the server says otherwise
        self.ignored = 0  # messages on our channels that are not ours
        self._target = target
        self._ssl = create_default_context() if ssl is None and target.tls else ssl
        self._names = Names(prefix, target.db)
        self._presence = Presence(self._names, heartbeat)
        self._listener: BrokerListener | None = None
        self._connection: Connection | None = None
        self._address = b""
        self._silent = 0  # beats without a word from the server
        self._routes: dict[str, _Route] = {}

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def connect(self, address: Address, listener: BrokerListener) -> None:
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

    def request(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
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

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
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

    def broadcast(self, token: str, message: bytes) -> None:
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
