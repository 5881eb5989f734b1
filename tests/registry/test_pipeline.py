"""From what a handler returned to the envelope: detect, wrap, normalise, validate."""

import asyncio
import copy
import inspect
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import (
    CallError,
    ConversionError,
    ErrorCode,
    HTTPResponseMeta,
    Item,
    LocalResponseMeta,
    MCPResponseMeta,
    OperationRegistry,
    OperationSpec,
    ResponseEnvelope,
    Schema,
    decode_envelope,
    encode_envelope,
    http_envelope,
    local_envelope,
    mcp_envelope,
)
from opwire.model.context import Context
from opwire.model.operation import NORMALIZE_MODES, NormalizeMode, Operation, ShapedResult
from opwire.registry.pipeline import ResultPipeline
from opwire.typed.plain import survey as survey_of

PROFILE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "plan": {"type": "string", "default": "free"},
        "age": {"type": "integer"},
    },
    "required": ["name", "plan"],
}
TEXT = {"type": "text", "text": "hello"}


def pipeline(schema: Any = True, mode: NormalizeMode = "fit", *, strip: bool = True) -> ResultPipeline:
    output_schema = schema if isinstance(schema, Schema) else Schema(schema)
    spec = OperationSpec(namespace="user", name="get", output_schema=output_schema)
    return ResultPipeline(spec, normalize=mode, strip=strip)


def data_of(result: Any, schema: Any = True, mode: NormalizeMode = "fit", *, strip: bool = True) -> Any:
    return pipeline(schema, mode, strip=strip).envelope(result).data


# --- cursors ----------------------------------------------------------------------------------------------------------


def test_an_item_is_the_envelope_of_its_data_with_the_cursor() -> None:
    envelope = pipeline(PROFILE).envelope(Item({"name": "Ann", "more": 1}, cursor="7-0"))
    assert (envelope.data, envelope.cursor) == ({"name": "Ann", "plan": "free"}, "7-0")
    assert envelope.meta == LocalResponseMeta("user.get", envelope.meta.timestamp, cursor="7-0")  # pyright: ignore
    assert decode_envelope(encode_envelope(envelope)) == envelope
    over_http = http_envelope(1, status_code=200, headers={}, content_type="text/event-stream", event_type="x")
    meta = pipeline().envelope(Item(over_http, cursor="8")).meta
    assert isinstance(meta, HTTPResponseMeta)
    assert (meta.last_event_id, meta.event_type) == ("8", "x")
    with pytest.raises(CallError, match="the result of an MCP tool has no cursor"):
        pipeline().envelope(Item(mcp_envelope([], is_error=False, content=[]), cursor="9"))
    assert mcp_envelope([], is_error=False, content=[]).cursor is None


def test_a_peers_cursor_above_the_limit_is_not_readable() -> None:
    meta = LocalResponseMeta("a.b", 1, cursor="x" * 4097)
    with pytest.raises(ConversionError, match="4096"):
        decode_envelope(encode_envelope(ResponseEnvelope(1, meta)))


# --- detect and wrap --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result", [1, "text", 1.5, True, [1], {"a": 1}, {"data": 1}, {"data": 1, "meta": {}}], ids=repr
)
def test_a_raw_result_is_wrapped_in_a_local_envelope_of_its_operation(result: Any) -> None:
    before = time.time_ns() // 1_000_000
    envelope = pipeline().envelope(result)
    assert envelope.data is result
    assert isinstance(envelope.meta, LocalResponseMeta)
    assert envelope.meta.operation_id == "user.get"
    assert before <= envelope.meta.timestamp <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("schema", [True, {"type": "null"}])
def test_nothing_is_wrapped_too(schema: Any) -> None:
    """A handler that returns nothing gives an envelope whose data is null."""
    envelope = pipeline(schema).envelope(None)
    assert envelope.data is None
    assert isinstance(envelope.meta, LocalResponseMeta)


