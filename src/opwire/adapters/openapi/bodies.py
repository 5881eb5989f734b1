"""Bodies of requests: plain data to bytes, by content type. Pure.

A property of a form is written by the style that its `encoding` gives. Without one, an array is several fields of one
name, an object is JSON, anything else its text; None is left out.

The framing of multipart bodies: RFC 7578, with names and file names escaped as browsers do.

Values as text: the styles of OpenAPI, which are those of RFC 6570 and a few more. Pure.

What the specification leaves open is settled here:

- Numbers are written as JSON writes them, 5.0 as `5`, booleans as `true` and `false`.
- None is written as the specification's tables write an undefined value, `color=` for example. Within an array or an
  object it is left out, as RFC 6570 says. An empty array or object is as good as absent.
- An array or object within an array or object is written as JSON, except by `deepObject`, which goes on for as deep as
  the value: `a[b][c]=1`, arrays by index, `a[b][0]=1`, as Stripe's and PHP's APIs read it.
- The delimited styles exploded are `form` exploded.
- A space is `%20` everywhere, never `+`.

Files in an input: what a caller in this process may give, what it is in plain data, and back to bytes.

One parameter to text, where it goes. Pure.

Nothing in a value can leave its place: a path value its segment, a query value its parameter, a header its line.
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

from opwire.adapters.openapi.plan import (
    Body,
    Parameter,
    Part,
    Plan,
    Style,
    content_type_value,
    header_name,
    header_value,
    invalid,
    media_type,
)
from opwire.typed.plain import write_json

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


Escape = Callable[[str], str]
"""How the characters of a name or value are escaped: `encode`, or `str` where nothing is."""

Pairs = list[tuple[str, str]]

_DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_EXACT = 2**53  # from here on not every integer is a float
_ENCODED = {code: quote(chr(code), safe="") for code in range(128)}  # twice as fast as `quote` itself
_json = msgspec.json.Encoder()


def encode(text: str) -> str:
    """Percent-encode everything but RFC 3986's unreserved characters."""
    return text.translate(_ENCODED) if text.isascii() else quote(text, safe="")


def encode_reserved_in_query(text: str) -> str:
    """`allowReserved`: reserved characters and what is percent-encoded already stay.

    All but `#`, `&`, `+`, `[` and `]`, which would end the value, change it, or not be allowed in a query.
    """
    return quote(_LONE_PERCENT.sub("%25", text), safe="!$'()*,;:@/?=%")


def encode_reserved_in_path(text: str) -> str:
    """`allowReserved` within one segment: `/`, `?`, `#` and `%` are encoded, so that nothing leaves it."""
    return quote(text, safe="!$&'()*+,;=:@")


def json_text(value: Any) -> str:
    """The value as compact JSON."""
    return write_json(_json, value).decode()


def text_of(value: Any) -> str:
    """A value as text; None is empty, an array or object is JSON.

    Raises:
        ValueError: NaN and the infinities have no text that an API would read.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError("a number must be finite")
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(value)
    return json_text(value)


def pairs(name: str, value: Any, style: Style, explode: bool, escape: Escape) -> Pairs:
    """The value as names and texts of a query, a form or cookies, encoded; names may hold nothing that is reserved.

    Raises:
        ValueError: the value has no text.
    """
    named = str if escape is str else encode
    if style == "deepObject":
        return [(named(key), escape(text)) for key, text in _deep(name, value)]
    if explode and isinstance(value, list):
        key = named(name)
        return [(key, item) for item in _items(value, False, escape)]
    if explode and isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return [(named(key), escape(text_of(each))) for key, each in members if each is not None]
    items = _items(value, False, escape)
    return [(named(name), _delimiter(style, escape).join(items))] if items else []


def expand(name: str, value: Any, style: Style, explode: bool, escape: Escape) -> str:
    """The value as a piece of a path, or as the value of a header.

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


def join(written: Pairs, separator: str = "&") -> str:
    """Names and texts as one text."""
    return separator.join([f"{key}={text}" for key, text in written])


def _delimiter(style: Style, escape: Escape) -> str:
    delimiter = _DELIMITERS.get(style)
    return "," if delimiter is None else escape(delimiter)


def _items(value: Any, explode: bool, escape: Escape) -> list[str]:
    """The texts that a delimiter will stand between."""
    if isinstance(value, list):
        return [escape(text_of(each)) for each in cast("list[Any]", value) if each is not None]
    if not isinstance(value, dict):
        return [escape(text_of(value))]
    members = [
        (escape(key), escape(text_of(each))) for key, each in cast("dict[str, Any]", value).items() if each is not None
    ]
    return [f"{key}={text}" for key, text in members] if explode else [each for member in members for each in member]


