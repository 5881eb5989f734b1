"""Lines that are messages, nearly messages, and none."""

import contextlib
import json
import math
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import jsonrpc_message_adapter

from opwire.errors import CallError, ErrorCode
from opwire.mcp import messages
from opwire.mcp.messages import (
    MAX_BATCH,
    MAX_REPAIRED_BYTES,
    SMALL,
    ErrorObject,
    InvalidMessageError,
    InvalidReply,
    RPCFailure,
    RPCMessage,
    RPCNotification,
    RPCRequest,
    RPCResponse,
    SmallResponse,
    decode_message,
    encode_message,
    read_message,
    read_messages,
    split_batch,
)


def read(raw: bytes) -> Any:
    return read_message(raw)


def test_messages_are_read_as_they_are() -> None:
    response = b'{"jsonrpc": "2.0", "id": 1, "result": {"a": [1, null]}}'
    assert read(response) == SmallResponse(id=1, result={"a": [1, None]})
    assert isinstance(read(b'{"jsonrpc": "2.0", "method": "x"}\r'), RPCNotification)
    assert isinstance(read(b'{"jsonrpc": "2.0", "id": "a", "method": "x", "params": {}}'), RPCRequest)


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_every_digit(number: float) -> None:
    assert read(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"n": number}}).encode()).result == {"n": number}


@pytest.mark.parametrize(
    "line",
    [b"", b"Listening...", b"5", b"[]", b'{"level": "info"}', b'{"jsonrpc": "2.0"}', b'{"jsonrpc": "2.0", "x', b"\xff"],
)
def test_what_is_not_a_message_is_passed_over_unless_it_was_meant_to_be_one(line: bytes) -> None:
    if b'"x' in line:
        with pytest.raises(CallError, match="not JSON") as failure:
            read(line)
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR
    else:
        assert read(line) is None


@pytest.mark.parametrize("result", ["5", "null", "[]", '"x"', '{}, "error": 5, "result": 7'])
def test_an_invalid_response_is_an_error_for_its_caller(result: str) -> None:
    message = read(f'{{"jsonrpc": "2.0", "id": 9, "result": {result}}}'.encode())
    assert isinstance(message, InvalidReply)
    assert (message.id, message.code) == (9, ErrorCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("line", [b'{"id": 9, "result": {}}', b'{"id": 9, "error": {"code": 1, "message": "no"}}'])
def test_a_response_of_unknown_kind_is_an_error_for_its_caller(line: bytes) -> None:
    assert isinstance(message := read(line), InvalidReply)
    assert message.id == 9


@pytest.mark.parametrize("result", [b'{"a": "%b"}' % (b"a" * SMALL), b'{"a": %b%b}' % (b"[" * 200, b"]" * 200)])
def test_a_response_that_is_large_or_may_be_deep_does_not_count_as_small(result: bytes) -> None:
    response = read(b'{"jsonrpc": "2.0", "id": 1, "result": %b}' % result)
    assert type(response) is RPCResponse
    assert response.result.keys() == {"a"}


def test_a_byte_order_mark_and_an_id_that_became_a_float_are_accepted() -> None:
    response = b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": 1.0, "result": {"n": 2.0}}'
    assert read(response) == SmallResponse(id=1, result={"n": 2.0})


def test_bytes_and_surrogates_that_utf_8_cannot_carry_are_replaced() -> None:
    assert read(b'{"jsonrpc": "2.0", "id": 1, "result": {"a": "\xff"}}').result == {"a": "\ufffd"}
    assert read(b'{"jsonrpc": "2.0", "id": 1, "result": {"a": "\\ud800"}}').result == {"a": "\ufffd"}


def test_invalid_characters_are_replaced_in_a_message_of_limited_size() -> None:
    start, end = b'{"jsonrpc": "2.0", "id": 1, "result": {"a": "', b'"}}'
    assert read(start + b"\xff" * 1_000_000 + end).result == {"a": "\ufffd" * 1_000_000}
    with pytest.raises(CallError) as caught:
        read(start + b"\xff" * MAX_REPAIRED_BYTES + end)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        b'"method": "ping", "method": "tools/call"',
        b'"method": "ping", "id": 9',
        rb'"method": "ping", "\u006dethod": "tools/call"',
        b'"method": "tools/call", "params": {"arguments": {"to": "a", "to": "b"}}',
        rb'"method": "tools/call", "params": {"\u003a": 1, ":": 2}',
        b'"method": "ping", "unknown": {"a": 1, "a": 1}',
        b'"method": "ping", "unknown": "\xff", "unknown": 1',
        b'"method": "ping", "params": {"a": {"b": 1, "b": 2}, "c": "\\ud800"}',
    ],
)
def test_a_request_with_duplicate_keys_is_invalid(fields: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="duplicate keys") as invalid:
        decode_message(b'{"jsonrpc": "2.0", "id": 1, %b}' % fields)
    assert invalid.value.is_json


