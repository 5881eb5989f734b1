"""What a journal keeps: tasks and outcomes that can be read, or say why not."""

import pytest
from msgspec.structs import replace

from opwire import CallError
from opwire.durable.journal import key_in_use
from opwire.protocol import CallAborted, CallFailed, CallResponded, encode_event
from tests.durable.samples import claim, outcome, task


def test_a_task_holds_its_request() -> None:
    event = task("order-17", input={"article": "tea"}).read()
    assert (event.request_id, event.operation_id, event.input) == ("order-17", "shop.order", {"article": "tea"})


@pytest.mark.parametrize(
    "request_",
    [b"", b"\xff", b"{}", encode_event(CallAborted(request_id="k")), task(operation_id="shop.cancel").request],
)
def test_a_task_without_a_request_for_its_operation_is_a_protocol_error(request_: bytes) -> None:
    with pytest.raises(CallError, match="PROTOCOL_ERROR"):
        replace(task(), request=request_).read()


def test_an_outcome_holds_an_answer_or_an_error() -> None:
    answer = outcome(claim(), {"number": 17}).read()
    assert isinstance(answer, CallResponded)
    assert answer.output.data == {"number": 17}
    failed = CallFailed(request_id="k", code="TIMEOUT", message="too slow")
    assert replace(outcome(claim()), event=encode_event(failed)).read() == failed


@pytest.mark.parametrize("event", [b"", b"[]", task().request])
def test_an_outcome_without_an_answer_is_a_protocol_error(event: bytes) -> None:
    with pytest.raises(CallError, match="PROTOCOL_ERROR"):
        replace(outcome(claim()), event=event).read()


def test_the_error_for_a_key_in_use_names_it_and_says_what_to_do() -> None:
    error = key_in_use("order-17")
    assert (error.code, error.details) == ("VALIDATION_ERROR", {"key": "order-17"})
    assert "'order-17'" in error.message
    assert "a key of its own" in error.message
    assert len(key_in_use("x" * 1000).message) < 200
