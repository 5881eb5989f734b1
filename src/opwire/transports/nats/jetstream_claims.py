"""How tasks are claimed from JetStream, and kept.

There is one consumer for each operation. An end tells it how many tasks it has room for, and for how long; JetStream
hands out what is there and what comes meanwhile, each task to one end. When it hands out a task again follows the
leases: an end puts that off until its lease is over, with a "not acknowledged" that has a delay. Whose the lease is
says the log of the task, since JetStream does not look at who acknowledges.

A task that is handed out for the first time needs no entry in its log for that. It gets one when the lease is renewed,
when the task is released, or when it is handed out again.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from itertools import count
from secrets import token_hex
from typing import NamedTuple

from msgspec import Struct

from opwire.durable.journal import Claim, Task
from opwire.errors import CallError, ErrorCode
from opwire.transports.nats.jetstream_log import Body, Entry, Kind, Log, read, token
from opwire.transports.nats.jetstream_session import PATIENCE, Answer, Session
from opwire.transports.nats.protocol import Message

logger = logging.getLogger("opwire.durable")

ACK_WAIT = 30.0
"""Seconds after which a task is handed out again, unless its end says otherwise: the usual lease of a worker."""

_TRIES = 5  # to write an entry before somebody else does
_KEPT = 1.0  # seconds for which a task is kept from other ends that nobody here has claimed
_PAUSE = 0.1  # seconds until a consumer is asked again that has not done its work
_WAITING = 4096  # ends that may wait for tasks of one operation
_NANOSECONDS = 1_000_000_000
_IDLE, _REFUSED, _NOBODY = 100, 409, 503  # that an end is alive; what became of what it asked for


class Receipt(NamedTuple):
    """What a claim is known by: the life of its task, who has claimed it, and where JetStream is told about it."""

    birth: int
    holder: str
    ack: str

    @classmethod
    def of(cls, claim: Claim) -> "Receipt":
        """The receipt of a claim."""
        birth, holder, ack = claim.receipt.split(" ", 2)
        return cls(int(birth), holder, ack)


class _Found(NamedTuple):
    """A task that was handed out to us, and how many times it was handed out to whomever."""

    task: Task
    birth: int
    times: int
    ack: str
    since: float


class _Pull(Struct):
    """Room that a consumer was told of."""

    operation_id: str
    subject: str
    left: int


class Claims:
    """The claims of one end."""

    def __init__(self, log: Log, session: Session) -> None:
        self._log = log
        self._session = session
        self._end = token_hex(8)
        self._numbers = count(1)
        self._consumers: set[str] = set()  # the operations whose consumers are there
        self._pulls: dict[str, _Pull] = {}
        self._found: list[_Found] = []  # what nobody has claimed yet, the oldest first
        self._waiting: set[asyncio.Future[None]] = set()  # for news
        self._claiming = 0
        self._timer: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def claim(self, operation_ids: Sequence[str], lease: float, wait: float, limit: int) -> list[Claim]:
        """The next tasks of these operations.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._claiming += 1
        try:
            await self.serve(operation_ids)
            return await self._claim(frozenset(operation_ids), lease, time.monotonic() + wait, limit)
        finally:
            self._claiming -= 1
            self._tidy()

    async def serve(self, operation_ids: Collection[str]) -> None:
        """See that these operations have consumers.

        Raises:
            CallError: UNAVAILABLE.
        """
        await self._session.connect()
        new = [each for each in operation_ids if each not in self._consumers]
        await asyncio.gather(*map(self._create, new))
        self._consumers.update(new)

    async def _create(self, operation_id: str) -> None:
        stream, name = self._log.names.stream, token(operation_id)
        config = {
            "durable_name": name,
            "filter_subject": self._log.names.every(f"task.{name}"),
            "ack_policy": "explicit",
            "ack_wait": round(ACK_WAIT * _NANOSECONDS),
            "max_deliver": -1,
            "max_ack_pending": -1,  # those that were released count, too
            "max_waiting": _WAITING,
            "metadata": {"operation": operation_id},
        }
        request = {"stream_name": stream, "config": config}
        await self._session.api(Answer, f"CONSUMER.CREATE.{stream}.{name}", request)

    async def _claim(self, operations: frozenset[str], lease: float, end: float, limit: int) -> list[Claim]:
        asked = False
        while not (claims := await self._take(operations, lease, limit)):
            left = end - time.monotonic()
            if not self._consumers.issuperset(operations):  # one was deleted, or too many ends wait for it
                await asyncio.sleep(_PAUSE)
                await self.serve(operations)
            elif left > 0 or not asked:
                self._pull(operations, limit, left)
                asked = True
            elif not any(pull.operation_id in operations for pull in self._pulls.values()):
                break
            await self._hear(max(0.0, left) + PATIENCE)
        return claims

    def _pull(self, operations: frozenset[str], limit: int, wait: float) -> None:
        """Tell the consumers how much room there is, as far as they do not know it yet."""
        room = max(1, limit // len(operations))
        request = {"expires": round(wait * _NANOSECONDS)} if wait > 0 else {"no_wait": True}
        for each in operations:
            known = sum(pull.left for pull in self._pulls.values() if pull.operation_id == each)
            if known < room:
                name, number = token(each), f"p{next(self._numbers)}"
                what = f"CONSUMER.MSG.NEXT.{self._log.names.stream}.{name}"
                subject = self._session.request(what, {"batch": room - known, **request}, number)
                self._pulls[number] = _Pull(each, subject, room - known)

    async def _hear(self, patience: float) -> None:
        """Wait until something has come, or will not come."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(patience):
                await future
        except TimeoutError:
            self._pulls.clear()
            silent = f"JetStream does not answer at {self._session.name}: see whether it has a leader"
            raise CallError(ErrorCode.UNAVAILABLE, silent) from None
        finally:
            self._waiting.discard(future)

    # --- what is handed out -------------------------------------------------------------------------------------------

    def arrived(self, number: str, message: Message) -> None:
        """A consumer has something for us."""
        pull = self._pulls.get(number)
        if message.status == _IDLE:
            return
        if message.status:
            self._pulls.pop(number, None)
            if pull is not None and message.status in (_REFUSED, _NOBODY):
                self._consumers.discard(pull.operation_id)
        else:
            if pull is not None:
                pull.left -= 1
                if pull.left == 0:
                    del self._pulls[number]
            self._found += self._read(message)
        self._tell()
        self._tidy()

    def _read(self, message: Message) -> list[_Found]:
        try:
            times, birth = _handed_out(message.reply)
            task = read(message.payload).task
            if task is None or message.subject != self._log.names.entry(task.key, "task", task.operation_id):
                raise ValueError("it is of another kind")
        except (CallError, ValueError) as error:
            logger.error("an entry on %s is no task, and is removed: %s", message.subject, error)
            self._session.send(message.reply, b"+TERM")
            return []
        return [_Found(task, birth, times, message.reply, time.monotonic())]

    async def _take(self, operations: frozenset[str], lease: float, limit: int) -> list[Claim]:
        """Claim what was handed out to us."""
        claims: list[Claim] = []
        for found in [each for each in self._found if each.task.operation_id in operations]:
            if len(claims) < limit and found in self._found:
                self._found.remove(found)
                claim = self._first(found, lease) if found.times == 1 else await self._again(found, lease)
                claims += [] if claim is None else [claim]
        return claims

    def _first(self, found: _Found, lease: float) -> Claim:
        if lease != ACK_WAIT or time.monotonic() - found.since > _KEPT / 10:
            self._put_off(found.ack, lease)
        return self._claimed(found, 1, lease)

    async def _again(self, found: _Found, lease: float) -> Claim | None:
        """Claim a task that was handed out before; None if it has ended, or somebody has it nonetheless."""
        last = await self._log.last(found.task.key)
        if last is None or last.kind in ("ended", "gone") or last.birth != found.birth:
            self.done(found.ack)  # who has recorded the outcome could not say so
            return None
        rest = await self._rest(last)
        if rest > 0:
            self._put_off(found.ack, rest)  # who has renewed the lease could not put it off
            return None
        claim = self._claimed(found, 2 if last.kind == "task" else last.body.attempt + 1, lease)
        mine = await self._hold("lease", claim, last)
        self._put_off(found.ack, lease if mine else 0)
        return claim if mine else None

    async def _rest(self, last: Entry) -> float:
        """For how many seconds a lease lasts, by the clock of those who store it."""
        now = await self._log.now() if last.kind == "lease" else None
        return 0.0 if now is None else last.body.lease - (now - last.time).total_seconds()

    def _claimed(self, found: _Found, attempt: int, lease: float) -> Claim:
        receipt = f"{found.birth} {self._end}/{next(self._numbers)} {found.ack}"
        return Claim(task=found.task, attempt=attempt, lease=lease, receipt=receipt)

    # --- keeping ------------------------------------------------------------------------------------------------------

    async def renew(self, claim: Claim) -> bool:
        """Keep a task for another lease.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._change(claim, "lease", claim.lease)

    async def release(self, claim: Claim, delay: float) -> None:
        """Give a task back.

        Raises:
            CallError: UNAVAILABLE.
        """
        await self._change(claim, "later", delay)

    async def _change(self, claim: Claim, kind: Kind, delay: float) -> bool:
        receipt = Receipt.of(claim)
        for _ in range(_TRIES):
            last = await self._log.last(claim.task.key)
            if last is None or not _is_ours(claim, last):
                return False
            if await self._hold(kind, claim, last):
                self._put_off(receipt.ack, delay)
                return True
        raise self._log.busy(claim.task.key)

    async def _hold(self, kind: Kind, claim: Claim, last: Entry) -> bool:
        receipt = Receipt.of(claim)
        body = Body(
            fingerprint=claim.task.fingerprint,
            birth=receipt.birth,
            holder=receipt.holder,
            attempt=claim.attempt,
            lease=claim.lease,
        )
        held = await self._log.hold(kind, claim.task, body, last.seq)
        if held and last.kind not in ("task", kind):  # one of the same kind is replaced
            self._log.drop(last.seq)
        return held

    def done(self, ack: str) -> None:
        """Have a task that has ended removed.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED.
        """
        self._session.send(ack, b"+ACK")

    def _put_off(self, ack: str, seconds: float) -> None:
        """Have a task handed out again, not before so many seconds."""
        delay = round(seconds * _NANOSECONDS)
        self._session.send(ack, b'-NAK {"delay": %d}' % delay if delay > 0 else b"-NAK")

    # --- what nobody has claimed --------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """See that others get what was handed out to us, and what nobody here claims."""
        if self._found and not self._claiming and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_KEPT, self._give_back)

    def _give_back(self) -> None:
        self._timer = None
        if not self._claiming:
            found, self._found = self._found, []
            task = asyncio.get_running_loop().create_task(self._return(found))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return(self, found: list[_Found]) -> None:
        try:
            for each in found:
                if each.times == 1:  # or else it would look as if its first attempt had failed
                    body = Body(fingerprint=each.task.fingerprint, birth=each.birth)
                    await self._log.hold("later", each.task, body, each.birth)
                self._put_off(each.ack, 0)
        except CallError as error:
            logger.debug("tasks that were not claimed come back when their leases are over: %s", error)

    async def leave(self) -> None:
        """Give back what nobody has claimed. The session is closed by its owner."""
        if self._timer is not None:
            self._timer.cancel()
        self._give_back()
        await asyncio.gather(*self._returning)

    # --- news ---------------------------------------------------------------------------------------------------------

    def lost(self, error: CallError) -> None:
        """The connection is gone."""
        self._pulls.clear()
        self._consumers.clear()
        self._tell(error)

    def refused(self, subject: str, error: CallError) -> None:
        """The server does not let us ask for tasks."""
        asked = [number for number, pull in self._pulls.items() if pull.subject == subject]
        for number in asked:
            del self._pulls[number]
        if asked:
            self._tell(error)

    def _tell(self, error: CallError | None = None) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)


def _is_ours(claim: Claim, last: Entry) -> bool:
    """Whether nobody has claimed or ended the task since."""
    receipt = Receipt.of(claim)
    if last.kind == "task":
        return last.seq == receipt.birth and claim.attempt == 1
    return last.kind == "lease" and last.body.holder == receipt.holder


def _handed_out(ack: str) -> tuple[int, int]:
    """How many times, and the number of the entry: from `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.…`."""
    parts = ack.split(".")
    times, number = parts[4:6] if len(parts) < 11 else parts[6:8]
    return int(times), int(number)
