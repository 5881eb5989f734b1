"""Tool names: operation ids in the letters that model providers and MCP clients accept. No I/O.

    math.add                     math_add
    my_shop.get_item             my_shop_get_item
    github.repos/list-for-org    github_repos_list-for-org

A name has letters, digits, "_" and "-", and begins with a letter or "_". Every other character is a separator, written
as "_". If another operation has that name already, separators are written as "-" or "__"; if all of these names are
taken too, or nothing of the id is readable, the name ends with a digest of the id. Words in the middle of a name are
abbreviated if it is too long, so that names which differ at their end stay different.

An operation keeps its name as long as it is known; which one of two gets the shorter name depends on their order. So
a caller resolves names with the `ToolNames` that gave them, and never parses one.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

from opwire.errors import UsageError

MAX_NAME = 50
"""Longest name by default: providers accept 64, and clients put the name of their server before it (`mcp__shop__`)."""

SHORTEST_MAX_NAME, LONGEST_MAX_NAME = 32, 128
"""The bounds of that limit."""

_SEPARATORS = re.compile(r"[^A-Za-z0-9_-]+")
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{LONGEST_MAX_NAME - 1}}}")
_UNDERSCORES = re.compile(r"_{2,}")
_SPELLINGS = (("_", "_"), ("_", "-"), ("__", "_"), ("__", "-"), ("-", "_"), ("-", "-"))  # of the dot, of the others
_DIGITS = 6  # of a digest
_NAMESPACE = 16  # characters of a namespace that are kept when a name is abbreviated
_LENGTHS = (8, 6, 4, 3, 2, 1)  # of an abbreviated word


class ToolNames:
    """The names of a set of operations, each given once.

    names = ToolNames()
    names.add(spec.id for spec in registry.list())
    names["github.repos/get"]               # "github_repos_get"
    names.operation_id("github_repos_get")  # "github.repos/get"

    `chosen` are names by id; no other operation gets one of them.

    Raises:
        UsageError: a chosen name is invalid, or chosen twice.
    """

    def __init__(self, *, max_name: int = MAX_NAME, chosen: Mapping[str, str] | None = None) -> None:
        self._max_name = max_name
        self._chosen = dict(chosen or {})
        self._reserved = frozenset(self._chosen.values())
        for id, name in self._chosen.items():
            if not _NAME.fullmatch(name):
                allowed = f"letters, digits, _ and -, at most {LONGEST_MAX_NAME}, and begins with a letter or _"
                raise UsageError(f"the tool name {name!r:.80} of {id} is invalid: it has {allowed}")
        if len(self._reserved) < len(self._chosen):
            raise UsageError("tool_names has a name twice: each operation needs its own")
        self._names: dict[str, str] = {}  # by id
        self._ids: dict[str, str] = {}  # by name

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, operation_id: object) -> bool:
        return operation_id in self._names

    def __getitem__(self, operation_id: str) -> str:
        """Return the name of an operation that was added.

        Raises:
            KeyError: it was not.
        """
        return self._names[operation_id]

    def add(self, operation_ids: Iterable[str]) -> None:
        """Name operations that have no name yet. Their order does not matter within one call."""
        for id in sorted({id for id in operation_ids if id not in self._names}):
            free = (name for name in self._candidates(id) if name not in self._ids and name not in self._reserved)
            name = self._chosen.get(id) or next(free)
            self._names[id], self._ids[name] = name, id

    def keep(self, operation_ids: Iterable[str]) -> None:
        """Forget all other operations: their names may be given again."""
        kept = set(operation_ids)
        for id in [id for id in self._names if id not in kept]:
            del self._ids[self._names.pop(id)]

    def operation_id(self, name: str) -> str | None:
        """Return the id of the operation that has this name, or None."""
        return self._ids.get(name)

    def _candidates(self, id: str) -> Iterator[str]:
        namespace, _, rest = id.partition(".")
        head = _readable(namespace, "_")
        if head and _readable(rest, "_"):
            for dot, separator in _SPELLINGS:
                yield _shortened(_started(f"{head}{dot}{_readable(rest, separator)}"), self._max_name)
        digest = sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        name = _started(f"{head}_{_readable(rest, '_')}".strip("_") or "op")
        for digits in range(_DIGITS, self._max_name // 2):
            yield f"{_shortened(name, self._max_name - 1 - digits)}_{digest[:digits]}"


def _readable(text: str, separator: str) -> str:
    if not text.isascii():  # é as e; other scripts are lost
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return _UNDERSCORES.sub("_", _SEPARATORS.sub(separator, text)).strip("_-")


def _started(name: str) -> str:
    return name if name[:1].isalpha() else f"_{name}"


def _shortened(name: str, longest: int) -> str:
    if len(name) <= longest:
        return name
    first, *middle, last = name.split("_")
    for length in _LENGTHS:
        short = "_".join([first[:_NAMESPACE], *(word[:length] for word in middle), last])
        if len(short) <= longest:
            return short
    return f"{name[: longest // 3]}_{name[1 + longest // 3 - longest :]}"  # one long word: its ends
