"""The schemas and values of the schema ladder, as JSON Schema and as pydantic models."""

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel


class Sample(NamedTuple):
    """A schema, a value that conforms to it, and the pydantic type that says the same."""

    name: str
    schema: dict[str, Any]
    value: Any
    model: Any


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_BOOLEAN = {"type": "boolean"}


def _object(**properties: Any) -> dict[str, Any]:
    """All properties are required, except those with a default."""
    required = [name for name, schema in properties.items() if "default" not in schema]
    return {"type": "object", "properties": properties, "required": required}


class _Small(BaseModel):
    id: int
    name: str
    active: bool


_SMALL = _object(id=_INTEGER, name=_STRING, active=_BOOLEAN)


class _User(BaseModel):
    login: str
    id: int
    avatar_url: str
    site_admin: bool


class _Label(BaseModel):
    id: int
    name: str
    color: str
    default: bool
    description: str | None


class _Milestone(BaseModel):
    number: int
    title: str
    creator: _User
    open_issues: int
    due_on: str | None


class _Issue(BaseModel):
    id: int
    number: int
    title: str
    state: Literal["open", "closed"]
    body: str | None
    locked: bool
    comments: int
    created_at: str
    closed_at: str | None
    user: _User
    assignees: list[_User]
    labels: list[_Label]
    milestone: _Milestone | None
    reactions: dict[str, int]


_NULLABLE = {"type": ["string", "null"]}
_USER = _object(login=_STRING, id=_INTEGER, avatar_url=_STRING, site_admin=_BOOLEAN)
_LABEL = _object(id=_INTEGER, name=_STRING, color=_STRING, default=_BOOLEAN, description=_NULLABLE)
_MILESTONE = _object(
    number=_INTEGER, title=_STRING, creator={"$ref": "#/$defs/user"}, open_issues=_INTEGER, due_on=_NULLABLE
)
_ISSUE = {
    **_object(
        id=_INTEGER,
        number=_INTEGER,
        title=_STRING,
        state={"enum": ["open", "closed"]},
        body=_NULLABLE,
        locked=_BOOLEAN,
        comments=_INTEGER,
        created_at=_STRING,
        closed_at=_NULLABLE,
        user={"$ref": "#/$defs/user"},
        assignees={"type": "array", "items": {"$ref": "#/$defs/user"}},
        labels={"type": "array", "items": {"$ref": "#/$defs/label"}},
        milestone={"anyOf": [{"$ref": "#/$defs/milestone"}, {"type": "null"}]},
        reactions={"type": "object", "additionalProperties": _INTEGER},
    ),
    "$defs": {"user": _USER, "label": _LABEL, "milestone": _MILESTONE},
}


def _user(number: int) -> dict[str, Any]:
    address = f"https://avatars.example/u/{number}"
    return {"login": f"user-{number}", "id": number, "avatar_url": address, "site_admin": False}


def _issue() -> dict[str, Any]:
    label = {"id": 1, "name": "bug", "color": "ff0000", "default": True, "description": None}
    return {
        "id": 1_000_001,
        "number": 42,
        "title": "It does not work on Tuesdays",
        "state": "open",
        "body": "On every other day it does. " * 20,
        "locked": False,
        "comments": 3,
        "created_at": "2026-01-06T09:00:00Z",
        "closed_at": None,
        "user": _user(1),
        "assignees": [_user(2), _user(3)],
        "labels": [{**label, "id": number} for number in range(5)],
        "milestone": {"number": 1, "title": "1.0", "creator": _user(4), "open_issues": 7, "due_on": None},
        "reactions": {"+1": 4, "eyes": 1},
    }


class _Address(BaseModel):
    street: str
    city: str
    zip: str


class _Record(BaseModel):
    id: int
    name: str
    email: str
    age: int
    score: float
    active: bool
    status: Literal["new", "known"] = "new"
    tags: list[str]
    address: _Address


_RECORD = _object(
    id=_INTEGER,
    name=_STRING,
    email=_STRING,
    age={"type": "integer", "minimum": 0},
    score={"type": "number"},
    active=_BOOLEAN,
    status={"enum": ["new", "known"], "default": "new"},
    tags={"type": "array", "items": _STRING},
    address=_object(street=_STRING, city=_STRING, zip=_STRING),
)


def _record(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"Person {number}",
        "email": f"person{number}@mail.example",
        "age": number % 90,
        "score": number / 7,
        "active": number % 2 == 0,
        "status": "known",
        "tags": ["a", "b", "c"],
        "address": {"street": "Main Street 1", "city": "Springfield", "zip": "12345"},
    }


class _Tree(BaseModel):
    value: int
    children: "list[_Tree]"


_TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": _object(value=_INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/tree"}})},
}


def _tree(depth: int) -> dict[str, Any]:
    return {"value": depth, "children": [_tree(depth - 1) for _ in range(2)] if depth else []}


SMALL = Sample("a small object", _SMALL, {"id": 1, "name": "one", "active": True}, _Small)
ISSUE = Sample("a nested object like GitHub's issue", _ISSUE, _issue(), _Issue)
TREE = Sample("a recursive tree of 1,023 nodes", _TREE, _tree(9), _Tree)
THOUSAND = Sample(
    "1,000 objects",
    {"type": "array", "items": _RECORD},
    [_record(number) for number in range(1_000)],
    list[_Record],
)


def three_bad() -> tuple[list[Any], list[Any]]:
    """1,000 objects of which three do not conform, and what `fit` makes of them."""
    given, fitted = [list(THOUSAND.value) for _ in range(2)]
    given[250] = {**given[250], "undeclared": 1}
    given[500] = {name: item for name, item in given[500].items() if name != "status"}
    fitted[500] = {**given[500], "status": "new"}
    given[750] = fitted[750] = {**given[750], "age": "old"}  # cannot be repaired
    return given, fitted
