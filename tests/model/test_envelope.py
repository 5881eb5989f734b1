"""Envelopes: their three kinds of meta, detection, factories, the wire form byte by byte, and the exported schemas."""

import base64
import json
import logging
import math
import time
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from pydantic import BaseModel

from opwire.errors import ConversionError
from opwire.model.envelope import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
    RESPONSE_ENVELOPE_SCHEMA,
    RESPONSE_META_SCHEMA,
    RESPONSE_SOURCES,
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResponseMeta,
    ResponseSource,
    decode_envelope,
    encode_envelope,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    read_envelope,
    unwrap,
)
from opwire.schema import Schema

META_SCHEMAS = {
    "local": LOCAL_RESPONSE_META_SCHEMA,
    "http": HTTP_RESPONSE_META_SCHEMA,
    "mcp": MCP_RESPONSE_META_SCHEMA,
}
LOCAL = '"meta":{"source":"local","operationId":"math.add","timestamp":1778907801234}}'
LOCAL_META = {"source": "local", "operationId": "math.add", "timestamp": 1778907801234}
HTTP_META = {"source": "http", "statusCode": 200, "headers": {}, "contentType": "application/json"}
MCP_META = {"source": "mcp", "isError": False, "content": []}

# What JSON.stringify of a peer in TypeScript gives for the envelopes of its own factories.
PEER_WRITES = {
    "local": '{"data":{"total":3},' + LOCAL,
    "local null": '{"data":null,' + LOCAL,
    "local array": '{"data":[1,2.5,"x",true,false,null,{}],' + LOCAL,
    "local text": '{"data":"é \\n \\" \\\\ 😀",' + LOCAL,
    "http": '{"data":[{"id":1}],"meta":{"source":"http","statusCode":200,'
    '"headers":{"content-type":"application/json; charset=utf-8","link":"<a>; rel=\\"next\\", <b>; rel=\\"last\\""},'
    '"contentType":"application/json; charset=utf-8"}}',
    "http empty": '{"data":"","meta":{"source":"http","statusCode":204,"headers":{},"contentType":""}}',
    "http event": '{"data":"tick","meta":{"source":"http","statusCode":200,"headers":{},'
    '"contentType":"text/event-stream","eventType":"message","lastEventId":"7"}}',
    "http cookies": '{"data":1,"meta":{"source":"http","statusCode":200,"headers":{},"contentType":"text/plain",'
    '"setCookie":["a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT","b=2"]}}',
    "mcp content": '{"data":[{"type":"text","text":"hi"}],"meta":{"source":"mcp","isError":false,'
    '"content":[{"type":"text","text":"hi"}]}}',
    "mcp error": '{"data":[{"type":"text","text":"no such city"}],"meta":{"source":"mcp","isError":true,'
    '"content":[{"type":"text","text":"no such city","annotations":{"audience":["user"],"priority":0.5}}]}}',
    "mcp structured": '{"data":{"temp":21.5},"meta":{"source":"mcp","isError":false,'
    '"content":[{"type":"image","data":"aGk=","mimeType":"image/png"},'
    '{"type":"resource","resource":{"uri":"file:///a","blob":"aGk="}},'
    '{"type":"resource_link","uri":"file:///a","name":"a"}],'
    '"structuredContent":{"temp":21.5},"_meta":{"progressToken":4}}}',
}


def local(data: Any) -> ResponseEnvelope[Any]:
    return ResponseEnvelope(data, LocalResponseMeta("math.add", 1778907801234))


def wire(data_json: str) -> bytes:
    """An envelope of a local operation around data that is JSON already."""
    return f'{{"data":{data_json},{LOCAL}'.encode()


@dataclass
class Sum:
    total: int


class Model(BaseModel):
    total: int


# --- shape ------------------------------------------------------------------------------------------------------------


def test_each_kind_of_meta_has_the_fields_of_the_specification() -> None:
    """An envelope is `data` and `meta`; `source` tells the kind of `meta`. The meta of a function's answer is the
    full operation id and the time of wrapping in epoch milliseconds."""
    fields = {kind: [each.encode_name for each in msgspec.structs.fields(kind)] for kind in get_args(ResponseMeta)}
    assert fields == {
        LocalResponseMeta: ["operationId", "timestamp", "encoding", "cursor"],
        HTTPResponseMeta: [
            "statusCode", "headers", "contentType", "eventType", "lastEventId", "setCookie", "encoding",
        ],
        MCPResponseMeta: ["isError", "content", "structuredContent", "_meta"],
    }  # fmt: skip
    assert [each.name for each in msgspec.structs.fields(ResponseEnvelope)] == ["data", "meta"]


