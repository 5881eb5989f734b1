"""A hub: where spokes meet. It lets them in, shows what they serve, passes calls on, and serves a registry itself.

auth = StaticTokens({os.environ["BILLING"]: Grant(Identity(id="billing"), announces=("billing",))})

async with Hub(registry, "ws://0.0.0.0:8700", auth=auth) as hub:
    await hub.registry.execute("billing.charge", {"order": 17})  # served by a spoke

async with Spoke(billing, "ws://hub.example:8700", token=os.environ["BILLING"]):  # elsewhere
    ...

Who may connect to a hub, and what they may serve there.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from msgspec import Struct, field

from opwire.auth import Authenticator, Grant
from opwire.call import Address, CallHandler, OperationInfo, PendingRequestMap
from opwire.call.discovery import OPERATIONS
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode, check_above_zero
from opwire.hub.connect import connect
from opwire.hub.remote_operations import HUB, Checked, Lookout, Mirror
from opwire.operation import Identity
from opwire.pipeline import typed_envelope
from opwire.registry import OperationRegistry

if TYPE_CHECKING:
    from opwire.transports.websocket import WebSocketServer


MAX_DESCRIBED = 64 * 1024 * 1024
"""Bytes of descriptions that are kept of one peer."""

_PATIENCE = 10.0  # seconds between two descriptions
_AT_A_TIME = 4  # spokes that describe themselves
_TURN = 2.0  # seconds after which another one may begin
_BREATH = 8  # descriptions after which other tasks get a turn
_BATCH = 500  # operations, and
_BATCH_BYTES = 200_000  # bytes of ids that one question names: it has to fit into a message, with their digests
_UNASKED = 1_000  # descriptions beside those that were asked for: a peer may not know that it can be asked for some
_OWN_FAULT = (ErrorCode.VALIDATION_ERROR, ErrorCode.ACCESS_DENIED, ErrorCode.PAYLOAD_TOO_LARGE)


class _Announcement(Struct, eq=False):
    """What is found out about operations that a peer announces."""

    wanted: dict[str, None]
    described: dict[str, Checked] = field(default_factory=dict[str, Checked])
    unchanged: dict[str, str] = field(default_factory=dict[str, str])  # with their digests
    refused: dict[str, CallError] = field(default_factory=dict[str, CallError])


class _Turns:
    """A few spokes describe themselves at a time, so that calls are not delayed when all of them come at once.

    A turn lasts two seconds at most: a spoke that takes longer goes on, and does not keep others waiting.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_A_TIME)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for a turn."""
        await self._free.acquire()
        ends = ExitStack()
        ends.callback(self._free.release)
        timer = asyncio.get_running_loop().call_later(_TURN, ends.close)
        try:
            yield
        finally:
            timer.cancel()
            ends.close()


class Keeper:
    """The gate of a hub: asks the authenticator who connects, and each spoke for the schemas of what it announces.

    The questions carry no identity: a spoke answers them because its hub asks. Without an authenticator, connections
    are anonymous, and announce nothing. `max_described` bounds the bytes that one spoke may describe.
    """

    def __init__(
        self,
        auth: Authenticator | None,
        calls: PendingRequestMap,
        mirror: Mirror,
        *,
        max_described: int = MAX_DESCRIBED,
    ) -> None:
        self._auth = auth
        self._calls = calls
        self._mirror = mirror
        self._max_described = max_described
        self._turns = _Turns()
        self._announcements: dict[Address, _Announcement] = {}
        self._sizes: dict[Address, dict[str, int]] = {}  # of descriptions that are kept, by peer
        self._totals: Counter[Address] = Counter()

    async def admit(self, token: str | None) -> Grant | None:
        """Return what a spoke with this token may do; None: call what is public.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        return None if self._auth is None else await self._auth.authenticate(token)

    async def announced(
        self, peer: Address, grant: Grant | None, operation_ids: Collection[str]
    ) -> Mapping[str, CallError]:
        """Find out about operations that a spoke wants to serve; return those that it may not, and why.

        Raises:
            CallError: UNAVAILABLE, if the spoke does not answer.
        """
        allowed = [each for each in operation_ids if grant is not None and grant.may_announce(each)]
        found = self._announcements[peer] = _Announcement(dict.fromkeys(allowed))
        for each in operation_ids:
            if each not in found.wanted:
                found.refused[each] = CallError(ErrorCode.ACCESS_DENIED, f"{_who(grant)} may not announce {each}")
        for batch in _batches(allowed):
            await self._ask(peer, batch, found)
        # What was unchanged may have been replaced meanwhile: the spoke then describes its own.
        while stale := [each for each, digest in found.unchanged.items() if self._mirror.digest(each) != digest]:
            for batch in _batches(stale):
                await self._ask(peer, batch, found, conditional=False)
        self._judge(peer, found)
        return found.refused

    def accepted(self, peer: Address, operation_ids: Collection[str]) -> set[str]:
        """Show these of the operations that were found out about; return those that are subscriptions."""
        found = self._announcements.pop(peer)
        self._forget_sizes(peer, found.described.keys() - set(operation_ids))
        self._mirror.join(peer, [each for each in operation_ids if each in found.unchanged])
        self._mirror.show(peer, [found.described[each] for each in operation_ids if each in found.described])
        return {each for each in operation_ids if self._mirror.streams(each)}

    def withdrawn(self, peer: Address, operation_ids: Collection[str]) -> None:
        """A spoke serves these operations no longer."""
        self._mirror.hide(peer, operation_ids)
        self._forget_sizes(peer, operation_ids)

    def lost(self, peer: Address) -> None:
        """A spoke is gone."""
        self._mirror.lost(peer)
        self._announcements.pop(peer, None)
        self._sizes.pop(peer, None)
        del self._totals[peer]

    def unserved(self, operation_id: str) -> None:
        """Check that an operation without a server is unknown, and not only late.

        Raises:
            CallError: UNAVAILABLE, if a spoke that serves it may still come.
        """
        if self._auth is not None:  # else no spoke may announce anything
            self._mirror.check_unknown(operation_id)

    # --- descriptions -------------------------------------------------------------------------------------------------

    async def _ask(self, peer: Address, batch: list[str], found: _Announcement, *, conditional: bool = True) -> None:
        """Ask a spoke to describe operations. What it cannot answer together it is asked for in halves."""
        for each in batch:
            found.unchanged.pop(each, None)
        digests = {each: self._mirror.digest(each) for each in batch} if conditional else {}
        known = {each: digest for each, digest in digests.items() if digest is not None}
        try:
            await self._read(peer, batch, known, found)
        except CallError as error:
            if error.code not in _OWN_FAULT:
                silent = f"the spoke did not describe its operations: {error.message}"
                raise CallError(ErrorCode.UNAVAILABLE, silent) from error
            if len(batch) == 1:
                found.refused[batch[0]] = error
                return
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                await self._ask(peer, half, found, conditional=conditional)

    async def _read(self, peer: Address, batch: list[str], known: dict[str, str], found: _Announcement) -> None:
        input = {"operations": batch, "known": known} if known else {"operations": batch}
        number = unasked = 0
        items = self._calls.subscribe(OPERATIONS, input, to=peer, idle_timeout=_PATIENCE)
        async with self._turns.turn(), aclosing(items):
            async for item in items:
                number += 1
                if number % _BREATH == 0:
                    await asyncio.sleep(0)  # what has arrived is read in one go otherwise: 25 ms for each spoke
                match item.data:
                    case {"unchanged": [*ids]}:
                        same = known.keys() & {each for each in ids if isinstance(each, str)}
                        found.unchanged.update((each, known[each]) for each in same)
                    case {"id": str(id)} if id in found.wanted:
                        self._describe(peer, id, item, found)
                    case _:
                        unasked += 1
                        if unasked > _UNASKED:
                            raise CallError(ErrorCode.PROTOCOL_ERROR, "more was described than was asked for")

    def _describe(self, peer: Address, id: str, item: ResponseEnvelope[Any], found: _Announcement) -> None:
        found.refused.pop(id, None)
        try:
            info = typed_envelope(item, OperationInfo, OPERATIONS).data
            fingerprint = info.fingerprint()
            self._forget_sizes(peer, [id])
            self._sizes.setdefault(peer, {})[id] = fingerprint.size
            self._totals[peer] += fingerprint.size
            if self._totals[peer] > self._max_described:
                self._forget_sizes(peer, [id])
                most = f"the descriptions of one spoke have at most {self._max_described:,} bytes"
                raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, most)
            found.described[id] = self._mirror.check(info, fingerprint.digest)
        except CallError as error:
            found.refused[id] = error

    def _forget_sizes(self, peer: Address, operation_ids: Iterable[str]) -> None:
        sizes = self._sizes.get(peer, {})
        for each in operation_ids:
            self._totals[peer] -= sizes.pop(each, 0)

    def _judge(self, peer: Address, found: _Announcement) -> None:
        """Decide, in one step, what of it can be shown."""
        for id, operation in found.described.items():
            conflict = self._mirror.conflict(peer, operation)
            if conflict is not None:
                found.refused[id] = conflict
        for id in found.wanted:
            if id in found.described or id in found.unchanged or id in found.refused:
                continue
            wrong = f"{OPERATIONS} of the spoke does not describe {id}"
            found.refused[id] = CallError(ErrorCode.VALIDATION_ERROR, wrong)


