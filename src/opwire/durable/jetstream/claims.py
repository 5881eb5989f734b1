"""Claims of `NatsJournal`: how JetStream delivers tasks, and how they are leased.

Each operation has one durable pull consumer, shared by all ends. An end requests a number of tasks for a limited time,
and receives those that are queued or arrive meanwhile; each task goes to one end. A task that is lost on the way is
delivered again after `ACK_WAIT`.

The owner of a lease is recorded in the log of the task, since JetStream does not check the sender of an
acknowledgement. The redelivery is JetStream's, delayed until the lease has expired: by a negative acknowledgement with
a delay.

The first claim of a task needs no entry in its log. It gets one when the lease is renewed, when the task is released,
or when it is claimed again.

JetStream cannot skip suspects when it delivers tasks. Unwanted ones are delivered again a little later; only a claim
counts as an attempt.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from secrets import token_hex
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from opwire.durable.jetstream.api import (
    PATIENCE,
    TRIES,
    ApiResponse,
    Entry,
    EntryBody,
    JetStreamSession,
    JournalSubjects,
    Kind,
    SessionListener,
    StreamFound,
    TaskLog,
    decode_entry,
    token,
)
from opwire.durable.journal import MAX_SECONDS, Claim, Task, seconds_within
from opwire.errors import CallError
from opwire.runtime.tasks import reject, resolve
from opwire.runtime.text import get_logger
from opwire.transports.nats.protocol import Message

logger = get_logger("opwire.durable.jetstream")

ACK_WAIT = 5.0  # seconds after which a task is delivered again, unless its end has delayed that

_MAX_UNCLAIMED = 1.0  # seconds for which a delivered task waits for a claim here before it is returned
_PAUSE = 0.1  # seconds before a retry of a consumer that failed
_MAX_WAITING = 4096  # ends that may wait for tasks of one operation
_NANOSECONDS = 1_000_000_000
_HEARTBEAT, _REFUSED, _NO_RESPONDERS = 100, 409, 503  # statuses of a consumer
_BEAT = 1.0  # seconds between two heartbeats of a pull request, at least: the server that has it may die
_BEATS = 100  # heartbeats per second, at most
_END = re.compile("[0-9a-f]{16}")  # anything else in a task would change the subject of its outcome
_MAX_TIDIED = 256  # removals of leases that are repeated over a new connection
_SILENT_BEATS = 2.5  # intervals without a heartbeat after which a pull request is sent again

# --- delivery ---------------------------------------------------------------------------------------------------------


class Delivery(NamedTuple):
    """A task that was delivered to us, and how many times it was delivered to any end.

    `caller` is the end at which a caller waits, or `-`. `fresh`: no end can have claimed it before.
    """

    task: Task
    birth: int
    times: int
    ack: str
    caller: str
    fresh: bool


class _ConsumerConfig(Struct, frozen=True):
    metadata: dict[str, str] = {}


class _Delivered(Struct, frozen=True):
    stream_seq: int = 0


class Consumer(Struct, frozen=True):
    """The numbers of undelivered and of delivered or delayed tasks of a consumer, and the last delivered entry."""

    config: _ConsumerConfig = _ConsumerConfig()
    delivered: _Delivered = _Delivered()
    num_pending: int = 0
    num_ack_pending: int = 0

    @property
    def operation_id(self) -> str:
        """Return its operation; empty, if the consumer is not one of ours."""
        return self.config.metadata.get("operation", "")


class _ConsumerPage(ApiResponse, frozen=True):
    total: int = 0
    consumers: list[Consumer] | None = None


class _Pull(Struct):
    """A pull request in flight. One per operation, since deliveries do not name the request that they belong to."""

    number: str
    subject: str
    left: int
    patience: float  # seconds
    deadline: float = 0.0  # by which the consumer has to send anything

    def renew(self) -> None:
        """Restart the wait for the consumer."""
        self.deadline = time.monotonic() + self.patience


class Consumers(SessionListener):
    """The consumers, as one end uses them. `give_back` returns tasks that were not claimed here in time.

    Its coroutines raise `CallError(UNAVAILABLE)`.
    """

    def __init__(
        self, session: JetStreamSession, names: JournalSubjects, give_back: Callable[[Delivery], Awaitable[None]]
    ) -> None:
        self._session = session
        self._names = names
        self._give_back = give_back
        self._numbers = count(1)
        self._created: set[str] = set()  # operations
        # By operation, the task up to which its consumer may have forgotten a delivery. From there on it delivers each
        # task for the first time once, in the order of the stream: a later one has no log yet that has to be read.
        self._delivered_before: dict[str, float] = {}
        self._pulls: dict[str, _Pull] = {}  # by operation
        self._delivered: list[Delivery] = []  # not claimed yet, the oldest first
        self._waiting: set[asyncio.Future[None]] = set()
        self._takers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None
        self._closed = False
        session.listeners.append(self)

    def exists(self, operation_id: str) -> bool:
        """Return whether the session is connected, and the consumer of this operation is known to exist."""
        return self._session.is_ready and operation_id in self._created

    async def create(self, operation_ids: Collection[str]) -> None:
        """Create the consumers of these operations where they are missing."""
        await self._session.connect()
        new = [each for each in operation_ids if each not in self._created]
        if not new:
            return
        stream = self._names.stream

        async def create_one(operation_id: str) -> None:
            name = token(operation_id)
            config = {
                "durable_name": name,
                "filter_subject": self._names.every(f"task.{name}"),
                "ack_policy": "explicit",
                "ack_wait": round(ACK_WAIT * _NANOSECONDS),
                "max_deliver": -1,
                "max_ack_pending": -1,  # released tasks count, too
                "max_waiting": _MAX_WAITING,
                "metadata": {"operation": operation_id},
            }
            request = {"stream_name": stream, "config": config}
            await self._session.api(ApiResponse, f"CONSUMER.CREATE.{stream}.{name}", request)

        await asyncio.gather(*map(create_one, new))
        before = inf
        if self._session.is_local:  # else the server of the consumer may restart without our notice
            before = (await self._session.api(StreamFound, f"STREAM.INFO.{stream}")).state.last_seq
        self._created.update(new)
        self._delivered_before.update(dict.fromkeys(new, before))

    async def every(self) -> list[Consumer]:
        """Return the consumers of all operations."""
        found: list[Consumer] = []
        while True:
            page = await self._session.api(_ConsumerPage, f"CONSUMER.LIST.{self._names.stream}", {"offset": len(found)})
            found += page.consumers or []
            if len(found) >= page.total:
                return [consumer for consumer in found if consumer.operation_id]
            if not page.consumers:
                raise self._session.silent()  # some of them have no leader

    async def delivered(self, operation_id: str) -> int:
        """Return the number of the last task of an operation that was delivered to a worker; 0 before the first."""
        found = [each for each in await self.every() if each.operation_id == operation_id]
        return max((each.delivered.stream_seq for each in found), default=0)

    async def take(self, operations: frozenset[str], end: float, limit: int) -> list[Delivery]:
        """Return the next tasks of these operations; an empty list if none arrive until `end`."""
        self._takers += 1
        try:
            await self.create(operations)
            return await self._take(operations, end, limit)
        finally:
            self._takers -= 1
            self._schedule_return()

    async def _take(self, operations: frozenset[str], end: float, limit: int) -> list[Delivery]:
        pulled: set[str] = set()
        while True:
            taken, left_over = list[Delivery](), list[Delivery]()
            for each in self._delivered:
                (taken if each.task.operation_id in operations and len(taken) < limit else left_over).append(each)
            if taken:
                self._delivered = left_over
                return taken
            left = end - time.monotonic()
            if self._drop_silent(pulled) and left <= 0:
                raise self._session.silent()
            if not self._created.issuperset(operations):  # one was deleted, or too many ends wait for it
                await asyncio.sleep(_PAUSE)
                await self.create(operations)
                continue
            if left > 0 or not pulled:
                pulled |= self._pull(operations, limit, left)
            deadlines = [pull.deadline for pull in self._pulls.values() if pull.number in pulled]
            if left <= 0 and not deadlines:
                return []
            await self._wait(min(deadlines, default=end))

    def _drop_silent(self, numbers: set[str]) -> bool:
        """Drop those of these pull requests that have a silent consumer; return whether there were any."""
        now = time.monotonic()
        silent = [each for each, pull in self._pulls.items() if pull.number in numbers and pull.deadline <= now]
        for each in silent:
            del self._pulls[each]
        return bool(silent)

    def _pull(self, operations: frozenset[str], limit: int, wait: float) -> set[str]:
        """Send pull requests to the consumers without one; return their numbers."""
        batch = max(1, limit // len(operations))
        until: dict[str, object] = {"expires": round(wait * _NANOSECONDS)} if wait > 0 else {"no_wait": True}
        patience, beat = max(0.0, wait) + PATIENCE, max(_BEAT, len(operations) / _BEATS)
        if wait >= 2 * beat:  # a limit of NATS
            patience, until["idle_heartbeat"] = _SILENT_BEATS * beat, round(beat * _NANOSECONDS)
        numbers: set[str] = set()
        for each in operations.difference(self._pulls):
            what, number = f"CONSUMER.MSG.NEXT.{self._names.stream}.{token(each)}", f"pull{next(self._numbers)}"
            subject = self._session.request(what, {"batch": batch, **until}, number)
            self._pulls[each] = _Pull(number, subject, batch, patience)
            self._pulls[each].renew()
            numbers.add(number)
        return numbers

    async def _wait(self, end: float) -> None:
        """Wait for a delivery, for the end of a pull request, or until `end`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(end - time.monotonic()):
                    await future
        finally:
            self._waiting.discard(future)

    def _wake(self, error: CallError | None = None) -> None:
        for future in self._waiting:
            resolve(future) if error is None else reject(future, error)

    def arrived(self, token: str, message: Message) -> None:
        """Handle a delivery, or the end of a pull request."""
        if token:
            for operation_id, pull in tuple(self._pulls.items()):
                if pull.number != token:
                    continue
                if message.status == _HEARTBEAT:
                    pull.renew()
                else:
                    del self._pulls[operation_id]
                    if message.status in (_REFUSED, _NO_RESPONDERS):
                        self._created.discard(operation_id)
                        self._delivered_before.pop(operation_id, None)
        elif (delivery := self._decode(message)) is not None:
            self._delivered.append(delivery)
            pull = self._pulls.get(delivery.task.operation_id)
            if pull is not None:
                pull.left -= 1
                pull.renew()
                if pull.left == 0:
                    del self._pulls[delivery.task.operation_id]
        self._wake()
        self._schedule_return()

    def _decode(self, message: Message) -> Delivery | None:
        try:
            times, birth = parse_ack(message.reply)
            body = decode_entry(message.payload)
            task, caller = body.task, waiting_end(body)
            if task is None or message.subject != self._names.task(task.key, task.operation_id):
                raise ValueError("not a task of this subject")
        except (CallError, ValueError) as error:
            logger.error("removed an invalid task on %s: %s", message.subject, error)
            with suppress(CallError):  # or else it is delivered again
                self._session.send(message.reply, b"+TERM")
            return None
        fresh = times == 1 and birth > self._delivered_before.get(task.operation_id, inf)
        if fresh:
            self._delivered_before[task.operation_id] = birth
        return Delivery(task, birth, times, message.reply, caller, fresh)

    def _schedule_return(self) -> None:
        """Return unclaimed tasks to other ends, if no claim here takes them in time."""
        if self._delivered and not self._takers and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_MAX_UNCLAIMED, self._begin_return)

    def _begin_return(self) -> None:
        self._timer = None
        if not self._takers:
            self._returning = asyncio.get_running_loop().create_task(self._return())

    async def _return(self) -> None:
        delivered, self._delivered = self._delivered, []
        try:
            for each in delivered:
                await self._give_back(each)
        except Exception as error:
            level = logging.DEBUG if isinstance(error, CallError) else logging.ERROR
            logger.log(level, "unclaimed tasks are delivered again after %g s: %s", ACK_WAIT, error)

    async def leave(self) -> None:
        """Return unclaimed tasks. The owner closes the session."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._returning is not None:
            await self._returning
        await self._return()

    def lost(self, error: CallError) -> None:
        """Fail the claims that wait; called by the session."""
        self._pulls.clear()
        self._created.clear()
        self._delivered_before.clear()
        self._wake(error)

    def refused(self, subject: str, error: CallError) -> None:
        """Fail the claims that wait, if a pull request was denied; called by the session."""
        denied = [operation_id for operation_id, pull in self._pulls.items() if pull.subject == subject]
        for operation_id in denied:
            del self._pulls[operation_id]
        if denied:
            self._wake(error)


def waiting_end(body: EntryBody) -> str:
    """Return the end at which a caller waits for the outcome of a task, as a token of a subject."""
    return body.caller if _END.fullmatch(body.caller) else "-"


def parse_ack(ack: str) -> tuple[int, int]:
    """Parse delivery count and sequence number of `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.…`."""
    parts = ack.split(".")
    times, number = parts[4:6] if len(parts) < 11 else parts[6:8]
    return int(times), int(number)


# --- leases -----------------------------------------------------------------------------------------------------------

_SUSPECT_DELAY = 0.5  # seconds until an unwanted suspect is delivered again
_NO_HISTORY = EntryBody(fingerprint="")


class JetStreamReceipt(NamedTuple):
    """The receipt of a claim: the life of its task, the owner of the lease, the end at which a caller waits, and the
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

    def is_valid(self, claim: Claim, last: Entry) -> bool:
        """Return whether the claim still holds, if this is the last entry of its log."""
        if last.kind == "task":
            return last.seq == self.birth and claim.attempt == 1
        return last.kind == "lease" and last.body.holder == self.holder


