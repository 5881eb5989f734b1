"""One connection to one NATS server.

Everything is written through one queue, so a PONG says that the server has done what was written before its PING. That
is the only barrier there is; subscriptions, withdrawals and the end of a connection wait for it.

How this end proves who it is: the fields of CONNECT. No I/O but the reading of a credentials file.

A password, a token, a `.creds` file (a JWT, and the key that belongs to it) or a file with the seed of an NKEY. The key
never leaves this process: it signs a number that the server makes for each connection.

The servers of a NATS cluster that we know of: those that we were given, and those that they tell us of. No I/O.
"""

import asyncio
import random
import re
import ssl as tls
from base64 import b32decode, b32encode, urlsafe_b64encode
from binascii import Error, crc_hqx
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import opwire
from opwire.errors import CallError, ErrorCode
from opwire.transports.link import Link
from opwire.transports.nats.protocol import (
    PING,
    PONG,
    Complaint,
    Control,
    Info,
    Message,
    Parser,
    Ping,
    Pong,
    connect,
)

_SEED, _USER = 18 << 3, 20 << 3  # what an NKEY's first bits say: a seed; of a user
_BLOCK = re.compile(r"-{3,}BEGIN [A-Z ]*(JWT|SEED)-{3,}\s+(\S+)\s+-{3,}END")


@dataclass(frozen=True)
class Credentials:
    """What was given. Nothing of it is shown when this is printed."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    file: str | PathLike[str] | None = None

    def fields(self, nonce: str) -> dict[str, object]:
        """The fields of CONNECT. A file is read again each time, since it may have been replaced.

        Raises:
            CallError: UNAVAILABLE, if the file cannot be used.
        """
        if self.file is not None:
            return _signed(self.file, nonce)
        if self.token is not None:
            return {"auth_token": self.token}
        if self.user is not None:
            return {"user": self.user, "pass": self.password or ""}
        return {}


def _signed(file: str | PathLike[str], nonce: str) -> dict[str, object]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"the credentials in {file} cannot be read: {error}") from error
    blocks = {match[1]: match[2] for match in _BLOCK.finditer(text)}
    try:
        public, signature = sign(blocks.get("SEED") or text.strip(), nonce)
    except ValueError as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"{file} holds no usable credentials: {error}") from error
    return {"sig": signature, **({"jwt": blocks["JWT"]} if "JWT" in blocks else {"nkey": public})}


def sign(seed: str, nonce: str) -> tuple[str, str]:
    """The public NKEY that belongs to a seed, and its signature of the server's number.

    Raises:
        ValueError: it is not a user's seed. The message does not show it.
        CallError: UNAVAILABLE, if the package that can sign is missing.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        missing = "NKEYs need the package cryptography: pip install 'opwire[nats]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing) from error
    key = Ed25519PrivateKey.from_private_bytes(_key_of(seed))
    public = bytes([_USER]) + key.public_key().public_bytes_raw()
    signature = key.sign(nonce.encode("ascii", "replace"))
    return _b32(public + _checksum(public)), urlsafe_b64encode(signature).rstrip(b"=").decode()


def _key_of(seed: str) -> bytes:
    try:
        raw = b32decode(seed + "=" * (-len(seed) % 8))
    except (Error, ValueError):
        raise ValueError("it is not an NKEY seed, which begins with SU and has 58 characters") from None
    if len(raw) != 36 or _checksum(raw[:-2]) != raw[-2:]:
        raise ValueError("the seed was mistyped or cut: its checksum is wrong")
    kind, owner = raw[0] & 0xF8, (raw[0] & 7) << 5 | raw[1] >> 3
    if kind != _SEED or owner != _USER:
        raise ValueError("it is not the seed of a user, which begins with SU")
    return raw[2:-2]


def _checksum(raw: bytes) -> bytes:
    return crc_hqx(raw, 0).to_bytes(2, "little")


def _b32(raw: bytes) -> str:
    return b32encode(raw).rstrip(b"=").decode()


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


TRY = 2.0
"""Seconds for one server, so that there is time for another."""

