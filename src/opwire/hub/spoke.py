"""`Spoke`: serves a registry over a hub or a broker, and calls what others serve there."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Self

from opwire.call import CallHandler, FoundServer, PendingRequestMap, Transport, discover
from opwire.client.client import Client
from opwire.errors import check_counts
from opwire.operation import Identity, OperationSpec, may_access
from opwire.registry import OperationRegistry
from opwire.transports.connect import connect

logger = logging.getLogger("opwire.hub")


class Spoke(Client):
    """A `Client` that also serves a registry, over the same connection.

        async with Spoke(registry, "ws://127.0.0.1:8700", token="…") as spoke:  # a hub
            data = await spoke.call("math.add", {"a": 1, "b": 2})

        async with Spoke(registry, ["ws://a:8700", "ws://b:8700"], token="…") as spoke:  # one of several hubs
            ...

        async with Spoke(registry, "redis://127.0.0.1:6379") as spoke:  # a broker, without a hub
            ...

    Without a registry it only calls. `url` may be a transport. It never retries. `calls` is its end of the protocol,
    for envelopes and options such as `sticky_key`.

    `anonymous` is the identity of callers without one; `announces` selects the operations that others are shown, by
    default all of them; `options` are those of the transport (`token`, `heartbeat`, `ssl`, …).
    """

    def __init__(
        self,
        registry: OperationRegistry | None,
        url: str | Sequence[str] | Transport,
        *,
        name: str = "opwire",
        version: str = "0.0.0",
        anonymous: Identity | None = None,
        max_calls: int = 50_000,
        max_per_identity: int | None = None,
        announces: Callable[[OperationSpec], bool] | None = None,
        **options: Any,
    ) -> None:
        check_counts(max_calls=max_calls, max_per_identity=max_per_identity)
        self.registry = OperationRegistry() if registry is None else registry
        self.transport = connect(url, **options) if isinstance(url, str | Sequence) else url
        self.calls = PendingRequestMap(self.transport)
        super().__init__(self.calls, retries=None)
        self._anonymous = anonymous
        self.handler = CallHandler(
            self.registry,
            self.calls,
            name=name,
            version=version,
            anonymous=anonymous,
            max_calls=max_calls,
            max_per_identity=max_per_identity,
            announces=announces,
        )

    async def start(self) -> Self:
        """Connect, and announce the operations of the registry.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, the token is invalid; ACCESS_DENIED or VALIDATION_ERROR, the hub
                rejects an operation.
        """
        await self.calls.start()
        await super().start()
        try:
            await self.handler.start()
        except BaseException:
            await super().close()
            await self.calls.close()
            raise
        self._warn_if_uncallable()
        return self

    def _warn_if_uncallable(self) -> None:
        """Log a warning if anonymous callers are the only ones, and may call none of the operations."""
        specs = self.registry.list()
        if self.transport.trusted or self.transport.local or any(may_access(spec, self._anonymous) for spec in specs):
            return
        if specs:
            logger.warning(
                "no caller has access to the operations that are served here (%d): callers over a broker are anonymous "
                "unless their requests are signed. Allow anonymous callers (`--open`, or `anonymous` in [spoke]), "
                "verify signatures (`--authority`, or [spoke.signed]), or make operations public",
                len(specs),
            )

    async def drain(self, timeout: float = 30.0) -> bool:
        """Reject new calls, finish those in flight, and close. Return False if some did not end in time."""
        finished = await self.handler.drain(timeout)
        await self.close()
        return finished

    async def close(self) -> None:
        """Disconnect. Calls in flight are cancelled: `drain` finishes them first."""
        await self.handler.close()
        await super().close()
        await self.calls.close()

    async def discover(self, *, wait: float = 0.5) -> list[FoundServer]:
        """Return every server, with its operations, its health and its statistics.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await discover(self.calls, wait=wait)
