"""A session with JetStream: API requests, and messages that are published to streams.

JetStream's API is a set of subjects, mostly with JSON; responses arrive in our inbox. A message published to a stream
is acknowledged there, too: with the sequence number of the stored message, or with an error.
"""

import asyncio
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from itertools import count
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import reject, resolve
from opwire.runtime.text import get_logger
from opwire.transports.nats.connection import (
    Info,
    Message,
    NatsConnection,
    NatsServers,
    Security,
    open_any,
    publish,
    subscribe,
    unsubscribe,
)

logger = get_logger("opwire.durable.jetstream")

RESPONSE_TIMEOUT_SECONDS = 5.0
"""Seconds without a response, after which a request has failed."""

NO_STREAM = 10059
"""The error code for an unknown stream."""

NOT_FOUND = (10037, 10043, 10057)
"""The error codes for an unknown message."""

_BEAT_SECONDS = 2.0  # a silent server is given up after three beats
_REPEAT_SECONDS = 1.0  # an API request is sent again: one to a leader that died gets no response
_NO_RESPONDERS_STATUS = 503
_INBOX = "in"
_FORBIDDEN = re.compile(r'Permissions Violation for (?:Publish|Subscription) to "([^"]*)"', re.IGNORECASE)

_NO_JETSTREAM = "start nats-server with -js, or add a `jetstream` block to its configuration"
_ADVICE = {
    10005: "`replicas` asks for more servers than the cluster has",
    10039: "set `jetstream: enabled` for this account in its configuration",
    10065: "another stream has these subjects: give the journal another prefix",
    10074: "`replicas` above 1 is for clusters",
    10076: _NO_JETSTREAM,
}


class ApiError(Struct, frozen=True):
    """An error of JetStream."""

    err_code: int = 0
    description: str = ""


class ApiResponse(Struct, frozen=True):
    """The base class of responses: each may be an error."""

    error: ApiError | None = None


class Stored(ApiResponse, frozen=True):
    """The acknowledgement of a message that was stored."""

    seq: int = 0


class StoredMessage(Struct, frozen=True):
    """A message of a stream."""

    subject: str
    seq: int
    time: datetime
    data: bytes = b""


class MessageFound(ApiResponse, frozen=True):
    """The response to STREAM.MSG.GET."""

    message: StoredMessage | None = None


class StreamState(Struct, frozen=True):
    """The bounds of a stream, and the number of messages by subject."""

    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class StreamFound(ApiResponse, frozen=True):
    """The response to STREAM.INFO."""

    config: Mapping[str, object] = {}
    state: StreamState = StreamState()
    ts: datetime | None = None
    total: int = 0


R = TypeVar("R", bound=ApiResponse)


class SessionListener:
    """The callbacks of a session, all optional. Except for `prepare` they return at once and must not raise."""

    async def prepare(self) -> None:
        """Prepare a new connection before it is used.

        Raises:
            CallError: the connection is unusable.
        """

    def arrived(self, token: str, message: Message) -> None:
        """Handle a message to our inbox that is not a response.

        `token` is the end of its subject; empty for an entry of a stream, which keeps its subject.
        """

    def heard(self, subject: str, payload: bytes) -> None:
        """Handle a message on a subject that was passed to `listen`."""

    def refused(self, subject: str, error: CallError) -> None:
        """Handle a permissions error: we may not publish or subscribe to this subject."""

    def lost(self, error: CallError) -> None:
        """Handle the loss of the connection, with all subscriptions and requests in flight."""


class _Request(NamedTuple):
    subject: str
    response: asyncio.Future[Message]
    deadline_tick: int


