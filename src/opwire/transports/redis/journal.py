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

A connection to a Redis server that is made when it is needed, and made again after it was lost.

How tasks are claimed from Redis Streams, and kept.

What is there is taken by a script, which takes no more than it was asked for. Where there is nothing, a connection of
its own waits: Redis gives what comes to the worker that has waited longest, and wakes no other. Tasks that were
released or lost are looked for now and then, since nothing says when they are due.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from math import ceil, inf
from secrets import token_hex
from ssl import SSLContext, create_default_context
from typing import Any, NamedTuple, Self

import msgspec

from opwire.durable.journal import (
    KEEP,
    MAX_SECONDS,
    Claim,
    JournalInfo,
    Outcome,
    Task,
    check_seconds,
    key_in_use,
    seconds_within,
)
from opwire.errors import CallError, ErrorCode
from opwire.transports.redis import journal_scripts as scripts
from opwire.transports.redis.connection import Connection, Part, Target, command, parse_url
from opwire.transports.redis.journal_scripts import LEAVE, RELEASE, RENEW, SCRIPTS, TAKE, Names, Script

logger = logging.getLogger("opwire.durable")

PATIENCE = 5.0
"""Seconds without an answer, after which a server counts as lost."""


class Session:
    """`channel` is listened to: `pushed` gets what is published there, until `lost` is called."""

    def __init__(
        self,
        target: Target,
        ssl: SSLContext | None,
        *,
        channel: bytes | None = None,
        pushed: Callable[[bytes], None] | None = None,
        lost: Callable[[CallError], None] | None = None,
    ) -> None:
        self._target = target
        self._ssl = create_default_context() if ssl is None and target.tls else ssl
        self._channel = channel
        self._pushed = pushed
        self._on_loss = lost
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def ask(self, *commands: bytes, patience: float = PATIENCE) -> list[Any]:
        """Send commands, and wait for their replies.

        Raises:
            CallError: UNAVAILABLE, if one is refused, or the server is lost or does not answer.
        """
        connection = self._connection or await self._connect()
        try:
            async with asyncio.timeout(patience):
                return await connection.ask(*commands)
        except TimeoutError:
            self._leave(connection, "it does not answer")
            raise CallError(ErrorCode.UNAVAILABLE, f"{self._target.name} does not answer") from None
        except CallError as error:
            if "READONLY" in error.message:  # its address may lead to another server by now
                self._leave(connection, "it has become a read-only replica")
            raise

    async def run(self, script: Script, keys: Sequence[Part], *arguments: Part) -> Any:
        """What a script returns.

        Raises:
            CallError: UNAVAILABLE.
        """
        parts = (len(keys), *keys, *arguments)
        try:
            (reply,) = await self.ask(command(b"EVALSHA", script.digest, *parts))
        except CallError as error:
            if "NOSCRIPT" not in error.message:
                raise
            (reply,) = await self.ask(command(b"EVAL", script.text, *parts))  # somebody has emptied Redis' cache
        return reply

    async def _connect(self) -> Connection:
        async with self._connecting:
            if self._closed:
                raise CallError(ErrorCode.UNAVAILABLE, f"the journal at {self._target.name} is closed")
            if self._connection is not None:
                return self._connection
            connection = Connection(self._target, self._arrived, lambda reason: self._lost(connection, reason))
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._open(connection)
            except TimeoutError:
                await connection.close()
                raise CallError(ErrorCode.UNAVAILABLE, f"{self._target.name} does not answer") from None
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
            return connection

    async def _open(self, connection: Connection) -> None:
        await connection.open(self._ssl)
        channel = [] if self._channel is None else [command(b"SUBSCRIBE", self._channel)]
        await connection.greet(*channel, *(command(b"SCRIPT", b"LOAD", each.text) for each in SCRIPTS))

    def _arrived(self, _: bytes, message: bytes) -> None:
        if self._pushed is not None:
            self._pushed(message)

    def _leave(self, connection: Connection, reason: str) -> None:
        self._lost(connection, reason)
        connection.abort(reason)

    def _lost(self, connection: Connection, reason: str) -> None:
        if self._connection is not connection:
            return  # that was known, and there may be another one
        self._connection = None
        if self._on_loss is not None:
            lost = f"the connection to {self._target.name} was lost: {reason}"
            self._on_loss(CallError(ErrorCode.UNAVAILABLE, lost))

    async def close(self) -> None:
        """End it. Closing again does nothing."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


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
