"""Serialization of input values: parameters to text, bodies to bytes. No I/O, except reading the files of an input.

Styles are those of OpenAPI, which are RFC 6570's and a few more. Where the specification is open:

- Numbers are written as in JSON, 5.0 as `5`; booleans as `true` and `false`.
- None is written as the specification's tables write an undefined value, `color=` for example. Within an array or
  object it is omitted, as in RFC 6570. An empty array or object counts as absent.
- An array or object within another is written as JSON, except by `deepObject`, which nests as deep as the value:
  `a[b][c]=1`, arrays by index, `a[b][0]=1`, as Stripe's and PHP's APIs parse it.
- Exploded delimited styles equal `form` exploded.
- A space is `%20` everywhere, never `+`.

A property of a form is serialized in the style of its `encoding`. Without one, an array becomes several fields of one
name, an object JSON, anything else its text; None is omitted. Multipart bodies follow RFC 7578, with names and file
names escaped as browsers do.

No value can break out: a path value stays in its segment, a query value in its parameter, a header in its line.
"""

import mimetypes
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from os import PathLike
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct

from opwire.openapi.client.plan import (
    CallPlan,
    InputPath,
    PartEncoding,
    RequestBody,
    RequestParameter,
    Style,
    content_type_value,
    header_name,
    header_value,
    invalid_input,
    media_type,
)
from opwire.openapi.client.xml_text import write_xml
from opwire.typed.plain import write_json

Escape = Callable[[str], str]
"""Escapes the characters of a name or value: `encode`, or `str` to escape nothing."""

Pairs = list[tuple[str, str]]

T = TypeVar("T")

_DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MAX_EXACT_INTEGER = 2**53  # above this, not every integer is a float
_json = msgspec.json.Encoder()


def encode(text: str) -> str:
    """Percent-encode everything except RFC 3986's unreserved characters."""
    return quote(text, safe="")


def encode_reserved_in_query(text: str) -> str:
    """Encode for `allowReserved`: keep reserved characters and existing percent-encodings.

    Except `#`, `&`, `+`, `[` and `]`, which would end the value, change it, or are invalid in a query.
    """
    return quote(_LONE_PERCENT.sub("%25", text), safe="!$'()*,;:@/?=%")


def encode_reserved_in_path(text: str) -> str:
    """Encode for `allowReserved` within one segment: `/`, `?`, `#` and `%` are encoded, so nothing leaves it."""
    return quote(text, safe="!$&'()*+,;=:@")


def json_text(value: Any) -> str:
    """Return the value as compact JSON."""
    return write_json(_json, value).decode()


def to_text(value: Any) -> str:
    """Return a value as text: None is empty, an array or object is JSON.

    Raises:
        ValueError: NaN and infinities have no text that an API could parse.
    """
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    if value is None:
        return ""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError("a number must be finite")
        return str(int(value)) if value.is_integer() and abs(value) < _MAX_EXACT_INTEGER else repr(value)
    return json_text(value)


def pairs(name: str, value: Any, style: Style, explode: bool, escape: Escape) -> Pairs:
    """Return the encoded names and values of a query, a form or cookies; names are always fully encoded.

    Raises:
        ValueError: the value has no text.
    """
    escape_name = str if escape is str else encode
    if style == "deepObject":
        return [(escape_name(key), escape(text)) for key, text in _deep_object(name, value)]
    if explode and isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return [(escape_name(key), escape(to_text(member))) for key, member in members if member is not None]
    items = _items(value, False, escape)
    if explode and isinstance(value, list):
        key = escape_name(name)
        return [(key, item) for item in items]
    return [(escape_name(name), _delimiter(style, escape).join(items))] if items else []


def expand(name: str, value: Any, style: Style, explode: bool, escape: Escape) -> str:
    """Return the value as part of a path, or as the value of a header.

    Raises:
        ValueError: the value has no text.
    """
    if style == "matrix":
        written = pairs(name, value, "form", explode, escape)
        return "".join(f";{key}={text}" if text else f";{key}" for key, text in written)
    items = _items(value, explode, escape)
    if style == "label" and items:
        return "." + ("." if explode else ",").join(items)
    return _delimiter(style, escape).join(items)


