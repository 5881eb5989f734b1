"""A spoke: one end of whatever its URL says, which serves a registry and calls what others serve."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Self, TypeVar, Unpack, overload

from opwire.call import CallHandler, FoundServer, PendingRequestMap, Transport, discover
from opwire.call.pending import RemoteCallOptions, RemoteStreamOptions
from opwire.envelope import ResponseEnvelope
from opwire.errors import check_above_zero
from opwire.hub.connect import connect
from opwire.operation import Identity
from opwire.registry import OperationRegistry

T = TypeVar("T")


class Spoke:
    """Serves a registry over a hub or a broker, and calls what others serve there.

        async with Spoke(registry, "ws://127.0.0.1:8700", token="…") as spoke:  # a hub
            envelope = await spoke.call("math.add", {"a": 1, "b": 2})

        async with Spoke(registry, ["ws://a:8700", "ws://b:8700"], token="…") as spoke:  # one of several hubs
            ...

        async with Spoke(registry, "redis://127.0.0.1:6379") as spoke:  # no hub: the broker is enough
            ...

    Without a registry it only calls. `url` may be a transport, too. `identity` is whom callers count as that have none;
    `options` are those of the transport (`token`, `heartbeat`, `ssl`, …).
    """

    def __init__(
        self,
        registry: OperationRegistry | None,
        url: str | Sequence[str] | Transport,
        *,
        name: str = "opwire",
        version: str = "0.0.0",
        identity: Identity | None = None,
        max_calls: int = 50_000,
        max_per_identity: int | None = None,
        **options: Any,
    ) -> None:
        check_above_zero(max_calls=max_calls)
        if max_per_identity is not None:
            check_above_zero(max_per_identity=max_per_identity)
        self.transport = connect(url, **options) if isinstance(url, str | Sequence) else url
        self.calls = PendingRequestMap(self.transport)
        self.handler = CallHandler(
            OperationRegistry() if registry is None else registry,
            self.calls,
            name=name,
            version=version,
            anonymous=identity,
            max_calls=max_calls,
            max_per_identity=max_per_identity,
        )

    async def start(self) -> Self:
        """Connect, and announce what is served.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, if the token is not good; ACCESS_DENIED or VALIDATION_ERROR, if the
                hub does not want what is served here.
        """
        await self.calls.start()
        try:
            await self.handler.start()
        except BaseException:
            await self.calls.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self, timeout: float = 30.0) -> bool:
        """Take no more calls, finish those in hand, and leave. False if some did not end in time."""
        finished = await self.handler.drain(timeout)
        await self.close()
        return finished

    async def close(self) -> None:
        """Leave. What is in hand is stopped: `drain` first to let it finish."""
        await self.handler.close()
        await self.calls.close()

    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RemoteCallOptions]
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RemoteCallOptions]
    ) -> ResponseEnvelope[Any]: ...
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RemoteCallOptions]
    ) -> ResponseEnvelope[Any]:
        """Call a query or mutation at a peer: see `PendingRequestMap.call`.

        Raises:
            CallError: the call failed, there or in transit.
        """
        return await self.calls.call(operation_id, input, output_type=output_type, **options)

    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RemoteStreamOptions]
    ) -> AsyncGenerator[ResponseEnvelope[T]]: ...
    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RemoteStreamOptions]
    ) -> AsyncGenerator[ResponseEnvelope[Any]]: ...
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RemoteStreamOptions]
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Return the items of a subscription at a peer: see `PendingRequestMap.subscribe`."""
        return self.calls.subscribe(operation_id, input, output_type=output_type, **options)

    async def discover(self, *, wait: float = 0.5) -> list[FoundServer]:
        """Everybody who serves here, with what they serve.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await discover(self.calls, wait=wait)
