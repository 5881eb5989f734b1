"""Event streams, parsed as the WHATWG says, however they are cut into pieces."""

import json
import re
import tracemalloc
from base64 import b64decode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.errors import CallError, ErrorCode
from opwire.http.sse import SSEEvent, SSEParser
from tests.properties import examples

DATA = Path(__file__).parent.parent / "data" / "sse-cases.json"
CASES: list[dict[str, Any]] = json.loads(DATA.read_text("utf-8"))


def parsed(chunks: Iterable[bytes]) -> tuple[list[SSEEvent], int | None, str]:
    parser = SSEParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events, parser.retry, parser.last_event_id


def one_by_one(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def check(case: dict[str, Any], chunks: Sequence[bytes]) -> None:
    events, retry, last_event_id = parsed(chunks)
    assert [(each.event, each.data, each.last_event_id) for each in events] == [
        (each["event"], each["data"], each["lastEventId"]) for each in case["expected"]
    ], chunks
    assert retry == case.get("expected_retry_ms", retry)
    assert last_event_id == case.get("expected_last_event_id", last_event_id)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_case_gives_its_events_in_every_chunking(case: dict[str, Any]) -> None:
    stream = b64decode(case["stream_b64"])
    check(case, [stream])
    check(case, one_by_one(stream))
    check(case, [b64decode(chunk) for chunk in case.get("chunks_b64", [])] or [stream])
    for at in range(len(stream) + 1):
        check(case, [stream[:at], stream[at:]])


def test_the_cases_beside_the_project_hold_too(shared: Path) -> None:
    for case in json.loads((shared / "sse" / "cases-dev.json").read_text("utf-8"))["cases"]:
        stream = b64decode(case["stream_b64"])
        check(case, [stream])
        check(case, one_by_one(stream))


def reference(stream: bytes) -> tuple[list[SSEEvent], int | None, str]:
    """The algorithm as the WHATWG writes it down: the whole stream, decoded first, line by line."""
    text = stream.decode(errors="replace").removeprefix("\ufeff")
    data, kind, buffer, last, retry = "", "", "", "", None
    events: list[SSEEvent] = []
    lines = re.split("\r\n|\r|\n", text)
    for line in lines[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            last = buffer
            if data:
                events.append(SSEEvent(kind or "message", data[:-1], last))
            data, kind = "", ""
        elif name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            buffer = value
        elif name == "retry" and re.fullmatch("[0-9]+", value):
            retry = min(int(value), 10**15)
    return events, retry, last


PIECES = st.sampled_from(
    [
        *(b"data", b"event", b"id", b"retry", b":", b": ", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"x", b"12", b"\0"),
        *(b"\xef\xbb\xbf", b"\xe2\x80", b"\xa8", b"\xff", b"\x0b", "é".encode(), b"data: {}\n"),
    ]
)


@settings(max_examples=examples(200))
@given(st.lists(PIECES, max_size=40).map(b"".join), st.data())
def test_any_stream_in_any_chunking_gives_what_the_algorithm_gives(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parsed(chunks) == reference(stream)


def test_an_event_that_ends_in_a_lone_cr_does_not_wait_for_what_follows() -> None:
    parser = SSEParser()
    assert [event.data for event in parser.feed(b"data: a\r\r")] == ["a"]
    assert [event.data for event in parser.feed(b"\ndata: b\r\n\r")] == ["b"]


def test_an_id_counts_for_resuming_only_when_its_event_is_complete() -> None:
    parser = SSEParser(last_event_id="6")
    parser.feed(b"id: 7\ndata: a\n")
    assert parser.last_event_id == "6"
    parser.feed(b"\n")
    assert parser.last_event_id == "7"


def test_a_stream_that_was_resumed_goes_on_with_the_id_of_the_last_one() -> None:
    assert SSEParser(last_event_id="6").feed(b"data: a\n\n") == [SSEEvent("message", "a", "6")]


def test_an_empty_id_forgets_the_last_one() -> None:
    assert [event.last_event_id for event in SSEParser().feed(b"id: 1\ndata\n\nid\ndata\n\n")] == ["1", ""]


def test_a_retry_that_no_integer_could_hold_is_ignored() -> None:
    parser = SSEParser()
    parser.feed(b"retry: 5\nretry: " + b"9" * 5000 + b"\n")
    assert parser.retry == 5


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxx\n" * 20, b": " + b"x" * 200])
def test_an_event_that_is_too_large_is_an_error_and_not_a_growing_buffer(stream: bytes) -> None:
    parser = SSEParser(max_event=100)
    with pytest.raises(CallError) as caught:
        list(map(parser.feed, one_by_one(stream)))
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert "100 bytes" in caught.value.message


def test_many_small_events_and_comments_are_not_one_large_one() -> None:
    parser = SSEParser(max_event=100)
    for _ in range(50):
        assert len(parser.feed(b": keep-alive, keep-alive\n\nda")) == 0
        assert len(parser.feed(b"ta: 0123456789\n\n")) == 1


def test_a_long_line_in_small_pieces_takes_time_in_proportion() -> None:
    parser = SSEParser()
    pieces = [b"data: ", *[b"y" * 16] * 100_000, b"\n\n"]
    assert [len(event.data) for piece in pieces for event in parser.feed(piece)] == [1_600_000]


def test_the_name_of_an_event_counts_for_its_size() -> None:
    parser = SSEParser(max_event=100)
    with pytest.raises(CallError, match="larger than 100 bytes"):
        parser.feed(b"event: " + b"x" * 60 + b"\ndata: " + b"x" * 60 + b"\n\n")


def test_an_id_that_every_event_would_repeat_is_bounded() -> None:
    [event] = SSEParser(last_event_id="6").feed(b"id: " + b"x" * 5000 + b"\ndata: a\n\n")
    assert event.last_event_id == "6"


@pytest.mark.parametrize("digits", [20, 99, 100, 400])
def test_a_retry_of_any_size_is_a_number_that_can_be_waited_for(digits: int) -> None:
    parser = SSEParser()
    parser.feed(b"retry: " + b"9" * digits + b"\n")
    assert (parser.retry or 0) / 1000 <= 1e12


def test_an_event_of_many_short_lines_takes_little_memory() -> None:
    parser, chunk = SSEParser(), b"data:xy\n" * 2_000
    parser.feed(chunk)
    tracemalloc.start()
    for _ in range(99):
        parser.feed(chunk)
    [event] = parser.feed(b"\n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert event.data == "\n".join(["xy"] * 200_000)
    assert peak < 4 * len(event.data)
    assert parser.feed(b"data: next\n\n")[0].data == "next"