def _deep(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        members = enumerate(cast("list[Any]", value))
    else:
        yield name, text_of(value)
        return
    for key, each in members:
        if each is not None:
            yield from _deep(f"{name}[{key}]", each)


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
"""A file in plain data: base64 alone, or with the name and content type that it is sent under."""


class File(NamedTuple):
    """A file as it is sent."""

    data: bytes
    filename: str | None = None
    content_type: str | None = None


def is_file(value: Any) -> bool:
    """Whether this is a file in plain data that may have a name and a content type."""
    return isinstance(value, dict) and "data" in value


def read_file(value: Any) -> File:
    """The file that plain data describes: see `FILE_SCHEMA`.

    Raises:
        ValueError: it is not one, or not base64.
    """
    if is_file(value):
        fields = cast("dict[str, Any]", value)
        return File(_bytes(fields["data"]), _text_field(fields, "filename"), _text_field(fields, "contentType"))
    return File(_bytes(value))


def _text_field(fields: dict[str, Any], name: str) -> str | None:
    text = fields.get(name)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"the {name} of a file is text")
    return text


def _bytes(data: Any) -> bytes:
    if isinstance(data, str):
        try:
            return b64decode("".join(data.split()), validate=True)
        except ValueError:
            pass
    raise ValueError("a file is given as bytes, as a pathlib.Path, as an open binary file, or as base64 text")


def prepare_files(plan: Plan) -> Callable[[Any], Any]:
    """What turns files in an input into plain data, at the places of `plan.files` alone (`Operation.prepare`).

    A file is bytes, a `pathlib.Path`, a file opened in binary mode, or a tuple: `(filename, content)` or
    `(filename, content, content_type)`. A list holds several. Files are read here, whole; a text is never taken for
    a path.

    Raises:
        CallError: VALIDATION_ERROR, by what is returned: a file cannot be read.
    """

    places: list[tuple[tuple[str, ...], Callable[[Any], Any]]] = [(place, _plain_files) for place in plan.files]
    body = plan.body
    if body is not None and any(
        part.binary for part in (body.items, *body.positions, *(each for _, each in body.others))
    ):
        elsewhere = frozenset(each.path_to[0] for each in plan.parameters) if not body.path_to else frozenset[str]()
        places.append((body.path_to, lambda value: _plain_parts(value, body, elsewhere)))

    def prepare(input: Any) -> Any:
        for place, make_plain in places:
            try:
                input = _replaced(input, place, make_plain)
            except (OSError, TypeError, ValueError) as error:
                raise invalid(plan.operation_id, place, str(error)) from error
        return input

    return prepare


def _replaced(value: Any, place: Sequence[str], make_plain: Callable[[Any], Any]) -> Any:
    """The value with what is at a place made plain; copied on the way there, never changed."""
    if not place:
        return make_plain(value)
    if not isinstance(value, dict) or place[0] not in value:
        return cast("Any", value)
    members = cast("dict[str, Any]", value)
    return {**members, place[0]: _replaced(members[place[0]], place[1:], make_plain)}


def _plain_files(value: Any) -> Any:
    return [_plain(each) for each in cast("list[Any]", value)] if isinstance(value, list) else _plain(value)


def _plain_parts(value: Any, body: Body, elsewhere: frozenset[str]) -> Any:
    """Make the files of a body plain that have no name of their own in the plan."""
    if isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
        return [_plain_files(each) if body.position(index).binary else each for index, each in items]
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value).items()
    return {
        name: _plain_files(each) if name not in elsewhere and body.part(name).binary else each for name, each in members
    }


def _plain(given: Any) -> Any:
    if given is None or isinstance(given, (str, dict)):
        return cast("Any", given)
    filename, content, content_type = _named(given)
    data, own_name = _read(content)
    filename = filename or own_name
    if filename is None:
        return b64encode(data).decode()
    guessed = content_type or mimetypes.guess_type(filename)[0] or OCTETS
    return {"filename": filename, "contentType": guessed, "data": b64encode(data).decode()}


def _named(given: Any) -> tuple[str | None, Any, str | None]:
    if not isinstance(given, tuple):
        return None, given, None
    match cast("tuple[Any, ...]", given):
        case (str() as filename, content):
            return filename, content, None
        case (str() as filename, content, str() as content_type):
            return filename, content, content_type
        case _:
            raise TypeError("a file as a tuple is (filename, content) or (filename, content, content_type)")


