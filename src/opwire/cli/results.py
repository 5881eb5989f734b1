"""Results: printed for a person, printed for a program, or saved to files.

Text and JSON are printed. Images, audio and other binary data are described, and saved by `--output`.
"""

import mimetypes
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from msgspec import UnsetType

from opwire.cli.screen import OutputFormat, Screen, harmless, json_text
from opwire.envelope import MCPContentBlock, MCPResponseMeta, ResponseEnvelope, encode_envelope

MAX_SHOWN = 20_000
"""Characters of a text on a terminal; longer text is truncated. Pipes and files get all of it."""


class ResultPart(NamedTuple):
    """A part of a result that can be saved as a file; `text` is None for binary data."""

    content: bytes
    media_type: str
    text: str | None = None

    def __str__(self) -> str:
        return f"[{self.media_type}, {len(self.content):,} bytes]"


def is_error(envelope: ResponseEnvelope[Any]) -> bool:
    """Return whether the tool returned an error as its result (`isError`)."""
    return isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error


def show(envelope: ResponseEnvelope[Any], form: OutputFormat, screen: Screen) -> None:
    """Print a result on standard output."""
    if form is OutputFormat.ENVELOPE:
        click.echo(json_text(msgspec.Raw(encode_envelope(envelope)), indent=screen.is_terminal))
    elif form is OutputFormat.JSON:
        screen.json(envelope.data)
    elif form is OutputFormat.RAW:
        content = b"".join(part.content for part in parts(envelope))
        if not screen.is_terminal:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
            return
        try:
            screen.line(content.decode())
        except UnicodeDecodeError:
            message = f"the result is {len(content):,} bytes of binary data: save it with --output FILE, or pipe it"
            raise click.UsageError(message) from None
    else:
        for part in parts(envelope):
            text = f"{part} --output FILE saves it" if part.text is None else part.text
            if screen.is_terminal and len(text) > MAX_SHOWN:
                screen.line(text[:MAX_SHOWN])
                screen.note(f"… {len(text) - MAX_SHOWN:,} more characters: --output FILE saves them, a pipe gets them")
            else:
                screen.line(text)


def parts(envelope: ResponseEnvelope[Any]) -> list[ResultPart]:
    """Return the parts of a result: the content blocks of an MCP tool, or the data and its images and audio."""
    data, meta = envelope.data, envelope.meta
    if isinstance(data, bytes):
        media_type = getattr(meta, "content_type", "").partition(";")[0]
        return [ResultPart(data, media_type or "application/octet-stream")]
    blocks = meta.content if isinstance(meta, MCPResponseMeta) else []
    if isinstance(meta, MCPResponseMeta) and isinstance(meta.structured_content, UnsetType) and data == blocks:
        return [_block_part(block) for block in blocks]  # without structured content, the blocks are the data
    # Text blocks beside structured data repeat it.
    return [_part(data), *(_block_part(block) for block in blocks if block["type"] in ("image", "audio"))]


def _part(value: Any, media_type: str = "text/plain") -> ResultPart:
    if isinstance(value, str):
        return ResultPart(value.encode(errors="replace"), media_type, value)
    text = json_text(value, indent=True)
    return ResultPart(f"{text}\n".encode(), "application/json", text)


def _block_part(block: MCPContentBlock) -> ResultPart:
    match block:
        case {"type": "text", "text": str(text)}:
            return _part(text)
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return _part(text, resource.get("mimeType", "text/plain"))
        case {"type": "resource_link"}:
            return _part(block)._replace(text=f"[{block.get('name', 'resource')}] {block['uri']}")
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            pass
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            media_type = resource.get("mimeType", "application/octet-stream")
        case _:
            return _part(block)
    try:
        return ResultPart(b64decode(data, validate=True), media_type)
    except ValueError:
        return _part(data, media_type)  # some servers declare base64 and send plain text


def save(envelope: ResponseEnvelope[Any], path: Path, screen: Screen) -> None:
    """Write a result to a file; several parts go to numbered files.

    Raises:
        click.UsageError: a file cannot be written.
    """
    found = parts(envelope)
    for number, part in enumerate(found, 1):
        suffix = mimetypes.guess_extension(part.media_type) or path.suffix
        target = path if len(found) == 1 else path.with_name(f"{path.stem}-{number}{suffix}")
        try:
            target.write_bytes(part.content)
        except OSError as error:
            raise click.UsageError(f"{harmless(str(target))}: cannot write the file: {error.strerror}") from None
        screen.note(f"{part} saved to {target}")
