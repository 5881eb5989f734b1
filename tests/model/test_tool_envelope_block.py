"""The block itself: written as the public implementation writes it, read as leniently as it reads."""

import base64
import json
import logging
import re
from collections.abc import Container
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET

from opwire.errors import ConversionError, NotPlainError, ToolEnvelopeError
from opwire.model.tool_envelope import (
    ToolEnvelope,
    ToolEnvelopeMeta,
    encode,
    encode_blocks,
    parse,
    parse_or_text,
    payload_as,
)

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "tool-envelope-vectors.json").read_text("utf-8"))
PREFIX = "__ENVELOPE_V1__:"
TS = "2026-01-02T03:04:05.678Z"

# Where the specification or exactness wins over the public implementation; docs/adr/0008 says why.
OVERRIDDEN = {"meta_v2_prefix_v1", "bigint", "badutf8"}

# The two examples of the seed.
SUCCESS = (
    "eyJwYXlsb2FkIjp7ImRpc3BsYXlOYW1lIjoiU3lzdGVtIERlc2lnbjogRmVhdHVyZSBBdXRoZW50aWNhdGlvbiIsImluc3RydWN0"
    "aW9uSWQiOiJzeXN0ZW0tZGVzaWduIiwibW9kZWwiOnsiaWQiOiJjbGF1ZGUtMy01LXNvbm5ldCIsImxhYmVsIjoiQ2xhdWRlIDMu"
    "NSBTb25uZXQifSwic3RlcHMiOlt7ImtpbmQiOiJkZXNpZ24iLCJsYWJlbCI6IkFyY2hpdGVjdHVyZSIsInN1bW1hcnkiOiJEZWZp"
    "bmUgdGhlIGF1dGggZmxvdyBhbmQgY29tcG9uZW50cyJ9XSwicmVjb21tZW5kYXRpb25zIjpbXSwiYXJ0aWZhY3RzIjpbXX0sIm1l"
    "dGEiOnsidG9vbCI6InN5c3RlbS1kZXNpZ24iLCJ0cyI6IjIwMjUtMDYtMTdUMTg6MzA6MDBaIiwidmVyc2lvbiI6MX19"
)
FAILURE = (
    "eyJwYXlsb2FkIjp7ImNhdGVnb3J5IjoidmFsaWRhdGlvbiIsImNvZGUiOiJFUlJfSU5QVVRfU0NIRU1BIiwibWVzc2FnZSI6IlRo"
    "ZSBwcm92aWRlZCBjb250ZXh0IGRvZXMgbm90IG1hdGNoIHNjaGVtYSIsInJlY292ZXJhYmxlIjp0cnVlLCJzdWdnZXN0ZWRBY3Rp"
    "b24iOiJQcm92aWRlIGFsbCByZXF1aXJlZCBmaWVsZHMgYW5kIHJldHJ5In0sIm1ldGEiOnsidG9vbCI6Im1jcCIsInRzIjoiMjAy"
    "NS0wNi0xN1QxODozMDowMFoiLCJ2ZXJzaW9uIjoxfX0="
)

# Low surrogates only: they never meet a high one, so each of them stays alone.
TEXTS = st.text(st.one_of(st.characters(), st.sampled_from("\udc00\udfff\u2028\x7f\x00")))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)


def block(document: str | bytes) -> str:
    raw = document.encode() if isinstance(document, str) else document
    return PREFIX + base64.b64encode(raw).decode()


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def vectors(section: str, *, skip: Container[str] = ()) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in VECTORS[section] if vector["name"] not in skip]


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", vectors("encode"))
def test_a_block_is_written_as_the_public_implementation_writes_it(vector: dict[str, Any]) -> None:
    document = json.loads(vector["json"])
    meta = document["meta"]
    text = encode(document.get("payload", UNSET), tool=meta["tool"], ts=meta["ts"])
    assert text == vector["text"]
    assert base64.b64decode(text.removeprefix(PREFIX)).decode() == vector["json"]


@pytest.mark.parametrize("vector", [vector for vector in VECTORS["encode"] if "block0" in vector])
def test_a_result_is_the_markdown_block_and_the_envelope_block(vector: dict[str, Any]) -> None:
    payload = json.loads(vector["json"])["payload"]
    assert encode_blocks("# md", payload, tool="t", ts=TS) == [vector["block0"], text_block(vector["text"])]


def test_the_time_is_now_in_utc_with_milliseconds_and_z_unless_given() -> None:
    before = datetime.now(UTC)
    ts = parse(encode(1, tool="t")).meta.ts
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", ts)
    assert abs((datetime.fromisoformat(ts) - before).total_seconds()) < 60


