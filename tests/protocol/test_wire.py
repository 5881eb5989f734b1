"""Events as bytes: what a TypeScript peer writes is read and written again; invalid events end nothing."""

import json
import logging
import math
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, Identity, Schema, local_envelope, mcp_envelope
from opwire.protocol import (
    CALL_EVENT_SCHEMA,
    CALL_EVENT_SCHEMAS,
    MAX_MESSAGE,
    CallAborted,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallRequested,
    CallResponded,
    decode_event,
    encode_event,
)
from opwire.protocol.events import decode_message
from tests.model.test_envelope import documents, envelopes, json_values, plain
from tests.properties import examples

META = '"meta":{"source":"local","operationId":"math.add","timestamp":1778907801234}'
# As `JSON.stringify` of a peer built on the protocol's TypeScript specification writes them.
PEER_WRITES = {
    "requested": '{"type":"call.requested","requestId":"550e8400-e29b","operationId":"math.add","input":{"a":1,"b":2}}',
    "requested, null": '{"type":"call.requested","requestId":"r1","operationId":"clock.now","input":null}',
    "requested, nested": '{"type":"call.requested","requestId":"r2","operationId":"github.repos/get",'
    '"input":[1.5,"ü€😀"],"parentRequestId":"r1","identity":{"id":"ann","scopes":["read","write"],"resources":{"repo":["pull","push"]}},'
    '"deadline":1778907831234}',
    "requested, remaining time": '{"type":"call.requested","requestId":"r3","operationId":"a.b","input":{},'
    '"deadline":1778907831234,"timeoutMs":29999.5,"credits":64}',
    "responded": f'{{"type":"call.responded","requestId":"r1","output":{{"data":3,{META}}}}}',
    "responded, null": f'{{"type":"call.responded","requestId":"r1","output":{{"data":null,{META}}}}}',
    "responded, item": f'{{"type":"call.responded","requestId":"r1","output":{{"data":{{"n":[]}},{META}}},"seq":7}}',
    "responded, http": '{"type":"call.responded","requestId":"r1","output":{"data":"ok","meta":{"source":"http",'
    '"statusCode":200,"headers":{"content-type":"text/plain"},"contentType":"text/plain"}}}',
    "responded, mcp error": '{"type":"call.responded","requestId":"r1","output":{"data":[{"type":"text","text":"no"}],'
    '"meta":{"source":"mcp","isError":true,"content":[{"type":"text","text":"no"}]}}}',
    "completed": '{"type":"call.completed","requestId":"r1"}',
    "completed, counted": '{"type":"call.completed","requestId":"r1","seq":12}',
    "error": '{"type":"call.error","requestId":"r1","code":"EXECUTION_ERROR","message":"HTTP 500: Server Error"}',
    "error, all fields": '{"type":"call.error","requestId":"r1","code":"RATE_LIMITED","message":"slow down",'
    '"details":{"limit":100},"retryable":true,"retryAfterMs":1500}',
    "aborted": '{"type":"call.aborted","requestId":"r1"}',
    "aborted, reason": '{"type":"call.aborted","requestId":"r1","reason":"the caller gave up"}',
    "credit": '{"type":"call.credit","requestId":"r1","n":32}',
    "requested, progress": '{"type":"call.requested","requestId":"r1","operationId":"a.b","input":{},"progress":true}',
    "progress": '{"type":"call.progress","requestId":"r1","progress":3}',
    "progress, all fields": '{"type":"call.progress","requestId":"r1","progress":0.5,"total":2,"message":"half"}',
}
REQUESTED, RESPONDED = PEER_WRITES["requested"], PEER_WRITES["responded"]


