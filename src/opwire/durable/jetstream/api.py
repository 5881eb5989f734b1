"""JetStream for durable calls: a session for API requests, and the stream that stores tasks as logs.

JetStream's API is a set of subjects, mostly with JSON; responses arrive in our inbox. A message published to a stream
is acknowledged there, too: with the sequence number of the stored message, or with an error.

The stream holds one log per task. The subjects of its entries contain the task's key, `<prefix>.durable.<key>.…`. The
last entry is the state of the task:

    task.<operation>                                    submitted
    since.held.lease.<operation>                        claimed again, or a lease was renewed
    since.held.later.<operation>                        released
    since.ended.done|buried.<operation>.<end>.<time>    ended with an outcome

Each write names the expected last entry, and JetStream rejects it if that has changed: of two concurrent submissions,
claims, renewals, releases or outcomes of a task, one fails and learns it. The sequence number of the entry `task`
distinguishes the lives of a key before and after a replay.

The stream is a work queue: a task leaves it when it is acknowledged, after its outcome was stored. Outcomes expire
(`Nats-TTL`), and are republished when they are stored, under `<prefix>.ended.<end>.<key>`: `<end>` is the journal's end
at which the task was submitted, so that one subscription is enough for all its calls, or `-`.
"""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache, partial
from hashlib import sha256
from itertools import count
from math import ceil
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from opwire.durable.journal import Outcome, Task
from opwire.errors import CallError, ErrorCode
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import resolve
from opwire.runtime.text import get_logger
from opwire.transports.nats.connection import NatsConnection, NatsServers, Security, open_any
from opwire.transports.nats.protocol import Info, Message, publish, subscribe, unsubscribe
from opwire.transports.nats.transport import Subjects

logger = get_logger("opwire.durable.jetstream")

# --- the session ------------------------------------------------------------------------------------------------------

PATIENCE = 5.0  # seconds without a response, after which a request has failed
NO_STREAM = 10059  # the error code for an unknown stream

_BEAT = 2.0  # seconds between two beats; a silent server is given up after three
_REPEAT = 1.0  # seconds after which an API request is sent again: one to a leader that died gets no response
_NO_RESPONDERS = 503
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


Reply = Message | CallError
"""The response to a request, or why there is none."""


