"""The events of a session: what is written can be read, and agrees with the published schemas."""

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, Schema
from opwire.protocol import MAX_MESSAGE, CallAborted, encode_event, events
from opwire.protocol.events import (
    SESSION_EVENT_SCHEMA,
    SESSION_EVENT_SCHEMAS,
    SessionEvent,
    decode_message,
    encode_session,
)

KINDS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and kind.__name__ not in ("SessionMessage", "WireAnnounce")
]
KINDS = [kind for kind in KINDS if issubclass(kind, events.SessionMessage)]


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, 2**53),
    "version": st.integers(0, 9),
    "max_message": st.integers(1, 2**31),
    "heartbeat_ms": st.integers(1, 10**6),
    "peer": st.text(),
    "reason": st.text(),
    "operations": st.lists(st.text()),
    "peers": st.lists(st.text()),
    "tokens": st.lists(st.text()),
    "gone": st.lists(st.text()),
    "token": st.none() | st.text(),
    "code": st.text(),
    "message": st.text(),
    "ids": st.lists(st.integers(0, 2**53)),
    "partial": st.booleans(),
    "refused": st.lists(st.builds(events.RefusedOperation, operation=st.text(), code=st.text(), message=st.text())),
}


def instances(kind: Any) -> st.SearchStrategy[SessionEvent]:
    return st.builds(kind, **{name: FIELDS[name] for name in kind.__struct_fields__ if name in FIELDS})


@given(st.one_of(*map(instances, KINDS)))
def test_every_event_survives_its_journey_and_agrees_with_its_schema(event: SessionEvent) -> None:
    message = encode_session(event)
    decoded = cast("SessionEvent", decode_message(message, limit=10**9))
    assert msgspec.structs.asdict(decoded) == msgspec.structs.asdict(event)
    assert encode_session(decoded) == message
    fields = json.loads(message)
    assert Schema(SESSION_EVENT_SCHEMAS[fields["type"]]).problems(fields) == []
    assert Schema(SESSION_EVENT_SCHEMA).is_valid(fields)


def test_every_event_has_a_schema() -> None:
    assert sorted(SESSION_EVENT_SCHEMAS) == sorted(str(kind.__struct_config__.tag) for kind in KINDS)


def test_events_of_calls_and_of_the_session_are_distinguished() -> None:
    assert decode_message(encode_event(CallAborted(request_id="r"))) == CallAborted(request_id="r")
    assert decode_message(encode_session(events.Done(id=1))) == events.Done(id=1)


@pytest.mark.parametrize("text", ['{"id": 7, "type": "session.done"}', '{"type":"session.done","id":7,"later":[1]}'])
def test_another_order_of_fields_and_unknown_ones_are_read(text: str) -> None:
    assert decode_message(text.encode()) == events.Done(id=7)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"session.hello","version":1.0,"maxMessage":5e3}',
        '{"type":"session.hello","version":1,"maxMessage":5000,"token":null}',
        '{"maxMessage":5000.0,"token":null,"type":"session.hello","version":1}',
    ],
)
def test_a_count_may_have_a_fraction_of_zero_and_null_is_absent(text: str) -> None:
    assert decode_message(text.encode()) == events.Hello(version=1, max_message=5000)
    assert decode_message(b'{"type":"session.done","id":7.0,"refused":null}') == events.Done(id=7)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{",
        b"null",
        b'{"type":"session.unknown"}',
        b'{"type":"session.done"}',
        b'{"type":"session.done","id":-1}',
        b'{"type":"session.done","id":1.5}',
        b'{"type":"session.done","id":1e300}',
        b'{"type":"session.done","id":null}',
        b'{"type":"session.announce","id":1,"operations":"all"}',
        b'{"type":"session.welcome","version":1,"peer":"c1","maxMessage":0,"heartbeatMs":1}',
        b'{"type":"call.nothing","requestId":"session."}',
        b'{"type":"session.done","id":1' + b" " * MAX_MESSAGE + b"}",
        b"\xff",
    ],
)
def test_what_is_not_an_event_is_a_protocol_error(message: bytes) -> None:
    """What is not a session event is a PROTOCOL_ERROR, and nothing else."""
    with pytest.raises(CallError) as failure:
        decode_message(message)
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR


def test_a_bad_call_is_not_mistaken_for_a_session_event_by_what_it_says() -> None:
    with pytest.raises(CallError) as failure:
        decode_message(b'{"type":"call.requested","requestId":"r","operationId":5,"input":"session.done"}')
    assert failure.value.details == {"requestId": "r"}


DOCUMENT_FIELDS = {
    field.encode_name: FIELDS[field.name]
    for kind in KINDS
    for field in msgspec.structs.fields(kind)
    if field.name in FIELDS
}
DOCUMENT_FIELDS["descriptions"] = st.lists(st.dictionaries(st.text(), st.integers(), max_size=2), max_size=2)
DOCUMENT_FIELDS["refused"] = FIELDS["refused"].map(msgspec.to_builtins)


def documents(type: str) -> st.SearchStrategy[dict[str, Any]]:
    """Anything that the schema of an event allows, with fields of a newer protocol, in any order."""
    schema = SESSION_EVENT_SCHEMAS[type]
    required = {name: DOCUMENT_FIELDS[name] for name in schema["required"] if name != "type"}
    optional = {name: DOCUMENT_FIELDS[name] for name in schema["properties"] if name not in schema["required"]}
    fields = st.fixed_dictionaries({"type": st.just(type), **required}, optional={**optional, "newer": st.text()})
    return fields.flatmap(lambda each: st.permutations(list(each.items())).map(dict))


@given(st.sampled_from(sorted(SESSION_EVENT_SCHEMAS)).flatmap(documents))
def test_every_document_that_its_schema_allows_is_read_as_what_it_says(document: dict[str, Any]) -> None:
    assert Schema(SESSION_EVENT_SCHEMA).is_valid(document)
    event = decode_message(json.dumps(document).encode(), limit=10**9)
    written = json.loads(encode_session(cast("SessionEvent", event)))
    assert written["type"] == document["type"]
    read = {field.encode_name: getattr(event, field.name) for field in msgspec.structs.fields(event)}
    read["descriptions"] = [msgspec.json.decode(each) for each in read.get("descriptions", ())]
    assert {name: msgspec.to_builtins(read[name]) for name in document if name not in ("type", "newer")} == {
        name: value for name, value in document.items() if name not in ("type", "newer")
    }


@given(st.binary(max_size=300))
def test_garbage_is_a_protocol_error_and_never_anything_else(garbage: bytes) -> None:
    with pytest.raises(CallError, match="PROTOCOL_ERROR"):
        decode_message(b'{"type":"session.?' + garbage)


def test_absent_optional_fields_are_left_out() -> None:
    shown: Any = json.loads(encode_session(events.Left(tokens=["a"])))
    assert shown == {"type": "session.left", "tokens": ["a"]}


def test_a_refusal_is_raised_as_the_error_that_it_names() -> None:
    error = events.Refused(code="ACCESS_DENIED", message="not here").error()
    assert (error.code, error.message) == (ErrorCode.ACCESS_DENIED, "not here")
    assert events.Refused(code="LATER_CODE", message="no").error().code is ErrorCode.UNAVAILABLE
