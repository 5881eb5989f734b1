"""What is said of an operation beyond what MCP and OpenAPI have words for, and read again."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from opwire import Annotations, OperationRegistry, OperationSpec, OperationType
from opwire.model.origin import (
    ORIGIN_EXTENSION,
    ORIGIN_META,
    RESULT_META,
    Origin,
    ResultOrigin,
    read_origin,
    read_result_origin,
)

SPEC = OperationSpec(
    namespace="clock",
    name="ticks/all",
    type=OperationType.SUBSCRIPTION,
    version="2",
    tags=("time",),
    examples=({"count": 3},),
    timeout=5,
    idle_timeout=2.5,
)


def test_what_was_said_of_an_operation_is_read_again_after_a_journey_as_json() -> None:
    """What MCP and OpenAPI have no words for is said beside them, and read again as it was."""
    said = Origin.of(SPEC, wraps_input=True, wraps_output=True)
    journey = msgspec.json.decode(msgspec.json.encode({ORIGIN_META: msgspec.to_builtins(said)}))
    assert read_origin(journey, ORIGIN_META) == said
    assert (said.id, said.type, said.version, said.tags) == ("clock.ticks/all", "subscription", "2", ("time",))


def test_what_goes_without_saying_is_not_said() -> None:
    plain = OperationSpec(namespace="math", name="add")
    assert msgspec.to_builtins(Origin.of(plain)) == {"id": "math.add", "type": "query"}
    assert msgspec.to_builtins(ResultOrigin(wrapped=True)) == {"wrapped": True}


def test_what_was_said_of_a_result_is_read_again() -> None:
    said = ResultOrigin(wrapped=True, encoding="base64", meta={"source": "http", "statusCode": 201})
    assert read_result_origin({RESULT_META: msgspec.to_builtins(said)}) == said


@pytest.mark.parametrize(
    "carrier", [None, [], {}, {ORIGIN_META: None}, {ORIGIN_META: "math.add"}, {ORIGIN_META: {"id": 1, "type": "query"}}]
)
def test_a_foreign_field_of_the_same_name_is_not_an_origin(carrier: Any) -> None:
    assert read_origin(carrier, ORIGIN_META) is None
    assert read_result_origin(carrier) is None


def test_fields_that_a_newer_peer_adds_are_tolerated() -> None:
    assert read_origin({ORIGIN_META: {"id": "a.b", "type": "mutation", "new": 1}}, ORIGIN_META) == Origin(
        id="a.b", type=OperationType.MUTATION
    )


def test_what_an_operation_is_to_clients_is_part_of_its_origin_unless_mcp_has_it() -> None:
    registry = OperationRegistry()
    hints = Annotations(read_only=True, open_world=False, extra={"priority": 1})

    @registry.resource("a://{b}", id="a.b", mime_type="x/y", annotations=hints, icons=["https://x/i"], meta={"m": 1})
    def read(b: str) -> str:
        return b

    (spec,) = registry.list()
    carried = read_origin({ORIGIN_EXTENSION: msgspec.to_builtins(Origin.of(spec))}, ORIGIN_EXTENSION)
    assert carried is not None
    assert structs.replace(spec, mcp=carried.mcp) == spec
    shown = Origin.of(spec, in_mcp=True)
    assert (shown.role, shown.uri, shown.mime_type) == ("resource", "a://{b}", "x/y")
    assert (shown.annotations, shown.icons, shown.meta) == ({}, (), {})
