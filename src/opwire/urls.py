"""Operation ids as URL paths, for servers and for clients.

An operation is at `/{namespace}/{name}`, one segment each.

Percent-encoding alone does not survive: servers decode `%2F` before they hand a path on, proxies fold `..` and `//`,
and some refuse both. So whatever is not a letter, a digit, `-`, `_` or `.` is written as `~` and two hexadecimal
digits for each byte of its UTF-8: `github.repos/get` is at `/github/repos~2Fget`. Nothing on the way touches these
characters. This is the only address of an operation. Other ways to write it, such as the percent-encoded name or one
with plain slashes, are understood by `id_of`, so that a server can say what the address is.
"""

import re

ENVELOPE_JSON = "application/vnd.opwire.envelope+json"
"""The content type of a whole envelope, for those who ask for it."""

_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def path_of(operation_id: str) -> str:
    """Where an operation is."""
    namespace, _, name = operation_id.partition(".")
    return f"/{_escape(namespace)}/{_escape(name)}"


def id_of(path: str) -> str | None:
    """The id that a decoded path stands for; None if it is not of the form `/{namespace}/{name}`."""
    namespace, _, name = path.removeprefix("/").partition("/")
    if not namespace or not name:
        return None
    return f"{_unescape(namespace)}.{_unescape(name)}" if "~" in path else f"{namespace}.{name}"


def _escape(segment: str) -> str:
    escaped = _UNSAFE.sub(_bytes_of, segment)
    return escaped.replace(".", "~2E") if not segment.strip(".") else escaped  # `.` and `..` mean something in a path


def _bytes_of(character: re.Match[str]) -> str:
    return "".join(f"~{byte:02X}" for byte in character[0].encode("utf-8", "surrogatepass"))


def _unescape(segment: str) -> str:
    return _ESCAPED.sub(_text_of, segment)


def _text_of(escaped: re.Match[str]) -> str:
    try:
        return bytes.fromhex(escaped[0].replace("~", "")).decode()
    except UnicodeDecodeError:  # not of our making: it stands for itself
        return escaped[0]
