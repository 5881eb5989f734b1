"""Several events in one message or task: each is decoded as if it were alone."""

from typing import Any

import msgspec
import pytest

from opwire.errors import CallError, ErrorCode
from opwire.model.envelope import MCPResponseMeta, ResponseEnvelope, local_envelope
from opwire.protocol.batch import MAX_BATCH, MAX_TOKEN, decode_batch, encode_batch
from opwire.protocol.events import (
    CallCompleted,
    CallFailed,
    CallRequested,
    CallResponded,
    Who,
    encode_event,
    encode_session,
)

RESPONDED = CallResponded(request_id="r1", output=local_envelope(3, "math.add"))
EVENTS = [
    RESPONDED,
    CallResponded(request_id="r2", output=local_envelope(b"binary", "math.add"), seq=1),
    CallResponded(request_id="r3", output=ResponseEnvelope(1, MCPResponseMeta(is_error=False, content=[]))),
    CallFailed(request_id="r4", code="TIMEOUT", message="late"),
    CallCompleted(request_id="r5", seq=0),
    CallRequested(request_id="r6", operation_id="math.add"),
]


def batch(*events: bytes) -> bytes:
    return encode_batch((f"t{number}", event) for number, event in enumerate(events))


@pytest.mark.parametrize("chosen", [EVENTS, EVENTS[:1] * 3, EVENTS[3:], []])
def test_a_batch_is_decoded_to_its_events(chosen: list[Any]) -> None:
    decoded = decode_batch(batch(*map(encode_event, chosen)), 10_000)
    assert decoded == [(f"t{number}", each) for number, each in enumerate(chosen)]


def test_an_event_that_is_invalid_too_deep_or_too_large_is_an_error_and_the_others_are_not() -> None:
    deep = b'{"type":"call.responded","requestId":"r","output":{"data":%b1%b,"meta":{}}}' % (b"[" * 250, b"]" * 250)
    deep_request = b'{"type":"call.requested","requestId":"r","operationId":"a.b","input":%b1%b}' % (
        b"[" * 250,
        b"]" * 250,
    )
    good, large = encode_event(RESPONDED), encode_event(CallFailed(request_id="r", code="TIMEOUT", message="x" * 300))
    for other in (deep, deep_request, b"{}", b'{"type":"call.unknown"}', large):
        (_, first), (token, second) = decode_batch(batch(good, other), 300)
        assert (first, token) == (RESPONDED, "t1")
        assert isinstance(second, CallError)
        assert second.code is ErrorCode.PROTOCOL_ERROR
    assert decode_batch(batch(good, encode_session(Who(id=1))), 300) == [("t0", RESPONDED), ("t1", Who(id=1))]


def test_brackets_of_many_events_do_not_make_one_of_them_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwire.protocol.batch._raw_decoder", None)  # they are decoded in one step
    answer = CallResponded(request_id="r", output=local_envelope([[[[[1]]]]], "math.add"))
    request = CallRequested(request_id="r", operation_id="math.add", input=[[[[[1]]]]])
    for event in (RESPONDED, answer, request):
        found = decode_batch(batch(*[encode_event(event)] * 60), 100_000)
        assert [each for _, each in found] == [event] * 60


def test_a_batch_of_one_event_may_be_as_large_as_an_event() -> None:
    large = CallRequested(request_id="r", operation_id="math.add", input="x" * 2 * MAX_BATCH)
    assert decode_batch(batch(encode_event(large)), 4 * MAX_BATCH) == [("t0", large)]
    [(token, error)] = decode_batch(batch(encode_event(large)), 2 * MAX_BATCH)
    assert isinstance(error, CallError)
    assert (token, error.code, error.details) == ("t0", ErrorCode.PROTOCOL_ERROR, {"requestId": "r"})


@pytest.mark.parametrize(
    "message",
    [
        b"[",
        b"[5]",
        b'[["t"]]',
        b'[["t",{},1]]',
        b"[[7,{}]]",
        b'[["t",5]]',
        b'[["t",[]]]',
        b'[["t",{}]',
        b"[" * 5000,
        b'[["t",{}],["t",{}]]' + b" " * MAX_BATCH,
    ],
)
def test_what_is_not_a_batch_is_a_protocol_error(message: bytes) -> None:
    with pytest.raises(CallError) as failed:
        decode_batch(message, 9_999)
    assert failed.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("token", ["a 2\r\nPUB x 1", "a\nb", "a.b", "a b", "é", "a" * (MAX_TOKEN + 1), "\0"])
@pytest.mark.parametrize("large", [False, True])
def test_a_token_has_letters_and_digits_and_a_limited_length(token: str, large: bool) -> None:
    event = {"type": "call.requested", "requestId": "r", "operationId": "a.b", "input": "x" * (MAX_BATCH * large)}
    encoded = msgspec.json.encode([("t0", event), (token, event)][large:])
    with pytest.raises(CallError, match="invalid batch") as invalid:
        decode_batch(encoded, 10 * MAX_BATCH)
    assert invalid.value.code is ErrorCode.PROTOCOL_ERROR
    assert decode_batch(msgspec.json.encode([("", event)]), 10 * MAX_BATCH)[0][0] == ""
