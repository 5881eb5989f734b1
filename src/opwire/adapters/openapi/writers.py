"""One parameter to text, where it goes. Pure.

Nothing in a value can leave its place: a path value its segment, a query value its parameter, a header its line.
"""

import re
from collections.abc import Callable
from typing import Any

from opwire.adapters.openapi.bodies import urlencoded
from opwire.adapters.openapi.headers import header_name, header_value
from opwire.adapters.openapi.media_types import media_type
from opwire.adapters.openapi.plan import Parameter, Part
from opwire.adapters.openapi.styles import (
    Pairs,
    encode,
    encode_reserved_in_path,
    encode_reserved_in_query,
    expand,
    join,
    json_text,
    pairs,
    text_of,
)

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