def protocol_error(message: bytes | str, **options: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        decode_event(message, **options)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR
    return caught.value


def nested(depth: int, innermost: Any = 0) -> Any:
    for _ in range(depth):
        innermost = [innermost]
    return innermost


def request(input: Any) -> CallRequested:
    return CallRequested(request_id="r", operation_id="a.b", input=input)


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", PEER_WRITES.values(), ids=PEER_WRITES)
def test_what_a_typescript_peer_writes_is_read_and_written_again_as_the_same_bytes(text: str) -> None:
    assert encode_event(decode_event(text.encode())) == text.encode()
    assert decode_event(text) == decode_event(text.encode())


@pytest.mark.parametrize("text", PEER_WRITES.values(), ids=PEER_WRITES)
def test_what_a_typescript_peer_writes_is_valid_by_the_schemas(text: str) -> None:
    document = json.loads(text)
    assert Schema(CALL_EVENT_SCHEMA).problems(document) == []
    assert Schema(CALL_EVENT_SCHEMAS[document["type"]]).problems(document) == []


def test_every_field_of_a_request_arrives_where_it_belongs() -> None:
    assert decode_event(PEER_WRITES["requested, nested"]) == CallRequested(
        request_id="r2",
        operation_id="github.repos/get",
        input=[1.5, "ü€😀"],
        parent_request_id="r1",
        identity=Identity(id="ann", scopes=("read", "write"), resources={"repo": ("pull", "push")}),
        deadline=1778907831234,
    )


@pytest.mark.parametrize("text", PEER_WRITES.values(), ids=PEER_WRITES)
def test_fields_of_a_newer_protocol_are_ignored_and_optional_ones_may_be_null(text: str) -> None:
    document = json.loads(text)
    schema = CALL_EVENT_SCHEMAS[document["type"]]
    absent = {name: None for name in schema["properties"] if name not in document}
    newer = {**document, **absent, "newer": {"requestId": 5}}
    assert decode_event(json.dumps(newer)) == decode_event(text)


@pytest.mark.parametrize("count", ["4", "4.0", "4e0", "40e-1"])
def test_a_count_is_any_json_number_without_a_fraction(count: str) -> None:
    requested = decode_event(f'{{"type":"call.requested","requestId":"r","operationId":"a.b","credits":{count}}}')
    assert requested == CallRequested(request_id="r", operation_id="a.b", credits=4)
    credit = decode_event(f'{{"type":"call.credit","requestId":"r","n":{count},"total":{count},"received":{count}}}')
    assert credit == CallCredit(request_id="r", n=4, total=4, received=4)
    with pytest.raises(CallError) as failure:
        decode_event('{"type":"call.credit","requestId":"r","n":1.5}')
    assert failure.value.details == {"requestId": "r"}


def test_the_order_of_the_fields_does_not_matter_and_a_missing_input_is_null() -> None:
    document = json.loads(REQUESTED)
    backwards = json.dumps(dict(reversed(document.items())))
    assert decode_event(backwards) == decode_event(REQUESTED)
    assert decode_event('{"operationId":"a.b","requestId":"r","type":"call.requested"}') == request(None)


def test_binary_data_is_bytes_again_at_the_receiver() -> None:
    event = CallResponded(request_id="r", output=local_envelope(b"\x00\xff", "a.b"))
    encoded = encode_event(event)
    assert json.loads(encoded)["output"]["data"] == "AP8="
    assert decode_event(encoded) == event


def test_values_in_an_input_that_are_not_plain_are_sent_in_their_json_form() -> None:
    sent = decode_event(encode_event(request({"who": Identity(id="a"), "raw": b"hi", "set": frozenset({1})})))
    assert isinstance(sent, CallRequested)
    assert sent.input == {"who": {"id": "a", "scopes": [], "resources": {}}, "raw": "aGk=", "set": [1]}


# --- hypothesis: both ways --------------------------------------------------------------------------------------------

ids = st.text(max_size=8)
milliseconds = st.integers(0, 2**53) | st.floats(0, 1e15, allow_nan=False)
identities = st.builds(
    Identity,
    id=ids,
    scopes=st.lists(ids, max_size=2).map(tuple),
    resources=st.dictionaries(ids, st.lists(ids, max_size=2).map(tuple), max_size=2),
)
EVENTS: st.SearchStrategy[CallEvent] = st.one_of(
    st.builds(
        CallRequested,
        request_id=ids,
        operation_id=ids,
        input=plain,
        parent_request_id=st.none() | ids,
        identity=st.none() | identities,
        deadline=st.none() | milliseconds,
        timeout_ms=st.none() | milliseconds,
        credits=st.none() | st.integers(0, 2**53),
    ),
    st.builds(CallResponded, request_id=ids, output=envelopes(), seq=st.none() | st.integers(1, 2**53)),
    st.builds(CallCompleted, request_id=ids, seq=st.none() | st.integers(0, 2**53)),
    st.builds(
        CallFailed,
        request_id=ids,
        code=ids,
        message=ids,
        details=plain,
        retryable=st.none() | st.booleans(),
        retry_after_ms=st.none() | milliseconds,
    ),
    st.builds(CallAborted, request_id=ids, reason=st.none() | ids),
    st.builds(CallCredit, request_id=ids, n=st.integers(1, 2**53)),
)


def kind(name: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    fixed = {"type": st.just(name), "requestId": ids, **required}
    return st.fixed_dictionaries(fixed, optional={**(optional or {}), "newer": json_values})


DOCUMENTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    kind(
        "call.requested",
        {"operationId": ids},
        {
            "input": json_values,
            "parentRequestId": ids,
            "identity": st.fixed_dictionaries({"id": ids}, optional={"scopes": st.lists(ids, max_size=2)}),
            "deadline": milliseconds,
            "timeoutMs": milliseconds,
            "credits": st.integers(0, 100),
        },
    ),
    kind("call.responded", {"output": documents()}, {"seq": st.integers(1, 100)}),
    kind("call.completed", {}, {"seq": st.integers(0, 100)}),
    kind(
        "call.error",
        {"code": ids, "message": ids},
        {"details": json_values, "retryable": st.booleans(), "retryAfterMs": milliseconds},
    ),
    kind("call.aborted", {}, {"reason": ids}),
    kind("call.credit", {"n": st.integers(1, 100)}),
)


@given(EVENTS)
def test_everything_that_is_written_is_valid_by_the_schemas(event: CallEvent) -> None:
    document = msgspec.json.decode(encode_event(event))
    assert Schema(CALL_EVENT_SCHEMA).problems(document) == []
    assert Schema(CALL_EVENT_SCHEMAS[document["type"]]).problems(document) == []


@given(EVENTS)
def test_an_event_that_has_arrived_is_the_same_after_any_further_journey(event: CallEvent) -> None:
    encoded = encode_event(event)
    arrived = decode_event(encoded)
    assert type(arrived) is type(event)
    assert encode_event(arrived) == encoded


@given(DOCUMENTS)
def test_every_document_that_is_valid_by_the_schema_can_be_read(document: dict[str, Any]) -> None:
    assert Schema(CALL_EVENT_SCHEMA).problems(document) == []
    event = decode_event(msgspec.json.encode(document))
    written = msgspec.json.decode(encode_event(event))
    assert (written["type"], written["requestId"]) == (document["type"], document["requestId"])
    for name in {"input", "deadline", "timeoutMs", "credits", "seq", "details", "n", "reason"} & document.keys():
        assert written.get(name) == document[name]


# Of a wrong type for every field; null is not among them, since for an optional field it means absence.
WRONG = st.sampled_from([-1, "ten", {"a": 5}, [[]]])
ANYTHING = {"input", "details"}


@given(DOCUMENTS, st.data())
def test_a_document_that_breaks_the_schema_is_refused(document: dict[str, Any], data: st.DataObject) -> None:
    schema = CALL_EVENT_SCHEMAS[document["type"]]
    field = data.draw(st.sampled_from(sorted(schema["properties"].keys() - ANYTHING)))
    if field in schema["required"] and data.draw(st.booleans()):
        broken = {name: value for name, value in document.items() if name != field}
    else:
        unfit = WRONG.filter(lambda value: not Schema(schema).is_valid({**document, field: value}))
        broken = {**document, field: data.draw(unfit)}
    assert not Schema(CALL_EVENT_SCHEMA).is_valid(broken)
    protocol_error(msgspec.json.encode(broken))


# --- malformed --------------------------------------------------------------------------------------------------------

MALFORMED = {
    "empty": b"",
    "not JSON": b"call me",
    "a number": b"5",
    "a list": b"[]",
    "null": b"null",
    "no type": b'{"requestId":"r"}',
    "unknown type": b'{"type":"call.forwarded","requestId":"r"}',
    "no id": b'{"type":"call.aborted"}',
    "id of a wrong type": b'{"type":"call.aborted","requestId":5}',
    "truncated": REQUESTED.encode()[:-1],
    "two events": REQUESTED.encode() * 2,
    "not UTF-8": b'{"type":"call.aborted","requestId":"\xff\xfe"}',
    "a surrogate as bytes": b'{"type":"call.aborted","requestId":"\xed\xa0\x80"}',
    "NaN": b'{"type":"call.requested","requestId":"r","operationId":"a.b","input":NaN}',
    "a number out of range": b'{"type":"call.requested","requestId":"r","operationId":"a.b","timeoutMs":1e999}',
    "and a lone surrogate": b'{"type":"call.requested","requestId":"\\ud800","operationId":"","input":1e999}',
    "an output without an envelope": b'{"type":"call.responded","requestId":"r","output":3}',
    "of unknown source": b'{"type":"call.responded","requestId":"r","output":{"data":1,"meta":{"source":"x"}}}',
    "base64 that is none": RESPONDED.replace('"data":3', '"data":"#"').replace(
        '"local"', '"local","encoding":"base64"'
    ),
    "negative credits": b'{"type":"call.requested","requestId":"r","operationId":"a.b","credits":-1}',
    "negative credit": b'{"type":"call.credit","requestId":"r","n":-1}',
    "item number 0": RESPONDED[:-1] + ',"seq":0}',
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_an_event_is_a_protocol_error(message: bytes | str) -> None:
    """An invalid event is a PROTOCOL_ERROR that ends neither side, and nothing else."""
    protocol_error(message)


def test_a_protocol_error_is_one_short_line_whatever_the_type_of_the_event() -> None:
    for type in ("a\nb\x1b[2J\u202e", "x" * 100_000, "session.\n"):
        with pytest.raises(CallError) as failure:
            decode_message(json.dumps({"type": type}).encode())
        assert failure.value.message.isprintable()
        assert len(failure.value.message) < 250


@pytest.mark.parametrize("id", ["r1", "\\ud800", "ü"])
def test_a_protocol_error_names_the_request_where_one_can_be_made_out(id: str) -> None:
    error = protocol_error(f'{{"type":"call.requested","requestId":"{id}","operationId":5}}')
    assert error.details == {"requestId": id.replace("\\ud800", "\ufffd")}
    assert protocol_error(b'{"type":"call.requested"}').details is None
    assert protocol_error(b"garbage").details is None


@given(st.binary(max_size=80) | st.text(max_size=80))
def test_garbage_is_never_anything_but_a_protocol_error(message: bytes | str) -> None:
    protocol_error(message)


@settings(max_examples=examples(400))
@given(
    st.sampled_from([text.encode() for text in PEER_WRITES.values()]),
    st.lists(st.tuples(st.integers(0, 250), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=4),
)
def test_a_damaged_event_is_an_event_or_a_protocol_error(message: bytes, damages: list[tuple[int, int, bytes]]) -> None:
    for place, removed, put in damages:
        message = message[:place] + put + message[place + removed :]
    try:
        event = decode_event(message)
    except CallError:
        protocol_error(message)
    else:
        assert decode_event(encode_event(event)) == event


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_message_of_the_limit_passes_both_ways_and_one_byte_more_does_not() -> None:
    event = request("x" * 1000)
    message = encode_event(event)
    size = len(message)
    assert encode_event(event, limit=size) == message
    assert decode_event(message, limit=size) == event
    with pytest.raises(CallError) as caught:
        encode_event(event, limit=size - 1)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert caught.value.details == {"bytes": size, "limit": size - 1}
    assert "limit" in protocol_error(message, limit=size - 1).message


def test_the_limit_counts_bytes_and_not_characters() -> None:
    message = encode_event(request("€" * 100))
    assert decode_event(message.decode(), limit=len(message)) == request("€" * 100)
    protocol_error(message.decode(), limit=len(message) - 1)


def test_the_limit_leaves_room_in_the_megabyte_of_a_broker() -> None:
    assert 1_000_000 < MAX_MESSAGE < 2**20
    with pytest.raises(CallError, match="PAYLOAD_TOO_LARGE"):
        encode_event(request("x" * MAX_MESSAGE))


def deep_messages(depth: int) -> dict[str, str]:
    deep = "[" * depth + "]" * depth
    mcp = (
        '{"type":"call.responded","requestId":"r","output":{"data":1,"meta":{"source":"mcp","isError":false,"content":'
    )
    return {
        "input": f'{{"type":"call.requested","requestId":"r","operationId":"a.b","input":{deep}}}',
        "data": RESPONDED.replace('"data":3', f'"data":{deep}').replace('"r1"', '"r"'),
        "details": f'{{"type":"call.error","requestId":"r","code":"TIMEOUT","message":"","details":{deep}}}',
        "structured content": f'{mcp}[],"structuredContent":{deep}}}}}}}',
        "block": f'{mcp}[{{"type":"text","text":"","newer":{deep}}}]}}}}}}',
    }


@pytest.mark.parametrize("place", deep_messages(1))
def test_an_event_nested_deeper_than_200_is_a_protocol_error_that_names_its_request(place: str) -> None:
    """An event nested deeper than 200 is refused, and no nesting crashes anything."""
    error = protocol_error(deep_messages(201)[place])
    assert error.details == {"requestId": "r"}
    assert "200" in error.message


@pytest.mark.parametrize("depth", [5_000, 100_000])
@pytest.mark.parametrize("encoded", [True, False])
def test_an_event_nested_too_deeply_to_be_decoded_names_its_request(depth: int, encoded: bool) -> None:
    message = deep_messages(depth)["input"]
    with pytest.raises(CallError) as failure:
        decode_event(message.encode() if encoded else message)
    assert failure.value.details == {"requestId": "r"}


def test_the_id_of_a_request_is_found_before_and_after_what_is_nested_too_deeply() -> None:
    deep, id = "[" * 40_000 + "]" * 40_000, '"requestId" : "r"'
    for members in (
        f'{id}, "input" : {deep}',
        f'"input":{deep}, {id}',
        f'"input":{deep}, "output": {{}}, {id}, "type":"call.responded"',
        f'"type":"call.responded", {id}, "text":"a [b", "input":{deep}',
    ):
        assert protocol_error(f" {{ {members} }} ").details == {"requestId": "r"}
    for members in (f'"input":{deep}, {id}, "output":{{}}', f'"requestId":5, "input":{deep}', f'"a":{deep}', deep, ""):
        assert protocol_error(f"{{{members}}}").details is None


@pytest.mark.parametrize("place", ["input", "data", "details"])
def test_an_event_nested_200_deep_is_read(place: str) -> None:
    assert encode_event(decode_event(deep_messages(200)[place])) == deep_messages(200)[place].encode()


@pytest.mark.parametrize("depth", [1_000, 60_000])
@pytest.mark.parametrize("place", deep_messages(1))
@pytest.mark.parametrize("suffix", ["", ' "\\ud800"'])
def test_no_nesting_breaks_the_reader(place: str, depth: int, suffix: str) -> None:
    protocol_error(deep_messages(depth)[place] + suffix)
    protocol_error("[" * depth + suffix)


@pytest.mark.parametrize("item", ["[]", "{}", '[{"a":[]}]', "9" * 1_001])
def test_a_message_of_too_many_objects_lists_or_digits_is_rejected_in_either_direction(item: str) -> None:
    values = json.loads(f"[{','.join([item] * (120_000 if len(item) < 100 else 1_000))}]")
    wrong = r"(objects and lists|1,000 digits).*send the value in parts"
    message = json.dumps({"type": "call.requested", "requestId": "r", "operationId": "a.b", "input": values})
    for decode in (partial(decode_event, limit=10**7), partial(decode_message, limit=10**7)):
        with pytest.raises(CallError, match=wrong) as caught:
            decode(message.replace(" ", "").encode())
        assert (caught.value.code, caught.value.details) == (ErrorCode.PAYLOAD_TOO_LARGE, {"requestId": "r"})
    with pytest.raises(CallError, match=wrong) as caught:
        encode_event(request(values), limit=10**7)
    assert (caught.value.code, caught.value.details) == (ErrorCode.PAYLOAD_TOO_LARGE, None)


def test_ten_thousand_objects_and_a_million_brackets_in_a_text_pass() -> None:
    person = {"id": 7, "name": "Ada", "tags": ["a", "b"], "address": {"street": "Main", "zip": "12345"}, "roles": [{}]}
    for input in ([person] * 10_000, "[{" * 400_000):
        assert decode_event(encode_event(request(input), limit=10**7), limit=10**7) == request(input)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    event = request([[]] * 1_000)
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("input", [object(), {"a": {1, object()}}, {(1, 2): 3}, lambda: 0, nested(100_000)], ids=type)
@pytest.mark.parametrize("surrogate", [[], ["\ud800"]], ids=["plain", "with a lone surrogate"])
def test_an_event_without_a_json_form_is_a_validation_error_of_its_sender(input: Any, surrogate: list[str]) -> None:
    with pytest.raises(CallError) as caught:
        encode_event(request([*surrogate, input]))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


# --- what JSON cannot carry -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [b'"\\ud800"', b'["\\udc00x"]', b'{"\\ud83d":"\\ud83d\\ude00"}'])
def test_lone_surrogates_that_javascript_escapes_are_replaced_when_they_arrive(message: bytes) -> None:
    sent = REQUESTED.encode().replace(b'{"a":1,"b":2}', message)
    event = decode_event(sent)
    assert isinstance(event, CallRequested)
    assert "\ufffd" in json.dumps(event.input, ensure_ascii=False)
    assert event.request_id == "550e8400-e29b"
    output = decode_event(RESPONDED.encode().replace(b"3", message, 1))
    assert isinstance(output, CallResponded)
    assert output.output.data == event.input


@pytest.mark.parametrize("text", PEER_WRITES.values(), ids=PEER_WRITES)
def test_a_lone_surrogate_anywhere_in_an_event_is_replaced_both_ways(text: str) -> None:
    for escaped in ("\\ud800", "\ud800"):
        event = decode_event(text.replace('"requestId":"', f'"requestId":"{escaped}'))
        assert event.request_id[0] == "\ufffd"
    sent = msgspec.structs.replace(event, request_id="\udfff!")
    assert decode_event(encode_event(sent)).request_id == "\ufffd!"


@pytest.mark.parametrize(
    "event",
    [
        request([math.nan]),
        CallResponded(request_id="r", output=local_envelope({"a": math.inf}, "a.b")),
        CallResponded(
            request_id="r", output=mcp_envelope(1, is_error=False, content=[], structured_content={"a": -math.inf})
        ),
        CallFailed(request_id="r", code="TIMEOUT", message="", details=math.nan),
    ],
    ids=["input", "data", "structured content", "details"],
)
def test_nan_and_infinities_are_sent_as_null_with_one_warning(
    event: CallEvent, caplog: pytest.LogCaptureFixture
) -> None:
    assert b"null" in encode_event(event)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "NaN" in caplog.text


@example(request(None))
@example(request({"null": [None, 1.5]}))
@given(st.builds(request, json_values))
def test_events_without_nan_are_sent_without_a_warning(event: CallEvent) -> None:
    heard: list[logging.LogRecord] = []

    def hear(record: logging.LogRecord) -> bool:
        heard.append(record)
        return False

    listen = logging.getLogger("opwire.model")
    listen.addFilter(hear)
    try:
        encode_event(event)
        assert heard == []
        encode_event(request(math.nan))
        assert len(heard) == 1
    finally:
        listen.removeFilter(hear)