def test_the_sources_are_a_closed_set_with_one_meta_class_and_one_schema_each() -> None:
    assert RESPONSE_SOURCES == ("local", "http", "mcp")
    assert get_args(ResponseSource) == RESPONSE_SOURCES
    assert tuple(kind.source for kind in get_args(ResponseMeta)) == RESPONSE_SOURCES
    assert [kind.__struct_config__.tag for kind in get_args(ResponseMeta)] == list(RESPONSE_SOURCES)
    assert [each["properties"]["source"] for each in RESPONSE_META_SCHEMA["oneOf"]] == [
        {"const": source} for source in RESPONSE_SOURCES
    ]


@pytest.mark.parametrize("field", ["data", "meta"])
def test_an_envelope_cannot_be_changed(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(local(1), field, 2)


# --- factories --------------------------------------------------------------------------------------------------------


def test_a_local_envelope_is_stamped_with_the_milliseconds_of_its_making() -> None:
    """Each source has a factory that builds its envelope, and needs no knowledge of the meta classes."""
    before = time.time_ns() // 1_000_000
    envelope = local_envelope({"total": 3}, "math.add")
    after = time.time_ns() // 1_000_000
    assert envelope.data == {"total": 3}
    assert isinstance(envelope.meta, LocalResponseMeta)
    assert envelope.meta.operation_id == "math.add"
    assert before <= envelope.meta.timestamp <= after
    assert type(envelope.meta.timestamp) is int


def test_an_http_envelope_has_status_headers_and_content_type() -> None:
    envelope = http_envelope(
        [1],
        status_code=201,
        headers={"X-Total": "9"},
        content_type="application/json",
        event_type="e",
        last_event_id="7",
    )
    meta = HTTPResponseMeta(201, {"x-total": "9"}, "application/json", event_type="e", last_event_id="7")
    assert envelope == ResponseEnvelope([1], meta)


def test_header_names_become_lower_case_and_their_values_are_joined_in_order() -> None:
    pairs = [("Link", "<a>"), ("VARY", "Accept"), ("link", "<b>"), ("LINK", "<c>")]
    envelope = http_envelope(None, status_code=200, headers=iter(pairs), content_type="")
    assert isinstance(envelope.meta, HTTPResponseMeta)
    assert envelope.meta.headers == {"link": "<a>, <b>, <c>", "vary": "Accept"}
    assert envelope.meta.set_cookie is None


def test_headers_may_be_a_mapping_with_names_that_differ_in_case_only() -> None:
    headers = MappingProxyType({"Accept": "a", "accept": "b"})
    envelope = http_envelope(None, status_code=200, headers=headers, content_type="")
    assert isinstance(envelope.meta, HTTPResponseMeta)
    assert envelope.meta.headers == {"accept": "a, b"}


def test_set_cookie_is_kept_apart_and_never_joined() -> None:
    pairs = [("Set-Cookie", "b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT"), ("X", "1"), ("SET-COOKIE", "c=3")]
    envelope = http_envelope(None, status_code=200, headers=pairs, content_type="", set_cookie=("a=1",))
    assert isinstance(envelope.meta, HTTPResponseMeta)
    assert envelope.meta.headers == {"x": "1"}
    assert envelope.meta.set_cookie == ["a=1", "b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "c=3"]


def test_an_mcp_error_is_an_envelope_with_all_of_its_content() -> None:
    """The meta of an MCP answer mirrors CallToolResult: error flag, content blocks, structured content, `_meta`.
    An MCP result with the error flag is an envelope like any other, its content readable."""
    block = {"type": "text", "text": "no such city"}
    extensions = MappingProxyType({"progressToken": 4})
    envelope = mcp_envelope([block], is_error=True, content=(block,), structured_content={"a": 1}, _meta=extensions)
    assert envelope.data == [block]
    assert isinstance(envelope.meta, MCPResponseMeta)
    assert envelope.meta.is_error is True
    assert envelope.meta.content == [block]
    assert envelope.meta.structured_content == {"a": 1}
    assert envelope.meta._meta == {"progressToken": 4}


def test_an_mcp_envelope_turns_unknown_blocks_into_text() -> None:
    envelope = mcp_envelope(None, is_error=False, content=[{"type": "video"}])
    assert isinstance(envelope.meta, MCPResponseMeta)
    assert envelope.meta.content == [{"type": "text", "text": '{"type":"video"}'}]


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, {"a": 1}, "text", 1.5])
def test_structured_content_may_be_any_json_value_and_is_distinguished_from_absence(value: Any) -> None:
    present = mcp_envelope(value, is_error=False, content=[], structured_content=value)
    absent = mcp_envelope(value, is_error=False, content=[])
    assert isinstance(present.meta, MCPResponseMeta)
    assert isinstance(absent.meta, MCPResponseMeta)
    assert present.meta.structured_content is value
    assert absent.meta.structured_content is UNSET
    for envelope in (present, absent):
        encoded = encode_envelope(envelope)
        assert (b'"structuredContent":' in encoded) is (envelope is present)
        assert decode_envelope(encoded) == envelope


