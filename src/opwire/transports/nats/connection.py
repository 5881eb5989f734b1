"""One connection to one NATS server: the protocol, credentials, the servers of a cluster, and the connection itself.

Credentials are a password, a token, a `.creds` file (a JWT and its key) or a file with the seed of an NKEY. The key
never leaves this process: it signs a nonce that the server creates for each connection.

All writes go through one queue, so a PONG means that the server has processed everything before its PING. That is the
only barrier of the protocol; subscribing, unsubscribing and closing wait for it.
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
from typing import Protocol, final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode, UsageError, needs_extra, system_message
from opwire.runtime.tasks import resolve
from opwire.transports.link import Link
from opwire.version import VERSION

# --- the protocol -----------------------------------------------------------------------------------------------------

MAX_LINE_BYTES = 32 * 1024  # INFO lists every server of a cluster, other lines have a few hundred
MAX_PAYLOAD = 64 * 1024 * 1024  # bytes: the maximum that a NATS server can be configured for

PING = b"PING\r\n"
PONG = b"PONG\r\n"

_CRLF = b"\r\n"
_MESSAGES = frozenset(("MSG", "HMSG"))
_STATUS = re.compile(rb"NATS/1\.0 ([0-9]{3})(?![0-9])")


@final
class Message(Struct, frozen=True, gc=False):
    """MSG or HMSG. Of the headers only the status is decoded: 503 means that the subject has no subscriber."""

    subject: str
    sid: str
    reply: str
    payload: bytes
    status: int = 0


class Info(Struct, frozen=True):
    """INFO: properties of the server. It is the first event of a connection, and may be sent again."""

    server_name: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int = 1024 * 1024
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    connect_urls: list[str] = []
    ldm: bool = False  # "lame duck mode": the server is about to shut down
    jetstream: bool = False
    cluster: str = ""  # its name, if the server is part of one


class ServerError(Struct, frozen=True):
    """-ERR. The server may or may not close the connection after it."""

    text: str


class Ping(Struct, frozen=True):
    """PING: the server expects a PONG."""


class Pong(Struct, frozen=True):
    """PONG: the server has processed everything that was sent before our PING."""


Control = Info | ServerError | Ping | Pong
Event = Message | Control

_info_decoder = msgspec.json.Decoder(Info)


class Parser:
    """Parse the bytes of a server into events. No I/O, no clock, no tasks.

    1. The events do not depend on how the bytes are split.
    2. Invalid bytes raise PROTOCOL_ERROR; the parser is unusable afterwards.
    3. What a server can make us buffer is bounded, and buffered data is parsed again only when it may be complete.

    Lines are decoded and encoded as Latin-1, so that a subject of arbitrary bytes survives.
    """

    def __init__(self) -> None:
        self._buffer: list[bytes] = []  # an incomplete event
        self._buffered_bytes = 0
        self._needed_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete.

        Raises:
            CallError: PROTOCOL_ERROR.
        """
        if self._buffer:
            self._buffer.append(data)
            self._buffered_bytes += len(data)
            if self._buffered_bytes < self._needed_bytes:
                return []
            data = b"".join(self._buffer)
            self._buffer = []
        events: list[Event] = []
        start = 0
        while start < len(data):
            line_end = data.find(b"\n", start, start + MAX_LINE_BYTES)
            if line_end < 0:
                if len(data) - start >= MAX_LINE_BYTES:
                    raise _invalid(f"a line has more than {MAX_LINE_BYTES:,} bytes")
                self._keep(data, start, 0)
                break
            line, payload_start = data[start:line_end].decode("latin-1"), line_end + 1
            fields = line.split(" ")  # the last one ends with \r
            if fields[0] not in _MESSAGES:
                events += _control(line.rstrip("\r"))
                start = payload_start
                continue
            payload_end = payload_start + _size(fields[-1])
            if payload_end + 2 > len(data):
                self._keep(data, start, payload_end + 2 - start)
                break
            if data[payload_end : payload_end + 2] != _CRLF:
                raise _invalid("a message is longer than the server said")
            payload = data[payload_start:payload_end]
            if len(fields) == 5 and fields[0] == "MSG":  # nearly all are
                events.append(Message(fields[1], fields[2], fields[3], payload))
            else:
                events.append(_message(fields, payload))
            start = payload_end + 2
        return events

    def _keep(self, data: bytes, start: int, needed_bytes: int) -> None:
        """Keep an incomplete event until so many bytes of it have arrived."""
        self._buffer, self._buffered_bytes, self._needed_bytes = [data[start:]], len(data) - start, needed_bytes


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = -1
    if not 0 <= size <= MAX_PAYLOAD:
        raise _invalid(f"{text[:20]!r} is not the size of a message")
    return size


