"""Who has a task, and for how long.

Whose the lease is says the log of the task, since JetStream does not look at who acknowledges something. When the task
is handed out again is up to JetStream, and it is told to wait until the lease is over: by a "not acknowledged" that has
a delay.

A task that is claimed for the first time needs no entry in its log for that. It gets one when the lease is renewed,
when the task is released, or when it is claimed again.

JetStream cannot leave suspects out when it hands out tasks. Those that are not wanted are handed out again a little
later; only a claim is an attempt.

How tasks are handed out: one consumer of JetStream for each operation, shared by all ends.

An end tells a consumer how many tasks it has room for, and for how long. It is given what is there and what comes
meanwhile; each task is given to one end. A task that is lost on the way is handed out again after `ACK_WAIT`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from opwire.durable.journal import MAX_SECONDS, Claim, Task, seconds_within
from opwire.errors import CallError
from opwire.transports.nats.jetstream_api import (
    PATIENCE,
    TRIES,
    Answer,
    Body,
    Entry,
    Kind,
    Listener,
    Log,
    Names,
    Session,
    read,
    token,
)
from opwire.transports.nats.protocol import Message

logger = logging.getLogger("opwire.durable")

ACK_WAIT = 5.0
"""Seconds after which a task is handed out again, unless its end has put that off."""

_KEPT = 1.0  # seconds for which a task is kept from other ends that nobody here has claimed
_PAUSE = 0.1  # seconds until a consumer is asked again that has not done its work
_MAX_WAITING = 4096  # ends that may wait for tasks of one operation
_NANOSECONDS = 1_000_000_000
_REFUSED, _NOBODY = 409, 503  # why a consumer hands out nothing: it does not want to, or is not there


class Found(NamedTuple):
    """A task that was handed out to us, and how many times it was handed out to whomever."""

    task: Task
    birth: int
    times: int
    ack: str


class _Config(Struct, frozen=True):
    metadata: dict[str, str] = {}


class Consumer(Struct, frozen=True):
    """How much a consumer has not handed out yet, and how much is handed out, or put off."""

    config: _Config = _Config()
    num_pending: int = 0
    num_ack_pending: int = 0

    @property
    def operation_id(self) -> str:
        """Whose tasks it hands out; empty, if it is not one of ours."""
        return self.config.metadata.get("operation", "")


class _Page(Answer, frozen=True):
    total: int = 0
    consumers: list[Consumer] | None = None


class _Room(Struct):
    """What a consumer was told. Once at a time for each operation, since tasks do not say which request they answer."""

    number: str
    subject: str
    left: int


class Consumers(Listener):
    """The consumers, as one end uses them. `give_back` is for tasks that nobody here has claimed in time."""

    def __init__(self, session: Session, names: Names, give_back: Callable[[Found], Awaitable[None]]) -> None:
        self._session = session
        self._names = names
        self._give_back = give_back
        self._numbers = count(1)
        self._there: set[str] = set()  # the operations whose consumers are there
        self._rooms: dict[str, _Room] = {}  # by operation
        self._found: list[Found] = []  # what nobody has claimed yet, the oldest first
        self._waiting: set[asyncio.Future[None]] = set()  # those who wait for news
        self._takers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None
        self._closed = False
        session.listeners.append(self)

    async def create(self, operation_ids: Collection[str]) -> None:
        """See that these operations have consumers.

        Raises:
            CallError: UNAVAILABLE.
        """
        await self._session.connect()
        new = [each for each in operation_ids if each not in self._there]
        await asyncio.gather(*map(self._create, new))
        self._there.update(new)

    async def _create(self, operation_id: str) -> None:
        stream, name = self._names.stream, token(operation_id)
        config = {
            "durable_name": name,
            "filter_subject": self._names.every(f"task.{name}"),
            "ack_policy": "explicit",
            "ack_wait": round(ACK_WAIT * _NANOSECONDS),
            "max_deliver": -1,
            "max_ack_pending": -1,  # tasks that were released count, too
            "max_waiting": _MAX_WAITING,
            "metadata": {"operation": operation_id},
        }
        await self._session.api(Answer, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})

    async def every(self) -> list[Consumer]:
        """Those of all operations.

        Raises:
            CallError: UNAVAILABLE.
        """
        found: list[Consumer] = []
        while True:
            page = await self._session.api(_Page, f"CONSUMER.LIST.{self._names.stream}", {"offset": len(found)})
            found += page.consumers or []
            if len(found) >= page.total:
                return [consumer for consumer in found if consumer.operation_id]
            if not page.consumers:
                raise self._session.silent()  # some of them have no leader

    # --- taking -------------------------------------------------------------------------------------------------------

    async def take(self, operations: frozenset[str], end: float, limit: int) -> list[Found]:
        """The next tasks of these operations; none if there are none until `end`.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._takers += 1
        try:
            await self.create(operations)
            return await self._take(operations, end, limit)
        finally:
            self._takers -= 1
            self._tidy()

    async def _take(self, operations: frozenset[str], end: float, limit: int) -> list[Found]:
        asked: set[str] = set()
        while not (found := self._pick(operations, limit)):
            left = end - time.monotonic()
            if not self._there.issuperset(operations):  # one was deleted, or too many ends wait for it
                await asyncio.sleep(_PAUSE)
                await self.create(operations)
                continue
            if left > 0 or not asked:
                asked |= self._ask(operations, limit, left)
            owing = not asked.isdisjoint(room.number for room in self._rooms.values())
            if left <= 0 and not owing:
                break
            heard = await self._hear(max(0.0, left) + owing * PATIENCE)
            if owing and not heard:
                self._rooms.clear()
                raise self._session.silent()
        return found

    def _pick(self, operations: frozenset[str], limit: int) -> list[Found]:
        picked = [found for found in self._found if found.task.operation_id in operations][:limit]
        if picked:
            self._found = [found for found in self._found if found not in picked]
        return picked

    def _ask(self, operations: frozenset[str], limit: int, wait: float) -> set[str]:
        """Tell the consumers that do not know it how much room there is. The numbers of what they were told."""
        batch = max(1, limit // len(operations))
        until = {"expires": round(wait * _NANOSECONDS)} if wait > 0 else {"no_wait": True}
        numbers: set[str] = set()
        for each in operations.difference(self._rooms):
            what, number = f"CONSUMER.MSG.NEXT.{self._names.stream}.{token(each)}", f"room{next(self._numbers)}"
            subject = self._session.request(what, {"batch": batch, **until}, number)
            self._rooms[each] = _Room(number, subject, batch)
            numbers.add(number)
        return numbers

    async def _hear(self, patience: float) -> bool:
        """Wait until something has come, or will not come. False if nothing is heard."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(patience):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)

    # --- what is handed out -------------------------------------------------------------------------------------------

    def arrived(self, token: str, message: Message) -> None:
        """A consumer has handed out a task, or says that it will not."""
        if token:
            self._over(token, message.status)
        elif (found := self._read(message)) is not None:
            self._found.append(found)
            self._fill(found.task.operation_id)
        self._tell()
        self._tidy()

    def _over(self, number: str, status: int) -> None:
        for operation_id, room in tuple(self._rooms.items()):
            if room.number == number:
                del self._rooms[operation_id]
                if status in (_REFUSED, _NOBODY):
                    self._there.discard(operation_id)

    def _read(self, message: Message) -> Found | None:
        try:
            times, birth = _handed_out(message.reply)
            task = read(message.payload).task
            if task is None or message.subject != self._names.task(task.key, task.operation_id):
                raise ValueError("it is of another kind")
        except (CallError, ValueError) as error:
            logger.error("an entry on %s is no task, and is removed: %s", message.subject, error)
            with suppress(CallError):  # or else it comes again
                self._session.send(message.reply, b"+TERM")
            return None
        return Found(task, birth, times, message.reply)

    def _fill(self, operation_id: str) -> None:
        room = self._rooms.get(operation_id)
        if room is not None:
            room.left -= 1
            if room.left == 0:
                del self._rooms[operation_id]

    # --- what nobody has claimed --------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """See that others get what was handed out to us, and what nobody here claims."""
        if self._found and not self._takers and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_KEPT, self._begin_return)

    def _begin_return(self) -> None:
        self._timer = None
        if not self._takers:
            self._returning = asyncio.get_running_loop().create_task(self._return())

    async def _return(self) -> None:
        found, self._found = self._found, []
        try:
            for each in found:
                await self._give_back(each)
        except Exception as error:
            level = logging.DEBUG if isinstance(error, CallError) else logging.ERROR
            logger.log(level, "tasks that were not claimed come back after %g s: %s", ACK_WAIT, error)

    async def leave(self) -> None:
        """Give back what nobody has claimed. The session is closed by its owner."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._returning is not None:
            await self._returning
        await self._return()

    # --- news ---------------------------------------------------------------------------------------------------------

    def lost(self, error: CallError) -> None:
        """The connection is gone."""
        self._rooms.clear()
        self._there.clear()
        self._tell(error)

    def refused(self, subject: str, error: CallError) -> None:
        """The server does not let us publish to this subject."""
        asked = [operation_id for operation_id, room in self._rooms.items() if room.subject == subject]
        for operation_id in asked:
            del self._rooms[operation_id]
        if asked:
            self._tell(error)

    def _tell(self, error: CallError | None = None) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)


