"""Content types: what is JSON, what is text, and which of the declared kinds an answer is."""

import encodings
from random import Random

import pytest

from opwire.openapi.client.plan import ResponseMedia, choose, decode_text, media_type


@pytest.mark.parametrize(
    "header",
    [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/problem+json",
        "application/vnd.github.v3+json;q=1",
        "text/json",
    ],
)
def test_json_is_known_by_its_name_or_its_suffix(header: str) -> None:
    assert media_type(header).is_json


@pytest.mark.parametrize(
    "header", ["", "text/plain", "application/jsonp", "application/json-seq", "application/x-ndjson"]
)
def test_what_is_not_one_json_value_is_not_json(header: str) -> None:
    assert not media_type(header).is_json


@pytest.mark.parametrize("header", ["text/plain", "text/csv", "TEXT/HTML", "application/xml", "image/svg+xml"])
def test_text_is_text_wherever_it_is_registered(header: str) -> None:
    assert media_type(header).is_text


@pytest.mark.parametrize("header", ["", "application/pdf", "application/octet-stream", "image/png", "garbage"])
def test_everything_else_is_binary(header: str) -> None:
    assert not media_type(header).is_text
    assert not media_type(header).is_json


@pytest.mark.parametrize(
    ("header", "charset"),
    [
        ("text/plain; charset=ISO-8859-1", "iso8859-1"),
        ('text/plain; format=flowed; Charset = "UTF-8"', "utf-8"),
        ("text/plain", None),
        ("text/plain; charset=klingon", None),
        ("text/plain; charset=zlib", None),  # a codec of Python, not of text
        ("text/plain; charset=punycode", None),  # of text, but takes time in the square of its length
        ("text/plain; charset=unicode_escape", None),
        ("text/plain; charset=utf-7", None),
        ("text/plain; charset=" + "x" * 10_000, None),
        ("text/plain; charset=\udc80", None),
        ("text/plain; charset=--", None),
        ("text/plain; charset=utf_8_sig; a=b", "utf-8-sig"),
        ("text/plain; charset=koi8-u", "koi8-u"),
        ("text/plain; charset=ANSI_X3.4-1968", "ascii"),
    ],
)
def test_a_charset_counts_if_it_is_one(header: str, charset: str | None) -> None:
    assert media_type(header).charset == charset


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("text/event-stream;charset=utf-8", "sse"),
        ("application/x-ndjson", "ndjson"),
        ("application/jsonl", "ndjson"),
        ("application/geo+json-seq", "json-seq"),
        ("application/stream+json", "ndjson"),
        ("application/json", None),
    ],
)
def test_streams_are_known_by_their_names(header: str, kind: str | None) -> None:
    assert media_type(header).stream == kind


@pytest.mark.parametrize(
    ("declared", "actual", "chosen"),
    [
        (["text/plain", "application/json"], "application/json; charset=utf-8", "application/json"),
        (["application/json;v=1"], "application/json", "application/json;v=1"),
        (["*/*", "text/*", "text/csv"], "text/csv", "text/csv"),
        (["*/*", "text/*"], "text/csv", "text/*"),
        (["*/*", "text/csv"], "image/png", "*/*"),
        (["application/json"], "application/hal+json", "application/json"),
        (["application/hal+json", "*/*"], "application/json", "application/hal+json"),
        (["application/json"], "text/html", None),
        (["text/*"], "text", None),
        ([], "application/json", None),
    ],
)
def test_the_kind_that_is_most_exactly_declared_is_chosen(declared: list[str], actual: str, chosen: str | None) -> None:
    found = choose([ResponseMedia(content_type=each) for each in declared], media_type(actual))
    assert (found and found.content_type) == chosen


def test_the_name_of_a_content_type_has_no_parameters() -> None:
    assert media_type(" Text/JSON ;charset=x").name == "text/json"


def test_charsets_that_an_api_invents_are_not_remembered() -> None:
    remembered = vars(encodings)["_cache"]
    before = len(remembered)
    for n in range(300):
        assert media_type(f"text/plain; charset=invented-{n}.{n}").charset is None
    assert len(remembered) == before


@pytest.mark.parametrize(
    "charset",
    [
        "utf-8",
        "utf-8-sig",
        "utf-16",
        "utf-32",
        "utf-32-be",
        "cp1252",
        "gb18030",
        "shift_jis",
        "euc_jis_2004",
        "iso2022_jp",
        "hz",
    ],
)
def test_a_large_text_is_decoded_as_if_at_once(charset: str) -> None:
    valid = ("Grüße, 世界 " * 20_000).encode(charset, errors="ignore")
    assert decode_text(valid, charset) == valid.decode(charset)
    invalid = Random(7).randbytes(300_000)
    assert decode_text(invalid, charset, errors="replace") == invalid.decode(charset, errors="replace")
    with pytest.raises(UnicodeError):
        decode_text(invalid, charset)
