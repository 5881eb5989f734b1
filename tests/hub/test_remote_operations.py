"""What others serve, in a registry: shown, hidden, and lost for a while."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.hub.remote_operations import RemoteOperations
from opwire.model.access import AccessControl
from opwire.model.operation import OperationType
from opwire.protocol import Address, OperationInfo, PendingRequestMap, Statistics
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.hub.meeting import adding, ids
from tests.transports.websocket.ends import until


def info(id: str = "math.add", **fields: Any) -> OperationInfo:
    about: dict[str, Any] = {
        "type": OperationType.QUERY,
        "title": "Add",
        "description": "",
        "tags": ("sums",),
        "version": "1",
        "input_schema": {"type": "object"},
        "output_schema": True,
        "access": AccessControl(required_scopes=("add",)),
        "statistics": Statistics(),
    }
    return OperationInfo(id=id, **{**about, **fields})


def show(remote: RemoteOperations, peer: Address, *infos: OperationInfo) -> None:
    """Show what a peer serves, or raise what is wrong with it."""
    operations = [remote.check(each, each.fingerprint().digest) for each in infos]
    for operation in operations:
        remote.check_conflict(peer, operation)
    remote.add(peer, operations)


@pytest.fixture
async def calls() -> AsyncIterator[PendingRequestMap]:
    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls:
        yield calls


async def test_an_operation_is_shown_as_it_was_described(calls: PendingRequestMap) -> None:
    registry = OperationRegistry()
    remote = RemoteOperations(registry, calls)
    show(remote, "a", info(), info("math.add/2"))
    spec = registry.get_spec("math.add")
    assert spec is not None
    assert (spec.title, spec.tags, spec.version, spec.normalize) == ("Add", ("sums",), "1", "off")
    assert spec.access == AccessControl(required_scopes=("add",))
    assert spec.input_schema.json == {"type": "object"}
    assert "math.add/2" in remote
    assert "math.other" not in remote
    remote.clear()
    assert len(registry) == 0


async def test_an_operation_is_shown_until_the_last_peer_withdraws_it(calls: PendingRequestMap) -> None:
    registry = OperationRegistry()
    remote = RemoteOperations(registry, calls)
    for peer in ("a", "b"):
        show(remote, peer, info())
    remote.remove("a", ["math.add", "math.unknown"])
    remote.remove("a", ["math.add"])
    assert ids(registry) == ["math.add"]
    remote.remove("b", ["math.add"])
    assert ids(registry) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"type": OperationType.MUTATION}, "type"),
        ({"input_schema": {"type": "array"}}, "input schema"),
        ({"output_schema": {"type": "array"}}, "output schema"),
    ],
)
async def test_all_of_it_is_shown_or_nothing(calls: PendingRequestMap, other: dict[str, Any], what: str) -> None:
    registry = OperationRegistry()
    remote = RemoteOperations(registry, calls)
    show(remote, "a", info())
    with pytest.raises(CallError, match=f"another {what}") as failure:
        show(remote, "b", info("math.new"), replace(info(), **other))
    assert failure.value.code is ErrorCode.VALIDATION_ERROR
    assert ids(registry) == ["math.add"]
    show(remote, "b", replace(info(), description="other words"))


@pytest.mark.parametrize("id", ["local.add", "nodot", "bad\x00space.op", "a.", "opwire.operations", "opwire.new"])
async def test_what_cannot_be_registered_is_refused(calls: PendingRequestMap, id: str) -> None:
    registry = adding("local")
    remote = RemoteOperations(registry, calls)
    with pytest.raises(CallError) as failure:
        show(remote, "a", info(), info(id))
    assert failure.value.code is ErrorCode.VALIDATION_ERROR
    assert ids(registry) == ["local.add"]


async def test_what_was_lost_is_unavailable_and_may_come_back(calls: PendingRequestMap) -> None:
    registry = OperationRegistry()
    remote = RemoteOperations(registry, calls, linger=60)
    show(remote, "a", info(), info("clock.ticks", type=OperationType.SUBSCRIPTION))
    remote.lost("a")
    remote.lost("a")
    assert ids(registry) == ["clock.ticks", "math.add"]
    for call in (registry.execute("math.add", {}), anext(registry.subscribe("clock.ticks", {}))):
        with pytest.raises(CallError, match="at the moment") as failure:
            await call
        assert failure.value.code is ErrorCode.UNAVAILABLE
    show(remote, "b", info())
    with pytest.raises(CallError) as failure:
        await registry.execute("math.add", {})
    assert "at the moment" not in failure.value.message  # it was looked up, on a bus without peers
    remote.clear()


async def test_what_was_never_shown_may_be_on_its_way_at_the_beginning(calls: PendingRequestMap) -> None:
    remote = RemoteOperations(adding("local"), calls, linger=60)
    remote.check_unknown("math.add")  # it does not expect any peer yet
    remote.begin()
    with pytest.raises(CallError, match=r"math\.add is not served yet") as failure:
        remote.check_unknown("math.add")
    assert (failure.value.code, failure.value.retryable) == (ErrorCode.UNAVAILABLE, True)
    for known in ("local.add", "opwire.about", "opwire.operations"):
        remote.check_unknown(known)
    impatient = RemoteOperations(OperationRegistry(), calls, linger=0)
    impatient.begin()
    impatient.check_unknown("math.add")


async def test_when_the_last_one_was_lost_another_version_may_come(calls: PendingRequestMap) -> None:
    registry = OperationRegistry()
    remote = RemoteOperations(registry, calls, linger=60)
    show(remote, "a", info())
    remote.lost("a")
    show(remote, "b", info(input_schema={"type": "array"}))
    spec = registry.get_spec("math.add")
    assert spec is not None
    assert spec.input_schema.json == {"type": "array"}
    remote.clear()


async def test_one_that_was_lost_may_come_back_after_the_last_one_has_withdrawn(calls: PendingRequestMap) -> None:
    registry = OperationRegistry()
    remote = RemoteOperations(registry, calls, linger=60)
    for peer in ("a", "b"):
        show(remote, peer, info(), info(f"only.{peer}"))
    remote.lost("a")
    remote.remove("b", ["math.add", "only.b"])
    assert ids(registry) == ["math.add", "only.a"]
    with pytest.raises(CallError, match="at the moment"):
        await registry.execute("math.add", {})
    remote.clear()


async def test_what_stays_lost_is_forgotten(calls: PendingRequestMap) -> None:
    registry = OperationRegistry()
    remote = RemoteOperations(registry, calls, linger=0.02)
    show(remote, "a", info())
    remote.lost("a")
    await until("it is forgotten", lambda: len(registry) == 0)
    assert "math.add" not in remote
    await asyncio.sleep(0)


async def test_the_loss_of_a_peer_costs_what_it_has_announced(calls: PendingRequestMap) -> None:
    remote = RemoteOperations(OperationRegistry(), calls, linger=60)
    for peer in range(40):
        show(remote, f"p{peer}", *(info(f"n{peer}.op{number}") for number in range(25)))
    looked_at: list[str] = []

    class Watched(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            looked_at.append(key)
            return super().__getitem__(key)

        def items(self) -> Any:
            raise AssertionError("all operations were looked at")

        __iter__ = values = items

    remote._operations = Watched(remote._operations)
    remote.lost("p7")
    assert sorted(looked_at) == sorted(f"n7.op{number}" for number in range(25))
    assert len(remote._timers) == 1
    remote._operations = dict(dict.items(remote._operations))
    remote.clear()
    assert not remote._timers
