"""The exported JSON Schemas of everything on the wire."""

import msgspec
import pytest

from opwire.protocol import schemas
from opwire.schema import Schema


@pytest.mark.parametrize("name", [name for name in schemas.__all__ if name.endswith("_SCHEMA")])
def test_every_exported_schema_is_valid_json_schema_and_plain_json(name: str) -> None:
    schema = getattr(schemas, name)
    Schema(schema).compile()
    assert msgspec.json.decode(msgspec.json.encode(schema)) == schema


def test_the_schemas_of_everything_on_the_wire_are_exported() -> None:
    assert {name for name in schemas.__all__ if name.endswith("_SCHEMA")} == {
        "CALL_EVENT_SCHEMA",
        "SESSION_EVENT_SCHEMA",
        "HTTP_RESPONSE_META_SCHEMA",
        "LOCAL_RESPONSE_META_SCHEMA",
        "MCP_CONTENT_BLOCK_SCHEMA",
        "MCP_RESPONSE_META_SCHEMA",
        "RESPONSE_ENVELOPE_SCHEMA",
        "RESPONSE_META_SCHEMA",
    }
