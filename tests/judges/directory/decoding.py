"""Decodes requests by the specifications, and compares them with what was meant. Nothing here is shared with opwire.

A delimiter counts only if it is not percent-encoded; every value is decoded once. What is left over is a mistake too.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_plus
from xml.etree import ElementTree

from tests.judges.directory.reading import Body, Document, Field, Parameter

_DELIMITERS = {"spaceDelimited": r"%20|\+", "pipeDelimited": r"\||%7C", "tabDelimited": r"%09"}
_VARIABLE = re.compile(r"\{([^{}]*)\}")


class Wrong(Exception):
    """A request that does not say what was meant."""


class Request(NamedTuple):
    """A request as it stood on the wire; nothing is decoded."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        """Return the values of a header."""
        return [value for each, value in self.headers if each.lower() == name.lower()]


def check_text(expected: Any, text: str, where: str) -> None:
    """Compare a value with its text; containers are JSON."""
    match expected:
        case bool():
            is_same = text == str(expected).lower()
        case int():
            is_same = text == str(expected)
        case float():
            is_same = _number(text) == expected
        case str():
            is_same = text == expected
        case _:
            is_same = _json(text, where) == expected
    if not is_same:
        raise Wrong(f"{where}: {text[:80]!r} instead of {str(expected)[:80]!r}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _json(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise Wrong(f"{where}: not JSON: {text[:80]!r}") from None


# --- styles ---------------------------------------------------------------------------------------------------------


def split_path(path: str) -> tuple[str, str]:
    """Return the path and the query of a template, without a fragment that only tells it from others."""
    start, mark, fragment = path.rpartition("#")
    path, _, query = (start if mark and "/" not in fragment else path).partition("?")
    return path, query


def check_path(template: str, request: Request, base: str, given: list[tuple[Parameter, Any]]) -> None:
    """Compare the path with the values of path parameters."""
    path, _ = split_path(template)
    values = {parameter.name: (parameter, value) for parameter, value in given if parameter.location == "path"}
    _check_template(path if path.startswith("/") else f"/{path}", request.path.removeprefix(base), values)


def without_template(template: str, fields: list[str], given: list[tuple[Parameter, Any]]) -> list[str]:
    """Return the fields of a query without those that the query of a template describes; they are checked here."""
    left = list(fields)
    values = {parameter.name: (parameter, value) for parameter, value in given if parameter.location == "path"}
    queried = {parameter.name for parameter, _ in given if parameter.location == "query"}
    _, query = split_path(template)
    for field in query.split("&") if query else []:
        name = field.partition("=")[0]
        if field == f"{name}={{{name}}}" and name not in values:  # an ordinary parameter
            if name not in queried and any(each.partition("=")[0] == name for each in left):
                raise Wrong(f"query: {name} was not given")
            continue
        for each in left:
            try:
                _check_template(field, each, values)
            except Wrong:
                continue
            left.remove(each)
            break
        else:
            raise Wrong(f"query: {field!r} of the template is missing")
    return left


def _check_template(template: str, raw: str, values: dict[str, tuple[Parameter, Any]]) -> None:
    pieces = _VARIABLE.split(template)
    is_ambiguous = "" in pieces[2:-1:2]  # variables without anything between them
    pattern = ""
    for index, piece in enumerate(pieces):
        if index % 2 and piece not in values:
            raise Wrong(f"path: {{{piece}}} has no value")
        text = str(values[piece][1]) if index % 2 else piece
        pattern += f"({_literal(text)})" if index % 2 and is_ambiguous else "([^/]*)" if index % 2 else _literal(text)
    found = re.fullmatch(pattern, raw)
    if found is None:
        raise Wrong(f"path: {raw[:80]!r} does not match {template[:80]!r}")
    for name, text in zip(pieces[1::2], found.groups(), strict=True):
        _check_path_value(*values[name], text)


def _literal(text: str) -> str:
    """Return a pattern for a literal, each character as itself or percent-encoded."""

    def alternatives(char: str) -> str:
        encoded = "".join(f"%{byte:02X}" for byte in char.encode())
        return f"(?:{re.escape(char)}|(?i:{encoded}))"

    return "".join(char if char in "/abcdefghijklmnopqrstuvwxyz" else alternatives(char) for char in text)


def _check_path_value(parameter: Parameter, value: Any, text: str) -> None:
    where = f"path {parameter.name}"
    if parameter.style == "json":
        return _same(value, unquote(text), where)
    if parameter.style == "matrix":
        pairs = [each.partition("=")[::2] for each in text.split(";")[1:]]
        decoded = [(unquote(key), each) for key, each in pairs]
        if _check_pairs(parameter._replace(style="form"), value, decoded, where):
            raise Wrong(f"{where}: more than its own")
        return None
    if parameter.style == "label":
        if not text.startswith("."):
            raise Wrong(f"{where}: a label starts with a dot")
        text = text[1:]
    separator = "." if parameter.style == "label" and parameter.explode else ","
    delimiter = _DELIMITERS.get(parameter.style, re.escape(separator))
    _check_delimited(value, re.split(delimiter, text), parameter.explode, unquote, where)
    return None


def _same(value: Any, text: str, where: str) -> None:
    if _json(text, where) != value:
        raise Wrong(f"{where}: {text[:80]!r} instead of {str(value)[:80]!r}")


def _check_delimited(value: Any, items: list[str], explode: bool, decode: Callable[[str], str], where: str) -> None:
    if isinstance(value, list):
        if len(items) != len(value):
            raise Wrong(f"{where}: {len(items)} items instead of {len(value)}")
        for each, text in zip(value, items, strict=True):
            check_text(each, decode(text), where)
    elif isinstance(value, dict):
        pairs = (
            [each.partition("=")[::2] for each in items]
            if explode
            else list(zip(items[::2], items[1::2], strict=False))
        )
        if [decode(key) for key, _ in pairs] != list(value):
            raise Wrong(f"{where}: the keys {[key for key, _ in pairs]} instead of {list(value)}")
        for (_, text), each in zip(pairs, value.values(), strict=True):
            check_text(each, decode(text), where)
    elif len(items) != 1:
        raise Wrong(f"{where}: a value is split into {len(items)}")
    else:
        check_text(value, decode(items[0]), where)


Pairs = list[tuple[str, str]]
"""Decoded names, and values that are still encoded."""


def _check_pairs(parameter: Parameter, value: Any, pairs: Pairs, where: str) -> Pairs:
    """Compare one parameter with the fields of a query, a form or cookies; return the others."""
    name, style, explode = parameter.name, parameter.style, parameter.explode
    if style in ("json", "text"):
        text, rest = _only(name, pairs, where)
        _same(value, unquote_plus(text), where) if style == "json" else check_text(value, unquote_plus(text), where)
        return rest
    if style == "deepObject" and isinstance(value, dict | list):
        own = [(key, text) for key, text in pairs if key.startswith(f"{name}[")]
        _check_deep(name, value, own, where)
        return [each for each in pairs if each not in own]
    if explode and isinstance(value, list):
        own = [text for key, text in pairs if key == name]
        _check_delimited(value, own, False, unquote_plus, where)
        return [(key, text) for key, text in pairs if key != name]
    if explode and isinstance(value, dict):
        for key, each in value.items():
            text, pairs = _only(key, pairs, where)
            check_text(each, unquote_plus(text), f"{where}, {key}")
        return pairs
    if isinstance(value, list | dict) and not value:
        return pairs
    text, rest = _only(name, pairs, where)
    is_container = isinstance(value, dict | list)
    _check_delimited(
        value, re.split(_DELIMITERS.get(style, ","), text) if is_container else [text], False, unquote_plus, where
    )
    return rest


def _only(name: str, pairs: Pairs, where: str) -> tuple[str, Pairs]:
    found = [text for key, text in pairs if key == name]
    if len(found) != 1:
        raise Wrong(f"{where}: {len(found)} times")
    return found[0], [each for each in pairs if each[0] != name]


def _check_deep(name: str, value: Any, pairs: Pairs, where: str) -> None:
    expected: dict[str, Any] = {}

    def walk(key: str, each: Any) -> None:
        members = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else None
        if members is None:
            expected[key] = each
        for step, member in members or ():
            walk(f"{key}[{step}]", member)

    walk(name, value)
    if sorted(key for key, _ in pairs) != sorted(expected):
        raise Wrong(f"{where}: {[key for key, _ in pairs][:5]} instead of {list(expected)[:5]}")
    for key, text in pairs:
        check_text(expected[key], unquote_plus(text), f"{where}, {key}")


def query_pairs(fields: list[str]) -> Pairs:
    """Split the fields of a query or form."""
    return [(unquote_plus(key), value) for key, _, value in (each.partition("=") for each in fields if each)]


def check_query(pairs: Pairs, given: list[tuple[Parameter, Any]]) -> None:
    """Compare a query with the values of its parameters; nothing else may be in it."""
    for parameter, value in given:
        pairs = _check_pairs(parameter, value, pairs, f"query {parameter.name}")
    if pairs:
        raise Wrong(f"query: unexpected {pairs[0][0][:80]!r}")


def check_headers(request: Request, given: list[tuple[Parameter, Any]]) -> None:
    """Compare headers with the values of their parameters."""
    for parameter, value in given:
        where = f"header {parameter.name}"
        sent = request.header(parameter.name)
        if len(sent) != 1:
            raise Wrong(f"{where}: {len(sent)} times")
        if parameter.style == "json":
            _same(value, sent[0], where)
        else:
            items = sent[0].split(",") if isinstance(value, list | dict) else [sent[0]]
            _check_delimited(value, items, parameter.explode, str, where)


def check_cookies(request: Request, given: list[tuple[Parameter, Any]], secrets: set[str]) -> None:
    """Compare cookies with the values of their parameters."""
    lines = request.header("cookie")
    if len(lines) > 1:
        raise Wrong("cookie: several Cookie headers")
    fields = [each.partition("=") for each in "".join(lines).split(";") if each]
    pairs = [(key.strip(), text) for key, _, text in fields]
    pairs = [(unquote(key), text) for key, text in pairs if key not in secrets]
    for parameter, value in given:
        pairs = _check_pairs(parameter, value, pairs, f"cookie {parameter.name}")
    if pairs:
        raise Wrong(f"cookie: unexpected {pairs[0][0][:80]!r}")


# --- bodies ---------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One part of a multipart body."""

    name: str
    filename: str | None
    data: bytes


