"""Redis as people run it: a primary, a replica and Sentinels, or a cluster."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tests.servers.brokers import HOST, RedisServer
from tests.transports.redis.ends import ask

NAME = "main"
PATIENCE = 30.0
"""Seconds within which servers find each other, or elect a primary, on a busy machine."""


class SentinelServer(RedisServer):
    """`redis-server --sentinel`. It monitors a service named `main` at a port, where there need not be a server."""

    def __init__(
        self, port: int, *, quorum: int = 1, epoch: int = 0, password: str | None = None, auth: str | None = None
    ) -> None:
        super().__init__(password=password)
        self._lines = [
            f"sentinel monitor {NAME} {HOST} {port} {quorum}",
            f"sentinel down-after-milliseconds {NAME} 400",
            f"sentinel failover-timeout {NAME} 4000",
            f"sentinel config-epoch {NAME} {epoch}",
            *([] if auth is None else [f'sentinel auth-pass {NAME} "{auth}"']),
            *([] if password is None else [f'requirepass "{password}"']),
        ]

    def _config(self, port: int, folder: Path) -> str:
        return "\n".join([f"bind {HOST}", f"port {port}", f"dir {folder}", *self._lines, ""])

    def _arguments(self, config: Path) -> list[str]:
        return [str(config), "--sentinel"]


class RedisService:
    """A primary, a replica, and Sentinels that have found each other.

    with RedisService() as service:
        connect(service.url)
        service.primary.kill()
    """

    def __init__(
        self, *, sentinels: int = 3, password: str | None = None, sentinel_password: str | None = None
    ) -> None:
        self._number = sentinels
        self._password = password
        self._sentinel_password = sentinel_password
        self._stack = ExitStack()
        self.servers: list[RedisServer] = []
        self.sentinels: list[SentinelServer] = []

    def __enter__(self) -> Self:
        with self._stack:
            settings: dict[str, Any] = {"password": self._password, "repl_diskless_sync_delay": "0"}
            if self._password is not None:
                settings["masterauth"] = f'"{self._password}"'
            primary = self._stack.enter_context(RedisServer(**settings))
            replica = self._stack.enter_context(RedisServer(**settings, replicaof=f"{HOST} {primary.port}"))
            self.servers = [primary, replica]
            until("the replica is in step", lambda: b"master_link_status:up" in ask(replica, "INFO", "replication"))
            quorum = self._number // 2 + 1
            passwords: dict[str, Any] = {"password": self._sentinel_password, "auth": self._password}
            self.sentinels = [
                self._stack.enter_context(SentinelServer(primary.port, quorum=quorum, **passwords))
                for _ in range(self._number)
            ]
            for each in self.sentinels:
                until("the Sentinels know the replica, and each other", lambda each=each: self._is_ready(each))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _is_ready(self, sentinel: SentinelServer) -> bool:
        state = self._state(sentinel)
        replicas = [
            dict(zip(each[::2], each[1::2], strict=True)) for each in ask(sentinel, "SENTINEL", "REPLICAS", NAME)
        ]
        others = int(state[b"num-other-sentinels"])
        return others == self._number - 1 and [each[b"flags"] for each in replicas] == [b"slave"]

    def _state(self, sentinel: SentinelServer) -> dict[bytes, bytes]:
        values = ask(sentinel, "SENTINEL", "MASTER", NAME)
        return dict(zip(values[::2], values[1::2], strict=True))

    @property
    def url(self) -> str:
        """What a client connects to."""
        login = "" if self._password is None else f":{quote(self._password, safe='')}@"
        option = "" if self._sentinel_password is None else f"?sentinel_password={quote(self._sentinel_password)}"
        hosts = ",".join(f"{HOST}:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{login}{hosts}/{NAME}{option}"

    @property
    def primary(self) -> RedisServer:
        """The primary, as the first Sentinel knows it."""
        port = int(self._state(self.sentinels[0])[b"port"])
        return next(each for each in self.servers if each.port == port)

    @property
    def successor(self) -> RedisServer:
        """The replica of the primary."""
        return next(each for each in self.servers if each is not self.primary)

    def switch(self) -> None:
        """Begin a planned failover: the old primary goes on, and is not demoted until eight seconds later."""
        assert ask(self.sentinels[1], "SENTINEL", "FAILOVER", NAME) == b"OK"


def replicate(service: "RedisService | RedisCluster") -> None:
    """Return when the replica has everything that was written until now."""
    written = _offset(service.primary, b"master_repl_offset")
    until("it is replicated", lambda: _offset(service.successor, b"slave_repl_offset") >= written)


def _offset(server: RedisServer, name: bytes) -> int:
    lines = ask(server, "INFO", "replication").splitlines()
    return int(next(line for line in lines if line.startswith(name + b":")).split(b":")[1])


def until(what: str, condition: Any) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


class RedisCluster:
    """Three primaries that share the slots, and a replica of the one that has the keys of a prefix."""

    def __init__(self, prefix: str = "opwire") -> None:
        self._prefix = prefix
        self._stack = ExitStack()
        self.servers: list[RedisServer] = []

    def __enter__(self) -> Self:
        with self._stack:
            settings: dict[str, Any] = {
                "cluster_enabled": "yes",
                "cluster_node_timeout": "1000",
                "repl_diskless_sync_delay": "0",
            }
            self.servers = [self._stack.enter_context(RedisServer(**settings)) for _ in range(4)]
            first, *others = self.servers
            for number, each in enumerate(self.servers[:3]):
                ask(each, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                ask(each, "CLUSTER", "ADDSLOTS", *range(number * 16384 // 3, (number + 1) * 16384 // 3))
            for each in others:
                ask(first, "CLUSTER", "MEET", HOST, each.port)
            until("the cluster is complete", lambda: all(self._knows_all(each) for each in self.servers))
            assert ask(self.successor, "CLUSTER", "REPLICATE", ask(self.primary, "CLUSTER", "MYID")) == b"OK"
            until(
                "the replica is in step", lambda: b"master_link_status:up" in ask(self.successor, "INFO", "replication")
            )
            until("all know the replica", lambda: all(self._has_replica(each) for each in self.servers))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _knows_all(self, server: RedisServer) -> bool:
        about = ask(server, "CLUSTER", "INFO")
        return b"cluster_state:ok" in about and b"cluster_known_nodes:4" in about

    def _has_replica(self, server: RedisServer) -> bool:
        return ask(server, "CLUSTER", "NODES").count(b"slave") == 1

    @property
    def url(self) -> str:
        """What a client connects to: two servers, of which one has not got the keys."""
        return f"redis+cluster://{HOST}:{self.servers[0].port},{HOST}:{self.servers[1].port}"

    @property
    def primary(self) -> RedisServer:
        """The server that has the keys of the prefix at first."""
        slot = ask(self.servers[0], "CLUSTER", "KEYSLOT", self._prefix)
        return self.servers[slot * 3 // 16384]

    @property
    def successor(self) -> RedisServer:
        """The replica of that server."""
        return self.servers[3]

    def switch(self) -> None:
        """Begin a planned failover: the old primary goes on, as a replica."""
        assert ask(self.successor, "CLUSTER", "FAILOVER") == b"OK"
