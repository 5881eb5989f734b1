"""One connection to one NATS server.

Everything is written through one queue, so a PONG says that the server has done what was written before its PING. That
is the only barrier there is; subscriptions, withdrawals and the end of a connection wait for it.
"""

import asyncio
import ssl as tls
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import opwire
from opwire.errors import CallError, ErrorCode
from opwire.transports.link import Link
from opwire.transports.nats.credentials import Credentials
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
from opwire.transports.nats.servers import Server, Servers

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