def _read(content: Any) -> tuple[bytes, str | None]:
    """The bytes, and the name that the file has by itself."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", content)), None
    if isinstance(content, PathLike):
        path = Path(cast("PathLike[str]", content))
        if path.exists() and not path.is_file():  # reading a pipe or a device could take for ever
            raise ValueError(f"{path} is not a file")
        return path.read_bytes(), path.name
    if hasattr(content, "read"):
        data = content.read()
        name = getattr(content, "name", None)
        if isinstance(data, bytes):
            return data, Path(name).name if isinstance(name, str) else None
        raise TypeError("the file is open as text; open it in binary mode")
    raise TypeError(f"a file cannot be read from {type(content).__name__}")


T = TypeVar("T")

_JSON = "application/json"
_SEPARATORS: dict[str | None, str] = {"ndjson": "", "json-seq": "\x1e"}


class EncodedBody(NamedTuple):
    """A body as it is sent."""

    data: bytes
    content_type: str


def body_encoder(body: Body) -> Callable[[Any], EncodedBody]:
    """What turns the value of a body into bytes; it raises ValueError where the value cannot be written.

    Raises:
        ValueError: the content type cannot be one.
    """
    declared = header_value(body.content_type)
    kind = media_type(declared)
    if kind.name.startswith("multipart/"):
        return partial(_multipart, kind.name, body)
    if kind.name == "application/x-www-form-urlencoded":
        return lambda value: EncodedBody(urlencoded(value, body.part).encode(), declared)
    if body.binary:
        return partial(_binary, declared)
    if kind.is_json:
        return lambda value: EncodedBody(json_text(value).encode(), declared)
    if kind.name.endswith("/*"):
        return partial(_by_value, kind.name)
    if kind.stream in _SEPARATORS:
        return partial(_sequence, declared, _SEPARATORS[kind.stream])
    return partial(_text_body, declared)


def urlencoded(value: Any, part_of: Callable[[str], Part] = lambda _: Part()) -> str:
    """An object as `application/x-www-form-urlencoded`; `part_of` says how the field of a name is written.

    Raises:
        ValueError: it is not an object, or a value cannot be written.
    """
    return join(_each_property(value, part_of, _fields))


def _fields(name: str, value: Any, part: Part) -> Pairs:
    escape = encode_reserved_in_query if part.allow_reserved else encode
    if part.style is not None:
        return pairs(name, value, part.style, part.explode, escape)
    return [(encode(name), escape(_field_text(item, part))) for item in _form_items(value)]


def _each_property(value: Any, part_of: Callable[[str], Part], write: Callable[[str, Any, Part], list[T]]) -> list[T]:
    if not isinstance(value, dict):
        raise ValueError("a form is given as an object")
    written: list[T] = []
    for name, each in cast("dict[str, Any]", value).items():
        if each is None:
            continue
        try:
            written += write(name, each, part_of(name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return written


def _form_items(value: Any) -> Iterable[Any]:
    return [each for each in cast("list[Any]", value) if each is not None] if isinstance(value, list) else (value,)


def _field_text(value: Any, part: Part) -> str:
    if part.content_type is not None and media_type(part.content_type).is_json:
        return json_text(value)
    # Bytes have no other form than base64 in a form without parts.
    return text_of(value["data"]) if part.binary and is_file(value) else text_of(value)


def _multipart(kind: str, body: Body, value: Any) -> EncodedBody:
    if isinstance(value, list):  # parts without names
        items = enumerate(cast("list[Any]", value))
        parts = [_part(None, each, body.position(index)) for index, each in items]
    else:
        parts = _each_property(value, body.part, _parts)
    data, boundary = write_multipart(parts)
    return EncodedBody(data, f"{kind}; boundary={boundary}")


def _parts(name: str, value: Any, part: Part) -> list[FormPart]:
    if part.style is None or part.binary:
        return [_part(name, each, part) for each in _form_items(value)]
    written = pairs(name, value, part.style, part.explode, str)
    return [FormPart(name=key, data=text.encode(), headers=part.headers) for key, text in written]


def _part(name: str | None, value: Any, part: Part) -> FormPart:
    if part.binary:
        file = read_file(value)
        kind = _file_type(file, part.content_type)
        # Servers tell a file from a field by its having a file name.
        return FormPart(
            name=name, data=file.data, filename=file.filename or name, content_type=kind, headers=part.headers
        )
    kind = part.content_type
    if kind is None and isinstance(value, (dict, list)):
        kind = _JSON
    data = json_text(value) if kind is not None and media_type(kind).is_json else text_of(value)
    kind = _concrete(kind)
    return FormPart(name=name, data=data.encode(_charset(kind or "")), content_type=kind, headers=part.headers)


def _charset(declared: str) -> str:
    """Return the charset that a content type names, else UTF-8."""
    charset = media_type(declared).charset
    if charset is None and "charset=" in declared.lower():
        raise ValueError(f"the charset of {declared} is not known")
    return charset or "utf-8"


def _file_type(file: File, declared: str | None) -> str:
    """The content type that comes with the file counts, unless the API allows for one alone."""
    only = _concrete(declared)
    if file.content_type is None or (only is not None and "," not in str(declared)):
        return only or OCTETS
    return content_type_value(file.content_type)


def _concrete(declared: str | None) -> str | None:
    """The first content type of a list such as `image/png, image/jpeg` that is not a range."""
    kinds = [kind.strip() for kind in (declared or "").split(",")]
    return next((kind for kind in kinds if kind and "*" not in kind), None)


def _binary(declared: str, value: Any) -> EncodedBody:
    file = read_file(value)
    return EncodedBody(file.data, _file_type(file, declared))


def _by_value(kind: str, value: Any) -> EncodedBody:
    """A range of content types: the value decides."""
    if isinstance(value, str) or kind == "text/*":
        return _text_body("text/plain", value)
    return EncodedBody(json_text(value).encode(), _JSON)


def _sequence(declared: str, separator: str, value: Any) -> EncodedBody:
    if not isinstance(value, list):
        return _text_body(declared, value)
    items = [f"{separator}{json_text(each)}\n" for each in cast("list[Any]", value)]
    return EncodedBody("".join(items).encode(), declared)


def _text_body(declared: str, value: Any) -> EncodedBody:
    kind = media_type(declared)
    if isinstance(value, (dict, list)) and kind.is_text:
        raise ValueError(f"{kind.name} is given as text")
    text, charset = text_of(value), _charset(declared)
    if kind.charset is None and kind.name.startswith("text/") and not text.isascii():
        declared = f"{declared}; charset=utf-8"
    return EncodedBody(text.encode(charset), declared)


Write = Callable[[Any], str]
"""A value to text, "" where there is nothing to be written. Raises ValueError: the value cannot stand there."""

_SCALAR = (str, int)  # most values: they need none of the rules for arrays and objects
_NOT_IN_COOKIE = re.compile(r"[^\x20-\x3a\x3c-\x7e]")  # control characters, the semicolon, and all that is not ASCII


def parameter_writer(parameter: Parameter) -> Write:
    """What writes values of a parameter."""
    return _WRITERS[parameter.location](parameter)


def _content_text(parameter: Parameter, value: Any) -> str:
    """A value as the media type that the parameter is declared with (`content`)."""
    return json_text(value) if media_type(parameter.content_type or "").is_json else text_of(value)


def _path(parameter: Parameter) -> Write:
    name, style, explode = parameter.name, parameter.style, parameter.explode
    if parameter.content_type is not None:
        return lambda value: encode(_content_text(parameter, value))
    escape = encode_reserved_in_path if parameter.allow_reserved else encode
    if style != "simple":
        return lambda value: expand(name, value, style, explode, escape)
    return lambda value: (
        escape(text_of(value)) if isinstance(value, _SCALAR) else expand(name, value, style, explode, escape)
    )


def _query(parameter: Parameter) -> Write:
    name, style, explode = parameter.name, parameter.style, parameter.explode
    if parameter.content_type is not None:
        return lambda value: f"{encode(name)}={encode(_content_text(parameter, value))}"
    escape = encode_reserved_in_query if parameter.allow_reserved else encode
    key = encode(name)  # what is reserved may stand in values alone: `=` would end the name
    return lambda value: (
        f"{key}={escape(text_of(value))}"
        if isinstance(value, _SCALAR)
        else join(pairs(name, value, style, explode, escape))
    )


def _querystring(parameter: Parameter) -> Write:
    if media_type(parameter.content_type or "").name == "application/x-www-form-urlencoded":
        plain = Part()
        return lambda value: urlencoded(value, lambda name: parameter.parts.get(name, plain))
    return lambda value: encode(_content_text(parameter, value))


def _header(parameter: Parameter) -> Write:
    name, style, explode = parameter.name, parameter.style, parameter.explode
    if parameter.content_type is not None:
        return lambda value: header_value(_content_text(parameter, value))
    return lambda value: header_value(expand(name, value, style, explode, str))


def _cookie(parameter: Parameter) -> Write:
    name, style, explode = parameter.name, parameter.style, parameter.explode
    if parameter.content_type is not None:
        return lambda value: f"{encode(name)}={encode(_content_text(parameter, value))}"
    if style == "cookie":
        return lambda value: join(_checked(pairs(name, value, style, explode, str)), "; ")
    # RFC 6570 would write `&` between several cookies, which no server takes for a separator.
    return lambda value: join(pairs(name, value, style, explode, encode), "; ")


def _checked(cookies: Pairs) -> Pairs:
    for name, text in cookies:
        header_name(name, "cookie")
        if _NOT_IN_COOKIE.search(text):
            raise ValueError("a cookie holds ASCII without semicolons and control characters; escape the value first")
    return cookies


_WRITERS: dict[str, Callable[[Parameter], Write]] = {
    "path": _path,
    "query": _query,
    "querystring": _querystring,
    "header": _header,
    "cookie": _cookie,
}