@pytest.mark.parametrize(
    "fields",
    [
        b'"params": null, "unknown": {"a": ":", "b": [{}, {"a": 1}]}, "id": 1',
        rb'"params": {"a": "\u003a:\\u003a", "\u003A": 1}, "id": 1.0',
        b'"params": {"a": "\xff:", "b": "\\ud800"}, "id": 1',
        b'"unknown": "\xff", "id": 1',
    ],
)
def test_a_request_whose_keys_are_unique_is_valid(fields: bytes) -> None:
    assert isinstance(decode_message(b'{"jsonrpc": "2.0", "method": "ping", %b}' % fields), RPCRequest)


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_numbers_that_json_lacks_are_read_in_responses_alone(number: bytes) -> None:
    assert not math.isfinite(read(b'{"jsonrpc": "2.0", "id": 1, "result": {"n": %b}}' % number).result["n"])
    with pytest.raises(InvalidMessageError):
        decode_message(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"n": %b}}' % number)


def test_an_answer_that_is_nested_too_deeply_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(CallError, match="nested too deeply"):
        read(b'{"jsonrpc": "2.0", "id": 1, "result": ' + b"[" * 60_000)
    nested = b'{"jsonrpc": "2.0", "id": 1, "result": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}"
    assert read(nested).id == 1
    deeper = read(nested.replace(b"[" * 300, b"[" * 800).replace(b"]" * 300, b"]" * 800))
    assert deeper.id == 1  # whichever it is: how deep Python reads depends on its version
    assert isinstance(deeper, InvalidReply | RPCResponse)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_MESSAGE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("jsonrpc", "id", "result", "error", "method", "params"), _JSON | st.just("2.0"))
)


@given(st.binary() | _MESSAGE.map(lambda message: json.dumps(message).encode()))
def test_any_output_of_a_server_is_a_message_or_ignored_or_an_end_with_a_reason(line: bytes) -> None:
    with contextlib.suppress(CallError):
        read_message(line)


def test_messages_are_written_in_one_line_and_without_what_json_does_not_have() -> None:
    params = {"text": "a\nb\u2028", "number": math.nan, "big": 2**70}
    request = RPCRequest(id=1, method="x", params=params)
    line = encode_message(request)
    assert b"\n" not in line
    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "x",
        "params": {"text": "a\nb\u2028", "number": None, "big": 2**70},
    }
    assert json.loads(encode_message(RPCNotification(method="x"))) == {
        "jsonrpc": "2.0",
        "method": "x",
    }


MANY = 100_000
SHAPES = {"lists": "[]", "objects": "{}", "pairs": '{"a":1}'}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_answer_of_too_many_objects_and_lists_is_an_error_for_its_caller_before_it_is_parsed(shape: str) -> None:
    answer = f'{{"jsonrpc":"2.0","id":7,"result":{{"a":[{",".join([shape] * MANY * 2)}]}}}}'.encode()
    message = read_message(answer)
    assert isinstance(message, InvalidReply)
    assert (message.id, message.code) == (7, ErrorCode.PAYLOAD_TOO_LARGE)
    few = f'{{"jsonrpc":"2.0","id":7,"result":{{"a":[{",".join([shape] * 30_000)}]}}}}'.encode()
    assert isinstance(read(few), RPCResponse)


@pytest.mark.parametrize(
    "text", ["a,b;" * MANY, "[{" * MANY, r"say \"[\" " * MANY, r"\\" * MANY + ",", '\\\\\\"[,' * MANY]
)
def test_commas_and_brackets_in_a_text_are_not_values(text: str) -> None:
    raw = f'{{"jsonrpc":"2.0","id":7,"result":{{"a":"{text}"}}}}'.encode()
    json.loads(raw)
    assert isinstance(read_message(raw), RPCResponse)


def test_other_messages_of_too_many_objects_and_lists_are_refused_or_dropped(caplog: pytest.LogCaptureFixture) -> None:
    values = ",".join(["[]"] * MANY)
    request = read_message(f'{{"jsonrpc":"2.0","id":7,"method":"ask","params":{{"a":[{values}]}}}}'.encode())
    assert isinstance(request, RPCRequest)
    assert re.fullmatch("ask with more than [0-9,]+ objects and lists", request.method)
    assert request.params is None
    assert read_message(f'{{"jsonrpc":"2.0","method":"tell","params":{{"a":[{values}]}}}}'.encode()) is None
    assert "is ignored" in caplog.text
    with pytest.raises(CallError, match="objects and lists") as caught:
        read_message(f'{{"a":[{values}]}}'.encode())
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_a_large_message_with_numbers_that_json_lacks_is_not_repaired() -> None:
    def answer(size: int) -> bytes:
        return b'{"jsonrpc":"2.0","id":7,"result":{"a":NaN,"b":"%b"}}' % (b"x" * size)

    assert isinstance(read_message(answer(MAX_REPAIRED_BYTES - 100)), RPCResponse)
    with pytest.raises(CallError, match="not JSON") as caught:
        read_message(answer(MAX_REPAIRED_BYTES))
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_a_batch_of_millions_of_members_takes_little_memory() -> None:
    batch = b"[" + b"1," * 1_000_000 + b"1]"
    tracemalloc.start()
    assert split_batch(batch) == [batch]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(batch)


