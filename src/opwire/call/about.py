"""Discovery: what a serving end answers about itself, and asking all who serve.

Each `CallHandler` answers two operations beside those of its registry, so that discovery is made of ordinary calls with
ordinary limits, on every transport: `opwire.about`, and the subscription `opwire.operations`, which shows a caller what
it may call.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property

from msgspec import Struct

from opwire.access import may_access
from opwire.call.description import Description, OperationInfo, ServerInfo, Statistics
from opwire.call.pending import PendingRequestMap
from opwire.call.transport import Address
from opwire.errors import CallError
from opwire.operation import AccessControl, Context, OperationSpec
from opwire.registry import OperationRegistry

logger = logging.getLogger("opwire.call")

ABOUT = "opwire.about"
OPERATIONS = "opwire.operations"


_NONE = Statistics()


class Found(Struct, frozen=True):
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
        """The two operations; made when somebody asks for the first time."""
        registry, public = OperationRegistry(normalize="off"), AccessControl(public=True)
        registry.query(ABOUT, access=public)(self._about)
        registry.subscription(OPERATIONS, access=public)(self._operations)
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

    async def _operations(self, context: Context) -> AsyncIterator[OperationInfo]:
        """What is served here, with schemas and statistics."""
        for spec in list(self._specs()):
            if may_access(spec, context.identity):
                yield self._info(spec)


async def discover(calls: PendingRequestMap, *, wait: float = 0.5, timeout: float = 5.0) -> list[Found]:
    """Everybody who serves on the transport, with what they serve. One that does not answer in time is left out.

        for found in await discover(calls):
            print(found.server.name, [operation.id for operation in found.operations])

    Raises:
        CallError: UNAVAILABLE, if the medium cannot be reached.
    """
    addresses = await calls.transport.servers(wait)
    answers = await asyncio.gather(*(_ask(calls, address, timeout) for address in addresses))
    return [found for found in answers if found is not None]


async def _ask(calls: PendingRequestMap, address: Address, timeout: float) -> Found | None:
    try:
        server = await calls.call(ABOUT, to=address, output_type=ServerInfo, timeout=timeout)
        stream = calls.subscribe(OPERATIONS, to=address, output_type=OperationInfo, timeout=timeout)
        return Found(address, server.data, [each.data async for each in stream])
    except CallError as error:
        logger.warning("the server at %s did not say what it serves: %s", address, error)
        return None