# --- detection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        local(None),
        http_envelope(1, status_code=500, headers={}, content_type=""),
        mcp_envelope(1, is_error=True, content=[]),
        {"data": 1, "meta": {"source": "local"}},
        {"data": None, "meta": {"source": "http"}, "more": 1},
        {"meta": {"source": "mcp", "more": 1}, "data": []},
        MappingProxyType({"data": 1, "meta": MappingProxyType({"source": "local"})}),
        UserDict({"data": 1, "meta": UserDict({"source": "local"})}),
    ],
)
def test_an_instance_and_a_mapping_with_a_known_source_are_envelopes(value: Any) -> None:
    """An envelope is detected as an instance, or as a mapping with `data` and a `meta.source` of the closed set."""
    assert is_response_envelope(value) is True


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "data",
        b"data",
        ["data", "meta"],
        {},
        {"data": 1},
        {"meta": {"source": "local"}},
        {"data": 1, "meta": None},
        {"data": 1, "meta": "local"},
        {"data": 1, "meta": ["source", "local"]},
        {"data": 1, "meta": {}},
        {"data": 1, "meta": {"source": None}},
        {"data": 1, "meta": {"source": "Local"}},
        {"data": 1, "meta": {"source": "sse"}},
        {"data": 1, "meta": {"source": ["local"]}},
        {"data": 1, "meta": {"source": {}}},
        {"data": 1, "meta": {"source": 0}},
        {"data": 1, "meta": LocalResponseMeta("a.b", 1)},
        Sum(1),
        ResponseEnvelope,
        LocalResponseMeta("a.b", 1),
    ],
)
def test_near_misses_are_not_envelopes(value: Any) -> None:
    assert is_response_envelope(value) is False


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = {
    "1760000000000.25": 1760000000000.25,
    "1760000000000.0": 1760000000000,
    "200.0": 200,
    "2e2": 200,
    "200.5": 200.5,
    "-0.0": 0,
    "1e300": 1e300,
    "1" + "0" * 30: 10**30,
}


@pytest.mark.parametrize(("written", "number"), NUMBERS.items(), ids=NUMBERS)
@pytest.mark.parametrize(("meta", "key"), [(LOCAL_META, "timestamp"), (HTTP_META, "statusCode")])
def test_any_finite_number_is_read_on_the_wire_and_in_a_mapping(
    meta: dict[str, Any], key: str, written: str, number: float
) -> None:
    """`timestamp` and `statusCode` are JSON numbers: any finite one is read, integral ones as int, and what is
    not finite is refused."""
    document = json.dumps({"data": 1, "meta": {**meta, key: "here"}}).replace('"here"', written)
    for envelope in (decode_envelope(document), read_envelope(json.loads(document))):
        found = getattr(envelope.meta, "timestamp" if key == "timestamp" else "status_code")
        assert found == number
        assert type(found) is type(number)
        again = encode_envelope(envelope)
        assert decode_envelope(again) == envelope
        assert Schema(RESPONSE_ENVELOPE_SCHEMA).is_valid(json.loads(again))
    assert Schema(RESPONSE_ENVELOPE_SCHEMA).is_valid(json.loads(document))


