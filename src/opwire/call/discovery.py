"""Discovery: what a serving end answers about itself, and asking all who serve.

Each `CallHandler` answers two operations beside those of its registry, so that discovery is made of ordinary calls with
ordinary limits, on every transport: `opwire.about`, and the subscription `opwire.operations`, which shows a caller what
it may call. Only the hub that the operations are announced to is shown all of them: it is known by its connection, so
that its requests need no authority.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property, partial
from typing import Any

from msgspec import Struct

from opwire.call.description import Description, OperationInfo, ServerInfo, Statistics, Unchanged
from opwire.call.pending import PendingRequestMap
from opwire.call.transport import Address
from opwire.errors import CallError
from opwire.operation import AccessControl, Context, OperationSpec, may_access
from opwire.registry import OperationRegistry

logger = logging.getLogger("opwire.call")

ABOUT = "opwire.about"
OPERATIONS = "opwire.operations"


_NONE = Statistics()
_BREATH = 8  # operations that are described in one turn of the event loop


class FoundServer(Struct, frozen=True):
    """A server that `discover` found: where it is, who it is, and what it serves."""

    address: Address
    server: ServerInfo
    operations: list[OperationInfo]


class SelfDescription:
    """The two operations with which a serving end answers questions about itself."""

    def __init__(
        self,
        registry: OperationRegistry,
        about: Callable[[], ServerInfo],
        serves: Callable[[OperationSpec], bool] | None = None,
    ) -> None:
        self._registry = registry
        self._serves = serves
        self._describe = about
        self._statistics: dict[str, Statistics] = {}

    @cached_property
    def operations(self) -> OperationRegistry:
        """The two operations, as any caller sees them; made at the first request."""
        return self._made(self._operations)

    @cached_property
    def announced(self) -> OperationRegistry:
        """The two operations, as the hub sees them that the registry is announced to."""
        return self._made(self._all_operations)

    def _made(self, operations: Callable[..., AsyncIterator[OperationInfo | Unchanged]]) -> OperationRegistry:
        registry, public = OperationRegistry(normalize="off"), AccessControl(public=True)
        registry.query(ABOUT, access=public)(self._about)
        registry.subscription(OPERATIONS, access=public)(operations)
        return registry

    def count(self, operation_id: str, seconds: float, error: CallError | None) -> None:
        """A call has ended. Ids that are not served are not counted: peers may make up any number of them."""
        statistics = self._statistics.get(operation_id)
        if statistics is None:
            if self._registry.get_spec(operation_id) is None:
                return
            statistics = self._statistics[operation_id] = Statistics()
        statistics.calls += 1
        statistics.seconds += seconds
        if error is not None:
            statistics.errors += 1
            statistics.last_error = error.code.value

    def describe(self) -> Description:
        """All that is served here."""
        return Description(self._describe(), [self._info(spec) for spec in self._specs()])

    def _specs(self) -> Iterator[OperationSpec]:
        return filter(self._serves, self._registry.list())

    def _info(self, spec: OperationSpec) -> OperationInfo:
        return OperationInfo.of(spec, self._statistics.get(spec.id, _NONE))

    async def _about(self) -> ServerInfo:
        """Who serves here."""
        return self._describe()

    async def _operations(
        self, context: Context, operations: list[str] | None = None, known: dict[str, str] | None = None
    ) -> AsyncIterator[OperationInfo | Unchanged]:
        """Describe what is served here and the caller may call, with schemas and statistics.

        `operations` are the ids to describe, all by default. Those in `known` are described unless their digest is the
        one given there: they are then named in a last item.
        """
        allowed = partial(may_access, identity=context.identity)
        async for item in self._described(allowed, operations, known or {}):
            yield item

    async def _all_operations(
        self, operations: list[str] | None = None, known: dict[str, str] | None = None
    ) -> AsyncIterator[OperationInfo | Unchanged]:
        """Describe what is served here to the hub that it is announced to."""
        async for item in self._described(_anything, operations, known or {}):
            yield item

    async def _described(
        self, allowed: Callable[[OperationSpec], bool], operations: list[str] | None, known: dict[str, str]
    ) -> AsyncIterator[Any]:
        unchanged: list[str] = []
        for number, spec in enumerate(self._chosen(operations)):
            if number % _BREATH == 0:
                await asyncio.sleep(0)  # schemas may be made at their first use: up to a millisecond each
            if not allowed(spec):
                continue
            info = self._info(spec)
            if spec.id in known and info.fingerprint().digest == known[spec.id]:
                unchanged.append(spec.id)
            else:
                yield info.plain()
        if unchanged:
            yield {"unchanged": unchanged}

    def _chosen(self, operations: list[str] | None) -> list[OperationSpec]:
        if operations is None:
            return list(self._specs())
        specs = map(self._registry.get_spec, dict.fromkeys(operations))
        return [spec for spec in specs if spec is not None and (self._serves is None or self._serves(spec))]


def _anything(_: OperationSpec) -> bool:
    """Allow every operation."""
    return True


async def discover(calls: PendingRequestMap, *, wait: float = 0.5, timeout: float = 5.0) -> list[FoundServer]:
    """Everybody who serves on the transport, with what they serve. One that does not answer in time is left out.

        for found in await discover(calls):
            print(found.server.name, [operation.id for operation in found.operations])

    Raises:
        CallError: UNAVAILABLE, if the medium cannot be reached.
    """
    addresses = await calls.transport.servers(wait)
    answers = await asyncio.gather(*(_ask(calls, address, timeout) for address in addresses))
    return [found for found in answers if found is not None]


async def _ask(calls: PendingRequestMap, address: Address, timeout: float) -> FoundServer | None:
    try:
        server = await calls.call(ABOUT, to=address, output_type=ServerInfo, timeout=timeout)
        stream = calls.subscribe(OPERATIONS, to=address, output_type=OperationInfo, timeout=timeout)
        return FoundServer(address, server.data, [each.data async for each in stream])
    except CallError as error:
        logger.warning("the server at %s did not say what it serves: %s", address, error)
        return None
