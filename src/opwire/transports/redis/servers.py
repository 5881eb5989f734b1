"""The servers behind a URL: one server, a service with a primary that Sentinels elect, or a cluster.

In a cluster, the keys with one prefix have one hash tag: they are in one slot, and its server is the primary.

A primary may change at any time, so its address is looked up before each connection: all servers that know it are asked
at the same time, and the address of the latest election is used. A server that was cut off knows an earlier one. The
connection then checks that the server is a primary.
"""

import asyncio
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from random import choice
from ssl import SSLContext
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.runtime.deadlines import back_off
from opwire.runtime.text import get_logger
from opwire.transports.redis.connection import INVALID_URL, RedisConnection, RedisServers, Target, command, parse_url

logger = get_logger("opwire.transports.redis")

LOOKUP_TIMEOUT = 2.0  # seconds for each server that is asked, so that there is time to connect to the primary
_SECONDS_FOR_OTHER_ANSWERS = 0.3  # after the first
_SECONDS_BETWEEN_LOOKUPS = 30.0  # while no election is announced: an announcement may get lost
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds before another Sentinel is asked for announcements
_SECONDS_BETWEEN_SLOT_CHECKS = 1.0
_SLOTS = 16384
_MAX_NODES_PER_LOOKUP = 16
_SENTINEL_PORT = 26379
_MAX_HOST_LENGTH = 253


class Election(NamedTuple):
    """The address of a primary, and the number of its election: a later one has a higher number."""

    epoch: int
    host: str
    port: int

    @classmethod
    def of(cls, epoch: Any, host: Any, port: Any) -> "Election":
        """Check the values that a server has sent.

        Raises:
            ValueError: one is invalid.
        """
        election = cls(int(epoch), host.decode("ascii"), int(port))
        if not (0 < len(election.host) <= _MAX_HOST_LENGTH and 0 < election.port < 65536):
            raise ValueError
        return election


class ElectedPrimary(RedisServers, ABC):
    """A primary at an address that `servers` know; `primary_options` are its credentials and TLS options."""

    def __init__(self, name: str, servers: Iterable[Target], primary: Target) -> None:
        self.servers: list[Target] = list(servers)
        self.primary_options = primary
        self._name = f"{name} at {', '.join(server.address for server in self.servers)}"

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return self._name

    @abstractmethod
    async def look_up(self, connection: RedisConnection) -> Election:
        """Ask one server.

        Raises:
            CallError: UNAVAILABLE.
            AttributeError, TypeError, ValueError: an invalid reply.
        """

    @abstractmethod
    async def watch(self, connection: RedisConnection) -> None:
        """Return when a connection is not to the primary any more."""

    async def primary(self) -> Target:
        """Return the primary of the latest election that is known to a server that answers.

        Raises:
            CallError: UNAVAILABLE, with the reason of each server.
        """
        lookups = {asyncio.ensure_future(self._ask(server)) for server in self.servers}
        elections, failures, pending = list[Election](), dict[str, None](), lookups
        try:
            while pending:
                patience = _SECONDS_FOR_OTHER_ANSWERS if elections else None
                done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for answer in (lookup.result() for lookup in done):
                    if isinstance(answer, Election):
                        elections.append(answer)
                    else:
                        failures[answer] = None
        finally:
            for lookup in lookups:
                lookup.cancel()
            await asyncio.wait(lookups)
        if not elections:
            raise CallError(ErrorCode.UNAVAILABLE, "; ".join(failures))
        latest_election = max(elections)
        return replace(self.primary_options, host=latest_election.host, port=latest_election.port)

    async def _ask(self, server: Target) -> Election | str:
        """Return the election that a server knows, or why it does not answer."""
        connection = RedisConnection(server, _ignore, _ignore)
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT):
                await connection.open()
                return await self.look_up(connection)
        except TimeoutError:
            return f"{server.name} does not answer within {LOOKUP_TIMEOUT:g} s"
        except CallError as error:
            return error.message
        except (AttributeError, TypeError, ValueError):
            return f"{server.name} returned an invalid address"
        finally:
            await connection.close()

    def follow(self, connection: RedisConnection) -> None:
        """Abort an open connection as soon as another server is the primary."""

        async def abort() -> None:
            await self.watch(connection)
            connection.abort("another server has become the primary")

        connection.attach(abort())