def _delimiter(style: Style, escape: Escape) -> str:
    return escape(_DELIMITERS[style]) if style in _DELIMITERS else ","


def join(written: Pairs, separator: str = "&") -> str:
    """Join names and values."""
    return separator.join([f"{key}={text}" for key, text in written])


def _items(value: Any, explode: bool, escape: Escape) -> list[str]:
    """Return the texts between which a delimiter goes."""
    if isinstance(value, list):
        return [escape(to_text(element)) for element in cast("list[Any]", value) if element is not None]
    if not isinstance(value, dict):
        return [escape(to_text(value))]
    fields = cast("dict[str, Any]", value).items()
    members = [(escape(key), escape(to_text(field))) for key, field in fields if field is not None]
    return [f"{key}={text}" for key, text in members] if explode else [text for member in members for text in member]


def _deep_object(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        members = enumerate(cast("list[Any]", value))
    else:
        yield name, to_text(value)
        return
    for key, member in members:
        if member is not None:
            yield from _deep_object(f"{name}[{key}]", member)


# --- parameters -----------------------------------------------------------------------------------------------------

Write = Callable[[Any], str]
"""Serializes a value, "" if nothing is to be sent. Raises ValueError for a value that cannot be sent there."""

_NOT_IN_COOKIE = re.compile(r"[^\x20-\x3a\x3c-\x7e]")  # control characters, the semicolon, and non-ASCII
_FORM = "application/x-www-form-urlencoded"


def parameter_writer(parameter: RequestParameter) -> Write:
    """Return the function that serializes values of a parameter."""
    name, style, explode = parameter.name, parameter.style, parameter.explode
    location = parameter.location
    if parameter.content_type is not None or location == "querystring":
        return _content_writer(parameter)
    if location == "header":
        return lambda value: header_value(expand(name, value, style, explode, str))
    if location == "cookie":
        if style == "cookie":
            return lambda value: cookie_text(pairs(name, value, style, explode, str))
        # RFC 6570 would separate several cookies by `&`, which servers do not accept.
        return lambda value: join(pairs(name, value, style, explode, encode), "; ")
    if location == "path":
        escape = encode_reserved_in_path if parameter.allow_reserved else encode
        return lambda value: expand(name, value, style, explode, escape)
    escape = encode_reserved_in_query if parameter.allow_reserved else encode
    return lambda value: join(pairs(name, value, style, explode, escape))


def _content_writer(parameter: RequestParameter) -> Write:
    """Return the writer of a parameter that is declared with a media type (`content`)."""
    kind, key = media_type(parameter.content_type or ""), encode(parameter.name)
    write: Write = json_text if kind.is_json else to_text
    match parameter.location:
        case "querystring" if kind.name == _FORM:
            plain = PartEncoding()
            return lambda value: urlencoded(value, lambda name: parameter.parts.get(name, plain))
        case "path" | "querystring":
            return lambda value: encode(write(value))
        case "header":
            return lambda value: header_value(write(value))
        case _:
            return lambda value: f"{key}={encode(write(value))}"


def cookie_text(cookies: Pairs) -> str:
    """Return unescaped cookies as the value of a Cookie header.

    Raises:
        ValueError: a name or value is invalid.
    """
    for name, text in cookies:
        header_name(name, "cookie")
        if _NOT_IN_COOKIE.search(text):
            raise ValueError("a cookie is ASCII without semicolons and control characters; escape the value first")
    return join(cookies, "; ")


# --- files ----------------------------------------------------------------------------------------------------------

OCTETS = "application/octet-stream"

FILE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "contentEncoding": "base64"},
        {
            "type": "object",
            "properties": {
                "filename": {"type": "string"},
                "contentType": {"type": "string"},
                "data": {"type": "string", "contentEncoding": "base64"},
            },
            "required": ["data"],
            "additionalProperties": False,
        },
    ]
}
"""A file in plain data: base64, optionally with a file name and content type."""


class File(NamedTuple):
    """A file to send."""

    data: bytes
    filename: str | None = None
    content_type: str | None = None


