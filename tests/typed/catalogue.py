"""Types of every kind that opwire reads, each with plain data that fits and the value that it stands for."""

import collections
import enum
import sys
from collections.abc import Iterable, Mapping, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    Self,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import annotated_types
import attrs
import msgspec
import pydantic
import typing_extensions

from tests.typed import pep695

T = TypeVar("T")
UserId = NewType("UserId", int)


Names = typing_extensions.TypeAliasType("Names", list[str])
Twin = typing_extensions.TypeAliasType("Twin", tuple[T, T], type_params=(T,))


class Colour(enum.Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = enum.auto()
    HIGH = enum.auto()


class Mixed(enum.Enum):
    ONE = 1
    HALF = 0.5
    TEXT = "text"
    NOTHING = None


class Mood(str, enum.Enum):  # noqa: UP042 -- this is how it was written before StrEnum
    GOOD = "good"
    BAD = "bad"


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Email(str):
    """A string with a check."""

    def __new__(cls, text: str) -> Self:
        if "@" not in text:
            raise ValueError("no @ in it")
        return super().__new__(cls, text)


@dataclass
class Point:
    """Where it is."""

    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Tag:
    name: str


@dataclass(kw_only=True)
class Everything:
    total: ClassVar[int] = 0
    name: str
    fixed: Final[int] = 1
    points: list[Point] = field(default_factory=list)
    colour: Colour = Colour.RED
    when: date | None = None
    id: int = field(default_factory=lambda: 7)
    _: KW_ONLY
    flag: bool = False


@dataclass
class Area:
    width: int
    height: int
    size: int = field(init=False)
    unit: InitVar[str] = "m"

    def __post_init__(self, unit: str) -> None:
        if self.width < 0:
            raise ValueError("the width is negative")
        self.size = self.width * self.height
        self.label = f"{self.size} {unit}²"


@dataclass
class Tree:
    value: int
    children: list["Tree"] = field(default_factory=list)


@dataclass
class Chain:
    value: int
    next: Self | None = None


@dataclass
class Page(Generic[T]):
    items: list[T]
    next: "Page[T] | None" = None


@dataclass
class NamedPage(Page[Point]):
    name: str = ""


@dataclass
class Circle:
    kind: Literal["circle"]
    radius: float


@dataclass
class Square:
    kind: Literal["square"]
    side: float


@dataclass
class Cat:
    name: str
    lives: int = 9


@dataclass
class Dog:
    name: str
    barks: bool


Round = typing_extensions.TypeAliasType("Round", Circle)
Alternative = Round | Square
Pets = typing_extensions.TypeAliasType("Pets", Cat | Dog)


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Draft(TypedDict, total=False):
    title: Required[str]
    notes: list[str]


class Record(typing_extensions.TypedDict):
    key: typing_extensions.ReadOnly[str]
    note: typing_extensions.NotRequired[str]


class Sealed(typing_extensions.TypedDict, closed=True):
    key: str


class Boxed(TypedDict, Generic[T]):
    content: T


class LabelledBox(Boxed[int]):
    label: str


class Pair(NamedTuple):
    left: int
    right: str = "right"


class Couple(NamedTuple, Generic[T]):
    one: T
    other: T


Bare = collections.namedtuple("Bare", "a b")


class Account(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A payer."""

    user_name: str
    open_since: date | msgspec.UnsetType = msgspec.UNSET
    tags: list[str] = []


class Coordinates(msgspec.Struct, array_like=True):
    lat: float
    lon: float
    alt: float = 0.0


class Created(msgspec.Struct, tag="created", tag_field="event"):
    id: int


class Deleted(msgspec.Struct, tag="deleted", tag_field="event"):
    id: int
    reason: str = ""


class Wrapped(msgspec.Struct, Generic[T]):
    content: T


@attrs.define
class Engine:
    power: int = attrs.field(validator=attrs.validators.gt(0))
    name: str = attrs.field(default="none", converter=str.upper)
    parts: list[str] = attrs.field(factory=list)
    code: str = attrs.field(default="c", alias="engine_code")
    serial: int = attrs.field(init=False, default=5)


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field(alias="zip", max_length=5)


class Person(pydantic.BaseModel):
    name: str
    born: datetime | None = None
    address: Address | None = None

    @pydantic.computed_field
    @property
    def initial(self) -> str:
        return self.name[:1]


class Comment(pydantic.BaseModel):
    text: str
    replies: "list[Comment]" = []


class Envelope(pydantic.BaseModel, Generic[T]):
    content: T


class Numbers(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class Order:
    count: int = pydantic.Field(ge=1)


@dataclass
class Mixture:
    """A dataclass that holds a model, a Struct and attrs."""

    person: Person
    account: Account
    engine: Engine | None = None


class Holder(pydantic.BaseModel, arbitrary_types_allowed=True):
    """A model that holds a Struct, which pydantic cannot describe."""

    account: Account
    count: Annotated[int, pydantic.Field(ge=1)] = 1
    tree: Tree | None = None


class Case(NamedTuple):
    """A hint, and pairs of plain data and the value that it becomes."""

    hint: Any
    samples: list[tuple[Any, Any]]


def label(case: Case) -> str:
    """How a case is called in a test report."""
    return str(case.hint).replace("tests.typed.catalogue.", "")


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(each, each) for each in values]


NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
KEY = UUID("12345678-1234-5678-1234-567812345678")
ADDRESS = {"street": "Main", "zip": "12345"}

SCALARS = [
    Case(int, [*same(0, -5, 2**70), (5.0, 5)]),
    Case(float, [*same(0.5, -1e300), (5, 5.0)]),
    Case(bool, same(True, False)),
    Case(str, same("", "ü", "\N{GRINNING FACE}")),
    Case(None, same(None)),
    Case(Any, same(None, 1, "x", [1], {"a": 1})),
    Case(object, same(None, 1, "x", [1], {"a": 1})),
    Case(UserId, same(7)),
    Case(Path, [("a/b", Path("a/b"))]),
    Case(PurePosixPath, [("a/b", PurePosixPath("a/b"))]),
    Case(time, [("10:20:30", time(10, 20, 30)), ("10:20:30.5Z", time(10, 20, 30, 500000, tzinfo=UTC))]),
    Case(timedelta, [("PT90S", timedelta(seconds=90)), ("-P1DT0.5S", -timedelta(days=1, seconds=0.5))]),
    Case(Rights, [(3, Rights.READ | Rights.WRITE)]),
]
LOOSE = [  # their conversion reads a little more or less than the schema says
    Case(bytes, [("aGk=", b"hi"), ("", b"")]),
    Case(bytearray, [("aGk=", bytearray(b"hi"))]),
    Case(datetime, [("2024-02-29T12:00:00Z", NOON)]),
    Case(date, [("2024-02-29", date(2024, 2, 29))]),
    Case(UUID, [(str(KEY), KEY)]),
    Case(Decimal, [("1.50", Decimal("1.50")), ("-1e3", Decimal("-1e3"))]),
    Case(dict[date, int], [({"2024-02-29": 1}, {date(2024, 2, 29): 1})]),
    Case(dict[UUID, int], [({str(KEY): 1}, {KEY: 1})]),
]
CHOICES = [
    Case(Colour, [("red", Colour.RED)]),
    Case(Level, [(1, Level.LOW), (2.0, Level.HIGH)]),
    Case(Mixed, [(1, Mixed.ONE), (0.5, Mixed.HALF), ("text", Mixed.TEXT), (None, Mixed.NOTHING)]),
    Case(Mood, [("good", Mood.GOOD)]),
    Case(Literal["a"], same("a")),
    Case(Literal["a", 1, None], [*same("a", 1, None), (1.0, 1)]),
    Case(Literal[True, "x"], same(True, "x")),
    Case(Literal[Colour.RED], [("red", Colour.RED)]),
]
CONTAINERS = [
    Case(list, same([], [1, "x", None])),
    Case(list[int], [*same([], [1, 2]), ([1.0], [1])]),
    Case(list[str], same([], ["x"])),
    Case(list[Any], same([1, [2]])),
    Case(Sequence[int], same([1])),
    Case(Iterable[str], same(["x"])),
    Case(tuple, [([1, "x"], (1, "x"))]),
    Case(tuple[int, ...], [([], ()), ([1, 2], (1, 2))]),
    Case(tuple[int, str], [([1, "x"], (1, "x"))]),
    Case(tuple[()], [([], ())]),
    Case(set[int], [([1, 2], {1, 2}), ([], set())]),
    Case(frozenset[str], [(["a"], frozenset("a"))]),
    Case(set[Tag], [([{"name": "x"}], {Tag("x")})]),
    Case(AbstractSet[int], [([1], {1})]),
    Case(MutableSet[int], [([1], {1})]),
    Case(collections.deque[int], [([1], collections.deque([1]))]),
    Case(dict, same({}, {"a": [1]})),
    Case(dict[str, Any], same({"a": None})),
    Case(dict[str, int], [*same({"a": 1}), ({"a": 1.0}, {"a": 1})]),
    Case(Mapping[str, bool], same({"a": True})),
    Case(dict[int, str], [({"1": "x", "-2": "y"}, {1: "x", -2: "y"})]),
    Case(dict[Colour, int], [({"red": 1}, {Colour.RED: 1})]),
    Case(dict[Level, int], [({"1": 1}, {Level.LOW: 1})]),
    Case(collections.OrderedDict[str, int], [({"a": 1}, collections.OrderedDict(a=1))]),
    Case(collections.defaultdict[str, list[int]], [({"a": [1]}, collections.defaultdict(list, a=[1]))]),
    Case(collections.Counter[str], [({"a": 2}, collections.Counter(a=2))]),
]
CLASSES = [
    Case(Point, [({"x": 1}, Point(1)), ({"x": 1.0, "y": 2}, Point(1, 2.0)), ({"x": 1, "extra": 0}, Point(1))]),
    Case(Tag, [({"name": "a"}, Tag("a"))]),
    Case(
        Everything,
        [
            ({"name": "a"}, Everything(name="a")),
            (
                {"name": "a", "points": [{"x": 1}], "colour": "blue", "when": "2024-02-29", "flag": True},
                Everything(name="a", points=[Point(1)], colour=Colour.BLUE, when=date(2024, 2, 29), flag=True),
            ),
        ],
    ),
    Case(Tree, [({"value": 1, "children": [{"value": 2}]}, Tree(1, [Tree(2)]))]),
    Case(Chain, [({"value": 1, "next": {"value": 2}}, Chain(1, Chain(2)))]),
    Case(Page[int], [({"items": [1], "next": {"items": []}}, Page([1], Page([])))]),
    Case(Page[Page[str]], [({"items": [{"items": ["x"]}]}, Page([Page(["x"])]))]),
    Case(NamedPage, [({"items": [{"x": 1}], "name": "n"}, NamedPage([Point(1)], None, "n"))]),
    Case(Movie, same({"title": "t"}, {"title": "t", "year": 1999})),
    Case(Draft, same({"title": "t"}, {"title": "t", "notes": ["n"]})),
    Case(Record, same({"key": "k"}, {"key": "k", "note": "n"})),
    Case(Sealed, same({"key": "k"})),
    Case(Boxed[Point], [({"content": {"x": 1}}, {"content": Point(1)})]),
    Case(LabelledBox, same({"content": 1, "label": "l"})),
    Case(Pair, [([1], Pair(1)), ([1, "x"], Pair(1, "x"))]),
    Case(Couple[Point], [([{"x": 1}, {"x": 2}], Couple(Point(1), Point(2)))]),
    Case(Bare, [([1, "x"], Bare(1, "x"))]),
    Case(
        Account,
        [
            ({"userName": "u"}, Account("u")),
            ({"userName": "u", "openSince": "2024-02-29", "tags": ["t"]}, Account("u", date(2024, 2, 29), ["t"])),
        ],
    ),
    Case(Coordinates, [([1, 2.5], Coordinates(1.0, 2.5)), ([1.5, 2.5, 3.5, 9], Coordinates(1.5, 2.5, 3.5))]),
    Case(Created, [({"event": "created", "id": 1}, Created(1))]),
    Case(list[Created], [([{"event": "created", "id": 1}], [Created(1)])]),
    Case(Wrapped[list[Point]], [({"content": [{"x": 1}]}, Wrapped([Point(1)]))]),
]
CHECKED = [  # their classes refuse more than their schemas can say
    Case(Email, [("a@b", Email("a@b"))]),
    Case(
        Area,
        [({"width": 2, "height": 3}, Area(2, 3)), ({"width": 2, "height": 3, "size": 6, "unit": "cm"}, Area(2, 3))],
    ),
    Case(
        Engine, [({"power": 5, "name": "v"}, Engine(5, "v")), ({"power": 5, "code": "x"}, Engine(5, engine_code="x"))]
    ),
]
ALIASES = [
    Case(Names, same(["a"])),
    Case(dict[str, Names], same({"a": ["b"]})),
    Case(Twin[int], [([1, 2], (1, 2))]),
    Case(Alternative, [({"kind": "circle", "radius": 1.0}, Circle("circle", 1.0))]),
    Case(Pets | None, [({"name": "a", "barks": True}, Dog("a", True)), (None, None)]),
]
UNIONS = [
    Case(Optional[int], [*same(None, 5), (5.0, 5)]),  # noqa: UP045
    Case(int | float, same(5, 5.5)),
    Case(float | int, same(5, 5.5)),
    Case(int | str | None, same(1, "x", None)),
    Case(list[int] | str, same([1], "x")),
    Case(Circle | Square, [({"kind": "square", "side": 2.0}, Square("square", 2.0))]),
    Case(Created | Deleted, [({"event": "deleted", "id": 1}, Deleted(1))]),
    Case(Created | Deleted | None, [({"event": "created", "id": 1}, Created(1)), (None, None)]),
    Case(Cat | Dog, [({"name": "a", "barks": True}, Dog("a", True)), ({"name": "a"}, Cat("a"))]),
    Case(list[Cat | Dog], [([{"name": "a"}, {"name": "b", "barks": False}], [Cat("a"), Dog("b", False)])]),
    Case(Movie | Point, [({"title": "t"}, {"title": "t"}), ({"x": 1}, Point(1))]),
    Case(Point | dict[str, int], [({"x": 1}, Point(1)), ({"a": 1}, {"a": 1})]),
    Case(dict[str, Cat | Dog | int], [({"a": 1, "b": {"name": "n"}}, {"a": 1, "b": Cat("n")})]),
]
CONSTRAINED = [
    Case(Annotated[int, msgspec.Meta(ge=1, lt=10)], [*same(1, 9), (9.0, 9)]),
    Case(Annotated[int, annotated_types.Gt(0), annotated_types.Le(5)], same(1, 5)),
    Case(Annotated[int, annotated_types.Interval(ge=1, le=3)], same(1, 3)),
    Case(Annotated[int, annotated_types.MultipleOf(5)], same(0, 10)),
    Case(Annotated[list[int], annotated_types.Len(1, 2)], same([1], [1, 2])),
    Case(Annotated[str, pydantic.Field(min_length=2, pattern="^a")], same("ab", "abc")),
    Case(Annotated[dict[str, int], msgspec.Meta(min_length=1)], same({"a": 1})),
    Case(Annotated[int | None, annotated_types.Ge(3)], same(3, None)),
    Case(list[Annotated[str, msgspec.Meta(max_length=3)]], same(["abc"])),
    Case(dict[Annotated[str, msgspec.Meta(pattern="^x-")], int], same({"x-a": 1})),
]
PYDANTIC = [
    Case(Address, [(ADDRESS, Address(street="Main", zip="12345"))]),
    Case(
        Person,
        [
            (
                {"name": "A", "born": "2024-02-29T12:00:00Z", "address": ADDRESS},
                Person(name="A", born=NOON, address=Address(street="Main", zip="12345")),
            )
        ],
    ),
    Case(Comment, [({"text": "a", "replies": [{"text": "b"}]}, Comment(text="a", replies=[Comment(text="b")]))]),
    Case(Envelope[int], [({"content": 1}, Envelope[int](content=1)), ({"content": 1.0}, Envelope[int](content=1))]),
    Case(Numbers, [([1, 2], Numbers([1, 2]))]),
    Case(Order, [({"count": 1}, Order(1))]),
    Case(list[Person] | None, [([{"name": "A"}], [Person(name="A")])]),
    Case(Person | Order | Cat, [({"count": 3}, Order(3)), ({"name": "a", "lives": 7}, Cat("a", 7))]),
    Case(
        Mixture,
        [
            (
                {"person": {"name": "A"}, "account": {"userName": "u"}, "engine": {"power": 1}},
                Mixture(Person(name="A"), Account("u"), Engine(1)),
            )
        ],
    ),
]

EXACT = [*SCALARS, *CHOICES, *CONTAINERS, *CLASSES, *ALIASES, *UNIONS, *CONSTRAINED]
"""Of these, data is valid against the schema exactly if it can be converted."""
ALL = [*EXACT, *LOOSE, *CHECKED, *PYDANTIC]

if sys.version_info >= (3, 12):
    NEW = [Case(*each) for each in pep695.load().CASES]
    EXACT, ALL = EXACT + NEW, ALL + NEW
