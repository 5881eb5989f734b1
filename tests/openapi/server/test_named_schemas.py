"""The schemas that are in every document."""

import json
from typing import Any

import jsonschema_rs
import pytest

from opwire import encode_envelope, http_envelope, local_envelope
from opwire.model.envelope import mcp_envelope
from opwire.openapi.server.components import NAMED_SCHEMAS
from opwire.protocol.schemas import MCP_CONTENT_BLOCK_SCHEMA, RESPONSE_META_SCHEMA

BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "x", "annotations": {"audience": ["user"], "priority": 1}},
    {"type": "image", "data": "eA==", "mimeType": "image/png"},
    {"type": "audio", "data": "eA==", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "a:b", "text": "x"}},
    {"type": "resource_link", "uri": "a:b", "name": "x"},
]


def named(name: str) -> Any:
    root = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": NAMED_SCHEMAS}}
    return jsonschema_rs.validator_for(root)


@pytest.mark.parametrize(
    "meta",
    [
        json.loads(encode_envelope(envelope))["meta"]
        for envelope in (
            local_envelope(b"x", "a.b"),
            http_envelope(1, status_code=200, headers={"a": "b"}, content_type="x/y", event_type="e"),
            mcp_envelope(1, is_error=False, content=BLOCKS, structured_content=None, _meta={"a": 1}),
        )
    ]
    + [
        {},
        {"source": "local"},
        {"source": "elsewhere"},
        {"source": "mcp", "isError": False, "content": [{"type": "x"}]},
    ],
)
def test_metas_are_as_the_library_describes_them(meta: Any) -> None:
    assert named("ResponseMeta").is_valid(meta) == jsonschema_rs.validator_for(RESPONSE_META_SCHEMA).is_valid(meta)


@pytest.mark.parametrize("block", [*BLOCKS, {}, {"type": "text"}, {"type": "resource", "resource": {}}])
def test_content_blocks_are_as_the_library_describes_them(block: Any) -> None:
    described = jsonschema_rs.validator_for(MCP_CONTENT_BLOCK_SCHEMA)
    assert named("MCPContentBlock").is_valid(block) == described.is_valid(block) == (block in BLOCKS)


def test_every_part_has_a_name_that_can_be_a_type() -> None:
    assert sorted(NAMED_SCHEMAS) == [
        "HTTPResponseMeta",
        "LocalResponseMeta",
        "MCPAnnotations",
        "MCPAudioBlock",
        "MCPContentBlock",
        "MCPImageBlock",
        "MCPResourceBlock",
        "MCPResourceLinkBlock",
        "MCPResponseMeta",
        "MCPTextBlock",
        "Problem",
        "ResponseMeta",
    ]
