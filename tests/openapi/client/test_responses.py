"""What an API answered, as data with its schema or as an error."""

import json
import logging
import time
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.http.client import MAX_WAIT
from opwire.model.envelope import HTTPResponseMeta
from opwire.model.operation import ShapedResult
from opwire.openapi.client.plan import CallPlan, ResponseMedia
from opwire.openapi.client.responses import MAX_ERROR_BODY, ResponseHead, ResponseReader, error_of
from opwire.schema import UNKNOWN, Schema
from tests.properties import examples

PET = Schema({"type": "object"})
CREATED = Schema({"type": "integer"})
ANY_SUCCESS = Schema({"type": "string"})
FALLBACK = Schema({"type": "array"})


def plan(**responses: Schema) -> CallPlan:
    """A plan with JSON responses: `_200=PET`, `default=FALLBACK`."""
    declared = {
        name.removeprefix("_"): (ResponseMedia(content_type="application/json", schema=schema),)
        for name, schema in responses.items()
    }
    return CallPlan(operation_id="pets.get", method="GET", path="/", server="http://pets.example", responses=declared)


def head(
    content_type: str = "application/json", status: int = 200, method: str = "GET", **headers: str
) -> ResponseHead:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return ResponseHead(method=method, status=status, reason="", headers=pairs, content_type=content_type)


def result_of(declared: CallPlan, answer: ResponseHead, body: bytes) -> ShapedResult:
    return ResponseReader(declared).read(answer, body)


def data_of(content_type: str, body: bytes, **options: Any) -> Any:
    return result_of(plan(), head(content_type, **options), body).value.data


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("application/json", b'{"a": 1}', {"a": 1}),
        ("application/json; charset=utf-8", b'\xef\xbb\xbf"\xc3\xa9"', "é"),
        ("application/problem+json", b"null", None),
        ("application/json; charset=latin-1", b'"\xe9"', "é"),
        ("application/json; charset=utf-16", '["é"]'.encode("utf-16"), ["é"]),
        ("application/json", b"123456789012345678901234567890", 123456789012345678901234567890),
        ("application/json", b'"\\ud800"', "\ufffd"),
        ("text/plain", "é".encode(), "é"),
        ("text/plain; charset=latin-1", b"\xe9", "é"),
        ("text/html", b"\xef\xbb\xbf<p>", "<p>"),
        ("application/xml", b"<a/>", "<a/>"),
        ("application/octet-stream", b"\x00\xff", b"\x00\xff"),
        ("image/png", b"\x89PNG", b"\x89PNG"),
        ("", b"\x00", b"\x00"),
        ("nonsense", b"{}", b"{}"),
    ],
)
def test_data_is_what_the_content_type_says(content_type: str, body: bytes, data: Any) -> None:
    assert data_of(content_type, body) == data


@pytest.mark.parametrize(
    ("content_type", "body", "status", "method"),
    [
        ("application/json", b"", 200, "GET"),
        ("text/plain", b"", 200, "GET"),
        ("", b"", 204, "DELETE"),
        ("application/json", b"{}", 205, "POST"),
        ("application/json", b"", 304, "GET"),
        ("application/json", b"", 200, "HEAD"),
    ],
)
def test_a_response_without_content_is_null(content_type: str, body: bytes, status: int, method: str) -> None:
    result = result_of(plan(_200=PET), head(content_type, status, method), body)
    assert result.value.data is None
    assert result.value.meta.status_code == status
    assert result.schema is UNKNOWN


