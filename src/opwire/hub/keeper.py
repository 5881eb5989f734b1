"""Who may come to a hub, and what they may serve there."""

from opwire.auth import Authenticator, Grant
from opwire.call import Address, OperationInfo, PendingRequestMap
from opwire.call.about import OPERATIONS
from opwire.errors import CallError, ErrorCode
from opwire.hub.mirror import HUB, Mirror
from opwire.operation import Context

_PATIENCE = 4.0  # seconds: a spoke waits a little longer for its announcement to be confirmed
_NAMED = 5  # operations that a refusal names


class Keeper:
    """The gate of a hub: asks the authenticator who comes, and each spoke for the schemas of what it announces.

    Without an authenticator, everybody is nobody, who announces nothing.
    """

    def __init__(self, auth: Authenticator | None, calls: PendingRequestMap, mirror: Mirror) -> None:
        self._auth = auth
        self._calls = calls
        self._mirror = mirror

    async def admit(self, token: str | None) -> Grant | None:
        """What a spoke with this token may do; None: call what is public.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        return None if self._auth is None else await self._auth.authenticate(token)

    async def announced(self, peer: Address, grant: Grant | None, operation_ids: list[str]) -> None:
        """Show what a spoke announces; all of it, or nothing.

        Raises:
            CallError: ACCESS_DENIED, if it may not announce one of them; VALIDATION_ERROR, if it does not say what they
                are, or others say otherwise; UNAVAILABLE.
        """
        foreign = [each for each in operation_ids if grant is None or not grant.may_announce(each)]
        if foreign:
            raise CallError(ErrorCode.ACCESS_DENIED, f"{_who(grant)} may not announce {_list(foreign)}")
        described = await self._described(peer)
        unknown = [each for each in operation_ids if each not in described]
        if unknown:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{OPERATIONS} of the spoke does not describe {_list(unknown)}")
        self._mirror.show(peer, [described[each] for each in operation_ids])

    def withdrawn(self, peer: Address, operation_ids: list[str]) -> None:
        """A spoke serves these operations no longer."""
        self._mirror.hide(peer, operation_ids)

    def lost(self, peer: Address) -> None:
        """A spoke is gone."""
        self._mirror.lost(peer)

    def unserved(self, operation_id: str) -> None:
        """Nobody serves an operation: nobody yet, or nobody at all?

        Raises:
            CallError: UNAVAILABLE, if a spoke that serves it may still come.
        """
        if self._auth is not None:  # else no spoke may announce anything
            self._mirror.check_unknown(operation_id)

    async def _described(self, peer: Address) -> dict[str, OperationInfo]:
        context = Context(identity=HUB)
        items = self._calls.subscribe(OPERATIONS, None, context, output_type=OperationInfo, to=peer, timeout=_PATIENCE)
        return {item.data.id: item.data async for item in items}


def _who(grant: Grant | None) -> str:
    return "a spoke without a token" if grant is None else grant.identity.id


def _list(operation_ids: list[str]) -> str:
    more = len(operation_ids) - _NAMED
    return ", ".join(operation_ids[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
