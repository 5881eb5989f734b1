"""The engines that calls run over between processes, each with its real server.

    with ENGINES["nats"].start() as server:
        transport = ENGINES["nats"].connect(server.url)

A transport reaches its server through a `FaultProxy` when its URL is `through(proxy, server.url)`.
"""

import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opwire.protocol import Transport
from tests.servers.brokers import HOST, ROOT, NatsServer, RedisServer, Server
from tests.servers.faults import FaultProxy
from tests.servers.worker import connect

BEAT = 0.2
"""Seconds between two beats in these tests, so that what is silent is given up after half a second."""


class RelayServer(Server):
    """A process with a `WebSocketServer` that serves nothing itself and passes calls on between its clients."""

    program = "env"  # `python` on PATH may be another one, and has to find the tests

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = {"heartbeat": BEAT} | options

    @property
    def url(self) -> str:
        return f"ws://{HOST}:{self.port}"

    def _config(self, port: int, folder: Path) -> str:
        return json.dumps(self._options | {"host": HOST, "port": port})

    def _arguments(self, config: Path) -> list[str]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return [f"PYTHONPATH={path}", sys.executable, "-m", "tests.transports.faults.relay", str(config)]

    def _answers(self, connection: socket.socket) -> bool:
        return f"ready {self.pid}\n" in self.log


@dataclass(frozen=True)
class Engine:
    """One engine. `settings` are those of its server: what tests with quick beats need."""

    name: str
    server: type[Server]
    settings: dict[str, Any]

    def start(self, **settings: Any) -> Server:
        """A server of its own for one test, to be used as a context manager."""
        return self.server(**self.settings | settings)

    def connect(self, url: str, **options: Any) -> Transport:
        """An end, not started yet. The options are those of the transport."""
        return connect(self.name, url, **{"heartbeat": BEAT} | options)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("redis", RedisServer, {}),
        # NATS gives a frozen client its share of the requests until its own pings go unanswered: minutes otherwise.
        Engine("nats", NatsServer, {"ping_interval": f"{BEAT * 1000:g}ms", "ping_max": 2}),
        Engine("websocket", RelayServer, {}),
    )
}


def through(proxy: FaultProxy, url: str) -> str:
    """The URL of a server through a proxy."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}{at}{HOST}:{proxy.port}").geturl()
