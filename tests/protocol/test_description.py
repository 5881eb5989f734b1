"""What a serving end says about itself is plain data, sent unchanged."""

from msgspec.structs import replace

from opwire.model.access import AccessControl
from opwire.model.operation import OperationType
from opwire.protocol import CallHandler, Describing, PendingRequestMap, ServerInfo, Statistics
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire.typed import convert
from opwire.typed.plain import to_plain


def registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.mutation("shop.close", access=AccessControl(required_scopes=("shop:admin",)))
    async def close(reason: str = "") -> bool:
        return True

    return registry


async def test_an_end_describes_what_is_served_there_while_something_is() -> None:
    calls = PendingRequestMap(MemoryTransport(MemoryBus()))
    assert isinstance(calls, Describing)
    async with calls:
        assert calls.describe() is None
        async with CallHandler(registry(), calls, name="shop", version="1.0.0") as handler:
            described = calls.describe()
            assert described is not None
            assert described.server == handler.about()
            (close,) = described.operations
            assert (close.id, close.type) == ("shop.close", OperationType.MUTATION)
        assert calls.describe() is None


async def test_a_description_is_the_same_after_a_journey_as_plain_data() -> None:
    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls, CallHandler(registry(), calls) as handler:
        described = handler.describe()
        plain = to_plain(described.server)
        assert plain["inFlight"] == 0
        assert convert(plain, ServerInfo) == described.server
        (close,) = described.operations
        assert convert(to_plain(close), type(close)) == close
        assert close.plain() == to_plain(close)
        assert close.plain()["inputSchema"] is close.input_schema


async def test_statistics_do_not_change_a_fingerprint_and_everything_else_does() -> None:
    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls, CallHandler(registry(), calls) as handler:
        (close,) = handler.describe().operations
    before = close.fingerprint()
    assert replace(close, statistics=Statistics(calls=5)).fingerprint() == before
    for change in ({"description": "Other."}, {"version": "2"}, {"input_schema": True}, {"access": None}):
        assert replace(close, **change).fingerprint().digest != before.digest


async def test_a_compact_specification_is_the_same_and_its_schemas_are_made_when_they_are_used() -> None:
    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls, CallHandler(registry(), calls) as handler:
        (close,) = handler.describe().operations
    old = replace(close, output_schema={"$schema": "http://json-schema.org/draft-07/schema#", "type": "boolean"})
    compact = old.spec(compact=True)
    assert compact.input_schema.is_deferred
    assert compact.output_schema.dialect == old.spec().output_schema.dialect == "draft-07"
    assert compact == old.spec()
