"""Operation ids as tool names, and back. Clients take names of 1 to 64 letters, digits, "_" and "-". Pure.

    math.add                  math_add
    my_shop.get_item          my__shop_get_item
    github.repos/list         github_repos-2f-list

The dot between namespace and name is the first "_" that is not one of two; what else is not allowed is written as its
code point between hyphens. A name depends on its id alone. One that would be too long is cut, and ends with a digest
of the id: such a name says which operation it is only to a reader who knows them all.
"""

import re
from hashlib import sha256

MAX_NAME = 64

_CODE = re.compile(r"-([0-9a-f]+)-")
_CODE_AHEAD = re.compile(r"[0-9a-f]+-")
_PARTS = re.compile(r"((?:[^_]|__)+)_(.+)", re.DOTALL)
_CUT = "_-0-"  # the code of NUL, which no id holds: no other id is ever written like this, wherever the cut is
_DIGITS = 16
_HEAD = 12


def tool_name(operation_id: str) -> str:
    """The name of an operation's tool."""
    namespace, _, name = operation_id.partition(".")
    head = _written(namespace).replace("_", "__")
    # A leading "_" of the name would make two of the one that stands for the dot.
    tail = f"-5f-{_written(name[1:])}" if name.startswith("_") else _written(name)
    if len(head) + len(tail) < MAX_NAME:
        return f"{head}_{tail}"
    digest = sha256(operation_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    room = MAX_NAME - len(_CUT) - _DIGITS
    head = head[: max(_HEAD, room - 1 - len(tail))]  # the name says more than the namespace
    return f"{f'{head}_{tail}'[:room]}{_CUT}{digest}"


def is_cut(name: str) -> bool:
    """Whether a name is one that had to be cut."""
    return len(name) == MAX_NAME and name[:-_DIGITS].endswith(_CUT)


def operation_id(name: str) -> str | None:
    """The id that a tool name stands for; None if it is cut, or no name of ours."""
    parts = _PARTS.fullmatch(name) if len(name) <= MAX_NAME else None
    if parts is None:
        return None
    try:
        id = f"{_read(parts[1].replace('__', '_'))}.{_read(parts[2])}"
        return id if "\0" not in id and tool_name(id) == name else None
    except (ValueError, OverflowError):  # the code of no character
        return None


def _written(text: str) -> str:
    written = ""
    for letter in reversed(text):
        is_plain = letter == "_" or (letter.isascii() and letter.isalnum())
        if is_plain or (letter == "-" and not _CODE_AHEAD.match(written)):
            written = letter + written
        else:
            written = f"-{ord(letter):x}-{written}"
    return written


def _read(written: str) -> str:
    return _CODE.sub(lambda code: chr(int(code[1], 16)), written)
