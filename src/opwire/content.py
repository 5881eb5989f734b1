"""MCP content blocks: our own types, so that the core never imports the MCP SDK.

A block is plain data, exactly as it is on the wire. Fields that a newer protocol adds stay in the dict; a block of
a kind that is not known here becomes a text block holding its JSON, so that nothing is lost and nothing breaks.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, cast

import msgspec

from opwire.errors import ConversionError
from opwire.typed.plain import replace_surrogates


class MCPAnnotations(TypedDict, total=False):
    """Hints for showing a block."""

    audience: list[Literal["user", "assistant"]]
    priority: float
    lastModified: str


class TextBlock(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str
    annotations: NotRequired[MCPAnnotations]


class ImageBlock(TypedDict):
    """An image, base64."""

    type: Literal["image"]
    data: str
    mimeType: str
    annotations: NotRequired[MCPAnnotations]


class AudioBlock(TypedDict):
    """Sound, base64."""

    type: Literal["audio"]
    data: str
    mimeType: str
    annotations: NotRequired[MCPAnnotations]


class MCPResourceContent(TypedDict):
    """What a resource holds: text, or base64 bytes as `blob`."""

    uri: str
    mimeType: NotRequired[str]
    text: NotRequired[str]
    blob: NotRequired[str]


class ResourceBlock(TypedDict):
    """A resource, embedded."""

    type: Literal["resource"]
    resource: MCPResourceContent
    annotations: NotRequired[MCPAnnotations]


class ResourceLinkBlock(TypedDict):
    """A resource, by address."""

    type: Literal["resource_link"]
    uri: str
    name: str
    description: NotRequired[str]
    mimeType: NotRequired[str]
    annotations: NotRequired[MCPAnnotations]


if TYPE_CHECKING:
    MCPContentBlock = TextBlock | ImageBlock | AudioBlock | ResourceBlock | ResourceLinkBlock
else:
    # msgspec reads annotations at run time and takes no union of several TypedDicts.
    MCPContentBlock = dict[str, Any]

_STRING = {"type": "string"}
_ANNOTATIONS = {
    "type": "object",
    "properties": {
        "audience": {"type": "array", "items": {"enum": ["user", "assistant"]}},
        "priority": {"type": "number"},
        "lastModified": _STRING,
    },
}
_RESOURCE = {
    "type": "object",
    "properties": {"uri": _STRING, "mimeType": _STRING, "text": _STRING, "blob": _STRING},
    "required": ["uri"],
}


def _block_schema(kind: str, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **required, **optional, "annotations": _ANNOTATIONS}
    return {"type": "object", "properties": properties, "required": ["type", *required]}


MCP_CONTENT_BLOCK_SCHEMA: dict[str, Any] = {
    "oneOf": [
        _block_schema("text", {"text": _STRING}, {}),
        _block_schema("image", {"data": _STRING, "mimeType": _STRING}, {}),
        _block_schema("audio", {"data": _STRING, "mimeType": _STRING}, {}),
        _block_schema("resource", {"resource": _RESOURCE}, {}),
        _block_schema(
            "resource_link", {"uri": _STRING, "name": _STRING}, {"description": _STRING, "mimeType": _STRING}
        ),
    ]
}

_READABLE: dict[str, type[Any]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "audio": AudioBlock,
    "resource": ResourceBlock,
    "resource_link": ResourceLinkBlock,
}


def content_blocks(blocks: Iterable[Any]) -> list[MCPContentBlock]:
    """The blocks, each as it is if it is of a known kind, else as a text block holding its JSON.

    Raises:
        ConversionError: one of them is not a JSON object at all, or has no JSON form.
    """
    return [_known(block) for block in blocks]


def _known(block: Any) -> MCPContentBlock:
    if not isinstance(block, Mapping):
        raise ConversionError(f"a content block is an object, not {type(block).__name__}")
    plain = dict(cast("Mapping[str, Any]", block))
    shape = _READABLE.get(str(plain.get("type")))
    if shape is not None:
        try:
            msgspec.convert(plain, shape)
        except ValueError:  # something is missing, of a wrong type, or not text that UTF-8 can carry
            pass
        else:
            return cast("MCPContentBlock", plain)
    try:
        return {"type": "text", "text": msgspec.json.encode(replace_surrogates(plain)).decode()}
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError(f"a content block has no JSON form: {error}") from error
