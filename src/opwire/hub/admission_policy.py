"""`HubAdmission`: which clients may connect to a hub, and which operations they may announce."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

from msgspec import Raw, Struct, field, json

from opwire.auth.tokens import Authenticator, Grant
from opwire.errors import CallError, ErrorCode
from opwire.hub.remote_operations import DescribedOperation, RemoteOperations
from opwire.model.operation import OperationType
from opwire.protocol.description import OperationInfo
from opwire.protocol.discovery import OPERATIONS
from opwire.protocol.events import id_batches
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address
from opwire.typed.plain import MAX_DEPTH, read_json, survey

MAX_DESCRIBED = 64 * 1024 * 1024
"""Bytes of the descriptions of one spoke, by default."""

_SECONDS_BETWEEN_DESCRIPTIONS = 10.0
_MAX_SPOKES_DESCRIBING = 4
_SECONDS_PER_SPOKE = 2.0  # after which the next one may begin
_DESCRIPTIONS_PER_TURN = 8  # after which other tasks run
_MAX_UNREQUESTED = 1_000  # descriptions beside the requested ones: a peer may not support requests for some
_FAULTS_OF_SPOKE = (ErrorCode.VALIDATION_ERROR, ErrorCode.ACCESS_DENIED, ErrorCode.PAYLOAD_TOO_LARGE)

_json_decoder = json.Decoder()


class _Announcement(Struct, eq=False):
    """The state of one announcement: what the hub learns about the operations in it."""

    allowed: dict[str, None]
    described: dict[str, DescribedOperation] = field(default_factory=dict[str, DescribedOperation])
    unchanged: dict[str, str] = field(default_factory=dict[str, str])  # with their digests
    rejected: dict[str, CallError] = field(default_factory=dict[str, CallError])
    unanswered: dict[str, CallError] = field(default_factory=dict[str, CallError])  # why they are not described


class HubAdmission:
    """The admission policy of a hub: authenticates connections, and validates the operations that they announce.

    The schemas are in the announcement, or requested from the spoke, without an identity: a spoke describes itself
    because its hub asks. What a spoke does not describe is rejected, unless its grant says `undescribed`.
    Without an authenticator, connections are anonymous and announce nothing. `max_described` bounds the bytes that one
    spoke may describe.
    """

    def __init__(
        self,
        authenticator: Authenticator | None,
        calls: PendingRequestMap,
        remote: RemoteOperations,
        *,
        max_described: int = MAX_DESCRIBED,
    ) -> None:
        self._authenticator = authenticator
        self._calls = calls
        self._remote = remote
        self._max_described = max_described
        self._describing = asyncio.Semaphore(_MAX_SPOKES_DESCRIBING)
        self._announcements: dict[Address, _Announcement] = {}
        self._sizes: dict[Address, dict[str, int]] = {}  # of accepted descriptions, by peer
        self._totals: Counter[Address] = Counter()

    async def admit(self, token: str | None) -> Grant | None:
        """Return the grant of a spoke with this token; None: it may call public operations.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        return None if self._authenticator is None else await self._authenticator.authenticate(token)

    async def announced(
        self, peer: Address, grant: Grant | None, operation_ids: Collection[str], descriptions: Sequence[Raw] = ()
    ) -> Mapping[str, CallError]:
        """Validate operations that a spoke announces; return the rejected ones with their errors.

        Raises:
            CallError: UNAVAILABLE, the spoke does not respond.
        """
        allowed = [id for id in operation_ids if grant is not None and grant.may_announce(id)]
        announcement = self._announcements[peer] = _Announcement(dict.fromkeys(allowed))
        name = "a spoke without a token" if grant is None else grant.identity.id
        for id in operation_ids:
            if id not in announcement.allowed:
                announcement.rejected[id] = CallError(ErrorCode.ACCESS_DENIED, f"{name} may not announce {id}")
        undescribed = grant is not None and grant.undescribed
        try:
            await self._learn(peer, allowed, descriptions, announcement)
        except CallError:
            if not undescribed:
                raise
            announcement.unchanged.clear()
        settled = announcement.described.keys() | announcement.unchanged.keys() | announcement.rejected.keys()
        for id in [id for id in announcement.allowed if id not in settled]:
            if undescribed:  # a mutation is never retried, nor called by GET
                self._describe(peer, id, {"id": id, "type": OperationType.MUTATION.value}, announcement)
            else:
                message = f"{OPERATIONS} of the spoke does not describe {id}"
                announcement.rejected[id] = announcement.unanswered.get(id) or CallError(
                    ErrorCode.VALIDATION_ERROR, message
                )
        for id, operation in announcement.described.items():
            try:
                self._remote.check_conflict(peer, operation)
            except CallError as error:
                announcement.rejected[id] = error
        return announcement.rejected

    def accepted(self, peer: Address, operation_ids: Collection[str]) -> set[str]:
        """Register these of the announced operations; return the subscriptions among them."""
        announcement = self._announcements.pop(peer)
        self._forget_sizes(peer, announcement.described.keys() - set(operation_ids))
        self._remote.join(peer, [id for id in operation_ids if id in announcement.unchanged])
        self._remote.add(peer, [announcement.described[id] for id in operation_ids if id in announcement.described])
        return {id for id in operation_ids if self._remote.is_subscription(id)}

    def withdrawn(self, peer: Address, operation_ids: Collection[str]) -> None:
        """Remove operations that a spoke no longer serves."""
        self._remote.remove(peer, operation_ids)
        self._forget_sizes(peer, operation_ids)

    def lost(self, peer: Address) -> None:
        """Remove a spoke that has disconnected."""
        self._remote.lost(peer)
        self._announcements.pop(peer, None)
        self._sizes.pop(peer, None)
        del self._totals[peer]

    def unserved(self, operation_id: str) -> None:
        """Check that an operation without a server is unknown, and not only late.

        Raises:
            CallError: UNAVAILABLE, a spoke that serves it may still connect.
        """
        # Without an authenticator spokes announce nothing; with other hubs, they are asked first.
        if self._authenticator is not None and self._remote.look_up is None:
            self._remote.check_unknown(operation_id)

    # --- descriptions -------------------------------------------------------------------------------------------------

    async def _learn(
        self, peer: Address, operation_ids: list[str], descriptions: Sequence[Raw], announcement: _Announcement
    ) -> None:
        """Read the descriptions in an announcement, and request those that are missing there."""
        if descriptions:
            await self._read_carried(peer, descriptions, announcement)
        settled = announcement.described.keys() | announcement.rejected.keys()
        for ids in id_batches([id for id in operation_ids if id not in settled]):
            await self._request(peer, ids, announcement)
        # An unchanged operation may have been replaced meanwhile: the spoke then describes its own version.
        while stale_ids := [id for id, digest in announcement.unchanged.items() if self._remote.digest(id) != digest]:
            for ids in id_batches(stale_ids):
                await self._request(peer, ids, announcement, conditional=False)

    async def _request(
        self, peer: Address, operation_ids: list[str], announcement: _Announcement, *, conditional: bool = True
    ) -> None:
        """Request the descriptions of operations; one half after the other if the spoke fails to respond for all."""
        for id in operation_ids:
            announcement.unchanged.pop(id, None)
        digests = {id: self._remote.digest(id) for id in operation_ids} if conditional else {}
        known_digests = {id: digest for id, digest in digests.items() if digest is not None}
        try:
            await self._read(peer, operation_ids, known_digests, announcement)
        except CallError as error:
            if error.code not in _FAULTS_OF_SPOKE:
                message = f"the spoke did not describe its operations: {error.message}"
                raise CallError(ErrorCode.UNAVAILABLE, message) from error
            if len(operation_ids) == 1:
                announcement.unanswered[operation_ids[0]] = error
                return
            middle = len(operation_ids) // 2
            for half in (operation_ids[:middle], operation_ids[middle:]):
                await self._request(peer, half, announcement, conditional=conditional)

    async def _read(
        self, peer: Address, operation_ids: list[str], known_digests: dict[str, str], announcement: _Announcement
    ) -> None:
        input: dict[str, Any] = {"operations": operation_ids}
        if known_digests:
            input["known"] = known_digests
        number = unrequested = 0
        items = self._calls.subscribe(OPERATIONS, input, to=peer, idle_timeout=_SECONDS_BETWEEN_DESCRIPTIONS)
        async with self._turn(), aclosing(items):
            async for item in items:
                number += 1
                if number % _DESCRIPTIONS_PER_TURN == 0:
                    await asyncio.sleep(0)  # buffered items would be read in one go otherwise: 25 ms per spoke
                match item.data:
                    case {"unchanged": [*ids]}:
                        unchanged_ids = known_digests.keys() & {id for id in ids if isinstance(id, str)}
                        announcement.unchanged.update((id, known_digests[id]) for id in unchanged_ids)
                    case {"id": str(id)} if id in announcement.allowed:
                        self._describe(peer, id, item.data, announcement)
                    case _:
                        unrequested += 1
                        if unrequested > _MAX_UNREQUESTED:
                            message = "the spoke describes operations that were not requested"
                            raise CallError(ErrorCode.PROTOCOL_ERROR, message)

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """Wait for a turn to read descriptions, so that calls are not delayed when all spokes connect at once.

        A turn ends after two seconds: a slow spoke continues without blocking others.
        """
        await self._describing.acquire()
        stack = ExitStack()
        stack.callback(self._describing.release)
        timer = asyncio.get_running_loop().call_later(_SECONDS_PER_SPOKE, stack.close)
        try:
            yield
        finally:
            timer.cancel()
            stack.close()

    async def _read_carried(self, peer: Address, descriptions: Sequence[Raw], announcement: _Announcement) -> None:
        """Read the descriptions of an announcement. Invalid ones without an id are ignored: theirs is requested."""
        async with self._turn():
            for number, description in enumerate(descriptions):
                if number % _DESCRIPTIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
                try:
                    data = read_json(_json_decoder, bytes(description))
                except (ValueError, RecursionError):
                    continue
                match data:
                    case {"id": str(id)} if id in announcement.allowed and survey(data).deep:
                        deep = f"the description of {id} is nested deeper than {MAX_DEPTH}"
                        announcement.rejected[id] = CallError(ErrorCode.VALIDATION_ERROR, deep)
                    case {"id": str(id)} if id in announcement.allowed:
                        self._describe(peer, id, data, announcement)
                    case _:
                        pass  # of an operation that may not be announced, and is rejected

    def _describe(self, peer: Address, id: str, data: Any, announcement: _Announcement) -> None:
        announcement.rejected.pop(id, None)
        try:
            info = OperationInfo.read(data)
            fingerprint = info.fingerprint()
            self._forget_sizes(peer, [id])
            self._sizes.setdefault(peer, {})[id] = fingerprint.size
            self._totals[peer] += fingerprint.size
            if self._totals[peer] > self._max_described:
                self._forget_sizes(peer, [id])
                message = f"the descriptions of one spoke have at most {self._max_described:,} bytes"
                raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
            announcement.described[id] = self._remote.check(info, fingerprint.digest)
        except CallError as error:
            announcement.rejected[id] = error

    def _forget_sizes(self, peer: Address, operation_ids: Iterable[str]) -> None:
        sizes = self._sizes.get(peer, {})
        for id in operation_ids:
            self._totals[peer] -= sizes.pop(id, 0)
