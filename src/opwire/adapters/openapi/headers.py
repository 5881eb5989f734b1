"""Header fields that cannot break out of their line."""

import re

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110: token
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")  # control characters but the tab, and no text
_CONTENT_TYPE = re.compile(r"[!#$&^_.+\-0-9A-Za-z]+/[!#$&^_.+\-0-9A-Za-z]+( *;[\x20-\x7e]*)?")


def header_name(name: str, of: str = "header") -> str:
    """The name, if it can be one: that of a header, or of another thing with the same rules.

    Raises:
        ValueError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a {of}")
    return name


def header_value(value: str) -> str:
    """The value, if it can be one. The error does not show it: it may be a secret.

    Raises:
        ValueError: it holds a line break, another control character, or half of a surrogate pair.
    """
    if _FORBIDDEN.search(value):
        raise ValueError("a header cannot hold line breaks or other control characters")
    return value


def content_type_value(value: str) -> str:
    """The value, if it can be a Content-Type.

    Raises:
        ValueError: it cannot.
    """
    if not _CONTENT_TYPE.fullmatch(value):
        raise ValueError("a content type looks like text/plain")
    return value