class Sentinels(ElectedPrimary):
    """The Sentinels that monitor a service."""

    def __init__(self, service: str, sentinels: Iterable[Target], primary: Target) -> None:
        super().__init__(f"the Redis service {service!r} of the Sentinels", sentinels, primary)
        self._service = service.encode()

    async def look_up(self, connection: RedisConnection) -> Election:
        """Ask one Sentinel."""
        name = connection.target.name
        if (await connection.hello()).get(b"mode") != b"sentinel":
            raise CallError(ErrorCode.UNAVAILABLE, f"{name} is not a Sentinel: connect to it with redis://")
        (address,) = await connection.ask(command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service))
        if address is None:
            unknown = f"{name} does not monitor {self._service.decode()!r}: see `sentinel monitor` in its configuration"
            raise CallError(ErrorCode.UNAVAILABLE, unknown)
        (state,) = await connection.ask(command(b"SENTINEL", b"MASTER", self._service))
        return Election.of(state[b"config-epoch"], *address)

    async def watch(self, connection: RedisConnection) -> None:
        """Return when a Sentinel announces another primary.

        Sentinels demote a primary that is still running no earlier than eight seconds after its replica took over. What
        is written to it in this time is lost.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._watch_by(choice(self.servers), connection)  # noqa: S311
                return
            except (CallError, TimeoutError) as error:
                logger.debug("no announcements of %s: %s", self.name, error)
            await asyncio.sleep(back_off(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))

    async def _watch_by(self, server: Target, connection: RedisConnection) -> None:
        news = asyncio.Event()
        sentinel = RedisConnection(
            server,
            lambda _, message: news.set() if message.split(b" ", 1)[0] == self._service else None,
            lambda _: news.set(),
        )
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT):
                await sentinel.open()
                await sentinel.hello()
                await sentinel.ask(command(b"SUBSCRIBE", b"+switch-master"))
            while (await self.primary()).address == connection.target.address:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SECONDS_BETWEEN_LOOKUPS):
                        await news.wait()
                news.clear()
                async with asyncio.timeout(LOOKUP_TIMEOUT):
                    await sentinel.ask(command(b"PING"))
        finally:
            await sentinel.close()


class ClusterNodes(ElectedPrimary):
    """The servers of a cluster: the configured ones, and those that the last lookup has found."""

    def __init__(self, nodes: Iterable[Target], primary: Target, prefix: str) -> None:
        if not prefix or set(prefix) & set("{}"):
            raise UsageError("a prefix in a Redis Cluster is not empty and has no braces")
        super().__init__("the Redis Cluster", nodes, primary)
        self._configured = list(self.servers)
        self._tag = prefix
        self._slot = crc_hqx(prefix.encode(), 0) % _SLOTS

    def key_prefix(self, prefix: str) -> str:
        """Return the prefix as a hash tag, which keeps all keys in one slot."""
        return f"{{{prefix}}}"

    async def channel_prefix(self, connection: RedisConnection, prefix: str) -> str:
        """Return a prefix with the id of the server.

        A cluster passes published messages on to subscribers at its other servers, and does not count these: a request
        that was given to a server of an operation there would be given to another one as well.
        """
        (id,) = await connection.ask(command(b"CLUSTER", b"MYID"))
        return f"{self.key_prefix(prefix)}:{id.decode()}"

    async def look_up(self, connection: RedisConnection) -> Election:
        """Ask one server of the cluster."""
        target = connection.target
        if (await connection.hello()).get(b"mode") != b"cluster":
            wrong = f"{target.name} is not part of a cluster: connect to it with redis://"
            raise CallError(ErrorCode.UNAVAILABLE, wrong)
        (reply,) = await connection.ask(command(b"CLUSTER", b"NODES"))
        owner: Election | None = None
        nodes = list[Target]()
        for line in reply.splitlines():
            _, address, flags, _, _, _, epoch, _, *slots = line.split(b" ")
            # <ip>:<port>@<port of the bus>[,<hostname>]; a server may not know its own IP.
            place, _, name = address.partition(b",")
            ip, _, port = place.partition(b"@")[0].rpartition(b":")
            if b"fail" in flags.split(b",") or b"noaddr" in flags:
                continue
            election = Election.of(epoch, name.split(b",")[0] or ip or target.host.encode(), port)
            nodes.append(replace(target, host=election.host, port=election.port))
            if b"master" in flags and any(self._has(slot_range) for slot_range in slots):
                owner = election
        self.servers = list({node.address: node for node in (*self._configured, *nodes)}.values())[
            :_MAX_NODES_PER_LOOKUP
        ]
        if owner is None:
            raise CallError(ErrorCode.UNAVAILABLE, f"{target.name} knows no server for the slot {self._slot}")
        return owner

    def _has(self, slots: bytes) -> bool:
        """Return whether a range contains our slot; `[93-<-…]` is one that is moving."""
        if slots.startswith(b"["):
            return False
        first, _, last = slots.partition(b"-")
        return int(first) <= self._slot <= int(last or first)

    async def watch(self, connection: RedisConnection) -> None:
        """Return when the slot has moved: a server that was demoted keeps its connections."""
        key = command(b"EXISTS", f"{self.key_prefix(self._tag)}:slot")
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_SLOT_CHECKS)
            try:
                await connection.ask(key)
            except CallError as error:
                if "(MOVED)" in error.message:
                    return


# --- the URL ----------------------------------------------------------------------------------------------------------


def parse_servers(url: str, ssl: SSLContext | None = None, *, prefix: str = "opwire") -> RedisServers:
    """Parse the URL of a Redis server, of Sentinels and their service, or of a cluster.

    `ssl` overrides the default TLS context. The keys with `prefix` decide on the server of a cluster.

    Raises:
        UsageError: the URL is invalid. The message does not repeat it: it may contain a password.
    """
    scheme, _, address = url.partition("://")
    plain, plus, kind = scheme.partition("+")
    if not plus:
        return parse_url(url, ssl)
    authority, _, tail = address.partition("/")
    path, _, query = tail.partition("?")
    login, at, hosts = authority.rpartition("@")
    service, _, db = path.partition("/")
    try:
        options = dict(parse_qsl(query, strict_parsing=bool(query)))
        if plain not in ("redis", "rediss") or kind not in ("sentinel", "cluster") or "#" in address:
            raise ValueError
        if bool(service) != (kind == "sentinel") or (query and not service):
            raise ValueError
        if not all(hosts.split(",")) or options.keys() - {"sentinel_user", "sentinel_password"}:
            raise ValueError
    except ValueError:
        raise UsageError(INVALID_URL) from None
    primary = parse_url(f"{plain}://{login}{at}/{db}", ssl)
    if kind == "cluster":
        nodes = [parse_url(f"{plain}://{login}{at}{host}", primary.ssl) for host in hosts.split(",")]
        return ClusterNodes(nodes, primary, prefix)
    options_of_sentinels = {
        "kind": "Sentinel",
        "user": options.get("sentinel_user"),
        "password": options.get("sentinel_password"),
    }
    sentinels = [parse_url(f"{plain}://{host}", primary.ssl, port=_SENTINEL_PORT) for host in hosts.split(",")]
    return Sentinels(unquote(service), [replace(sentinel, **options_of_sentinels) for sentinel in sentinels], primary)


def _ignore(*_: object) -> None:
    """Ignore a message, or the end of a connection."""
