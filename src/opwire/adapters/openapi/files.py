"""Files in an input: what a caller in this process may give, what it is in plain data, and back to bytes."""

import mimetypes
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

from opwire.adapters.openapi.places import invalid
from opwire.adapters.openapi.plan import Body, Plan

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
        return File(_bytes(fields["data"]), _text(fields, "filename"), _text(fields, "contentType"))
    return File(_bytes(value))


def _text(fields: dict[str, Any], name: str) -> str | None:
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
