"""A registry that uses every feature of schemas and of operations, to be served and judged."""

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

from msgspec import Meta

from opwire import (
    UNKNOWN,
    AccessControl,
    CallError,
    Context,
    ErrorCode,
    Identity,
    OperationRegistry,
    OperationSpec,
    OperationType,
    Schema,
    http_envelope,
    mcp_envelope,
)

ADMIN = Identity(id="ada", scopes=("shop:read", "shop:write"))
GUEST = Identity(id="bob", scopes=("shop:read",))
PUBLIC = AccessControl(public=True)
READ = AccessControl(required_scopes=("shop:read",))
WRITE = AccessControl(required_scopes=("shop:write",))

Name = Annotated[str, Meta(min_length=1, max_length=40, pattern="^[a-z][a-z0-9-]*$", description="What it is called.")]
Share = Annotated[float, Meta(ge=0, le=1)]


class Colour(enum.Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Cat:
    """A pet with several lives."""

    name: Name
    lives: Annotated[int, Meta(ge=1, le=9)] = 9
    kind: Literal["cat"] = "cat"


@dataclass
class Dog:
    """A pet that barks."""

    name: Name
    tricks: list[str] = field(default_factory=list)
    kind: Literal["dog"] = "dog"


@dataclass
class Tree:
    """A value, and trees below it."""

    value: int
    children: "list[Tree]" = field(default_factory=list)


class Place(NamedTuple):
    """Where it is."""

    x: int
    y: float = 0.0


class Settings(TypedDict):
    """How it is done."""

    fast: bool
    colour: NotRequired[Colour]


@dataclass
class Order:
    """An order."""

    id: UUID
    pet: Cat | Dog
    when: date | None = None
    made: datetime | None = None
    price: Decimal = Decimal("1.50")
    level: Level = Level.LOW
    labels: dict[str, str] = field(default_factory=dict)
    places: Annotated[list[Place], Meta(max_length=3)] = field(default_factory=list)
    photo: bytes | None = None
    note: str | None = None


BY_HAND: dict[str, Schema] = {
    "any": UNKNOWN,
    "text": Schema({"type": "string", "maxLength": 100}),
    "maybe": Schema({"type": ["integer", "null"]}),
    "point": Schema(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"at": {"$ref": "#/definitions/at"}, "unit": {"enum": ["m", "km", None]}},
            "required": ["at"],
            "additionalProperties": False,
            "definitions": {"at": {"type": "array", "items": [{"type": "number"}, {"type": "number"}], "minItems": 2}},
        }
    ),
    "shape": Schema(
        {
            "oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}],
            "$defs": {
                "Circle": {
                    "type": "object",
                    "properties": {"round": {"const": True}, "radius": {"type": "number", "exclusiveMinimum": 0}},
                    "required": ["round", "radius"],
                },
                "Square": {
                    "type": "object",
                    "properties": {"round": {"const": False}, "side": {"type": "integer", "multipleOf": 2}},
                    "required": ["round", "side"],
                },
            },
        }
    ),
}


def make_registry() -> OperationRegistry:
    """All of it."""
    registry = OperationRegistry()
    _add_queries(registry)
    _add_mutations(registry)
    _add_schemas_by_hand(registry)
    _add_far_ones(registry)
    _add_odd_names(registry)
    _add_failures(registry)
    _add_streams(registry)
    return registry


def _add_queries(registry: OperationRegistry) -> None:
    @registry.query("shop.add", title="Add", tags=["numbers", "small"], access=PUBLIC)
    async def add(a: int, b: int = 2) -> int:
        """Add two integers, of any size."""
        return a + b

    @registry.query("shop.find", access=READ, examples=[{"name": "rex", "colours": ["red"]}])
    async def find(
        name: Name,
        colours: list[Colour] | None = None,
        size: Share | None = None,
        kind: Literal["cat", "dog"] = "cat",
        alive: bool = True,
        before: date | None = None,
    ) -> list[Cat | Dog]:
        """Pets by what is known of them."""
        return [Cat(name, 7) if kind == "cat" else Dog(name, [colour.value for colour in colours or ()])]

    @registry.query("shop.photo", access=READ)
    async def photo(size: Annotated[int, Meta(ge=0, le=1_000)] = 3) -> bytes:
        """Bytes as they are."""
        return bytes(number % 256 for number in range(size))

    @registry.query("shop.nothing", access=READ)
    async def nothing() -> None:
        """No answer is an answer."""

    @registry.query("shop.me", access=READ)
    async def me(context: Context) -> dict[str, str]:
        """Return the caller."""
        return {"id": context.identity.id if context.identity else ""}

    @registry.query("shop.settings", access=READ)
    async def settings(settings: Settings) -> Settings:
        """A query with nested input."""
        return settings