@pytest.mark.parametrize("written", ["1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5000, "1e400", "-1e400", "NaN"])
@pytest.mark.parametrize(("meta", "key"), [(LOCAL_META, "timestamp"), (HTTP_META, "statusCode")])
def test_a_number_that_is_not_finite_is_refused(meta: dict[str, Any], key: str, written: str) -> None:
    document = json.dumps({"data": 1, "meta": {**meta, key: "here"}}).replace('"here"', written)
    with pytest.raises(ConversionError, match="not a readable envelope"):
        decode_envelope(document)
    value = float(written) if len(written) < 10 else int(Decimal(written)) if len(written) < 1000 else 10**5000
    with pytest.raises(ConversionError, match=f"`meta.{key}` is not a finite number"):
        read_envelope({"data": 1, "meta": {**meta, key: value}})
    if abs(value) < float("inf") and len(written) < 1000:
        assert not Schema(RESPONSE_ENVELOPE_SCHEMA).is_valid({"data": 1, "meta": {**meta, key: value}})


# --- reading ----------------------------------------------------------------------------------------------------------

LOOKALIKES = {
    "local without its fields": {"source": "local"},
    "timestamp is text": {**LOCAL_META, "timestamp": "now"},
    "timestamp is a date": {**LOCAL_META, "timestamp": "2026-05-16T06:03:21Z"},
    "id is a number": {**LOCAL_META, "operationId": 5},
    "status is text": {**HTTP_META, "statusCode": "200"},
    "status is true": {**HTTP_META, "statusCode": True},
    "headers are pairs": {**HTTP_META, "headers": [["a", "b"]]},
    "a header is a list": {**HTTP_META, "headers": {"a": ["b"]}},
    "cookies are one text": {**HTTP_META, "setCookie": "a=1"},
    "other encoding": {**HTTP_META, "encoding": "gzip"},
    "mcp without content": {"source": "mcp", "isError": False},
    "the flag is a number": {**MCP_META, "isError": 0},
    "content is one block": {**MCP_META, "content": {"type": "text", "text": "x"}},
    "a block is text": {**MCP_META, "content": ["x"]},
    "extensions are a list": {**MCP_META, "_meta": []},
}


@pytest.mark.parametrize("meta", LOOKALIKES.values(), ids=LOOKALIKES)
def test_a_mapping_that_only_looks_like_an_envelope_cannot_be_read(meta: dict[str, Any]) -> None:
    """What cannot be read as an envelope is a ConversionError, never another exception or a crash. A mapping that
    is detected but cannot be read as its meta is refused by the reader, so that it stays data."""
    value: dict[str, Any] = {"data": 1, "meta": meta}
    assert is_response_envelope({**value})
    with pytest.raises(ConversionError, match="not a readable envelope"):
        read_envelope(value)
    with pytest.raises(ConversionError, match="not a readable envelope"):
        decode_envelope(msgspec.json.encode(value))
    assert not Schema(RESPONSE_ENVELOPE_SCHEMA).is_valid(value)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"null",
        b"5",
        b"[]",
        b"{}",
        b'{"data":1}',
        b'{"data":1,"meta":{}}',
        b'{"data":1,"meta":{"source":"sse"}}',
        wire("1")[:-1],
        wire("1") + b"}",
        wire("NaN"),
        wire("Infinity"),
        wire('"\\ud800", "more": NaN'),
        wire('"\xff"').replace("ÿ".encode(), b"\xff"),
        wire("1").decode().encode("utf-16"),
        wire("[" * 100_000 + "]" * 100_000),
        wire("[" * 100_000 + '"\\ud800"' + "]" * 100_000),
    ],
    ids=lambda message: message[:40].decode("latin-1"),
)
def test_a_message_that_holds_no_envelope_is_a_conversion_error(message: bytes) -> None:
    with pytest.raises(ConversionError, match="not a readable envelope"):
        decode_envelope(message)


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_garbage_is_never_anything_but_a_conversion_error(message: bytes | str) -> None:
    with pytest.raises(ConversionError):
        decode_envelope(message)


@pytest.mark.parametrize("value", [None, 5, [], "text", object(), Sum(1), {"data": 1}, {"meta": {"source": object()}}])
def test_a_value_that_is_not_an_envelope_is_a_conversion_error(value: Any) -> None:
    with pytest.raises(ConversionError, match="not a readable envelope"):
        read_envelope(value)


