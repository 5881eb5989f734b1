"""Data as something to read or to look at."""

from base64 import b64encode
from typing import Any

import pytest

from opwire.agents.tools import data_block


@pytest.mark.parametrize(
    ("data", "json", "text"),
    [("hello", b'"hello"', "hello"), ({"a": 1}, b'{"a":1}', '{"a":1}'), (None, b"null", "null"), ([1], b"[1]", "[1]")],
)
def test_text_is_shown_unchanged_and_the_rest_as_json(data: Any, json: bytes, text: str) -> None:
    assert data_block(data, json, "a.b") == {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("start", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
    ],
)
def test_an_image_is_known_by_its_first_bytes(start: bytes, mime: str) -> None:
    data = start + b"..."
    assert data_block(data, b"", "a.b") == {"type": "image", "data": b64encode(data).decode(), "mimeType": mime}


def test_other_bytes_are_a_resource() -> None:
    block: Any = data_block(b"\x00", b"", "a b.c/d")
    assert block == {
        "type": "resource",
        "resource": {"uri": "opwire://a%20b/c%2Fd", "mimeType": "application/octet-stream", "blob": "AA=="},
    }


def test_what_an_http_api_says_of_its_bytes_counts() -> None:
    assert data_block(b"\x00", b"", "a.b", "audio/wav; rate=8")["type"] == "audio"
    assert data_block(b"\x00", b"", "a.b", "image/tiff")["type"] == "image"
    pdf: Any = data_block(b"%PDF", b"", "a.b", "application/pdf")
    assert pdf["resource"]["mimeType"] == "application/pdf"