_SILENCE = 2  # beats without a sign of life, after which a server is given up
_COMPLAINTS = 100  # that are kept while a barrier waits
_FLUSH = 1.0  # seconds that the server has to confirm the last things that were sent

_WHO_WE_ARE: dict[str, object] = {
    "name": "opwire",
    "lang": "python",
    "version": opwire.__version__,
    "protocol": 1,  # we understand an INFO that comes later
    "headers": True,
    "no_responders": True,  # say so when nobody has subscribed, instead of saying nothing
    "echo": True,  # an end may call itself
    "verbose": False,
    "pedantic": False,
}

_ADVICE = {
    "authorization violation": "give the user and password, the token or the credentials that it knows",
    "authentication timeout": "the machine or the network is too slow for its `authorization.timeout`",
    "maximum connections exceeded": "raise its `max_connections`",
    "maximum subscriptions exceeded": "raise its `max_subscriptions`",
    "permissions violation": "allow it in the permissions of this user",
    "secure connection": "connect with tls://",
}


@dataclass(frozen=True)
class Security:
    """What is the same for every server: who we are, and whom we believe."""

    credentials: Credentials
    ssl: tls.SSLContext | None = None
    tls_first: bool = False

    @cached_property
    def context(self) -> tls.SSLContext:
        """How certificates are checked."""
        return self.ssl or tls.create_default_context()


class Owner(Protocol):
    """Whoever uses a connection. Its methods return at once and raise nothing."""

    def delivered(self, message: Message) -> None:
        """A message arrived."""
        ...

    def informed(self, info: Info) -> None:
        """The server says something new about itself."""
        ...

    def complained(self, text: str) -> None:
        """The server did not do something. The connection may live on."""
        ...

    def dropped(self, reason: str) -> None:
        """The connection, which was open, is gone."""
        ...


class _Barrier:
    """Somebody waits for a PONG, and wants to know what the server complained about meanwhile."""

    def __init__(self) -> None:
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.complaints: list[str] = []


