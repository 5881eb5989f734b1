"""Three NATS servers that have found each other."""

import json
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.servers.brokers import HOST, PORTS, NatsServer

PATIENCE = 30.0
"""Seconds for servers to find each other, on a busy machine."""


@contextmanager
def nats_cluster(**settings: Any) -> Iterator[list[NatsServer]]:
    """Start three servers; each tells its clients of the others."""
    ports = secrets.SystemRandom().sample(PORTS, 3)
    routes = [f"nats://{HOST}:{port}" for port in ports]
    clusters = [{"name": "three", "host": HOST, "port": port, "routes": routes} for port in ports]
    with ExitStack() as stack:
        servers = [stack.enter_context(NatsServer(cluster=each, **settings)) for each in clusters]
        deadline = time.monotonic() + PATIENCE
        while not all(_told(server) == {each.port for each in servers} for server in servers):
            assert time.monotonic() < deadline, "the servers have not found each other"
            time.sleep(0.02)
        yield servers


def _told(server: NatsServer) -> set[int]:
    """The ports of the servers that a server tells its clients of."""
    with socket.create_connection((HOST, server.port), timeout=5) as connection, connection.makefile("rb") as lines:
        info = json.loads(lines.readline().partition(b" ")[2])
    return {int(each.rpartition(":")[2]) for each in info.get("connect_urls", [])}
