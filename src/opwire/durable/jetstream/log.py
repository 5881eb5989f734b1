"""The stream of `NatsJournal`, which stores one log for each task.

The subjects of its entries contain the task's key, `<prefix>.durable.<key>.…`. The last entry is the state of the task:

    task.<operation>                                     submitted
    since.held.lease.<operation>                         claimed again, or a lease was renewed
    since.held.later.<operation>                         released
    since.ended.done|buried.<operation>.<peer>.<time>    ended with an outcome; buried: as a dead letter

Each write names the expected last entry, and JetStream rejects it if that has changed: of two concurrent submissions,
claims, renewals, releases or outcomes of a task, one fails and learns it. The sequence number of the entry `task`
distinguishes the lives of a key before and after a replay.

The stream is a work queue: a task leaves it when it is acknowledged, after its outcome was stored. Outcomes expire
(`Nats-TTL`), and are republished when they are stored, under `<prefix>.ended.<peer>.<key>`: `<peer>` is the one at
which the task was submitted, so that one subscription is enough for all its calls, or `-`.
"""

import re
from collections import deque
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from math import ceil
from typing import Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct

from opwire.durable.jetstream.session import (
    NO_STREAM,
    NOT_FOUND,
    ApiResponse,
    JetStreamSession,
    MessageFound,
    SessionListener,
    StreamFound,
    unavailable,
)
from opwire.durable.journal import Outcome, Task
from opwire.errors import CallError, ErrorCode
from opwire.transports.nats.transport import Subjects

Kind = Literal["task", "lease", "later", "done", "dead letter", "gone"]
"""What an entry is. `gone`: the task was purged, or its outcome has expired, and a part of its log is left."""

MAX_WRITES = 5
"""Attempts to write an entry while others do; in a cluster a conflict may be spurious."""

_KINDS: dict[str, Kind] = {
    "since.held.lease": "lease",
    "since.held.later": "later",
    "since.ended.done": "done",
    "since.ended.buried": "dead letter",
}
_MAX_TOKEN_CHARACTERS = 200  # the name of a consumer, and of its folder, may have 255
_PLAIN_TOKEN = re.compile(rf"[A-Za-z0-9_~-]{{1,{_MAX_TOKEN_CHARACTERS}}}")
_ATTEMPT_MEMORY_SECONDS = 30 * 24 * 3600  # while no worker claims the task
_MAX_REPEATED_PURGES = 256
_OLDEST_VERSION = (2, 11)
_EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"

_CONFLICT_ERRORS = (10071, 10164)  # 10164: the cluster is storing another entry for the same key


