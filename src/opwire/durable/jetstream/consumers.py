"""How JetStream delivers the tasks of `NatsJournal`.

Each operation has one durable pull consumer, shared by all peers. A peer requests a number of tasks for a limited time,
and receives those that are queued or arrive meanwhile; each task goes to one peer. A task that is lost on the way is
delivered again after `ACK_WAIT`.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from itertools import count
from math import inf
from typing import NamedTuple

from msgspec import Struct

from opwire.durable.jetstream.log import EntryBody, JournalSubjects, decode_entry, token
from opwire.durable.jetstream.session import (
    RESPONSE_TIMEOUT_SECONDS,
    ApiResponse,
    JetStreamSession,
    SessionListener,
    StreamFound,
)
from opwire.durable.journal import Task
from opwire.errors import CallError
from opwire.runtime.tasks import cancel_tasks, reject, resolve
from opwire.runtime.text import get_logger
from opwire.transports.nats.connection import Message

logger = get_logger("opwire.durable.jetstream")

ACK_WAIT = 5.0
"""Seconds after which a task is delivered again, unless its peer has delayed that."""

NANOSECONDS = 1_000_000_000

_MAX_UNCLAIMED_SECONDS = 1.0  # then another peer gets the task
_CONSUMER_RETRY_SECONDS = 0.1
_MAX_PEERS_PER_OPERATION = 4096
_HEARTBEAT_STATUS = 100
_FAILED_STATUSES = (409, 503)  # the consumer was deleted or has too many requests; nothing serves it
_MIN_HEARTBEAT_SECONDS = 1.0  # between two heartbeats of a pull request: the server that has it may die
_MAX_HEARTBEATS_PER_SECOND = 100
_MAX_SILENT_BEATS = 2.5  # then a pull request is sent again
_PEER_NAME = re.compile("[0-9a-f]{16}")  # anything else in a task would change the subject of its outcome


class Delivery(NamedTuple):
    """A task that was delivered to us, and how many times it was delivered to any peer.

    `caller` is the peer at which a caller waits, or `-`. `fresh`: no peer can have claimed it before.
    """

    task: Task
    birth: int
    times: int
    ack: str
    caller: str
    fresh: bool


class _ConsumerConfig(Struct, frozen=True):
    metadata: dict[str, str] = {}


class _LastDelivery(Struct, frozen=True):
    stream_seq: int = 0


class ConsumerInfo(Struct, frozen=True):
    """The numbers of undelivered and of delivered or delayed tasks of a consumer, and the last delivered entry."""

    config: _ConsumerConfig = _ConsumerConfig()
    delivered: _LastDelivery = _LastDelivery()
    num_pending: int = 0
    num_ack_pending: int = 0

    @property
    def operation_id(self) -> str:
        """Return its operation; empty, if the consumer is not one of ours."""
        return self.config.metadata.get("operation", "")


class ConsumerPage(ApiResponse, frozen=True):
    """The response to CONSUMER.LIST."""

    total: int = 0
    consumers: list[ConsumerInfo] | None = None


class _PullRequest(Struct, eq=False):
    """A request for tasks in flight. One per operation, since deliveries do not name the request they belong to."""

    number: str
    subject: str
    tasks_left: int
    patience: float  # seconds
    deadline: float = 0.0  # by which the consumer has to send anything

    def renew(self) -> None:
        """Restart the wait for the consumer."""
        self.deadline = time.monotonic() + self.patience


class _Consumer(Struct, eq=False):
    """A consumer that is known to exist.

    It may have forgotten deliveries up to `delivered_before`. From there on it delivers each task for the first time
    once, in the order of the stream: a later one has no log yet that has to be read.
    """

    delivered_before: float
    pull: _PullRequest | None = None


class Consumers(SessionListener):
    """The consumers, as one peer uses them. `give_back` returns tasks that were not claimed here in time.

    Its coroutines raise `CallError(UNAVAILABLE)`.
    """

    def __init__(
        self, session: JetStreamSession, names: JournalSubjects, give_back: Callable[[Delivery], Awaitable[None]]
    ) -> None:
        self._session = session
        self._names = names
        self._give_back = give_back
        self._pull_numbers = count(1)
        self._consumers: dict[str, _Consumer] = {}  # by operation
        self._deliveries: list[Delivery] = []  # not claimed yet, the oldest first
        self._waiting_claims: set[asyncio.Future[None]] = set()
        self._active_claims = 0
        self._returning: asyncio.Task[None] | None = None
        self._closed = False
        session.listeners.append(self)

    async def create(self, operation_ids: Collection[str]) -> None:
        """Create the consumers of these operations where they are missing."""
        await self._session.connect()
        missing_ids = [operation_id for operation_id in operation_ids if operation_id not in self._consumers]
        if not missing_ids:
            return
        await asyncio.gather(*map(self._create, missing_ids))
        delivered_before = inf
        if self._session.is_local:  # else the server of the consumer may restart without our notice
            stream = await self._session.api(StreamFound, f"STREAM.INFO.{self._names.stream}")
            delivered_before = stream.state.last_seq
        for operation_id in missing_ids:
            self._consumers.setdefault(operation_id, _Consumer(delivered_before))

    async def _create(self, operation_id: str) -> None:
        name = token(operation_id)
        config = {
            "durable_name": name,
            "filter_subject": self._names.every(f"task.{name}"),
            "ack_policy": "explicit",
            "ack_wait": round(ACK_WAIT * NANOSECONDS),
            "max_deliver": -1,
            "max_ack_pending": -1,  # released tasks count, too
            "max_waiting": _MAX_PEERS_PER_OPERATION,
            "metadata": {"operation": operation_id},
        }
        request = {"stream_name": self._names.stream, "config": config}
        await self._session.api(ApiResponse, f"CONSUMER.CREATE.{self._names.stream}.{name}", request)

    async def infos(self) -> list[ConsumerInfo]:
        """Return the consumers of all operations."""
        consumers: list[ConsumerInfo] = []
        while True:
            method, request = f"CONSUMER.LIST.{self._names.stream}", {"offset": len(consumers)}
            page = await self._session.api(ConsumerPage, method, request)
            consumers += page.consumers or []
            if len(consumers) >= page.total:
                return [consumer for consumer in consumers if consumer.operation_id]
            if not page.consumers:
                raise self._session.silent()  # some of them have no leader

    async def last_delivered(self, operation_id: str) -> int:
        """Return the number of the last task of an operation that was delivered to a worker; 0 before the first."""
        consumers = [consumer for consumer in await self.infos() if consumer.operation_id == operation_id]
        return max((consumer.delivered.stream_seq for consumer in consumers), default=0)

    # --- claims -------------------------------------------------------------------------------------------------------

    async def take(self, operations: frozenset[str], deadline: float, limit: int) -> list[Delivery]:
        """Return the next tasks of these operations; an empty list if none arrive until a monotonic time."""
        self._active_claims += 1
        try:
            await self.create(operations)
            return await self._take(operations, deadline, limit)
        finally:
            self._active_claims -= 1
            self._return_unclaimed_later()

    async def _take(self, operations: frozenset[str], deadline: float, limit: int) -> list[Delivery]:
        pulls: list[_PullRequest] = []  # of this claim
        while not (deliveries := self._take_delivered(operations, limit)):
            seconds_left = deadline - time.monotonic()
            if self._drop_silent(pulls) and seconds_left <= 0:
                raise self._session.silent()
            if not self._consumers.keys() >= operations:  # one was deleted, or too many peers wait for it
                await asyncio.sleep(_CONSUMER_RETRY_SECONDS)
                await self.create(operations)
                continue
            if seconds_left > 0 or not pulls:
                pulls += self._pull(operations, limit, seconds_left)
            pull_deadlines = [pull.deadline for pull in self._in_flight(pulls).values()]
            if seconds_left <= 0 and not pull_deadlines:
                return []
            await self._wait_until(min(pull_deadlines, default=deadline))
        return deliveries

    def _take_delivered(self, operations: frozenset[str], limit: int) -> list[Delivery]:
        matching: list[Delivery] = []
        others: list[Delivery] = []
        for delivery in self._deliveries:
            is_claimed = delivery.task.operation_id in operations and len(matching) < limit
            (matching if is_claimed else others).append(delivery)
        self._deliveries = others
        return matching

    def _in_flight(self, pulls: list[_PullRequest]) -> dict[str, _PullRequest]:
        """Return those of these pull requests that have not ended, by operation."""
        return {
            operation_id: consumer.pull
            for operation_id, consumer in self._consumers.items()
            if consumer.pull is not None and consumer.pull in pulls
        }

    def _drop_silent(self, pulls: list[_PullRequest]) -> bool:
        """Drop those of these pull requests that have a silent consumer; return whether there were any."""
        now = time.monotonic()
        silent_ids = [operation_id for operation_id, pull in self._in_flight(pulls).items() if pull.deadline <= now]
        for operation_id in silent_ids:
            self._consumers[operation_id].pull = None
        return bool(silent_ids)

    def _pull(self, operations: frozenset[str], limit: int, wait: float) -> list[_PullRequest]:
        """Send pull requests to the consumers without one."""
        tasks_per_operation = max(1, limit // len(operations))
        options: dict[str, object] = {"expires": round(wait * NANOSECONDS)} if wait > 0 else {"no_wait": True}
        patience = max(0.0, wait) + RESPONSE_TIMEOUT_SECONDS
        beat = max(_MIN_HEARTBEAT_SECONDS, len(operations) / _MAX_HEARTBEATS_PER_SECOND)
        if wait >= 2 * beat:  # a limit of NATS
            patience = _MAX_SILENT_BEATS * beat
            options["idle_heartbeat"] = round(beat * NANOSECONDS)
        pulls: list[_PullRequest] = []
        for operation_id in operations:
            consumer = self._consumers[operation_id]
            if consumer.pull is not None:
                continue
            number = f"pull{next(self._pull_numbers)}"
            method = f"CONSUMER.MSG.NEXT.{self._names.stream}.{token(operation_id)}"
            subject = self._session.request(method, {"batch": tasks_per_operation, **options}, number)
            consumer.pull = _PullRequest(number, subject, tasks_per_operation, patience)
            consumer.pull.renew()
            pulls.append(consumer.pull)
        return pulls

    async def _wait_until(self, deadline: float) -> None:
        """Wait for a delivery, for the end of a pull request, or until a monotonic time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_claims.add(future)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - time.monotonic()):
                    await future
        finally:
            self._waiting_claims.discard(future)

    # --- what the session hears ---------------------------------------------------------------------------------------

    def arrived(self, token: str, message: Message) -> None:
        """Handle a delivery, or the end of a pull request."""
        if token:
            self._end_pull(token, message.status)
        elif (delivery := self._decode(message)) is not None:
            self._deliveries.append(delivery)
            consumer = self._consumers.get(delivery.task.operation_id)
            if consumer is not None and consumer.pull is not None:
                consumer.pull.tasks_left -= 1
                consumer.pull.renew()
                if consumer.pull.tasks_left == 0:
                    consumer.pull = None
        for future in self._waiting_claims:
            resolve(future)
        self._return_unclaimed_later()

    def _end_pull(self, number: str, status: int) -> None:
        for operation_id, consumer in self._consumers.items():
            if consumer.pull is None or consumer.pull.number != number:
                continue
            if status == _HEARTBEAT_STATUS:
                consumer.pull.renew()
            elif status in _FAILED_STATUSES:
                del self._consumers[operation_id]
            else:
                consumer.pull = None
            return

    def _decode(self, message: Message) -> Delivery | None:
        try:
            times, birth = parse_ack(message.reply)
            body = decode_entry(message.payload)
            task = body.task
            if task is None or message.subject != self._names.task(task.key, task.operation_id):
                raise ValueError("not a task of this subject")
        except (CallError, ValueError) as error:
            logger.error("removed an invalid task on %s: %s", message.subject, error)
            with suppress(CallError):  # or else it is delivered again
                self._session.send(message.reply, b"+TERM")
            return None
        consumer = self._consumers.get(task.operation_id)
        fresh = times == 1 and consumer is not None and birth > consumer.delivered_before
        if consumer is not None and fresh:
            consumer.delivered_before = birth
        return Delivery(task, birth, times, message.reply, waiting_peer(body), fresh)

    def lost(self, error: CallError) -> None:
        """Fail the claims that wait; called by the session."""
        self._consumers.clear()
        self._fail(error)

    def refused(self, subject: str, error: CallError) -> None:
        """Fail the claims that wait, if a pull request was denied; called by the session."""
        denied = [
            consumer for consumer in self._consumers.values() if consumer.pull and consumer.pull.subject == subject
        ]
        for consumer in denied:
            consumer.pull = None
        if denied:
            self._fail(error)

    def _fail(self, error: CallError) -> None:
        for future in self._waiting_claims:
            reject(future, error)

    # --- unclaimed tasks ----------------------------------------------------------------------------------------------

    def _return_unclaimed_later(self) -> None:
        """Return unclaimed tasks to other peers, if no claim here takes them in time."""
        is_returning = self._returning is not None and not self._returning.done()
        if self._deliveries and not self._active_claims and not is_returning and not self._closed:
            self._returning = asyncio.get_running_loop().create_task(self._wait_and_return())

    async def _wait_and_return(self) -> None:
        await asyncio.sleep(_MAX_UNCLAIMED_SECONDS)
        if not self._active_claims:
            await self._return_unclaimed()

    async def _return_unclaimed(self) -> None:
        try:
            while self._deliveries:
                await self._give_back(self._deliveries.pop(0))
        except Exception as error:
            self._deliveries.clear()
            level = logging.DEBUG if isinstance(error, CallError) else logging.ERROR
            logger.log(level, "unclaimed tasks are delivered again after %g s: %s", ACK_WAIT, error)

    async def leave(self) -> None:
        """Return unclaimed tasks. The owner closes the session."""
        self._closed = True
        await cancel_tasks(self._returning)
        await self._return_unclaimed()


def waiting_peer(body: EntryBody) -> str:
    """Return the peer at which a caller waits for the outcome of a task, as a token of a subject."""
    return body.caller if _PEER_NAME.fullmatch(body.caller) else "-"


def parse_ack(ack: str) -> tuple[int, int]:
    """Parse delivery count and sequence number of `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.…`."""
    parts = ack.split(".")
    times, number = parts[4:6] if len(parts) < 11 else parts[6:8]
    return int(times), int(number)
