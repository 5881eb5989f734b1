"""Names of Python for whatever operations, fields and schemas are called. No I/O."""

import keyword
import re
import unicodedata

_WORDS = re.compile(r"[^\W_]+")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAX = 80


def snake(text: str, otherwise: str) -> str:
    """A name like `list_files` for a function, parameter or attribute."""
    return _valid("_".join(word.lower() for word in _words(text)), otherwise)


def pascal(text: str, otherwise: str) -> str:
    """A name like `PullRequest` for a class."""
    return _valid("".join(word[:1].upper() + word[1:] for word in _words(text)), otherwise)


def quoted(text: str) -> str:
    """The text as Python writes it, in ASCII, and in double quotes where they are free."""
    plain = ascii(text)
    return plain if '"' in plain or plain[0] != "'" else f'"{plain[1:-1]}"'


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text[:1_000])  # as Python itself reads names
    return [word for part in _WORDS.findall(plain) for word in _HUMPS.split(part)]


def _valid(name: str, otherwise: str) -> str:
    # Changing the case can undo the normal form in which Python compares names: two would become one.
    name = unicodedata.normalize("NFKC", name)[:_MAX].rstrip("_")
    if not name.isidentifier():  # empty, or it begins with a digit
        name = f"{otherwise}_{name}" if f"x{name}".isidentifier() and name else otherwise
    return f"{name}_" if keyword.iskeyword(name) else name
