"""Calls over Redis: `RedisTransport`, and its connection to the broker.

A peer of the transport has one name: the channel of its inbox, the key of its lease, and its entry in the lists of the
servers of each operation. A request goes to an entry of such a list with a valid lease and a subscriber to its inbox.

A peer has one connection, for messages and commands alike. No message is sent twice: if only its reply was lost, it
has arrived. The one exception is a script that Redis reports as unknown: it did not run.
"""

from asyncio import timeout
from collections.abc import Iterable
from functools import partial
from math import ceil
from pathlib import Path
from random import randrange
from ssl import SSLContext
from typing import Any, NamedTuple

from opwire.errors import CallError, ErrorCode
from opwire.protocol.events import MAX_MESSAGE
from opwire.protocol.transport import Address
from opwire.runtime.text import get_logger
from opwire.transports.broker import BrokerTransport
from opwire.transports.broker_connection import BrokerListener, RequestSigner
from opwire.transports.pacing import LARGE, LargeMessages
from opwire.transports.redis.connection import (
    SETTINGS,
    Done,
    Part,
    RedisConnection,
    RedisServers,
    command,
    is_refusal,
    largest_message,
    load_script,
    refusal,
)
from opwire.transports.redis.servers import parse_servers

logger = get_logger("opwire.transports.redis")

# --- names and messages -----------------------------------------------------------------------------------------------

_MAX_HEAD_BYTES = 128  # an address and a token


class RedisNames:
    """The names of channels and keys under one prefix. Peers with different prefixes are isolated from each other."""

    def __init__(self, prefix: str, db: int = 0) -> None:
        self._prefix_text = f"{prefix}:end:"
        self.peer_prefix = self._prefix_text.encode()
        self._serving = f"{prefix}:serving:"
        # Channels belong to the whole server, keys to one database: without its number, databases would share this one.
        self.all = f"{prefix}:all:{db}".encode()

    def peer(self, address: Address) -> bytes:
        """Return the name of a peer: its channel, the key of its lease, its entry in the lists of servers."""
        return (self._prefix_text + address).encode(errors="replace")

    def address(self, name: bytes) -> Address:
        """Return the address of a peer from its name."""
        return name[len(self.peer_prefix) :].decode(errors="replace")

    def serving(self, operation_id: str) -> bytes:
        """Return the key of the list of an operation's servers."""
        # Callers may request any text; text that UTF-8 cannot encode is an unknown operation, not an error.
        return (self._serving + operation_id).encode("utf-8", "surrogatepass")


def pack_message(sender: bytes, token: str, message: bytes) -> bytes:
    """Encode a message for a channel."""
    return b"%b %b\n%b" % (sender, token.encode(), message)


def unpack_message(published: bytes) -> tuple[Address, str, bytes] | None:
    """Decode sender, token and message; return None for invalid data, which any client can publish."""
    head, newline, message = published.partition(b"\n")
    sender, space, token = head.partition(b" ")
    if not (newline and space and sender.isalnum() and (not token or token.isalnum()) and len(head) <= _MAX_HEAD_BYTES):
        return None
    return sender.decode(), token.decode(), message


# --- presence ---------------------------------------------------------------------------------------------------------

_load = partial(load_script, Path(__file__).with_name("scripts"))
ROUTE, ENTER, PRUNE = _load("route"), _load("enter"), _load("prune")

_SECONDS_TO_RENEW_ALL_LISTS = 60.0  # a share of them at each beat
_LIST_TTL_MS = 3_600_000
_LISTS_PRUNED_PER_BEAT = 50
_ENTRIES_PRUNED_PER_BEAT = 200  # blocks Redis for a fifth of a millisecond
_LISTS_PER_SCRIPT = 500  # blocks other clients for about a millisecond