def test_a_message_of_too_many_objects_and_lists_is_not_decoded() -> None:
    lists = b",".join([b"[]"] * 100_000)
    with pytest.raises(InvalidMessageError) as caught:
        decode_message(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":[' + lists + b"]}}")
    assert caught.value.id == 7
    assert caught.value.excess == "more than 84,289 objects and lists"
    reply = read_message(b'{"jsonrpc":"2.0","id":7,"result":{"a":[' + lists + b"]}}")
    assert isinstance(reply, InvalidReply)
    assert (reply.id, reply.code) == (7, ErrorCode.PAYLOAD_TOO_LARGE)


@pytest.mark.parametrize("id", ["9" * 400, "-" + "9" * 400, '"' + "x" * 100_000 + '"', '"' + "9" * 5000 + '"'])
def test_a_message_with_an_absurd_id_is_not_a_message(id: str) -> None:
    assert read(f'{{"jsonrpc":"2.0","id":{id},"result":{{}}}}'.encode()) is None
    assert read(f'{{"jsonrpc":"2.0","id":{id},"method":"x"}}'.encode()) is None
    assert read(f'{{"jsonrpc":"2.0","id":{id},"result":"no object"}}'.encode()) is None


_ID = st.integers(-(2**62), 2**62) | st.text(max_size=50)
_PARAMS = st.dictionaries(st.text(), _JSON, max_size=3)
_ANY_MESSAGE: st.SearchStrategy[RPCMessage] = st.one_of(
    st.builds(RPCRequest, _ID, st.text(), st.none() | _PARAMS),
    st.builds(RPCNotification, st.text(), st.none() | _PARAMS),
    st.builds(RPCResponse, _ID, _PARAMS),
    st.builds(RPCFailure, st.none() | _ID, st.builds(ErrorObject, st.integers(-(2**62), 2**62), st.text(), _JSON)),
)


def _encoded(message: RPCMessage) -> bytes | None:
    try:
        return encode_message(message)
    except UnicodeEncodeError:  # a lone surrogate
        return None


@given(_ANY_MESSAGE)
def test_every_message_is_decoded_as_it_was_encoded_and_is_one_for_the_sdk(message: RPCMessage) -> None:
    line = _encoded(message)
    if line is not None:
        assert encode_message(decode_message(line)) == line
        jsonrpc_message_adapter.validate_json(line, by_name=False)


@given(_PARAMS)
def test_unknown_fields_of_params_and_results_are_kept(fields: dict[str, Any]) -> None:
    raw = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": [], **fields}, "later": 1})
    with contextlib.suppress(InvalidMessageError):
        decoded = decode_message(raw.encode())
        assert isinstance(decoded, RPCResponse)
        assert decoded.result.keys() >= {key.encode("utf-8", "replace").decode() for key in fields if key.isascii()}


@pytest.mark.parametrize("id", ["null", "true", "1.5", "{}"])
def test_a_request_with_an_invalid_id_is_rejected(id: str) -> None:
    with pytest.raises(InvalidMessageError):
        decode_message(f'{{"jsonrpc": "2.0", "id": {id}, "method": "x"}}'.encode())


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": "E_LOCKED", "message": "locked"}, -32603, "locked (code E_LOCKED)"),
        ({"code": 404.0, "message": "gone"}, 404, "gone"),
        ({"code": None, "message": "odd"}, -32603, "odd"),
        ({"message": {"text": "an object"}}, -32603, '{"text": "an object"}'),
        ({}, -32603, ""),
    ],
)
def test_an_error_with_an_odd_code_or_message_keeps_its_text(error: Any, code: int, message: str) -> None:
    """JSON-RPC errors become CallErrors that keep code and data, up to a limit."""
    found = decode_message(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode())
    assert isinstance(found, RPCFailure)
    assert (found.error.code, found.error.message) == (code, message)


def test_a_batch_is_its_messages_unless_it_is_empty_long_nested_or_not_json() -> None:
    one, two = b'{"jsonrpc":"2.0","method":"a"}', b'{"jsonrpc":"2.0","id":1,"result":{"a":[1,"]"]}}'
    assert split_batch(b" [%b, %b]" % (one, two)) == [one, two]
    assert read_messages(b"[%b,%b]" % (one, two)) == [
        RPCNotification("a"),
        SmallResponse(1, {"a": [1, "]"]}),
    ]
    long = b"[" + b",".join([one] * (MAX_BATCH + 1)) + b"]"
    values = b"[" + b"[]," * 2000 + b"[]]"
    nested = b"[%b, [%b]]" % (one, two)
    for other in (one, b"", b"[]", b"[" + one, long, values, nested, b"[" * 100_000):
        assert split_batch(other) == [other]


def test_lines_without_an_object_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(messages, "decode_message")
    assert [read_message(line) for line in (b"", b" ", b"x", b"[1]")] == [None] * 4