@pytest.mark.parametrize("meta", [LOCAL_META, HTTP_META, MCP_META], ids=RESPONSE_SOURCES)
def test_a_missing_data_means_null(meta: dict[str, Any]) -> None:
    assert read_envelope({"meta": meta}) == read_envelope({"data": None, "meta": meta})
    assert decode_envelope(msgspec.json.encode({"meta": meta})).data is None


@pytest.mark.parametrize("meta", [LOCAL_META, HTTP_META, MCP_META], ids=RESPONSE_SOURCES)
def test_fields_that_are_not_known_are_ignored_in_envelope_and_meta(meta: dict[str, Any]) -> None:
    """Fields that this version does not know are tolerated when an envelope is read."""
    newer = {"data": 1, "meta": {**meta, "region": {"a": []}}, "version": 2}
    expected = read_envelope({"data": 1, "meta": meta})
    assert read_envelope(newer) == expected
    assert decode_envelope(msgspec.json.encode(newer)) == expected
    assert Schema(RESPONSE_ENVELOPE_SCHEMA).is_valid(newer)


@pytest.mark.parametrize("field", ["eventType", "lastEventId", "setCookie", "encoding"])
def test_an_optional_field_that_is_null_counts_as_absent(field: str) -> None:
    """Optional fields are left out of the JSON when absent, so that older peers still read it."""
    assert read_envelope({"data": 1, "meta": {**HTTP_META, field: None}}) == read_envelope(
        {"data": 1, "meta": HTTP_META}
    )


def test_reading_a_mapping_shares_its_data() -> None:
    data = {"a": [1]}
    mapping = MappingProxyType({"data": data, "meta": MappingProxyType(LOCAL_META)})
    assert read_envelope(mapping).data is data


def test_a_mapping_with_data_nested_100_000_deep_is_read() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    assert read_envelope({"data": deep, "meta": LOCAL_META}).data is deep


# --- the wire ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", PEER_WRITES.values(), ids=PEER_WRITES)
def test_what_a_typescript_peer_writes_is_read_and_written_again_as_the_same_bytes(text: str) -> None:
    assert encode_envelope(decode_envelope(text)) == text.encode()
    assert encode_envelope(decode_envelope(text.encode())) == text.encode()
    assert encode_envelope(read_envelope(msgspec.json.decode(text))) == text.encode()


def test_what_the_factories_build_is_on_the_wire_as_the_peer_expects_it() -> None:
    """On the wire every field has the camelCase name of the protocol."""
    block = {"type": "text", "text": "hi"}
    built = [
        (local({"total": 3}), PEER_WRITES["local"]),
        (local(None), PEER_WRITES["local null"]),
        (http_envelope("", status_code=204, headers={}, content_type=""), PEER_WRITES["http empty"]),
        (
            http_envelope(
                "tick",
                status_code=200,
                headers={},
                content_type="text/event-stream",
                event_type="message",
                last_event_id="7",
            ),
            PEER_WRITES["http event"],
        ),
        (mcp_envelope([block], is_error=False, content=[block]), PEER_WRITES["mcp content"]),
    ]
    for envelope, text in built:
        assert encode_envelope(envelope) == text.encode()


def test_none_is_null_in_an_envelope_that_is_still_there() -> None:
    encoded = encode_envelope(local_envelope(None, "math.add"))
    assert encoded.startswith(b'{"data":null,"meta":{"source":"local",')
    assert decode_envelope(encoded).data is None


@pytest.mark.parametrize("number", [2**53 + 1, -(2**63) - 1, 1234567890123456789012345678901234567890])
def test_integers_keep_every_digit(number: int) -> None:
    assert encode_envelope(local([number])) == wire(f"[{number}]")
    assert decode_envelope(wire(f"[{number}]")).data == [number]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xfe\xfd", bytes(range(256))])
def test_binary_data_travels_as_base64_and_is_bytes_again_at_the_receiver(data: bytes) -> None:
    http = http_envelope(data, status_code=200, headers={}, content_type="application/octet-stream")
    for envelope in (local(data), http):
        encoded = encode_envelope(envelope)
        assert f'{{"data":"{base64.b64encode(data).decode()}","meta":'.encode() in encoded
        assert b'"encoding":"base64"}}' in encoded
        assert decode_envelope(encoded) == envelope
        assert type(decode_envelope(encoded).data) is bytes


def test_text_data_is_not_marked_as_encoded() -> None:
    assert b"encoding" not in encode_envelope(local("aGk="))
    assert decode_envelope(encode_envelope(local("aGk="))).data == "aGk="


