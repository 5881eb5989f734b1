"""How tasks are handed out: one consumer of JetStream for each operation, shared by all ends.

An end tells a consumer how many tasks it has room for, and for how long. It is given what is there and what comes
meanwhile; each task is given to one end. A task that is lost on the way is handed out again after `ACK_WAIT`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from msgspec import Struct

from opwire.durable.journal import Task
from opwire.errors import CallError
from opwire.transports.nats.jetstream_log import Names, read, token
from opwire.transports.nats.jetstream_session import PATIENCE, Answer, Listener, Session
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
