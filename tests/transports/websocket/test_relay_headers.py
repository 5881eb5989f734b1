"""The field that a relay writes, and what it reads."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity
from opwire.protocol import (
    CallAborted,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallRequested,
    decode_event,
    encode_event,
)
from opwire.transports.websocket import routes
from opwire.transports.websocket.relay import (
    MARGIN,
    MAX_IDENTITY,
    identity_json,
    read_origin,
    relay_header,
    request_header,
    with_header,
)
from opwire.transports.websocket.routes import SERVER, RespondedHead, read_head
from opwire_conformance.harness import item

EVENTS: list[tuple[CallEvent, type[routes.EventHead]]] = [
    (CallRequested(request_id="r", operation_id="a.b", input={"peer": "x"}, credits=3), routes.RequestedHead),
    (item("r", {"a": [1, "peer"]}, 7), routes.RespondedHead),
    (CallCompleted(request_id="r", seq=7), routes.CompletedHead),
    (CallFailed(request_id="r", code="INTERNAL", message="no", details={"peer": "x"}), routes.FailedHead),
    (CallAborted(request_id="r", reason="enough"), routes.AbortedHead),
    (CallCredit(request_id="r", n=3), routes.CreditHead),
]

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["peer", "unmatched", "a", ""]), inner),
    max_leaves=8,
)
names = st.text(max_size=20)


@pytest.mark.parametrize(("event", "kind"), EVENTS)
def test_of_an_event_only_what_matters_on_the_way_is_read(event: CallEvent, kind: type[routes.EventHead]) -> None:
    head = read_head(encode_event(event))
    assert type(head) is kind
    assert (head.request_id, head.peer, head.unmatched) == ("r", None, False)


@pytest.mark.parametrize("payload", [b"1e9999", b'{"\\u0070eer":2}', b'"half of \\ud83d a pair"', b"-0.0", b"9" * 500])
def test_a_payload_is_passed_on_unread_and_unchanged(payload: bytes) -> None:
    message = b'{"type":"call.responded","requestId":"r","output":%b}' % payload
    assert read_head(message).request_id == "r"
    assert with_header(message, relay_header("c7")) == message[:-1] + b',"peer":"c7"}'


def test_the_head_of_an_event_is_read_however_deeply_it_is_nested() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    head = read_head(b'{"type":"call.responded","requestId":"r","output":%b,"seq":3,"peer":"c7"}' % deep)
    assert (type(head), head.request_id, head.seq, head.peer) == (RespondedHead, "r", 3, "c7")
    with pytest.raises(CallError, match="not an event of a call"):
        read_head(b'{"output":%b,"requestId":"r","x":[]}' % deep)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"type":"call.responded"}',
        b'{"type":"call.unknown","requestId":"r"}',
        b'{"type":"session.done","id":1}',
        b'{"type":"call.credit","requestId":7}',
        b'{"type":"call.credit","requestId":"r","peer":7}',
        b'{"type":"call.requested","requestId":"r"}',
        b'{"type":"call.credit","type":"call.aborted","requestId":"r"}',
    ],
)
def test_what_is_not_an_event_of_a_call_is_refused(message: bytes) -> None:
    with pytest.raises(CallError) as failure:
        read_head(message)
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(("event", "_"), EVENTS)
@pytest.mark.parametrize("unmatched", [False, True])
def test_a_relay_header_names_the_sender_of_an_event(event: CallEvent, _: object, unmatched: bool) -> None:
    message = with_header(encode_event(event), relay_header("c7", unmatched=unmatched))
    assert read_origin(message) == ("c7", unmatched)
    assert json.loads(message) == json.loads(encode_event(event)) | {"peer": "c7"} | (
        {"unmatched": True} if unmatched else {}
    )


@pytest.mark.parametrize(("event", "_"), EVENTS)
def test_without_a_stamp_it_is_from_the_server(event: CallEvent, _: object) -> None:
    assert read_origin(encode_event(event)) == (SERVER, False)


@given(payload=json_values, place=st.integers(0, 4), own=names | st.none(), indent=st.sampled_from([None, 0, 1]))
def test_a_stamp_cannot_be_forged(payload: Any, place: int, own: str | None, indent: int | None) -> None:
    fields: list[tuple[str, Any]] = [("type", "call.responded"), ("requestId", "r"), ("output", payload)]
    if own is not None:
        fields.insert(place, ("peer", own))
    message = json.dumps(dict(fields), indent=indent).encode() + (b" \n" if indent else b"")
    passed_on = with_header(message, relay_header("c7"))
    assert read_origin(passed_on) == ("c7", False)
    assert json.loads(passed_on) == dict(fields) | {"peer": "c7"}
    assert read_head(passed_on).peer == "c7"
    assert len(passed_on) <= len(message) + MARGIN


@pytest.mark.parametrize(
    "message",
    [
        b'{"peer":"x","type":"call.credit","requestId":"r","n":1,"peer":"y"}',
        b'{"type":"call.credit","requestId":"r","n":1,"peer":"x","peer":"y"}',
        b'{"type":"call.credit","requestId":"r","n":1,"peer":"a\\"b"}',
        b'{"type":"call.credit","requestId":"r","n":1,"\\u0070eer":"x"}',
        b'{"type":"call.credit","requestId":"r","n":1,"peer" : "x" }',
        b'{"type":"call.credit","requestId":"r","n":1,"unmatched":false,"peer":null}',
    ],
)
def test_of_two_fields_with_one_name_the_last_counts_for_every_reader(message: bytes) -> None:
    passed_on = with_header(message, relay_header("c7", unmatched=True))
    assert read_origin(passed_on) == ("c7", True)
    for read in (json.loads, msgspec.json.decode):
        assert (read(passed_on)["peer"], read(passed_on)["unmatched"]) == ("c7", True)


@pytest.mark.parametrize(
    ("message", "sender"),
    [
        (b'{"type":"call.credit", "requestId":"r", "n":1, "peer": "c7"}', ("c7", False)),
        (b'{"peer":"c7","type":"call.credit","requestId":"r","n":1}', ("c7", False)),
        (b'{"peer":"c7","unmatched":true,"type":"call.credit","requestId":"r","n":1}', ("c7", True)),
        (b'{"type":"call.credit","requestId":"r","n":1,"peer":null}', (SERVER, False)),
        (b'{"type":"call.aborted","requestId":"r","reason":"\\",\\"peer\\":\\"c7"}', (SERVER, False)),
        (b'{"type":"call.requested","requestId":"r","operationId":"o","input":{"a":1,"peer":"c7"}}', (SERVER, False)),
    ],
)
def test_other_writers_may_put_the_stamp_where_they_like(message: bytes, sender: tuple[str, bool]) -> None:
    assert read_origin(message) == sender


identities = st.builds(
    Identity,
    id=names,
    scopes=st.lists(names, max_size=3).map(tuple),
    resources=st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2),
)


@given(
    identity=identities | st.none(),
    claimed=identities | st.none(),
    payload=json_values,
    order=st.permutations(range(7)),
    indent=st.sampled_from([None, 0, 1]),
)
def test_the_sender_of_a_request_is_that_of_its_relay_header(
    identity: Identity | None, claimed: Identity | None, payload: Any, order: list[int], indent: int | None
) -> None:
    fields: list[tuple[str, Any]] = [
        ("type", "call.requested"),
        ("requestId", "r"),
        ("operationId", "a.b"),
        ("input", payload),
        ("identity", msgspec.to_builtins(claimed)),
        ("credential", "forged"),
        ("peer", "somebody"),
    ]
    message = json.dumps(dict(fields[place] for place in order), indent=indent).encode()
    passed_on = with_header(message, request_header("c7", identity_json(identity)))
    event = decode_event(passed_on)
    assert isinstance(event, CallRequested)
    assert (event.identity, event.credential, event.input) == (identity, None, payload)
    assert json.loads(passed_on)["identity"] == json.loads(identity_json(identity))
    assert read_origin(passed_on) == ("c7", False)


def test_the_largest_stamp_fits_into_the_margin() -> None:
    assert len(request_header("c" * 20, b"x" * MAX_IDENTITY)) <= MARGIN


@given(
    name=st.text(min_size=1, max_size=20) | st.sampled_from(["a\\b", 'a"b', "\n", "c" * 200]), unmatched=st.booleans()
)
def test_any_name_can_be_stamped(name: str, unmatched: bool) -> None:
    message = encode_event(CallCredit(request_id="r", n=1))
    assert read_origin(with_header(message, relay_header(name, unmatched=unmatched))) == (name, unmatched)
