"""What a request says beside its path."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from opwire import CallError, ErrorCode, Identity
from opwire.asgi.problem import HTTPStatusError
from opwire.asgi.request import AdmittedRequest
from opwire.model.origin import ENVELOPE_JSON
from opwire.openapi.server.request import Request, parse_body

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def request_with(path: str = "/math/add", root_path: str = "", body: bytes = b"", **headers: str) -> Request:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "root_path": root_path, "query_string": b""}
    admitted = AdmittedRequest("POST", lines, dict(lines), identity=Identity(id="me"), expires=5.0, body=body)
    return Request(scope, admitted)


def body_of(body: bytes, content_type: str = "application/json") -> Any:
    return request_with(content_type=content_type, body=body).json()


def test_a_request_id_is_kept_if_it_is_sane_and_else_made() -> None:
    assert request_with(x_request_id="abc-123:x/y").request_id == "abc-123:x/y"
    made = {request_with(x_request_id=odd).request_id for odd in ("", "a b", "a\x00", "é", "x" * 129, '"')}
    assert len(made) == 6
    assert all(len(id) == 32 for id in made)


def test_identity_and_expiry_come_from_the_guard() -> None:
    request = request_with()
    assert (request.identity, request.admitted.expires) == (Identity(id="me"), 5.0)


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [("", "/a/b", "/a/b"), ("/api", "/api/a/b", "/a/b"), ("/api", "/apis/b", "/apis/b"), ("/a", "/a/a/b", "/a/b")],
)
def test_the_path_is_that_below_where_the_application_is_mounted(root: str, path: str, expected: str) -> None:
    assert request_with(path, root).path == expected


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("ENVELOPE", True),
        ("text/event-stream, ENVELOPE;q=0.9", True),
        ("ENVELOPE, */*", True),
        ("application/json;q=0.5, ENVELOPE ; v=1; q=0.8", True),
        ("Application/VND.opwire.envelope+JSON", True),
        ("application/json, application/octet-stream, ENVELOPE", False),
        ("ENVELOPE;q=0", False),
        ("ENVELOPE;q=0.1, application/json;q=0.2", False),
        ("x-ENVELOPE", False),
        ("application/json, */*", False),
        ("", False),
    ],
)
def test_the_envelope_is_asked_for_by_name(accept: str, wanted: bool) -> None:
    assert request_with(accept=accept.replace("ENVELOPE", ENVELOPE_JSON)).wants_envelope is wanted
    assert not request_with().wants_envelope


def test_the_trace_is_kept_if_it_is_one() -> None:
    assert request_with(traceparent=TRACE, tracestate="a=1").metadata == {"traceparent": TRACE, "tracestate": "a=1"}
    assert request_with(traceparent=TRACE).metadata == {"traceparent": TRACE}
    for odd in ("", "x", TRACE.upper(), TRACE + "\r\nx: y"):
        assert request_with(traceparent=odd, tracestate="a=1").metadata == {}


def test_a_deadline_is_the_time_left_or_a_date() -> None:
    now = time.monotonic()
    for given_value in ("2000", str(time.time_ns() // 1_000_000 + 2000)):
        assert request_with(x_deadline_ms=given_value).deadline(30) == pytest.approx(now + 2, abs=0.5)
    assert request_with().deadline(30) == pytest.approx(now + 30, abs=0.5)
    assert request_with().deadline(None) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0", ErrorCode.TIMEOUT),
        ("1700000000000", ErrorCode.TIMEOUT),
        ("-5", ErrorCode.PROTOCOL_ERROR),
        ("soon", ErrorCode.PROTOCOL_ERROR),
        ("", ErrorCode.PROTOCOL_ERROR),
        ("9" * 30, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_deadline_that_has_passed_or_is_not_a_number_is_rejected(text: str, code: ErrorCode) -> None:
    with pytest.raises(CallError) as raised:
        request_with(x_deadline_ms=text).deadline(30)
    assert raised.value.code is code


@pytest.mark.parametrize(
    "text", ["9" * 18, "90000000000", str(time.time_ns() // 1_000_000 + 10**10)], ids=["9s", "years", "date"]
)
def test_a_deadline_is_at_most_a_day_away(text: str) -> None:
    assert request_with(x_deadline_ms=text).deadline(30) == pytest.approx(time.monotonic() + 86_400, abs=5)


@pytest.mark.parametrize(
    ("root", "raw", "plain"),
    [
        *(("", b"/math/add", True), ("", b"/m%61th/add", False), ("", b"", True), ("", b"/math%2Fadd", False)),
        *(("/é", b"/%C3%A9/math/add", True), ("/é", b"/%c3%a9/math/add", False), ("/a", b"/%61/math/add", False)),
    ],
)
def test_a_path_that_came_percent_encoded_is_known_as_such(root: str, raw: bytes, plain: bool) -> None:
    scope = {"type": "http", "path": f"{root}/math/add", "root_path": root, "query_string": b""}
    admitted = AdmittedRequest("GET", [], {})
    assert Request({**scope, "raw_path": raw}, admitted).is_plain is plain
    assert Request(scope, admitted).is_plain


def test_the_last_event_is_text() -> None:
    assert request_with(last_event_id="é-1").last_event_id == "é-1"
    assert request_with(last_event_id="").last_event_id is None
    assert request_with().last_event_id is None


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/vnd.shop+json",
        "application/json;",
    ],
)
def test_json_is_taken_under_all_its_names(content_type: str) -> None:
    assert body_of(b'{"a": [1]}', content_type) == {"a": [1]}


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/json; charset=utf-16"],
)
def test_a_body_that_is_not_said_to_be_json_is_refused(content_type: str) -> None:
    with pytest.raises(HTTPStatusError) as raised:
        body_of(b"{}", content_type)
    assert raised.value.status == 415


def test_without_a_body_an_input_of_any_type_is_missing() -> None:
    assert body_of(b"", "text/plain") is UNSET


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b"NaN", "not valid JSON"),
        (b"[Infinity]", "not valid JSON"),
        (b"1e999", "not valid JSON"),
        (b"9" * 5_000, "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"[" * 60_000, "nested too deeply"),
        (b'{"a":' * 60_000, "nested too deeply"),
        (b'{"a": 1, "a": 2}', "duplicate key 'a'"),
        (b'{"a": 1, "\\u0061": 2}', "duplicate key 'a'"),
        (b'[{"a": {"b": 1, "b": 1}}]', "duplicate key 'b'"),
        (b'{"a": ":", "a": 2}', "duplicate key 'a'"),
        (rb'{"a": {"\u003a": 1, "\u003A": 2}}', "duplicate key ':'"),
        (rb'["\ud800", {"a": 1, "a": 2}]', "duplicate key 'a'"),
        (b'["\x00", "' + rb"\ud800" + b'"]', "not valid JSON"),
        (b'{"a": 1e999, "b": {}}', "not valid JSON"),
        (b"[" + b"9" * 4_400 + b"]", "not valid JSON"),
    ],
)
def test_a_body_that_is_not_clearly_json_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(CallError, match=reason) as raised:
        parse_body(body)
    assert raised.value.code is ErrorCode.PROTOCOL_ERROR


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(':a"\\'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(':ab"', max_size=3), inner, max_size=3),
    max_leaves=10,
)


def large(*items: bytes) -> bytes:
    return b"[" + b",".join([*([b'{"a:": [":"]}'] * 10_000), *items]) + b"]"


@pytest.mark.parametrize("end", [b'{"z": 1, "z": 2}', rb'{"\u003a": 1, ":": 2}', rb'[{"\ud800": 1, "\ud801": 2}]'])
def test_a_key_that_is_there_twice_is_found_in_a_large_body_too(end: bytes) -> None:
    with pytest.raises(CallError, match="duplicate key"):
        parse_body(large(end))


@pytest.mark.parametrize(
    ("end", "value"),
    [
        (rb'"\u003a"', ":"),
        (rb'"\\u003a"', "\\u003a"),
        (rb'"\\\u003A:"', "\\::"),
        (rb'"\ud83d\ude00\ude00\ud83dx\\ud800"', "\U0001f600\ufffd\ufffdx\\ud800"),
        (b'{"a": {"a": ":"}}', {"a": {"a": ":"}}),
    ],
)
def test_a_large_body_is_read_as_a_small_one_is(end: bytes, value: Any) -> None:
    assert parse_body(large(end))[-1] == value
    assert parse_body(b'{":": [{}], "x": ' + end + b"}") == {":": [{}], "x": value}


def test_the_work_to_find_a_key_that_is_there_twice_grows_with_the_body_and_not_with_its_square() -> None:
    def seconds(keys: int) -> float:
        body = b"{" + b",".join(b'"%d":0' % n for n in range(keys)) + b',"z":1,"z":2}'
        begun = time.process_time()
        with pytest.raises(CallError, match="duplicate key"):
            parse_body(body)
        return time.process_time() - begun

    assert min(seconds(80_000) for _ in range(3)) < 100 * max(min(seconds(4_000) for _ in range(3)), 0.002)


@given(json_values)
def test_every_json_value_is_read_as_it_was_written(value: Any) -> None:
    assert parse_body(json.dumps(value).encode()) == value