class EntryBody(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The payload of an entry. `birth` is the number of the task's first entry, which cannot contain its own number.

    `caller` belongs to a task: the peer at which a caller waits for its outcome.
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

    def log(self, key: str, suffix: str = ">") -> str:
        """Return the subject of all entries of a key, or of those of one kind."""
        return f"{self._root}{token(key)}.{suffix}"

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
        """Return the subject of an outcome, for which a caller waits at this peer."""
        kind, operation = "buried" if outcome.dead_letter else "done", token(outcome.operation_id)
        return self.log(outcome.key, f"since.ended.{kind}.{operation}.{caller}.{outcome.recorded}")

    def republished(self, key: str) -> str:
        """Return the subject under which an outcome is republished, for any peer."""
        return f"{self._republished}*.{token(key)}"

    def republished_to(self, peer: str) -> str:
        """Return the subject under which the outcomes for a peer are republished."""
        return f"{self._republished}{peer}.*"

    def every(self, suffix: str) -> str:
        """Return the subject of entries of one kind of all keys."""
        return f"{self._root}*.{suffix}"

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
    if _PLAIN_TOKEN.fullmatch(name):  # most are; 4 µs less
        return name
    quoted = quote(name, safe="", errors="surrogatepass").replace(".", "%2E").replace("%", "=")
    if len(quoted) > _MAX_TOKEN_CHARACTERS:
        return f"=sha256-{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
    return quoted or "="


class TaskLog(SessionListener):
    """The logs of all tasks, with the names of `names`. Its methods raise `CallError`, as those of the session do."""

    def __init__(self, session: JetStreamSession, names: JournalSubjects, replicas: int) -> None:
        self.names = names
        self._session = session
        self._replicas = replicas
        self._purge_method = f"STREAM.PURGE.{names.stream}"
        self._tidied: deque[tuple[str, int]] = deque(maxlen=_MAX_REPEATED_PURGES)
        session.listeners.append(self)

    async def prepare(self) -> None:
        """Create the stream if it is missing, and repeat removals of leases.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, if a stream of this name is not a journal's.
        """
        session, stream = self._session, self.names.stream
        version = session.info.version
        if tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2]) < _OLDEST_VERSION:
            raise unavailable(f"{session.name} is nats-server {version}: durable calls need 2.11 or newer")
        config = self.names.stream_config(self._replicas)
        response = await session.api(StreamFound, f"STREAM.INFO.{stream}", unless=[NO_STREAM], preparing=True)
        if response.error is not None:
            response = await session.api(StreamFound, f"STREAM.CREATE.{stream}", config, preparing=True)
        stored = response.config
        wrong_names = [name for name, value in config.items() if name != "num_replicas" and stored.get(name) != value]
        if wrong_names:
            other = f"the stream {stream} of {session.name} is not the journal's: its {', '.join(wrong_names)} differ"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{other}; delete it, or give the journal another prefix")
        for key, before_seq in self._tidied:
            session.request(self._purge_method, self._purge_request(key, before_seq))

    async def add(self, subject: str, body: EntryBody, last_seq: int, ttl: float = 0.0) -> int | None:
        """Write an entry after the one with this number; return its number, or None on a conflict.

        It expires after `ttl` seconds; 0: never.
        """
        expires = f"Nats-TTL: {max(1, ceil(ttl))}\r\n" if ttl else ""
        condition = f"{_EXPECTED_HEADER}: {last_seq}\r\n{_EXPECTED_HEADER}-Subject: {self.names.whole_log(subject)}\r\n"
        headers = f"NATS/1.0\r\n{condition}{expires}\r\n".encode("latin-1")
        stored = await self._session.store(subject, _encode(body), headers, unless=_CONFLICT_ERRORS)
        return stored.seq if stored.error is None else None

    async def hold(self, kind: Kind, task: Task, body: EntryBody, last_seq: int) -> bool:
        """Write a lease or release; return False on a conflict."""
        subject = self.names.held(task.key, kind, task.operation_id)
        return await self.add(subject, body, last_seq, _ATTEMPT_MEMORY_SECONDS) is not None

    async def delete(self, seq: int) -> bool:
        """Delete an entry; return False if it is unknown."""
        method, request = f"STREAM.MSG.DELETE.{self.names.stream}", {"seq": seq, "no_erase": True}
        return (await self._session.api(ApiResponse, method, request, unless=NOT_FOUND, once=True)).error is None

    def drop(self, seq: int) -> None:
        """Delete an obsolete entry, without a wait: a failure is harmless."""
        self._session.request(f"STREAM.MSG.DELETE.{self.names.stream}", {"seq": seq, "no_erase": True})

    async def tidy(self, key: str, before_seq: int) -> None:
        """Delete the leases and releases before an entry.

        A server that is killed may lose a removal that it has confirmed, since it writes to its disk later. So the
        removal is repeated over the next connection.
        """
        await self._session.api(ApiResponse, self._purge_method, self._purge_request(key, before_seq))
        self._tidied.append((key, before_seq))

    def _purge_request(self, key: str, before_seq: int) -> dict[str, object]:
        return {"filter": self.names.log(key, "since.held.>"), "seq": before_seq}

    def busy(self, key: str) -> CallError:
        """Return the error for a task with too many conflicts."""
        return unavailable(f"{key!r:.80} is being changed by others at {self._session.name}")

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
        if entry is not None and entry.kind == "dead letter":
            entry = await self.last(key)  # it may have been replayed
        return None if entry is None else entry.body.outcome

    async def dead_letter(self, subject: str) -> Outcome | None:
        """Return the outcome with this subject, unless the task was purged or replayed."""
        last_entry = await self._find({"last_by_subj": f"{subject.rsplit('.', 6)[0]}.>"})
        return last_entry.body.outcome if last_entry is not None and last_entry.kind == "dead letter" else None

    async def next_task(self, operation_id: str, seq: int) -> Entry | None:
        """Return the first task of an operation from this number on; an invalid one has no task in it."""
        subject = self.names.every(f"task.{token(operation_id)}")
        return await self._find({"seq": seq, "next_by_subj": subject}, strict=False)

    async def _find(self, query: dict[str, object], *, strict: bool = True) -> Entry | None:
        method = f"STREAM.MSG.GET.{self.names.stream}"
        message = (await self._session.api(MessageFound, method, query, unless=NOT_FOUND)).message
        if message is None:
            return None
        try:
            body = decode_entry(message.data)
        except CallError:
            if strict:
                raise
            body = EntryBody(fingerprint="")
        return Entry(message.seq, self.names.kind(message.subject), message.time, body)

    async def subjects(self, suffix: str) -> list[str]:
        """Return the subjects of all entries of one kind."""
        subjects: list[str] = []
        while True:
            request = {"subjects_filter": self.names.every(suffix), "offset": len(subjects)}
            page = await self._session.api(StreamFound, f"STREAM.INFO.{self.names.stream}", request)
            subjects += page.state.subjects or {}
            if len(subjects) >= page.total or not page.state.subjects:
                return subjects

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