def read_file(value: Any) -> File:
    """Decode a file from plain data; see `FILE_SCHEMA`.

    Raises:
        ValueError: it is not a file, or invalid base64.
    """
    fields: dict[str, Any] = value if _has_data(value) else {"data": value}
    for name in ("filename", "contentType"):
        if not isinstance(fields.get(name), str | None):
            raise ValueError(f"the {name} of a file is text")
    data = fields["data"]
    try:
        decoded = b64decode("".join(data.split()), validate=True) if isinstance(data, str) else None
    except ValueError:
        decoded = None
    if decoded is None:
        raise ValueError("a file is given as bytes, as a pathlib.Path, as an open binary file, or as base64 text")
    return File(decoded, fields.get("filename"), fields.get("contentType"))


def prepare_files(plan: CallPlan) -> Callable[[Any], Any]:
    """Return the function that converts files in an input to plain data (`Operation.prepare`).

    It looks only at `plan.file_paths`, and at binary parts without a name of their own. A file is bytes, a
    `pathlib.Path`, a file opened in binary mode, or a tuple: `(filename, content)` or `(filename, content,
    content_type)`. A list contains several. Files are read here, completely; a string is never taken for a path.

    Raises:
        CallError: VALIDATION_ERROR, by the returned function: a file cannot be read.
    """
    body = plan.body
    paths: list[tuple[InputPath, Callable[[Any], Any]]] = [(path, _plain_files) for path in plan.file_paths]
    if body is not None and any(
        part.binary for part in (body.items, *body.positions, *(encoding for _, encoding in body.others))
    ):
        parameters = set[str]() if body.input_path else {parameter.input_path[0] for parameter in plan.parameters}
        paths.append((body.input_path, partial(_plain_parts, body, parameters)))

    def prepare(input: Any) -> Any:
        for path, convert in paths:
            try:
                input = replaced(input, path, convert)
            except (OSError, TypeError, ValueError) as error:
                raise invalid_input(plan.operation_id, path, str(error)) from error
        return input

    def replaced(value: Any, path: Sequence[str], convert: Callable[[Any], Any]) -> Any:
        """Convert the value at a path; containers on the way are copied, never changed."""
        if not path:
            return convert(value)
        if not isinstance(value, dict) or path[0] not in value:
            return cast("Any", value)
        members = cast("dict[str, Any]", value)
        return {**members, path[0]: replaced(members[path[0]], path[1:], convert)}

    return prepare


def _plain_parts(body: RequestBody, parameters: set[str], value: Any) -> Any:
    """Convert the binary parts of a body that have no path in the plan."""
    if isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
        return [_plain_files(item) if body.position(index).binary else item for index, item in items]
    if not isinstance(value, dict):
        return value
    return {
        name: _plain_files(field) if name not in parameters and body.part(name).binary else field
        for name, field in cast("dict[str, Any]", value).items()
    }


def _plain_files(value: Any) -> Any:
    return [_plain_file(item) for item in cast("list[Any]", value)] if isinstance(value, list) else _plain_file(value)


def _plain_file(file: Any) -> Any:
    if file is None or isinstance(file, (str, dict)):
        return cast("Any", file)
    filename, content, content_type = None, file, None
    if isinstance(file, tuple):
        match cast("tuple[Any, ...]", file):
            case (str() as filename, content):
                pass
            case (str() as filename, content, str() as content_type):
                pass
            case _:
                raise TypeError("a file as a tuple is (filename, content) or (filename, content, content_type)")
    data, own_name = _read_content(content)
    filename = filename or own_name
    if filename is None:
        return b64encode(data).decode()
    guessed = content_type or mimetypes.guess_type(filename)[0] or OCTETS
    return {"filename": filename, "contentType": guessed, "data": b64encode(data).decode()}