class JetStreamClaims(SessionListener):
    """The claims of one end. Its coroutines raise `CallError(UNAVAILABLE)`."""

    def __init__(self, session: JetStreamSession, log: TaskLog) -> None:
        self.consumers = Consumers(session, log.names, self._give_back)
        self.leave = self.consumers.leave
        self._session = session
        self._log = log
        self._end = token_hex(8)
        self._numbers = count(1)
        self._tidied: deque[tuple[str, int]] = deque(maxlen=_MAX_TIDIED)  # tasks with removed leases
        session.listeners.append(self)

    async def prepare(self) -> None:
        """Remove leases that a killed server restored."""
        for key, ended in self._tidied:
            self._log.tidy_again(key, ended)

    async def claim(
        self, operation_ids: Sequence[str], lease: float, wait: float, limit: int, *, suspects: bool
    ) -> list[Claim]:
        """Claim the next tasks of these operations."""
        if not operation_ids:
            await asyncio.sleep(wait)
            return []
        end, operations = time.monotonic() + wait, frozenset(operation_ids)
        claims: list[Claim] = []
        room = [None] if suspects else []  # for suspects: one at a time
        while not claims and (taken := await self.consumers.take(operations, end, limit)):
            begun = await asyncio.gather(*(self._begin(each, lease, room) for each in taken), return_exceptions=True)
            claims = [each for each in begun if isinstance(each, Claim)]
            failures = [each for each in begun if isinstance(each, BaseException)]
            if failures and not claims:
                raise failures[0]
            for failure in failures:
                logger.warning("a task of %s is delivered again: %s", self._session.name, failure)
        return claims

    async def _begin(self, delivery: Delivery, lease: float, room: list[None]) -> Claim | None:
        """Claim a task; return None if it has ended or has an owner, which a restored consumer may not know.

        A suspect is not claimed without room for it.
        """
        since = None if delivery.fresh else await self._log.since(delivery.task.key)
        if since is not None and since.seq < delivery.birth:
            since = None  # of an earlier life
        if since is not None and since.body.outcome is not None:
            await self.done(
                delivery.task.key, delivery.ack, since.seq
            )  # the worker that recorded it could not acknowledge
            return None
        if since is not None and since.kind == "lease":
            now = await self._log.now()  # by the clock of the server that stores the lease
            length = seconds_within(since.body.lease, MAX_SECONDS)
            rest = 0.0 if now is None else length - (now - since.time).total_seconds()
            if rest > 0:
                self._delay(delivery.ack, rest)  # the worker that renewed the lease could not delay it
                return None
        claim = self._next_claim(delivery, since, lease)
        if claim.suspect and not room:
            self._delay(delivery.ack, _SUSPECT_DELAY)
            return None
        if claim.suspect:
            room.pop()
        if (since is not None or delivery.times > 1) and not await self._write("lease", claim, since):
            return None
        self._delay(delivery.ack, lease)
        return claim

    def _next_claim(self, delivery: Delivery, since: Entry | None, lease: float) -> Claim:
        """Return the next claim of a task, given the last entry of its log since it was submitted."""
        past = _NO_HISTORY if since is None else since.body
        lost = delivery.times > 1 if since is None else since.kind == "lease"
        return Claim(
            task=delivery.task,
            attempt=min(delivery.times, 2) if since is None else past.attempt + 1,
            lease=lease,
            receipt=f"{delivery.birth} {self._end}/{next(self._numbers)} {delivery.caller} {delivery.ack}",
            failures=past.failures,
            losses=past.losses + lost,
            lone_losses=past.lone_losses + (lost and past.alone),
            suspect=past.suspect or lost,
        )

    async def _give_back(self, delivery: Delivery) -> None:
        if delivery.times == 1:  # must not look like a first attempt that failed
            body = EntryBody(fingerprint=delivery.task.fingerprint, birth=delivery.birth)
            await self._log.hold("later", delivery.task, body, delivery.birth)
        self._delay(delivery.ack, 0)

    async def renew(self, claim: Claim, *, alone: bool) -> bool:
        """Renew a lease; return False if it was lost."""
        return await self._change(claim, "lease", claim.lease, alone=alone)

    async def release(self, claim: Claim, delay: float, *, failed: bool) -> None:
        """Return a task to the queue."""
        if failed:
            claim = replace(claim, failures=claim.failures + 1, suspect=False)
        await self._change(claim, "later", delay)

    async def _change(self, claim: Claim, kind: Kind, delay: float, *, alone: bool = False) -> bool:
        receipt = JetStreamReceipt.of(claim)
        for _ in range(TRIES):
            last = await self._log.last(claim.task.key)
            if last is None or not receipt.is_valid(claim, last):
                return False
            if await self._write(kind, claim, last, alone=alone):
                self._delay(receipt.ack, delay)
                return True
        raise self._log.busy(claim.task.key)

    async def _write(self, kind: Kind, claim: Claim, last: Entry | None, *, alone: bool = False) -> bool:
        """Write a lease or release after the last entry, or after the task if there is none since."""
        birth, holder, *_ = JetStreamReceipt.of(claim)
        body = EntryBody(
            fingerprint=claim.task.fingerprint,
            birth=birth,
            holder=holder,
            attempt=claim.attempt,
            lease=claim.lease,
            failures=claim.failures,
            losses=claim.losses,
            lone_losses=claim.lone_losses,
            suspect=claim.suspect,
            alone=alone,
        )
        written = await self._log.hold(kind, claim.task, body, birth if last is None else last.seq)
        if written and last is not None and last.kind not in ("task", kind):  # one of the same kind was replaced
            self._log.drop(last.seq)
        return written

    async def done(self, key: str, ack: str, ended: int | None = None) -> None:
        """Remove a task that has an outcome; given the outcome's number, the leases and releases before it, too.

        JetStream handles an acknowledgement before requests that arrived earlier, so the removal of the leases is
        awaited: a server that was killed in between would keep them. One that confirms the removal may lose it, too, as
        it writes to its disk later; the removal is repeated over the next connection.
        """
        if ended is not None:
            await self._log.tidy(key, ended)
            self._tidied.append((key, ended))
        self._session.send(ack, b"+ACK")  # last: without it the task is delivered again, and this is repeated

    def _delay(self, ack: str, seconds: float) -> None:
        """Have a task delivered again after this time."""
        delay = round(seconds_within(seconds, MAX_SECONDS) * _NANOSECONDS)
        self._session.send(ack, b'-NAK {"delay": %d}' % delay if delay > 0 else b"-NAK")
