"""The one interface between the client and whatever answers it: a registry, a transport, a served HTTP address."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from opwire.envelope import ResponseEnvelope
from opwire.operation import Context, OperationSpec

STALE = 0.5
"""Seconds for which a list of operations is believed that does not hold the one that is looked for."""


class BackEnd(Protocol):
    """Where calls go. It keeps to the deadline of the context, which every call has, and retries nothing."""

    async def start(self) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE or UNAUTHENTICATED.
        """
        ...

    async def close(self) -> None:
        """Leave. Calls that are under way end."""
        ...

    async def call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation.

        Raises:
            CallError: and nothing else.
        """
        ...

    def subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription; closing the generator stops the producer. It raises CallError."""
        ...

    async def operations(self) -> Sequence[OperationSpec]:
        """What can be called.

        Raises:
            CallError: nobody can say at the moment.
        """
        ...

    async def find(self, operation_id: str) -> OperationSpec | None:
        """One of the operations, as it was when it was last asked for; None if there is no such one.

        Raises:
            CallError: nobody can say at the moment.
        """
        ...


class Catalogue:
    """The operations of a peer, asked for when one of them is first looked up, and again if one is not among them."""

    def __init__(self, ask: Callable[[], Awaitable[Sequence[OperationSpec]]]) -> None:
        self._ask = ask
        self._known: dict[str, OperationSpec] = {}
        self._asked: float | None = None
        self._lock = asyncio.Lock()  # a hundred calls that fail at once are one question

    async def find(self, operation_id: str) -> OperationSpec | None:
        """The specification of an operation, or None.

        Raises:
            CallError: as the question.
        """
        async with self._lock:
            if operation_id not in self._known and (self._asked is None or time.monotonic() > self._asked + STALE):
                self._known = {spec.id: spec for spec in await self._ask()}
                self._asked = time.monotonic()
            return self._known.get(operation_id)
