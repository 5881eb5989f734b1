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

Unfinished tasks never expire. Outcomes are kept for `keep` seconds, dead letters until they are replayed or purged.
`log` describes the stream, `consumers` how tasks are delivered.

**Leases.** The owner of a lease is recorded in the log of the task, since JetStream does not check the sender of an
acknowledgement. The redelivery is JetStream's, delayed until the lease has expired: by a negative acknowledgement with
a delay. The first claim of a task needs no entry in its log. It gets one when the lease is renewed, when the task is
released, or when it is claimed again. JetStream cannot skip suspects when it delivers tasks. Unwanted ones are
delivered again a little later; only a claim counts as an attempt.

A user of the server needs permissions to publish to `$JS.API.>`, `$JS.ACK.<stream>.>` and `<prefix>.durable.>`, and to
subscribe to `<prefix>.in.>` and `<prefix>.ended.>`; the stream is `<prefix>_durable`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from itertools import count
from os import PathLike
from secrets import token_hex
from ssl import SSLContext
from typing import NamedTuple

from msgspec.structs import replace

from opwire.durable.broker_journal import BrokerJournal
from opwire.durable.jetstream.consumers import NANOSECONDS, Consumers, Delivery, waiting_peer
from opwire.durable.jetstream.log import (
    MAX_WRITES,
    Entry,
    EntryBody,
    JournalSubjects,
    Kind,
    TaskLog,
    decode_entry,
    token,
)
from opwire.durable.jetstream.session import JetStreamSession, SessionListener
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
from opwire.durable.waiters import OutcomeWaiters
from opwire.errors import CallError, ErrorCode
from opwire.runtime.bounded import Tally
from opwire.runtime.text import get_logger
from opwire.transports.nats.connection import NatsCredentials, NatsServers, Security

logger = get_logger("opwire.durable.jetstream")

_OUTCOMES_PER_PAGE = 50
_UNWANTED_SUSPECT_DELAY_SECONDS = 0.5
_NO_HISTORY = EntryBody(fingerprint="")


class JetStreamReceipt(NamedTuple):
    """The receipt of a claim: the life of its task, the owner of the lease, the peer at which a caller waits, and the
    subject of acknowledgements.
    """

    birth: int
    holder: str
    caller: str
    ack: str

    @classmethod
    def of(cls, claim: Claim) -> "JetStreamReceipt":
        """Parse the receipt of a claim."""
        birth, holder, caller, ack = claim.receipt.split(" ", 3)
        return cls(int(birth), holder, caller, ack)

    def is_valid(self, claim: Claim, last_entry: Entry) -> bool:
        """Return whether the claim still holds, if this is the last entry of its log."""
        if last_entry.kind == "task":
            return last_entry.seq == self.birth and claim.attempt == 1
        return last_entry.kind == "lease" and last_entry.body.holder == self.holder


class _Stored(NamedTuple):
    """The result of a submission: whether the key was new, or the outcome of its task if it has ended."""

    is_new: bool
    outcome: Outcome | None = None


class _OutcomeListener(SessionListener):
    """Pass republished outcomes, and errors of the session, to the waiters."""

    def __init__(self, session: JetStreamSession, names: JournalSubjects, peer: str, waiters: OutcomeWaiters) -> None:
        self._session = session
        self._names = names
        self._subject = names.republished_to(peer)
        self._waiters = waiters
        self._is_listening = False
        session.listeners.append(self)

    def listen(self) -> None:
        """Subscribe to the outcomes of tasks that are submitted at this peer."""
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
        concerns_all = subject == self._subject
        self._waiters.fail(error, concerns=lambda key: concerns_all or self._names.republished(key) == subject)

    def lost(self, error: CallError) -> None:
        self._is_listening = False
        self._waiters.fail(error)