@pytest.mark.parametrize("body", [b'{"a": ', b"<html>", b"NaN", b"[" * 100_000, b'{"a": 1}x'])
def test_invalid_json_is_kept_as_text_with_a_warning(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = result_of(plan(_200=PET), head(), body)
    assert result.value.data == body.decode()
    assert result.schema is UNKNOWN
    assert "pets.get" in caplog.text


def test_text_that_does_not_fit_its_charset_is_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert data_of("text/plain", b"a\xffb") == "a\ufffdb"
    assert "invalid utf-8" in caplog.text


@settings(max_examples=examples(100))
@given(st.sampled_from(["application/json", "text/plain; charset=utf-16", "text/x; charset=utf-7", "a/b"]), st.binary())
def test_no_body_is_too_strange(content_type: str, body: bytes) -> None:
    result_of(plan(_200=PET), head(content_type), body)


def test_an_answer_that_does_not_say_what_it_is_is_what_its_document_says() -> None:
    result = result_of(plan(_200=PET), head(""), b'{"a": 1}')
    assert (result.value.data, result.schema) == ({"a": 1}, PET)


@pytest.mark.parametrize(("status", "schema"), [(200, PET), (201, CREATED), (202, ANY_SUCCESS), (304, UNKNOWN)])
def test_the_schema_is_that_of_the_actual_status(status: int, schema: Schema) -> None:
    declared = plan(_200=PET, _201=CREATED, _2XX=ANY_SUCCESS, default=FALLBACK)
    assert result_of(declared, head(status=status), b"1").schema is schema


def test_the_default_counts_where_nothing_else_is_declared() -> None:
    assert result_of(plan(default=FALLBACK), head(), b"1").schema is FALLBACK
    assert result_of(plan(), head(), b"1").schema is UNKNOWN
    assert result_of(plan(_404=PET, default=FALLBACK), head(), b"1").schema is FALLBACK
    assert result_of(plan(_200=PET, default=FALLBACK), head(status=202), b"1").schema is UNKNOWN
    assert result_of(plan(_200=PET, default=FALLBACK), head("text/plain"), b"1").schema is UNKNOWN


def test_an_api_that_makes_up_content_types_is_understood_each_time() -> None:
    results = ResponseReader(plan(_200=PET))
    for number in range(200):
        assert results.read(head(f"application/json; boundary={number}"), b"{}").schema is PET


def test_the_envelope_carries_status_headers_and_content_type() -> None:
    pairs = [("X-Rate", "1"), ("X-Rate", "2"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    answer = ResponseHead(method="GET", status=201, reason="Created", headers=pairs, content_type="text/plain; x=y")
    assert result_of(plan(), answer, b"hi").value.meta == HTTPResponseMeta(
        201, {"x-rate": "1, 2"}, "text/plain; x=y", set_cookie=["a=1", "b=2"]
    )


# --- errors ---------------------------------------------------------------------------------------------------------


def error(status: int, body: bytes = b"", content_type: str = "application/json", **headers: str) -> CallError:
    return error_of(head(content_type, status, **headers), body)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 418, 429, 500, 599])
def test_an_http_error_of_any_status_is_an_execution_error(status: int) -> None:
    caught = error(status, b'{"message": "no"}', X_Request_Id="7")
    assert caught.code is ErrorCode.EXECUTION_ERROR
    assert caught.message.startswith(f"HTTP {status}: ")
    assert caught.details == {"status": status, "headers": {"x-request-id": "7"}, "body": {"message": "no"}}


@pytest.mark.parametrize(
    ("reason", "status", "message"),
    [
        ("Not Found", 404, "HTTP 404: Not Found"),
        ("", 404, "HTTP 404: Not Found"),
        ("", 599, "HTTP 599: Unknown"),
        ("x" * 1000, 500, "HTTP 500: " + "x" * 200),
    ],
)
def test_the_message_is_the_status_and_its_reason(reason: str, status: int, message: str) -> None:
    answer = ResponseHead(method="GET", status=status, reason=reason, headers=[])
    assert error_of(answer, b"").message == message


@pytest.mark.parametrize(
    ("body", "explanation"),
    [
        ({"type": "about:blank", "title": "Conflict", "detail": "version 3 is newer"}, ": version 3 is newer"),
        ({"title": "Out of credit", "status": 409}, ": Out of credit"),
        ({"title": "conflict"}, ""),  # as the reason
        ({"message": "no such pet", "documentation_url": "https://api.example"}, ": no such pet"),
        ({"Message": "no such pet"}, ": no such pet"),
        ({"error": "no such pet"}, ": no such pet"),
        ({"error": "invalid_grant", "error_description": "expired"}, ": expired"),
        ({"error": {"type": "bad", "message": "no such pet", "code": 7}}, ": no such pet"),
        ({"error": True, "title": "no such pet"}, ": no such pet"),
        ({"errors": [{"title": "Bad", "detail": "no such pet"}, {"detail": "other"}]}, ": no such pet"),
        ({"errors": ["no such pet"]}, ": no such pet"),
        ([{"message": "no such pet"}], ": no such pet"),
        ({"detail": [{"loc": ["query", "q"], "msg": "Field required"}]}, ": Field required"),
        ({"detail": "two\r\n lines\t\x1b[2J"}, ": two lines \\x1b[2J"),
        ({"detail": "x" * 1000}, f": {'x' * 300}…"),
        ({"detail": " "}, ""),
        ({"detail": 7}, ""),
        ("no such pet", ""),
        (7, ""),
        (None, ""),
    ],
)
def test_the_message_quotes_the_explanation_of_a_json_body(body: Any, explanation: str) -> None:
    answer = ResponseHead(
        method="GET", status=409, reason="Conflict", headers=[], content_type="application/problem+json"
    )
    caught = error_of(answer, json.dumps(body).encode())
    assert caught.message == f"HTTP 409: Conflict{explanation}"
    assert caught.details["body"] == body


def test_an_explanation_that_is_nested_too_deeply_is_not_searched() -> None:
    body: Any = "no"
    for _ in range(100):
        body = {"error": body}
    assert error(400, json.dumps(body).encode()).message == "HTTP 400: Bad Request"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_an_error_that_may_pass_is_retryable(status: int) -> None:
    assert error(status).retryable


@pytest.mark.parametrize("status", [300, 400, 401, 403, 404, 409, 422, 501, 505])
def test_an_error_that_stays_is_not_retryable(status: int) -> None:
    assert not error(status).retryable


def test_an_api_that_says_when_to_come_back_is_believed() -> None:
    limited = error(403, Retry_After="30")
    assert (limited.retryable, limited.retry_after) == (True, 30.0)


@pytest.mark.parametrize(
    ("value", "low", "high"), [("0", 0, 0), ("1.5", 1.5, 1.5), ("Mon, 01 Jan 2001 00:00:00 GMT", 0, 0)]
)
def test_retry_after_is_a_number_of_seconds_or_a_date(value: str, low: float, high: float) -> None:
    wait = error(503, Retry_After=value).retry_after
    assert wait is not None
    assert low <= wait <= high


def test_a_date_to_come_back_is_a_while_from_now() -> None:
    wait = error(503, Retry_After=formatdate(time.time() + 60, usegmt=True)).retry_after
    assert wait is not None
    assert 50 < wait <= 60


@pytest.mark.parametrize("value", ["soon", "-5", "", "1e9", "٣", "9" * 400, "Mon, 99 Foo 2001"])
def test_an_invalid_retry_after_is_ignored(value: str) -> None:
    assert error(503, Retry_After=value).retry_after is None


def test_a_rate_limit_says_when_it_ends_if_it_says_so_plainly() -> None:
    assert error(429, RateLimit_Reset="12").retry_after == 12
    wait = error(429, X_RateLimit_Reset=str(int(time.time()) + 60)).retry_after
    assert wait is not None
    assert 50 < wait <= 61
    assert error(429, X_RateLimit_Reset="1m30s").retry_after is None
    assert error(404, X_RateLimit_Reset="12").retry_after is None


def test_cookies_are_not_told() -> None:
    assert error(500, Set_Cookie="session=secret", Vary="a").details["headers"] == {"vary": "a"}


@pytest.mark.parametrize(
    ("content_type", "body", "told"),
    [
        ("application/json", b"", None),
        ("application/json", b"{broken", "{broken"),
        ("text/html", b"<h1>no</h1>", "<h1>no</h1>"),
        ("", b"no", "no"),
        ("text/plain", b"\xff", "\ufffd"),
        ("image/png", b"\x89PNG", "<4 bytes of image/png>"),
        ("application/json", b"[" * 300 + b"]" * 300, "[" * 300 + "]" * 300),  # too deep to be sent on
    ],
)
def test_the_body_is_reported_as_plain_data(content_type: str, body: bytes, told: Any) -> None:
    assert error(500, body, content_type).details["body"] == told


def test_a_body_of_which_only_the_start_was_read_is_reported_as_text() -> None:
    body = json.dumps(["x" * 20_000]).encode()[:MAX_ERROR_BODY]
    told = error_of(head(status=500), body, is_whole=False).details["body"]
    assert told == f"{body.decode()}…"


def test_a_hint_is_part_of_the_details() -> None:
    assert error_of(head(status=401), b"", hint="give credentials").details["hint"] == "give credentials"


@pytest.mark.parametrize(
    "value",
    [
        "999999999",
        "999999999999",
        "9" * 30,
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
    ],
)
def test_a_wait_is_never_longer_than_a_month(value: str) -> None:
    assert error(503, Retry_After=value).retry_after == MAX_WAIT


@given(st.text(alphabet="0123456789 ,:+-GMTFriDec.e", max_size=60))
def test_any_retry_after_is_a_bounded_wait_or_none(value: str) -> None:
    wait = error(503, Retry_After=value).retry_after
    assert wait is None or 0 <= wait <= MAX_WAIT


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"[" * 100 + b"]" * 100 + b","])
def test_json_of_nothing_but_small_lists_is_text(unit: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """JSON with more than one object or list per 16 bytes, beyond 65,536, is not decoded."""
    body = b"[" + unit * (2_000_000 // len(unit)) + b"1]"
    assert data_of("application/json", body) == body.decode()
    assert "objects and lists" in caplog.text


def test_brackets_in_texts_and_rows_of_numbers_are_not_too_many() -> None:
    texts = ["[{" * 10 + '"\\"'] * 20_000
    assert data_of("application/json", json.dumps(texts).encode()) == texts
    rows = [[12.345678, 45.678901]] * 100_000
    assert data_of("application/json", json.dumps(rows).encode()) == rows


SECRET = "sk/s3cret+key=="
ECHOES = {
    "as it was sent": ("application/json", json.dumps({"detail": f"no {SECRET}"}).encode()),
    "with escaped slashes": ("application/json", json.dumps({"detail": f"no {SECRET}"}).replace("/", "\\/").encode()),
    "with escapes": ("application/json", b'{"detail":"%s"}' % "".join(f"\\u{ord(c):04x}" for c in SECRET).encode()),
    "as a name": ("application/json", json.dumps({SECRET: [SECRET]}).encode()),
    "in another charset": ("text/plain; charset=utf-16-le", f"no {SECRET}".encode("utf-16-le")),
    "in a URL": ("text/html", f'<a href="/?key={quote(SECRET, safe="")}">'.encode()),
}


@pytest.mark.parametrize(("content_type", "body"), ECHOES.values(), ids=ECHOES)
def test_a_secret_that_the_api_echoes_is_not_told(content_type: str, body: bytes) -> None:
    failure = error_of(head(content_type, 403), body, secrets=[SECRET])
    told = failure.message + json.dumps(failure.details)
    assert "***" in told
    assert "s3cret" not in told


def test_a_secret_in_a_header_or_the_reason_is_not_told() -> None:
    echoed = head(status=401, X_Key=SECRET, Location=f"/?key={quote(SECRET, safe='')}", Date="today")
    failure = error_of(replace(echoed, reason=f"no {SECRET}"), b"", secrets=[SECRET])
    assert failure.message == "HTTP 401: no ***"
    assert failure.details["headers"] == {"x-key": "***", "location": "/?key=***", "date": "today"}


def test_the_beginning_of_a_secret_at_the_end_of_a_cut_body_is_not_told() -> None:
    failure = error_of(head("text/plain", 403), b"no sk/s3cr", is_whole=False, secrets=["other", SECRET])
    assert failure.details["body"] == "no ***…"
    assert error_of(head("text/plain", 403), b"no sk", is_whole=False, secrets=[SECRET]).details["body"] == "no sk…"
