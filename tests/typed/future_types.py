"""Types with annotations as text."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import ClassVar, NotRequired, TypedDict


@dataclass
class Late:
    shared: ClassVar[int] = 1
    key: int
    start: InitVar[int] = 0
    others: list[Late] = field(default_factory=list)


class LateDict(TypedDict):
    key: int
    note: NotRequired[str]
