"""An independent reading of OpenAPI documents, by the specifications: nothing here is shared with opwire.

It reads what a request has to contain: parameters with their style, the body in its content type, and the places of
credentials. References to other documents are `Unreadable`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_SWAGGER_STYLES = {"csv": "csv", "ssv": "spaceDelimited", "tsv": "tabDelimited", "pipes": "pipeDelimited"}
_DESCRIBED_ELSEWHERE = frozenset({"accept", "content-type", "authorization"})
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})  # the HTTP client's own


class Unreadable(Exception):
    """Something that this reading does not understand; it says nothing about opwire."""


class Parameter(NamedTuple):
    """One parameter; `style` is "json" or "text" for one that is declared by `content`."""

    name: str
    location: str
    schema: Any
    style: str
    explode: bool
    required: bool
    reserved: bool = False  # reserved characters are not encoded: a delimiter cannot be told from a value


class Field(NamedTuple):
    """How one property of a form is written."""

    style: str | None = None
    explode: bool = True
    content_type: str = ""


class Body(NamedTuple):
    """The body, in the content type that is preferred."""

    content_type: str
    schema: Any
    required: bool
    fields: dict[str, Field]

    @property
    def kind(self) -> str:
        """Return json, form, multipart, xml, text or binary."""
        name = self.content_type.partition(";")[0].strip().lower()
        if is_json(name):
            return "json"
        if name == FORM:
            return "form"
        if name.startswith("multipart/"):
            return "multipart"
        if name in ("application/xml", "text/xml") or name.endswith("+xml"):
            return "xml"
        if name.startswith("text/") or name.endswith(("yaml", "javascript", "graphql")):
            return "text"
        return "range" if name in ("", "*/*", "application/*", "*") else "binary"


class Endpoint(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    item: dict[str, Any]
    operation: dict[str, Any]


def newest(folder: Path) -> list[Path]:
    """Return the newest version of each API, in the order of their names."""

    def order(version: str) -> list[tuple[int, str]]:
        return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", version)]

    best: dict[Path, Path] = {}
    for path in folder.rglob("*.yaml"):
        api = path.parent.parent
        if api not in best or order(path.parent.name) > order(best[api].parent.name):
            best[api] = path
    return sorted(best.values())


def is_json(name: str) -> bool:
    """Return whether a media type is one JSON value."""
    return name in ("application/json", "text/json", "application/x-json") or name.endswith("+json")


class Document:
    """One document."""

    def __init__(self, root: Any) -> None:
        self.root: dict[str, Any] = root if isinstance(root, dict) else {}
        self.is_swagger = "swagger" in self.root

    def resolve(self, node: Any) -> Any:
        """Return a node, or the target of its reference.

        Raises:
            Unreadable: the target is missing, or in another document.
        """
        for _ in range(50):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                return node
            ref: str = node["$ref"]
            if not ref.startswith("#"):
                raise Unreadable(f"a reference to another document: {ref[:80]}")
            target: Any = self.root
            for step in ref[1:].split("/")[1:]:
                key = unquote(step).replace("~1", "/").replace("~0", "~")
                try:
                    target = target[int(key)] if isinstance(target, list) else target[key]
                except (KeyError, IndexError, ValueError, TypeError):
                    raise Unreadable(f"a reference without a target: {ref[:80]}") from None
            node = target
        raise Unreadable("a cycle of references")

    def endpoints(self) -> Iterator[Endpoint]:
        """Iterate over the operations."""
        for path, given in _object(self.root.get("paths")).items():
            if path.startswith("x-"):
                continue
            try:
                item = _object(self.resolve(given))
            except Unreadable:
                continue
            for method, operation in item.items():
                if method.lower() in METHODS and isinstance(operation, dict):
                    yield Endpoint(method.upper(), path, item, operation)

    # --- parameters -------------------------------------------------------------------------------------------------

    def parameters(self, endpoint: Endpoint) -> list[Parameter]:
        """Return the parameters outside of the body.

        Raises:
            Unreadable: one of them is.
        """
        found = {
            (each.get("name"), each.get("in")): each
            for owner in (endpoint.item, endpoint.operation)
            for given in owner.get("parameters") or []
            if isinstance(each := self.resolve(given), dict)
        }
        ignored = _FRAMING | _DESCRIBED_ELSEWHERE - ({"authorization"} if self.is_swagger else set())
        return [
            self._parameter(each)
            for (name, location), each in found.items()
            if location in ("path", "query", "header", "cookie") and isinstance(name, str) and name
            if not (location == "header" and name.lower() in ignored)
        ]

    def _parameter(self, fields: dict[str, Any]) -> Parameter:
        name, location = fields["name"], fields["in"]
        required = location == "path" or fields.get("required") is True
        if self.is_swagger:
            style, explode = _swagger_style(fields)
            return Parameter(name, location, fields.get("schema", fields), style, explode, required)
        content = _object(fields.get("content"))
        if content:
            kind, media = next(iter(content.items()))
            schema = _object(self.resolve(media)).get("schema", {})
            return Parameter(name, location, schema, "json" if is_json(kind) else "text", False, required)
        default = "simple" if location in ("path", "header") else "form"
        style, explode = fields.get("style") or default, fields.get("explode")
        if not isinstance(explode, bool):
            explode = style in ("form", "deepObject")
        reserved = fields.get("allowReserved") is True
        return Parameter(name, location, fields.get("schema", {}), style, explode, required, reserved)

    # --- bodies -----------------------------------------------------------------------------------------------------

    def body(self, endpoint: Endpoint) -> Body | None:
        """Return the body: JSON if there is a choice, then a form, then text.

        Raises:
            Unreadable: it is.
        """
        if self.is_swagger:
            return self._swagger_body(endpoint)
        body = _object(self.resolve(endpoint.operation.get("requestBody")))
        content = _object(body.get("content"))
        if not content:
            return None
        offers = [Body(kind, {}, False, {}) for kind in content]
        patches = [each for each in offers if each.content_type.startswith(_MERGE_PATCH)]
        chosen = min(offers, key=_rank)
        if patches and chosen.content_type.startswith(_JSON_PATCH):
            chosen = patches[0]
        media = _object(self.resolve(content[chosen.content_type]))
        fields = {
            name: Field(
                each.get("style") or ("form" if {"explode", "allowReserved"} & each.keys() else None),
                each.get("explode", each.get("style", "form") in ("form", "deepObject")),
                each.get("contentType", ""),
            )
            for name, each in _object(media.get("encoding")).items()
            if isinstance(each, dict)
        }
        return Body(chosen.content_type, media.get("schema", {}), body.get("required") is True, fields)

    def _swagger_body(self, endpoint: Endpoint) -> Body | None:
        given = [
            _object(self.resolve(each))
            for owner in (endpoint.item, endpoint.operation)
            for each in owner.get("parameters") or []
        ]
        consumes = endpoint.operation.get("consumes", self.root.get("consumes")) or ["application/json"]
        for each in given:
            if each.get("in") == "body":
                offers = [Body(kind, {}, False, {}) for kind in consumes if isinstance(kind, str)]
                json = [offer for offer in offers if offer.kind == "json"]
                merge = [offer for offer in json if offer.content_type.startswith(_MERGE_PATCH)]
                chosen = min(json, key=_rank) if json else offers[0]
                if merge and chosen.content_type.startswith(_JSON_PATCH):
                    chosen = merge[0]
                return Body(chosen.content_type, each.get("schema", {}), each.get("required") is True, {})
        forms = {each["name"]: each for each in given if each.get("in") == "formData" and each.get("name")}
        if not forms:
            return None
        has_file = any(each.get("type") == "file" for each in forms.values())
        kind = MULTIPART if has_file or (MULTIPART in consumes and FORM not in consumes) else FORM
        styles = {name: Field(*_swagger_style(each)) for name, each in forms.items() if each.get("type") == "array"}
        required = [name for name, each in forms.items() if each.get("required") is True]
        schema = {
            "type": "object",
            "properties": {
                name: {key: part for key, part in each.items() if key not in ("required", "in", "name")}
                for name, each in forms.items()
            },
            "required": required,
        }
        return Body(kind, schema, bool(required), styles)

    # --- security ---------------------------------------------------------------------------------------------------

    def schemes(self) -> dict[str, dict[str, Any]]:
        """Return the declared security schemes."""
        owner = self.root if self.is_swagger else _object(self.root.get("components"))
        given = _object(owner.get("securityDefinitions" if self.is_swagger else "securitySchemes"))
        found: dict[str, dict[str, Any]] = {}
        for name, each in given.items():
            try:
                found[name] = _object(self.resolve(each))
            except Unreadable:
                continue
        return found

    def alternatives(self, endpoint: Endpoint) -> list[list[str]]:
        """Return the alternatives of an operation's security, by the names of schemes."""
        given = endpoint.operation.get("security", self.root.get("security"))
        return [list(each) for each in given or [] if isinstance(each, dict)] if isinstance(given, list) else []


def secret_place(scheme: dict[str, Any]) -> tuple[str, str] | None:
    """Return where the secret of a scheme is sent; None if that is not part of a request."""
    match scheme:
        case {"type": "apiKey", "in": "header" | "query" | "cookie" as location, "name": str(name)}:
            return location, name.lower() if location == "header" else name
        case {"type": "basic" | "oauth2" | "openIdConnect"} | {"type": "http"}:
            return "header", "authorization"
        case _:
            return None


def _rank(offer: Body) -> int:
    name = offer.content_type.partition(";")[0].strip().lower()
    if name == "application/json":
        return 0 if offer.content_type == name else 1
    return {"json": 2, "range": 3, "form": 4, "multipart": 5, "xml": 6, "text": 6, "binary": 7}[offer.kind]


def _swagger_style(fields: dict[str, Any]) -> tuple[str, bool]:
    collection = str(fields.get("collectionFormat", "csv"))
    return _SWAGGER_STYLES.get(collection, "csv"), collection == "multi"


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
