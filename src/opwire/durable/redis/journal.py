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

Unfinished tasks never expire. Outcomes are kept for `keep` seconds, buried ones until they are replayed or purged.
`journal_scripts` describes the data model.

A claim reads the tasks that are queued, up to its limit. On an empty queue, its connection blocks: Redis gives the next
task to the worker that has waited longest, and wakes no other. Released and lost tasks are polled for by a script:
Redis does not signal when they are due.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from math import ceil, inf
from secrets import token_hex
from ssl import SSLContext
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from opwire.durable.broker_journal import BrokerJournal
from opwire.durable.journal import (
    KEEP,
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
from opwire.durable.redis import journal_scripts as scripts
from opwire.durable.redis.journal_scripts import JournalKeys, StreamReceipt, without_space
from opwire.durable.redis.session import PATIENCE, RedisSession
from opwire.durable.waiters import OutcomeWaiter
from opwire.errors import CallError, ErrorCode
from opwire.registry.invoke import eager_task
from opwire.runtime.tasks import resolve
from opwire.runtime.text import get_logger
from opwire.transports.redis.connection import Done, Part, Script, command, is_refusal, refusal
from opwire.transports.redis.servers import parse_servers

logger = get_logger("opwire.durable.redis")

_IDLE_CONSUMER = 600_000  # milliseconds after which a consumer without tasks is deleted
_POLL = 1.0  # seconds, at most, between two polls for released and lost tasks
_PAGE = 100  # outcomes in one pipeline
_MAX_BATCH_BYTES = 256 * 1024  # of the requests or outcomes in one script; a larger one is alone
# Bytes of a batch that is sent at once instead of at the end of the turn: if all tasks of a turn are in one, callers
# and workers wait for each other. Half of 64 small tasks; with 8 or 24 kB there were a tenth fewer calls per second.
# Redis serves no other client while a script runs.
_FULL = 16 * 1024
_FRAMING = 250  # bytes of a task beside its request or outcome: keys, digest, times

_encode = msgspec.msgpack.Encoder().encode
_about = msgspec.json.Decoder(tuple[str, str, int])  # what precedes the request in an entry
_decoder = msgspec.msgpack.Decoder(Outcome)
_published = msgspec.msgpack.Decoder(list[Outcome])


class _Batch(Struct, eq=False):
    """Items that one script handles."""

    keys: dict[bytes, None] = {}  # no key twice: the second item is in a later script
    arguments: list[Part] = []
    done: list[Done] = []
    size: int = 0  # bytes
    begun: bool = False  # it is sent


class BatchedScript:
    """Runs a script for the items of one operation that arrive in the same turn of the event loop.

    `shared` returns the keys and arguments of an operation that precede those of the items.
    """

    def __init__(
        self, session: RedisSession, script: Script, shared: Callable[[str], tuple[Sequence[bytes], Sequence[Part]]]
    ) -> None:
        self._session = session
        self._script = script
        self._shared = shared
        self._batches: dict[str, _Batch] = {}  # that are not sent yet, by operation
        self._running: set[asyncio.Task[None]] = set()

    def run(self, operation_id: str, size: int, key: bytes, arguments: Iterable[Part], done: Done) -> None:
        """Run the script for an item of about `size` bytes; `done` receives its reply, or a CallError."""
        batch = self._batches.get(operation_id)
        if batch is not None and key in batch.keys:
            self._begin(operation_id, batch)
            batch = None
        if batch is None or batch.size + size > _MAX_BATCH_BYTES:
            batch = self._batches[operation_id] = _Batch()
            asyncio.get_running_loop().call_soon(self._begin, operation_id, batch)
        batch.keys[key] = None
        batch.arguments.extend(arguments)
        batch.done.append(done)
        batch.size += size
        if batch.size + _FRAMING * len(batch.keys) >= _FULL:
            self._begin(operation_id, batch)

    def _begin(self, operation_id: str, batch: _Batch) -> None:
        if batch.begun:
            return
        batch.begun = True
        if self._batches.get(operation_id) is batch:
            del self._batches[operation_id]
        task = eager_task(self._run(operation_id, batch), asyncio.get_running_loop())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, operation_id: str, batch: _Batch) -> None:
        keys, arguments = self._shared(operation_id)
        replies: Any
        try:
            replies = await self._session.run(self._script, [*keys, *batch.keys], *arguments, *batch.arguments)
        except Exception as error:  # of any kind: no caller may be left waiting
            replies = [error] * len(batch.done)
        if replies == 0:  # nearly always: the same for all items, which takes 0.5 µs less for each
            for done in batch.done:
                done(0)
            return
        for done, reply in zip(batch.done, replies, strict=True):
            done(refusal(self._session.name, reply) if is_refusal(reply) else reply)

    async def close(self) -> None:
        """Wait for the batches that are on their way; the session has been closed."""
        await asyncio.gather(*self._running)