def test_bytes_inside_a_structure_become_base64_strings() -> None:
    assert encode_envelope(local({"blob": b"hi"})) == wire('{"blob":"aGk="}')
    assert decode_envelope(wire('{"blob":"aGk="}')).data == {"blob": "aGk="}


def test_binary_data_of_an_mcp_envelope_is_a_base64_string_because_its_meta_has_no_encoding() -> None:
    encoded = encode_envelope(mcp_envelope(b"hi", is_error=False, content=[]))
    assert encoded == b'{"data":"aGk=","meta":{"source":"mcp","isError":false,"content":[]}}'


@pytest.mark.parametrize("data", [None, 5, ["aGk="], "aGk", "a Gk=", "aGk=\n", "aGk=aGk=", "=aGk", "é===", "-_=="])
def test_data_that_is_not_the_base64_it_claims_to_be_is_refused(data: Any) -> None:
    value = {"data": data, "meta": {**HTTP_META, "encoding": "base64"}}
    with pytest.raises(ConversionError, match="base64"):
        read_envelope(value)
    assert not Schema(RESPONSE_ENVELOPE_SCHEMA).is_valid(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [lambda it: it, lambda it: [1.5, {"a": [it]}]], ids=["bare", "nested"])
def test_nan_and_infinities_become_null_with_one_warning(
    number: float, place: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    encoded = encode_envelope(local(place(number)))
    assert decode_envelope(encoded).data == place(None)
    assert [(record.name, record.levelno) for record in caplog.records] == [("opwire.model", logging.WARNING)]
    assert "null" in caplog.text


@pytest.mark.parametrize("data", [None, [None, 1.5], {"null": 1e308}, "null", "NaN", 0.1])
def test_data_without_nan_is_sent_without_a_warning(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert decode_envelope(encode_envelope(local(data))).data == data
    assert caplog.records == []


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        ("\ud800", '"�"'),
        ("a\udc00b", '"a�b"'),
        ("\ud83d\ude00", '"😀"'),
        (["\ufeff\ud800"], '["\ufeff�"]'),
        ({"k\ud800": {"x": "\udfff"}}, '{"k�":{"x":"�"}}'),
        ([b"hi", "\ud800"], '["aGk=","�"]'),
    ],
)
def test_lone_surrogates_are_replaced_when_they_are_sent(data: Any, sent: str) -> None:
    assert encode_envelope(local(data)) == wire(sent)


def test_lone_surrogates_of_the_meta_are_replaced_too() -> None:
    envelope = http_envelope(b"\xff", status_code=200, headers={"x": "\ud800"}, content_type="a/b")
    arrived = decode_envelope(encode_envelope(envelope))
    assert arrived == http_envelope(b"\xff", status_code=200, headers={"x": "�"}, content_type="a/b")


@pytest.mark.parametrize(
    ("sent", "data"),
    [
        ('"\\ud800"', "�"),
        ('"a\\udc00b"', "a�b"),
        ('"\\ud83d\\ude00"', "😀"),
        ('["\\ud83d", {"\\ud83d": 12345678901234567890123}]', ["�", {"�": 12345678901234567890123}]),
        ('"\\\\ud800"', "\\ud800"),
    ],
)
def test_lone_surrogates_that_javascript_escapes_are_replaced_when_they_arrive(sent: str, data: Any) -> None:
    assert decode_envelope(wire(sent)).data == data
    assert decode_envelope(wire(sent).decode()).data == data


def test_a_text_that_holds_lone_surrogates_itself_is_read_with_them_replaced() -> None:
    assert decode_envelope(wire('"x"').decode().replace("x", "\ud800")).data == "�"


def test_data_without_json_form_is_a_conversion_error_when_it_is_sent() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = "\ud800"
    for _ in range(100_000):
        deep = [deep]
    for data in (object(), {"a": {1: object()}}, cycle, deep, lambda: 0):
        with pytest.raises(ConversionError, match=r"cannot be sent as JSON|nested too deeply"):
            encode_envelope(local(data))


@pytest.mark.parametrize("depth", [100, 300, 450, 600, 900])
def test_a_lone_surrogate_deep_inside_is_replaced_or_refused(depth: int) -> None:
    data: Any = "\ud800"
    for _ in range(depth):
        data = [data]
    try:
        encoded = encode_envelope(local(data))
    except ConversionError:
        assert depth > 200  # how far the stack reaches beyond that differs between versions of Python
    else:
        assert encoded == wire("[" * depth + '"�"' + "]" * depth)


