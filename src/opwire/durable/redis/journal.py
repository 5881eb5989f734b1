"""Durable calls over Redis Streams: `RedisJournal`. Needs Redis 6.2 or newer, or Valkey.

Durability is that of Redis. If our processes crash, every submitted task still runs, and every recorded outcome is
kept. If Redis itself crashes, its settings decide. With `appendonly yes` and `appendfsync`:

    always      no acknowledged write is lost, even when the machine loses power
    everysec    the default: submissions and outcomes of the last second or two may be lost
    no          if only Redis dies, nothing is lost; with the machine, what its kernel has not written (about 30 s)

With `appendonly no`, everything since the last snapshot is lost. After the loss of an outcome its task runs again;
after the loss of a submission it has to be submitted again, which the same key makes safe.

With any setting, a replica that takes over may lack the latest writes, since Redis acknowledges them before they are
replicated. `min-replicas-to-write 1` and `min-replicas-max-lag 2` bound that to about two seconds, also for a primary
that is cut off from its replicas: it rejects further writes.

Unfinished tasks must not be evicted: set `maxmemory-policy` to `noeviction` or one of `volatile-…`, which evict nothing
but outcomes.

Unfinished tasks never expire. Outcomes are kept for `keep` seconds, dead letters until they are replayed or purged.

**Data model.** Each operation has a stream of tasks, with one consumer group. An entry has one field: a JSON array of
key, fingerprint and time of submission, a line feed, and the request. It stays in its stream, under one id, from
`submit` until its outcome is recorded; its attempts are the group's delivery count. The lease of a claim is part of the
name of its consumer (`<peer>:<milliseconds>`): it has expired when the entry was idle for that time, by any reader's
clock. A released entry belongs to the consumer `released`, and is in the sorted set `later` under the time when it is
due; a released suspect is in the set `suspects`. An entry that has failed or was lost has a line in the hash
`history`: failures, losses, losses while alone, 1 for a suspect, 1 if its worker runs nothing else.

Each idempotency key has a string. Until the task has an outcome, it is `<fingerprint> <id of the entry> <peers>`: the
peers at which callers wait. Outcomes that are recorded together are published to the channel of each, as one array of
MessagePack. Then the string is the fingerprint, a line feed and the outcome, and expires. That of a dead letter does
not, and its entry is in the hash `requests`, for a replay. One command reads or sets the strings of many tasks.

**Scripts** change the data atomically; all of their commands exist in Redis 6.2. Tasks are submitted, claimed and
recorded many at a time, since a script costs more than what it does for one task. When Redis is out of memory, a script
that has begun to write may finish. So the scripts that end a task begin with a command that needs no memory: outcomes
can be recorded even then, and every script is all or nothing.

**Claims.** A claim reads the tasks that are queued, up to its limit. On an empty queue, its connection blocks: Redis
gives the next task to the worker that has waited longest, and wakes no other. Released and lost tasks are polled for by
a script: Redis does not signal when they are due.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import ceil, inf
from pathlib import Path
from secrets import token_hex
from ssl import SSLContext
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Struct

from opwire.durable.broker_journal import BrokerJournal
from opwire.durable.journal import (
    DEFAULT_KEEP_SECONDS,
    MAX_SECONDS,
    Claim,
    JournalInfo,
    Outcome,
    PendingTask,
    Task,
    check_seconds,
    key_in_use,
    seconds_within,
)
from opwire.durable.redis.session import RESPONSE_TIMEOUT_SECONDS, RedisSession
from opwire.errors import CallError, ErrorCode
from opwire.runtime.tasks import reject, resolve, spawn
from opwire.runtime.text import get_logger
from opwire.transports.redis.connection import Part, Script, command, is_refusal, load_script, refusal
from opwire.transports.redis.servers import parse_servers

logger = get_logger("opwire.durable.redis")

_IDLE_CONSUMER_MILLISECONDS = 600_000
"""Time after which a consumer without tasks is deleted."""

_POLL_SECONDS = 1.0
"""Longest time between two polls for released and lost tasks."""

_OUTCOMES_PER_PAGE = 100

_MAX_SCRIPT_BYTES = 16 * 1024
"""Size of the items that share a script: about 40 small ones. A larger item has a script of its own.

