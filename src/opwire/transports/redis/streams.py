"""Durable calls over Redis Streams: `RedisJournal`. Needs Redis 6.2 or newer, or Valkey: `pip install opwire[redis]`.

What is promised is what Redis keeps. Whatever crashes on our side, a task that was submitted is run, and an outcome
that was recorded stands. When Redis itself crashes, its settings decide. With `appendonly yes` and `appendfsync`:

    always      nothing is lost that was acknowledged, not even when the machine loses power
    everysec    the default: submissions and outcomes of the last second or two may be lost
    no          when only Redis dies, nothing; with the machine, what its kernel has not written yet (about 30 s)

With `appendonly no` all is lost since the last snapshot, if there is one. After the loss of an outcome its task is run
again; after the loss of a submission it has to be submitted again, which the same key makes safe. A replica that takes
over may lack the latest writes, too, whatever is set. And nothing may be evicted that is not done: `maxmemory-policy`
is `noeviction`, or one of `volatile-…`, which can only forget outcomes early.

What is not done never expires. Outcomes are kept for `keep` seconds, buried ones until they are replayed or purged.
`stream_scripts` says what is kept where.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from math import ceil
from secrets import token_hex
from ssl import SSLContext
from typing import Self

import msgspec

from opwire.durable.journal import KEEP, Claim, JournalInfo, Outcome, Task, check_seconds, key_in_use
from opwire.errors import CallError, ErrorCode
from opwire.transports.redis import stream_scripts as scripts
from opwire.transports.redis.resp import command
from opwire.transports.redis.stream_claims import Claims, Receipt
from opwire.transports.redis.stream_scripts import Names
from opwire.transports.redis.stream_session import Session
from opwire.transports.redis.url import parse_url

logger = logging.getLogger("opwire.durable")

_ASK_AGAIN = 5.0  # seconds; what is published is lost with a connection that nobody has seen breaking yet
_GRACE = 1.0  # seconds to say goodbye
_PAGE = 100  # outcomes that are fetched at once

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Outcome).decode


class RedisJournal:
    """One end of a journal in a Redis server: a `Journal`.

        async with RedisJournal("redis://127.0.0.1:6379") as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    The URL may begin with `redis://`, `rediss://` (TLS, by `ssl` where it is given) or `unix://`. Ends with the same
    `prefix` on the same database are ends of the same journal. `trusted` says that whoever can write to this server is
    believed about the identity in a request.

    Raises:
        CallError: VALIDATION_ERROR, if the URL cannot be read, or `keep` is not a time.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        prefix: str = "opwire",
        keep: float = KEEP,
        trusted: bool = False,
        ssl: SSLContext | None = None,
    ) -> None:
        target = parse_url(url)
        if ssl is not None and not target.tls:
            raise CallError(ErrorCode.VALIDATION_ERROR, "a TLS context is for the URL of a TLS server, rediss://…")
        self.name = target.name
        self.trusted = trusted
        self._keep = max(1, ceil(check_seconds("keep", keep) * 1000))
        self._names = Names(prefix)
        self._inbox = f"{prefix}:durable:inbox:{token_hex(8)}".encode()
        self._session = Session(target, ssl, channel=self._inbox, pushed=self._told, lost=self._lost)
        self._claims = Claims(self._names, self._session, lambda: Session(target, ssl))
        self._waiting: dict[str, set[asyncio.Future[Outcome]]] = {}
        self._closed = False

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Settings of the server that endanger tasks are logged.

        Raises:
            CallError: UNAVAILABLE.
        """
        await self._session.ask(command(b"PING"))
        try:
            about = await self._session.ask(*(command(b"INFO", each) for each in ("persistence", "memory")))
        except CallError as error:
            logger.debug("%s does not tell its settings: %s", self.name, error)
            return
        settings = b"".join(about)
        if b"aof_enabled:0" in settings:
            logger.warning("%s writes no append-only file: when it crashes, durable calls are lost", self.name)
        if b"maxmemory_policy:allkeys" in settings:
            logger.warning("%s evicts any key when its memory is full, and with it durable calls", self.name)

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
        self._lost(CallError(ErrorCode.UNAVAILABLE, f"the journal at {self.name} was closed"))
        try:
            async with asyncio.timeout(_GRACE):
                await self._claims.leave()
        except (CallError, TimeoutError) as error:
            logger.debug("%s heard no goodbye: %s", self.name, error)
        await self._session.close()

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def submit(self, task: Task) -> Outcome | None:
        """Keep a task, unless its key is known.

        Raises:
            CallError: VALIDATION_ERROR, if it is known with another fingerprint; UNAVAILABLE.
        """
        names = self._names
        keys = [names.task(task.key), names.stream(task.operation_id), names.operations]
        known = await self._session.run(
            scripts.SUBMIT, keys, task.key, task.operation_id, task.fingerprint, task.submitted, task.request
        )
        if known == -1:
            raise key_in_use(task.key)
        return _read(known) if known else None

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
        await self._claims.release(claim, delay, attempts=claim.attempt, failed=failed)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """End a task.

        Raises:
            CallError: UNAVAILABLE.
        """
        names, task = self._names, claim.task
        kinds = (names.stream, names.later, names.suspects, names.history, names.buried)
        keys = [names.task(task.key), *(name(task.operation_id) for name in kinds)]
        id, buried = Receipt.of(claim).id, int(outcome.buried)
        arguments = (task.key, id, _encode(outcome), self._keep, outcome.recorded, buried)
        stands = await self._session.run(scripts.RECORD, keys, *arguments)
        if stands == -1:
            return None
        return _read(stands) if stands else outcome

    async def outcome(self, key: str) -> Outcome | None:
        """What came of a task, if anything yet.

        Raises:
            CallError: UNAVAILABLE.
        """
        (outcome,) = await self._session.ask(command(b"HGET", self._names.task(key), b"outcome"))
        return None if outcome is None else _read(outcome)

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task.

        Raises:
            CallError: UNAVAILABLE.
        """
        end = time.monotonic() + timeout
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(key, set())
        waiting.add(future)
        try:
            while True:
                known = await self._session.run(scripts.WAIT, [self._names.task(key)], self._inbox)
                if known is not None:
                    return _read(known)
                left = max(0.0, end - time.monotonic())
                await asyncio.wait([future], timeout=min(left, _ASK_AGAIN))
                if future.done():
                    return future.result()
                if left <= _ASK_AGAIN:
                    return None
        finally:
            future.cancel()
            waiting.discard(future)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]

    def _told(self, message: bytes) -> None:
        """Something was published for us."""
        try:
            outcome = _decode(message)
        except msgspec.MsgspecError as error:  # anybody can publish anything
            logger.warning("what was published for %s is no outcome: %s", self.name, error)
            return
        for future in self._waiting.get(outcome.key, ()):
            if not future.done():
                future.set_result(outcome)

    def _lost(self, error: CallError) -> None:
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(error)

    # --- looking after it ---------------------------------------------------------------------------------------------

    async def buried(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """The tasks that were given up, the oldest first.

        Raises:
            CallError: UNAVAILABLE.
        """
        operations = await self._operations() if operation_id is None else [operation_id]
        lists = [command(b"ZRANGE", self._names.buried(each), 0, -1, b"WITHSCORES") for each in operations]
        found = [pair for pairs in (await self._session.ask(*lists) if lists else []) for pair in pairs]
        keys: list[bytes] = [key for key, _ in sorted(found, key=lambda pair: pair[1])]
        for start in range(0, len(keys), _PAGE):
            page = (self._names.task(key.decode()) for key in keys[start : start + _PAGE])
            for outcome in await self._session.ask(*(command(b"HGET", each, b"outcome") for each in page)):
                if outcome is None:
                    continue  # it was purged or replayed meanwhile
                try:
                    yield _read(outcome)
                except CallError as error:  # it must not hide the others
                    logger.warning("a buried task of %s is left out: %s", self.name, error.message)

    async def replay(self, key: str) -> bool:
        """Submit a buried task again.

        Raises:
            CallError: UNAVAILABLE.
        """
        names, operation_id = self._names, await self._operation(key)
        if operation_id is None:
            return False
        keys = [names.task(key), names.stream(operation_id), names.buried(operation_id)]
        return bool(await self._session.run(scripts.REPLAY, keys, key))

    async def purge(self, key: str) -> bool:
        """Forget a task that has ended.

        Raises:
            CallError: UNAVAILABLE.
        """
        names, operation_id = self._names, await self._operation(key)
        if operation_id is None:
            return False
        return bool(await self._session.run(scripts.PURGE, [names.task(key), names.buried(operation_id)], key))

    async def info(self) -> list[JournalInfo]:
        """How much there is of each operation.

        Raises:
            CallError: UNAVAILABLE.
        """
        names, found = self._names, list[JournalInfo]()
        for each in await self._operations():
            keys = [name(each) for name in (names.stream, names.later, names.suspects, names.buried)]
            waiting, claimed, buried = await self._session.run(scripts.COUNT, keys)
            found.append(JournalInfo(operation_id=each, waiting=waiting, claimed=claimed, buried=buried))
        return found

    async def _operations(self) -> list[str]:
        (operations,) = await self._session.ask(command(b"SMEMBERS", self._names.operations))
        return sorted(each.decode() for each in operations)

    async def _operation(self, key: str) -> str | None:
        (operation_id,) = await self._session.ask(command(b"HGET", self._names.task(key), b"operation"))
        return None if operation_id is None else operation_id.decode()


def _read(outcome: bytes) -> Outcome:
    """Decode a recorded outcome.

    Raises:
        CallError: PROTOCOL_ERROR, if another program has written something else there.
    """
    try:
        return _decode(outcome)
    except msgspec.MsgspecError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"an outcome in the journal cannot be decoded: {error}") from error