def _read_content(content: Any) -> tuple[bytes, str | None]:
    """Return the bytes of a file, and its own name if it has one."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", content)), None
    if isinstance(content, PathLike):
        path = Path(cast("PathLike[str]", content))
        if path.exists() and not path.is_file():  # reading a pipe or a device could block forever
            raise ValueError(f"{path} is not a file")
        return path.read_bytes(), path.name
    if hasattr(content, "read"):
        data = content.read()
        name = getattr(content, "name", None)
        if isinstance(data, bytes):
            return data, Path(name).name if isinstance(name, str) else None
        raise TypeError("the file is open in text mode; open it in binary mode")
    raise TypeError(f"a file cannot be read from {type(content).__name__}")


# --- bodies ---------------------------------------------------------------------------------------------------------

_JSON = "application/json"
_SEPARATORS: dict[str | None, str] = {"ndjson": "", "json-seq": "\x1e"}
_DERIVED = ("content-disposition", "content-type")  # headers of a part that are written from its other fields
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


class EncodedBody(NamedTuple):
    """A serialized body."""

    data: bytes
    content_type: str


class FormPart(Struct, frozen=True, kw_only=True):
    """One part of a multipart body. `multipart/mixed` and the like have parts without names."""

    data: bytes
    name: str | None = None
    filename: str | None = None
    content_type: str | None = None
    headers: Mapping[str, str] = {}


def body_encoder(body: RequestBody) -> Callable[[Any], EncodedBody]:
    """Return the function that serializes the value of a body; it raises ValueError for a value that cannot be sent.

    Raises:
        ValueError: the content type is invalid.
    """
    declared = header_value(body.content_type)
    kind = media_type(declared)

    def binary(value: Any) -> EncodedBody:
        file = read_file(value)
        return EncodedBody(file.data, _file_type(file, declared))

    def sequence(value: Any) -> EncodedBody:
        if not isinstance(value, list):
            return _text_body(declared, value)
        items = [f"{_SEPARATORS[kind.stream]}{json_text(element)}\n" for element in cast("list[Any]", value)]
        return EncodedBody("".join(items).encode(), declared)

    if kind.name.startswith("multipart/"):
        return partial(_multipart, kind.name, body)
    if kind.name == _FORM:
        return lambda value: EncodedBody(urlencoded(value, body.part).encode(), declared)
    if body.binary:
        return binary
    if kind.is_json:
        return lambda value: EncodedBody(write_json(_json, value), declared)
    if (root := body.xml) is not None:
        return lambda value: EncodedBody(write_xml(value, root, to_text, _charset(declared)), declared)
    if kind.name.endswith("/*") or "/" not in kind.name:
        return partial(_by_value, kind.name)
    return sequence if kind.stream in _SEPARATORS else partial(_text_body, declared)


def urlencoded(value: Any, part_of: Callable[[str], PartEncoding] = lambda _: PartEncoding()) -> str:
    """Serialize an object as `application/x-www-form-urlencoded`; `part_of` returns the encoding of a field.

    Raises:
        ValueError: it is not an object, or a field cannot be serialized.
    """

    def fields(name: str, field: Any, part: PartEncoding) -> Pairs:
        escape = encode_reserved_in_query if part.allow_reserved else encode
        if part.style is not None:
            return pairs(name, field, part.style, part.explode, escape)
        is_json = part.content_type is not None and media_type(part.content_type).is_json
        write: Write = json_text if is_json else to_text
        # Without parts, base64 is the only form of bytes.
        unwrap = part.binary and not is_json
        texts = [write(item["data"] if unwrap and _has_data(item) else item) for item in _form_items(field)]
        return [(encode(name), escape(text)) for text in texts]

    return join(_each_property(value, part_of, fields))


def write_multipart(parts: Iterable[FormPart]) -> tuple[bytes, str]:
    """Return a multipart body, and the boundary for its Content-Type.

    Raises:
        ValueError: a header or content type is invalid.
    """
    boundary = token_hex(16)  # random: data that somebody chose does not contain it

    def quoted(text: str) -> str:
        return _UNSAFE.sub(lambda character: f"%{ord(character[0]):02X}", text)

    pieces: list[bytes] = []
    for part in parts:
        lines = [f"--{boundary}"]
        if part.name is not None:
            filename = "" if part.filename is None else f'; filename="{quoted(part.filename)}"'
            lines.append(f'Content-Disposition: form-data; name="{quoted(part.name)}"{filename}')
        if part.content_type is not None:
            lines.append(f"Content-Type: {content_type_value(part.content_type)}")
        for name, value in part.headers.items():
            if name.lower() not in _DERIVED:
                lines.append(f"{header_name(name)}: {header_value(value)}")
        pieces += ("\r\n".join([*lines, "", ""]).encode(), part.data, b"\r\n")
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces), boundary


def _multipart(kind: str, body: RequestBody, value: Any) -> EncodedBody:
    def form_parts(name: str, field: Any, part: PartEncoding) -> list[FormPart]:
        if part.style is None or part.binary:
            return [_part(name, item, part) for item in _form_items(field)]
        written = pairs(name, field, part.style, part.explode, str)
        return [FormPart(name=key, data=text.encode(), headers=part.headers) for key, text in written]

    if isinstance(value, list):  # parts without names
        items = enumerate(cast("list[Any]", value))
        parts = [_part(None, item, body.position(index)) for index, item in items]
    else:
        parts = _each_property(value, body.part, form_parts)
    data, boundary = write_multipart(parts)
    return EncodedBody(data, f"{kind}; boundary={boundary}")


def _part(name: str | None, value: Any, part: PartEncoding) -> FormPart:
    if part.binary:
        file = read_file(value)
        kind = _file_type(file, part.content_type)
        # Servers recognize a file by its file name.
        return FormPart(
            name=name, data=file.data, filename=file.filename or name, content_type=kind, headers=part.headers
        )
    kind = part.content_type
    if kind is None and isinstance(value, (dict, list)):
        kind = _JSON
    if kind is not None and media_type(kind).is_xml and isinstance(value, (dict, list)):
        raise ValueError(f"{kind} is given as text")
    data = json_text(value) if kind is not None and media_type(kind).is_json else to_text(value)
    kind = _first_concrete(kind)
    return FormPart(name=name, data=data.encode(_charset(kind or "")), content_type=kind, headers=part.headers)


def _each_property(
    value: Any, part_of: Callable[[str], PartEncoding], write: Callable[[str, Any, PartEncoding], list[T]]
) -> list[T]:
    if not isinstance(value, dict):
        raise ValueError("a form is an object")
    written: list[T] = []
    for name, field in cast("dict[str, Any]", value).items():
        if field is not None:
            try:
                written += write(name, field, part_of(name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    return written


def _form_items(value: Any) -> Iterable[Any]:
    return (
        [element for element in cast("list[Any]", value) if element is not None]
        if isinstance(value, list)
        else (value,)
    )


def _has_data(value: Any) -> bool:
    return isinstance(value, dict) and "data" in value


def _by_value(kind: str, value: Any) -> EncodedBody:
    """Serialize for a range of content types: the value decides."""
    if isinstance(value, str) or kind == "text/*":
        return _text_body("text/plain", value)
    return EncodedBody(json_text(value).encode(), _JSON)


def _text_body(declared: str, value: Any) -> EncodedBody:
    kind = media_type(declared)
    if isinstance(value, (dict, list)) and kind.is_text:
        raise ValueError(f"{kind.name} is given as text")
    text, charset = to_text(value), _charset(declared)
    if kind.charset is None and kind.name.startswith("text/") and not text.isascii():
        declared = f"{declared}; charset=utf-8"
    return EncodedBody(text.encode(charset), declared)


def _charset(declared: str) -> str:
    """Return the charset of a content type; UTF-8 by default."""
    charset = media_type(declared).charset
    if charset is None and "charset=" in declared.lower():
        raise ValueError(f"unknown charset in {declared}")
    return charset or "utf-8"


def _file_type(file: File, declared: str | None) -> str:
    """Return the content type of a file: its own, unless the API declares exactly one."""
    concrete_type = _first_concrete(declared)
    if file.content_type is None or (concrete_type is not None and "," not in str(declared)):
        return concrete_type or OCTETS
    return content_type_value(file.content_type)


def _first_concrete(declared: str | None) -> str | None:
    """Return the first content type of a list such as `image/png, image/jpeg` that is not a range."""
    kinds = [kind.strip() for kind in (declared or "").split(",")]
    return next((kind for kind in kinds if kind and "*" not in kind), None)
