"""JSON of peers: whatever it holds, decoding it takes time in proportion to its bytes."""

from time import process_time
from typing import Any

import msgspec
import pytest

from opwire.typed.plain import LARGE_JSON, check_density, parse_float, read_peer_json

DECODER = msgspec.json.Decoder(float_hook=parse_float)


def array(item: bytes, size: int = 1024 * 1024) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


SLOW = [b"1e308", b"1.7976931348623157e308", b"5e-324", b"1.5", b"9" * 1_000, b'""', b"1", b'{"a":1.5,"b":[2]}']


@pytest.mark.parametrize("item", SLOW, ids=lambda item: item[:20].decode())
def test_a_megabyte_of_any_value_is_decoded_at_once(item: bytes) -> None:
    body = array(item)
    began = process_time()
    values = read_peer_json(DECODER, body)
    assert process_time() - began < 0.5  # 0.03 s; msgspec's own parser of numbers takes 1.3 s
    assert values[0] == msgspec.json.decode(item)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" * 400 + ".0"])
def test_a_number_beyond_the_range_of_a_float_is_invalid_json(number: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="out of range"):
        read_peer_json(DECODER, number)


ROW = b'{"id":12345,"name":"Ada Lovelace","price":12.75,"tags":["a","b"],"ok":true}'
HONEST: dict[str, bytes] = {
    "a table": array(ROW, 4_000_000),
    "a vector": array(b"-0.0123456789", 4_000_000),
    "pixels": array(b"255", 4_000_000),
    "pairs": array(b"[123456,123456]", 1_000_000),
    "a text of digits": b'["%b"]' % (b"9" * 1_000_000),
    "a text of brackets": b'["%b"]' % (b"[{" * 500_000),
    "a key of 3,072 bits": array(b"9" * 925, 100_000),
}


@pytest.mark.parametrize("body", HONEST.values(), ids=HONEST)
def test_data_as_programs_send_it_passes(body: bytes) -> None:
    check_density(body)
    assert read_peer_json(DECODER, body) == msgspec.json.decode(body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (array(b"[]"), "objects and lists"),
        (array(b'{"a":{}}'), "objects and lists"),
        (array(b"9" * 1_001), "a number of more than 1,000 digits"),
        (b'["' + b'\\"' * LARGE_JSON + b'",' + b"9" * 1_001 + b"]", "a number of more than 1,000 digits"),
        (b"[" + b" " * (LARGE_JSON - 500) + b"9" * 1_001 + b"]", "a number of more than 1,000 digits"),
    ],
)
def test_what_costs_more_than_its_size_says_is_refused(body: Any, problem: str) -> None:
    for json in (body, body.decode()):
        with pytest.raises(ValueError, match=problem):
            check_density(json)


def test_a_small_body_may_hold_anything() -> None:
    check_density(b"[" * 1_000 + b"9" * 4_000 + b"]" * 1_000)