def _message(fields: list[str], block: bytes) -> Message:
    match fields:
        case ["MSG", subject, sid, _]:
            return Message(subject, sid, "", block)
        case ["HMSG", subject, sid, *reply, length, _] if len(reply) <= 1 and _size(length) <= len(block):
            headers, payload = block[: _size(length)], block[_size(length) :]
            # The server forwards the headers of clients unparsed: an invalid status is ignored.
            status = _STATUS.match(headers)
            return Message(subject, sid, reply[0] if reply else "", payload, int(status[1]) if status else 0)
        case _:
            raise _invalid(f"{fields[0]} with {len(fields) - 1} fields")


def _control(line: str) -> list[Control]:
    word, _, arguments = line.partition(" ")
    match word:
        case "PING":
            return [Ping()]
        case "PONG":
            return [Pong()]
        case "+OK":
            return []
        case "-ERR":
            return [ServerError(arguments.strip().strip("'"))]
        case "INFO":
            try:
                return [_info_decoder.decode(arguments.encode("latin-1"))]
            except (ValueError, RecursionError) as error:
                raise _invalid(f"INFO cannot be parsed: {error}") from error
        case _:
            raise _invalid(f"unknown command {word[:20]!r}; check that it is a NATS server")


def _invalid(problem: str) -> CallError:
    return CallError(ErrorCode.PROTOCOL_ERROR, f"invalid NATS protocol data: {problem}")


def connect(fields: dict[str, object]) -> bytes:
    """Encode CONNECT: the client's credentials and options."""
    return b"CONNECT " + msgspec.json.encode(fields) + _CRLF


def publish(subject: str, reply: str, payload: bytes, headers: bytes = b"") -> bytes:
    """Encode PUB, or HPUB with a block of headers; the reply subject is optional."""
    to = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"%b%b\r\n" % (f"PUB {to} {len(payload)}\r\n".encode("latin-1"), payload)
    head = f"HPUB {to} {len(headers)} {len(headers) + len(payload)}\r\n"
    return b"".join((head.encode("latin-1"), headers, payload, _CRLF))


def subscribe(subject: str, sid: str | int, queue: str = "") -> bytes:
    """Encode SUB, under an id of ours; within an optional queue group, one member receives each message."""
    return (f"SUB {subject} {queue} {sid}\r\n" if queue else f"SUB {subject} {sid}\r\n").encode("latin-1")


def unsubscribe(sids: Iterable[str | int]) -> bytes:
    """Encode UNSUB for each subscription."""
    return "".join(f"UNSUB {sid}\r\n" for sid in sids).encode("latin-1")


# --- credentials ------------------------------------------------------------------------------------------------------

_SEED_PREFIX, _USER_PREFIX = 18 << 3, 20 << 3  # of NKEYs
_BLOCK = re.compile(r"-{3,}BEGIN [A-Z ]*(JWT|SEED)-{3,}\s+(\S+)\s+-{3,}END")