def test_an_envelope_passes_through_as_the_very_same_object() -> None:
    for envelope in (
        local_envelope({"name": "Ada", "plan": "pro"}, "other.operation"),
        http_envelope({"name": "Ada", "plan": "pro"}, status_code=201, headers={}, content_type="application/json"),
        mcp_envelope([TEXT], is_error=False, content=[TEXT]),
    ):
        assert pipeline(PROFILE).envelope(envelope) is envelope


def test_the_source_and_the_operation_id_of_a_handlers_own_envelope_are_not_questioned() -> None:
    meta = pipeline().envelope(local_envelope(1, "some.other")).meta
    assert isinstance(meta, LocalResponseMeta)
    assert meta.operation_id == "some.other"


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType])
def test_a_mapping_in_wire_form_becomes_the_envelope_that_it_is(kind: Any) -> None:
    meta = {"source": "http", "statusCode": 200, "headers": {"etag": "x"}, "contentType": "text/plain"}
    envelope = pipeline().envelope(kind({"data": {"a": 1}, "meta": meta}))
    assert envelope == ResponseEnvelope({"a": 1}, HTTPResponseMeta(200, {"etag": "x"}, "text/plain"))


@pytest.mark.parametrize(
    "meta",
    [
        {"source": "local"},
        {"source": "http", "statusCode": "200", "headers": {}, "contentType": ""},
        {"source": "mcp", "isError": False},
        {"source": "mcp", "isError": False, "content": [1]},
        {"source": "local", "operationId": "a.b", "timestamp": 1, "encoding": "base64"},
    ],
    ids=repr,
)
def test_a_mapping_that_only_looks_like_an_envelope_is_data_and_a_warning_says_so(
    meta: Any, caplog: pytest.LogCaptureFixture
) -> None:
    result = {"data": 1, "meta": meta}
    envelope = pipeline().envelope(result)
    assert envelope.data is result
    assert envelope.meta.source == "local"
    assert "user.get: a result that only looks like an envelope is taken as data" in caplog.text


# --- plain data -------------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Data:
    when: date
    colour: Colour


class Thing(msgspec.Struct):
    size: int


class Model(pydantic.BaseModel):
    id: UUID


@attrs.define
class Attr:
    price: Decimal


