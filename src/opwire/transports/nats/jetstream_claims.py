"""Who has a task, and for how long.

Whose the lease is says the log of the task, since JetStream does not look at who acknowledges something. When the task
is handed out again is up to JetStream, and it is told to wait until the lease is over: by a "not acknowledged" that has
a delay.

A task that is claimed for the first time needs no entry in its log for that. It gets one when the lease is renewed,
when the task is released, or when it is claimed again.

JetStream cannot leave suspects out when it hands out tasks. Those that are not wanted are handed out again a little
later; only a claim is an attempt.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import count
from secrets import token_hex
from typing import NamedTuple

from msgspec.structs import replace

from opwire.durable.journal import MAX_SECONDS, Claim, seconds_within
from opwire.transports.nats.jetstream_consumers import Consumers, Found
from opwire.transports.nats.jetstream_log import TRIES, Body, Entry, Kind, Log
from opwire.transports.nats.jetstream_session import Session

logger = logging.getLogger("opwire.durable")

_NANOSECONDS = 1_000_000_000
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
