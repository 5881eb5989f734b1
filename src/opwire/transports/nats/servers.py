"""The servers of a NATS cluster that we know of: those that we were given, and those that they tell us of. No I/O."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from urllib.parse import unquote, urlsplit

from opwire.errors import CallError, ErrorCode
from opwire.transports.nats.credentials import Credentials

_PORT = 4222
_MAX_FOUND = 64  # servers of a cluster that are remembered: each costs an attempt when all are away
_MAX_HOST = 253  # characters of a DNS name


@dataclass(frozen=True)
class Server:
    """One server. Shown without user and password."""

    host: str
    port: int = _PORT
    tls: bool = False
    credentials: Credentials | None = None  # from the URL; they go before those that are meant for every server
    tls_name: str | None = None  # whom its certificate is for, where that is not the host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


class Servers:
    """Where to connect. The names of servers that others told us of replace those that they told us of before."""

    def __init__(self, urls: str | Iterable[str]) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise CallError(ErrorCode.VALIDATION_ERROR, "there is no NATS server to connect to: give at least one URL")
        self._given = [parse_server(url) for url in given]
        self._found: list[Server] = []

    def __str__(self) -> str:
        return ", ".join(map(str, self._given))

    def in_turn(self) -> list[Server]:
        """All of them in random order, so that the clients of a server that died spread over the others."""
        places = {(server.host, server.port): server for server in (*self._found, *self._given)}
        return random.sample(list(places.values()), len(places))

    def learn(self, teller: Server, places: Iterable[str]) -> None:
        """Remember the neighbours that a server names, as `host:port`. They are reached the way that it was."""
        # Certificates are for names, and neighbours are named by their numbers.
        name = teller.tls_name or teller.host
        self._found = []
        for place in islice(places, _MAX_FOUND):
            try:
                found = parse_server(place)
            except CallError:
                continue  # whatever it is, we have others
            if len(found.host) > _MAX_HOST:
                continue
            self._found.append(replace(teller, host=found.host, port=found.port, tls_name=name))


def parse_server(url: str) -> Server:
    """The server of `nats://user:password@host:port`, `nats://token@host`, `tls://host` or `host:port`.

    Raises:
        CallError: VALIDATION_ERROR. The message does not show user and password.
    """
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        host, port, parts = None, _PORT, urlsplit("")
    if not host or parts.scheme not in ("nats", "tls"):
        shown = url.rpartition("@")[2][:80]
        wrong = f"{shown!r} is no URL of a NATS server: write nats://host:4222, or tls://host:4222"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
    credentials = None
    if parts.password is not None:
        credentials = Credentials(user=unquote(parts.username or ""), password=unquote(parts.password))
    elif parts.username:
        credentials = Credentials(token=unquote(parts.username))
    return Server(host, port, tls=parts.scheme == "tls", credentials=credentials)