# --- unwrap -----------------------------------------------------------------------------------------------------------


def test_unwrap_gives_the_very_data() -> None:
    data = {"total": 3}
    assert unwrap(local(data)) is data
    assert unwrap(local(None)) is None


def test_unwrap_with_a_type_gives_the_data_as_that_type() -> None:
    assert unwrap(local({"total": 3}), Sum) == Sum(3)
    assert unwrap(local({"total": 3}), Model) == Model(total=3)
    assert unwrap(local([{"total": 3}]), list[Sum]) == [Sum(3)]
    assert unwrap(local(b"raw"), bytes) == b"raw"


def test_data_of_the_right_type_is_returned_unchanged() -> None:
    for value, output_type in ((Sum(3), Sum), ([Sum(3)], list[Sum]), (Model(total=3), Model)):
        assert unwrap(local(value), output_type) == value


@pytest.mark.parametrize("data", [{"total": "three"}, {}, None, [3], 3])
def test_unwrap_refuses_data_that_does_not_fit_the_type(data: Any) -> None:
    with pytest.raises(ConversionError):
        unwrap(local(data), Sum)


def test_unwrap_with_a_type_checks_what_is_inside_a_container_of_that_type() -> None:
    with pytest.raises(ConversionError):
        unwrap(local(["three"]), list[int])


# --- schemas ----------------------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
text = st.text(max_size=8)
names = st.text("aZ-", min_size=1, max_size=4)
annotations = st.fixed_dictionaries(
    {},
    optional={
        "audience": st.lists(st.sampled_from(["user", "assistant"]), max_size=2),
        "priority": st.floats(0, 1) | st.integers(0, 1),
        "lastModified": text,
        "newer": json_values,
    },
)


def block(kind: str, required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just(kind), **required}, optional={**optional, "annotations": annotations, "newer": json_values}
    )


