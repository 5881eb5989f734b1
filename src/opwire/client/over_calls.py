"""Calls over a transport: to a hub, over a broker, or to another end in this process."""

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from opwire.access import may_access
from opwire.call import OperationInfo, PendingRequestMap, discover
from opwire.client.backend import Catalogue
from opwire.envelope import ResponseEnvelope
from opwire.errors import RegistrationError
from opwire.operation import Context, Identity, OperationSpec

logger = logging.getLogger("opwire.client")


class CallsBackEnd:
    """One end of a transport. `owned`: it is started and closed by the client.

    `identity` is who calls, if that is said: within one process it is believed, elsewhere the transport knows better.
    """

    def __init__(self, calls: PendingRequestMap, *, owned: bool, identity: Identity | None = None) -> None:
        self._calls = calls
        self._identity = identity
        self._owned = owned
        self._catalogue = Catalogue(self.operations)

    async def start(self) -> None:
        """Connect, unless somebody else does."""
        if self._owned:
            await self._calls.start()

    async def close(self) -> None:
        """Leave, unless somebody else still uses it."""
        if self._owned:
            await self._calls.close()

    async def call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation."""
        return await self._calls.call(operation_id, input, context, timeout=context.remaining)

    def subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription."""
        return self._calls.subscribe(operation_id, input, context)

    async def operations(self) -> Sequence[OperationSpec]:
        """What anybody serves; of several who serve the same, the first one says what it is."""
        found: dict[str, OperationSpec] = {}
        for server in await discover(self._calls):
            for info in server.operations:
                if info.id not in found and (spec := _spec(info)) is not None:
                    found[info.id] = spec
        specs = list(found.values())
        return specs if self._identity is None else [spec for spec in specs if may_access(spec, self._identity)]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """One of the operations."""
        return await self._catalogue.find(operation_id)


def _spec(info: OperationInfo) -> OperationSpec | None:
    """The specification; None, with a warning, if a peer shows what is none."""
    try:
        return info.spec()
    except RegistrationError as error:
        logger.warning("an operation of a peer is left out: %s", error)
        return None