@pytest.mark.parametrize(
    ("result", "plain"),
    [
        (Data(date(2026, 5, 1), Colour.RED), {"when": "2026-05-01", "colour": "red"}),
        (Thing(3), {"size": 3}),
        (Model(id=UUID(int=1)), {"id": "00000000-0000-0000-0000-000000000001"}),
        (Attr(Decimal("1.10")), {"price": "1.10"}),
        (Pair(1, 2), [1, 2]),
        (datetime(2026, 5, 1, tzinfo=UTC), "2026-05-01T00:00:00Z"),
        ({1}, [1]),
        ((1, (2, 3)), [1, [2, 3]]),
        ({"nested": [Thing(3), Colour.RED]}, {"nested": [{"size": 3}, "red"]}),
        ({1: "a"}, {"1": "a"}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("mode", NORMALIZE_MODES)
def test_instances_become_plain_data_in_every_mode(result: Any, plain: Any, mode: NormalizeMode) -> None:
    """Instances of classes become plain JSON data, once, in the pipeline."""
    for schema in (True, {"type": ["object", "array", "string"]}):
        for_both = pipeline(schema, mode)
        for envelope in (for_both.envelope(result), for_both.envelope(result)):  # the class is known to the second
            assert envelope.data == plain
            assert type(envelope.data) is type(plain)
            assert isinstance(envelope.meta, LocalResponseMeta)
    wrapped = http_envelope(result, status_code=200, headers={}, content_type="")
    assert pipeline(True, mode).envelope(wrapped) == ResponseEnvelope(plain, wrapped.meta)


def test_instances_are_normalised_after_they_have_become_plain() -> None:
    @dataclass
    class User:
        name: str
        internal: int = 1

    for_all = pipeline(PROFILE)
    for name in ("Ada", "Bob", "Eve"):
        assert for_all.envelope(User(name)).data == {"name": name, "plan": "free"}


def test_a_mapping_of_a_class_of_its_own_is_an_envelope_whenever_it_looks_like_one() -> None:
    class Found(dict[str, Any]):
        pass

    for_all, envelope = pipeline(), local_envelope(5, "a.b")
    assert for_all.envelope(Found(data=5)).data == {"data": 5}
    assert for_all.envelope(Found(msgspec.json.decode(encode_envelope(envelope)))) == envelope


@pytest.mark.parametrize(
    "binary", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")], ids=lambda each: type(each).__name__
)
def test_a_binary_result_is_bytes_under_any_schema(binary: Any, caplog: pytest.LogCaptureFixture) -> None:
    for schema in (True, {"type": "string"}):
        data = data_of(binary, schema)
        assert (type(data), data) == (bytes, b"\x00\xff")
    assert caplog.text == ""


def test_bytes_inside_a_structure_become_base64() -> None:
    assert data_of({"icon": b"\x00\xff"}) == {"icon": "AP8="}


def test_a_result_without_a_json_form_is_an_execution_error_that_names_its_type() -> None:
    class Connection:
        pass

    for result in (Connection(), [Connection()], {"a": {"b": Connection()}}):
        with pytest.raises(
            CallError, match=r"user\.get: .*objects of type .*Connection.* cannot be sent as JSON"
        ) as caught:
            pipeline().envelope(result)
        assert caught.value.code is ErrorCode.EXECUTION_ERROR


def test_a_result_that_refers_to_itself_is_an_execution_error() -> None:
    knot: dict[str, Any] = {}
    knot["self"] = [knot]
    for mode in NORMALIZE_MODES:
        with pytest.raises(CallError, match=r"EXECUTION_ERROR: user\.get: the value refers to itself"):
            data_of(knot, PROFILE, mode)


def test_a_coroutine_that_is_never_awaited_is_closed_and_an_execution_error() -> None:
    async def forgotten() -> None: ...

    coroutine = forgotten()
    with pytest.raises(CallError, match="objects of type 'coroutine' cannot be sent as JSON"):
        pipeline().envelope(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_a_result_that_is_nested_too_deeply_passes_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    for mode in NORMALIZE_MODES:
        caplog.clear()
        assert data_of(deep, {"type": "object"}, mode) is deep
        assert "nested deeper than 200: it is neither normalised nor validated" in caplog.text


# --- normalise --------------------------------------------------------------------------------------------------------


def test_fit_fills_defaults_strips_the_undeclared_and_converts_without_loss(caplog: pytest.LogCaptureFixture) -> None:
    assert data_of({"name": "Ada", "age": 36.0, "secret": 1}, PROFILE) == {"name": "Ada", "age": 36, "plan": "free"}
    assert type(data_of({"name": "Ada", "plan": "", "age": 36.0}, PROFILE)["age"]) is int
    assert data_of({"name": "Ada", "plan": "pro", "secret": 1}, PROFILE) == {"name": "Ada", "plan": "pro"}
    assert "/secret" in caplog.text
    assert "/plan" in caplog.text
    assert "is not of type" not in caplog.text, "what has been mended is not reported as a problem"


def test_a_default_that_is_filled_into_a_conforming_result_is_not_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "opwire.registry")
    optional = {**PROFILE, "required": ["name"]}
    assert data_of({"name": "Ada", "secret": 1}, optional) == {"name": "Ada", "plan": "free"}
    assert data_of({"name": "Ada"}, PROFILE) == {"name": "Ada", "plan": "free"}
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "user.get: filled /plan"),
        ("WARNING", "user.get: stripped /secret"),
        ("WARNING", "user.get: filled /plan"),
    ]


def test_fit_leaves_what_it_cannot_mend_and_the_warning_says_what_still_does_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Results are normalised first, and what then still does not fit is reported. A result that does not fit its
    schema is logged, never raised. Warnings name what was changed and what still does not fit."""
    assert data_of({"age": "old", "extra": 1}, PROFILE) == {"age": "old", "plan": "free"}
    messages = [record.getMessage() for record in caplog.records]
    changed, wrong = messages
    assert changed.startswith("user.get: ")
    assert "/extra" in changed
    assert "/plan" in changed
    assert '/age: the value is not of type "integer"' in wrong
    assert '"name" is a required property' in wrong
    assert "/extra" not in wrong
    assert "old" not in caplog.text


def test_whether_a_value_is_cast_is_decided_by_the_check_of_cast_and_not_by_json_schema() -> None:
    schema = {"type": "string", "maxLength": 1}  # JavaScript counts a character outside of the first plane as two
    assert data_of("\N{GRINNING FACE}", schema, "check") == "\N{GRINNING FACE}"
    assert data_of("\N{GRINNING FACE}", schema, "cast") == ""


def test_cast_replaces_what_does_not_fit_as_typebox_does(caplog: pytest.LogCaptureFixture) -> None:
    assert data_of({"age": "36", "extra": 1}, PROFILE, "cast") == {"name": "", "plan": "free", "age": 0}
    assert 'cast /age: the value is not of type "integer"' in caplog.text


def test_the_cast_value_is_validated_as_in_the_seeds(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "minProperties": 2}
    assert data_of({"a": "x"}, schema, "cast") == {"a": 0}
    cast, left = caplog.messages
    assert 'cast /a: the value is not of type "integer"' in cast
    assert "the data: the value has less than 2 properties" in left


def test_a_cast_that_fails_gives_the_original_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "string", "pattern": "^x$"}
    result = {"not": "a string"}
    assert data_of(result, schema, "cast") is result
    assert "the data is kept as it is, because it cannot be cast" in caplog.text


def test_check_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    result = {"name": 1, "extra": 2}
    assert data_of(result, PROFILE, "check") is result
    assert '/name: the value is not of type "string"' in caplog.text
    assert 'the data: "plan" is a required property' in caplog.text


def test_off_does_nothing_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    result = {"name": 1, "extra": 2}
    assert data_of(result, PROFILE, "off") is result
    assert data_of(1, PROFILE, "off") == 1
    assert caplog.text == ""


@pytest.mark.parametrize("schema", [True, {}], ids=repr)
@pytest.mark.parametrize("mode", NORMALIZE_MODES)
def test_without_a_schema_everything_is_left_alone(
    schema: Any, mode: NormalizeMode, caplog: pytest.LogCaptureFixture
) -> None:
    """A result of an operation without an output schema is left alone."""
    result = {"anything": [1, None, {"x": "y"}]}
    assert data_of(result, schema, mode) is result
    assert caplog.text == ""


def test_without_strip_undeclared_properties_stay_unless_the_schema_says_false(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = {"name": "Ada", "plan": "pro", "extra": 1}
    assert data_of(result, PROFILE, strip=False) is result
    assert caplog.text == ""
    closed = {**PROFILE, "additionalProperties": False}
    assert data_of(result, closed, strip=False) == {"name": "Ada", "plan": "pro"}
    assert data_of(result, {**PROFILE, "additionalProperties": True}) is result


def schema_of(registry: OperationRegistry, **options: Any) -> Any:
    """How a registry treats a result with an undeclared property and without a required one."""
    result = {"name": "Ada", "extra": 1}
    spec = OperationSpec(namespace="user", name="get", output_schema=Schema(PROFILE), **options)
    registry.register(spec, lambda input, context: result, inline=True)
    return registry.execute("user.get")


FITTED = {"name": "Ada", "plan": "free"}
KEPT = {"name": "Ada", "extra": 1}


@pytest.mark.parametrize(
    ("registry_options", "options", "expected"),
    [
        ({}, {}, FITTED),
        ({"normalize": "off"}, {}, KEPT),
        ({"normalize": "check"}, {}, KEPT),
        ({"normalize": "off"}, {"normalize": "fit"}, FITTED),
        ({}, {"normalize": "off"}, KEPT),
        ({"normalize": "cast"}, {}, FITTED),
        ({"strip": False}, {}, {**KEPT, "plan": "free"}),
        ({"strip": False}, {"strip": True}, FITTED),
        ({}, {"strip": False}, {**KEPT, "plan": "free"}),
    ],
    ids=repr,
)
async def test_the_operation_decides_before_the_registry(
    registry_options: dict[str, Any], options: dict[str, Any], expected: Any
) -> None:
    """An operation's mode and strip switch count before those of the registry. The default mode is `fit`, with
    strip on."""
    envelope = await schema_of(OperationRegistry(**registry_options), **options)
    assert envelope.data == expected


# --- which data -------------------------------------------------------------------------------------------------------


def test_the_data_of_an_http_envelope_is_normalised_and_its_meta_kept() -> None:
    """The output schema describes the data of an envelope, not the envelope."""
    envelope = http_envelope({"name": "Ada", "x": 1}, status_code=201, headers={"ETag": "e"}, content_type="a/json")
    result = pipeline(PROFILE).envelope(envelope)
    assert result.data == FITTED
    assert result.meta is envelope.meta
    assert envelope.data == {"name": "Ada", "x": 1}


@pytest.mark.parametrize("mode", ["fit", "cast"])
def test_the_structured_output_of_an_mcp_result_is_normalised(mode: NormalizeMode) -> None:
    structured = {"name": "Ada", "x": 1}
    envelope = mcp_envelope(structured, is_error=False, content=[TEXT], structured_content=structured)
    result = pipeline(PROFILE, mode).envelope(envelope)
    assert result.data == FITTED
    assert isinstance(result.meta, MCPResponseMeta)
    assert result.meta.structured_content == structured, "the meta holds what the tool said"


@pytest.mark.parametrize("mode", NORMALIZE_MODES)
def test_an_mcp_error_is_left_alone(mode: NormalizeMode, caplog: pytest.LogCaptureFixture) -> None:
    structured = {"reason": "no such user"}
    envelope = mcp_envelope(structured, is_error=True, content=[TEXT], structured_content=structured)
    assert pipeline(PROFILE, mode).envelope(envelope) is envelope
    assert caplog.text == ""


@pytest.mark.parametrize("mode", NORMALIZE_MODES)
def test_content_blocks_are_left_alone(mode: NormalizeMode, caplog: pytest.LogCaptureFixture) -> None:
    wire = {"data": [TEXT], "meta": {"source": "mcp", "isError": False, "content": [TEXT]}}
    for result in (mcp_envelope([TEXT], is_error=False, content=[TEXT]), wire):
        assert pipeline(PROFILE, mode).envelope(result).data == [TEXT]
    assert caplog.text == ""


def test_data_that_was_read_from_an_mcp_text_is_normalised() -> None:
    envelope = mcp_envelope({"name": "Ada", "x": 1}, is_error=False, content=[TEXT])
    assert pipeline(PROFILE).envelope(envelope).data == FITTED


async def test_each_item_of_a_subscription_takes_the_way_that_a_result_takes() -> None:
    """Each item of a subscription is an envelope, with a timestamp of its own. `execute` and each item of
    `subscribe` go through the same pipeline."""
    results = [
        {"name": "Ada", "x": 1},
        {"name": "Bob", "plan": "pro"},
        None,
        http_envelope({"name": "Eve"}, status_code=200, headers={}, content_type="a/json"),
    ]
    registry = OperationRegistry()

    @registry.query("user.get", output_schema=PROFILE)
    async def get(index: int) -> Any:
        return results[index]

    @registry.subscription("user.watch", output_schema=PROFILE)
    async def watch() -> AsyncIterator[Any]:
        for each in results:
            yield each

    executed = [await registry.execute("user.get", {"index": index}) for index in range(4)]
    streamed = [envelope async for envelope in registry.subscribe("user.watch")]
    assert [each.data for each in executed] == [each.data for each in streamed]
    assert [each.meta.source for each in streamed] == ["local", "local", "local", "http"]


@pytest.mark.parametrize("mode", ["fit", "cast", "check"])
@pytest.mark.parametrize(
    "schema",
    [{"type": "objekt"}, {"$ref": "https://example.com/x.json"}, {"$ref": "#/$defs/absent"}, {"pattern": "("}],
    ids=repr,
)
def test_a_foreign_schema_that_does_not_compile_is_reported_once_and_counts_as_none(
    mode: NormalizeMode, schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ready = pipeline(Schema(schema), mode)
    assert caplog.text == "", "it is not compiled before it is used"
    for result in ({"a": 1}, [1], "text", 1, None):
        assert ready.envelope(result).data is result
    assert caplog.text.count("user.get: the output schema is ignored") == 1


# --- what holds in every mode -----------------------------------------------------------------------------------------


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcx"), inner, max_size=4),
    max_leaves=12,
)
SCHEMAS = (
    {"type": "object", "properties": {"a": {"type": "integer", "default": 1}, "b": {"type": "string"}}},
    {"type": "array", "items": {"type": "object", "properties": {"a": {"default": []}}}},
    {"anyOf": [{"type": "integer"}, {"properties": {"a": {"type": "array"}}, "required": ["a"]}]},
    {"type": "object", "properties": {"c": {"$ref": "#"}}, "additionalProperties": False},
    False,
)


@given(plain, st.sampled_from(SCHEMAS), st.sampled_from(NORMALIZE_MODES), st.booleans())
def test_no_mode_raises_or_changes_the_handlers_object_and_conforming_data_is_the_same_object(
    value: Any, schema: Any, mode: NormalizeMode, strip: bool
) -> None:
    before = copy.deepcopy(value)
    ready = pipeline(schema, mode, strip=strip)
    data = ready.envelope(value).data
    assert repr(value) == repr(before)
    if repr(data) == repr(value):
        assert data is value
    if mode in ("fit", "cast"):
        again = ready.envelope(data).data
        assert again is data, "what has been normalised is not changed again"


@pytest.mark.parametrize("mode", NORMALIZE_MODES)
def test_a_result_that_conforms_is_the_very_same_object_and_nothing_is_said(
    mode: NormalizeMode, caplog: pytest.LogCaptureFixture
) -> None:
    for result in ({"name": "Ada", "plan": "pro"}, {"name": "Ada", "plan": "pro", "age": 36}):
        assert data_of(result, PROFILE, mode) is result
    assert caplog.text == ""


def test_a_filled_default_is_not_shared_between_results() -> None:
    ready = pipeline({"type": "object", "properties": {"tags": {"type": "array", "default": []}}})
    first, second = ready.envelope({}).data, ready.envelope({}).data
    first["tags"].append("x")
    assert second == {"tags": []}
    assert ready.envelope({}).data == {"tags": []}


@pytest.mark.parametrize("mode", ["fit", "cast", "check"])
def test_warnings_are_capped_in_number_and_in_size(mode: NormalizeMode, caplog: pytest.LogCaptureFixture) -> None:
    schema = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"type": "integer"}}},
        "additionalProperties": False,
    }
    result = {"items": ["x"] * 1000, **{f"{number}{'k' * 5000}": 1 for number in range(100)}}
    data_of(result, schema, mode)
    assert caplog.records
    for record in caplog.records:
        message = record.getMessage()
        assert len(message) < 3000
        assert message.count("; ") <= 10
    assert any(record.getMessage().endswith(" more") for record in caplog.records)


@pytest.mark.parametrize(("count", "ending"), [(1, ""), (10, ""), (11, "; and 1 more"), (15, "; and 5 more")])
def test_a_warning_lists_ten_problems_and_counts_the_rest(
    count: int, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    data_of(["x"] * count, {"type": "array", "items": {"type": "integer"}}, "check")
    listed = "; ".join(f'/{index}: the value is not of type "integer"' for index in range(min(count, 10)))
    assert [record.getMessage() for record in caplog.records] == [f"user.get: {listed}{ending}"]


def test_a_warning_about_the_whole_result_names_it_as_the_data(caplog: pytest.LogCaptureFixture) -> None:
    assert data_of(5.0, {"type": "integer", "maximum": 3}) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "user.get: converted the data",
        "user.get: the data: the value is greater than the maximum of 3",
    ]


def test_lone_surrogates_are_replaced_with_a_warning_where_the_schema_looks_at_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}
    result = {"name": "a\ud800"}
    assert data_of(result, schema) == {"name": "a\ufffd"}
    assert result == {"name": "a\ud800"}
    assert "lone surrogates are replaced" in caplog.text


# --- results that have a schema of their own ------------------------------------------------------------------------


def test_a_result_with_a_schema_of_its_own_is_normalised_to_that_one(caplog: pytest.LogCaptureFixture) -> None:
    created = Schema({"type": "object", "properties": {"id": {"type": "integer"}, "new": {"default": True}}})
    way = pipeline(PROFILE)
    assert way.envelope(ShapedResult({"id": 1.0, "x": 2}, created)).data == {"id": 1, "new": True}
    assert way.envelope(ShapedResult({"id": 2}, created)).data == {"id": 2, "new": True}
    assert way.envelope({"name": "Ada"}).data == {"name": "Ada", "plan": "free"}
    assert way.envelope(ShapedResult({"name": "Ada"}, way.schema)).data == {"name": "Ada", "plan": "free"}


def test_a_result_with_an_empty_schema_is_left_alone() -> None:
    envelope = http_envelope({"x": 1}, status_code=202, headers={}, content_type="application/json")
    assert pipeline(PROFILE).envelope(ShapedResult(envelope, Schema(True))) is envelope


def test_a_result_keeps_the_mode_of_its_operation_under_any_schema() -> None:
    stricter = Schema({"type": "object", "properties": {"id": {"default": 1}}})
    assert pipeline(PROFILE, "check").envelope(ShapedResult({"x": 1}, stricter)).data == {"x": 1}


@pytest.mark.parametrize("mode", NORMALIZE_MODES)
def test_a_deferred_schema_is_not_asked_before_the_first_result(mode: NormalizeMode) -> None:
    schema = Schema.deferred(lambda: {"type": "object", "properties": {"a": {"default": 1}}})
    spec = OperationSpec(namespace="local", name="test", output_schema=schema)
    deferred = ResultPipeline(spec, normalize=mode, strip=True)
    assert schema.is_deferred
    expected = data_of({"b": 2}, schema.json, mode)
    assert deferred.envelope({"b": 2}).data == expected


@pytest.mark.parametrize("mode", NORMALIZE_MODES)
@pytest.mark.parametrize("result", [7, "x", None, {"a": [1]}])
def test_a_deferred_schema_may_turn_out_to_say_nothing(mode: NormalizeMode, result: Any) -> None:
    spec = OperationSpec(namespace="local", name="test", output_schema=Schema.deferred(lambda: True))
    assert ResultPipeline(spec, normalize=mode, strip=True).envelope(result).data == result


def test_data_that_is_said_to_be_plain_is_normalised_like_any_other() -> None:
    created = Schema({"type": "object", "properties": {"id": {"type": "integer"}}})
    for data in ({"id": 1.0, "x": 2}, {"id": 1}):
        envelope = http_envelope(data, status_code=201, headers={}, content_type="application/json")
        assert pipeline(PROFILE).envelope(ShapedResult(envelope, created, True)).data == {"id": 1}
    assert pipeline(PROFILE).envelope(ShapedResult(envelope, created, True)) is envelope
    assert pipeline(PROFILE).envelope(ShapedResult(envelope, Schema(True), True)) is envelope


# --- results of a source ----------------------------------------------------------------------------------------------

TAGGED = {
    "type": "array",
    "items": {
        "oneOf": [
            {"type": "object", "properties": {"tag": {"const": tag}}, "required": ["tag"]} for tag in ("a", "b", "c")
        ]
    },
}


class Source:
    """A registry with operations of a source, and the turns of the event loop that the work on a result leaves."""

    def __init__(self, schema: Any, results: list[Any]) -> None:
        self.registry = OperationRegistry()
        self._results = results
        self._turns = 0
        self._returned = 0
        output = Schema(schema)
        one = OperationSpec(namespace="source", name="one", output_schema=output)
        many = OperationSpec(namespace="source", name="many", type="subscription", output_schema=output)
        self.registry.register_all([Operation(one, self._one), Operation(many, self._many)])

    async def _one(self, input: Any, context: Context) -> Any:
        self._returned = self._turns
        return self._results[0]

    async def _many(self, input: Any, context: Context) -> AsyncIterator[Any]:
        for result in self._results:
            self._returned = self._turns
            yield result

    async def turns(self, result: Awaitable[Any]) -> int:
        """Return how often other tasks ran between the handler's result and its envelope."""

        async def count() -> None:
            while True:
                await asyncio.sleep(0)
                self._turns += 1

        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        await result
        counting.cancel()
        return self._turns - self._returned


def large(count: int = 3_000) -> list[Any]:
    return [{"tag": "abc"[i % 3], "undeclared": i} for i in range(count)]


async def test_the_event_loop_runs_on_while_a_large_result_of_a_source_is_repaired() -> None:
    source = Source(TAGGED, [large()])
    execute = source.registry.execute
    await execute("source.one")  # compiled
    assert await source.turns(execute("source.one")) > 0
    assert (await execute("source.one")).data[:2] == [{"tag": "a"}, {"tag": "b"}]


async def test_the_event_loop_runs_on_while_the_schema_of_a_source_is_compiled() -> None:
    source = Source({"oneOf": [{"required": [f"p{i}"]} for i in range(200)]}, [{"p7": 1}])
    assert await source.turns(source.registry.execute("source.one")) > 0


async def test_a_small_result_of_a_source_is_repaired_at_once() -> None:
    source = Source(TAGGED, [large(3)])
    await source.registry.execute("source.one")
    assert await source.turns(source.registry.execute("source.one")) == 0
    assert (await source.registry.execute("source.one")).data == [{"tag": "a"}, {"tag": "b"}, {"tag": "c"}]


async def test_the_event_loop_runs_on_while_a_large_item_of_a_source_is_repaired() -> None:
    source = Source(TAGGED, [large(1), large()])
    items = source.registry.subscribe("source.many")
    assert (await anext(items)).data == [{"tag": "a"}]
    assert await source.turns(anext(items)) > 0
    await items.aclose()


async def test_a_view_of_a_source_normalises_large_results_under_its_own_id() -> None:
    source = Source(TAGGED, [large()])
    view = source.registry.view(include=["source.one"], rename={"source": "seen"})
    [spec] = view.list()
    envelope = await view.execute(spec.id)
    assert envelope.data[2] == {"tag": "c"}
    assert isinstance(envelope.meta, LocalResponseMeta)
    assert envelope.meta.operation_id == spec.id


async def test_first_results_of_a_source_that_arrive_together_report_an_invalid_schema_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source({"type": "nothing"}, [large()])
    found = await asyncio.gather(*(source.registry.execute("source.one") for _ in range(5)))
    assert [each.data for each in found] == [large()] * 5
    assert len([each for each in caplog.records if "the output schema is ignored" in each.message]) == 1


async def test_a_large_result_of_a_source_that_is_not_json_fails_the_call() -> None:
    source = Source(TAGGED, [[*large(), object()]])
    with pytest.raises(CallError, match=r"source\.one: .*object"):
        await source.registry.execute("source.one")


def test_many_wrong_results_of_an_operation_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    checking, other = pipeline({"type": "string"}, "check"), pipeline({"type": "string"}, "check")
    for n in range(5_000):
        assert checking.envelope(n).data == n
    written = len(caplog.records)
    assert 100 < written < 2_000
    assert "the rest of this second is dropped" in caplog.text
    other.envelope(1)
    assert len(caplog.records) == written + 1, "others have a limit of their own"


async def test_a_large_result_of_a_source_that_is_not_validated_is_surveyed_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []

    def survey(value: Any) -> Any:
        threads.append(threading.current_thread().name)
        return survey_of(value)

    monkeypatch.setattr("opwire.registry.pipeline.survey", survey)
    unchecked, schema = pipeline(True, "off"), Schema(True)
    for size in (1_000, 2_000_000):
        result = ShapedResult(local_envelope([1], "a.b"), schema, False, size)
        is_slow = unchecked.is_slow(result)
        found = await unchecked.envelope_in_thread(result) if is_slow else unchecked.envelope(result)
        assert found.data == [1]
    assert threads[0] == threading.main_thread().name
    assert threads[1] != threads[0]