def check_body(body: Body, value: Any, request: Request, document: Document, files: set[str]) -> None:
    """Compare a body with its value; `files` are the properties that are files, in base64, or "" for the whole."""
    sent = request.header("content-type")
    if len(sent) != 1:
        raise Wrong(f"body: {len(sent)} Content-Type headers")
    kind = _sent_kind(body, value, sent[0], files)
    match kind:
        case "json":
            if _json(request.body, "body") != value:
                raise Wrong(f"body: {request.body[:120]!r} instead of {str(value)[:120]!r}")
        case "form":
            _check_form(body, value, request.body)
        case "multipart":
            _check_multipart(body, value, sent[0], request.body, files)
        case "xml" if isinstance(value, dict | list):
            check_xml(body.schema, value, request.body, document)
        case "binary":
            if b64decode(value) != request.body:
                raise Wrong("body: other bytes")
        case _:
            check_text(value, request.body.decode(), "body")


def _sent_kind(body: Body, value: Any, content_type: str, files: set[str]) -> str:
    """Return how a body is encoded, after a comparison of its content type."""
    given = content_type.partition(";")[0].strip().lower()
    kind, expected = body.kind, body.content_type.partition(";")[0].strip().lower()
    if kind == "range":
        is_text = type(value) is str and given == "text/plain"
        kind = "binary" if "" in files else "text" if is_text else "json"
        expected = {"binary": "application/octet-stream", "text": "text/plain", "json": "application/json"}[kind]
    if given != expected:
        raise Wrong(f"body: sent as {given} instead of {expected}")
    return kind


