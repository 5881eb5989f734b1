"""FrameCodec against the core of `websockets`, which reads what we write and writes what we read."""

import logging
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from opwire.transports.websocket.connection import Core, FrameCodec

LIMIT = 70_000


def client(state: State = State.OPEN) -> ClientProtocol:
    return ClientProtocol(parse_uri("ws://127.0.0.1/"), state=state, max_size=LIMIT)


def server(state: State = State.OPEN) -> ServerProtocol:
    return ServerProtocol(state=state, max_size=LIMIT)


def frame(opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


def close_code(frames: FrameCodec) -> int:
    """The code that the frames say goodbye with, as the core of the other side reads it."""
    reader = client()
    for data in frames.replies():
        reader.receive_data(data)
    assert reader.close_rcvd is not None
    return reader.close_rcvd.code


def chunks(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


SIDES = [pytest.param(client, server, id="to the server"), pytest.param(server, client, id="to the client")]
SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, LIMIT)


@pytest.mark.parametrize(("sender", "receiver"), SIDES)
@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_is_read_by_the_core_and_by_us(sender, receiver, size: int) -> None:
    message = b"x" * size
    written = FrameCodec(sender()).encode(message)
    core: Core = receiver()
    core.receive_data(written)
    (event,) = core.events_received()
    assert isinstance(event, Frame)
    assert (event.opcode, bytes(event.data), event.fin) == (Opcode.TEXT, message, True)
    assert FrameCodec(receiver()).feed(written) == [message]


@pytest.mark.parametrize(("sender", "receiver"), SIDES)
@given(texts=st.lists(st.text(max_size=300), max_size=8), cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_messages_arrive_however_the_bytes_are_cut(sender, receiver, texts: list[str], cuts: list[int]) -> None:
    writer, reader = FrameCodec(sender()), FrameCodec(receiver())
    data = b"".join(writer.encode(text.encode()) for text in texts)
    arrived = [message for chunk in chunks(data, cuts) for message in reader.feed(chunk)]
    assert arrived == [text.encode() for text in texts]
    assert reader.replies() == []
    assert not reader.over


@given(parts=st.lists(st.text(max_size=50), min_size=2, max_size=6), cuts=st.lists(st.integers(0, 1000), max_size=5))
def test_fragments_are_joined_with_pings_between_them(parts: list[str], cuts: list[int]) -> None:
    data = frame(Opcode.TEXT, parts[0].encode(), fin=False)
    for part in parts[1:-1]:
        data += frame(Opcode.PING, b"?") + frame(Opcode.CONT, part.encode(), fin=False)
    data += frame(Opcode.CONT, parts[-1].encode()) + frame(Opcode.TEXT, b"next")
    frames = FrameCodec(server())
    arrived = [message for chunk in chunks(data, cuts) for message in frames.feed(chunk)]
    assert arrived == ["".join(parts).encode(), b"next"]
    assert frames.replies() == [frame(Opcode.PONG, b"?", mask=False)] * (len(parts) - 2)


def test_a_character_may_be_cut_by_fragments() -> None:
    frames, euro = FrameCodec(server()), "€".encode()
    assert frames.feed(frame(Opcode.TEXT, euro[:1], fin=False)) == []
    assert frames.feed(frame(Opcode.CONT, euro[1:])) == [euro]


def test_empty_fragments_cost_nothing_and_end_nothing() -> None:
    frames = FrameCodec(server())
    frames.feed(frame(Opcode.TEXT, b"", fin=False))
    for _ in range(1000):
        assert frames.feed(frame(Opcode.CONT, b"", fin=False)) == []
    assert frames.feed(frame(Opcode.CONT, b"end")) == [b"end"]


BROKEN = {
    "not UTF-8": (frame(Opcode.TEXT, b"\xff"), 1007),
    "not UTF-8, in fragments": (frame(Opcode.TEXT, b"\xe2", fin=False) + frame(Opcode.CONT, b"x"), 1007),
    "binary": (frame(Opcode.BINARY, b"x"), 1003),
    "binary, in fragments": (frame(Opcode.BINARY, b"x", fin=False), 1003),
    "not masked": (frame(Opcode.TEXT, b"x", mask=False), 1002),
    "an unknown kind": (b"\x83\x80\x00\x00\x00\x00", 1002),
    "reserved bits": (b"\xc1\x80\x00\x00\x00\x00", 1002),
    "a long ping": (b"\x89\xfe\x00\x7e" + bytes(4 + 126), 1002),
    "a fragment of nothing": (frame(Opcode.CONT, b"x"), 1002),
    "a message amid another": (frame(Opcode.TEXT, b"x", fin=False) + frame(Opcode.TEXT, b"y"), 1002),
    "too large, by its header": (b"\x81\xff" + (LIMIT + 1).to_bytes(8, "big") + bytes(4), 1009),
    "too large, in fragments": (
        frame(Opcode.TEXT, b"x" * LIMIT, fin=False) + frame(Opcode.CONT, b"x", fin=False),
        1009,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_the_rules_ends_the_connection_with_a_code(case: str) -> None:
    data, code = BROKEN[case]
    frames = FrameCodec(server())
    assert frames.feed(frame(Opcode.TEXT, b"before") + data) == [b"before"]
    assert frames.over
    assert close_code(frames) == code
    assert str(code) in frames.reason


@pytest.mark.parametrize("data", [b"\x81\x81\x00\x00\x00\x00x", b"\x82\x01x"])
def test_a_server_that_breaks_the_rules_is_left(data: bytes) -> None:
    frames = FrameCodec(client())
    assert frames.feed(data) == []
    assert frames.over
    assert frames.replies() != []


@given(data=st.lists(st.binary(max_size=40) | st.sampled_from([case for case, _ in BROKEN.values()]), max_size=8))
def test_no_bytes_are_too_strange(data: list[bytes]) -> None:
    frames = FrameCodec(server())
    for chunk in data:
        for message in frames.feed(chunk):
            message.decode()
        frames.replies()


def test_a_goodbye_is_answered_and_its_reason_known() -> None:
    frames = FrameCodec(server())
    other = client()
    other.send_close(4400, "enough")
    assert frames.feed(b"".join(other.data_to_send())) == []
    assert frames.over
    assert not frames.open
    assert "4400" in frames.reason
    assert "enough" in frames.reason
    assert close_code(frames) == 4400


def test_a_reason_is_cut_to_what_a_frame_holds() -> None:
    frames, other = FrameCodec(server()), client()
    frames.close(4400, "€" * 100)
    for data in frames.replies():
        other.receive_data(data)
    assert other.close_rcvd is not None
    assert other.close_rcvd.reason == "€" * 40


def test_nothing_is_said_after_a_goodbye() -> None:
    frames = FrameCodec(server())
    frames.close(1000, "")
    assert len(frames.replies()) == 1
    frames.ping()
    frames.close(1000, "")
    frames.fail(4400, "")
    assert frames.replies() == []


def test_every_message_of_a_client_has_a_mask_of_its_own() -> None:
    frames = FrameCodec(client())
    assert len({frames.encode(b"the same") for _ in range(3000)}) == 3000


@given(cuts=st.lists(st.integers(0, 1000), max_size=6))
def test_messages_may_follow_the_handshake_in_the_same_piece(cuts: list[int]) -> None:
    near, far = client(State.CONNECTING), server(State.CONNECTING)
    near.send_request(near.connect())
    data = b"".join(near.data_to_send()) + frame(Opcode.TEXT, b"one") + frame(Opcode.TEXT, b"two")
    frames, arrived = FrameCodec(far), []
    for chunk in chunks(data, cuts):
        rest = chunk
        if far.state is State.CONNECTING:
            request, rest = frames.handshake(chunk)
            if request is not None:
                assert isinstance(request, Request)
                far.send_response(far.accept(request))
        arrived += frames.feed(rest)
    assert arrived == [b"one", b"two"]
    assert frames.replies()[0].startswith(b"HTTP/1.1 101 ")


def test_a_refusal_is_the_reason() -> None:
    frames = FrameCodec(near := client(State.CONNECTING))
    near.send_request(near.connect())
    frames.replies()
    response, _ = frames.handshake(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
    assert isinstance(response, Response)
    assert frames.over
    assert "403" in frames.reason


@pytest.mark.parametrize("noise", [b"\r\n" * 100, b"\x16\x03\x01\x02\x00\x01\n", b"GET / HTTP/0.9\r\n\r\n"])
def test_what_is_not_a_handshake_ends_the_connection(noise: bytes) -> None:
    frames = FrameCodec(server(State.CONNECTING))
    assert frames.handshake(noise) == (None, b"")
    assert frames.over
    assert "handshake" in frames.reason


def test_messages_and_headers_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither messages nor logs show passwords, tokens or payloads."""
    caplog.set_level(logging.DEBUG)
    near = ClientProtocol(parse_uri("ws://ann:secret@127.0.0.1/?token=secret"), max_size=LIMIT)
    frames = FrameCodec(near)
    near.send_request(near.connect())
    frames.replies()
    frames = FrameCodec(server())
    frames.feed(frame(Opcode.TEXT, b"secret", fin=False))
    assert "secret" not in caplog.text


@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.CONT])
def test_a_flood_of_small_frames_ends_the_connection(opcode: Opcode) -> None:
    first, small = frame(Opcode.TEXT, b"[", fin=False), frame(opcode, b"[", fin=opcode is Opcode.PING)
    frames = FrameCodec(server())
    assert frames.feed(first + 1_000 * small) == []
    assert not frames.over
    assert frames.feed(16 * 1024 // len(small) * small) == []  # a link passes on no more at once
    assert frames.over
    assert close_code(frames) == 1008