resources = st.fixed_dictionaries({"uri": text}, optional={"mimeType": text, "text": text, "blob": text})
blocks = st.one_of(
    block("text", {"text": text}, {}),
    block("image", {"data": text, "mimeType": text}, {}),
    block("audio", {"data": text, "mimeType": text}, {}),
    block("resource", {"resource": resources}, {}),
    block("resource_link", {"uri": text, "name": text}, {"description": text, "mimeType": text}),
)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
local_metas = st.fixed_dictionaries(
    {"source": st.just("local"), "operationId": text, "timestamp": numbers},
    optional={"encoding": st.just("base64"), "newer": json_values},
)
http_metas = st.fixed_dictionaries(
    {
        "source": st.just("http"),
        "statusCode": numbers,
        "headers": st.dictionaries(names, text, max_size=3),
        "contentType": text,
    },
    optional={
        "eventType": text,
        "lastEventId": text,
        "setCookie": st.lists(text, max_size=2),
        "encoding": st.just("base64"),
        "newer": json_values,
    },
)
mcp_metas = st.fixed_dictionaries(
    {"source": st.just("mcp"), "isError": st.booleans(), "content": st.lists(blocks, max_size=3)},
    optional={"structuredContent": json_values, "_meta": st.dictionaries(text, json_values, max_size=2)},
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Envelopes as any peer may write them: fields of both versions and newer ones, `data` there or not."""
    meta = draw(local_metas | http_metas | mcp_metas)
    if "encoding" in meta:
        return {"data": base64.b64encode(draw(st.binary(max_size=8))).decode(), "meta": meta}
    return draw(st.fixed_dictionaries({"meta": st.just(meta)}, optional={"data": json_values, "newer": json_values}))


@st.composite
def envelopes(draw: st.DrawFn) -> ResponseEnvelope[Any]:
    data = draw(plain)
    unknown = st.fixed_dictionaries({"type": text}, optional={"text": json_values})
    return draw(
        st.one_of(
            st.builds(local_envelope, st.just(data), text),
            st.builds(
                http_envelope,
                st.just(data),
                status_code=st.integers(100, 599),
                headers=st.lists(st.tuples(names | st.just("Set-Cookie"), text), max_size=4),
                content_type=text,
                event_type=st.none() | text,
                last_event_id=st.none() | text,
                set_cookie=st.none() | st.lists(text, max_size=2),
            ),
            st.builds(
                mcp_envelope,
                st.just(data),
                is_error=st.booleans(),
                content=st.lists(blocks | unknown, max_size=3),
                structured_content=st.just(UNSET) | plain,
                _meta=st.just(UNSET) | st.dictionaries(text, json_values, max_size=2),
            ),
        )
    )


@pytest.mark.parametrize("kind", get_args(ResponseMeta))
def test_a_meta_schema_has_the_fields_of_its_class_and_requires_the_same_ones(kind: Any) -> None:
    schema = META_SCHEMAS[kind.source]
    fields = msgspec.structs.fields(kind)
    assert list(schema["properties"]) == ["source", *(each.encode_name for each in fields)]
    assert schema["required"] == ["source", *(each.encode_name for each in fields if each.required)]


@pytest.mark.parametrize("value", [None, 5, "local", ["source"], [], True])
def test_what_is_not_an_object_is_neither_a_meta_nor_an_envelope(value: Any) -> None:
    for schema in (*META_SCHEMAS.values(), RESPONSE_META_SCHEMA, RESPONSE_ENVELOPE_SCHEMA):
        assert not Schema(schema).is_valid(value)


@given(envelopes())
def test_everything_that_is_written_is_valid_by_the_schemas(envelope: ResponseEnvelope[Any]) -> None:
    """Everything that the encoder writes is valid by the exported schemas."""
    document = msgspec.json.decode(encode_envelope(envelope))
    assert Schema(RESPONSE_ENVELOPE_SCHEMA).problems(document) == []
    assert Schema(RESPONSE_META_SCHEMA).problems(document["meta"]) == []
    assert [source for source, schema in META_SCHEMAS.items() if Schema(schema).is_valid(document["meta"])] == [
        envelope.meta.source
    ]


@given(envelopes())
def test_an_envelope_that_has_arrived_is_the_same_after_any_further_journey(envelope: ResponseEnvelope[Any]) -> None:
    encoded = encode_envelope(envelope)
    arrived = decode_envelope(encoded)
    assert encode_envelope(arrived) == encoded
    assert decode_envelope(encode_envelope(arrived)) == arrived
    assert type(arrived.meta) is type(envelope.meta)


@given(documents())
def test_every_document_that_is_valid_by_the_schema_can_be_read(document: dict[str, Any]) -> None:
    assert Schema(RESPONSE_ENVELOPE_SCHEMA).problems(document) == []
    envelope = read_envelope(document)
    assert decode_envelope(msgspec.json.encode(document)) == envelope
    assert envelope.meta.source == document["meta"]["source"]
    written = msgspec.json.decode(encode_envelope(envelope))
    known = META_SCHEMAS[envelope.meta.source]["properties"].keys()
    assert written["data"] == document.get("data")
    assert written["meta"] == {name: value for name, value in document["meta"].items() if name in known}


# Of a wrong type for every field; null is not among them, since for an optional field it means absence.
WRONG = st.sampled_from([True, 5.5, {"a": 5}, [[]]])


@given(documents(), st.data())
def test_a_document_that_breaks_the_schema_is_refused(document: dict[str, Any], data: st.DataObject) -> None:
    meta = dict(document["meta"])
    schema = META_SCHEMAS[meta["source"]]
    field = data.draw(st.sampled_from([name for name in schema["properties"] if name != "structuredContent"]))
    if field in schema["required"] and data.draw(st.booleans()):
        meta.pop(field)
    else:
        fits = {"isError": bool, "_meta": dict, "timestamp": float, "statusCode": float}.get(field, ())
        meta[field] = data.draw(WRONG.filter(lambda value: not isinstance(value, fits)))
    broken = {**document, "meta": meta}
    assert not Schema(RESPONSE_ENVELOPE_SCHEMA).is_valid(broken)
    with pytest.raises(ConversionError):
        read_envelope(broken)
    with pytest.raises(ConversionError):
        decode_envelope(msgspec.json.encode(broken))


def test_a_block_of_an_unknown_kind_that_arrives_becomes_text_that_holds_its_json() -> None:
    message = '{"data":1,"meta":{"source":"mcp","isError":false,"content":[{"type":"hologram","depth":3}]}}'
    meta = decode_envelope(message).meta
    assert isinstance(meta, MCPResponseMeta)
    assert meta.content == [{"type": "text", "text": '{"type":"hologram","depth":3}'}]
