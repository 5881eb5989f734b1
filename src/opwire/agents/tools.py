"""Operations as tools of a model: their names, their schemas, and what a model reads of a call. No I/O."""

import asyncio
import re
import unicodedata
from base64 import b64encode
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any, Literal, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode, SchemaError, UsageError
from opwire.model.envelope import MCPContentBlock, ResponseEnvelope
from opwire.runtime.text import get_logger
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import map_subschemas
from opwire.typed.plain import MAX_DEPTH, SCALARS, as_dict, as_list, find_nonfinite, replace_surrogates, survey

logger = get_logger("opwire.agents")

# --- names ------------------------------------------------------------------------------------------------------------
#
# An operation's id in the letters that model providers and MCP clients accept:
#
#     math.add                     math_add
#     my_shop.get_item             my_shop_get_item
#     github.repos/list-for-org    github_repos_list-for-org
#
# A name has letters, digits, "_" and "-", and begins with a letter or "_". Every other character is a separator,
# written as "_". If another operation already has that name, separators are written as "-" or "__"; if all of these
# names are taken too, or nothing of the id is readable, the name ends with a digest of the id. Words in the middle of
# a name are abbreviated if it is too long, so that names which differ at their end stay different.

MAX_NAME = 50
"""Longest name by default: providers accept 64, and clients put the name of their server before it (`mcp__shop__`)."""

SHORTEST_MAX_NAME, LONGEST_MAX_NAME = 32, 128
"""The bounds of that limit."""

_SEPARATORS = re.compile(r"[^A-Za-z0-9_-]+")
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{LONGEST_MAX_NAME - 1}}}")
_UNDERSCORES = re.compile(r"_{2,}")
_SEPARATOR_PAIRS = (
    ("_", "_"),
    ("_", "-"),
    ("__", "_"),
    ("__", "-"),
    ("-", "_"),
    ("-", "-"),
)  # for the dot, and for other characters
_DIGEST_LENGTH = 6
_MAX_NAMESPACE_CHARACTERS = 16  # kept when a name is abbreviated
_ABBREVIATED_WORD_LENGTHS = (8, 6, 4, 3, 2, 1)


