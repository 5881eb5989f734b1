"""The items of a stream as results."""

import logging
from typing import Any

import pytest

from opwire.http.sse import SSEParser
from opwire.openapi.client.plan import CallPlan, ResponseMedia, StreamKind
from opwire.openapi.client.responses import EventDecoder, ResponseHead, stream_kind, value_decoder
from opwire.schema import UNKNOWN, Schema


def plan(content_type: str = "text/event-stream", kind: StreamKind = "sse", schema: Schema = UNKNOWN) -> CallPlan:
    media = ResponseMedia(content_type=content_type, schema=schema, stream=kind)
    return CallPlan(
        operation_id="feed.watch",
        method="GET",
        path="/",
        server="http://feed.example",
        responses={"200": (ResponseMedia(content_type="application/json"), media)},
        stream=kind,
    )


def head(content_type: str = "text/event-stream; charset=utf-8") -> ResponseHead:
    return ResponseHead(method="GET", status=200, reason="OK", headers=[("X-A", "1")], content_type=content_type)


def events(stream: bytes, schema: Schema = UNKNOWN) -> list[Any]:
    return EventDecoder(plan(schema=schema), head(), SSEParser()).feed(stream)


def test_each_event_is_an_envelope_that_knows_its_type_and_id() -> None:
    schema = Schema({"type": "object"})
    [first, second] = events(b'id: 7\nevent: add\ndata: {"n": 1}\n\ndata: {}\n\n', schema)
    assert first.schema is schema
    assert first.value.data == {"n": 1}
    meta = first.value.meta
    assert (meta.status_code, meta.headers, meta.content_type) == (200, {"x-a": "1"}, "text/event-stream")
    assert (meta.event_type, meta.last_event_id) == ("add", "7")
    assert (second.value.meta.event_type, second.value.meta.last_event_id) == ("message", "7")


def test_an_event_without_any_id_has_none() -> None:
    assert events(b"data: 1\n\n")[0].value.meta.last_event_id is None


@pytest.mark.parametrize(
    ("data", "schema", "value"),
    [
        (b'{"a": 1}', {}, {"a": 1}),
        (b"12345678901234567890123", {}, 12345678901234567890123),
        (b"hello", {}, "hello"),
        (b"{broken", {}, "{broken"),
        (b"", {}, ""),
        (b"123", {"type": "string"}, "123"),
        (b"{}", {"type": "string", "minLength": 1}, "{}"),
        (b'"a"', {"type": "string"}, "a"),  # an API that writes JSON writes it for strings too
        (b"null", {"$ref": "#/$defs/s", "$defs": {"s": {"type": "string"}}}, "null"),
        (b"123", {"type": ["string", "integer"]}, 123),
        (b"ping", {"anyOf": [{"type": "object"}, {"type": "string"}]}, "ping"),
        (b"ping", {"type": "no such type"}, "ping"),  # a schema that cannot be used forbids nothing
    ],
)
def test_data_is_json_where_it_is_json_and_text_is_kept(data: bytes, schema: dict[str, Any], value: Any) -> None:
    [item] = events(b"data: " + data + b"\n\n", Schema(schema))
    assert item.value.data == value


def test_an_event_without_json_is_left_out_where_the_schema_has_no_place_for_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        items = events(b'data: {"n":\n\ndata: {"n": 1}\n\n', Schema({"type": "object"}))
    assert [item.value.data for item in items] == [{"n": 1}]
    assert "feed.watch" in caplog.text


def test_the_sentinel_ends_the_events_and_is_not_one_itself() -> None:
    items = EventDecoder(plan(), head(), SSEParser())
    assert [item.value.data for item in items.feed(b"data: 1\n\ndata: [DONE]\n\ndata: 2\n\n")] == [1]
    assert items.done
    assert items.end() == []


def test_problem_details_in_an_error_event_are_an_error() -> None:
    problem = b'{"title": "Too late", "status": 504, "detail": "after 5 s"}'
    items = EventDecoder(plan(schema=Schema({"type": "integer"})), head(), SSEParser())
    found = items.feed(b"data: 1\n\nevent: error\ndata: " + problem + b"\n\ndata: 2\n\n")
    assert [item.value.data for item in found] == [1]
    assert items.failure is not None
    assert (items.failure.message, items.failure.retryable) == ("HTTP 504: Too late: after 5 s", True)
    assert items.failure.details["body"]["detail"] == "after 5 s"


@pytest.mark.parametrize(
    "data", [b'{"status": 200, "title": "ok"}', b'{"message": "overloaded"}', b"no", b'{"status": 500}']
)
def test_any_other_error_event_is_an_item(data: bytes) -> None:
    items = EventDecoder(plan(), head(), SSEParser())
    [item] = items.feed(b"event: error\ndata: " + data + b"\n\n")
    assert item.value.meta.event_type == "error"
    assert items.failure is None


def test_each_value_is_an_envelope() -> None:
    schema = Schema({"type": "integer"})
    items = value_decoder(
        plan("application/x-ndjson", "ndjson", schema), head("application/x-ndjson; v=1"), "ndjson", max_item=100
    )
    [first] = items.feed(b"1\n2")
    [second] = items.end()
    assert (first.value.data, second.value.data, first.schema) == (1, 2, schema)
    assert first.value.meta.content_type == "application/x-ndjson; v=1"
    assert not items.done


def test_records_are_read_as_records() -> None:
    items = value_decoder(plan("application/json-seq", "json-seq"), head("application/json-seq"), "json-seq", 100)
    assert [item.value.data for item in items.feed(b"\x1e[\n1]\n\x1e2\n")] == [[1], 2]


@pytest.mark.parametrize(
    ("declared", "content_type", "kind"),
    [
        ("sse", "text/event-stream", "sse"),
        ("sse", "application/x-ndjson", "ndjson"),
        ("ndjson", "text/event-stream", "sse"),
        ("ndjson", "text/plain", "ndjson"),
        ("json-seq", "application/octet-stream", "json-seq"),
        ("sse", "", "sse"),
        ("sse", "text/plain", None),
        ("ndjson", "application/json", None),
        ("ndjson", "text/html", None),
    ],
)
def test_the_framing_is_that_of_the_answer(declared: StreamKind, content_type: str, kind: StreamKind | None) -> None:
    assert stream_kind(plan(kind=declared), head(content_type)) == kind


def test_the_only_declared_stream_is_meant_where_the_content_type_is_vague() -> None:
    schema = Schema({"type": "integer"})
    items = value_decoder(plan("application/jsonl", "ndjson", schema), head("text/plain"), "ndjson", max_item=100)
    assert items.feed(b"1\n")[0].schema is schema


def test_large_headers_are_not_repeated_in_every_item(caplog: pytest.LogCaptureFixture) -> None:
    given = [("X-Small", "1"), *(("X-Large", "x" * 10_000) for _ in range(20)), ("Set-Cookie", "a=1")]
    large = ResponseHead(method="GET", status=200, reason="OK", headers=given, content_type="text/event-stream")
    for items in (EventDecoder(plan(), large, SSEParser()), value_decoder(plan(), large, "ndjson", 100)):
        [item] = items.feed(b"data: 1\n\n" if isinstance(items, EventDecoder) else b"1\n")
        meta = item.value.meta
        assert sum(map(len, meta.headers.values())) < 16 * 1024
        assert (meta.headers["x-small"], meta.set_cookie) == ("1", ["a=1"])
    assert "19 large headers" in caplog.text