class NatsJournal(BrokerJournal):
    """A `Journal` in a NATS server or cluster.

        async with NatsJournal("nats://127.0.0.1:4222") as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    Peers with the same `prefix` share the journal. `replicas` is the number of servers of a cluster that store
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
        keep: float = DEFAULT_KEEP_SECONDS,
        trusted: bool = False,
        domain: str | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials_file: str | PathLike[str] | None = None,
        ssl: SSLContext | None = None,
        tls_first: bool = False,
    ) -> None:
        servers = NatsServers(url)
        super().__init__(str(servers), trusted=trusted)
        self._keep = check_seconds("keep", keep)
        subjects = JournalSubjects(prefix)
        security = Security(NatsCredentials(user, password, token, credentials_file), ssl, tls_first)
        self._session = JetStreamSession(servers, security, subjects.inboxes.inbox(token_hex(8)), domain)
        self.log = TaskLog(self._session, subjects, replicas)
        self._consumers = Consumers(self._session, subjects, self._give_back)
        self._peer = token_hex(8)
        self._outcomes = _OutcomeListener(self._session, subjects, self._peer, self._waiters)
        self._listening: Tally[str] = Tally()  # calls of `wait`, by key
        self._claim_numbers = count(1)

    async def start(self) -> None:
        """Connect, and create the stream if it is missing.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, if a stream of that name is not the journal's.
        """
        self._waiters.bind()
        await self._session.connect()

    async def leave(self) -> None:
        """Return delivered tasks that were not claimed."""
        await self._consumers.leave()

    async def disconnect(self) -> None:
        """End the connection."""
        await self._session.close()

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        """Store a task, unless its key is known; return its outcome, waiting for it up to `wait` seconds.

        Raises:
            CallError: VALIDATION_ERROR, if the key is known with another fingerprint; UNAVAILABLE, PAYLOAD_TOO_LARGE.
        """
        await self._consumers.create([task.operation_id])
        if wait <= 0:
            return (await self._store(task)).outcome
        deadline = time.monotonic() + wait
        self._outcomes.listen()
        with self._waiters.waiting(task.key) as waiter:
            stored = await self._store(task, self._peer)
            if stored.is_new:
                return await waiter.outcome(deadline, partial(self.log.outcome, task.key))
        # Another caller has submitted this task: its outcome is not republished to this peer.
        return stored.outcome or await self.wait(task.key, deadline - time.monotonic())

    async def _store(self, task: Task, caller: str = "") -> _Stored:
        """Store a task, unless its key is known; `caller` is the peer at which a caller waits."""
        subject = self.log.names.task(task.key, task.operation_id)
        body = EntryBody(fingerprint=task.fingerprint, task=task, caller=caller)
        last_seq = 0
        for _ in range(MAX_WRITES):
            if await self.log.add(subject, body, last_seq):
                return _Stored(is_new=True)
            last_entry = await self.log.last(task.key)
            if last_entry is None or last_entry.kind == "gone":
                last_seq = 0 if last_entry is None else last_entry.seq
                continue
            if last_entry.body.fingerprint != task.fingerprint:
                raise key_in_use(task.key)
            return _Stored(is_new=False, outcome=last_entry.body.outcome)
        raise self.log.busy(task.key)

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """Claim the next tasks of these operations."""
        if not operation_ids:
            await asyncio.sleep(wait)
            return []
        deadline, operations = time.monotonic() + wait, frozenset(operation_ids)
        room = asyncio.Semaphore(1 if suspects else 0)
        claims: list[Claim] = []
        while not claims and (deliveries := await self._consumers.take(operations, deadline, limit)):
            claiming = (self._claim(delivery, lease, room) for delivery in deliveries)
            results = await asyncio.gather(*claiming, return_exceptions=True)
            claims = [claim for claim in results if isinstance(claim, Claim)]
            errors = [error for error in results if isinstance(error, BaseException)]
            if errors and not claims:
                raise errors[0]
            for error in errors:
                logger.warning("a task of %s is delivered again: %s", self.name, error)
        return claims

    async def _claim(self, delivery: Delivery, lease: float, room: asyncio.Semaphore) -> Claim | None:
        """Claim a task; return None if it has ended or has an owner, which a restored consumer may not know.

        A suspect is not claimed without room for it.
        """
        key = delivery.task.key
        last_entry = None if delivery.fresh else await self.log.since(key)
        if last_entry is not None and last_entry.seq < delivery.birth:
            last_entry = None  # of an earlier life
        if last_entry is not None and last_entry.body.outcome is not None:  # its worker could not acknowledge it
            await self._finish(key, delivery.ack, last_entry.seq)
            return None
        if last_entry is not None and last_entry.kind == "lease":
            now = await self.log.now()  # by the clock of the server that stores the lease
            lease_seconds = seconds_within(last_entry.body.lease, MAX_SECONDS)
            seconds_left = 0.0 if now is None else lease_seconds - (now - last_entry.time).total_seconds()
            if seconds_left > 0:
                self._delay(delivery.ack, seconds_left)  # the worker that renewed the lease could not delay it
                return None
        claim = self._next_claim(delivery, last_entry, lease)
        if claim.suspect and room.locked():
            self._delay(delivery.ack, _UNWANTED_SUSPECT_DELAY_SECONDS)
            return None
        if claim.suspect:
            await room.acquire()
        if (last_entry is not None or delivery.times > 1) and not await self._hold("lease", claim, last_entry):
            return None
        self._delay(delivery.ack, lease)
        return claim

    def _next_claim(self, delivery: Delivery, last_entry: Entry | None, lease: float) -> Claim:
        """Return the next claim of a task, given the last entry of its log since it was submitted."""
        history = _NO_HISTORY if last_entry is None else last_entry.body
        lost = delivery.times > 1 if last_entry is None else last_entry.kind == "lease"
        return Claim(
            task=delivery.task,
            attempt=min(delivery.times, 2) if last_entry is None else history.attempt + 1,
            lease=lease,
            receipt=f"{delivery.birth} {self._peer}/{next(self._claim_numbers)} {delivery.caller} {delivery.ack}",
            failures=history.failures,
            losses=history.losses + lost,
            lone_losses=history.lone_losses + (lost and history.alone),
            suspect=history.suspect or lost,
        )

    async def _give_back(self, delivery: Delivery) -> None:
        """Return a task that was not claimed."""
        if delivery.times == 1:  # must not look like a first attempt that failed
            body = EntryBody(fingerprint=delivery.task.fingerprint, birth=delivery.birth)
            await self.log.hold("later", delivery.task, body, delivery.birth)
        self._delay(delivery.ack, 0)

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Renew a lease; return False if it was lost."""
        return await self._change(claim, "lease", claim.lease, alone=alone)

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Return a task to the queue, to be claimed again after `delay` seconds."""
        if failed:
            claim = replace(claim, failures=claim.failures + 1, suspect=False)
        await self._change(claim, "later", delay)

    async def _change(self, claim: Claim, kind: Kind, delay: float, *, alone: bool = False) -> bool:
        """Renew or release a lease, and have the task delivered again after `delay`. Return False if it was lost."""
        receipt = JetStreamReceipt.of(claim)
        for _ in range(MAX_WRITES):
            last_entry = await self.log.last(claim.task.key)
            if last_entry is None or not receipt.is_valid(claim, last_entry):
                return False
            if await self._hold(kind, claim, last_entry, alone=alone):
                self._delay(receipt.ack, delay)
                return True
        raise self.log.busy(claim.task.key)

    async def _hold(self, kind: Kind, claim: Claim, last_entry: Entry | None, *, alone: bool = False) -> bool:
        """Write a lease or release after the last entry, or after the task if there is none since."""
        receipt = JetStreamReceipt.of(claim)
        body = EntryBody(
            fingerprint=claim.task.fingerprint,
            birth=receipt.birth,
            holder=receipt.holder,
            attempt=claim.attempt,
            lease=claim.lease,
            failures=claim.failures,
            losses=claim.losses,
            lone_losses=claim.lone_losses,
            suspect=claim.suspect,
            alone=alone,
        )
        written = await self.log.hold(kind, claim.task, body, receipt.birth if last_entry is None else last_entry.seq)
        if written and last_entry is not None and last_entry.kind not in ("task", kind):
            # JetStream has replaced one of the same kind itself.
            self.log.drop(last_entry.seq)
        return written

    def _delay(self, ack: str, seconds: float) -> None:
        """Have a task delivered again after this time."""
        delay = round(seconds_within(seconds, MAX_SECONDS) * NANOSECONDS)
        self._session.send(ack, b'-NAK {"delay": %d}' % delay if delay > 0 else b"-NAK")

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        """End a task that is not claimed; return its outcome, or None if it is claimed or unknown.

        The first claim of a task is known to its consumer alone. A task that is delivered between the look at the
        consumer and the write of the outcome is cancelled although a worker has it: its handler is stopped at the next
        renewal of its lease.
        """
        key, operation_id = outcome.key, outcome.operation_id
        for _ in range(MAX_WRITES):
            last_entry = await self.log.last(key)
            if last_entry is None or last_entry.body.outcome is not None:
                return None if last_entry is None else last_entry.body.outcome
            submission = last_entry if last_entry.kind == "task" else await self.log.entry(last_entry.birth)
            task = None if submission is None else submission.body.task
            if submission is None or task is None or task.operation_id != operation_id:
                return None
            if last_entry.kind not in ("task", "later"):
                return None
            if last_entry.kind == "task" and submission.seq <= await self._consumers.last_delivered(operation_id):
                return None
            receipt = JetStreamReceipt(submission.seq, "", waiting_peer(submission.body), "")
            outcome_seq = await self._end(task, receipt, outcome, last_entry.seq)
            if outcome_seq is not None:
                if last_entry.kind == "later":
                    await self.log.tidy(key, outcome_seq)
                await self.log.delete(submission.seq)
                return outcome
        raise self.log.busy(key)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """Record the outcome of a task; return the first recorded one, or None if the task is unknown.

        Raises:
            CallError: UNAVAILABLE; PAYLOAD_TOO_LARGE, if the server rejects it.
        """
        await self.pace(outcome)
        key, receipt = claim.task.key, JetStreamReceipt.of(claim)
        last_seq = receipt.birth
        for _ in range(MAX_WRITES):
            outcome_seq = await self._end(claim.task, receipt, outcome, last_seq)
            if outcome_seq is not None:
                await self._finish(key, receipt.ack, None if last_seq == receipt.birth else outcome_seq)
                return outcome
            last_entry = await self.log.last(key)
            if last_entry is None or last_entry.body.outcome is not None:
                return None if last_entry is None else last_entry.body.outcome
            if last_entry.kind == "gone" or last_entry.birth != receipt.birth:
                return None
            last_seq = last_entry.seq
        raise self.log.busy(key)

    async def _end(self, task: Task, receipt: JetStreamReceipt, outcome: Outcome, last_seq: int) -> int | None:
        """Write an outcome; return the number of its entry, or None on a conflict."""
        body = EntryBody(fingerprint=task.fingerprint, birth=receipt.birth, outcome=outcome)
        subject = self.log.names.ended(outcome, receipt.caller)
        if not outcome.dead_letter:
            return await self.log.add(subject, body, last_seq, self._keep)
        try:
            return await self.log.add(subject, replace(body, task=task), last_seq)
        except CallError as error:
            if error.code is not ErrorCode.PAYLOAD_TOO_LARGE:
                raise
            logger.warning("%s with the key %r is too large to be replayed: %s", task.operation_id, task.key, error)
            return await self.log.add(subject, body, last_seq)

    async def _finish(self, key: str, ack: str, outcome_seq: int | None) -> None:
        """Remove a task that has an outcome; given the outcome's number, the leases and releases before it, too.

        JetStream handles an acknowledgement before requests that arrived earlier, so the removal of the leases is
        awaited: a server that was killed in between would keep them.
        """
        if outcome_seq is not None:
            await self.log.tidy(key, outcome_seq)
        self._session.send(ack, b"+ACK")  # at the end: without it the task is delivered again, and this is repeated

    async def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a task, if any yet."""
        return await self.log.outcome(key)

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task; return None after the timeout."""
        deadline = time.monotonic() + timeout
        await self._session.connect()
        subject, look_up = self.log.names.republished(key), partial(self.log.outcome, key)
        self._listening[key] += 1
        if self._listening[key] == 1:
            self._session.listen(subject)
        try:
            with self._waiters.waiting(key) as waiter:
                return await look_up() or await waiter.outcome(deadline, look_up)
        finally:
            self._listening.subtract(key)
            if key not in self._listening:
                self._session.forget(subject)

    # --- maintenance --------------------------------------------------------------------------------------------------

    async def dead_letters(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """Yield the outcomes of dead letters, the oldest first."""
        operation = "*" if operation_id is None else token(operation_id)
        subjects = await self.log.subjects(f"since.ended.buried.{operation}.*.*")
        subjects.sort(key=_recorded_time)
        for start in range(0, len(subjects), _OUTCOMES_PER_PAGE):
            page = subjects[start : start + _OUTCOMES_PER_PAGE]
            for outcome in await asyncio.gather(*map(self._read_dead_letter, page)):
                if outcome is not None:  # else purged or replayed meanwhile
                    yield outcome

    async def _read_dead_letter(self, subject: str) -> Outcome | None:
        try:
            return await self.log.dead_letter(subject)
        except CallError as error:
            if error.code is not ErrorCode.PROTOCOL_ERROR:
                raise
            logger.warning("ignored a dead letter of %s: %s", self.name, error.message)  # must not hide the others
            return None

    async def pending(self, operation_id: str, *, limit: int = 100) -> list[PendingTask]:
        """Return the tasks of an operation that wait or run, the oldest first, at most `limit`."""
        last_delivered = await self._consumers.last_delivered(operation_id)
        submissions: list[Entry] = []
        seq = 1
        while len(submissions) < limit and (entry := await self.log.next_task(operation_id, seq)) is not None:
            submissions.append(entry)
            seq = entry.seq + 1
        reading = (self._read_pending(entry, operation_id, last_delivered) for entry in submissions)
        return [task for task in await asyncio.gather(*reading) if task is not None]

    async def _read_pending(self, submission: Entry, operation_id: str, last_delivered: int) -> PendingTask | None:
        task = submission.body.task
        if task is None:
            return None
        try:
            last_entry = await self.log.since(task.key)
        except CallError as error:
            if error.code is not ErrorCode.PROTOCOL_ERROR:
                raise
            return None  # written by another program
        if last_entry is not None and last_entry.birth != submission.seq:
            last_entry = None  # of an earlier life
        if last_entry is not None and last_entry.body.outcome is not None:
            return None  # it has ended, and is not acknowledged yet
        is_first_claim = last_entry is None and submission.seq <= last_delivered  # it needs no entry
        return PendingTask(
            key=task.key,
            operation_id=operation_id,
            submitted=task.submitted,
            claimed=is_first_claim or (last_entry is not None and last_entry.kind == "lease"),
            attempts=int(is_first_claim) if last_entry is None else last_entry.body.attempt,
        )

    async def replay(self, key: str) -> bool:
        """Submit a dead letter again; return False if it is unknown."""
        for _ in range(MAX_WRITES):
            last_entry = await self.log.last(key)
            if last_entry is None or last_entry.body.outcome is None or last_entry.body.task is None:
                return False
            task = last_entry.body.task
            subject = self.log.names.task(key, task.operation_id)
            if await self.log.add(subject, EntryBody(fingerprint=task.fingerprint, task=task), last_entry.seq):
                await self.log.delete(last_entry.seq)
                return True
        raise self.log.busy(key)

    async def purge(self, key: str) -> bool:
        """Delete a task that has ended; return False if it is unknown."""
        last_entry = await self.log.last(key)
        if last_entry is None or last_entry.body.outcome is None:
            return False
        # The task is left over if the worker that recorded the outcome could not acknowledge it.
        await self.log.delete(last_entry.birth)
        return await self.log.delete(last_entry.seq)

    async def info(self) -> list[JournalInfo]:
        """Return the number of tasks of each operation."""
        released_subjects = await self.log.subjects("since.held.later.*")
        dead_letter_subjects = await self.log.subjects("since.ended.buried.*.*.*")
        released_counts = Counter(subject.split(".")[-1] for subject in released_subjects)
        dead_letter_counts = Counter(subject.split(".")[-3] for subject in dead_letter_subjects)
        infos: list[JournalInfo] = []
        for consumer in await self._consumers.infos():
            operation = token(consumer.operation_id)
            infos.append(
                JournalInfo(
                    operation_id=consumer.operation_id,
                    waiting=consumer.num_pending + released_counts[operation],
                    claimed=max(0, consumer.num_ack_pending - released_counts[operation]),
                    dead_letters=dead_letter_counts[operation],
                )
            )
        return infos


def _recorded_time(subject: str) -> int:
    """Return when a dead letter was recorded, in epoch milliseconds; 0, if another program wrote something else."""
    recorded = subject.rpartition(".")[2]
    return int(recorded) if recorded.isascii() and recorded.isdecimal() and len(recorded) < 20 else 0