def _add_mutations(registry: OperationRegistry) -> None:
    @registry.mutation("shop.order", access=WRITE)
    async def order(order: Order) -> Order:
        """Order something."""
        return order

    @registry.mutation("shop.grow", access=READ)
    async def grow(tree: Tree) -> Tree:
        """A tree below a new root."""
        return Tree(tree.value + 1, [tree])

    @registry.mutation("shop.rename", access=READ)
    async def rename(pet: Cat | Dog, name: Name) -> Cat | Dog:
        """The same pet by another name."""
        pet.name = name
        return pet

    @registry.mutation("shop.keep", access=READ)
    async def keep(data: bytes, levels: dict[str, Level], at: Place, ids: set[int] | None = None) -> dict[str, Any]:
        """Bytes, a map, a tuple and a set."""
        return {"size": len(data), "levels": levels, "at": at, "ids": sorted(ids or ())}


def _add_schemas_by_hand(registry: OperationRegistry) -> None:
    for name, schema in BY_HAND.items():
        spec = OperationSpec(namespace="plain", name=name, access=READ, input_schema=schema, output_schema=schema)
        registry.register(spec, lambda input, context: input, inline=True)
    total = OperationSpec(
        namespace="plain",
        name="sum",
        type=OperationType.QUERY,
        access=READ,
        input_schema=Schema({"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}),
        output_schema=Schema({"type": "integer"}),
    )
    registry.register(total, lambda input, context: sum(input), inline=True)


def _add_far_ones(registry: OperationRegistry) -> None:
    @registry.query("far.page", access=READ)
    async def page(number: Annotated[int, Meta(ge=1, le=99)] = 1) -> list[int]:
        """An answer of another API, which keeps what is worth knowing of it."""
        headers = {"Link": f'<https://api.example/?page={number + 1}>; rel="next"', "X-RateLimit-Remaining": "7"}
        answer: Any = http_envelope([number], status_code=206, headers=headers, content_type="application/json")
        return answer

    @registry.query("far.tool", access=READ)
    async def tool() -> Any:
        """A result of an MCP tool that says that it is an error."""
        return mcp_envelope([], is_error=True, content=[{"type": "text", "text": "no such city"}])


def _add_odd_names(registry: OperationRegistry) -> None:
    for name in ("repos/get", "a b", "é~", "..", "class"):

        @registry.query(f"odd.{name}", access=READ)
        async def odd(self_: int = 1, from_: str = "") -> str:
            return f"{self_} {from_}"


def _add_failures(registry: OperationRegistry) -> None:
    @registry.query("fail.as_told", access=READ)
    async def as_told(code: ErrorCode) -> str:
        """Fails in the way that it is asked to."""
        raise CallError(code, f"this is {code}", {"code": code}, retry_after=1.5)

    @registry.query("fail.by_mistake", access=READ)
    async def by_mistake() -> str:
        raise ZeroDivisionError("the secret is 42")


def _add_streams(registry: OperationRegistry) -> None:
    @registry.subscription("clock.ticks", access=READ)
    async def ticks(
        count: Annotated[int, Meta(ge=0, le=20)] = 3, last_event_id: Annotated[int, Meta(ge=0)] = 0
    ) -> AsyncIterator[Tree]:
        """Trees that grow, one after the other."""
        for number in range(last_event_id, count):
            yield Tree(number)

    @registry.subscription("clock.pets", access=READ)
    async def pets(pets: Annotated[list[Cat | Dog], Meta(max_length=5)]) -> AsyncIterator[Cat | Dog]:
        """Pets as they were given."""
        for pet in pets:
            yield pet