class ToolNames:
    """The names of a set of operations, each given once.

    An operation keeps its name as long as it is known. Which one of two gets the shorter name depends on their order,
    so a caller resolves names with the `ToolNames` that gave them, and never parses one.

    names = ToolNames()
    names.add(spec.id for spec in registry.list())
    names["github.repos/get"]               # "github_repos_get"
    names.operation_id("github_repos_get")  # "github.repos/get"

    `chosen` are names by id; no other operation gets one of them.

    Raises:
        UsageError: a chosen name is invalid, or chosen twice.
    """

    def __init__(self, *, max_name: int = MAX_NAME, chosen_names: Mapping[str, str] | None = None) -> None:
        self._max_name = max_name
        self._chosen = dict(chosen_names or {})
        self._reserved = frozenset(self._chosen.values())
        for id, name in self._chosen.items():
            if not _NAME.fullmatch(name):
                allowed = f"letters, digits, _ and -, at most {LONGEST_MAX_NAME}, and begins with a letter or _"
                raise UsageError(f"the tool name {name!r:.80} of {id} is invalid: it has {allowed}")
        if len(self._reserved) < len(self._chosen):
            raise UsageError("tool_names has a name twice: each operation needs its own")
        self._names: dict[str, str] = {}  # by id
        self._ids: dict[str, str] = {}  # by name

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, operation_id: object) -> bool:
        return operation_id in self._names

    def __getitem__(self, operation_id: str) -> str:
        """Return the name of an operation that was added.

        Raises:
            KeyError: it was not.
        """
        return self._names[operation_id]

    def add(self, operation_ids: Iterable[str]) -> None:
        """Name operations that have no name yet. Their order does not matter within one call."""
        for id in sorted({id for id in operation_ids if id not in self._names}):
            free = (name for name in self._candidates(id) if name not in self._ids and name not in self._reserved)
            name = self._chosen.get(id) or next(free)
            self._names[id], self._ids[name] = name, id

    def keep(self, operation_ids: Iterable[str]) -> None:
        """Forget all other operations: their names may be given again."""
        kept_ids = set(operation_ids)
        for id in [id for id in self._names if id not in kept_ids]:
            del self._ids[self._names.pop(id)]

    @property
    def taken(self) -> Collection[str]:
        """The names of all operations that have one."""
        return self._ids.keys()

    def operation_id(self, name: str) -> str | None:
        """Return the id of the operation that has this name, or None."""
        return self._ids.get(name)

    def _candidates(self, id: str) -> Iterator[str]:
        namespace, _, local_name = id.partition(".")
        head = _readable(namespace, "_")
        if head and _readable(local_name, "_"):
            for dot, separator in _SEPARATOR_PAIRS:
                yield _shortened(_started(f"{head}{dot}{_readable(local_name, separator)}"), self._max_name)
        digest = sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        name = _started(f"{head}_{_readable(local_name, '_')}".strip("_") or "op")
        for digits in range(_DIGEST_LENGTH, self._max_name // 2):
            yield f"{_shortened(name, self._max_name - 1 - digits)}_{digest[:digits]}"


def _readable(text: str, separator: str) -> str:
    if not text.isascii():  # é as e; other scripts are lost
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return _UNDERSCORES.sub("_", _SEPARATORS.sub(separator, text)).strip("_-")


def _started(name: str) -> str:
    return name if name[:1].isalpha() else f"_{name}"


def _shortened(name: str, longest: int) -> str:
    if len(name) <= longest:
        return name
    first, *others = name.split("_")
    for length in _ABBREVIATED_WORD_LENGTHS if others else ():
        *middle, last = others
        short = "_".join([first[:_MAX_NAMESPACE_CHARACTERS], *(word[:length] for word in middle), last])
        if len(short) <= longest:
            return short
    return f"{name[: longest // 3]}_{name[1 + longest // 3 - longest :]}"  # one long word: its ends


# --- schemas ----------------------------------------------------------------------------------------------------------
#
# They are in 2020-12, and objects where the protocols of models require objects: other types are wrapped in an
# object, as `input` or `result`, together with their definitions. References to "#/$defs/…" stay unchanged, references
# to the whole schema are rewritten.

_DEFINITION_KEYWORDS = ("$defs", "definitions")
_DEFINITION_REFERENCES = tuple(f"#/{key}/" for key in _DEFINITION_KEYWORDS)


class ToolSchema(Struct, frozen=True):
    """A schema of a tool. `wraps`: the value is a property of the object that it describes."""

    schema: dict[str, Any]
    wraps: bool = False


def is_binary(schema: Schema) -> bool:
    """Return whether a schema describes bytes."""
    match schema.lowered:
        case {"type": "string", "contentEncoding": "base64"} | {"type": "string", "format": "binary" | "byte"}:
            return True
        case _:
            return False


def input_schema(schema: Schema) -> ToolSchema:
    """Return the schema of an input. An unknown input is one optional property.

    Raises:
        SchemaError: clients cannot parse the schema.
    """
    plain = schema.lowered
    if as_dict(plain).get("type") == "object":
        return ToolSchema(_checked(plain))
    definitions, inner = _lifted(plain, "#/properties/input")
    wrapper: dict[str, Any] = {"type": "object", "properties": {"input": inner}, **definitions}
    if not schema.is_unknown:
        wrapper["required"] = ["input"]
    return ToolSchema(wrapper, wraps=True)


def output_schema(schema: Schema, *, objects_only: bool) -> ToolSchema | None:
    """Return the schema of an output, None if it is unknown. Revisions before 2026-07-28 accept only objects.

    Raises:
        SchemaError: see `input_schema`.
    """
    if schema.is_unknown:
        return None
    plain = schema.lowered
    if as_dict(plain).get("type") == "object":
        return ToolSchema(_checked(plain))
    if not objects_only:
        return ToolSchema(_as_object(plain))
    definitions, inner = _lifted(plain, "#/properties/result")
    wrapper = {"type": "object", "properties": {"result": inner}, **definitions, "required": ["result"]}
    return ToolSchema(wrapper, wraps=True)


def items_schema(schema: Schema) -> ToolSchema:
    """Return the schema of the collected items of a subscription.

    Raises:
        SchemaError: see `input_schema`.
    """
    definitions, item = _lifted(schema.lowered, "#/properties/items/items")
    properties = {"items": {"type": "array", "items": item}, "complete": {"type": "boolean"}}
    return ToolSchema({"type": "object", "properties": properties, "required": ["items", "complete"], **definitions})


def _checked(schema: JSONSchema) -> dict[str, Any]:
    """Check the parts that clients parse themselves: an invalid one would make them reject the whole list."""
    checked = _as_object(schema)
    properties: Any = checked.get("properties", {})
    required: Any = checked.get("required", [])
    schemas = as_dict(properties).values()
    if not isinstance(properties, dict) or not all(
        isinstance(property_schema, dict | bool) for property_schema in schemas
    ):
        raise SchemaError("its properties are not an object of schemas")
    if not isinstance(required, list) or not all(
        isinstance(property_name, str) for property_name in cast("list[Any]", required)
    ):
        raise SchemaError("required is not a list of names")
    if not isinstance(checked.get("$schema", ""), str):
        raise SchemaError("$schema is not an address")
    return checked


def _as_object(schema: JSONSchema) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def _lifted(schema: JSONSchema, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the definitions of a schema, and the schema without them, rewritten for its new place."""
    inner = _as_object(schema)
    if "$id" in inner:  # a document of its own: its references are relative to itself
        return {}, inner

    def move(schema: JSONSchema) -> JSONSchema:
        if not isinstance(schema, dict) or "$id" in schema:
            return schema
        copy = map_subschemas(schema, move)
        ref = copy.get("$ref")
        if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) and not ref.startswith(_DEFINITION_REFERENCES):
            copy["$ref"] = place + ref[1:]
        return copy

    try:
        moved = as_dict(move(inner))
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    moved.pop("$schema", None)  # allowed at the root only; 2020-12 is the default
    return {key: moved.pop(key) for key in _DEFINITION_KEYWORDS if key in moved}, moved


# --- results and errors -----------------------------------------------------------------------------------------------
#
# Data becomes a content block: text and JSON as text, images as images, other bytes as a resource. The text of an error
# says what was wrong and what to do, with the details that a server sent: a model corrects its arguments by them.

MAX_SHOWN = 4_000
"""Characters of an error's details that a model reads."""

SHOWN_PROBLEMS = 20
"""Problems of a value that a model reads."""

_DETAILS_IN_MESSAGES = frozenset({"problems", "status", "headers", "body", "hint", "errorId"})
_IMAGE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class EncodedData(Struct, frozen=True):
    """Data with a JSON form, and its JSON. `encoding`: it was bytes."""

    data: Any
    json: bytes
    encoding: Literal["base64"] | None = None


def encode_data(data: Any, label: str) -> EncodedData:
    """Encode data: NaN and infinities as null, lone surrogates replaced, bytes as base64.

    Raises:
        CallError: EXECUTION_ERROR, if it is nested too deeply.
    """
    if isinstance(data, bytes):
        text = b64encode(data).decode("ascii")
        return EncodedData(text, _encoder.encode(text), "base64")
    # The SDK fails only when it writes, and takes the whole connection down.
    if type(data) not in SCALARS and survey(data).deep:
        raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the data is nested deeper than {MAX_DEPTH}")
    try:
        encoded = _encoder.encode(data)
    except UnicodeEncodeError:
        data = replace_surrogates(data)
        encoded = _encoder.encode(data)
    if b"null" in encoded and find_nonfinite(data):
        logger.warning("%s: the data contains NaN or an infinity, which is sent as null", label)
        data = _decoder.decode(encoded)
    return EncodedData(data, encoded)


def media_type(data: bytes, content_type: str | None = None) -> str:
    """Return the media type of bytes: the given one, or that of an image by its first bytes."""
    mime = (content_type or "").partition(";")[0].strip().lower()
    if mime:
        return mime
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    matching_types = (mime for magic, mime in _IMAGE_SIGNATURES if data.startswith(magic))
    return "image/webp" if is_webp else next(matching_types, "application/octet-stream")


def data_block(data: Any, json: bytes, operation_id: str, content_type: str | None = None) -> MCPContentBlock:
    """Return the content block of data, given with its JSON. `content_type` describes bytes, if known."""
    if not isinstance(data, bytes):
        return {"type": "text", "text": data if isinstance(data, str) else json.decode()}
    mime = media_type(data, content_type)
    encoded = b64encode(data).decode("ascii")
    if mime.startswith("image/"):
        return {"type": "image", "data": encoded, "mimeType": mime}
    if mime.startswith("audio/"):
        return {"type": "audio", "data": encoded, "mimeType": mime}
    namespace, _, name = operation_id.partition(".")
    uri = f"opwire://{quote(namespace, safe='')}/{quote(name, safe='')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": encoded}}