class JetStreamSession:
    """A connection that is opened lazily, and opened again after a loss.

    `inbox` is the prefix of the subjects of responses; `domain` is the optional domain of JetStream.

    What sends raises `CallError`: UNAVAILABLE, PAYLOAD_TOO_LARGE, or RATE_LIMITED if the server does not keep up.
    """

    def __init__(self, servers: NatsServers, security: Security, inbox: str, domain: str | None = None) -> None:
        self.name = str(servers)
        self.inbox = inbox
        self.listeners: list[SessionListener] = []
        self._servers = servers
        self._security = security
        self._api = f"$JS.{domain}.API" if domain else "$JS.API"
        self._connection: NatsConnection | None = None
        self._prepared = False
        self._closed = False
        self._connecting = asyncio.Lock()
        self._request_numbers = count(1)
        self._requests: dict[str, _Request] = {}  # by the token at the end of the response's subject
        self._deadlines = Deadlines()
        self._beat_timer: asyncio.TimerHandle | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it is connected and prepared."""
        return self._prepared and self._connection is not None

    @property
    def is_local(self) -> bool:
        """Whether JetStream runs in the connected server alone: its restart would end the connection."""
        return self._api == "$JS.API" and self.info.jetstream and not self.info.cluster

    async def connect(self) -> None:
        """Connect and prepare, unless connected; wait while much is queued for the server.

        Raises:
            CallError: UNAVAILABLE, or the error of a listener's `prepare`.
        """
        if self.is_ready and self._connection is not None:
            await self._connection.link.room()
            return
        async with self._connecting:
            if self._closed:
                raise unavailable(f"the connection to {self.name} is closed")
            if self._connection is None:
                self._prepared = False
                self._deadlines.bind()
                inbox = subscribe(f"{self.inbox}*", _INBOX)
                self._connection = await open_any(self._servers, self, self._security, inbox)
                self.on_info(self._connection.info)
                self._beat_timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)
            if not self._prepared:
                try:
                    for listener in self.listeners:
                        await listener.prepare()
                except BaseException:
                    await self._disconnect()
                    raise
                self._prepared = True

    def _beat(self) -> None:
        if self._connection is not None:
            self._beat_timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)
            self._connection.beat()

    @property
    def info(self) -> Info:
        """Return the server's latest INFO."""
        return Info() if self._connection is None else self._connection.info

    async def close(self) -> None:
        """Close the session. A second call is a no-op."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        if connection is not None:
            await connection.close()
            self._fail(unavailable(f"the connection to {self.name} was closed"))

    async def api(
        self,
        kind: type[R],
        method: str,
        request: object = None,
        *,
        unless: Collection[int] = (),
        preparing: bool = False,
        once: bool = False,
    ) -> R:
        """Send an API request and return the response; `unless` are error codes to return instead of raising.

        `preparing` skips `connect`, for use within `prepare`. A request without a response is repeated, unless `once`.
        """
        if not preparing:
            await self.connect()
        payload = b"" if request is None else msgspec.json.encode(request)
        message = await self._exchange(f"{self._api}.{method}", payload, repeats=not once)
        return self._read(kind, message, unless)

    async def store(
        self, subject: str, payload: bytes, headers: bytes = b"", *, unless: Collection[int] = ()
    ) -> Stored:
        """Publish a message to a stream and return the acknowledgement; `unless` as in `api`."""
        await self.connect()
        return self._read(Stored, await self._exchange(subject, payload, headers), unless)

    async def _exchange(self, subject: str, payload: bytes, headers: bytes = b"", *, repeats: bool = False) -> Message:
        loop = asyncio.get_running_loop()
        token = str(next(self._request_numbers))
        self.send(subject, payload, token, headers)
        tick = self._deadlines.add(token, time.monotonic() + RESPONSE_TIMEOUT_SECONDS, self._expire)
        response: asyncio.Future[Message] = loop.create_future()
        self._requests[token] = _Request(subject, response, tick)
        timer: asyncio.TimerHandle | None = None

        def repeat() -> None:
            nonlocal timer
            timer = loop.call_later(_REPEAT_SECONDS, repeat)
            with suppress(CallError):  # lost, or its queue is full; the timeout is near
                self.send(subject, payload, token)

        if repeats:
            timer = loop.call_later(_REPEAT_SECONDS, repeat)
        try:
            return await response
        finally:
            if timer is not None:
                timer.cancel()
            self._take(token)

    def _read(self, kind: type[R], message: Message, unless: Collection[int]) -> R:
        if message.status == _NO_RESPONDERS_STATUS:
            self._prepared = False  # the stream may have been deleted
            raise unavailable(f"JetStream does not answer at {self.name}: {_NO_JETSTREAM}")
        try:
            response: R = _decoder(kind).decode(message.payload)
        except (ValueError, RecursionError) as error:
            raise unavailable(f"invalid response from {self.name}: {error}") from error
        error = response.error
        if error is not None and error.err_code == NO_STREAM:
            self._prepared = False
        if error is not None and error.err_code not in unless:
            advice = f" ({_ADVICE[error.err_code]})" if error.err_code in _ADVICE else ""
            raise unavailable(f"{self.name} refused: {error.description}{advice}")
        return response

    def _take(self, token: str) -> _Request | None:
        request = self._requests.pop(token, None)
        if request is not None:
            self._deadlines.discard(token, request.deadline_tick)
        return request

    def _expire(self, token: str) -> None:
        if (request := self._take(token)) is not None:
            reject(request.response, self.silent())

    def silent(self) -> CallError:
        """Return the error for a request that JetStream does not answer, although it is available."""
        return unavailable(f"JetStream does not answer at {self.name}: check whether its stream has a leader")

    def request(self, method: str, request: object, token: str = "") -> str:
        """Send an API request and return its subject, without a wait: responses arrive with the optional token."""
        subject = f"{self._api}.{method}"
        self.send(subject, msgspec.json.encode(request), token)
        return subject

    def send(self, subject: str, payload: bytes, token: str = "", headers: bytes = b"") -> None:
        """Publish a message, with a block of headers."""
        if self._connection is None:
            raise unavailable(f"not connected to {self.name}")
        size, limit = len(headers) + len(payload), self._connection.info.max_payload
        if size > limit:  # the server would end the connection
            large = f"the message has {size:,} bytes; {self.name} accepts {limit:,}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, large, {"bytes": size, "limit": limit})
        self._connection.link.write(publish(subject, self.inbox + token if token else "", payload, headers))

    def listen(self, subject: str) -> None:
        """Subscribe to a subject; effective before any request that is sent afterwards."""
        if self._connection is None:
            raise unavailable(f"not connected to {self.name}")
        self._connection.link.control(subscribe(subject, subject))

    def forget(self, subject: str) -> None:
        """Unsubscribe from a subject."""
        if self._connection is not None:
            with suppress(CallError):  # lost, or its queue is full; a late message is ignored
                self._connection.link.control(unsubscribe([subject]))

    def on_message(self, message: Message) -> None:
        """Dispatch a message; called by the connection."""
        if message.sid != _INBOX:
            for listener in self.listeners:
                listener.heard(message.subject, message.payload)
            return
        token = message.subject[len(self.inbox) :] if message.subject.startswith(self.inbox) else ""
        if (request := self._take(token)) is not None:
            resolve(request.response, message)
            return
        for listener in self.listeners:
            listener.arrived(token, message)

    def on_info(self, info: Info) -> None:
        """Remember the servers of the cluster; called by the connection."""
        if self._connection is not None:
            self._servers.discover(self._connection.server, info.connect_urls)

    def on_error(self, text: str) -> None:
        """Fail what a permissions error is about; called by the connection."""
        match = _FORBIDDEN.search(text)
        if match is None:
            logger.warning("%s reports: %s", self.name, text)
            return
        error = unavailable(f"{self.name} refused: {text} (allow it in the permissions of this user)")
        for token in [token for token, request in self._requests.items() if request.subject == match[1]]:
            reject(self._requests.pop(token).response, error)
        for listener in self.listeners:
            listener.refused(match[1], error)

    def on_lost(self, reason: str) -> None:
        """Fail all requests in flight; called by the connection."""
        self._connection = None
        self._fail(unavailable(f"the connection to {self.name} was lost: {reason}"))

    def _fail(self, error: CallError) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            reject(request.response, error)
        for listener in self.listeners:
            listener.lost(error)


@cache
def _decoder(kind: type[ApiResponse]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def unavailable(message: str) -> CallError:
    """Return the error for a server that cannot do what was asked."""
    return CallError(ErrorCode.UNAVAILABLE, message)
