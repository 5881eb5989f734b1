"""PEP 695 aliases and generics. As text, since it is not valid syntax for Python 3.11."""

import sys
from types import ModuleType
from typing import Any

SOURCE = """
from dataclasses import dataclass
from typing import TypedDict

import msgspec

type Json = dict[str, Json] | list[Json] | str | float | int | bool | None
type Name = str
type Twins[T] = tuple[T, T]
type Nested[T] = T | list[Nested[T]]
type Endless[T] = list[Endless[list[T]]]


@dataclass
class Slot[T]:
    content: T
    name: Name = ""


class Crate[T](TypedDict):
    content: T


class Parcel[T](msgspec.Struct):
    content: Twins[T]


CASES = [
    (Json, [(each, each) for each in ({"a": [1, None, {"b": True}]}, 1.5, "x")]),
    (Name, [("x", "x")]),
    (Twins[int], [([1, 2], (1, 2))]),
    (Nested[int], [([1, [2, []]], [1, [2, []]]), (1, 1)]),
    (Slot[int], [({"content": 1, "name": "n"}, Slot(1, "n"))]),
    (Crate[Slot[str]], [({"content": {"content": "x"}}, {"content": Slot("x")})]),
    (Parcel[Twins[str]], [({"content": [["a", "b"], ["c", "d"]]}, Parcel((("a", "b"), ("c", "d"))))]),
]
"""


def load() -> Any:
    """The module that the text is, importable like one that was written to a file."""
    module = ModuleType("tests.typed.pep695_types")
    sys.modules[module.__name__] = module
    exec(SOURCE, vars(module))
    return module
