"""Errors as RFC 9457 problem details."""

from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from opwire import ERROR_TABLE, CallError, ErrorCode
from opwire.asgi.problem import MAX_DETAILS, HTTPStatusError, encode_problem, problem_details, send_problem


def shown(error: CallError, **options: Any) -> dict[str, Any]:
    return msgspec.json.decode(encode_problem(problem_details(error, **options)))


async def sent(error: CallError | HTTPStatusError, **options: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await send_problem(send, error, **options)
    start, body = messages
    return start["status"], dict(start["headers"]), body["body"]


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_the_status_and_the_title_of_the_table(code: ErrorCode) -> None:
    problem = shown(CallError(code, "what happened"))
    assert problem == {
        "type": f"urn:opwire:{code.value}",
        "title": ERROR_TABLE[code].message,
        "status": ERROR_TABLE[code].http_status,
        "detail": "what happened",
        "code": code.value,
        "retryable": ERROR_TABLE[code].retryable,
    }


def test_a_problem_names_its_occurrence_and_when_to_try_again() -> None:
    problem = shown(CallError("RATE_LIMITED", retry_after=1.25), request_id="a b")
    assert (problem["instance"], problem["retryAfterMs"]) == ("urn:opwire:request:a%20b", 1250)


def test_details_that_are_too_large_or_have_no_json_form_are_left_out() -> None:
    assert shown(CallError("INTERNAL", details={"a": [1]}))["details"] == {"a": [1]}
    for details in ("x" * MAX_DETAILS, {"a": object()}):
        assert "details" not in shown(CallError("INTERNAL", details=details))


def test_what_http_itself_forbids_has_the_title_of_its_status() -> None:
    problem = shown(CallError("PROTOCOL_ERROR", "no"), status=HTTPStatus.METHOD_NOT_ALLOWED)
    assert (problem["type"], problem["title"], problem["status"]) == ("about:blank", "Method Not Allowed", 405)


async def test_a_problem_is_sent_with_its_type_and_never_cached() -> None:
    status, headers, body = await sent(CallError("UNAVAILABLE", retry_after=0.2))
    assert status == 503
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"retry-after"] == b"1"
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"content-length"] == b"%d" % len(body)


async def test_an_answer_to_head_has_the_length_but_not_the_body() -> None:
    _, headers, body = await sent(CallError("INTERNAL"), with_body=False)
    assert int(headers[b"content-length"]) > 0
    assert body == b""


async def test_401_asks_for_a_token_and_a_refusal_brings_its_own_headers() -> None:
    _, headers, _ = await sent(CallError("UNAUTHENTICATED"))
    assert headers[b"www-authenticate"] == b"Bearer"
    own = HTTPStatusError(HTTPStatus.UNAUTHORIZED, CallError("UNAUTHENTICATED"), (b"www-authenticate", b"Bearer x=y"))
    _, headers, _ = await sent(own)
    assert headers[b"www-authenticate"] == b"Bearer x=y"