async def collect_items(
    stream: AsyncGenerator[ResponseEnvelope[Any]], max_items: int, max_seconds: float
) -> tuple[list[Any], bool]:
    """Return the first items of a subscription, and whether there are no more."""
    items: list[Any] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(max_seconds), aclosing(stream):
            async for envelope in stream:
                items.append(envelope.data)
                if len(items) >= max_items:
                    return items, False
            return items, True
    return items, False


def error_text(error: CallError, operation_id: str = "", tool: str = "", *, advises: bool = True) -> str:
    """Return an error as text: its message, its details, and what to do, if it `advises`.

    A message that starts with the id of the operation starts with the name of the tool, which is what a model can call.
    """
    details = as_dict(error.details)
    names_operation = operation_id and error.message.startswith((f"{operation_id}:", f"{operation_id} "))
    message = f"{tool}{error.message.removeprefix(operation_id)}" if names_operation else error.message
    lines = [f"{error.code.value}: {message}" if message else str(error)]
    if error.code is ErrorCode.VALIDATION_ERROR:
        lines += _problem_lines(details.get("problems"), error.message)
    body = details.get("body")
    if body is not None and body != "":
        lines.append(f"Response body: {_shown(body)}")
    other_details = {name: value for name, value in details.items() if name not in _DETAILS_IN_MESSAGES}
    if other_details or not (error.details is None or isinstance(error.details, dict)):
        lines.append(f"Details: {_shown(other_details or error.details)}")
    hint = details.get("hint")
    if isinstance(hint, str) and hint not in error.message:
        lines.append(hint[:MAX_SHOWN])
    if not advises:
        pass
    elif error.code is ErrorCode.VALIDATION_ERROR and ("problems" in details or "hint" not in details):
        lines.append("Correct the arguments and call the tool again.")
    elif error.retry_after is not None:
        lines.append(f"Call the tool again in {error.retry_after:g} seconds.")
    elif error.retryable:
        lines.append("The same call may succeed later.")
    return replace_surrogates("\n".join(lines))


def _problem_lines(problems: Any, message: str) -> list[str]:
    lines: list[str] = []
    for problem in map(as_dict, as_list(problems)):
        text = str(problem.get("message", ""))
        if text and text not in message:  # not shown already
            lines.append(f"- {problem.get('path') or 'the input'}: {text}")
    more = len(lines) - SHOWN_PROBLEMS
    return [*lines[:SHOWN_PROBLEMS], f"- and {more} more"] if more > 0 else lines


def _shown(value: Any) -> str:
    """Return text unchanged and other data as JSON, both truncated."""
    try:
        text = value if isinstance(value, str) else encode_data(value, "the details of an error").json.decode()
    except (CallError, TypeError, ValueError, RecursionError):  # no JSON form
        return "(not shown: it has no JSON form)"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text) - MAX_SHOWN:,} more characters)"
