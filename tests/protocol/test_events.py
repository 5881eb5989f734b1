"""The events of the call protocol and their published schemas."""

import pickle
import time
from typing import Any, get_args

import jsonschema_rs
import msgspec
import pytest

from opwire import CallError, ErrorCode, Identity, local_envelope
from opwire.asgi.problem import problem_details
from opwire.model.tool_envelope import error_payload
from opwire.protocol import (
    CALL_EVENT_SCHEMA,
    CALL_EVENT_SCHEMAS,
    CallAborted,
    CallAnswer,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallQuestion,
    CallRequested,
    CallResponded,
)

KINDS: dict[str, Any] = {kind.__struct_config__.tag: kind for kind in get_args(CallEvent)}
SMALLEST: list[CallEvent] = [
    CallRequested(request_id="r", operation_id="math.add"),
    CallResponded(request_id="r", output=local_envelope(1, "math.add")),
    CallCompleted(request_id="r"),
    CallFailed(request_id="r", code="TIMEOUT", message="late"),
    CallAborted(request_id="r"),
    CallCredit(request_id="r", n=1),
    CallQuestion(request_id="r", id=1, kind="roots"),
    CallAnswer(request_id="r", id=1),
]


def test_the_events_are_the_five_of_the_protocol_credit_progress_and_questions_each_with_a_schema() -> None:
    """The events are call.requested, call.responded, call.completed, call.error, call.aborted, call.credit and
    call.progress: flat JSON objects, told apart by `type`."""
    names = {"requested", "responded", "completed", "error", "aborted", "credit", "progress", "question", "answer"}
    assert set(KINDS) == set(CALL_EVENT_SCHEMAS) == {f"call.{name}" for name in names}


@pytest.mark.parametrize("name", KINDS)
def test_a_schema_has_exactly_the_fields_of_its_event(name: str) -> None:
    schema = CALL_EVENT_SCHEMAS[name]
    fields = {field.encode_name: field for field in msgspec.structs.fields(KINDS[name])}
    assert set(schema["properties"]) == {"type", *fields}
    assert set(schema["required"]) == {"type"} | {key for key, field in fields.items() if field.required}
    assert schema["properties"]["type"] == {"const": name}


def test_the_schemas_are_valid_schemas() -> None:
    for schema in (CALL_EVENT_SCHEMA, *CALL_EVENT_SCHEMAS.values()):
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


@pytest.mark.parametrize("event", SMALLEST, ids=lambda event: event.__struct_config__.tag)
def test_an_event_fits_the_schema_of_its_kind_and_no_other(event: CallEvent) -> None:
    document = msgspec.to_builtins(event)
    fitting = [name for name, schema in CALL_EVENT_SCHEMAS.items() if jsonschema_rs.is_valid(schema, document)]
    assert fitting == [document["type"]]
    assert jsonschema_rs.is_valid(CALL_EVENT_SCHEMA, document)


@pytest.mark.parametrize(
    "document",
    [
        {"type": "call.requested", "requestId": "r"},
        {"type": "call.requested", "requestId": "r", "operationId": "a.b", "credits": -1},
        {"type": "call.requested", "requestId": 1, "operationId": "a.b"},
        {"type": "call.requested", "requestId": "r", "operationId": "a.b", "identity": {"scopes": []}},
        {"type": "call.responded", "requestId": "r", "output": 3},
        {"type": "call.responded", "requestId": "r", "output": {"data": 3}},
        {"type": "call.responded", "output": {"data": 3, "meta": {"source": "mcp", "isError": False, "content": []}}},
        {"type": "call.completed"},
        {"type": "call.error", "requestId": "r", "code": "TIMEOUT"},
        {"type": "call.aborted", "requestId": None},
        {"type": "call.credit", "requestId": "r", "n": -1},
        {"type": "call.credited", "requestId": "r", "n": 1},
    ],
    ids=str,
)
def test_the_schema_rejects_what_is_not_an_event(document: Any) -> None:
    assert not jsonschema_rs.is_valid(CALL_EVENT_SCHEMA, document)


def test_the_schema_of_an_answer_takes_an_envelope_and_nothing_else() -> None:
    schema = CALL_EVENT_SCHEMAS["call.responded"]
    bare = {"type": "call.responded", "requestId": "r", "output": {"total": 3}}
    assert not jsonschema_rs.is_valid(schema, bare)
    wrapped = {"data": bare["output"], "meta": {"source": "local", "operationId": "a.b", "timestamp": 1}}
    assert jsonschema_rs.is_valid(schema, {**bare, "output": wrapped})


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_is_the_same_after_a_journey_as_an_event(code: ErrorCode) -> None:
    error = CallError(code, "why", {"at": [1, 2]}, retryable=True, retry_after=1.5)
    arrived = CallFailed.of("r", error).error()
    assert (arrived.code, arrived.message, arrived.details) == (code, "why", {"at": [1, 2]})
    assert (arrived.retryable, arrived.retry_after) == (True, 1.5)


def test_an_error_that_may_not_be_retried_says_so_on_the_wire() -> None:
    event = CallFailed.of("r", CallError("TIMEOUT", retryable=False))
    assert event.retryable is False
    assert event.error().retryable is False


