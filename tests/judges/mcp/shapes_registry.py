"""Operations with results of all sorts of shapes."""

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

from msgspec import Meta

from opwire import CallError, ErrorCode, OperationRegistry
from tests.judges.mcp.served import serve

registry = OperationRegistry()


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list["Tree"])


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Circle:
    radius: Annotated[float, Meta(gt=0)]
    kind: Literal["circle"] = "circle"


@dataclass
class Square:
    side: int
    kind: Literal["square"] = "square"


class Person(TypedDict, total=False):
    name: str
    born: date
    id: UUID


@registry.query("shape.array")
async def array() -> list[int]:
    return [1, 2]


@registry.query("shape.number")
async def number() -> float:
    return 1.5


@registry.query("shape.text")
async def text() -> str:
    return "tea"


@registry.query("shape.truth")
async def truth() -> bool:
    return False


@registry.query("shape.nothing")
async def nothing() -> None:
    return None


@registry.query("shape.maybe")
async def maybe() -> int | None:
    return None


@registry.query("shape.bytes")
async def some_bytes() -> bytes:
    return b"\0\xff"


@registry.query("shape.enum")
async def enum() -> Colour:
    return Colour.BLUE


@registry.query("shape.union")
async def union() -> Circle | Square:
    return Square(2)


@registry.query("shape.tuple")
async def pair() -> tuple[int, str]:
    return (1, "one")


@registry.query("shape.mapping")
async def mapping() -> dict[str, list[Colour]]:
    return {"all": [Colour.RED]}


@registry.query("shape.tree")
async def tree() -> Tree:
    return Tree("root", [Tree("leaf")])


@registry.query("shape.forest")
async def forest() -> list[Tree]:
    return [Tree("root", [Tree("leaf")])]


@registry.query("shape.person")
async def person() -> Person:
    return {"name": "Ada", "born": date(1815, 12, 10), "id": UUID(int=1)}


@registry.query("shape.anything")
async def anything() -> Any:
    return [None, {"a": 1}]


@registry.query("shape.failure")
async def failure() -> list[int]:
    raise CallError(ErrorCode.RATE_LIMITED, "not so fast", retry_after=2)


@registry.subscription("shape.stream")
async def stream() -> AsyncIterator[list[int]]:
    yield [1]
    yield [2, 3]


if __name__ == "__main__":
    serve(registry, *sys.argv[1:])