def _who(grant: Grant | None) -> str:
    return "a spoke without a token" if grant is None else grant.identity.id


def _batches(operation_ids: list[str]) -> Iterator[list[str]]:
    """Split ids into batches that can be asked for at once."""
    batch, size = list[str](), 0
    for each in operation_ids:
        if batch and (len(batch) == _BATCH or size + len(each) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += len(each)
    if batch:
        yield batch


PORT = 8700
"""Where a hub listens if its URL does not say."""


class Hub:
    """Shows what spokes serve in its registry, as long as they do, and passes calls on between them.

        async with Hub(registry, "ws://127.0.0.1:8700", auth=auth) as hub:
            print(hub.url, [spec.id for spec in hub.registry.list()])

    `auth` says who a spoke is, and in which namespaces it may announce operations. Without it, connections are
    anonymous: they may call what is public, and announce nothing. `auth=anybody(Grant(…, announces=("*",)))` opens the
    hub. The hub writes the caller's identity on every request that it passes on; what a spoke says itself does not
    count. What the hub's program calls without a context is called as "hub", which may do everything; the spoke that
    serves such a call cannot call on with that identity.

    With the URL of a broker there is nobody to let in: the hub shows whatever others serve there, and looks again every
    `refresh` seconds. `linger` is how long, in seconds, spokes may need to come back: so long operations stay in the
    registry when their last server was lost, and so long after its start a hub answers UNAVAILABLE, and not
    OPERATION_NOT_FOUND, to spokes that call what nobody has announced yet. `identity` is whom callers count as that
    have none; `max_described` bounds the bytes that one spoke may describe; `options` are those of `WebSocketServer`
    (`ssl`, `balance`, `rate`, `max_calls`, …) or of the broker's transport.
    """

    def __init__(
        self,
        registry: OperationRegistry | None = None,
        url: str = f"ws://127.0.0.1:{PORT}",
        *,
        auth: Authenticator | None = None,
        name: str = "hub",
        version: str = "0.0.0",
        identity: Identity | None = None,
        linger: float = 30.0,
        refresh: float = 5.0,
        max_described: int = MAX_DESCRIBED,
        **options: Any,
    ) -> None:
        check_above_zero(refresh=refresh, max_described=max_described)
        if linger:  # 0: operations of a lost spoke are gone with it
            check_above_zero(linger=linger)
        self.registry = OperationRegistry() if registry is None else registry
        self._url = url
        self._server = _listening(url, options) if url.startswith(("ws://", "wss://")) else None
        if self._server is None and auth is not None:
            signed = "over a broker nobody shows a token: give signed=SignedRequests(…) instead of auth="
            raise CallError(ErrorCode.VALIDATION_ERROR, signed)
        self.transport = self._server or connect(url, **options)
        self.calls = PendingRequestMap(self.transport)
        self._mirror = Mirror(self.registry, self.calls, linger=linger)
        self.handler = CallHandler(
            self.registry,
            self.calls,
            anonymous=identity,
            name=name,
            version=version,
            announces=lambda spec: spec.id not in self._mirror,
        )
        if self._server is not None:
            self._server.admission = Keeper(auth, self.calls, self._mirror, max_described=max_described)
            self._server.own = HUB
        self._refresh = refresh
        self._looking: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where spokes connect to."""
        return self._url if self._server is None else self._server.url

    async def start(self) -> Self:
        """Listen, or look around.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._mirror.begin()
        await self.calls.start()
        try:
            await self.handler.start()
            if self._server is None:
                lookout = Lookout(self.calls, self._mirror, self.registry, self.handler.about().id)
                await lookout.look()
                self._looking = asyncio.create_task(lookout.keep_looking(self._refresh))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self, timeout: float = 30.0) -> bool:
        """Send the spokes away, let the calls in hand finish, and close. False if some did not end in time."""
        until = time.monotonic() + timeout
        if self._server is not None:
            self._server.go_away("the hub is about to leave")
        served = await self.handler.drain(timeout)
        passed_on = self._server is None or await self._server.idle(until - time.monotonic())
        await self.close()
        return served and passed_on

    async def close(self) -> None:
        """Leave. What is in hand is stopped: `drain` lets it finish."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self.handler.close()
        await self.calls.close()
        self._mirror.clear()


def _listening(url: str, options: dict[str, Any]) -> "WebSocketServer":
    try:
        from opwire.transports.websocket import WebSocketServer
    except ModuleNotFoundError as error:
        missing = f"a hub needs the package {error.name}: pip install 'opwire[websocket]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing, retryable=False) from error
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # not named: there may be a password in it
        raise CallError(ErrorCode.VALIDATION_ERROR, "a hub listens at ws://host:port or wss://host:port") from None
    if (parts.scheme == "wss") != (options.get("ssl") is not None):
        raise CallError(ErrorCode.VALIDATION_ERROR, "wss:// needs ssl=, and ssl= needs wss://")
    return WebSocketServer(parts.hostname or "127.0.0.1", PORT if port is None else port, **options)