class Presence:
    """Build the commands that register a peer: a lease of three beats, and an entry per operation. No I/O."""

    def __init__(self, names: RedisNames, heartbeat: float) -> None:
        self._names = names
        self._lease = ceil(3000 * heartbeat)  # milliseconds
        self.own_name = b""
        self._served: dict[str, None] = {}
        self._to_renew: list[str] = []  # in this round
        self._to_prune: list[str] = []

    @property
    def served(self) -> list[str]:
        """Return the operations that this peer serves."""
        return list(self._served)

    def begin(self, address: Address) -> None:
        """Reset for a new connection, with a new address."""
        self.own_name = self._names.peer(address)
        self._served, self._to_renew, self._to_prune = {}, [], []

    def add(self, operation_ids: Iterable[str]) -> list[str]:
        """Add operations; return the new ones."""
        new_ids = [operation_id for operation_id in dict.fromkeys(operation_ids) if operation_id not in self._served]
        self._served.update(dict.fromkeys(new_ids))
        return new_ids

    def remove(self, operation_ids: Iterable[str]) -> None:
        """Remove operations."""
        for operation_id in operation_ids:
            self._served.pop(operation_id, None)

    def entries(self, operation_ids: list[str]) -> list[bytes]:
        """Return the commands that add this peer to the lists. Each replies 1 if the lease was missing."""
        return [
            self._entry(operation_ids[start : start + _LISTS_PER_SCRIPT])
            for start in range(0, len(operation_ids), _LISTS_PER_SCRIPT)
        ]

    def _entry(self, operation_ids: list[str]) -> bytes:
        lists = map(self._names.serving, operation_ids)
        return command(b"EVAL", ENTER.text, 1 + len(operation_ids), self.own_name, *lists, self._lease, _LIST_TTL_MS)

    def departures(self, operation_ids: Iterable[str]) -> list[bytes]:
        """Return the commands that remove this peer from the lists of these operations."""
        return [command(b"LREM", self._names.serving(operation_id), 0, self.own_name) for operation_id in operation_ids]

    def absence(self) -> list[bytes]:
        """Return the commands that remove this peer from all lists, and its lease."""
        return [*self.departures(self._served), command(b"DEL", self.own_name)]

    def renewal(self, every: float) -> bytes:
        """Return the command of one beat: renew the lease and some lists. It replies 1 if the lease was missing."""
        if not self._served:  # renewing a missing lease still shows whether the server accepts writes
            return command(b"PEXPIRE", self.own_name, self._lease)
        if not self._to_renew:
            self._to_renew = self.served
        number = ceil(len(self._served) * every / _SECONDS_TO_RENEW_ALL_LISTS)
        due_ids, self._to_renew = self._to_renew[:number], self._to_renew[number:]
        return self._entry([operation_id for operation_id in due_ids if operation_id in self._served])

    def pruning(self) -> list[bytes]:
        """Return the command of one beat that prunes some of the lists, if there are any."""
        if not self._to_prune:
            self._to_prune = self.served
        due_ids, self._to_prune = self._to_prune[:_LISTS_PRUNED_PER_BEAT], self._to_prune[_LISTS_PRUNED_PER_BEAT:]
        lists = [self._names.serving(operation_id) for operation_id in due_ids]
        return (
            [command(b"EVAL", PRUNE.text, len(lists), *lists, self._names.peer_prefix, _ENTRIES_PRUNED_PER_BEAT)]
            if lists
            else []
        )


# --- the broker connection --------------------------------------------------------------------------------------------

_MAX_SILENT_BEATS = 2  # after which a server counts as frozen
_CLOSE_TIMEOUT = 1.0  # seconds
_PING = command(b"PING")
_MAX_ATTEMPTS = 100  # to route a request, each past a thousand servers that are gone


class _RoutedRequest(NamedTuple):
    """A request whose reply by ROUTE has not arrived. `turn` chooses the server."""

    operation_id: str
    token: str
    turn: int
    message: bytes
    sticky_key: str | None