def test_a_code_of_a_foreign_peer_is_an_execution_error_that_keeps_it() -> None:
    """The error code of a peer with codes of its own is kept, and passed on to every surface."""
    event = CallFailed(request_id="r", code="TEAPOT", message="short and stout", details=[1], retryable=True)
    error = event.error()
    assert (error.code, error.message, error.foreign_code) == (ErrorCode.EXECUTION_ERROR, "short and stout", "TEAPOT")
    assert str(error) == "EXECUTION_ERROR (TEAPOT): short and stout"
    assert (error.details, error.retryable) == ([1], True)
    assert CallFailed.of("r", error) == event
    assert pickle.loads(pickle.dumps(error)).foreign_code == "TEAPOT"
    assert problem_details(error).foreign_code == "TEAPOT"
    assert error_payload(error).code == "TEAPOT"


def test_a_foreign_code_is_bounded() -> None:
    error = CallFailed(request_id="r", code="x" * 10_000, message="m").error()
    assert error.foreign_code == "x" * 100


def test_an_error_without_a_word_about_retrying_has_the_default_of_its_code() -> None:
    assert CallFailed(request_id="r", code="UNAVAILABLE", message="gone").error().retryable
    assert not CallFailed(request_id="r", code="VALIDATION_ERROR", message="no").error().retryable


def test_details_become_plain_data_and_those_without_a_json_form_are_left_out() -> None:
    assert CallFailed.of("r", CallError("INTERNAL", "x", Identity(id="a"))).details == {
        "id": "a",
        "scopes": [],
        "resources": {},
    }
    assert CallFailed.of("r", CallError("INTERNAL", "x", object())).details is None


def test_an_error_says_on_the_wire_that_nothing_was_begun_and_else_nothing_about_it() -> None:
    error = CallError("UNAVAILABLE", "leaving")
    assert "notStarted" not in msgspec.to_builtins(CallFailed.of("r", error))
    refusal = CallFailed(request_id="r", code="UNAVAILABLE", message="leaving", not_started=True)
    document = msgspec.to_builtins(refusal)
    assert document["notStarted"] is True
    assert jsonschema_rs.is_valid(CALL_EVENT_SCHEMAS["call.error"], document)
    assert not jsonschema_rs.is_valid(CALL_EVENT_SCHEMAS["call.error"], {**document, "notStarted": "yes"})
    assert msgspec.convert(document, CallFailed) == refusal


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_the_remaining_time_counts_and_not_the_wall_clock_of_another_machine() -> None:
    an_hour_ago = (time.time() - 3600) * 1000
    event = CallRequested(request_id="r", operation_id="a.b", deadline=an_hour_ago, timeout_ms=1500)
    assert event.seconds_left(30) == 1.5


def test_a_peer_that_sends_the_deadline_alone_is_understood() -> None:
    event = CallRequested(request_id="r", operation_id="a.b", deadline=(time.time() + 100) * 1000)
    assert event.seconds_left(30) == pytest.approx(100, abs=5)


def test_a_request_without_a_deadline_has_that_of_the_server() -> None:
    event = CallRequested(request_id="r", operation_id="a.b")
    assert event.seconds_left(30) == 30
    assert event.seconds_left(None) is None


def arriving(late: float, timeout: float) -> CallRequested:
    """A request that was sent this number of seconds ago by its sender's clock."""
    sent = time.time() - late
    deadline, timeout_ms = (sent + timeout) * 1000, timeout * 1000
    return CallRequested(request_id="r", operation_id="a.b", deadline=deadline, timeout_ms=timeout_ms)


@pytest.mark.parametrize(
    ("late", "timeout", "loop_lag", "left"),
    [
        (0, 1, 0, 1),
        (6, 1, 7, -5),  # it waited for 6 s in the socket of a process that was stopped for 7
        (6, 1, 2, -1),  # 2 s of these are explained by that, 4 by clocks that differ, which is tolerated up to 5 s
        (4, 1, 0, 1),  # the clocks may differ by so much
        (8, 1, 0, -2),  # the medium has kept it
        (8, 30, 0, 27),
        (-3_600, 1, 0, 1),  # the sender's clock is ahead
        (3_600, 1, 0, 1),  # no transport keeps a request for an hour: that clock is wrong
        (3_600, 1, 2, 1),
    ],
)
def test_the_time_that_a_request_spent_on_its_way_is_deducted(
    late: float, timeout: float, loop_lag: float, left: float
) -> None:
    assert arriving(late, timeout).seconds_left(30, loop_lag) == pytest.approx(left, abs=0.5)


def test_without_a_deadline_the_time_that_the_receiver_was_loop_lag_is_deducted() -> None:
    request = CallRequested(request_id="r", operation_id="a.b", timeout_ms=1_500)
    assert request.seconds_left(30, 1.0) == 0.5


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e300, 0, 0.5])
def test_no_number_of_milliseconds_breaks_the_arithmetic(number: float) -> None:
    """Every number of a peer is bounded where it is read: none breaks a connection or a timer."""
    failed = CallFailed(request_id="r", code="RATE_LIMITED", message="m", retry_after_ms=number)
    assert isinstance(failed.error().retry_after, float)
    fields: dict[str, Any]
    for fields in ({"timeout_ms": number}, {"deadline": number}, {"deadline": number, "timeout_ms": number}):
        left = CallRequested(request_id="r", operation_id="a.b", **fields).seconds_left(30, 1.0)
        assert isinstance(left, float)
        assert abs(left) < 1e14
