"""An envelope for a person, for a program, or for a file.

Text and JSON are printed. Images, sound and other binary data are described, and saved where `--output` says.
"""

import mimetypes
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import msgspec
from msgspec import UnsetType

from opwire.cli.screen import Form, Screen, harmless, json_text
from opwire.envelope import MCPContentBlock, MCPResponseMeta, ResponseEnvelope, encode_envelope

MAX_SHOWN = 20_000
"""Characters of a text on a terminal; what is longer is cut, and nothing is cut elsewhere."""


class Part(NamedTuple):
    """Something that can be a file of its own."""

    content: bytes
    media_type: str
    is_text: bool = False

    def in_words(self) -> str:
        """What it is, without showing it."""
        return f"[{self.media_type}, {len(self.content):,} bytes]"


def is_error(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the answer is an error that did not raise."""
    return isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error


def show(envelope: ResponseEnvelope[Any], form: Form, screen: Screen) -> None:
    """Print a result on standard output."""
    match form:
        case Form.ENVELOPE:
            click.echo(json_text(msgspec.Raw(encode_envelope(envelope)), indent=screen.is_terminal))
        case Form.JSON:
            screen.json(envelope.data)
        case Form.RAW:
            _show_raw(envelope, screen)
        case Form.READABLE:
            _show_readable(envelope, screen)


def _show_raw(envelope: ResponseEnvelope[Any], screen: Screen) -> None:
    content = b"".join(part.content for part in parts(envelope))
    if not screen.is_terminal:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    try:
        screen.line(content.decode())
    except UnicodeDecodeError:
        described = f"{len(content):,} bytes that are not text: --output FILE saves them, or send them into a pipe"
        raise click.UsageError(described) from None


def _show_readable(envelope: ResponseEnvelope[Any], screen: Screen) -> None:
    data = envelope.data
    if isinstance(data, bytes):
        screen.line(f"{_binary(envelope).in_words()} --output FILE saves it")
    elif _is_content(envelope):
        for block in cast("MCPResponseMeta", envelope.meta).content:
            _show_block(block, screen)
    elif isinstance(data, str):
        _show_text(data, screen)
    else:
        _show_text(json_text(data, indent=True), screen)
        for part in _attachments(envelope):
            screen.line(f"{part.in_words()} --output FILE saves it")


def _show_text(text: str, screen: Screen) -> None:
    if screen.is_terminal and len(text) > MAX_SHOWN:
        screen.line(text[:MAX_SHOWN])
        screen.note(f"… {len(text) - MAX_SHOWN:,} more characters: --output FILE saves them all, a pipe shows them all")
    else:
        screen.line(text)


def _show_block(block: MCPContentBlock, screen: Screen) -> None:
    if block["type"] == "resource_link":
        screen.line(f"[{block.get('name', 'resource')}] {block['uri']}")
        return
    part = _part(block)
    if part.is_text:
        _show_text(part.content.decode(), screen)
    else:
        screen.line(f"{part.in_words()} --output FILE saves it")


# --- parts ----------------------------------------------------------------------------------------------------------


def parts(envelope: ResponseEnvelope[Any]) -> list[Part]:
    """What a result is made of: the blocks of an MCP tool, or the data as one."""
    data = envelope.data
    if isinstance(data, bytes):
        return [_binary(envelope)]
    if _is_content(envelope):
        return [_part(block) for block in cast("MCPResponseMeta", envelope.meta).content]
    return [_text(data) if isinstance(data, str) else _json(data), *_attachments(envelope)]


def _binary(envelope: ResponseEnvelope[Any]) -> Part:
    media_type = getattr(envelope.meta, "content_type", "").partition(";")[0]
    return Part(envelope.data, media_type or "application/octet-stream")


def _is_content(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the data is the content blocks themselves, because there was nothing structured."""
    meta = envelope.meta
    return (
        isinstance(meta, MCPResponseMeta)
        and isinstance(meta.structured_content, UnsetType)
        and envelope.data == meta.content
    )


def _attachments(envelope: ResponseEnvelope[Any]) -> Iterator[Part]:
    """What came beside structured data and is not the same again as text."""
    if isinstance(envelope.meta, MCPResponseMeta):
        yield from (_part(block) for block in envelope.meta.content if block["type"] in ("image", "audio"))


def _part(block: MCPContentBlock) -> Part:
    match block:
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            return _decoded(data, media_type)
        case {"type": "resource", "resource": {"blob": str(blob)} as resource}:
            return _decoded(blob, resource.get("mimeType", "application/octet-stream"))
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return _text(text, resource.get("mimeType", "text/plain"))
        case {"type": "text", "text": str(text)}:
            return _text(text)
        case _:
            return _json(block)


def _text(text: str, media_type: str = "text/plain") -> Part:
    return Part(text.encode(errors="replace"), media_type, is_text=True)


def _json(data: Any) -> Part:
    return _text(f"{json_text(data, indent=True)}\n", "application/json")


def _decoded(data: str, media_type: str) -> Part:
    try:
        return Part(b64decode(data, validate=True), media_type)
    except ValueError:
        return _text(data, media_type)  # a server that says base64, and writes something else


def save(envelope: ResponseEnvelope[Any], path: Path, screen: Screen) -> None:
    """Write a result to a file; one of several parts to files of that name with numbers.

    Raises:
        click.UsageError: it cannot be written.
    """
    found = parts(envelope)
    for number, part in enumerate(found, 1):
        suffix = mimetypes.guess_extension(part.media_type) or path.suffix
        place = path if len(found) == 1 else path.with_name(f"{path.stem}-{number}{suffix}")
        try:
            place.write_bytes(part.content)
        except OSError as error:
            raise click.UsageError(f"{harmless(str(place))}: cannot be written: {error.strerror}") from None
        screen.note(f"{part.in_words()} saved to {place}")