With all tasks of a turn in one script, callers and workers wait for each other: with 32 kB there were a tenth fewer
calls per second, and with 8 kB as well.
"""

_ITEM_BYTES = 250
"""Size of an item beside its request or outcome: keys, digest, times."""

_encode = msgspec.msgpack.Encoder().encode
_entry_head = msgspec.json.Decoder(tuple[str, str, int])  # key, fingerprint and time: what precedes the request
_outcome_decoder = msgspec.msgpack.Decoder(Outcome)
_outcomes_decoder = msgspec.msgpack.Decoder(list[Outcome])

# --- keys and scripts -------------------------------------------------------------------------------------------------


class JournalKeys:
    """The names of the keys under one prefix. Journals with different prefixes are isolated from each other."""

    def __init__(self, prefix: str) -> None:
        def name(kind: str, suffix: str) -> bytes:
            # Callers may pass any text; text that UTF-8 cannot encode is an unknown name, not an error.
            return f"{prefix}:durable:{kind}:{suffix}".encode("utf-8", "surrogatepass")

        self.operations = f"{prefix}:durable:operations".encode()
        self.channels = f"{prefix}:durable:inbox:".encode()  # followed by the name of a peer
        self.task = partial(name, "call")  # the string of an idempotency key; the others are by operation id
        self.stream = partial(name, "queue")
        self.later = partial(name, "later")  # a sorted set: released tasks
        self.suspects = partial(name, "suspects")  # a sorted set: released tasks after a lost attempt
        self.history = partial(name, "history")  # a hash: failures and losses
        self.dead_letters = partial(name, "buried")  # a sorted set
        self.requests = partial(name, "requests")  # a hash: the entries of dead letters

    def queue(self, operation_id: str) -> list[bytes]:
        """Return the keys of the unfinished tasks of an operation, in the order in which scripts take them."""
        return [name(operation_id) for name in (self.stream, self.later, self.suspects, self.history)]

    def operation(self, operation_id: str) -> list[bytes]:
        """Return all keys of an operation, in the order in which scripts take them."""
        return [*self.queue(operation_id), self.dead_letters(operation_id), self.requests(operation_id)]


_load = partial(load_script, Path(__file__).with_name("scripts"))

SUBMIT_SCRIPT = _load("note_peer", "submit")
WAIT_SCRIPT = _load("note_peer", "wait")
TAKE_SCRIPT = _load("history", "take")
RENEW_SCRIPT = _load("history", "if_ours", "renew")
RELEASE_SCRIPT = _load("history", "if_ours", "release")
RECORD_SCRIPT = _load("record")
CANCEL_SCRIPT = _load("cancel")
REPLAY_SCRIPT = _load("replay")
PURGE_SCRIPT = _load("purge")
COUNT_SCRIPT = _load("count")
PENDING_SCRIPT = _load("pending")
LEAVE_SCRIPT = _load("leave")

SCRIPTS = (
    SUBMIT_SCRIPT,
    WAIT_SCRIPT,
    TAKE_SCRIPT,
    RENEW_SCRIPT,
    RELEASE_SCRIPT,
    RECORD_SCRIPT,
    CANCEL_SCRIPT,
    REPLAY_SCRIPT,
    PURGE_SCRIPT,
    COUNT_SCRIPT,
    PENDING_SCRIPT,
    LEAVE_SCRIPT,
)


class _ScriptBatch(Struct, eq=False):
    """Items that one script handles: their replies by key, and their arguments."""

    replies: dict[bytes, asyncio.Future[Any]] = {}
    arguments: list[Part] = []
    size: int = 0


class ScriptBatches:
    """Runs a script once for the items of an operation that arrive in the same turn of the event loop.

    `shared` returns the keys and arguments of an operation that precede those of the items.
    """

    def __init__(
        self, session: RedisSession, script: Script, shared: Callable[[str], tuple[Sequence[bytes], Sequence[Part]]]
    ) -> None:
        self._session = session
        self._script = script
        self._shared = shared
        self._open_batches: dict[str, _ScriptBatch] = {}  # by operation; each is sent in the next turn
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, operation_id: str, size: int, key: bytes, *arguments: Part) -> Any:
        """Run the script for an item with a payload of `size` bytes, and return its reply.

        Raises:
            CallError: the script failed, or this item.
        """
        batch = self._open_batches.get(operation_id)
        size += _ITEM_BYTES
        if batch is None or key in batch.replies or batch.size + size > _MAX_SCRIPT_BYTES:
            batch = self._open_batches[operation_id] = _ScriptBatch()
            spawn(self._run(operation_id, batch), self._running)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        batch.replies[key] = reply
        batch.arguments.extend(arguments)
        batch.size += size
        return await reply

    async def _run(self, operation_id: str, batch: _ScriptBatch) -> None:
        if self._open_batches.get(operation_id) is batch:
            del self._open_batches[operation_id]
        keys, arguments = self._shared(operation_id)
        futures = batch.replies.values()
        try:
            script_keys = [*keys, *batch.replies]
            replies = await self._session.run(self._script, script_keys, *arguments, *batch.arguments)
            if replies == 0:  # nearly always: the same for all items
                replies = [0] * len(futures)
            for future, reply in zip(futures, replies, strict=True):
                if is_refusal(reply):
                    reject(future, refusal(self._session.name, reply))
                else:
                    resolve(future, reply)
        except Exception as error:  # of any kind: no caller may be left waiting
            for future in futures:
                reject(future, error)

    async def close(self) -> None:
        """Wait for the scripts that are on their way; the session has been closed."""
        await asyncio.gather(*self._running)


# --- entries of a stream ----------------------------------------------------------------------------------------------


class StreamReceipt(NamedTuple):
    """The receipt of a claim: the entry, and the consumer that claimed it."""

    entry_id: str
    consumer: str

    @classmethod
    def of(cls, claim: Claim) -> "StreamReceipt":
        """Parse the receipt of a claim."""
        entry_id, _, consumer = claim.receipt.partition(" ")
        return cls(entry_id, consumer)


class _StreamEntry(NamedTuple):
    """An entry of a stream that this peer has claimed."""

    operation_id: str
    id: bytes
    attempt: int
    fields: list[bytes]
    history: Sequence[int] = (0, 0, 0, 0, 0)

    @property
    def suspect(self) -> bool:
        return self.history[3] == 1

    def claim(self, lease: float, consumer: str) -> Claim:
        """Return the claim of this entry by a consumer; raises ValueError."""
        if self.fields[::2] != [b"task"]:
            raise ValueError(f"unknown fields {self.fields[::2]!r:.200}")
        head, _, request = self.fields[1].partition(b"\n")
        key, fingerprint, submitted = _entry_head.decode(head)
        task = Task(
            key=key, operation_id=self.operation_id, request=request, fingerprint=fingerprint, submitted=submitted
        )
        failures, losses, lone_losses = self.history[:3]
        return Claim(
            task=task,
            attempt=self.attempt,
            lease=lease,
            receipt=f"{self.id.decode()} {consumer}",
            failures=failures,
            losses=losses,
            lone_losses=lone_losses,
            suspect=self.suspect,
        )


def without_space(fingerprint: str) -> str:
    """Return a fingerprint without white space; different ones stay different, and hexadecimal ones the same."""
    return fingerprint if fingerprint.isascii() and fingerprint.isalnum() else quote(fingerprint, safe="")


# --- the journal ------------------------------------------------------------------------------------------------------


class RedisJournal(BrokerJournal):
    """A `Journal` in a Redis server, the primary that Sentinels elect, or a server of a cluster.

        async with RedisJournal("redis://127.0.0.1:6379") as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    The URL is that of `RedisTransport`. Peers with the same `prefix` on the same database share the journal. `trusted`
    accepts the identity in a request from any client that can write to this server.

    Raises:
        UsageError: the URL or `keep` is invalid.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        prefix: str = "opwire",
        keep: float = DEFAULT_KEEP_SECONDS,
        trusted: bool = False,
        ssl: SSLContext | None = None,
    ) -> None:
        self._servers = parse_servers(url, ssl, prefix=prefix)
        super().__init__(self._servers.name, trusted=trusted)
        self._keep_milliseconds = max(1, ceil(check_seconds("keep", keep) * 1000))
        self.keys = keys = JournalKeys(self._servers.key_prefix(prefix))
        self.peer = token_hex(8)
        self._session = RedisSession(
            self._servers,
            scripts=SCRIPTS,
            channel=keys.channels + self.peer.encode(),
            pushed=self._read_outcomes,
            lost=self._waiters.fail,
        )
        self._submissions = ScriptBatches(
            self._session,
            SUBMIT_SCRIPT,
            lambda operation_id: ((keys.stream(operation_id), keys.operations), (operation_id,)),
        )
        self._records = ScriptBatches(
            self._session,
            RECORD_SCRIPT,
            lambda operation_id: (keys.operation(operation_id), (self._keep_milliseconds, keys.channels)),
        )
        self._idle_sessions: list[RedisSession] = []  # of claims
        self._consumers: dict[bytes, str] = {}  # the latest, by stream
        self._poll_times: dict[tuple[tuple[str, ...], bool], float] = {}  # by operations, and whether for suspects
        self._turn = 0

    async def start(self) -> None:
        """Connect; log a warning for settings of the server that put tasks at risk."""
        self._waiters.bind()
        await self._session.ask(command(b"PING"))
        try:
            sections = await self._session.ask(command(b"INFO", b"persistence"), command(b"INFO", b"memory"))
        except CallError as error:
            logger.debug("%s does not show its settings: %s", self.name, error)
            return
        settings = b"".join(sections)
        if b"aof_enabled:0" in settings:
            logger.warning("%s has no append-only file: a crash loses durable calls; set appendonly yes", self.name)
        if b"maxmemory_policy:allkeys" in settings:
            logger.warning("%s may evict durable calls: set maxmemory-policy to noeviction", self.name)

    async def close(self) -> None:
        """Disconnect; pending waits raise UNAVAILABLE. A second call is a no-op."""
        self._waiters.fail(CallError(ErrorCode.UNAVAILABLE, f"the journal at {self.name} was closed"))
        await super().close()

    async def leave(self) -> None:
        """Delete the consumers of this peer that have no tasks."""
        await self._close_idle_sessions()
        if self._consumers:
            await self._session.run(LEAVE_SCRIPT, list(self._consumers), *self._consumers.values())

    async def disconnect(self) -> None:
        """End the connections."""
        await self._session.close()
        await asyncio.gather(self._submissions.close(), self._records.close())

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        """Store a task, unless its key is known; return its outcome, waiting for it up to `wait` seconds.

        Raises:
            CallError: VALIDATION_ERROR, if the key is known with another fingerprint; UNAVAILABLE.
        """
        if wait <= 0:
            return await self._store(task)
        deadline = time.monotonic() + wait
        with self._waiters.waiting(task.key) as waiter:
            outcome = await self._store(task, self.peer)
            return outcome or await waiter.outcome(deadline, partial(self._look_up, task.key))

    async def _store(self, task: Task, waiting_peer: str = "") -> Outcome | None:
        entry = msgspec.json.encode((task.key, task.fingerprint, task.submitted)) + b"\n" + task.request
        arguments = (entry, without_space(task.fingerprint), waiting_peer)
        key = self.keys.task(task.key)
        reply = await self._submissions.run(task.operation_id, len(task.request), key, *arguments)
        if reply == -1:
            raise key_in_use(task.key)
        return _decode(reply) if reply else None

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """Claim the next tasks of these operations."""
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, f"the journal at {self.name} was closed")
        operations = tuple(operation_ids)
        consumer = f"{self.peer}:{max(1, ceil(lease * 1000))}"
        self._consumers.update((self.keys.stream(operation_id), consumer) for operation_id in operations)
        entries = await self._claim_entries(operations, consumer, lease, wait, limit, suspects=suspects)
        claims: list[Claim] = []
        for entry in entries:
            try:
                claims.append(entry.claim(lease, consumer))
            except ValueError as error:
                await self._remove(entry, error)
        for excess_claim in claims[limit:]:  # several operations had new tasks at the same time
            await self._release(excess_claim, 0.0, attempts=excess_claim.attempt - 1)
        return claims[:limit]

    async def _claim_entries(
        self, operations: tuple[str, ...], consumer: str, lease: float, wait: float, limit: int, *, suspects: bool
    ) -> list[_StreamEntry]:
        """Poll for released and lost tasks if it is time to, then read new ones."""
        now = time.monotonic()
        poll_interval = min(_POLL_SECONDS, lease / 3)
        is_poll_due = now - self._poll_times.get((operations, suspects), -inf) >= poll_interval
        can_read = 0 < len(operations) <= limit  # a read returns a task of each operation
        entries: list[_StreamEntry] = []
        if is_poll_due or not can_read:
            entries = await self._take(operations, consumer, limit, polls=is_poll_due, suspects=suspects)
        if is_poll_due and not (entries and entries[0].suspect):  # otherwise there may be more
            self._poll_times[operations, suspects] = now
        if entries or not (can_read or (operations and wait > 0)):
            return entries
        try:
            return await self._read(operations, consumer, limit, min(wait, poll_interval))
        except CallError as error:
            if "NOGROUP" not in error.message:  # a stream was deleted: the script creates it
                raise
            return await self._take(operations, consumer, limit, polls=is_poll_due, suspects=suspects)

    async def _take(
        self, operations: tuple[str, ...], consumer: str, limit: int, *, polls: bool, suspects: bool
    ) -> list[_StreamEntry]:
        """Claim queued tasks, each time starting with another operation if there is no room for all."""
        self._turn += 1
        keys = [self.keys.operations]
        for operation_id in operations:
            keys += self.keys.queue(operation_id)
        arguments = (consumer, limit, int(polls), self._turn, _IDLE_CONSUMER_MILLISECONDS, int(suspects), *operations)
        async with self._claim_session() as session:
            entries = await session.run(TAKE_SCRIPT, keys, *arguments)
        return [_StreamEntry(operations[index], *entry) for index, *entry in entries]

    async def _read(self, operations: tuple[str, ...], consumer: str, limit: int, wait: float) -> list[_StreamEntry]:
        """Claim new tasks, waiting for the first; without a script, which would copy the requests twice.

        A task that arrives goes to the worker that has waited longest, and then the others of its turn to the first
        that reads on. Both commands are sent at once: a connection that blocks executes no other.
        """
        operation_by_stream = {self.keys.stream(operation_id): operation_id for operation_id in operations}
        group = (b"GROUP", b"workers", consumer, b"COUNT")
        streams = (b"STREAMS", *operation_by_stream, *[b">"] * len(operation_by_stream))
        tasks_per_operation = limit // len(operations)
        commands: list[bytes] = []
        if wait > 0:
            commands.append(command(b"XREADGROUP", *group, 1, b"BLOCK", max(1, ceil(wait * 1000)), *streams))
            tasks_per_operation -= 1
        if tasks_per_operation > 0:
            commands.append(command(b"XREADGROUP", *group, tasks_per_operation, *streams))
        replies: list[dict[bytes, list[Any]] | None]
        async with self._claim_session() as session:
            replies = await session.ask(*commands, patience=wait + RESPONSE_TIMEOUT_SECONDS)
        return [
            _StreamEntry(operation_by_stream[stream], entry_id, 1, fields)
            for reply in replies
            for stream, entries in (reply or {}).items()
            for entry_id, fields in entries
        ]

    @asynccontextmanager
    async def _claim_session(self) -> AsyncGenerator[RedisSession]:
        """Return a session that no other claim uses.

        Not the session of the scripts: that is subscribed to outcomes, and Redis buffers 32 MiB for a subscriber.
        """
        session = self._idle_sessions.pop() if self._idle_sessions else RedisSession(self._servers, scripts=SCRIPTS)
        try:
            yield session
        except BaseException:
            await session.close()  # a task that it receives all the same is claimed again when its lease expires
            raise
        self._idle_sessions.append(session)
        if self._closed:
            await self._close_idle_sessions()

    async def _close_idle_sessions(self) -> None:
        while self._idle_sessions:
            await self._idle_sessions.pop().close()

    async def _remove(self, entry: _StreamEntry, error: ValueError) -> None:
        """Remove an invalid entry, which another program wrote."""
        logger.error("removed an invalid task of %s: %s", entry.operation_id, error)
        stream = self.keys.stream(entry.operation_id)
        await self._session.ask(command(b"XACK", stream, b"workers", entry.id), command(b"XDEL", stream, entry.id))

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Renew a lease; return False if it was lost."""
        keys = [self.keys.stream(claim.task.operation_id), self.keys.history(claim.task.operation_id)]
        return bool(await self._session.run(RENEW_SCRIPT, keys, *StreamReceipt.of(claim), claim.attempt, int(alone)))

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Return a task to the queue, to be claimed again after `delay` seconds."""
        await self._release(claim, delay, attempts=claim.attempt, failed=failed)

    async def _release(self, claim: Claim, delay: float, *, attempts: int, failed: bool = False) -> None:
        milliseconds = ceil(seconds_within(delay, MAX_SECONDS) * 1000)
        arguments = (*StreamReceipt.of(claim), claim.attempt, milliseconds, attempts, int(failed))
        await self._session.run(RELEASE_SCRIPT, self.keys.queue(claim.task.operation_id), *arguments)

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        """End a task that is not claimed; return its outcome, or None if it is claimed or unknown."""
        operation_id = outcome.operation_id
        keys = [self.keys.task(outcome.key), *self.keys.queue(operation_id)]
        arguments = (outcome.key, _encode(outcome), self._keep_milliseconds, self.keys.channels)
        recorded = _recorded(outcome, await self._session.run(CANCEL_SCRIPT, keys, *arguments))
        return recorded if recorded is not None and recorded.operation_id == operation_id else None

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """Record the outcome of a task; return the first recorded one, or None if the task is unknown."""
        await self.pace(outcome)
        task, receipt = claim.task, StreamReceipt.of(claim)
        time_and_key = f"{outcome.recorded} {task.key}" if outcome.dead_letter else b""
        arguments = (receipt.entry_id, _encode(outcome), time_and_key)
        key = self.keys.task(task.key)
        return _recorded(outcome, await self._records.run(task.operation_id, len(outcome.event), key, *arguments))

    async def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a task, if any yet."""
        (value,) = await self._session.ask(command(b"GET", self.keys.task(key)))
        return _parse(value)

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task; return None after the timeout."""
        deadline, look_up = time.monotonic() + timeout, partial(self._look_up, key)
        with self._waiters.waiting(key) as waiter:
            return await look_up() or await waiter.outcome(deadline, look_up)

    async def _look_up(self, key: str) -> Outcome | None:
        """Return the outcome of a task; without one, note that a caller waits here."""
        outcome = await self._session.run(WAIT_SCRIPT, [self.keys.task(key)], self.peer)
        return None if outcome is None else _decode(outcome)

    def _read_outcomes(self, message: bytes) -> None:
        try:
            outcomes = _outcomes_decoder.decode(message)
        except (ValueError, RecursionError) as error:  # any client can publish to the channel
            logger.warning("ignored a message for %s: it does not hold outcomes: %s", self.name, error)
            return
        for outcome in outcomes:
            self._waiters.resolve(outcome)

    # --- maintenance --------------------------------------------------------------------------------------------------

    async def dead_letters(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """Yield the outcomes of dead letters, the oldest first."""
        operations = await self._operations() if operation_id is None else [operation_id]
        sets = [self.keys.dead_letters(operation_id) for operation_id in operations]
        replies = await self._session.ask(*(command(b"ZRANGE", name, 0, -1, b"WITHSCORES") for name in sets))
        keys_and_times = [key_and_time for reply in replies for key_and_time in reply]
        keys_and_times.sort(key=lambda key_and_time: key_and_time[1])
        names = [self.keys.task(_read_name(key)) for key, _ in keys_and_times]
        for start in range(0, len(names), _OUTCOMES_PER_PAGE):
            page = names[start : start + _OUTCOMES_PER_PAGE]
            for value in await self._session.ask(*(command(b"GET", name) for name in page)):
                try:
                    outcome = _parse(value)
                except CallError as error:  # must not hide the others
                    logger.warning("ignored a dead letter of %s: %s", self.name, error.message)
                    continue
                if outcome is not None:  # else purged or replayed meanwhile
                    yield outcome

    async def pending(self, operation_id: str, *, limit: int = 100) -> list[PendingTask]:
        """Return the tasks of an operation that wait or run, the oldest first, at most `limit`."""
        rows = await self._session.run(PENDING_SCRIPT, [self.keys.stream(operation_id)], limit)
        return [
            PendingTask(
                key=_read_name(key),
                operation_id=operation_id,
                submitted=submitted,
                claimed=bool(claimed),
                attempts=attempts,
            )
            for key, submitted, claimed, attempts in rows
        ]

    async def replay(self, key: str) -> bool:
        """Submit a dead letter again; return False if it is unknown."""
        outcome = await self.outcome(key)
        if outcome is None:
            return False
        operation_id, keys = outcome.operation_id, self.keys
        names = [keys.stream(operation_id), keys.dead_letters(operation_id), keys.requests(operation_id)]
        return bool(await self._session.run(REPLAY_SCRIPT, [keys.task(key), *names], key))

    async def purge(self, key: str) -> bool:
        """Delete a task that has ended; return False if it is unknown."""
        outcome = await self.outcome(key)
        if outcome is None:
            return False
        names = [self.keys.dead_letters(outcome.operation_id), self.keys.requests(outcome.operation_id)]
        return bool(await self._session.run(PURGE_SCRIPT, [self.keys.task(key), *names], key))

    async def info(self) -> list[JournalInfo]:
        """Return the number of tasks of each operation."""
        infos: list[JournalInfo] = []
        keys = self.keys
        for operation_id in await self._operations():
            names = [keys.stream, keys.later, keys.suspects, keys.dead_letters]
            counts = await self._session.run(COUNT_SCRIPT, [name(operation_id) for name in names])
            waiting, claimed, dead_letters = counts
            infos.append(
                JournalInfo(operation_id=operation_id, waiting=waiting, claimed=claimed, dead_letters=dead_letters)
            )
        return infos

    async def _operations(self) -> list[str]:
        (operations,) = await self._session.ask(command(b"SMEMBERS", self.keys.operations))
        return sorted(_read_name(name) for name in operations)


def _read_name(name: bytes) -> str:
    """Decode a key or an id. Those of other programs may be invalid, and must not hide the others."""
    try:
        return name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return name.decode(errors="replace")


def _recorded(outcome: Outcome, reply: Any) -> Outcome | None:
    """Read the reply to an outcome: the one that was recorded before, 0 for this one, -1 if the task is unknown."""
    if reply == -1:
        return None
    return _decode(reply) if reply else outcome


def _parse(value: bytes | None) -> Outcome | None:
    """Parse the string of a task, and decode its outcome, if any yet."""
    _, line_feed, outcome = (value or b"").partition(b"\n")
    return _decode(outcome) if line_feed else None


def _decode(outcome: bytes) -> Outcome:
    try:
        return _outcome_decoder.decode(outcome)
    except (ValueError, RecursionError) as error:  # written by another program
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"an outcome in the journal is invalid: {error}") from error
