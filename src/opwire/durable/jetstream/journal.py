"""Durable calls over NATS JetStream: `NatsJournal`. Needs nats-server 2.11 or newer, with JetStream.

Durability is that of JetStream. If our processes crash, every submitted task still runs, and every recorded outcome is
kept. JetStream acknowledges what it has handed to the operating system: if nats-server alone dies, even by kill -9,
nothing is lost. If the machine dies, `sync_interval` decides:

    always    no acknowledged write is lost
    2m        the default: submissions and outcomes of the last two minutes may be lost. With three replicas that takes
              a second machine: one that dies at the same time, or one that lags behind and outvotes the third with it

After the loss of an outcome its task runs again; after the loss of a submission it has to be submitted again, which the
same key makes safe.

2.11 is the first version that can store a message under the condition that several subjects have not changed, and that
can let single messages expire. Without the first, a task and its outcome could not be changed atomically; without the
second, outcomes could expire only together with unfinished tasks.

Unfinished tasks never expire. Outcomes are kept for `keep` seconds, buried ones until they are replayed or purged.
`api` describes the stream, `claims` how tasks are delivered and leased.

A user of the server needs permissions to publish to `$JS.API.>`, `$JS.ACK.<stream>.>` and `<prefix>.durable.>`, and to
subscribe to `<prefix>.in.>` and `<prefix>.ended.>`; the stream is `<prefix>_durable`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from functools import partial
from os import PathLike
from secrets import token_hex
from ssl import SSLContext

from msgspec.structs import replace

from opwire.durable.broker_journal import BrokerJournal
from opwire.durable.jetstream.api import (
    TRIES,
    Entry,
    EntryBody,
    JetStreamSession,
    JournalSubjects,
    Put,
    SessionListener,
    TaskLog,
    decode_entry,
    token,
)
from opwire.durable.jetstream.claims import JetStreamClaims, JetStreamReceipt, waiting_end
from opwire.durable.journal import KEEP, Claim, JournalInfo, Outcome, PendingTask, Task, check_seconds, key_in_use
from opwire.durable.waiters import OutcomeWaiter, OutcomeWaiters
from opwire.errors import CallError, ErrorCode
from opwire.runtime.bounded import Tally
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.text import get_logger
from opwire.transports.nats.connection import NatsCredentials, NatsServers, Security

logger = get_logger("opwire.durable.jetstream")

_PAGE = 50  # outcomes that are fetched concurrently


class _KeyKnownError(Exception):
    """A task was not stored: its key is known."""


class _OutcomeListener(SessionListener):
    """Pass republished outcomes, and errors of the session, to the waiters."""

    def __init__(self, session: JetStreamSession, names: JournalSubjects, waiters: OutcomeWaiters) -> None:
        self.end = token_hex(8)
        self._subject = names.republished_to(self.end)
        self._session = session
        self._names = names
        self._waiters = waiters
        self._is_listening = False
        session.listeners.append(self)

    def listen(self) -> None:
        """Subscribe to the outcomes of tasks that are submitted at this end."""
        if not self._is_listening:
            self._session.listen(self._subject)
            self._is_listening = True

    def heard(self, subject: str, payload: bytes) -> None:
        try:
            outcome = decode_entry(payload).outcome
        except CallError as error:  # any client can publish to the subject
            logger.warning("ignored a message for %s: %s", self._session.name, error.message)
            return
        if outcome is not None and token(outcome.key) == subject.rpartition(".")[2]:
            self._waiters.resolve(outcome)

    def refused(self, subject: str, error: CallError) -> None:
        ours = subject == self._subject
        self._waiters.fail(error, lambda key: ours or self._names.republished(key) == subject)

    def lost(self, error: CallError) -> None:
        self._is_listening = False
        self._waiters.fail(error)


class NatsJournal(BrokerJournal[JetStreamClaims]):
    """A `Journal` in a NATS server or cluster.

        async with NatsJournal("nats://127.0.0.1:4222") as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    Ends with the same `prefix` share the journal. `replicas` is the number of servers of a cluster that store
    everything, if the journal does not exist yet. `domain` is that of JetStream, if it is not the server's own.
    `trusted` accepts the identity in a request from any client that can write to this journal. The other options are
    those of `NatsTransport`.

    Raises:
        UsageError: an invalid URL, prefix or `keep`.
    """

    def __init__(
        self,
        url: str | Iterable[str] = "nats://127.0.0.1:4222",
        *,
        prefix: str = "opwire",
        replicas: int = 1,
        keep: float = KEEP,
        trusted: bool = False,
        domain: str | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials_file: str | PathLike[str] | None = None,
        ssl: SSLContext | None = None,
        tls_first: bool = False,
    ) -> None:
        known = NatsServers(url)
        super().__init__(str(known), trusted=trusted)
        self._keep = check_seconds("keep", keep)
        self._names = JournalSubjects(prefix)
        security = Security(NatsCredentials(user, password, token, credentials_file), ssl, tls_first)
        self._session = JetStreamSession(known, security, self._names.inboxes.inbox(token_hex(8)), domain)
        self._log = TaskLog(self._session, self._names, replicas)
        self._claims = JetStreamClaims(self._session, self._log)
        self._listening: Tally[str] = Tally()  # calls of `wait`, by key
        self._outcomes = _OutcomeListener(self._session, self._names, self._waiters)
        self._deadlines = Deadlines()

    async def start(self) -> None:
        """Connect, and create the stream if it is missing.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, if a stream of that name is not the journal's.
        """
        self._waiters.bind()
        await self._session.connect()

    async def disconnect(self) -> None:
        """End the connection."""
        await self._session.close()

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        """Store a task, unless its key is known; return its outcome, waiting for it up to `wait` seconds.

        Raises:
            CallError: VALIDATION_ERROR, if the key is known with another fingerprint; UNAVAILABLE, PAYLOAD_TOO_LARGE.
        """
        if wait <= 0:
            return await self._submit(task)
        end, consumers = time.monotonic() + wait, self._claims.consumers
        if not consumers.exists(task.operation_id):
            create = partial(consumers.create, [task.operation_id])
            await self._deadlines.limit(create, end, f"{self.name} was not ready")
            wait = end - time.monotonic()
        await self._deadlines.limit(self._session.connect, end, f"{self.name} did not keep up")
        try:
            fetch, store = partial(self._log.outcome, task.key), partial(self._store, task)
            return await self._waiters.wait(task.key, wait, fetch, store)
        except _KeyKnownError:
            return await self._waiters.within(end, partial(self._submit, task, self._outcomes.end, end))

    def _store(self, task: Task, waiter: OutcomeWaiter) -> None:
        """Store a task; its caller does not wake up before there is an outcome, or the key turns out to be known."""

        def stored(reply: Put) -> None:
            if isinstance(reply, int):
                waiter.settle(None)
            else:
                waiter.fail(_KeyKnownError() if reply is None else reply)

        self._outcomes.listen()
        body = EntryBody(fingerprint=task.fingerprint, task=task, caller=self._outcomes.end)
        self._log.put(self._names.task(task.key, task.operation_id), body, 0, stored)

    async def _submit(self, task: Task, caller: str = "", end: float = 0.0) -> Outcome | None:
        """Store a task, unless its key is known: then its outcome is awaited here, since it has another caller."""
        await self._claims.consumers.create([task.operation_id])
        subject = self._names.task(task.key, task.operation_id)
        body, after = EntryBody(fingerprint=task.fingerprint, task=task, caller=caller), 0
        for _ in range(TRIES):
            if await self._log.add(subject, body, after):
                return None
            last = await self._log.last(task.key)
            if last is None or last.kind == "gone":
                after = 0 if last is None else last.seq
                continue
            if last.body.fingerprint != task.fingerprint:
                raise key_in_use(task.key)
            if last.body.outcome is not None or not caller:
                return last.body.outcome
            return await self.wait(task.key, end - time.monotonic())
        raise self._log.busy(task.key)

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """Record the outcome of a task; return the first recorded one, or None if the task is unknown.

        Raises:
            CallError: UNAVAILABLE; PAYLOAD_TOO_LARGE, if the server rejects it.
        """
        await self.pace(outcome)
        receipt = JetStreamReceipt.of(claim)
        after = receipt.birth
        for _ in range(TRIES):
            ended = await self._end(claim.task, receipt, outcome, after)
            if ended is not None:
                await self._claims.done(claim.task.key, receipt.ack, None if after == receipt.birth else ended)
                return outcome
            last = await self._log.last(claim.task.key)
            if last is None or last.body.outcome is not None:
                return None if last is None else last.body.outcome
            if last.kind == "gone" or last.birth != receipt.birth:
                return None
            after = last.seq
        raise self._log.busy(claim.task.key)

    async def _end(self, task: Task, receipt: JetStreamReceipt, outcome: Outcome, after: int) -> int | None:
        body = EntryBody(fingerprint=task.fingerprint, birth=receipt.birth, outcome=outcome)
        subject = self._names.ended(outcome, receipt.caller)
        if not outcome.buried:
            return await self._log.add(subject, body, after, self._keep)
        try:
            return await self._log.add(subject, replace(body, task=task), after)
        except CallError as error:
            if error.code is not ErrorCode.PAYLOAD_TOO_LARGE:
                raise
            logger.warning("%s with the key %r is too large to be replayed: %s", task.operation_id, task.key, error)
            return await self._log.add(subject, body, after)

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        """End a task that is not claimed; return its outcome, or None if it is claimed or unknown.

        The first claim of a task is known to its consumer alone. A task that is delivered between the look at the
        consumer and the write of the outcome is cancelled although a worker has it: its handler is stopped at the next
        renewal of its lease.
        """
        key, operation_id = outcome.key, outcome.operation_id
        for _ in range(TRIES):
            last = await self._log.last(key)
            if last is None or last.body.outcome is not None:
                return None if last is None else last.body.outcome
            born = last if last.kind == "task" else await self._log.entry(last.birth)
            task = None if born is None else born.body.task
            if born is None or task is None or task.operation_id != operation_id or last.kind not in ("task", "later"):
                return None
            if last.kind == "task" and born.seq <= await self._claims.consumers.delivered(operation_id):
                return None
            receipt = JetStreamReceipt(born.seq, "", waiting_end(born.body), "")
            ended = await self._end(task, receipt, outcome, last.seq)
            if ended is not None:
                if last.kind == "later":
                    await self._log.tidy(key, ended)
                await self._log.delete(born.seq)
                return outcome
        raise self._log.busy(key)

    async def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a task, if any yet."""
        return await self._log.outcome(key)

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task; return None after the timeout."""
        await self._session.connect()
        subject = self._names.republished(key)
        self._listening[key] += 1
        if self._listening[key] == 1:
            self._session.listen(subject)
        try:
            return await self._waiters.wait(key, timeout, lambda: self._log.outcome(key))
        finally:
            self._listening.subtract(key)
            if key not in self._listening:
                self._session.forget(subject)

    async def buried(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """Yield the outcomes of buried tasks, the oldest first."""
        operation = "*" if operation_id is None else token(operation_id)
        subjects = await self._log.subjects(f"since.ended.buried.{operation}.*.*")
        subjects.sort(key=_recorded)
        for start in range(0, len(subjects), _PAGE):
            for outcome in await asyncio.gather(*map(self._read_buried, subjects[start : start + _PAGE])):
                if outcome is not None:  # else purged or replayed meanwhile
                    yield outcome

    async def _read_buried(self, subject: str) -> Outcome | None:
        try:
            return await self._log.buried(subject)
        except CallError as error:
            if error.code is not ErrorCode.PROTOCOL_ERROR:
                raise
            logger.warning("ignored a buried task of %s: %s", self.name, error.message)  # must not hide the others
            return None

    async def pending(self, operation_id: str, *, limit: int = 100) -> list[PendingTask]:
        """Return the tasks of an operation that wait or run, the oldest first, at most `limit`."""
        delivered = await self._claims.consumers.delivered(operation_id)
        entries, seq = list[Entry](), 1
        while len(entries) < limit and (entry := await self._log.next_task(operation_id, seq)) is not None:
            entries.append(entry)
            seq = entry.seq + 1

        async def read(entry: Entry) -> PendingTask | None:
            task = entry.body.task
            try:
                since = None if task is None else await self._log.since(task.key)
            except CallError as error:
                if error.code is not ErrorCode.PROTOCOL_ERROR:
                    raise
                return None  # written by another program
            if since is not None and since.birth != entry.seq:
                since = None  # of an earlier life
            if task is None or (since is not None and since.body.outcome is not None):
                return None  # it has ended, and is not acknowledged yet
            is_first = since is None and entry.seq <= delivered  # the first claim of a task needs no entry
            return PendingTask(
                key=task.key,
                operation_id=operation_id,
                submitted=task.submitted,
                claimed=is_first or (since is not None and since.kind == "lease"),
                attempts=int(is_first) if since is None else since.body.attempt,
            )

        return [each for each in await asyncio.gather(*map(read, entries)) if each is not None]

    async def replay(self, key: str) -> bool:
        """Submit a buried task again; return False if it is unknown."""
        for _ in range(TRIES):
            last = await self._log.last(key)
            if last is None or last.body.outcome is None or last.body.task is None:
                return False
            task = last.body.task
            subject = self._names.task(key, task.operation_id)
            if await self._log.add(subject, EntryBody(fingerprint=task.fingerprint, task=task), last.seq):
                await self._log.delete(last.seq)
                return True
        raise self._log.busy(key)

    async def purge(self, key: str) -> bool:
        """Delete a task that has ended; return False if it is unknown."""
        last = await self._log.last(key)
        if last is None or last.body.outcome is None:
            return False
        await self._log.delete(last.birth)  # left over if the worker that recorded the outcome could not acknowledge
        return await self._log.delete(last.seq)

    async def info(self) -> list[JournalInfo]:
        """Return the number of tasks of each operation."""
        later = Counter(subject.split(".")[-1] for subject in await self._log.subjects("since.held.later.*"))
        buried = Counter(subject.split(".")[-3] for subject in await self._log.subjects("since.ended.buried.*.*.*"))
        return [
            JournalInfo(
                operation_id=each.operation_id,
                waiting=each.num_pending + later[token(each.operation_id)],
                claimed=max(0, each.num_ack_pending - later[token(each.operation_id)]),
                buried=buried[token(each.operation_id)],
            )
            for each in await self._claims.consumers.every()
        ]


def _recorded(subject: str) -> int:
    """Return when a buried task was recorded, in epoch milliseconds; 0, if another program wrote something else."""
    recorded = subject.rpartition(".")[2]
    return int(recorded) if recorded.isascii() and recorded.isdecimal() and len(recorded) < 20 else 0
