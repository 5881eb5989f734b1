"""A connection to NATS for questions and answers: made when it is needed, and made again after it was lost.

JetStream is asked by publishing to subjects of its own, mostly with JSON, and answers in our inbox. Who publishes to a
stream is answered there, too: with the number of the message that was stored, or with the reason why it was not.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import count
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.transports.nats.connection import Connection, Security, open_any
from opwire.transports.nats.protocol import Info, Message, publish, subscribe, unsubscribe
from opwire.transports.nats.servers import Servers

logger = logging.getLogger("opwire.durable")

PATIENCE = 5.0
"""Seconds without an answer, after which something counts as not done."""

NO_STREAM = 10059
"""What JetStream says when there is no such stream."""

_BEAT = 2.0  # seconds between two signs of life; a server without them is given up after three
_NO_RESPONDERS = 503
_INBOX = "in"
_FORBIDDEN = re.compile(r'Permissions Violation for (?:Publish|Subscription) to "([^"]*)"', re.IGNORECASE)

_NO_JETSTREAM = "start nats-server with -js, or give it a `jetstream` block in its configuration"
_ADVICE = {
    10005: "`replicas` asks for more servers than the cluster has",
    10039: "let its configuration say `jetstream: enabled` for this account",
    10065: "another stream has these subjects: give the journal another prefix",
    10074: "`replicas` above 1 is for clusters",
    10076: _NO_JETSTREAM,
}


class Refusal(Struct, frozen=True):
    """Why JetStream has not done something."""

    err_code: int = 0
    description: str = ""


class Answer(Struct, frozen=True):
    """What every answer of JetStream may be: a refusal."""

    error: Refusal | None = None


A = TypeVar("A", bound=Answer)


class Listener:
    """Whoever uses a session, and wants to know some of this. All but `prepare` return at once and raise nothing."""

    async def prepare(self) -> None:
        """There is a new connection, which is not used for anything else yet.

        Raises:
            CallError: it cannot be used.
        """

    def arrived(self, token: str, message: Message) -> None:
        """A message has come to our inbox that is no answer.

        `token` is the end of its subject; empty for an entry of a stream, which keeps the subject that it has there.
        """

    def heard(self, subject: str, payload: bytes) -> None:
        """A message has come on a subject that we listen to."""

    def refused(self, subject: str, error: CallError) -> None:
        """The server does not let us publish to this subject, or listen to it."""

    def lost(self, error: CallError) -> None:
        """The connection is gone, and with it whatever we listened to or waited for."""


class _Asked(NamedTuple):
    subject: str
    answer: asyncio.Future[Message]


class Session:
    """`inbox` is what the subjects of answers begin with; `domain` is that of JetStream, if it has one."""

    def __init__(self, servers: Servers, security: Security, inbox: str, domain: str | None = None) -> None:
        self.name = str(servers)
        self.inbox = inbox
        self.listeners: list[Listener] = []
        self._servers = servers
        self._security = security
        self._api = f"$JS.{domain}.API" if domain else "$JS.API"
        self._connection: Connection | None = None
        self._prepared = False
        self._connecting = asyncio.Lock()
        self._closed = False
        self._numbers = count(1)
        self._asked: dict[str, _Asked] = {}  # by the token at the end of the subject for the answer
        self._timer: asyncio.TimerHandle | None = None

    # --- the connection -----------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """See that there is a connection.

        Raises:
            CallError: UNAVAILABLE, or what a listener raises that cannot use it.
        """
        if self._prepared and self._connection is not None:
            return
        async with self._connecting:
            if self._closed:
                raise self._unavailable(f"the journal at {self.name} is closed")
            if self._connection is None:
                self._prepared = False
                await self._open()
            if not self._prepared:
                try:
                    for listener in self.listeners:
                        await listener.prepare()
                except BaseException:
                    await self._disconnect()
                    raise
                self._prepared = True

    async def _open(self) -> None:
        subscription = subscribe(f"{self.inbox}*", _INBOX)
        self._connection = await open_any(self._servers, self, self._security, subscription)
        self.informed(self._connection.info)
        self._timer = asyncio.get_running_loop().call_later(_BEAT, self._beat)

    def _beat(self) -> None:
        if self._connection is not None:
            self._timer = asyncio.get_running_loop().call_later(_BEAT, self._beat)
            self._connection.beat()

    @property
    def info(self) -> Info:
        """What the server has said of itself."""
        return Info() if self._connection is None else self._connection.info

    async def close(self) -> None:
        """End it. Closing again does nothing."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if self._timer is not None:
            self._timer.cancel()
        if connection is not None:
            await connection.close()
            self._fail(self._unavailable(f"the connection to {self.name} was closed"))

    # --- asking -------------------------------------------------------------------------------------------------------

    async def api(
        self, kind: type[A], what: str, request: object = None, *, unless: Collection[int] = (), preparing: bool = False
    ) -> A:
        """What JetStream says to a request. Refusals with the codes in `unless` are answers, too.

        `preparing` is for whoever prepares the connection.

        Raises:
            CallError: UNAVAILABLE; RATE_LIMITED, if the server does not keep up.
        """
        if not preparing:
            await self.connect()
        payload = b"" if request is None else msgspec.json.encode(request)
        return self._read(kind, await self._ask(f"{self._api}.{what}", payload), unless)

    async def store(
        self, kind: type[A], subject: str, headers: Mapping[str, object], payload: bytes, *, unless: Collection[int]
    ) -> A:
        """What JetStream says to a message for a stream.

        Raises:
            CallError: UNAVAILABLE, PAYLOAD_TOO_LARGE; RATE_LIMITED, if the server does not keep up.
        """
        await self.connect()
        return self._read(kind, await self._ask(subject, payload, headers), unless)

    async def _ask(self, subject: str, payload: bytes, headers: Mapping[str, object] | None = None) -> Message:
        token = str(next(self._numbers))
        asked = _Asked(subject, asyncio.get_running_loop().create_future())
        self._asked[token] = asked
        try:
            self.send(subject, payload, token, headers)
            async with asyncio.timeout(PATIENCE):
                return await asked.answer
        except TimeoutError:
            raise self.silent() from None
        finally:
            del self._asked[token]

    def _read(self, kind: type[A], message: Message, unless: Collection[int]) -> A:
        if message.status == _NO_RESPONDERS:
            self._prepared = False  # perhaps the stream was deleted
            raise self._unavailable(f"JetStream does not answer at {self.name}: {_NO_JETSTREAM}")
        try:
            answer = msgspec.json.decode(message.payload, type=kind)
        except msgspec.MsgspecError as error:
            raise self._unavailable(f"{self.name} gave an answer that cannot be read: {error}") from error
        refusal = answer.error
        if refusal is not None and refusal.err_code == NO_STREAM:
            self._prepared = False
        if refusal is not None and refusal.err_code not in unless:
            advice = f" ({_ADVICE[refusal.err_code]})" if refusal.err_code in _ADVICE else ""
            raise self._unavailable(f"{self.name} refused: {refusal.description}{advice}")
        return answer

    def silent(self) -> CallError:
        """The error for something that JetStream does not answer, although it is there."""
        return self._unavailable(f"JetStream does not answer at {self.name}: see whether its stream has a leader")

    def _unavailable(self, message: str) -> CallError:
        return CallError(ErrorCode.UNAVAILABLE, message)

    # --- sending and listening ----------------------------------------------------------------------------------------

    def request(self, what: str, request: object, token: str = "") -> str:
        """Ask JetStream for something, without waiting for it: what comes of it arrives with this token, if any.

        The subject that was asked.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED.
        """
        subject = f"{self._api}.{what}"
        self.send(subject, msgspec.json.encode(request), token)
        return subject

    def send(self, subject: str, payload: bytes, token: str = "", headers: Mapping[str, object] | None = None) -> None:
        """Publish, without waiting for anything.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        if self._connection is None:
            raise self._unavailable(f"there is no connection to {self.name}")
        block = b"" if headers is None else _block(headers)
        size, limit = len(block) + len(payload), self._connection.info.max_payload
        if size > limit:  # the server would end the connection
            large = f"the message has {size:,} bytes, and {self.name} lets {limit:,} through"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, large, {"bytes": size, "limit": limit})
        reply = self.inbox + token if token else ""
        frame = publish_with(subject, reply, block, payload) if block else publish(subject, reply, payload)
        self._connection.link.write(frame)

    def listen(self, subject: str) -> None:
        """Hear what is published on a subject, from before anything that is sent or asked afterwards.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED.
        """
        if self._connection is None:
            raise self._unavailable(f"there is no connection to {self.name}")
        self._connection.link.control(subscribe(subject, subject))

    def forget(self, subject: str) -> None:
        """Listen no more."""
        if self._connection is not None:
            with suppress(CallError):  # it is gone, or does not read; a message that nobody waits for does no harm
                self._connection.link.control(unsubscribe([subject]))

    # --- what the connection calls ------------------------------------------------------------------------------------

    def delivered(self, message: Message) -> None:
        """A message arrived."""
        if message.sid != _INBOX:
            for listener in self.listeners:
                listener.heard(message.subject, message.payload)
            return
        token = message.subject[len(self.inbox) :] if message.subject.startswith(self.inbox) else ""
        asked = self._asked.get(token)
        if asked is None:
            for listener in self.listeners:
                listener.arrived(token, message)
        elif not asked.answer.done():
            asked.answer.set_result(message)

    def informed(self, info: Info) -> None:
        """The server said something about itself."""
        if self._connection is not None:
            self._servers.learn(self._connection.server, info.connect_urls)

    def complained(self, text: str) -> None:
        """The server did not do something."""
        match = _FORBIDDEN.search(text)
        if match is None:
            logger.warning("%s complains: %s", self.name, text)
            return
        error = self._unavailable(f"{self.name} refused: {text} (allow it in the permissions of this user)")
        for asked in self._asked.values():
            if asked.subject == match[1] and not asked.answer.done():
                asked.answer.set_exception(error)
        for listener in self.listeners:
            listener.refused(match[1], error)

    def dropped(self, reason: str) -> None:
        """The connection is gone."""
        self._connection = None
        self._fail(self._unavailable(f"the connection to {self.name} was lost: {reason}"))

    def _fail(self, error: CallError) -> None:
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(error)
        for listener in self.listeners:
            listener.lost(error)


def _block(headers: Mapping[str, object]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def publish_with(subject: str, reply: str, headers: bytes, payload: bytes) -> bytes:
    """HPUB: a message with headers."""
    head = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(payload)}\r\n"
    return b"".join((head.encode("latin-1"), headers, payload, b"\r\n"))
