"""Data as a content block: text and JSON to read, images to look at, other bytes as a resource. Pure."""

from base64 import b64encode
from typing import Any
from urllib.parse import quote

from opwire.content import MCPContentBlock

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def data_block(data: Any, json: bytes, operation_id: str, content_type: str | None = None) -> MCPContentBlock:
    """The block that shows the data, of which the JSON is at hand. The content type is that of bytes, if known."""
    if isinstance(data, bytes):
        return _bytes_block(data, operation_id, content_type)
    return {"type": "text", "text": data if isinstance(data, str) else json.decode()}


def _bytes_block(data: bytes, operation_id: str, content_type: str | None) -> MCPContentBlock:
    mime = (content_type or "").partition(";")[0].strip().lower() or _image_type(data) or "application/octet-stream"
    encoded = b64encode(data).decode("ascii")
    if mime.startswith("image/"):
        return {"type": "image", "data": encoded, "mimeType": mime}
    if mime.startswith("audio/"):
        return {"type": "audio", "data": encoded, "mimeType": mime}
    namespace, _, name = operation_id.partition(".")
    uri = f"opwire://{quote(namespace, safe='')}/{quote(name, safe='')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": encoded}}


def _image_type(data: bytes) -> str | None:
    """What the first bytes say."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _IMAGES if data.startswith(magic)), None)
