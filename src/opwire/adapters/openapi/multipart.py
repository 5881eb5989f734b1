"""The framing of multipart bodies: RFC 7578, with names and file names escaped as browsers do."""

import re
from collections.abc import Iterable, Mapping
from secrets import token_hex

from msgspec import Struct

from opwire.adapters.openapi.headers import content_type_value, header_name, header_value

_OWN = ("content-disposition", "content-type")  # written from the other fields
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


class FormPart(Struct, frozen=True, kw_only=True):
    """One part. Without a name it is a part of `multipart/mixed` and the like, told by its position."""

    data: bytes
    name: str | None = None
    filename: str | None = None
    content_type: str | None = None
    headers: Mapping[str, str] = {}


def write_multipart(parts: Iterable[FormPart]) -> tuple[bytes, str]:
    """The body, and the boundary that its Content-Type has to name.

    Raises:
        ValueError: a header or content type cannot be written.
    """
    parts = list(parts)
    boundary = _boundary(parts)
    mark = f"--{boundary}\r\n".encode()
    pieces: list[bytes] = []
    for part in parts:
        pieces += (mark, _head(part), b"\r\n", part.data, b"\r\n")
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces), boundary


def _boundary(parts: list[FormPart]) -> str:
    while True:
        boundary = token_hex(16)
        if not any(boundary.encode() in part.data for part in parts):
            return boundary


def _head(part: FormPart) -> bytes:
    lines: list[str] = []
    if part.name is not None:
        filename = "" if part.filename is None else f'; filename="{_quotable(part.filename)}"'
        lines.append(f'Content-Disposition: form-data; name="{_quotable(part.name)}"{filename}\r\n')
    if part.content_type is not None:
        lines.append(f"Content-Type: {content_type_value(part.content_type)}\r\n")
    for name, value in part.headers.items():
        if name.lower() not in _OWN:
            lines.append(f"{header_name(name)}: {header_value(value)}\r\n")
    return "".join(lines).encode()


def _quotable(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)