class Connection:
    """A connection that is open from the return of `open` until `Owner.dropped` or `close`."""

    def __init__(self, server: Server, owner: Owner) -> None:
        self.server = server
        self._owner = owner
        self._parser = Parser()
        self._greeting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs: deque[_Barrier | None] = deque()  # one for each PING that is on its way; None: of a beat
        self._silent = 0  # beats since the server was last heard of
        self._complaint = ""  # the server's last word: if the connection ends after it, that is why
        self._open = False
        self.info = Info()  # what the server said of itself last
        self.link = Link(self._receive, self._lost)

    # --- opening ------------------------------------------------------------------------------------------------------

    async def open(self, security: Security, subscriptions: bytes) -> None:
        """Connect, say who we are, and subscribe.

        Raises:
            CallError: UNAVAILABLE, if the server cannot be reached or refuses.
        """
        try:
            await self._greet(security)
            fields = (self.server.credentials or security.credentials).fields(self.info.nonce)
            self.link.control(connect(_WHO_WE_ARE | fields) + subscriptions)
            complaints = await self.barrier()
            if complaints:
                raise self._refused(complaints[0])
            self._open = True
        except (OSError, ValueError) as error:  # the latter: a host that no name server could be asked for
            raise self._unavailable(f"cannot be reached: {error}") from error
        finally:
            if not self._open:
                self.link.abort("it could not be opened")

    async def _greet(self, security: Security) -> None:
        """Connect, and hear what the server says first; with TLS, where either side wants it."""
        server, loop = self.server, asyncio.get_running_loop()
        name = server.tls_name or server.host
        first = (security.context, name) if security.tls_first else (None, None)
        transport, _ = await loop.create_connection(
            lambda: self.link, server.host, server.port, ssl=first[0], server_hostname=first[1]
        )
        await self._greeting
        info = self.info
        if not info.headers:
            raise self._unavailable("is too old: opwire needs nats-server 2.2 or newer")
        wanted = server.tls or security.ssl is not None
        if wanted and not (security.tls_first or info.tls_required or info.tls_available):
            raise self._unavailable("does not offer TLS, which was asked for")  # and gets no password from us
        if not security.tls_first and (wanted or info.tls_required):
            secured = await loop.start_tls(transport, self.link, security.context, server_hostname=name)
            if secured is None:
                raise self._unavailable("closed the connection during the TLS handshake")
            self.link.connection_made(secured)

    def _refused(self, complaint: str) -> CallError:
        advice = next((advice for what, advice in _ADVICE.items() if what in complaint.lower()), None)
        return self._unavailable(f"refused: {complaint}" + (f" ({advice})" if advice else ""))

    def _unavailable(self, what: str) -> CallError:
        return CallError(ErrorCode.UNAVAILABLE, f"{self.server} {what}")

    # --- what the owner asks for --------------------------------------------------------------------------------------

    async def barrier(self) -> list[str]:
        """Wait until the server has done all that was written so far. What it complained about meanwhile.

        Raises:
            CallError: UNAVAILABLE, if the connection is gone; RATE_LIMITED.
        """
        self.link.control(PING)
        barrier = _Barrier()
        self._pongs.append(barrier)
        await barrier.passed
        return barrier.complaints

    def beat(self) -> None:
        """Ask for a sign of life; end the connection if there was none since the last but one."""
        if self._silent >= _SILENCE:
            self.link.abort(f"{self.server} does not answer")
            return
        self._silent += 1
        with suppress(CallError):  # it is gone, or does not read: both will be noticed
            self.link.control(PING)
            self._pongs.append(None)

    async def close(self) -> None:
        """See that all that was written has arrived, and end the connection; `dropped` is not called any more."""
        self._open = False
        with suppress(CallError, TimeoutError):
            async with asyncio.timeout(_FLUSH):
                await self.barrier()
        await self.link.close(grace=0.5)

    # --- what arrives -------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        self._silent, self._complaint = 0, ""
        deliver = self._owner.delivered
        for event in self._parser.feed(data):
            if type(event) is Message:  # nearly all are
                deliver(event)
            else:
                self._handle(event)

    def _handle(self, event: Control) -> None:
        match event:
            case Ping():
                self.link.urgent(PONG)
            case Pong():
                self._ponged()
            case Info():
                self._informed(event)
            case Complaint():
                self._complained(event.text)

    def _informed(self, info: Info) -> None:
        self.info = info
        if not self._greeting.done():
            self._greeting.set_result(None)
        elif self._open:
            self._owner.informed(info)

    def _ponged(self) -> None:
        barrier = self._pongs.popleft() if self._pongs else None
        if barrier is not None and not barrier.passed.done():
            barrier.passed.set_result(None)

    def _complained(self, text: str) -> None:
        self._complaint = text
        for barrier in self._pongs:
            if barrier is not None and len(barrier.complaints) < _COMPLAINTS:
                barrier.complaints.append(text)
        if self._open:
            self._owner.complained(text)

    def _lost(self, reason: str) -> None:
        if self._complaint:
            reason = f"{reason}: {self._complaint}"
        error = self._refused(self._complaint) if self._complaint else self._unavailable(f"is gone: {reason}")
        for future in (self._greeting, *(barrier.passed for barrier in self._pongs if barrier is not None)):
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: asyncio would complain where nobody has waited yet
        self._pongs.clear()
        if self._open:
            self._open = False
            self._owner.dropped(reason)


async def open_any(servers: Servers, owner: Owner, security: Security, subscriptions: bytes) -> Connection:
    """Connect to the first server that lets us.

    Raises:
        CallError: UNAVAILABLE, with what each of them said.
    """
    failures: dict[str, None] = {}
    for server in servers.in_turn():
        connection = Connection(server, owner)
        try:
            async with asyncio.timeout(TRY):
                await connection.open(security, subscriptions)
        except TimeoutError:
            failures[f"{server} does not answer within {TRY:g} s"] = None
        except CallError as error:
            failures[error.message] = None
        else:
            return connection
    raise CallError(ErrorCode.UNAVAILABLE, "; ".join(failures))