class _Request(NamedTuple):
    subject: str
    done: Callable[[Reply], None]
    tick: int  # of its deadline


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
        self._prepared = self._closed = False
        self._connecting = asyncio.Lock()
        self._numbers = count(1)
        self._requests: dict[str, _Request] = {}  # by the token at the end of the response's subject
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None

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
                raise _unavailable(f"the connection to {self.name} is closed")
            if self._connection is None:
                self._prepared = False
                self._deadlines.bind()
                inbox = subscribe(f"{self.inbox}*", _INBOX)
                self._connection = await open_any(self._servers, self, self._security, inbox)
                self.on_info(self._connection.info)
                self._timer = asyncio.get_running_loop().call_later(_BEAT, self._beat)
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
            self._timer = asyncio.get_running_loop().call_later(_BEAT, self._beat)
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
        if self._timer is not None:
            self._timer.cancel()
        if connection is not None:
            await connection.close()
            self._fail(_unavailable(f"the connection to {self.name} was closed"))

    def api(
        self,
        kind: type[R],
        what: str,
        request: object = None,
        *,
        unless: Collection[int] = (),
        preparing: bool = False,
        once: bool = False,
    ) -> Coroutine[Any, Any, R]:
        """Send an API request and return the response; `unless` are error codes to return instead of raising.

        `preparing` skips `connect`, for use within `prepare`. A request without a response is repeated, unless `once`.
        """
        payload = b"" if request is None else msgspec.json.encode(request)
        return self._exchange(kind, f"{self._api}.{what}", payload, unless, preparing=preparing, once=once)

    def store(self, kind: type[R], subject: str, payload: bytes) -> Coroutine[Any, Any, R]:
        """Publish a message to a stream and return the acknowledgement."""
        return self._exchange(kind, subject, payload, (), preparing=False, once=True)

    async def _exchange(
        self, kind: type[R], subject: str, payload: bytes, unless: Collection[int], *, preparing: bool, once: bool
    ) -> R:
        if not preparing:
            await self.connect()
        loop = asyncio.get_running_loop()
        response: asyncio.Future[Reply] = loop.create_future()
        token = self.post(subject, b"", payload, partial(resolve, response))
        timer: asyncio.TimerHandle | None = None

        def repeat() -> None:
            nonlocal timer
            timer = loop.call_later(_REPEAT, repeat)
            with suppress(CallError):  # lost, or its queue is full; the timeout is near
                self.send(subject, payload, token)

        if not once:
            timer = loop.call_later(_REPEAT, repeat)
        try:
            return self.read(kind, await response, unless)
        finally:
            if timer is not None:
                timer.cancel()
            self._take(token)

    def post(self, subject: str, headers: bytes, payload: bytes, done: Callable[[Reply], None]) -> str:
        """Send a request, or publish a message to a stream; return its token. `done` receives the response."""
        token = str(next(self._numbers))
        self.send(subject, payload, token, headers)
        tick = self._deadlines.add(token, time.monotonic() + PATIENCE, self._expire)
        self._requests[token] = _Request(subject, done, tick)
        return token

    def read(self, kind: type[R], reply: Reply, unless: Collection[int] = ()) -> R:
        """Decode a response; `unless` are error codes to return instead of raising.

        Raises:
            CallError: there is none, or it is an error or invalid.
        """
        if isinstance(reply, CallError):
            raise reply
        if reply.status == _NO_RESPONDERS:
            self._prepared = False  # the stream may have been deleted
            raise _unavailable(f"JetStream does not answer at {self.name}: {_NO_JETSTREAM}")
        try:
            response: R = _decoder(kind).decode(reply.payload)
        except (ValueError, RecursionError) as error:
            raise _unavailable(f"invalid response from {self.name}: {error}") from error
        error = response.error
        if error is not None and error.err_code == NO_STREAM:
            self._prepared = False
        if error is not None and error.err_code not in unless:
            advice = f" ({_ADVICE[error.err_code]})" if error.err_code in _ADVICE else ""
            raise _unavailable(f"{self.name} refused: {error.description}{advice}")
        return response

    def _take(self, token: str) -> _Request | None:
        request = self._requests.pop(token, None)
        if request is not None:
            self._deadlines.discard(token, request.tick)
        return request

    def _expire(self, token: str) -> None:
        if (request := self._take(token)) is not None:
            request.done(self.silent())

    def silent(self) -> CallError:
        """Return the error for a request that JetStream does not answer, although it is available."""
        return _unavailable(f"JetStream does not answer at {self.name}: check whether its stream has a leader")

    def request(self, what: str, request: object, token: str = "") -> str:
        """Send an API request and return its subject, without a wait: responses arrive with the optional token."""
        subject = f"{self._api}.{what}"
        self.send(subject, msgspec.json.encode(request), token)
        return subject

    def send(self, subject: str, payload: bytes, token: str = "", headers: bytes = b"") -> None:
        """Publish a message, with a block of headers."""
        if self._connection is None:
            raise _unavailable(f"not connected to {self.name}")
        size, limit = len(headers) + len(payload), self._connection.info.max_payload
        if size > limit:  # the server would end the connection
            large = f"the message has {size:,} bytes; {self.name} accepts {limit:,}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, large, {"bytes": size, "limit": limit})
        self._connection.link.write(publish(subject, self.inbox + token if token else "", payload, headers))

    def listen(self, subject: str) -> None:
        """Subscribe to a subject; effective before any request that is sent afterwards."""
        if self._connection is None:
            raise _unavailable(f"not connected to {self.name}")
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
            request.done(message)
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
        error = _unavailable(f"{self.name} refused: {text} (allow it in the permissions of this user)")
        for token in [token for token, request in self._requests.items() if request.subject == match[1]]:
            self._requests.pop(token).done(error)
        for listener in self.listeners:
            listener.refused(match[1], error)

    def on_lost(self, reason: str) -> None:
        """Fail all requests in flight; called by the connection."""
        self._connection = None
        self._fail(_unavailable(f"the connection to {self.name} was lost: {reason}"))

    def _fail(self, error: CallError) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.done(error)
        for listener in self.listeners:
            listener.lost(error)


