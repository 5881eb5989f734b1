"""Content blocks: known ones stay as they are, unknown ones become text, nothing else happens."""

from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import ConversionError
from opwire.model import envelope
from opwire.model.envelope import MCP_CONTENT_BLOCK_SCHEMA, content_blocks
from opwire.schema import Schema

KNOWN: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": "hello"},
    "image": {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    "audio": {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    "resource": {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "hi"}},
    "resource-blob": {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "aGk="}},
    "resource_link": {"type": "resource_link", "uri": "file:///a", "name": "a"},
    "resource_link-full": {
        "type": "resource_link",
        "uri": "file:///a",
        "name": "a",
        "description": "the file",
        "mimeType": "text/plain",
    },
}
ANNOTATIONS = {"audience": ["user", "assistant"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"}
MALFORMED: dict[str, dict[str, Any]] = {
    "no text": {"type": "text"},
    "text is a number": {"type": "text", "text": 5},
    "no mime type": {"type": "image", "data": "aGk="},
    "no resource": {"type": "resource"},
    "resource without uri": {"type": "resource", "resource": {"text": "hi"}},
    "link without name": {"type": "resource_link", "uri": "file:///a"},
    "audience of bots": {"type": "text", "text": "hi", "annotations": {"audience": ["bot"]}},
    "priority is text": {"type": "text", "text": "hi", "annotations": {"priority": "high"}},
}
UNKNOWN: dict[str, dict[str, Any]] = {
    "newer kind": {"type": "video", "data": "aGk=", "frames": [1, 2]},
    "no type": {"text": "hello"},
    "type is no string": {"type": ["text"], "text": "hello"},
    "type is null": {"type": None},
    "empty": {},
}


@pytest.mark.parametrize("block", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("annotations", [None, {}, ANNOTATIONS], ids=["bare", "empty annotations", "annotations"])
def test_a_block_of_a_known_kind_stays_unchanged(block: dict[str, Any], annotations: Any) -> None:
    given = block if annotations is None else {**block, "annotations": annotations}
    assert content_blocks([given]) == [given]
    assert Schema(MCP_CONTENT_BLOCK_SCHEMA).problems(given) == []


@pytest.mark.parametrize("block", KNOWN.values(), ids=KNOWN)
def test_fields_of_a_newer_protocol_are_kept(block: dict[str, Any]) -> None:
    newer = {**block, "_meta": {"ui": True}, "icons": [], "annotations": {**ANNOTATIONS, "tone": "calm"}}
    assert content_blocks([newer]) == [newer]
    assert Schema(MCP_CONTENT_BLOCK_SCHEMA).is_valid(newer)


@pytest.mark.parametrize("block", KNOWN.values(), ids=KNOWN)
def test_optional_fields_that_are_null_are_left_out(block: dict[str, Any]) -> None:
    nulls = {"annotations": {**ANNOTATIONS, "lastModified": None}, "_meta": None, "title": None}
    given = {**block, **nulls}
    if "resource" in block:
        given["resource"] = {**block["resource"], "mimeType": None}
    (made,) = content_blocks([given])
    kept = {key: value for key, value in ANNOTATIONS.items() if key != "lastModified"}
    expected = {**block, "annotations": kept}
    if "resource" in block:
        expected["resource"] = {key: value for key, value in block["resource"].items() if key != "mimeType"}
    assert made == expected


@pytest.mark.parametrize("block", [*UNKNOWN.values(), *MALFORMED.values()], ids=[*UNKNOWN, *MALFORMED])
def test_a_block_that_is_not_known_becomes_a_text_block_holding_its_json(block: dict[str, Any]) -> None:
    (made,) = content_blocks([block])
    assert made.keys() == {"type", "text"}
    assert made["type"] == "text"
    assert msgspec.json.decode(made["text"]) == block
    assert Schema(MCP_CONTENT_BLOCK_SCHEMA).is_valid(made)
    assert not Schema(MCP_CONTENT_BLOCK_SCHEMA).is_valid(block)


def test_the_text_of_an_unknown_block_is_compact_json_as_javascript_writes_it() -> None:
    assert content_blocks([{"type": "video", "n": [1, None], "s": "é"}]) == [
        {"type": "text", "text": '{"type":"video","n":[1,null],"s":"é"}'}
    ]


def test_lone_surrogates_of_an_unknown_block_are_replaced() -> None:
    assert content_blocks([{"type": "video", "s": "\ud800"}]) == [{"type": "text", "text": '{"type":"video","s":"�"}'}]


def test_blocks_are_copied_so_that_the_envelope_owns_them() -> None:
    block: dict[str, Any] = {"type": "text", "text": "before"}
    (made,) = content_blocks([block])
    block["text"] = "after"
    assert made == {"type": "text", "text": "before"}


def test_any_mapping_and_any_iterable_will_do_and_order_is_kept() -> None:
    blocks = (MappingProxyType({"type": "text", "text": str(n)}) for n in range(3))
    made = content_blocks(blocks)
    assert made == [{"type": "text", "text": str(n)} for n in range(3)]
    assert {type(each) for each in made} == {dict}


@pytest.mark.parametrize("block", ["text", 5, None, [("type", "text")], object()])
def test_what_is_not_an_object_is_refused(block: Any) -> None:
    with pytest.raises(ConversionError, match=f"not {type(block).__name__}"):
        content_blocks([{"type": "text", "text": "fine"}, block])


def test_an_unknown_block_without_json_form_is_refused() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    for value in (object(), deep):
        with pytest.raises(ConversionError, match="no JSON form"):
            content_blocks([{"type": "video", "value": value}])


def test_the_schema_has_a_branch_for_each_typed_block_with_the_same_fields() -> None:
    """Text, image, audio, resource and resource link blocks, with annotations, are opwire's own types."""
    typed = (
        envelope.TextBlock,
        envelope.ImageBlock,
        envelope.AudioBlock,
        envelope.ResourceBlock,
        envelope.ResourceLinkBlock,
    )
    branches = {branch["properties"]["type"]["const"]: branch for branch in MCP_CONTENT_BLOCK_SCHEMA["oneOf"]}
    for block in typed:
        (kind,) = get_args(get_type_hints(block)["type"])
        branch = branches.pop(kind)
        assert branch["properties"].keys() == block.__annotations__.keys()
        assert set(branch["required"]) == block.__required_keys__
    assert branches == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
field_names = st.sampled_from(["type", "text", "data", "mimeType", "resource", "uri", "name", "annotations", "x"])
kinds = st.sampled_from(["text", "image", "audio", "resource", "resource_link", "video"])


@given(st.dictionaries(field_names, json_values, max_size=5), kinds)
def test_any_object_becomes_a_valid_block_and_valid_ones_are_unchanged(fields: dict[str, Any], kind: str) -> None:
    block = {**fields, "type": kind}
    (made,) = content_blocks([block])
    schema = Schema(MCP_CONTENT_BLOCK_SCHEMA)
    assert schema.is_valid(made)
    assert (made == block) is schema.is_valid(block)
