"""How tasks are claimed from Redis Streams, and kept.

What is there is taken by a script, which takes no more than it was asked for. Where there is nothing, a connection of
its own waits: Redis gives what comes to the worker that has waited longest, and wakes no other. Tasks that were
released or lost are looked for now and then, since nothing says when they are due.
"""

import logging
import time
from collections.abc import Callable, Sequence
from math import ceil, inf
from secrets import token_hex
from typing import Any, NamedTuple

from opwire.durable.journal import MAX_SECONDS, Claim, Task, seconds_within
from opwire.transports.redis.resp import command
from opwire.transports.redis.stream_scripts import LEAVE, RELEASE, RENEW, TAKE, Names
from opwire.transports.redis.stream_session import PATIENCE, Session

logger = logging.getLogger("opwire.durable")

_SILENCE = 600_000  # milliseconds after which a consumer that has no task is gone
_LOOK = 1.0  # seconds, at most, between two looks for tasks that were released or lost


class _Found(NamedTuple):
    """An entry of a stream that is ours now."""

    operation_id: str
    id: bytes
    attempt: int
    fields: list[bytes]
    history: Sequence[int] = (0, 0, 0, 0, 0)

    @property
    def suspect(self) -> bool:
        return self.history[3] == 1


class Receipt(NamedTuple):
    """What a claim is known by: the entry, and the consumer that it was given to."""

    id: str
    consumer: str

    @classmethod
    def of(cls, claim: Claim) -> "Receipt":
        """The receipt of a claim."""
        id, _, consumer = claim.receipt.partition(" ")
        return cls(id, consumer)


class Claims:
    """The claims of one end. `session` is for scripts; `connect` makes those on which a claim can block."""

    def __init__(self, names: Names, session: Session, connect: Callable[[], Session]) -> None:
        self._names = names
        self._session = session
        self._connect = connect
        self._spare: list[Session] = []  # on which nobody waits
        self._token = token_hex(8)
        self._consumers: dict[bytes, str] = {}  # the latest, by stream
        self._looked: dict[tuple[tuple[str, ...], bool], float] = {}  # by operations, and whether for suspects
        self._turn = 0
        self._closed = False

    async def claim(
        self, operation_ids: Sequence[str], lease: float, wait: float, limit: int, *, suspects: bool
    ) -> list[Claim]:
        """Claim the next tasks of these operations.

        Raises:
            CallError: UNAVAILABLE.
        """
        now, operations = time.monotonic(), tuple(operation_ids)
        often, looked = min(_LOOK, lease / 3), (operations, suspects)
        look = now - self._looked.get(looked, -inf) >= often
        consumer = self._consumer(operations, lease)
        found = await self._take(operations, consumer, limit, look=look, suspects=suspects)
        if look and not (found and found[0].suspect):  # else there may be more
            self._looked[looked] = now
        if not found and wait > 0:
            found = await self._block(operations, consumer, min(wait, often))
        claims = [claim for each in found if (claim := await self._read(each, lease, consumer)) is not None]
        for excess in claims[limit:]:  # several operations had news at the same time
            await self.release(excess, 0.0, attempts=excess.attempt - 1)
        return claims[:limit]

    def _consumer(self, operations: tuple[str, ...], lease: float) -> str:
        consumer = f"{self._token}:{max(1, ceil(lease * 1000))}"
        for each in operations:
            self._consumers[self._names.stream(each)] = consumer
        return consumer

    async def _take(
        self, operations: tuple[str, ...], consumer: str, limit: int, *, look: bool, suspects: bool
    ) -> list[_Found]:
        """Claim what is there now. Each time another operation is the first to be asked."""
        self._turn += 1
        keys, names = [self._names.operations], self._names
        for each in operations:
            keys += (names.stream(each), names.later(each), names.suspects(each), names.history(each))
        arguments = (consumer, limit, int(look), self._turn, _SILENCE, int(suspects), *operations)
        taken = await self._session.run(TAKE, keys, *arguments)
        return [_Found(operations[place], *rest) for place, *rest in taken]

    async def _block(self, operations: tuple[str, ...], consumer: str, seconds: float) -> list[_Found]:
        """What comes next."""
        streams = {self._names.stream(each): each for each in operations}
        milliseconds = max(1, ceil(seconds * 1000))
        group = (b"GROUP", b"workers", consumer, b"COUNT", 1, b"BLOCK", milliseconds)
        session = self._spare.pop() if self._spare else self._connect()
        try:
            read = command(b"XREADGROUP", *group, b"STREAMS", *streams, *[b">"] * len(streams))
            (reply,) = await session.ask(read, patience=seconds + PATIENCE)
        except BaseException:
            await session.close()  # what it is given nonetheless comes back when its lease has run out
            raise
        self._spare.append(session)
        if self._closed:
            await self._close_spare()
        found: dict[bytes, list[Any]] = reply or {}
        return [_Found(streams[stream], id, 1, fields) for stream, new in found.items() for id, fields in new]

    async def _read(self, found: _Found, lease: float, consumer: str) -> Claim | None:
        """The claim of a task; None if somebody else has put something else there, which is removed."""
        try:
            task = _task(found)
        except (KeyError, ValueError) as error:
            logger.error("an entry for %s is no task, and is removed: %s", found.operation_id, error)
            stream = self._names.stream(found.operation_id)
            await self._session.ask(command(b"XACK", stream, b"workers", found.id), command(b"XDEL", stream, found.id))
            return None
        failures, losses, lone_losses = found.history[:3]
        return Claim(
            task=task,
            attempt=found.attempt,
            lease=lease,
            receipt=f"{found.id.decode()} {consumer}",
            failures=failures,
            losses=losses,
            lone_losses=lone_losses,
            suspect=found.suspect,
        )

    async def renew(self, claim: Claim, *, alone: bool) -> bool:
        """Keep a task for another lease.

        Raises:
            CallError: UNAVAILABLE.
        """
        keys = [self._names.stream(claim.task.operation_id), self._names.history(claim.task.operation_id)]
        return bool(await self._session.run(RENEW, keys, *Receipt.of(claim), claim.attempt, int(alone)))

    async def release(self, claim: Claim, delay: float, *, attempts: int, failed: bool = False) -> None:
        """Give a task back, with so many attempts counted.

        Raises:
            CallError: UNAVAILABLE.
        """
        names, operation_id = self._names, claim.task.operation_id
        keys = [name(operation_id) for name in (names.stream, names.later, names.suspects, names.history)]
        arguments = (claim.attempt, ceil(seconds_within(delay, MAX_SECONDS) * 1000), attempts, int(failed))
        await self._session.run(RELEASE, keys, *Receipt.of(claim), *arguments)

    async def leave(self) -> None:
        """Have our name removed where we have nothing left. The session is closed by its owner.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._closed = True
        await self._close_spare()
        if self._consumers:
            await self._session.run(LEAVE, list(self._consumers), *self._consumers.values())

    async def _close_spare(self) -> None:
        while self._spare:
            await self._spare.pop().close()


def _task(found: _Found) -> Task:
    fields = dict(zip(found.fields[::2], found.fields[1::2], strict=False))
    return Task(
        key=fields[b"key"].decode(),
        operation_id=found.operation_id,
        request=fields[b"request"],
        fingerprint=fields[b"fingerprint"].decode(),
        submitted=int(fields[b"submitted"]),
    )
