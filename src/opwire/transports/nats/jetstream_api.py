"""A connection to NATS for questions and answers: made when it is needed, and made again after it was lost.

JetStream is asked by publishing to subjects of its own, mostly with JSON, and answers in our inbox. Who publishes to a
stream is answered there, too: with the number of the message that was stored, or with the reason why it was not.

What JetStream keeps for durable calls: one stream, in which every task has a log of its own.

The entries of a log have the key of the task in their subjects, `<prefix>.durable.<key>.…`. The last one says how the
task stands:

    task.<operation>                              it was submitted
    since.held.lease.<operation>                  it was claimed not for the first time, or a lease was renewed
    since.held.later.<operation>                  it was released
    since.ended.done|buried.<operation>.<time>    it has an outcome

Whoever writes an entry says which one was the last until then, and JetStream stores it only if that is so: of two who
submit, claim, renew, release or end the same task at the same time, one comes too late and knows it. The number of the
entry `task` tells the lives of a key apart, before and after a replay.

The stream is a work queue: a task leaves it when it is acknowledged, after its outcome was stored. Outcomes leave it
when their time is over (`Nats-TTL`), and are published again when they are stored, under `<prefix>.ended.<key>`.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from itertools import count
from math import ceil
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from opwire.durable.journal import Outcome, Task
from opwire.errors import CallError, ErrorCode
from opwire.transports.nats.connection import Connection, Security, Servers, open_any
from opwire.transports.nats.protocol import Info, Message, publish, subscribe, unsubscribe
from opwire.transports.nats.transport import Subjects

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


Kind = Literal["task", "lease", "later", "done", "buried", "gone"]
"""`gone`: the task was purged, or its outcome has expired, and something of its log is left."""

TRIES = 5
"""How often an entry is written before somebody else has done it. In a cluster that may seem so without reason."""

_KINDS: dict[str, Kind] = {
    "since.held.lease": "lease",
    "since.held.later": "later",
    "since.ended.done": "done",
    "since.ended.buried": "buried",
}
_MAX_TOKEN = 200  # characters: the name of a consumer, and with it that of a folder, may have 255
_HELD_FOR = 30 * 24 * 3600  # seconds for which attempts are remembered while nobody claims the task again
_OLDEST = (2, 11)

_NOT_FOUND = (10037, 10043, 10057)
_CONFLICTS = (10071, 10164)  # 10164: another entry for the same key is being stored by the cluster


class Body(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is in an entry. `birth` is the number of the task's first entry, which it cannot know of itself.

    `attempt` and what follows belong to an entry of a lease, or of a release: see `Claim`. `alone` says that the holder
    had nothing else in hand when it wrote that.
    """

    fingerprint: str
    task: Task | None = None
    outcome: Outcome | None = None
    birth: int = 0
    holder: str = ""
    attempt: int = 0
    lease: float = 0.0
    failures: int = 0
    losses: int = 0
    lone_losses: int = 0
    suspect: bool = False
    alone: bool = False


class Entry(Struct, frozen=True):
    """An entry of a log, and when it was stored."""

    seq: int
    kind: Kind
    time: datetime
    body: Body

    @property
    def birth(self) -> int:
        """The number of the entry with which this life of the task began."""
        return self.body.birth or self.seq


class _Stored(Answer, frozen=True):
    seq: int = 0


class _Message(Struct, frozen=True):
    subject: str
    seq: int
    time: datetime
    data: bytes = b""


class _Found(Answer, frozen=True):
    message: _Message | None = None


class _State(Struct, frozen=True):
    subjects: dict[str, int] | None = None


class _Stream(Answer, frozen=True):
    config: Mapping[str, object] = {}
    state: _State = _State()
    ts: datetime | None = None
    total: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode


class Names:
    """The names of the stream and of its subjects. Journals with different prefixes do not meet.

    Raises:
        CallError: VALIDATION_ERROR, for a prefix that NATS cannot use.
    """

    def __init__(self, prefix: str) -> None:
        self.inboxes = Subjects(prefix)
        self.stream = f"{prefix}_durable".replace(".", "=2E")
        self._root = f"{prefix}.durable."
        self._told = f"{prefix}.ended."

    def log(self, key: str, what: str = ">") -> str:
        """Every entry of a key, or every such entry."""
        return f"{self._root}{token(key)}.{what}"

    def task(self, key: str, operation_id: str) -> str:
        """The entry of a task."""
        return self.log(key, f"task.{token(operation_id)}")

    def held(self, key: str, kind: Kind, operation_id: str) -> str:
        """The entry of who has a task."""
        return self.log(key, f"since.held.{kind}.{token(operation_id)}")

    def ended(self, outcome: Outcome) -> str:
        """The entry of an outcome."""
        kind = "buried" if outcome.buried else "done"
        return self.log(outcome.key, f"since.ended.{kind}.{token(outcome.operation_id)}.{outcome.recorded}")

    def told(self, key: str) -> str:
        """Where an outcome is published again."""
        return f"{self._told}{token(key)}"

    def every(self, what: str) -> str:
        """Such entries of every key."""
        return f"{self._root}*.{what}"

    def kind(self, subject: str) -> Kind:
        """What an entry is; `gone`, if it is nothing of ours."""
        parts = subject[len(self._root) :].split(".")
        return "task" if parts[1] == "task" else _KINDS.get(".".join(parts[1:4]), "gone")

    def stream_config(self, replicas: int) -> dict[str, object]:
        """What the stream has to be."""
        return {
            "name": self.stream,
            "subjects": [f"{self._root}>"],
            "retention": "workqueue",
            "storage": "file",
            "max_msgs_per_subject": 1,
            "deny_delete": False,
            "allow_msg_ttl": True,
            "republish": {"src": self.every("since.ended.*.*.*"), "dest": f"{self._told}{{{{wildcard(1)}}}}"},
            "num_replicas": replicas,
        }


@lru_cache(maxsize=4096)
def token(name: str) -> str:
    """A key or the id of an operation as one token of a subject, or the name of a consumer: no two are alike.

    Escaped as in URLs, but with `=`: a `%` in the name of a consumer makes nats-server 2.11 and 2.12 ignore all
    acknowledgements.
    """
    quoted = quote(name, safe="", errors="surrogatepass").replace(".", "%2E").replace("%", "=")
    if len(quoted) > _MAX_TOKEN:
        return f"=sha256-{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
    return quoted or "="


