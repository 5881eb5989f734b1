"""Bodies of requests, by content type."""

import json
from base64 import b64encode
from email.message import MIMEPart
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.openapi.client.plan import PartEncoding, RequestBody
from opwire.openapi.client.serialize import body_encoder, urlencoded

DATA = b"\x00\xff\r\n"
BASE64 = b64encode(DATA).decode()
FORM = "application/x-www-form-urlencoded"


def encoded(content_type: str, value: Any, **options: Any) -> tuple[bytes, str]:
    return body_encoder(RequestBody(content_type=content_type, required=True, **options))(value)


def parts_of(value: Any, kind: str = "multipart/form-data", **parts: PartEncoding) -> list[MIMEPart]:
    body, content_type = encoded(kind, value, parts=parts)
    assert content_type.startswith(f"{kind}; boundary=")
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    return list(message.iter_parts())


def field(part: MIMEPart) -> tuple[str | None, str | None, str | None, bytes]:
    """Name, file name, content type and data."""
    disposition = part["Content-Disposition"].params
    data = part.get_payload(decode=True)
    assert isinstance(data, bytes)
    return disposition.get("name"), disposition.get("filename"), part["Content-Type"], data


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/problem+json", "Application/JSON"]
)
@pytest.mark.parametrize("value", [{"a": [1, None, "ä"]}, [], "text", 7, None, True])
def test_json_bodies_are_compact_json_of_the_declared_content_type(kind: str, value: Any) -> None:
    body, content_type = encoded(kind, value)
    assert json.loads(body) == value
    assert content_type == kind


@pytest.mark.parametrize(
    ("kind", "text", "body", "sent"),
    [
        ("text/plain", "a", b"a", "text/plain"),
        ("text/plain", "ä", "ä".encode(), "text/plain; charset=utf-8"),
        ("text/plain; charset=latin-1", "ä", b"\xe4", "text/plain; charset=latin-1"),
        ('text/csv; header=present; charset="UTF-8"', "ä", "ä".encode(), 'text/csv; header=present; charset="UTF-8"'),
        ("application/xml", "<ä/>", "<ä/>".encode(), "application/xml"),
        ("image/svg+xml", "<svg/>", b"<svg/>", "image/svg+xml"),
        ("text/plain", 5.0, b"5", "text/plain"),
        ("application/vnd.thing", {"a": 1}, b'{"a":1}', "application/vnd.thing"),
    ],
)
def test_text_bodies_are_written_in_their_charset(kind: str, text: Any, body: bytes, sent: str) -> None:
    assert encoded(kind, text) == (body, sent)


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("application/xml", {"a": 1}, "is given as text"),
        ("text/html", [], "is given as text"),
        ("text/plain; charset=klingon", "a", "charset"),
        ("text/plain; charset=ascii", "ä", "ascii"),
        (FORM, "text", "a form is an object"),
        ("multipart/form-data", 7, "a form is an object"),
        (FORM, {"a": float("inf")}, "a: a number must be finite"),
        ("multipart/form-data", {"b": float("nan")}, "b: a number must be finite"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(kind: str, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encoded(kind, value)


def test_binary_bodies_are_the_bytes_behind_the_base64() -> None:
    assert encoded("application/octet-stream", BASE64, binary=True) == (DATA, "application/octet-stream")
    assert encoded("application/zip", {"data": BASE64}, binary=True) == (DATA, "application/zip")


@pytest.mark.parametrize(
    ("declared", "given", "sent"),
    [
        ("image/*", "image/png", "image/png"),
        ("*/*", "video/mp4", "video/mp4"),
        ("*/*", None, "application/octet-stream"),
        ("image/png", "image/jpeg", "image/png"),  # the only one that the API takes
    ],
)
def test_the_content_type_of_a_file_counts_where_the_api_leaves_a_choice(
    declared: str, given: str | None, sent: str
) -> None:
    value = {"data": BASE64} if given is None else {"data": BASE64, "contentType": given}
    assert encoded(declared, value, binary=True) == (DATA, sent)


@pytest.mark.parametrize("kind", ["*/*", "multipart/form-data"])
def test_the_content_type_of_a_file_cannot_add_a_header(kind: str) -> None:
    file = {"data": BASE64, "contentType": "image/png\r\nEvil: 1"}
    with pytest.raises(ValueError, match="expected one like text/plain"):
        encoded(
            kind, {"file": file} if "form" in kind else file, binary=True, parts={"file": PartEncoding(binary=True)}
        )


@pytest.mark.parametrize(
    ("declared", "value", "body"),
    [
        ("*/*", {"a": 1}, (b'{"a":1}', "application/json")),
        ("*/*", "hi", (b"hi", "text/plain")),
        ("application/*", [1], (b"[1]", "application/json")),
        ("text/*", 7, (b"7", "text/plain")),
    ],
)
def test_a_range_of_content_types_is_chosen_from_by_the_value(
    declared: str, value: Any, body: tuple[bytes, str]
) -> None:
    assert encoded(declared, value) == body


def test_sequences_of_json_are_written_item_by_item() -> None:
    assert encoded("application/x-ndjson", [{"a": 1}, 2])[0] == b'{"a":1}\n2\n'
    assert encoded("application/json-seq", [{"a": 1}, 2])[0] == b'\x1e{"a":1}\n\x1e2\n'
    assert encoded("application/jsonl", '{"a":1}\n')[0] == b'{"a":1}\n'


def test_a_form_repeats_arrays_writes_objects_as_json_and_leaves_nulls_out() -> None:
    value = {"a": "x y&z=1", "list": [1, None, True], "object": {"b": [2]}, "none": None, "empty": ""}
    body, content_type = encoded(FORM, value)
    assert content_type == FORM
    assert body.startswith(b"a=x%20y%26z%3D1&")
    assert parse_qsl(body.decode(), keep_blank_values=True) == [
        ("a", "x y&z=1"),
        ("list", "1"),
        ("list", "true"),
        ("object", '{"b":[2]}'),
        ("empty", ""),
    ]


def test_a_form_follows_the_encoding_of_its_properties() -> None:
    parts = {
        "deep": PartEncoding(style="deepObject"),
        "joined": PartEncoding(style="form", explode=False),
        "piped": PartEncoding(style="pipeDelimited", explode=False),
        "json": PartEncoding(content_type="application/json"),
        "url": PartEncoding(style="form", allow_reserved=True),
        "file": PartEncoding(binary=True),
    }
    value = {
        "deep": {"a": [{"b": 1}]},
        "joined": [1, 2],
        "piped": ["x", "y"],
        "json": "text",
        "url": "http://h/?a&b",
        "file": {"data": BASE64},
    }
    text = urlencoded(value, lambda name: parts.get(name, PartEncoding()))
    assert "joined=1,2&piped=x%7Cy" in text
    assert "url=http://h/?a%26b" in text
    assert dict(parse_qsl(text)) == {
        "deep[a][0][b]": "1",
        "joined": "1,2",
        "piped": "x|y",
        "json": '"text"',
        "url": "http://h/?a&b",
        "file": BASE64,
    }


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.integers(),
        max_size=4,
    )
)
def test_a_form_can_be_read_back_and_no_value_adds_a_field(value: dict[str, Any]) -> None:
    fields = parse_qsl(urlencoded(value), keep_blank_values=True)
    assert fields == [(name, str(each)) for name, each in value.items()]