@cache
def _decoder(kind: type[ApiResponse]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _unavailable(message: str) -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, message)


# --- the log of a task ------------------------------------------------------------------------------------------------

# `gone`: the task was purged, or its outcome has expired, and a part of its log is left.
Kind = Literal["task", "lease", "later", "done", "buried", "gone"]

TRIES = 5  # attempts to write an entry while others do; in a cluster a conflict may be spurious

_KINDS: dict[str, Kind] = {
    "since.held.lease": "lease",
    "since.held.later": "later",
    "since.ended.done": "done",
    "since.ended.buried": "buried",
}
_MAX_TOKEN = 200  # characters: the name of a consumer, and of its folder, may have 255
_PLAIN = re.compile(rf"[A-Za-z0-9_~-]{{1,{_MAX_TOKEN}}}")
_HELD_TTL = 30 * 24 * 3600  # seconds for which attempts are remembered while no worker claims the task
_OLDEST = (2, 11)
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"

NOT_FOUND = (10037, 10043, 10057)
_CONFLICTS = (10071, 10164)  # 10164: the cluster is storing another entry for the same key


class EntryBody(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The payload of an entry. `birth` is the number of the task's first entry, which cannot contain its own number.

    `caller` belongs to a task: the end of the journal at which a caller waits for its outcome.
    `attempt` and the fields after it belong to the entry of a lease or release: see `Claim`. `alone` means that the
    holder ran nothing else when it wrote the entry.
    """

    fingerprint: str
    task: Task | None = None
    outcome: Outcome | None = None
    caller: str = ""
    birth: int = 0
    holder: str = ""
    attempt: int = 0
    lease: float = 0.0
    failures: int = 0
    losses: int = 0
    lone_losses: int = 0
    suspect: bool = False
    alone: bool = False


class Entry(Struct, frozen=True, gc=False):
    """An entry of a log, and when it was stored."""

    seq: int
    kind: Kind
    time: datetime
    body: EntryBody

    @property
    def birth(self) -> int:
        """Return the number of the first entry in this life of the task."""
        return self.body.birth or self.seq


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


Put = int | CallError | None
"""The number of an entry that was written, None on a conflict, or an error."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(EntryBody).decode


class JournalSubjects:
    """The names of the stream and of its subjects. Journals with different prefixes are isolated from each other.

    Raises:
        UsageError: a prefix that is invalid in NATS.
    """

    def __init__(self, prefix: str) -> None:
        self.inboxes = Subjects(prefix)
        self.stream = f"{prefix}_durable".replace(".", "=2E")
        self._root = f"{prefix}.durable."
        self._republished = f"{prefix}.ended."

    def log(self, key: str, what: str = ">") -> str:
        """Return the subject of all entries of a key, or of those of one kind."""
        return f"{self._root}{token(key)}.{what}"

    def whole_log(self, subject: str) -> str:
        """Return the subject of all entries of the key of an entry."""
        return f"{subject[: subject.index('.', len(self._root))]}.>"

    def task(self, key: str, operation_id: str) -> str:
        """Return the subject of a task."""
        return self.log(key, f"task.{token(operation_id)}")

    def held(self, key: str, kind: Kind, operation_id: str) -> str:
        """Return the subject of a lease or release."""
        return self.log(key, f"since.held.{kind}.{token(operation_id)}")

    def ended(self, outcome: Outcome, caller: str) -> str:
        """Return the subject of an outcome, for which a caller waits at this end."""
        what, operation = f"since.ended.{'buried' if outcome.buried else 'done'}", token(outcome.operation_id)
        return self.log(outcome.key, f"{what}.{operation}.{caller}.{outcome.recorded}")

    def republished(self, key: str) -> str:
        """Return the subject under which an outcome is republished, for any end."""
        return f"{self._republished}*.{token(key)}"

    def republished_to(self, end: str) -> str:
        """Return the subject under which the outcomes for an end are republished."""
        return f"{self._republished}{end}.*"

    def every(self, what: str) -> str:
        """Return the subject of entries of one kind of all keys."""
        return f"{self._root}*.{what}"

    def kind(self, subject: str) -> Kind:
        """Return the kind of an entry; `gone` for an unknown one."""
        parts = subject[len(self._root) :].split(".")
        return "task" if parts[1] == "task" else _KINDS.get(".".join(parts[1:4]), "gone")

    def stream_config(self, replicas: int) -> dict[str, object]:
        """Return the configuration of the stream."""
        return {
            "name": self.stream,
            "subjects": [f"{self._root}>"],
            "retention": "workqueue",
            "storage": "file",
            "max_msgs_per_subject": 1,
            "deny_delete": False,
            "allow_msg_ttl": True,
            "republish": {
                "src": self.every("since.ended.*.*.*.*"),
                "dest": f"{self._republished}{{{{wildcard(4)}}}}.{{{{wildcard(1)}}}}",
            },
            "num_replicas": replicas,
        }


@lru_cache(maxsize=4096)
def token(name: str) -> str:
    """Encode a key or operation id as one token of a subject, or as the name of a consumer; unique.

    Escaped as in URLs, but with `=`: a `%` in the name of a consumer makes nats-server 2.11 and 2.12 ignore all
    acknowledgements.
    """
    if _PLAIN.fullmatch(name):  # most are; 4 µs less
        return name
    quoted = quote(name, safe="", errors="surrogatepass").replace(".", "%2E").replace("%", "=")
    if len(quoted) > _MAX_TOKEN:
        return f"=sha256-{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
    return quoted or "="


class TaskLog(SessionListener):
    """The logs of all tasks, with the names of `names`. Its methods raise `CallError`, as those of the session do."""

    def __init__(self, session: JetStreamSession, names: JournalSubjects, replicas: int) -> None:
        self.names = names
        self._session = session
        self._replicas = replicas
        session.listeners.append(self)

    async def prepare(self) -> None:
        """Create the stream if it is missing.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, if a stream of this name is not a journal's.
        """
        session, stream = self._session, self.names.stream
        version = session.info.version
        if tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2]) < _OLDEST:
            raise _unavailable(f"{session.name} is nats-server {version}: durable calls need 2.11 or newer")
        wanted = self.names.stream_config(self._replicas)
        found = await session.api(StreamFound, f"STREAM.INFO.{stream}", unless=[NO_STREAM], preparing=True)
        if found.error is not None:
            found = await session.api(StreamFound, f"STREAM.CREATE.{stream}", wanted, preparing=True)
        wrong = [name for name, value in wanted.items() if name != "num_replicas" and found.config.get(name) != value]
        if wrong:
            other = f"the stream {stream} of {session.name} is not the journal's: its {', '.join(wrong)} differ"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{other}; delete it, or give the journal another prefix")

    def put(self, subject: str, body: EntryBody, after: int, done: Callable[[Put], None], ttl: float = 0.0) -> None:
        """Write an entry after the one with this number; `done` receives its number, None on a conflict, or an error.

        It expires after `ttl` seconds; 0: never.
        """
        expires = f"Nats-TTL: {max(1, ceil(ttl))}\r\n" if ttl else ""
        condition = f"{_EXPECTED}: {after}\r\n{_EXPECTED}-Subject: {self.names.whole_log(subject)}\r\n"

        def stored(reply: Reply) -> None:
            try:
                found = self._session.read(Stored, reply, _CONFLICTS)
                done(found.seq if found.error is None else None)
            except CallError as error:
                done(error)

        self._session.post(subject, f"NATS/1.0\r\n{condition}{expires}\r\n".encode("latin-1"), _encode(body), stored)

    async def add(self, subject: str, body: EntryBody, after: int, ttl: float = 0.0) -> int | None:
        """Write an entry as `put` does; return its number, or None on a conflict."""
        await self._session.connect()
        stored: asyncio.Future[Put] = asyncio.get_running_loop().create_future()
        self.put(subject, body, after, partial(resolve, stored), ttl)
        if isinstance(reply := await stored, CallError):
            raise reply
        return reply

    async def hold(self, kind: Kind, task: Task, body: EntryBody, after: int) -> bool:
        """Write a lease or release; return False on a conflict."""
        subject = self.names.held(task.key, kind, task.operation_id)
        return await self.add(subject, body, after, _HELD_TTL) is not None

    async def delete(self, seq: int) -> bool:
        """Delete an entry; return False if it is unknown."""
        what, request = f"STREAM.MSG.DELETE.{self.names.stream}", {"seq": seq, "no_erase": True}
        return (await self._session.api(ApiResponse, what, request, unless=NOT_FOUND, once=True)).error is None

    def drop(self, seq: int) -> None:
        """Delete an obsolete entry, without a wait: a failure is harmless."""
        self._session.request(f"STREAM.MSG.DELETE.{self.names.stream}", {"seq": seq, "no_erase": True})

    async def tidy(self, key: str, before: int) -> None:
        """Delete the leases and releases before an entry."""
        request = {"filter": self.names.log(key, "since.held.>"), "seq": before}
        await self._session.api(ApiResponse, f"STREAM.PURGE.{self.names.stream}", request)

    def tidy_again(self, key: str, before: int) -> None:
        """Delete what `tidy` has deleted before, without a wait."""
        request: dict[str, object] = {"filter": self.names.log(key, "since.held.>"), "seq": before}
        self._session.request(f"STREAM.PURGE.{self.names.stream}", request)

    def busy(self, key: str) -> CallError:
        """Return the error for a task with too many conflicts."""
        return _unavailable(f"{key!r:.80} is being changed by others at {self._session.name}")

    async def last(self, key: str) -> Entry | None:
        """Return the last entry of a key."""
        entry = await self._find({"last_by_subj": self.names.log(key)})
        if entry is None or entry.kind == "task" or entry.body.outcome is not None:
            return entry
        if await self.entry(entry.birth) is None:
            return msgspec.structs.replace(entry, kind="gone")
        return entry

    async def entry(self, seq: int) -> Entry | None:
        """Return the entry with this number."""
        return await self._find({"seq": seq})

    async def since(self, key: str) -> Entry | None:
        """Return the last entry of a key without the task, which may be large. It may be older than the task."""
        return await self._find({"last_by_subj": self.names.log(key, "since.>")})

    async def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a task, if any."""
        entry = await self.since(key)
        if entry is not None and entry.kind == "buried":
            entry = await self.last(key)  # it may have been replayed
        return None if entry is None else entry.body.outcome

    async def buried(self, subject: str) -> Outcome | None:
        """Return the outcome with this subject, unless the task was purged or replayed."""
        last = await self._find({"last_by_subj": f"{subject.rsplit('.', 6)[0]}.>"})
        return last.body.outcome if last is not None and last.kind == "buried" else None

    async def next_task(self, operation_id: str, seq: int) -> Entry | None:
        """Return the first task of an operation from this number on; an invalid one has no task in it."""
        subject = self.names.every(f"task.{token(operation_id)}")
        return await self._find({"seq": seq, "next_by_subj": subject}, strict=False)

    async def _find(self, which: dict[str, object], *, strict: bool = True) -> Entry | None:
        what = f"STREAM.MSG.GET.{self.names.stream}"
        message = (await self._session.api(MessageFound, what, which, unless=NOT_FOUND)).message
        if message is None:
            return None
        try:
            body = decode_entry(message.data)
        except CallError:
            if strict:
                raise
            body = EntryBody(fingerprint="")
        return Entry(message.seq, self.names.kind(message.subject), message.time, body)

    async def subjects(self, what: str) -> list[str]:
        """Return the subjects of all entries of one kind."""
        found: list[str] = []
        while True:
            request = {"subjects_filter": self.names.every(what), "offset": len(found)}
            page = await self._session.api(StreamFound, f"STREAM.INFO.{self.names.stream}", request)
            found += page.state.subjects or {}
            if len(found) >= page.total or not page.state.subjects:
                return found

    async def now(self) -> datetime | None:
        """Return the time at the server that stores the entries."""
        return (await self._session.api(StreamFound, f"STREAM.INFO.{self.names.stream}")).ts


def decode_entry(data: bytes) -> EntryBody:
    """Decode the payload of an entry.

    Raises:
        CallError: PROTOCOL_ERROR, if another program has written something else.
    """
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"an entry of the journal is invalid: {error}") from error