class RedisBrokerConnection:
    """A `BrokerConnection` over one Redis server, or the primary of several."""

    def __init__(self, servers: RedisServers, *, prefix: str, heartbeat: float) -> None:
        self.name = servers.name
        self.max_message = largest_message([])  # the default, until the server shows its settings
        self.ignored = 0  # invalid messages on our channels
        self._servers = servers
        self._prefix = prefix
        self._heartbeat = heartbeat
        self._names = RedisNames(prefix)  # until it is connected
        self._presence = Presence(self._names, heartbeat)
        self._listener: BrokerListener | None = None
        self._connection: RedisConnection | None = None
        self._address = b""
        self._silent_beats = 0
        self._turns: dict[str, int] = {}  # of requests, by operation
        self._large = LargeMessages("Redis", 8 * 1024 * 1024, 32 * 1024 * 1024)

    async def connect(self, address: Address, listener: BrokerListener) -> None:
        """Connect, and subscribe to our own channel and to the one for all."""
        self._listener = listener
        connection = RedisConnection(await self._servers.primary(), self._arrived, self._lost)
        settings: list[Any] = []
        try:
            await connection.open()
            # The lease of the lost connection may not have expired yet.
            await connection.greet(*([command(b"DEL", self._presence.own_name)] if self._presence.served else []))
            names = RedisNames(await self._servers.channel_prefix(connection, self._prefix), connection.target.db)
            for setting in SETTINGS:  # apart from the other commands, since many servers deny CONFIG
                connection.send(command(b"CONFIG", b"GET", setting), settings.append)
            loading, channels = command(b"SCRIPT", b"LOAD", ROUTE.text), (names.peer(address), names.all)
            await connection.ask(*(command(b"SUBSCRIBE", channel) for channel in channels), loading)
        except BaseException:
            await connection.close()
            raise
        self.max_message = largest_message(settings)
        self._connection, self._address = connection, address.encode()
        self._servers.follow(connection)
        self._names, self._presence = names, Presence(names, self._heartbeat)
        self._presence.begin(address)
        self._turns.clear()

    def _lost(self, reason: str) -> None:
        if self._connection is not None and self._listener is not None:
            self._connection = None
            self._listener.disconnected(reason)

    async def close(self) -> None:
        """Remove this peer from every list, and disconnect. A second call is a no-op.

        What arrives until then is still handled: a request that was sent to this peer directly is rejected, not lost.
        """
        connection = self._connection
        if connection is None:
            return
        try:
            for departure in (*self._presence.absence(), command(b"UNSUBSCRIBE", self._presence.own_name)):
                connection.send(departure, _ignore, control=True)
            async with timeout(_CLOSE_TIMEOUT):
                await connection.ask(_PING)  # its reply shows that Redis has processed the commands before it
        except (CallError, TimeoutError) as error:
            logger.debug("no orderly close at %s: %s", self.name, error)
        self._connection = None
        self._presence.remove(self._presence.served)
        await connection.close()

    async def serve(self, operation_ids: Iterable[str]) -> None:
        """Register as a server of these operations."""
        connection, presence = self._open(), self._presence
        new_ids = presence.add(operation_ids)
        try:
            # Without new operations, PING waits for registrations that are still in flight.
            replies = await connection.ask(*presence.entries(new_ids) or [_PING])
            if 1 in replies and presence.served != new_ids:  # the lease was missing: other lists may lack us, too
                await connection.ask(*presence.entries(presence.served))
        except BaseException:
            presence.remove(new_ids)
            raise

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        """Deregister from these operations."""
        ids = list(operation_ids)
        self._presence.remove(ids)
        await self._open().ask(*self._presence.departures(ids))

    def beat(self, every: float) -> None:
        """Renew the lease; end the connection if the server has become silent."""
        connection = self._connection
        if connection is None:
            return
        # Any data counts: behind a large backlog, the reply to a beat takes longer than a beat.
        self._silent_beats = 0 if connection.heard else self._silent_beats + 1
        connection.heard = False
        if self._silent_beats >= _MAX_SILENT_BEATS:
            connection.abort("it does not answer")
        else:
            self._register(connection, [self._presence.renewal(every)], self._renewed)
            self._register(connection, self._presence.pruning(), _ignore)

    def _register(self, connection: RedisConnection, commands: list[bytes], done: Done) -> None:
        try:
            for renewal in commands:
                connection.send(renewal, done, control=True)
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
        elif reply == 1 and served:  # Redis lost its data, or the lease expired
            self._register(
                connection, self._presence.entries(served), partial(self._refused, "operations are not served")
            )

    def _refused(self, consequence: str, reply: Any) -> None:
        if is_refusal(reply):
            logger.warning("%s: %s", consequence, refusal(self.name, reply).message)

    def request(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        """Route a message to the next server of an operation, or to the one for a sticky key."""
        connection = self._open()
        if len(message) > LARGE:
            self._large.pace(operation_id, len(message), connection.link)
        turn = self._turns.get(operation_id, randrange(1_000_000)) + 1  # noqa: S311
        request = _RoutedRequest(operation_id, token, turn, message, sticky_key)
        connection.send(self._routing(request, b"EVALSHA", ROUTE.digest), partial(self._routed, request, 1))
        self._turns[operation_id] = turn

    def _routing(self, request: _RoutedRequest, eval_command: bytes, script: Part) -> bytes:
        """Return the command that runs ROUTE for a request."""
        servers, peer_prefix = self._names.serving(request.operation_id), self._names.peer_prefix
        published = pack_message(self._address, request.token, request.message)
        sticky_key = () if request.sticky_key is None else (request.sticky_key.encode(errors="surrogatepass"),)
        return command(eval_command, script, 1, servers, request.turn, published, peer_prefix, *sticky_key)

    def _routed(self, request: _RoutedRequest, attempt: int, reply: Any) -> None:
        if self._connection is None or self._listener is None:
            return
        if isinstance(reply, bytes):
            self._listener.routed(request.token, self._names.address(reply))
            return
        # No server received it: Redis has lost the script, or has just pruned a thousand servers that are gone.
        if (reply == -1 and attempt <= _MAX_ATTEMPTS) or is_refusal(reply, "NOSCRIPT"):
            done = partial(self._routed, request, attempt + 1)
            try:
                self._connection.send(self._routing(request, b"EVAL", ROUTE.text), done)
            except CallError as error:
                self._listener.undelivered(request.token, error.message)
            return
        self._turns.pop(request.operation_id, None)  # remember those of served operations only
        reason = refusal(self.name, reply).message if is_refusal(reply) else "no server available"
        self._listener.undelivered(request.token, reason)

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Publish a message to one peer."""
        connection = self._open()
        if len(message) > LARGE and not control:
            self._large.pace(to, len(message), connection.link)
        published = command(b"PUBLISH", self._names.peer(to), pack_message(self._address, token, message))
        connection.send(published, partial(self._published, to), control=control)

    def _published(self, to: Address, reply: Any) -> None:
        if reply == 0 and self._listener is not None:
            self._listener.unreachable(to)
        elif not isinstance(reply, int):
            self._refused("a message was not sent", reply)

    def broadcast(self, token: str, message: bytes) -> None:
        """Publish a message to all peers."""
        published = command(b"PUBLISH", self._names.all, pack_message(self._address, token, message))
        self._open().send(published, _ignore, control=True)

    def _arrived(self, channel: bytes, published: bytes) -> None:
        unpacked = unpack_message(published)
        if unpacked is None or self._listener is None:
            self.ignored += 1
        elif channel == self._names.all:
            self._listener.overheard(*unpacked)
        else:
            self._listener.arrived(*unpacked)

    def _open(self) -> RedisConnection:
        if self._connection is None:
            raise CallError(ErrorCode.UNAVAILABLE, f"not connected to {self.name}")
        return self._connection


def _ignore(_: Any) -> None:
    """Ignore a reply."""


class RedisTransport(BrokerTransport):
    """A `Transport` over a Redis server, the primary that Sentinels elect, or a server of a cluster.

        async with PendingRequestMap(RedisTransport("redis://127.0.0.1:6379")) as calls:
            await calls.call("math.add", {"a": 1, "b": 2})

    The URL starts with `redis://`, `rediss://` (TLS; `ssl` overrides the default context) or `unix://`, or is
    `redis+sentinel://host1,host2,host3/service` (`rediss+sentinel://`: TLS to Sentinels and servers). User and password
    of the Sentinels are `?sentinel_user=…&sentinel_password=…`. Of a cluster, `redis+cluster://host1,host2` (or
    `rediss+cluster://`), one server is used: that of the prefix. Peers with the same `prefix` on the same database
    reach each other. A server that misses three beats of `heartbeat` seconds gets no more requests, and its calls in
    flight fail.

    Raises:
        UsageError: the URL is invalid.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        prefix: str = "opwire",
        heartbeat: float = 1.0,
        max_message: int = MAX_MESSAGE,
        ssl: SSLContext | None = None,
        signed: RequestSigner | None = None,
    ) -> None:
        connection = RedisBrokerConnection(parse_servers(url, ssl, prefix=prefix), prefix=prefix, heartbeat=heartbeat)
        super().__init__(connection, heartbeat=heartbeat, max_message=max_message, signed=signed)
