"""Bodies of requests: plain data to bytes, by content type. Pure.

A property of a form is written by the style that its `encoding` gives. Without one, an array is several fields of one
name, an object is JSON, anything else its text; None is left out.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from opwire.adapters.openapi.files import OCTETS, File, is_file, read_file
from opwire.adapters.openapi.headers import content_type_value, header_value
from opwire.adapters.openapi.media_types import media_type
from opwire.adapters.openapi.multipart import FormPart, write_multipart
from opwire.adapters.openapi.plan import Body, Part
from opwire.adapters.openapi.styles import Pairs, encode, encode_reserved_in_query, join, json_text, pairs, text_of

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
    return partial(_text, declared)


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
    return [(encode(name), escape(_field_text(item, part))) for item in _items(value)]


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


def _items(value: Any) -> Iterable[Any]:
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
        return [_part(name, each, part) for each in _items(value)]
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
        return _text("text/plain", value)
    return EncodedBody(json_text(value).encode(), _JSON)


def _sequence(declared: str, separator: str, value: Any) -> EncodedBody:
    if not isinstance(value, list):
        return _text(declared, value)
    items = [f"{separator}{json_text(each)}\n" for each in cast("list[Any]", value)]
    return EncodedBody("".join(items).encode(), declared)


def _text(declared: str, value: Any) -> EncodedBody:
    kind = media_type(declared)
    if isinstance(value, (dict, list)) and kind.is_text:
        raise ValueError(f"{kind.name} is given as text")
    text, charset = text_of(value), _charset(declared)
    if kind.charset is None and kind.name.startswith("text/") and not text.isascii():
        declared = f"{declared}; charset=utf-8"
    return EncodedBody(text.encode(charset), declared)
