"""Values as text: the styles of OpenAPI, which are those of RFC 6570 and a few more. Pure.

What the specification leaves open is settled here:

- Numbers are written as JSON writes them, 5.0 as `5`, booleans as `true` and `false`.
- None is written as the specification's tables write an undefined value, `color=` for example. Within an array or an
  object it is left out, as RFC 6570 says. An empty array or object is as good as absent.
- An array or object within an array or object is written as JSON, except by `deepObject`, which goes on for as deep as
  the value: `a[b][c]=1`, arrays by index, `a[b][0]=1`, as Stripe's and PHP's APIs read it.
- The delimited styles exploded are `form` exploded.
- A space is `%20` everywhere, never `+`.
"""

import re
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, cast
from urllib.parse import quote

import msgspec

from opwire.adapters.openapi.plan import Style
from opwire.typed.text import write_json

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