def test_multipart_sends_texts_files_json_and_repeated_parts() -> None:
    value = {
        "text": "grün",
        "number": 5,
        "object": {"a": 1},
        "list": ["x", None, "y"],
        "objects": [{"b": 2}, {"b": 3}],
        "none": None,
        "photo": {"filename": "cat.png", "contentType": "image/png", "data": BASE64},
        "raw": BASE64,
        "many": [BASE64, {"filename": "b.bin", "data": BASE64}],
    }
    binary = PartEncoding(binary=True)
    parts = parts_of(value, photo=binary, raw=binary, many=binary)
    octets = "application/octet-stream"
    assert [field(part) for part in parts] == [
        ("text", None, None, "grün".encode()),
        ("number", None, None, b"5"),
        ("object", None, "application/json", b'{"a":1}'),
        ("list", None, None, b"x"),
        ("list", None, None, b"y"),
        ("objects", None, "application/json", b'{"b":2}'),
        ("objects", None, "application/json", b'{"b":3}'),
        ("photo", "cat.png", "image/png", DATA),
        ("raw", "raw", octets, DATA),
        ("many", "many", octets, DATA),
        ("many", "b.bin", octets, DATA),
    ]


def test_multipart_follows_the_encoding_of_its_properties() -> None:
    parts = parts_of(
        {"a": "x", "b": {"c": 1}, "joined": [1, 2], "deep": {"k": "v w"}, "pic": {"data": BASE64}, "xml": "<a/>"},
        a=PartEncoding(content_type="application/json", headers={"X-Kind": "quoted"}),
        b=PartEncoding(content_type="application/json; charset=utf-8"),
        joined=PartEncoding(style="form", explode=False),
        deep=PartEncoding(style="deepObject"),
        pic=PartEncoding(binary=True, content_type="image/*, image/png, image/jpeg"),
        xml=PartEncoding(content_type="text/xml"),
    )
    assert [field(part) for part in parts] == [
        ("a", None, "application/json", b'"x"'),
        ("b", None, 'application/json; charset="utf-8"', b'{"c":1}'),
        ("joined", None, None, b"1,2"),
        ("deep[k]", None, None, b"v w"),
        ("pic", "pic", "image/png", DATA),
        ("xml", None, "text/xml", b"<a/>"),
    ]
    assert parts[0]["X-Kind"] == "quoted"


def test_a_file_keeps_its_own_content_type_where_several_are_allowed() -> None:
    (part,) = parts_of(
        {"pic": {"data": BASE64, "contentType": "image/jpeg"}},
        pic=PartEncoding(binary=True, content_type="image/png, image/jpeg"),
    )
    assert part["Content-Type"] == "image/jpeg"


def test_an_object_that_looks_like_a_file_is_json_unless_the_document_says_that_it_is_one() -> None:
    (part,) = parts_of({"meta": {"data": "x"}})
    assert field(part) == ("meta", None, "application/json", b'{"data":"x"}')


def test_an_array_as_multipart_body_is_parts_without_names() -> None:
    first, second = parts_of([{"a": 1}, "text"], "multipart/mixed")
    assert (first["Content-Disposition"], first["Content-Type"]) == (None, "application/json")
    assert second.get_payload(decode=True) == b"text"


def test_a_file_that_is_not_base64_is_named() -> None:
    with pytest.raises(ValueError, match=r"photo: a file is given as bytes"):
        encoded("multipart/form-data", {"photo": "cat.png"}, parts={"photo": PartEncoding(binary=True)})