def _check_form(body: Body, value: dict[str, Any], data: bytes) -> None:
    pairs = query_pairs(data.decode("ascii").split("&"))
    for name, each in value.items():
        pairs = _check_field(name, each, body.fields.get(name), pairs)
    if pairs:
        raise Wrong(f"body: unexpected field {pairs[0][0][:80]!r}")


def _check_field(name: str, value: Any, field: Field | None, pairs: Pairs) -> Pairs:
    where = f"field {name}"
    style = field.style if field else None
    if style is not None and field is not None:
        return _check_pairs(Parameter(name, "query", {}, style, field.explode, False), value, pairs, where)
    own = [text for key, text in pairs if key == name]
    _check_delimited(value if isinstance(value, list) else [value], own, False, unquote_plus, where)
    return [(key, text) for key, text in pairs if key != name]


def _check_multipart(body: Body, value: dict[str, Any], content_type: str, data: bytes, files: set[str]) -> None:
    parts = list(multipart(content_type, data))
    for name, each in value.items():
        own = [part for part in parts if part.name == name]
        parts = [part for part in parts if part.name != name]
        where = f"part {name}"
        field = body.fields.get(name)
        values = each if isinstance(each, list) else [each]
        if name in files:
            if [part.data for part in own] != [b64decode(item) for item in values]:
                raise Wrong(f"{where}: other bytes")
            if any(part.filename is None for part in own):
                raise Wrong(f"{where}: a file without a file name")
        elif field is not None and field.style is not None and isinstance(each, list) and not field.explode:
            split = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}.get(field.style, ",")
            items = [text for part in own for text in part.data.decode().split(split)]
            _check_delimited(each, items, False, str, where)
        elif field is not None and field.style == "deepObject" and isinstance(each, dict):
            own = [part for part in parts if part.name.startswith(f"{name}[")]
            parts = [part for part in parts if part not in own]
            _check_deep(name, each, [(part.name, quote(part.data)) for part in own], where)
        else:
            _check_delimited(values, [part.data.decode() for part in own], False, str, where)
    if parts:
        raise Wrong(f"body: unexpected part {parts[0].name[:80]!r}")