def test_deprecations_are_written_only_when_there_are_any() -> None:
    deprecation = {"field": "payload.old", "since": 1, "removeInVersion": 2}
    assert parse(encode(1, tool="t", deprecations=[deprecation])).meta.deprecations == [deprecation]
    assert b"deprecations" not in base64.b64decode(encode(1, tool="t").removeprefix(PREFIX))


def test_python_objects_in_a_payload_become_plain_data() -> None:
    @dataclass
    class Point:
        x: int
        at: datetime

    payload = {"points": (Point(1, datetime(2026, 1, 2, tzinfo=UTC)),), "raw": b"ab"}
    expected = {"points": [{"x": 1, "at": "2026-01-02T00:00:00Z"}], "raw": "YWI="}
    assert parse(encode(payload, tool="t")).payload == expected


def test_nan_and_infinities_become_null_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    big = 10**30
    with caplog.at_level(logging.WARNING, "opwire"):
        text = encode({"a": [float("nan"), float("-inf"), 1.5], "big": big}, tool="t")
    assert parse(text).payload == {"a": [None, None, 1.5], "big": big}
    assert [record.message for record in caplog.records] == [
        "a ToolEnvelope payload holds NaN or an infinity; null is written in its place"
    ]


def cycle() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize("payload", [object(), {"a": open}, cycle(), {(1, 2): 3}, [10**5000]])
def test_a_payload_without_a_json_form_is_refused(payload: Any) -> None:
    with pytest.raises(NotPlainError, match=r"^a ToolEnvelope cannot hold this: "):
        encode(payload, tool="t")


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", vectors("parse", skip=OVERRIDDEN))
def test_a_block_is_read_as_the_public_implementation_reads_it(vector: dict[str, Any]) -> None:
    """Reading is lenient where real producers are: missing padding, the url-safe alphabet, whitespace."""
    expected = vector["result"].get("ok")
    if expected is None:
        with pytest.raises(ToolEnvelopeError):
            parse(vector["text"])
        return
    envelope = parse(vector["text"])
    assert envelope.payload == expected["payload"]
    meta = envelope.meta
    assert {"tool": meta.tool, "ts": meta.ts, "version": meta.version, **meta.extra} == expected["meta"]


def test_every_override_is_a_vector() -> None:
    assert {vector["name"] for vector in VECTORS["parse"]} >= OVERRIDDEN


@pytest.mark.parametrize(
    "sloppy",
    [
        "eyJwYXlsb2FkIjoifn4_Pj4ifQ",  # url-safe, no padding
        "eyJwYXlsb2FkIjoifn4/Pj4ifQ====",  # too much padding
        " eyJwYXls\r\n\tb2FkIjoifn4/Pj4ifQ==\n",  # wrapped
        "eyJwYXlsb2Fk*IjoifnéÃ4/Pj4ifQ==",  # characters of no alphabet
        "eyJwYXlsb2FkIjoifn4/Pj4ifQ==Next heading",  # glued to what follows
        "eyJwYXlsb2FkIjoifn4/Pj4gIn0g=",
        "eyJwYXlsb2FkIjoifn4/Pj4ifSAgA",  # six bits too many
    ],
)
def test_sloppy_base64_is_read(sloppy: str) -> None:
    assert parse(PREFIX + sloppy).payload.rstrip() == "~~?>>"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__ENVELOPE_V2__:e30=", "2"),
        ("__ENVELOPE_V0__:e30=", "0"),
        ("__ENVELOPE_V10__:e30=", "10"),
        pytest.param("__ENVELOPE_V" + "7" * 5000 + "__:e30=", "7" * 20, id="too many digits"),
        (block('{"payload":1,"meta":{"tool":"t","ts":"x","version":2}}'), "2"),
        (block('{"payload":1,"meta":{"version":"3"}}'), "3"),
        (block('{"payload":1,"meta":{"version":1%s}}' % ("0" * 40)), "1" + "0" * 19),
    ],
)
def test_another_version_in_the_prefix_or_in_the_meta_is_refused_by_name(text: str, version: str) -> None:
    with pytest.raises(ToolEnvelopeError, match=rf"^unsupported envelope version {version}: only version 1"):
        parse(text)


@pytest.mark.parametrize("version", ["1", "1.0", '"1"'])
def test_version_1_is_read_however_it_is_spelled(version: str) -> None:
    document = f'{{"payload":5,"meta":{{"version":{version}}}}}'
    assert parse(block(document)).meta.version == 1
    assert parse(block(document).replace("V1", "V01")).payload == 5


def test_integers_keep_every_digit() -> None:
    (vector,) = (vector for vector in VECTORS["parse"] if vector["name"] == "bigint")
    assert parse(vector["text"]).payload == 12345678901234567890
    assert parse(encode({"n": -(10**400)}, tool="t")).payload == {"n": -(10**400)}


