"""Durable calls over NATS JetStream: `NatsJournal`. Needs nats-server 2.11 or newer, with JetStream.

What is promised is what JetStream keeps. Whatever crashes on our side, a task that was submitted is run, and an outcome
that was recorded stands. What JetStream acknowledges, it has handed to the operating system: when nats-server alone
dies, even by kill -9, nothing of it is lost. When the machine dies, `sync_interval` decides:

    always    nothing is lost that was acknowledged
    2m        the default: submissions and outcomes of the last two minutes may be lost. With three replicas that takes
              a second machine: one that dies at the same time, or one that lags behind and outvotes the third with it

After the loss of an outcome its task is run again; after the loss of a submission it has to be submitted again, which
the same key makes safe.

2.11 is the first version that can store something under the condition that none of several subjects has changed, and
that can let single messages expire. Without the first, a task and its outcome could not be changed in one step; without
the second, outcomes could expire only together with tasks that are not done.

What is not done never expires. Outcomes are kept for `keep` seconds, buried ones until they are replayed or purged.
`jetstream_log` says what is kept where, `jetstream_consumers` how tasks are handed out, `jetstream_claims` who has one.

A user of the server needs to publish to `$JS.API.>`, `$JS.ACK.<stream>.>` and `<prefix>.durable.>`, and to subscribe to
`<prefix>.in.>` and `<prefix>.ended.>`; the stream is `<prefix>_durable`.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from contextlib import contextmanager
from os import PathLike
from secrets import token_hex
from ssl import SSLContext
from typing import Self

from msgspec.structs import replace

from opwire.durable.journal import KEEP, Claim, JournalInfo, Outcome, Task, check_seconds, key_in_use
from opwire.errors import CallError, ErrorCode
from opwire.transports.nats.connection import Credentials, Security, Servers
from opwire.transports.nats.jetstream_api import TRIES, Body, Listener, Log, Names, Session, read, token
from opwire.transports.nats.journal_claims import Claims, Receipt

logger = logging.getLogger("opwire.durable")

_ASK_AGAIN = 5.0  # seconds; what is published again is lost if the leader of the stream dies in that moment
_GRACE = 1.0  # seconds to say goodbye
_PAGE = 50  # outcomes that are fetched at once


class _Waiting(Listener):
    """Those who wait for outcomes."""

    def __init__(self, session: Session, log: Log) -> None:
        self._session = session
        self._log = log
        self._told: dict[str, set[asyncio.Future[Outcome]]] = {}  # by subject
        session.listeners.append(self)

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """The outcome of a task; None if there is none in time.

        Raises:
            CallError: UNAVAILABLE.
        """
        end = time.monotonic() + timeout
        await self._session.connect()
        with self._listening(key) as told:
            while True:
                known = await self._log.outcome(key)
                if known is not None:
                    return known
                left = max(0.0, end - time.monotonic())
                await asyncio.wait([told], timeout=min(left, _ASK_AGAIN))
                if told.done():
                    return told.result()
                if left <= _ASK_AGAIN:
                    return None

    @contextmanager
    def _listening(self, key: str) -> Generator[asyncio.Future[Outcome], None, None]:
        """What is published when the task ends."""
        subject = self._log.names.told(key)
        if subject not in self._told:
            self._session.listen(subject)
        waiting = self._told.setdefault(subject, set())
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting.add(told)
        try:
            yield told
        finally:
            if not told.cancel() and not told.cancelled():
                told.exception()  # or else asyncio complains that nobody has looked at it
            waiting.discard(told)
            if not waiting and self._told.get(subject) is waiting:
                del self._told[subject]
                self._session.forget(subject)

    def heard(self, subject: str, payload: bytes) -> None:
        """An outcome was published."""
        try:
            outcome = read(payload).outcome
        except CallError as error:  # anybody can publish anything
            logger.warning("what was published for %s is no outcome: %s", self._session.name, error.message)
            return
        for told in self._told.get(subject, ()):
            if outcome is not None and not told.done():
                told.set_result(outcome)

    def refused(self, subject: str, error: CallError) -> None:
        """The server does not let us listen to this."""
        for told in self._told.get(subject, ()):
            if not told.done():
                told.set_exception(error)

    def lost(self, error: CallError) -> None:
        """The connection is gone."""
        for subject in self._told:
            self.refused(subject, error)


class NatsJournal:
    """One end of a journal in a NATS server or cluster: a `Journal`.

        async with NatsJournal("nats://127.0.0.1:4222") as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    Ends with the same `prefix` are ends of the same journal. `replicas` is on how many servers of a cluster everything
    is kept, if the journal does not exist yet. `domain` is that of JetStream, where it has one and it is not the
    server's own. `trusted` says that whoever can write to this journal is believed about the identity in a request.
    The other options are those of `NatsTransport`.

    Raises:
        CallError: VALIDATION_ERROR, for a URL or a prefix that cannot be used, or if `keep` is not a time.
    """

    def __init__(
        self,
        servers: str | Iterable[str] = "nats://127.0.0.1:4222",
        *,
        prefix: str = "opwire",
        replicas: int = 1,
        keep: float = KEEP,
        trusted: bool = False,
        domain: str | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | PathLike[str] | None = None,
        ssl: SSLContext | None = None,
        tls_first: bool = False,
    ) -> None:
        found = Servers(servers)
        self.name = str(found)
        self.trusted = trusted
        self._keep = check_seconds("keep", keep)
        self._names = Names(prefix)
        self._session = Session(
            found,
            Security(Credentials(user, password, token, credentials), ssl, tls_first),
            self._names.inboxes.inbox(token_hex(8)),
            domain,
        )
        self._log = Log(self._session, self._names, replicas)
        self._claims = Claims(self._session, self._log)
        self._waiting = _Waiting(self._session, self._log)
        self._closed = False

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and make the stream if there is none.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, if a stream of that name is not the journal's.
        """
        await self._session.connect()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect: whoever waits gets UNAVAILABLE."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(_GRACE):
                await self._claims.consumers.leave()
        except TimeoutError:
            logger.debug("%s heard no goodbye", self.name)
        await self._session.close()

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def submit(self, task: Task) -> Outcome | None:
        """Keep a task, unless its key is known.

        Raises:
            CallError: VALIDATION_ERROR, if it is known with another fingerprint; UNAVAILABLE, PAYLOAD_TOO_LARGE.
        """
        await self._claims.consumers.create([task.operation_id])
        subject = self._names.task(task.key, task.operation_id)
        after = 0
        for _ in range(TRIES):
            if await self._log.add(task.key, subject, Body(fingerprint=task.fingerprint, task=task), after):
                return None
            last = await self._log.last(task.key)
            if last is None or last.kind == "gone":
                after = 0 if last is None else last.seq
                continue
            if last.body.fingerprint != task.fingerprint:
                raise key_in_use(task.key)
            return last.body.outcome
        raise self._log.busy(task.key)

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """The next tasks of these operations.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._claims.claim(operation_ids, lease, wait, limit, suspects=suspects)

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Keep a task for another lease.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._claims.renew(claim, alone=alone)

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Give a task back.

        Raises:
            CallError: UNAVAILABLE.
        """
        await self._claims.release(claim, delay, failed=failed)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """End a task.

        Raises:
            CallError: UNAVAILABLE; PAYLOAD_TOO_LARGE, if the server does not let it through.
        """
        receipt = Receipt.of(claim)
        after = receipt.birth
        for _ in range(TRIES):
            ended = await self._end(claim.task, receipt.birth, outcome, after)
            if ended is not None:
                self._claims.done(claim.task.key, receipt.ack, None if after == receipt.birth else ended)
                return outcome
            last = await self._log.last(claim.task.key)
            if last is None or last.body.outcome is not None:
                return None if last is None else last.body.outcome
            if last.kind == "gone" or last.birth != receipt.birth:
                return None
            after = last.seq
        raise self._log.busy(claim.task.key)

    async def _end(self, task: Task, birth: int, outcome: Outcome, after: int) -> int | None:
        body = Body(fingerprint=task.fingerprint, birth=birth, outcome=outcome)
        subject = self._names.ended(outcome)
        if not outcome.buried:
            return await self._log.add(task.key, subject, body, after, ttl=self._keep)
        try:
            return await self._log.add(task.key, subject, replace(body, task=task), after)
        except CallError as error:
            if error.code is not ErrorCode.PAYLOAD_TOO_LARGE:
                raise
            logger.warning("%s with the key %r is too large to be replayed: %s", task.operation_id, task.key, error)
            return await self._log.add(task.key, subject, body, after)

    async def outcome(self, key: str) -> Outcome | None:
        """What came of a task, if anything yet.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._log.outcome(key)

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._waiting.wait(key, timeout)

    # --- looking after it ---------------------------------------------------------------------------------------------

    async def buried(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """The tasks that were given up, the oldest first.

        Raises:
            CallError: UNAVAILABLE.
        """
        subjects = await self._log.subjects(
            f"since.ended.buried.{'*' if operation_id is None else token(operation_id)}.*"
        )
        subjects.sort(key=lambda subject: int(subject.rpartition(".")[2]))
        for start in range(0, len(subjects), _PAGE):
            page = subjects[start : start + _PAGE]
            for outcome in await asyncio.gather(*map(self._log.buried, page)):
                if outcome is not None:  # else it was purged or replayed meanwhile
                    yield outcome

    async def replay(self, key: str) -> bool:
        """Submit a buried task again.

        Raises:
            CallError: UNAVAILABLE.
        """
        for _ in range(TRIES):
            last = await self._log.last(key)
            if last is None or last.body.outcome is None or last.body.task is None:
                return False
            task = last.body.task
            subject = self._names.task(key, task.operation_id)
            body = Body(fingerprint=task.fingerprint, task=task)
            if await self._log.add(key, subject, body, last.seq):
                await self._log.delete(last.seq)
                return True
        raise self._log.busy(key)

    async def purge(self, key: str) -> bool:
        """Forget a task that has ended.

        Raises:
            CallError: UNAVAILABLE.
        """
        last = await self._log.last(key)
        if last is None or last.body.outcome is None:
            return False
        await self._log.delete(last.birth)  # if who has recorded the outcome could not have it removed
        return await self._log.delete(last.seq)

    async def info(self) -> list[JournalInfo]:
        """How much there is of each operation.

        Raises:
            CallError: UNAVAILABLE.
        """
        later = Counter(subject.split(".")[-1] for subject in await self._log.subjects("since.held.later.*"))
        buried = Counter(subject.split(".")[-2] for subject in await self._log.subjects("since.ended.buried.*.*"))
        return [
            JournalInfo(
                operation_id=each.operation_id,
                waiting=each.num_pending + later[token(each.operation_id)],
                claimed=max(0, each.num_ack_pending - later[token(each.operation_id)]),
                buried=buried[token(each.operation_id)],
            )
            for each in await self._claims.consumers.every()
        ]