def _handed_out(ack: str) -> tuple[int, int]:
    """How many times, and the number of the entry: in `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.…`."""
    parts = ack.split(".")
    times, number = parts[4:6] if len(parts) < 11 else parts[6:8]
    return int(times), int(number)


_NOT_NOW = 0.5  # seconds until a suspect is handed out again that was not wanted
_SOUND = Body(fingerprint="")


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

    def stands(self, claim: Claim, last: Entry) -> bool:
        """Whether nobody has claimed, released or ended the task since, if this is the last entry of its log."""
        if last.kind == "task":
            return last.seq == self.birth and claim.attempt == 1
        return last.kind == "lease" and last.body.holder == self.holder


class Claims:
    """The claims of one end."""

    def __init__(self, session: Session, log: Log) -> None:
        self.consumers = Consumers(session, log.names, self._give_back)
        self._session = session
        self._log = log
        self._end = token_hex(8)
        self._numbers = count(1)

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def claim(
        self, operation_ids: Sequence[str], lease: float, wait: float, limit: int, *, suspects: bool
    ) -> list[Claim]:
        """Claim the next tasks of these operations.

        Raises:
            CallError: UNAVAILABLE.
        """
        if not operation_ids:
            await asyncio.sleep(wait)
            return []
        end, operations = time.monotonic() + wait, frozenset(operation_ids)
        claims: list[Claim] = []
        room = [None] if suspects else []  # for suspects: one at a time
        while not claims and (found := await self.consumers.take(operations, end, limit)):
            begun = await asyncio.gather(*(self._begin(each, lease, room) for each in found), return_exceptions=True)
            claims = [each for each in begun if isinstance(each, Claim)]
            failures = [each for each in begun if isinstance(each, BaseException)]
            if failures and not claims:
                raise failures[0]
            for failure in failures:
                logger.warning("a task of %s is handed out again: %s", self._session.name, failure)
        return claims

    async def _begin(self, found: Found, lease: float, room: list[None]) -> Claim | None:
        """Claim a task, unless it has ended, or has an owner: a consumer that was restored may not know.

        Nor is a suspect claimed without room for it.
        """
        since = await self._log.since(found.task.key)
        if since is not None and since.seq < found.birth:
            since = None  # it is of an earlier life
        if since is not None and since.body.outcome is not None:
            self.done(found.task.key, found.ack, since.seq)  # who has recorded it could not say so
            return None
        rest = 0.0 if since is None else await self._rest(since)
        if rest > 0:
            self._put_off(found.ack, rest)  # who has renewed the lease could not put it off
            return None
        claim = self._claim(found, since, lease)
        if claim.suspect and not room:
            self._put_off(found.ack, _NOT_NOW)
            return None
        if claim.suspect:
            room.pop()
        if (since is not None or found.times > 1) and not await self._write("lease", claim, since):
            return None
        self._put_off(found.ack, lease)
        return claim

    async def _rest(self, last: Entry) -> float:
        """For how many seconds a lease lasts, by the clock of those who store it."""
        now = await self._log.now() if last.kind == "lease" else None
        lease = seconds_within(last.body.lease, MAX_SECONDS)
        return 0.0 if now is None else lease - (now - last.time).total_seconds()

    def _claim(self, found: Found, since: Entry | None, lease: float) -> Claim:
        """Return the next claim of a task, if this is the last entry of its log since it was submitted."""
        past = _SOUND if since is None else since.body
        lost = found.times > 1 if since is None else since.kind == "lease"
        return Claim(
            task=found.task,
            attempt=min(found.times, 2) if since is None else past.attempt + 1,
            lease=lease,
            receipt=f"{found.birth} {self._end}/{next(self._numbers)} {found.ack}",
            failures=past.failures,
            losses=past.losses + lost,
            lone_losses=past.lone_losses + (lost and past.alone),
            suspect=past.suspect or lost,
        )

    async def _give_back(self, found: Found) -> None:
        """Give back what nobody has claimed."""
        if found.times == 1:  # it is not to look as if its first attempt had failed
            body = Body(fingerprint=found.task.fingerprint, birth=found.birth)
            await self._log.hold("later", found.task, body, found.birth)
        self._put_off(found.ack, 0)

    # --- keeping ------------------------------------------------------------------------------------------------------

    async def renew(self, claim: Claim, *, alone: bool) -> bool:
        """Keep a task for another lease.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._change(claim, "lease", claim.lease, alone=alone)

    async def release(self, claim: Claim, delay: float, *, failed: bool) -> None:
        """Give a task back.

        Raises:
            CallError: UNAVAILABLE.
        """
        if failed:
            claim = replace(claim, failures=claim.failures + 1, suspect=False)
        await self._change(claim, "later", delay)

    async def _change(self, claim: Claim, kind: Kind, delay: float, *, alone: bool = False) -> bool:
        receipt = Receipt.of(claim)
        for _ in range(TRIES):
            last = await self._log.last(claim.task.key)
            if last is None or not receipt.stands(claim, last):
                return False
            if await self._write(kind, claim, last, alone=alone):
                self._put_off(receipt.ack, delay)
                return True
        raise self._log.busy(claim.task.key)

    async def _write(self, kind: Kind, claim: Claim, last: Entry | None, *, alone: bool = False) -> bool:
        """Write who has a task after the last entry, or after the task if there is none since."""
        birth, holder, _ = Receipt.of(claim)
        body = Body(
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

    def done(self, key: str, ack: str, ended: int | None = None) -> None:
        """Have a task removed that has an outcome, and with its number, whatever says who had the task until then.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED.
        """
        if ended is not None:
            self._log.tidy(key, ended)
        self._session.send(ack, b"+ACK")  # at last: without it, the task is handed out again, and this is done then

    def _put_off(self, ack: str, seconds: float) -> None:
        """Have a task handed out again, and not before so many seconds."""
        delay = round(seconds_within(seconds, MAX_SECONDS) * _NANOSECONDS)
        self._session.send(ack, b'-NAK {"delay": %d}' % delay if delay > 0 else b"-NAK")