@dataclass(frozen=True)
class NatsCredentials:
    """The credentials of a client. Secrets are left out of the repr."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    file: str | PathLike[str] | None = None

    def fields(self, nonce: str) -> dict[str, object]:
        """Return the fields of CONNECT. A file is read each time, since it may have been replaced.

        Raises:
            CallError: UNAVAILABLE, if the file is unreadable or invalid.
        """
        if self.file is None:
            if self.token is not None:
                return {"auth_token": self.token}
            return {} if self.user is None else {"user": self.user, "pass": self.password or ""}
        try:
            text = Path(self.file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            message = f"the credentials in {self.file} cannot be read: {system_message(error)}"
            raise CallError(ErrorCode.UNAVAILABLE, message) from error
        blocks = {match[1]: match[2] for match in _BLOCK.finditer(text)}
        try:
            public_key, signature = sign(blocks.get("SEED") or text.strip(), nonce)
        except ValueError as error:
            raise CallError(ErrorCode.UNAVAILABLE, f"invalid credentials in {self.file}: {error}") from error
        return {"sig": signature, **({"jwt": blocks["JWT"]} if "JWT" in blocks else {"nkey": public_key})}


def sign(seed: str, nonce: str) -> tuple[str, str]:
    """Return the public NKEY of a seed, and its signature of the server's nonce.

    Raises:
        ValueError: not the seed of a user. The message does not repeat it.
        MissingExtraError: the package cryptography is missing.
    """
    with needs_extra("nats"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    try:
        raw = b32decode(seed + "=" * (-len(seed) % 8))
    except (Error, ValueError):
        raise ValueError("not an NKEY seed, which starts with SU and has 58 characters") from None
    if len(raw) != 36 or _checksum(raw[:-2]) != raw[-2:]:
        raise ValueError("the seed is mistyped or truncated: its checksum is wrong")
    if raw[0] & 0xF8 != _SEED_PREFIX or (raw[0] & 7) << 5 | raw[1] >> 3 != _USER_PREFIX:
        raise ValueError("not the seed of a user, which starts with SU")
    key = Ed25519PrivateKey.from_private_bytes(raw[2:-2])
    public = bytes([_USER_PREFIX]) + key.public_key().public_bytes_raw()
    signature = key.sign(nonce.encode("ascii", "replace"))
    encoded = b32encode(public + _checksum(public)), urlsafe_b64encode(signature)
    return encoded[0].rstrip(b"=").decode(), encoded[1].rstrip(b"=").decode()


def _checksum(raw: bytes) -> bytes:
    return crc_hqx(raw, 0).to_bytes(2, "little")


# --- servers ----------------------------------------------------------------------------------------------------------

_DEFAULT_PORT = 4222
_MAX_DISCOVERED_SERVERS = 64  # each costs an attempt when all are down
_MAX_HOST_LENGTH = 253


@dataclass(frozen=True)
class ServerAddress:
    """One server. Its text form has no credentials."""

    host: str
    port: int = _DEFAULT_PORT
    tls: bool = False
    credentials: NatsCredentials | None = None  # from the URL; they override those for all servers
    tls_name: str | None = None  # the name in its certificate, if that is not the host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


class NatsServers:
    """The servers of a cluster: the configured ones, and those that the last server has announced. No I/O."""

    def __init__(self, urls: str | Iterable[str]) -> None:
        self._configured = [parse_server(url) for url in ([urls] if isinstance(urls, str) else urls)]
        if not self._configured:
            raise UsageError("a NATS server is missing: give at least one URL")
        self._discovered: list[ServerAddress] = []

    def __str__(self) -> str:
        return ", ".join(map(str, self._configured))

    def shuffled(self) -> list[ServerAddress]:
        """Return all servers in random order, so that the clients of a dead server spread over the others."""
        unique = {(server.host, server.port): server for server in (*self._discovered, *self._configured)}
        return random.sample(list(unique.values()), len(unique))

    def discover(self, source: ServerAddress, announced: Iterable[str]) -> None:
        """Replace the discovered servers by the `host:port` that a server announces; they inherit its options."""
        # Certificates are for names, but servers announce IP addresses.
        name = source.tls_name or source.host
        self._discovered = []
        for url in islice(announced, _MAX_DISCOVERED_SERVERS):
            with suppress(UsageError):  # ignore an invalid one
                server = parse_server(url)
                if len(server.host) <= _MAX_HOST_LENGTH:
                    self._discovered.append(replace(source, host=server.host, port=server.port, tls_name=name))


def parse_server(url: str) -> ServerAddress:
    """Parse `nats://user:password@host:port`, `nats://token@host`, `tls://host` or `host:port`.

    Raises:
        UsageError: invalid URL. The message does not repeat the credentials.
    """
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
    except ValueError:
        host, port, parts = None, _DEFAULT_PORT, urlsplit("")
    if not host or parts.scheme not in ("nats", "tls"):
        url_without_login = url.rpartition("@")[2][:80]
        raise UsageError(
            f"{url_without_login!r} is not the URL of a NATS server; expected nats://host:4222 or tls://host:4222"
        )
    credentials = None
    if parts.password is not None:
        credentials = NatsCredentials(user=unquote(parts.username or ""), password=unquote(parts.password))
    elif parts.username:
        credentials = NatsCredentials(token=unquote(parts.username))
    return ServerAddress(host, port, tls=parts.scheme == "tls", credentials=credentials)


# --- the connection ---------------------------------------------------------------------------------------------------

CONNECT_TIMEOUT = 2.0  # seconds for one server, so that there is time to try another

_MAX_SILENT_BEATS = 2  # after which the connection is aborted
_MAX_ERRORS_PER_BARRIER = 100
_FLUSH_TIMEOUT = 1.0  # seconds

_CLIENT: dict[str, object] = {
    "name": "opwire",
    "lang": "python",
    "version": VERSION,
    "protocol": 1,  # accepts a later INFO
    "headers": True,
    "no_responders": True,  # return status 503 if a subject has no subscriber, instead of nothing
    "echo": True,  # a peer may call itself
    "verbose": False,
    "pedantic": False,
}

_ADVICE = {
    "authorization violation": "give the user and password, the token or the credentials that it expects",
    "authentication timeout": "the machine or the network is too slow for its `authorization.timeout`",
    "maximum connections exceeded": "raise its `max_connections`",
    "maximum subscriptions exceeded": "raise its `max_subscriptions`",
    "permissions violation": "allow it in the permissions of this user",
    "secure connection": "connect with tls://",
}


@dataclass(frozen=True)
class Security:
    """The credentials and TLS options for all servers."""

    credentials: NatsCredentials
    ssl: tls.SSLContext | None = None
    tls_first: bool = False

    @cached_property
    def context(self) -> tls.SSLContext:
        """Return the TLS context that verifies certificates."""
        return self.ssl or tls.create_default_context()


class ConnectionListener(Protocol):
    """The callbacks of a connection. They return at once and must not raise."""

    def on_message(self, message: Message) -> None:
        """Handle a message."""
        ...

    def on_info(self, info: Info) -> None:
        """Handle a later INFO of the server."""
        ...

    def on_error(self, text: str) -> None:
        """Handle -ERR. The connection may stay open."""
        ...

    def on_lost(self, reason: str) -> None:
        """Handle the loss of a connection that was open."""
        ...


class _Barrier:
    """A caller that waits for a PONG, and collects the errors that arrive before it."""

    def __init__(self) -> None:
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.errors: list[str] = []


class NatsConnection:
    """A connection that is open from the return of `open` until `ConnectionListener.on_lost` or `close`."""

    def __init__(self, server: ServerAddress, listener: ConnectionListener) -> None:
        self.server = server
        self._listener = listener
        self._parser = Parser()
        self._greeting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs: deque[_Barrier | None] = deque()  # one per PING in flight; None: of a beat
        self._silent_beats = 0
        self._last_error = ""  # the reason, if the connection ends right after it
        self._open = False
        self.info = Info()  # the latest
        self.link = Link(self._receive, self._lost)

    async def open(self, security: Security, subscriptions: bytes) -> None:
        """Connect, authenticate and subscribe.

        Raises:
            CallError: UNAVAILABLE, if the server cannot be reached or refuses.
        """
        try:
            await self._greet(security)
            fields = (self.server.credentials or security.credentials).fields(self.info.nonce)
            self.link.control(connect(_CLIENT | fields) + subscriptions)
            errors = await self.barrier()
            if errors:
                raise self._refused(errors[0])
            self._open = True
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            raise self._unavailable(f"cannot be reached: {system_message(error)}") from error
        finally:
            if not self._open:
                self.link.abort("it could not be opened")

    async def _greet(self, security: Security) -> None:
        """Connect and wait for INFO; start TLS where either side requires it."""
        server, loop = self.server, asyncio.get_running_loop()
        name = server.tls_name or server.host
        tls_context, tls_name = (security.context, name) if security.tls_first else (None, None)
        transport, _ = await loop.create_connection(
            lambda: self.link, server.host, server.port, ssl=tls_context, server_hostname=tls_name
        )
        await self._greeting
        info = self.info
        if not info.headers:
            raise self._unavailable("is too old: opwire needs nats-server 2.2 or newer")
        needs_tls = server.tls or security.ssl is not None
        if needs_tls and not (security.tls_first or info.tls_required or info.tls_available):
            raise self._unavailable("does not offer TLS, which was asked for")  # and gets no password from us
        if not security.tls_first and (needs_tls or info.tls_required):
            secured = await loop.start_tls(transport, self.link, security.context, server_hostname=name)
            if secured is None:
                raise self._unavailable("closed the connection during the TLS handshake")
            self.link.connection_made(secured)

    def _refused(self, error: str) -> CallError:
        advice = next((advice for text, advice in _ADVICE.items() if text in error.lower()), None)
        return self._unavailable(f"refused: {error}" + (f" ({advice})" if advice else ""))

    def _unavailable(self, problem: str) -> CallError:
        return CallError(ErrorCode.UNAVAILABLE, f"{self.server} {problem}")

    async def barrier(self) -> list[str]:
        """Wait until the server has processed everything written so far; return the errors that it sent meanwhile.

        Raises:
            CallError: UNAVAILABLE, if the connection is lost; RATE_LIMITED.
        """
        self.link.control(PING)
        barrier = _Barrier()
        self._pongs.append(barrier)
        await barrier.passed
        return barrier.errors

    def beat(self) -> None:
        """Send a PING; abort the connection if no data has arrived since the last but one."""
        if self._silent_beats >= _MAX_SILENT_BEATS:
            self.link.abort(f"{self.server} does not answer")
            return
        self._silent_beats += 1
        with suppress(CallError):  # a lost connection, or a full queue: both are detected elsewhere
            self.link.control(PING)
            self._pongs.append(None)

    async def close(self) -> None:
        """Flush all writes and end the connection; `on_lost` is not called."""
        self._open = False
        with suppress(CallError, TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                await self.barrier()
        await self.link.close(grace=0.5)

    def _receive(self, data: bytes) -> None:
        self._silent_beats, self._last_error = 0, ""
        listener = self._listener
        for event in self._parser.feed(data):
            if type(event) is Message:
                listener.on_message(event)
            else:
                self._control(event)

    def _control(self, event: Control) -> None:
        match event:
            case Ping():
                self.link.urgent(PONG)
            case Pong():
                if self._pongs and (barrier := self._pongs.popleft()) is not None:
                    resolve(barrier.passed)
            case Info():
                self.info = event
                if not self._greeting.done():
                    self._greeting.set_result(None)
                elif self._open:
                    self._listener.on_info(event)
            case ServerError(text):
                self._last_error = text
                for barrier in filter(None, self._pongs):
                    barrier.errors[_MAX_ERRORS_PER_BARRIER - 1 :] = [text]  # bounded
                if self._open:
                    self._listener.on_error(text)

    def _lost(self, reason: str) -> None:
        if self._last_error:
            reason = f"{reason}: {self._last_error}"
        problem = "is gone" if self._open else "cannot be used"
        error = self._refused(self._last_error) if self._last_error else self._unavailable(f"{problem}: {reason}")
        for future in (self._greeting, *(barrier.passed for barrier in self._pongs if barrier is not None)):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: asyncio logs it otherwise, if no caller waits yet
        self._pongs.clear()
        if self._open:
            self._open = False
            self._listener.on_lost(reason)


async def open_any(
    servers: NatsServers, listener: ConnectionListener, security: Security, subscriptions: bytes
) -> NatsConnection:
    """Connect to the first server that accepts.

    Raises:
        CallError: UNAVAILABLE, with the reason of each server.
    """
    failures: dict[str, None] = {}
    for server in servers.shuffled():
        connection = NatsConnection(server, listener)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection.open(security, subscriptions)
        except TimeoutError:
            failures[f"{server} does not answer within {CONNECT_TIMEOUT:g} s; check that it is a NATS server"] = None
        except CallError as error:
            failures[error.message] = None
        else:
            return connection
    raise CallError(ErrorCode.UNAVAILABLE, "; ".join(failures))