def test_invalid_utf_8_is_refused() -> None:
    """A block that is not UTF-8 is an error."""
    (vector,) = (vector for vector in VECTORS["parse"] if vector["name"] == "badutf8")
    with pytest.raises(ToolEnvelopeError, match="not UTF-8: invalid start byte at byte 12"):
        parse(vector["text"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an envelope block"),
        (" " + block("{}"), "not an envelope block"),
        (block("{}").lower(), "not an envelope block"),
        ("__ENVELOPE_V١__:e30=", "not an envelope block"),
        (PREFIX, "does not hold readable JSON"),
        (block("\ufeff{}"), "does not hold readable JSON"),
        (block('{"payload":NaN}'), "NaN is not JSON"),
        (block('{"payload":-Infinity}'), "-Infinity is not JSON"),
        (block('{"payload":1} 2'), "does not hold readable JSON"),
        pytest.param(block("[" * 100_000), "does not hold readable JSON", id="nested too deeply"),
        pytest.param(block('{"payload":%s}' % ("1" * 5000)), "does not hold readable JSON", id="too many digits"),
        (block("[1]"), "holds a JSON object"),
        (block('"x"'), "holds a JSON object"),
        (block('{"meta":[]}'), "meta is not an object"),
        (block('{"meta":{"tool":5}}'), r"meta is not readable: .*\$\.tool"),
        (block('{"meta":{"version":true}}'), r"meta is not readable: .*\$\.version"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ToolEnvelopeError, match=reason):
        parse(text)


@pytest.mark.parametrize("meta", ["", ',"meta":null', ',"meta":{}'])
def test_a_missing_meta_is_empty(meta: str) -> None:
    assert parse(block(f'{{"payload":[1]{meta}}}')) == ToolEnvelope([1], ToolEnvelopeMeta())


def test_a_missing_payload_becomes_none() -> None:
    assert parse(block('{"meta":{"tool":"t"}}')) == ToolEnvelope(None, ToolEnvelopeMeta("t"))


def test_unknown_fields_of_payload_and_meta_survive_reading_and_writing() -> None:
    document = (
        '{"payload":{"category":"quota","new":[{"deep":null}]},'
        '"meta":{"tool":"t","ts":"x","version":1,"deprecations":[{"field":"f"}],"extra":{"a":1},"payload":2}}'
    )
    envelope = parse(block(document))
    assert envelope.payload == {"category": "quota", "new": [{"deep": None}]}
    assert envelope.meta.extra == {"extra": {"a": 1}, "payload": 2}
    assert envelope.encode() == block(document)


def test_the_success_example_of_the_seed_is_read_and_written_again() -> None:
    assert len(SUCCESS) == 492
    envelope = parse(PREFIX + SUCCESS)
    assert envelope.meta == ToolEnvelopeMeta("system-design", "2025-06-17T18:30:00Z")
    assert envelope.payload["model"] == {"id": "claude-3-5-sonnet", "label": "Claude 3.5 Sonnet"}
    assert envelope.encode() == PREFIX + SUCCESS


def test_the_error_example_of_the_seed_is_read_and_written_again() -> None:
    assert len(FAILURE) == 344
    envelope = parse(PREFIX + FAILURE)
    assert envelope.meta == ToolEnvelopeMeta("mcp", "2025-06-17T18:30:00Z")
    assert envelope.payload["code"] == "ERR_INPUT_SCHEMA"
    assert envelope.encode() == PREFIX + FAILURE


def test_an_example_glued_to_a_heading_is_read_only_where_its_padding_ends_it() -> None:
    assert parse(f"{PREFIX}{FAILURE}Implementation Reference") == parse(PREFIX + FAILURE)
    with pytest.raises(ToolEnvelopeError):
        parse(f"{PREFIX}{SUCCESS}Error Response")


@given(payload=JSON, tool=TEXTS, ts=TEXTS)
def test_what_is_written_is_read_back(payload: Any, tool: str, ts: str) -> None:
    assert parse(encode(payload, tool=tool, ts=ts)) == ToolEnvelope(payload, ToolEnvelopeMeta(tool, ts))


@given(payload=JSON)
def test_a_block_is_ascii_and_what_it_holds_is_utf_8(payload: Any) -> None:
    text = encode(payload, tool="t", ts=TS)
    assert text.isascii()
    document = base64.b64decode(text.removeprefix(PREFIX), validate=True).decode("utf-8", "strict")
    assert json.loads(document)["payload"] == payload


# --- garbage ----------------------------------------------------------------------------------------------------------


def envelope_or_reason(text: str) -> ToolEnvelope | str:
    try:
        return parse(text)
    except ToolEnvelopeError as error:
        return str(error)


def readable_or_refused(text: str) -> None:
    match envelope_or_reason(text):
        case ToolEnvelope() as envelope:
            assert parse(envelope.encode()).meta == envelope.meta
        case reason:
            assert 0 < len(reason) < 300


@given(st.text(st.characters(exclude_categories=())))
@example("\ud800")
def test_any_text_after_the_prefix_is_read_or_refused(text: str) -> None:
    """Reading garbage never crashes: it is a ToolEnvelopeError."""
    readable_or_refused(text)
    readable_or_refused(PREFIX + text)


@given(st.binary())
def test_any_bytes_in_base64_are_read_or_refused(document: bytes) -> None:
    readable_or_refused(block(document))


@given(meta=JSON, payload=JSON)
def test_any_json_in_the_place_of_the_meta_is_read_or_refused(meta: Any, payload: Any) -> None:
    readable_or_refused(block(json.dumps({"payload": payload, "meta": meta})))
    readable_or_refused(block(json.dumps({"payload": payload, "meta": {"version": meta, "tool": payload}})))
    readable_or_refused(block(json.dumps(payload)))


@given(st.integers(min_value=0, max_value=len(SUCCESS) - 3))
def test_a_truncated_block_is_refused(length: int) -> None:
    with pytest.raises(ToolEnvelopeError):
        parse(PREFIX + SUCCESS[:length])


@given(st.integers(0, len(FAILURE) - 1), st.characters())
def test_a_block_with_a_wrong_character_is_read_or_refused(position: int, character: str) -> None:
    readable_or_refused(PREFIX + FAILURE[:position] + character + FAILURE[position + 1 :])


@pytest.mark.parametrize("unit", ["A", "=", "-", "!", "eyJh", "[", "W1tb"])
def test_two_million_characters_of_garbage_are_refused(unit: str) -> None:
    with pytest.raises(ToolEnvelopeError):
        parse(PREFIX + unit * (2_000_000 // len(unit)))


# --- falling back -----------------------------------------------------------------------------------------------------


def test_the_envelope_is_found_among_the_blocks() -> None:
    """`parse_or_text` falls back to the text block where no envelope can be read."""
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    envelope = parse_or_text([text_block("# md"), image, text_block(PREFIX + FAILURE)])
    assert envelope == parse(PREFIX + FAILURE)


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([text_block("# md"), text_block(PREFIX + "broken")], "# md"),
        ([text_block("# md"), text_block("__ENVELOPE_V2__:e30=")], "# md"),
        ([text_block("# md")], "# md"),
        ([text_block("one"), text_block("two")], "one\n\ntwo"),
        ([text_block(PREFIX + "broken")], PREFIX + "broken"),
        ([{"type": "image", "data": "", "mimeType": "image/png", "text": "no text block"}], ""),
        ([], ""),
    ],
)
def test_without_a_readable_envelope_the_text_for_people_is_given(blocks: list[Any], text: str) -> None:
    assert parse_or_text(blocks) == text


@given(
    st.lists(JSON | st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS | JSON | TEXTS.map(PREFIX.__add__)}))
)
def test_reading_blocks_never_raises(blocks: list[Any]) -> None:
    assert isinstance(parse_or_text(blocks), ToolEnvelope | str)


