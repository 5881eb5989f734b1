"""From words on a command line to the input of an operation, typed by its schema.

count=5         a number where the schema says number, otherwise the text "5"
a.b=1           a field of a field
tags=x tags=y   a list
count:=5        JSON, whatever the schema says
photo=@cat.png  what stands in a file; base64 where the schema says so
'{"a": 1}'      the whole input as JSON; @input.json from a file, - from standard input
"""

import re
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from opwire.cli.fields import Field
from opwire.typed.text import read_json

_INTEGER = re.compile(r"[+-]?\d+")
_MISSING = object()
_decoder = msgspec.json.Decoder(Any)


def read_input(words: Sequence[str], field: Field, *, stdin: Callable[[], bytes] | None = None) -> Any:
    """The input that the words say; None if there are none.

    Raises:
        click.UsageError: a word cannot be read.
    """
    whole: Any = _MISSING
    given: dict[str, Any] = {}
    for number, word in enumerate(words):
        value = _whole(word, stdin or sys.stdin.buffer.read)
        if value is not _MISSING and number == 0:
            whole = value
        elif _pair(word) is not None:
            _put(given, *cast("tuple[str, str, str]", _pair(word)), field)
        elif len(words) == 1 and field.kinds and "object" not in field.kinds:
            return from_text(word, field)
        else:
            what = "an input is key=value, key:=JSON, or first of all a whole one: JSON, @file, or - for standard input"
            raise click.UsageError(f"{word!r} cannot be read: {what}")
    if whole is _MISSING:
        return given or None
    if not given:
        return whole
    if not isinstance(whole, dict):
        raise click.UsageError("key=value adds to an object, and the input before it is none")
    return {**cast("dict[str, Any]", whole), **given}


def _whole(word: str, stdin: Callable[[], bytes]) -> Any:
    if word == "-":
        return _json(stdin(), "standard input")
    if word.startswith("@"):
        return _json(_file(word[1:]), word[1:])
    return _json(word.encode(), "the input") if word.startswith(("{", "[")) else _MISSING


def _pair(word: str) -> tuple[str, str, str] | None:
    """Key, sign and text."""
    key, equals, text = word.partition("=")
    if not equals or not key.removesuffix(":"):
        return None
    return (key[:-1], ":=", text) if key.endswith(":") else (key, "=", text)


def _put(given: dict[str, Any], key: str, sign: str, text: str, field: Field) -> None:
    """Put a value where its key says. A key that the schema declares as a whole is one, dots and all."""
    place, steps = given, [key] if key in field.fields else key.split(".")
    for step in steps[:-1]:
        field = field.field(step)
        inner = place.setdefault(step, {})
        if not isinstance(inner, dict):
            raise click.UsageError(f"{key!r} and another argument do not fit together: {step!r} is not an object")
        place = cast("dict[str, Any]", inner)
    last = steps[-1]
    field = field.field(last)
    value = _json(text.encode(), key) if sign == ":=" else _value(text, field)
    if last not in place:
        # The first of several items: with a list as its type it is one already.
        place[last] = value
    elif isinstance(place[last], list) and isinstance(value, list):
        place[last] += value
    elif not field.kinds:
        place[last] = [*(place[last] if isinstance(place[last], list) else [place[last]]), value]
    else:
        raise click.UsageError(f"{key!r} is given twice, and is no list")


def _value(text: str, field: Field) -> Any:
    if not text.startswith("@"):
        return from_text(text, field)
    content = _file(text[1:])
    if field.first("contentEncoding") == "base64" or field.first("format") in ("byte", "binary"):
        return b64encode(content).decode()
    try:
        return from_text(content.decode(), field)
    except UnicodeDecodeError:
        raise click.UsageError(f"{text[1:]} is not text, and the field does not take base64") from None


def from_text(text: str, field: Field) -> Any:
    """A text as the type that the schema says; as the text that it is where that is no such thing.

    Text stays text wherever the schema takes text. What does not fit is left for the validation to explain.
    """
    for choice in field.choices:
        if text == (choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()):
            return choice
    if not field.kinds or "string" in field.kinds:
        return text
    for kind in field.kinds:
        value = _READERS[kind](text, field) if kind in _READERS else _MISSING
        if value is not _MISSING:
            return value
    return text


def _number(text: str, _: Field) -> Any:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _MISSING
    return value if type(value) in (int, float) else _MISSING


def _array(text: str, field: Field) -> Any:
    whole: Any = _decoded(text, list) if text.startswith("[") else _MISSING
    return [from_text(text, field.items)] if whole is _MISSING else whole


def _decoded(text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return _MISSING


_READERS: dict[str, Callable[[str, Field], Any]] = {
    "integer": lambda text, _: int(text) if _INTEGER.fullmatch(text) else _MISSING,
    "number": _number,
    "boolean": lambda text, _: {"true": True, "false": False}.get(text.lower(), _MISSING),
    "null": lambda text, _: None if text == "null" else _MISSING,
    "array": _array,
    "object": lambda text, _: _decoded(text, dict),
}


def _json(text: bytes, where: str) -> Any:
    try:
        return read_json(_decoder, text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{where}: not JSON: {error}") from None


def _file(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise click.UsageError(f"{name}: cannot be read: {error.strerror}") from None
