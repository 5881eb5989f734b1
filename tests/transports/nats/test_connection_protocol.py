"""The words of NATS, as bytes. What a real server says is in test_connection.py."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import CallError, ErrorCode
from opwire.transports.nats import connection
from opwire.transports.nats.connection import Event, Info, Message, Parser, Ping, Pong, ServerError

WORDS: list[tuple[bytes, list[Event]]] = [
    (b"MSG a.b 1 5\r\nhello\r\n", [Message("a.b", "1", "", b"hello")]),
    (b"MSG a.b in _INBOX.x 0\r\n\r\n", [Message("a.b", "in", "_INBOX.x", b"")]),
    (b"MSG a 1 4\r\n\r\n\r\n\r\n", [Message("a", "1", "", b"\r\n\r\n")]),
    (b"MSG \xc3\xa0.\x85 1 b\xa0 1\r\nx\r\n", [Message("\xc3\xa0.\x85", "1", "b\xa0", b"x")]),
    (b"HMSG a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", [Message("a", "1", "", b"", 503)]),
    (
        b"HMSG a 1 reply 38 38\r\nNATS/1.0 503\r\nNats-Subject: call.x\r\n\r\n\r\n",
        [Message("a", "1", "reply", b"", 503)],
    ),
    (b"HMSG a 1 22 27\r\nNATS/1.0\r\nKey: 503\r\n\r\nhello\r\n", [Message("a", "1", "", b"hello")]),
    (b"HMSG a 1 22 22\r\nNATS/1.0 no number\r\n\r\n\r\n", [Message("a", "1", "", b"")]),
    (b"HMSG a 1 2 5\r\nhiyou\r\n", [Message("a", "1", "", b"you")]),  # servers pass on what clients write there
    (b"HMSG a 1 17 17\r\nNATS/1.0 5030\r\n\r\n\r\n", [Message("a", "1", "", b"")]),
    (b"HMSG a 1 16 16\r\nNATS/2.0 503\r\n\r\n\r\n", [Message("a", "1", "", b"")]),
    (b"PING\r\n", [Ping()]),
    (b"PONG\r\n", [Pong()]),
    (b"+OK\r\n", []),
    (b"-ERR 'Authorization Violation'\r\n", [ServerError("Authorization Violation")]),
    (b"-ERR\r\n", [ServerError("")]),
    (
        b'INFO {"max_payload":5,"headers":true,"ldm":true,"other":[1]} \r\n',
        [Info(max_payload=5, headers=True, ldm=True)],
    ),
    (b'INFO {"connect_urls":["a:1","b:2"]}\r\n', [Info(connect_urls=["a:1", "b:2"])]),
]

subjects = st.text(st.characters(max_codepoint=255, exclude_characters=" \n\r"), min_size=1, max_size=30)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, list[Event]]:
    subject, reply, payload = draw(subjects), draw(st.just("") | subjects), draw(st.binary(max_size=300))
    head = " ".join(filter(None, ["MSG", subject, "7", reply, str(len(payload))]))
    return head.encode("latin-1") + b"\r\n" + payload + b"\r\n", [Message(subject, "7", reply, payload)]


@pytest.mark.parametrize(("data", "events"), WORDS)
def test_each_word_becomes_its_event(data: bytes, events: list[Event]) -> None:
    assert Parser().feed(data) == events


@given(st.lists(st.sampled_from(WORDS) | messages(), max_size=8), st.lists(st.integers(0, 2000), max_size=12))
def test_however_the_bytes_are_cut_the_events_are_the_same(
    words: list[tuple[bytes, list[Event]]], cuts: list[int]
) -> None:
    stream = b"".join(data for data, _ in words)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    parser = Parser()
    found = [event for start, end in pairwise(places) for event in parser.feed(stream[start:end])]
    assert found == [event for _, events in words for event in events]


def test_a_large_message_that_comes_byte_by_byte_is_put_together() -> None:
    payload = bytes(range(256)) * 400
    stream = b"MSG a 1 %d\r\n%b\r\nPING\r\n" % (len(payload), payload)
    parser = Parser()
    found = [event for byte in stream for event in parser.feed(bytes([byte]))]
    assert found == [Message("a", "1", "", payload), Ping()]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "unknown command 'HTTP/1.1'"),
        (b"\r\n", "unknown command ''"),
        (b"MSG a 1 x\r\n", "'x.*' is not the size of a message"),
        (b"MSG a 1 -1\r\n", "not the size of a message"),
        (b"MSG a 1 99999999999\r\n", "not the size of a message"),
        (b"MSG a 1 %b\r\n" % (b"9" * 9000), "not the size of a message"),
        (b"MSG a 2\r\nhi\r\n", "MSG with 2 fields"),
        (b"MSG a 1 r e 2\r\nhi\r\n", "MSG with 5 fields"),
        (b"MSG a 1 2\r\nhello\r\n", "longer than the server said"),
        (b"HMSG a 1 2\r\nhi\r\n", "HMSG with 3 fields"),
        (b"HMSG a 1 5 2\r\nhi\r\n", "HMSG with 4 fields"),
        (b"INFO not json\r\n", "INFO cannot be parsed"),
        (b'INFO {"max_payload":"5"}\r\n', "INFO cannot be parsed"),
        (b"INFO %b\r\n" % (b'{"x":' + b"[" * 20_000), "INFO cannot be parsed"),
        (b"x" * connection.MAX_LINE_BYTES, "more than 32,768 bytes"),
        (b"INFO %b\r\n" % (b" " * connection.MAX_LINE_BYTES), "more than 32,768 bytes"),
    ],
)
def test_what_is_not_nats_is_a_protocol_error_that_says_what_was_wrong(data: bytes, complaint: str) -> None:
    with pytest.raises(CallError, match=complaint) as failure:
        Parser().feed(data)
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@given(
    st.lists(st.sampled_from([data for data, _ in WORDS]) | st.binary(max_size=40) | st.just(b"\r\n"), max_size=8),
    st.integers(1, 50),
)
def test_garbage_is_a_protocol_error_and_never_a_crash(pieces: list[bytes], size: int) -> None:
    stream, parser = b"".join(pieces), Parser()
    try:
        for start in range(0, len(stream), size):
            parser.feed(stream[start : start + size])
    except CallError as error:
        code = error.code
    else:
        code = ErrorCode.PROTOCOL_ERROR
    assert code is ErrorCode.PROTOCOL_ERROR


def test_a_line_without_an_end_is_given_up_before_it_fills_the_memory() -> None:
    parser = Parser()
    for _ in range(connection.MAX_LINE_BYTES // 1000):
        assert parser.feed(b"x" * 1000) == []
    with pytest.raises(CallError, match="more than 32,768 bytes"):
        parser.feed(b"x" * 1000)


def test_what_we_say_is_written_as_nats_wants_it() -> None:
    assert connection.connect({"user": "ann", "verbose": False}) == b'CONNECT {"user":"ann","verbose":false}\r\n'
    assert connection.publish("a.b", "c.d", b"hello") == b"PUB a.b c.d 5\r\nhello\r\n"
    assert connection.publish("a.b", "", b"") == b"PUB a.b 0\r\n\r\n"
    assert connection.subscribe("a.*", "in") == b"SUB a.* in\r\n"
    assert connection.subscribe("a.b", 7, "q") == b"SUB a.b q 7\r\n"
    assert connection.unsubscribe([7, 8]) == b"UNSUB 7\r\nUNSUB 8\r\n"
    assert connection.unsubscribe([]) == b""


@given(messages())
def test_a_subject_of_any_bytes_is_published_unchanged(message: tuple[bytes, list[Event]]) -> None:
    data, events = message
    arrived = Parser().feed(data)[0]
    assert isinstance(arrived, Message)
    written = connection.publish(arrived.subject, arrived.reply, arrived.payload)
    assert written.removeprefix(b"PUB ") == data.removeprefix(b"MSG ").replace(b" 7 ", b" ", 1)
    assert events == [arrived]