# --- claims -----------------------------------------------------------------------------------------------------------


class _StreamEntry(NamedTuple):
    """An entry of a stream that this end has claimed."""

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
        about, _, request = self.fields[1].partition(b"\n")
        key, fingerprint, submitted = _about.decode(about)
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


class StreamClaims:
    """The claims of one end. Scripts run on `session`; `connect` opens the sessions of claims.

    Its methods raise `CallError(UNAVAILABLE)`.
    """

    def __init__(self, keys: JournalKeys, session: RedisSession, connect: Callable[[], RedisSession]) -> None:
        self._names = keys
        self._session = session
        self._connect = connect
        self._idle: list[RedisSession] = []  # sessions that no claim uses
        self._token = token_hex(8)
        self._consumers: dict[bytes, str] = {}  # the latest, by stream
        self._polled: dict[tuple[tuple[str, ...], bool], float] = {}  # by operations, and whether for suspects
        self._turn = 0
        self._closed = False

    async def claim(
        self, operation_ids: Sequence[str], lease: float, wait: float, limit: int, *, suspects: bool
    ) -> list[Claim]:
        """Claim the next tasks of these operations."""
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, f"the journal at {self._session.name} was closed")
        now, operations = time.monotonic(), tuple(operation_ids)
        interval, polled = min(_POLL, lease / 3), (operations, suspects)
        poll = now - self._polled.get(polled, -inf) >= interval
        consumer = f"{self._token}:{max(1, ceil(lease * 1000))}"
        self._consumers.update((self._names.stream(each), consumer) for each in operations)
        entries, fit = list[_StreamEntry](), 0 < len(operations) <= limit
        if poll or not fit:
            entries = await self._take(operations, consumer, limit, poll=poll, suspects=suspects)
        if poll and not (entries and entries[0].suspect):  # else there may be more
            self._polled[polled] = now
        if not entries and (fit or (operations and wait > 0)):
            try:
                entries = await self._read(operations, consumer, limit, min(wait, interval))
            except CallError as error:
                if "NOGROUP" not in error.message:  # a stream was deleted: the script creates it
                    raise
                entries = await self._take(operations, consumer, limit, poll=poll, suspects=suspects)
        claims: list[Claim] = []
        for each in entries:
            try:
                claims.append(each.claim(lease, consumer))
            except ValueError as error:
                await self._remove(each, error)
        for excess in claims[limit:]:  # several operations had new tasks at the same time
            await self.release(excess, 0.0, attempts=excess.attempt - 1)
        return claims[:limit]

    async def _take(
        self, operations: tuple[str, ...], consumer: str, limit: int, *, poll: bool, suspects: bool
    ) -> list[_StreamEntry]:
        """Claim queued tasks, each time starting with another operation if there is no room for all."""
        self._turn += 1
        keys = [self._names.operations, *(key for each in operations for key in self._names.queue(each))]
        arguments = (consumer, limit, int(poll), self._turn, _IDLE_CONSUMER, int(suspects), *operations)
        taken = await self._borrow(lambda session: session.run(scripts.TAKE, keys, *arguments))
        return [_StreamEntry(operations[place], *rest) for place, *rest in taken]

    async def _read(self, operations: tuple[str, ...], consumer: str, limit: int, wait: float) -> list[_StreamEntry]:
        """Claim new tasks, waiting for the first; without a script, which would copy the requests twice.

        A task that arrives goes to the worker that has waited longest, and then the others of its batch to the first
        that reads on. Both commands are sent at once: a connection that blocks executes no other.
        """
        streams = {self._names.stream(each): each for each in operations}
        group, ids = (b"GROUP", b"workers", consumer, b"COUNT"), (b"STREAMS", *streams, *[b">"] * len(streams))
        share, reads = limit // len(streams), list[bytes]()
        if wait > 0:
            reads.append(command(b"XREADGROUP", *group, 1, b"BLOCK", max(1, ceil(wait * 1000)), *ids))
            share -= 1
        if share > 0:
            reads.append(command(b"XREADGROUP", *group, share, *ids))
        replies: list[dict[bytes, list[Any]] | None]
        replies = await self._borrow(lambda session: session.ask(*reads, patience=wait + PATIENCE))
        return [
            _StreamEntry(streams[stream], id, 1, fields)
            for found in replies
            for stream, new in (found or {}).items()
            for id, fields in new
        ]

    async def _borrow(self, ask: Callable[[RedisSession], Coroutine[Any, Any, Any]]) -> Any:
        """Return the reply to a claim, on a session that no other claim uses.

        Not on the session of the scripts: that is subscribed to outcomes, and Redis buffers 32 MiB for a subscriber.
        """
        session = self._idle.pop() if self._idle else self._connect()
        try:
            reply = await ask(session)
        except BaseException:
            await session.close()  # a task that it receives all the same is claimed again when its lease expires
            raise
        self._idle.append(session)
        if self._closed:
            await self._close_idle()
        return reply

    async def _remove(self, entry: _StreamEntry, error: ValueError) -> None:
        """Remove an invalid entry, which another program wrote."""
        logger.error("removed an invalid task of %s: %s", entry.operation_id, error)
        stream = self._names.stream(entry.operation_id)
        await self._session.ask(command(b"XACK", stream, b"workers", entry.id), command(b"XDEL", stream, entry.id))

    async def renew(self, claim: Claim, *, alone: bool) -> bool:
        """Renew a lease; return False if it was lost."""
        keys = [self._names.stream(claim.task.operation_id), self._names.history(claim.task.operation_id)]
        return bool(await self._session.run(scripts.RENEW, keys, *StreamReceipt.of(claim), claim.attempt, int(alone)))

    async def release(self, claim: Claim, delay: float, *, failed: bool = False, attempts: int | None = None) -> None:
        """Return a task to the queue; `attempts` overrides the number of attempts that count."""
        keys = self._names.queue(claim.task.operation_id)
        milliseconds = ceil(seconds_within(delay, MAX_SECONDS) * 1000)
        counted = claim.attempt if attempts is None else attempts
        arguments = (claim.attempt, milliseconds, counted, int(failed))
        await self._session.run(scripts.RELEASE, keys, *StreamReceipt.of(claim), *arguments)

    async def leave(self) -> None:
        """Delete our consumers that have no tasks left. The owner closes the session."""
        self._closed = True
        await self._close_idle()
        if self._consumers:
            await self._session.run(scripts.LEAVE, list(self._consumers), *self._consumers.values())

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