# --- typed views ------------------------------------------------------------------------------------------------------


class Point(msgspec.Struct):
    x: int


def test_a_payload_is_given_as_a_type() -> None:
    assert payload_as(parse(encode({"x": 1, "y": 2}, tool="t")), Point) == Point(1)


def test_an_unknown_field_with_a_lone_surrogate_in_its_name_is_passed_over() -> None:
    assert payload_as(parse(encode({"\ud800": 2, "x": 1}, tool="t")), Point) == Point(1)


def test_a_payload_that_does_not_fit_the_type_is_refused_with_the_field() -> None:
    with pytest.raises(ConversionError, match=r"the payload is no Point: .*\$\.x"):
        payload_as(parse(encode({"x": "one"}, tool="t")), Point)


@pytest.mark.parametrize("length", range(8))
def test_base64_of_every_length_is_read_with_and_without_its_padding(length: int) -> None:
    text = encode("x" * length, tool="t", ts="")
    assert parse(text).payload == parse(text.rstrip("=")).payload == "x" * length


def test_a_digit_too_many_is_ignored_as_node_ignores_it() -> None:
    text = encode("xy", tool="tool", ts="").rstrip("=")
    missing = -len(text.partition(":")[2]) % 4
    whole = text if missing == 0 else encode("xy" + "z" * missing, tool="tool", ts="")
    assert len(whole.partition(":")[2]) % 4 == 0
    assert parse(whole + "A").payload == parse(whole).payload


def test_blocks_carry_the_deprecations_on() -> None:
    _, block = encode_blocks("# md", 1, tool="t", ts="", deprecations=["old"])
    assert parse(block["text"]).meta.deprecations == ["old"]