def multipart(content_type: str, data: bytes):
    """Iterate over the parts of a multipart body (RFC 7578)."""
    found = re.search(r'boundary="?([^";]+)', content_type)
    if found is None:
        raise Wrong("body: no boundary")
    first, *pieces, last = (b"\r\n" + data).split(b"\r\n--" + found[1].encode())
    if first or last.strip() != b"--":
        raise Wrong("body: broken boundaries")
    for piece in pieces:
        head, _, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        names: dict[str, str] = {}
        for line in head.decode().split("\r\n"):
            if line.lower().startswith("content-disposition:"):
                names = dict(re.findall(r'(\w+)="([^"]*)"', line))
        unescape = re.compile(r"%(0[0-9A-F]|1[0-9A-F]|22|5C|7F)").sub
        decoded = {key: unescape(lambda each: chr(int(each[1], 16)), text) for key, text in names.items()}
        yield Part(decoded.get("name", ""), decoded.get("filename"), content)


# --- XML ------------------------------------------------------------------------------------------------------------


def check_xml(schema: Any, value: Any, data: bytes, document: Document) -> None:
    """Compare an XML body with its value, by the hints of the schema."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise Wrong(f"body: invalid XML: {error}") from None
    _check_element(document, schema, value, root, "body")


def _parts(document: Document, schema: Any) -> list[dict[str, Any]]:
    node = document.resolve(schema)
    if not isinstance(node, dict):
        return []
    below = [each for key in ("allOf", "oneOf", "anyOf") for each in node.get(key) or []]
    return [node, *(part for each in below for part in _parts(document, each))]


def _hint(document: Document, schema: Any) -> dict[str, Any]:
    hints = [each["xml"] for each in _parts(document, schema)[:1] if isinstance(each.get("xml"), dict)]
    return hints[0] if hints else {}


def _tag(hint: dict[str, Any], name: str) -> str:
    space, local = hint.get("namespace"), hint.get("name") or name
    # Without a namespace of its own, an element may be in the default namespace of its parent.
    return f"{{{space}}}{local}" if space else f"{{*}}{local}"


def _check_element(document: Document, schema: Any, value: Any, element: ElementTree.Element, where: str) -> None:
    if isinstance(value, dict):
        properties = {
            name: each for part in _parts(document, schema) for name, each in (part.get("properties") or {}).items()
        }
        expected = 0
        for name, each in value.items():
            below = properties.get(name, {})
            hint = _hint(document, below)
            if hint.get("attribute"):
                check_text(each, element.attrib.get(_tag(hint, name).removeprefix("{*}"), "\0"), f"{where}, {name}")
                continue
            expected += _check_member(document, below, each, name, element, f"{where}, {name}")
        if len(element) != expected:
            raise Wrong(f"{where}: {len(element)} elements instead of {expected}")
    elif isinstance(value, list):
        raise Wrong(f"{where}: an array as one element")
    else:
        check_text(value, element.text or "", where)


def _check_member(
    document: Document, schema: Any, value: Any, name: str, parent: ElementTree.Element, where: str
) -> int:
    hint = _hint(document, schema)
    if not isinstance(value, list):
        found = parent.findall(_tag(hint, name))
        if len(found) != 1:
            raise Wrong(f"{where}: {len(found)} elements")
        _check_element(document, schema, value, found[0], where)
        return 1
    items = next((each["items"] for each in _parts(document, schema) if "items" in each), {})
    own = _hint(document, items)
    expected = len(value)
    if hint.get("wrapped"):
        wrapper = parent.findall(_tag(hint, name))
        if len(wrapper) != 1:
            raise Wrong(f"{where}: {len(wrapper)} wrappers")
        parent, expected = wrapper[0], 1
        found = parent.findall(_tag(own, own.get("name") or hint.get("name") or name))
    else:
        found = parent.findall(_tag(own, own.get("name") or name))
    if len(found) != len(value):
        raise Wrong(f"{where}: {len(found)} items instead of {len(value)}")
    for each, element in zip(value, found, strict=True):
        _check_element(document, items, each, element, where)
    return expected