# --- the journal ------------------------------------------------------------------------------------------------------


class RedisJournal(BrokerJournal[StreamClaims]):
    """A `Journal` in a Redis server, the primary that Sentinels elect, or a server of a cluster.

        async with RedisJournal("redis://127.0.0.1:6379") as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    The URL is that of `RedisTransport`. Ends with the same `prefix` on the same database share the journal. `trusted`
    accepts the identity in a request from any client that can write to this server.

    Raises:
        UsageError: the URL or `keep` is invalid.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        prefix: str = "opwire",
        keep: float = KEEP,
        trusted: bool = False,
        ssl: SSLContext | None = None,
    ) -> None:
        servers = parse_servers(url, ssl, prefix=prefix)
        prefix = servers.key_prefix(prefix)
        super().__init__(servers.name, trusted=trusted)
        self._keep = max(1, ceil(check_seconds("keep", keep) * 1000))
        self._names = JournalKeys(prefix)
        self._end = token_hex(8)
        channel = self._names.channels + self._end.encode()
        self._session = RedisSession(servers, channel=channel, pushed=self._pushed, lost=self._waiters.fail)
        self._claims = StreamClaims(self._names, self._session, lambda: RedisSession(servers))
        names = self._names
        self._submitting = BatchedScript(
            self._session, scripts.SUBMIT, lambda each: ((names.stream(each), names.operations), (each,))
        )
        self._recording = BatchedScript(
            self._session, scripts.RECORD, lambda each: (names.every(each), (self._keep, names.channels))
        )

    async def start(self) -> None:
        """Connect; log a warning for settings of the server that put tasks at risk."""
        self._waiters.bind()
        await self._session.ask(command(b"PING"))
        try:
            about = await self._session.ask(*(command(b"INFO", each) for each in ("persistence", "memory")))
        except CallError as error:
            logger.debug("%s does not show its settings: %s", self.name, error)
            return
        settings = b"".join(about)
        if b"aof_enabled:0" in settings:
            logger.warning("%s has no append-only file: a crash loses durable calls; set appendonly yes", self.name)
        if b"maxmemory_policy:allkeys" in settings:
            logger.warning("%s may evict durable calls: set maxmemory-policy to noeviction", self.name)

    async def close(self) -> None:
        """Disconnect; pending waits raise UNAVAILABLE. A second call is a no-op."""
        self._waiters.fail(CallError(ErrorCode.UNAVAILABLE, f"the journal at {self.name} was closed"))
        await super().close()

    async def disconnect(self) -> None:
        """End the connection."""
        await self._session.close()
        await asyncio.gather(self._submitting.close(), self._recording.close())

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        """Store a task, unless its key is known; return its outcome, waiting for it up to `wait` seconds.

        Raises:
            CallError: VALIDATION_ERROR, if the key is known with another fingerprint; UNAVAILABLE.
        """
        if wait > 0:
            submit = partial(self._submit, task)
            return await self._waiters.wait(task.key, wait, lambda: self._fetch(task.key), submit)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._store(task, "", partial(resolve, reply))
        return _known(task.key, await reply)

    def _submit(self, task: Task, waiter: OutcomeWaiter) -> None:
        self._store(task, self._end, partial(_settle, waiter, task.key))

    def _store(self, task: Task, end: str, done: Done) -> None:
        entry = msgspec.json.encode((task.key, task.fingerprint, task.submitted)) + b"\n" + task.request
        arguments = (entry, without_space(task.fingerprint), end)
        self._submitting.run(task.operation_id, len(task.request), self._names.task(task.key), arguments, done)

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """Record the outcome of a task; return the first recorded one, or None if the task is unknown."""
        await self.pace(outcome)
        task, id = claim.task, claim.receipt.partition(" ")[0]
        arguments = (id, _encode(outcome), f"{outcome.recorded} {task.key}" if outcome.buried else b"")
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done = partial(resolve, reply)
        self._recording.run(task.operation_id, len(outcome.event), self._names.task(task.key), arguments, done)
        return _ended(outcome, await reply)

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        """End a task that is not claimed; return its outcome, or None if it is claimed or unknown."""
        names, operation_id = self._names, outcome.operation_id
        keys = [names.task(outcome.key), *names.queue(operation_id)]
        arguments = (outcome.key, _encode(outcome), self._keep, names.channels)
        ended = _ended(outcome, await self._session.run(scripts.CANCEL, keys, *arguments))
        return ended if ended is not None and ended.operation_id == operation_id else None

    async def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a task, if any yet."""
        (value,) = await self._session.ask(command(b"GET", self._names.task(key)))
        return _outcome(value)

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task; return None after the timeout."""
        return await self._waiters.wait(key, timeout, lambda: self._fetch(key))

    async def _fetch(self, key: str) -> Outcome | None:
        outcome = await self._session.run(scripts.WAIT, [self._names.task(key)], self._end)
        return None if outcome is None else _decode(outcome)

    def _pushed(self, message: bytes) -> None:
        try:
            outcomes = _published.decode(message)
        except (ValueError, RecursionError) as error:  # any client can publish to the channel
            logger.warning("ignored a message for %s: it does not hold outcomes: %s", self.name, error)
            return
        for outcome in outcomes:
            self._waiters.resolve(outcome)

    async def buried(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """Yield the outcomes of buried tasks, the oldest first."""
        operations = await self._operations() if operation_id is None else [operation_id]
        lists = [command(b"ZRANGE", self._names.buried(each), 0, -1, b"WITHSCORES") for each in operations]
        found = [pair for pairs in await self._session.ask(*lists) for pair in pairs]
        keys: list[bytes] = [key for key, _ in sorted(found, key=lambda pair: pair[1])]
        for start in range(0, len(keys), _PAGE):
            page = (self._names.task(self._names.read(key)) for key in keys[start : start + _PAGE])
            for value in await self._session.ask(*(command(b"GET", each) for each in page)):
                try:
                    outcome = _outcome(value)
                except CallError as error:  # must not hide the others
                    logger.warning("ignored a buried task of %s: %s", self.name, error.message)
                    continue
                if outcome is not None:  # else purged or replayed meanwhile
                    yield outcome

    async def pending(self, operation_id: str, *, limit: int = 100) -> list[PendingTask]:
        """Return the tasks of an operation that wait or run, the oldest first, at most `limit`."""
        found = await self._session.run(scripts.PENDING, [self._names.stream(operation_id)], limit)
        return [
            PendingTask(
                key=self._names.read(key),
                operation_id=operation_id,
                submitted=submitted,
                claimed=bool(claimed),
                attempts=attempts,
            )
            for key, submitted, claimed, attempts in found
        ]

    async def replay(self, key: str) -> bool:
        """Submit a buried task again; return False if it is unknown."""
        ended, names = await self.outcome(key), self._names
        if ended is None:
            return False
        keys = [names.task(key), *(name(ended.operation_id) for name in (names.stream, names.buried, names.requests))]
        return bool(await self._session.run(scripts.REPLAY, keys, key))

    async def purge(self, key: str) -> bool:
        """Delete a task that has ended; return False if it is unknown."""
        ended, names = await self.outcome(key), self._names
        if ended is None:
            return False
        keys = [names.task(key), names.buried(ended.operation_id), names.requests(ended.operation_id)]
        return bool(await self._session.run(scripts.PURGE, keys, key))

    async def info(self) -> list[JournalInfo]:
        """Return the number of tasks of each operation."""
        names, found = self._names, list[JournalInfo]()
        for each in await self._operations():
            keys = [name(each) for name in (names.stream, names.later, names.suspects, names.buried)]
            waiting, claimed, buried = await self._session.run(scripts.COUNT, keys)
            found.append(JournalInfo(operation_id=each, waiting=waiting, claimed=claimed, buried=buried))
        return found

    async def _operations(self) -> list[str]:
        (operations,) = await self._session.ask(command(b"SMEMBERS", self._names.operations))
        return sorted(self._names.read(each) for each in operations)


def _known(key: str, reply: Any) -> Outcome | None:
    """Read the reply to a submission: an outcome, 0 if there is none yet, -1 if the key belongs to another call."""
    if isinstance(reply, Exception):
        raise reply
    if reply == -1:
        raise key_in_use(key)
    return _decode(reply) if reply else None


def _settle(waiter: OutcomeWaiter, key: str, reply: Any) -> None:
    """Pass the reply to a submission to its caller."""
    if reply == 0:
        waiter.settle(None)
        return
    try:
        waiter.settle(_known(key, reply))
    except Exception as error:
        waiter.fail(error)


def _ended(outcome: Outcome, reply: Any) -> Outcome | None:
    """Read the reply to an outcome: the one that was recorded before, 0 for this one, -1 if the task is unknown."""
    if isinstance(reply, Exception):
        raise reply
    if reply == -1:
        return None
    return _decode(reply) if reply else outcome


def _outcome(value: bytes | None) -> Outcome | None:
    """Parse the string of a task, and decode its outcome, if any yet."""
    _, ended, outcome = (value or b"").partition(b"\n")
    return _decode(outcome) if ended else None


def _decode(outcome: bytes) -> Outcome:
    try:
        return _decoder.decode(outcome)
    except (ValueError, RecursionError) as error:  # written by another program
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"an outcome in the journal is invalid: {error}") from error
