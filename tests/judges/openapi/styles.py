"""A document of our own with every parameter style and every kind of body, an operation for each.

Each operation takes one value that is written in one way. The document says its type alone; or that it must be this
very value, so that a reader that parses it differently has to reject it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

NAME = "colour"

VALUES: dict[str, Any] = {
    "text": "blue & white",
    "number": 2.5,
    "array": ["blue", "100% white"],
    "object": {"r": 100, "g": "100% white"},
    "nested": {"in": {"r": 100}, "list": ["blue", "a+b"]},
    "file": b"blue",
}
OTHERS: dict[str, Any] = {
    "text": "red",
    "number": 3,
    "array": ["red"],
    "object": {"r": 1, "g": "2"},
    "nested": {"in": {"r": 1}, "list": ["red"]},
    "file": b"red",
}

_ALL = ("text", "number", "array", "object")
STYLES: dict[str, dict[str, tuple[str, ...]]] = {  # what the specification has, and for which kinds of value
    "path": {"simple": _ALL, "label": _ALL, "matrix": _ALL},
    "query": {
        "form": _ALL,
        "spaceDelimited": ("array",),
        "pipeDelimited": ("array",),
        "deepObject": ("object", "nested"),
    },
    "header": {"simple": _ALL},
    "cookie": {"form": _ALL},
}
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
BODIES: dict[str, tuple[str, ...]] = {
    "application/json": (*_ALL, "nested"),
    "application/vnd.colour+json": ("object",),
    "text/plain": ("text",),
    "application/xml": ("text",),
    "application/octet-stream": ("file",),
    FORM: _ALL,
    MULTIPART: (*_ALL, "file"),
}
_ANSWERS = {"200": {"description": "", "content": {"application/json": {"example": "taken"}}}}


class Case(NamedTuple):
    """One way to write a value."""

    name: str
    kind: str
    path: str
    operation: dict[str, Any]

    def input(self, value: Any) -> Any:
        """The input of the operation that holds a value."""
        if "parameters" in self.operation or self.name.startswith((FORM, MULTIPART)):
            return {NAME: value}
        return value if isinstance(value, dict) else {"body": value}


def document(*, exact: bool) -> dict[str, Any]:
    """The document of all cases. `exact`: it takes `VALUES` alone."""
    paths = {
        case.path: {
            "get" if "parameters" in case.operation else "post": {
                "operationId": case.name,
                "responses": _ANSWERS,
                **case.operation,
            }
        }
        for case in cases(exact=exact)
    }
    return {"openapi": "3.1.0", "info": {"title": "Styles", "version": "1"}, "paths": paths}


def cases(*, exact: bool = True) -> Iterator[Case]:
    """Every way to write a value that the specification has."""
    for location, styles in STYLES.items():
        for style, kinds in styles.items():
            for kind in kinds:
                for explode in (True,) if style == "deepObject" else (False, True):
                    yield _parameter(location, {"style": style, "explode": explode}, kind, exact)
        yield _parameter(location, {"content": "application/json"}, "object", exact)
    yield _parameter("query", {"style": "form", "explode": True, "allowReserved": True}, "text", exact)
    for content_type, kinds in BODIES.items():
        for kind in kinds:
            yield _body(content_type, {}, kind, exact)
    for style, kinds in STYLES["query"].items():
        for explode in (True,) if style == "deepObject" else (False, True):
            yield _body(FORM, {"style": style, "explode": explode}, kinds[-1], exact)


def _parameter(location: str, written: dict[str, Any], kind: str, exact: bool) -> Case:
    name = _name(location, written, kind)
    schema = _schema(VALUES[kind], exact)
    content = {"content": {written["content"]: {"schema": schema}}} if "content" in written else {"schema": schema}
    parameter = {"name": NAME, "in": location, "required": True, **written, **content}
    path = f"{_path(name)}/{{{NAME}}}" if location == "path" else _path(name)
    return Case(name, kind, path, {"parameters": [parameter]})


def _body(content_type: str, encoding: dict[str, Any], kind: str, exact: bool) -> Case:
    name = _name(content_type, encoding, kind)
    media: dict[str, Any] = {"schema": _schema(VALUES[kind], exact)}
    if content_type in (FORM, MULTIPART):
        media = {"schema": {"type": "object", "properties": {NAME: media["schema"]}, "required": [NAME]}}
    if encoding:
        media["encoding"] = {NAME: encoding}
    body = {"required": True, "content": {content_type: media}}
    return Case(name, kind, _path(name), {"requestBody": body})


def _name(place: str, written: dict[str, Any], kind: str) -> str:
    """`path label exploded array`, for example."""
    words = {"explode": "exploded", "allowReserved": "reserved"}
    how = [words.get(key, str(each)) for key, each in written.items() if each]
    return " ".join([place, *how, kind])


def _path(name: str) -> str:
    return f"/{name.replace('/', '-').replace(' ', '-')}"


def _schema(value: Any, exact: bool) -> dict[str, Any]:
    """The schema of a value. Members of an object are compared one by one: Prism reads them all as text first."""
    match value:
        case dict():
            properties = {name: _schema(each, exact) for name, each in value.items()}
            return {"type": "object", "properties": properties, "required": list(value)}
        case list():
            schema: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
        case int():
            schema = {"type": "integer"}
        case float():
            schema = {"type": "number"}
        case bytes():
            return {"type": "string", "const": value.decode()} if exact else {"type": "string", "format": "binary"}
        case _:
            schema = {"type": "string"}
    return {**schema, "const": value} if exact else schema