class Log(Listener):
    """The logs of all tasks. `names` says where they are."""

    def __init__(self, session: Session, names: Names, replicas: int) -> None:
        self.names = names
        self._session = session
        self._replicas = replicas
        session.listeners.append(self)

    async def prepare(self) -> None:
        """See that there is a stream, on a new connection.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, if the stream of this name is not a journal's.
        """
        session, stream = self._session, self.names.stream
        version = session.info.version
        if _number(version) < _OLDEST:
            old = f"{session.name} is nats-server {version}: durable calls need 2.11 or newer"
            raise CallError(ErrorCode.UNAVAILABLE, old)
        wanted = self.names.stream_config(self._replicas)
        found = await session.api(_Stream, f"STREAM.INFO.{stream}", unless=[NO_STREAM], preparing=True)
        if found.error is not None:
            found = await session.api(_Stream, f"STREAM.CREATE.{stream}", wanted, preparing=True)
        wrong = [name for name, value in wanted.items() if name != "num_replicas" and found.config.get(name) != value]
        if wrong:
            other = f"the stream {stream} of {session.name} is not the journal's: its {', '.join(wrong)} differ"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{other}; delete it, or give the journal another prefix")

    # --- writing ------------------------------------------------------------------------------------------------------

    async def add(self, key: str, subject: str, body: Body, after: int, *, ttl: float | None = None) -> int | None:
        """Write an entry after the one with this number. Its own number; None if that was not the last one.

        Raises:
            CallError: UNAVAILABLE, PAYLOAD_TOO_LARGE.
        """
        headers: dict[str, object] = {
            "Nats-Expected-Last-Subject-Sequence": after,
            "Nats-Expected-Last-Subject-Sequence-Subject": self.names.log(key),
        }
        if ttl is not None:
            headers["Nats-TTL"] = max(1, ceil(ttl))
        stored = await self._session.store(_Stored, subject, headers, _encode(body), unless=_CONFLICTS)
        return stored.seq if stored.error is None else None

    async def hold(self, kind: Kind, task: Task, body: Body, after: int) -> bool:
        """Write who has a task, or that nobody has. False if the last entry was another one.

        Raises:
            CallError: UNAVAILABLE.
        """
        subject = self.names.held(task.key, kind, task.operation_id)
        return await self.add(task.key, subject, body, after, ttl=_HELD_FOR) is not None

    async def delete(self, seq: int) -> bool:
        """Remove an entry. False if there is no such.

        Raises:
            CallError: UNAVAILABLE.
        """
        what = f"STREAM.MSG.DELETE.{self.names.stream}"
        answer = await self._session.api(Answer, what, _deletion(seq), unless=_NOT_FOUND)
        return answer.error is None

    def drop(self, seq: int) -> None:
        """Remove an entry that means nothing any more, without waiting for it: it does no harm.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED.
        """
        self._session.request(f"STREAM.MSG.DELETE.{self.names.stream}", _deletion(seq))

    def tidy(self, key: str, before: int) -> None:
        """Remove whatever says who had a task before this entry, without waiting for it.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED.
        """
        request = {"filter": self.names.log(key, "since.held.>"), "seq": before}
        self._session.request(f"STREAM.PURGE.{self.names.stream}", request)

    def busy(self, key: str) -> CallError:
        """The error for a task that others change all the time."""
        return CallError(ErrorCode.UNAVAILABLE, f"{key!r:.80} is being changed by others at {self._session.name}")

    # --- reading ------------------------------------------------------------------------------------------------------

    async def last(self, key: str) -> Entry | None:
        """The last entry of a key.

        Raises:
            CallError: UNAVAILABLE.
        """
        entry = await self._find({"last_by_subj": self.names.log(key)})
        if entry is None or entry.kind == "task" or entry.body.outcome is not None:
            return entry
        if await self._find({"seq": entry.birth}) is None:
            return msgspec.structs.replace(entry, kind="gone")
        return entry

    async def since(self, key: str) -> Entry | None:
        """The last entry of a key that is not the task itself, which may be large. Perhaps it is older than the task.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._find({"last_by_subj": self.names.log(key, "since.>")})

    async def outcome(self, key: str) -> Outcome | None:
        """What came of a task.

        Raises:
            CallError: UNAVAILABLE.
        """
        entry = await self.since(key)
        if entry is not None and entry.kind == "buried":
            entry = await self.last(key)  # it may have been replayed
        return None if entry is None else entry.body.outcome

    async def buried(self, subject: str) -> Outcome | None:
        """The outcome with this subject, unless the task was purged or replayed.

        Raises:
            CallError: UNAVAILABLE.
        """
        last = await self._find({"last_by_subj": f"{subject.rsplit('.', 5)[0]}.>"})
        return last.body.outcome if last is not None and last.kind == "buried" else None

    async def _find(self, which: dict[str, object]) -> Entry | None:
        found = await self._session.api(_Found, f"STREAM.MSG.GET.{self.names.stream}", which, unless=_NOT_FOUND)
        if found.message is None:
            return None
        message = found.message
        return Entry(message.seq, self.names.kind(message.subject), message.time, read(message.data))

    async def subjects(self, what: str) -> list[str]:
        """The subjects of such entries.

        Raises:
            CallError: UNAVAILABLE.
        """
        found: list[str] = []
        while True:
            request = {"subjects_filter": self.names.every(what), "offset": len(found)}
            page = await self._session.api(_Stream, f"STREAM.INFO.{self.names.stream}", request)
            found += page.state.subjects or {}
            if len(found) >= page.total or not page.state.subjects:
                return found

    async def now(self) -> datetime | None:
        """What time it is where entries are stored.

        Raises:
            CallError: UNAVAILABLE.
        """
        return (await self._session.api(_Stream, f"STREAM.INFO.{self.names.stream}")).ts


def read(data: bytes) -> Body:
    """What is in an entry.

    Raises:
        CallError: PROTOCOL_ERROR, if somebody else has put something else there.
    """
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"an entry of the journal cannot be read: {error}") from error


def _deletion(seq: int) -> dict[str, object]:
    return {"seq": seq, "no_erase": True}


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])
