"""Documents as plain data: JSON or YAML text to dictionaries, and which version of OpenAPI they speak. No I/O.

YAML as JSON would have it: dates, times, `yes`, `0777` and keys that are numbers stay the text that was written.

Built from libyaml's events, which is quicker than PyYAML's own construction and lets every rule stand here:

- A plain scalar is null, a boolean, a number or else a string; a key is always a string.
- An alias stands for a whole copy of its anchor. What a document would be when written out is counted, so that a few
  lines cannot stand for billions of values.
- Of two equal keys the last one counts, as in JSON, with a warning.

Parts of a foreign document or answer, as what they ought to be: a wrong kind of value counts as none.

Where a `$ref` of a document leads: inside it, or into another one that was loaded with it. No I/O.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from math import inf, isfinite
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote, urljoin

import msgspec
import yaml

from opwire.adapters.report import Report
from opwire.errors import CallError, ErrorCode, NotPlainError, SchemaError
from opwire.typed.plain import json_form, read_json, to_plain, write_json

MAX_VALUES = 5_000_000
"""How many values a document may stand for: GitHub's, which is the largest that we know, has 0.6 million."""

# What is written out has at most half a value for each byte. Aliases may make it eight times as many, so that 1 kB
# cannot become the 615 MB that 5 million values of a schema take when they are used.
_FREE_VALUES, _VALUES_PER_BYTE = 20_000, 4

MAX_DEPTH = 400

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_DIGITS = 4_000  # Python refuses to read longer integers

_TYPED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null"))

_parser: Any = getattr(yaml, "CLoader", yaml.Loader)  # only for its events: it constructs nothing here


def read_yaml(text: str | bytes, warn: Callable[[str], None]) -> Any:
    """The plain data of a YAML document.

    Raises:
        ValueError: it is not YAML, or stands for too many values, or is nested too deeply.
    """
    try:
        most = min(_FREE_VALUES + _VALUES_PER_BYTE * len(text), MAX_VALUES)
        return _Builder(warn, most).build(cast("Any", yaml).parse(text, Loader=_parser))
    except yaml.YAMLError as error:
        raise ValueError(_telling(error)) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error}") from None


class _Open:
    """A mapping or sequence that is being read."""

    __slots__ = ("anchor", "key", "merged", "size", "value")

    def __init__(self, value: Any, anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: str | None = None  # of a mapping: the one whose value comes next
        self.merged: list[Any] = []  # what `<<` brings: it stands back behind the mapping's own keys
        self.size = 1


class _Builder:
    def __init__(self, warn: Callable[[str], None], most: int) -> None:
        self._warn = warn
        self._most = most
        self._stack: list[_Open] = [_Open([], None)]  # the outermost collects the documents
        self._anchors: dict[str, tuple[Any, int]] = {}

    def build(self, events: Iterator[Any]) -> Any:
        for event in events:
            match event:
                case yaml.ScalarEvent():
                    self._add(event, *self._scalar(event))
                case yaml.MappingStartEvent():
                    self._enter({}, event)
                case yaml.SequenceStartEvent():
                    self._enter([], event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._leave(event)
                case yaml.AliasEvent():
                    self._add(event, *self._alias(event))
                case _:  # where a stream or a document starts and ends
                    pass
        documents = self._stack[0].value
        if len(documents) > 1:
            self._warn("the file holds several YAML documents: the first one counts")
        return documents[0] if documents else None

    def _enter(self, value: Any, event: Any) -> None:
        if len(self._stack) > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}, {_place(event.start_mark)}")
        if isinstance(self._stack[-1].value, dict) and self._stack[-1].key is None:
            raise ValueError(f"a key has to be a scalar, {_place(event.start_mark)}")
        self._stack.append(_Open(value, event.anchor))

    def _leave(self, event: Any) -> None:
        done = self._stack.pop()
        for source in done.merged:
            for name, each in cast("dict[str, Any]", source).items() if isinstance(source, dict) else ():
                done.value.setdefault(name, each)
        if done.anchor is not None:  # only now: an anchor that holds an alias of itself has no JSON form
            self._anchors[done.anchor] = (done.value, done.size)
        self._add(event, done.value, done.size)

    def _alias(self, event: Any) -> tuple[Any, int]:
        try:
            return self._anchors[event.anchor]
        except KeyError:
            where = _place(event.start_mark)
            raise ValueError(f"the alias *{event.anchor} has no anchor that is complete, {where}") from None

    def _scalar(self, event: Any) -> tuple[Any, int]:
        parent = self._stack[-1]
        is_key = isinstance(parent.value, dict) and parent.key is None
        is_plain = (event.implicit[0] or event.tag in _TYPED) and not is_key
        value = _plain_value(event.value) if is_plain else event.value
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1)
        return value, 1

    def _add(self, event: Any, value: Any, size: int) -> None:
        parent = self._stack[-1]
        parent.size += size
        if parent.size > self._most:
            raise ValueError(f"it stands for more than {self._most:,} values, {_place(event.start_mark)}")
        into = parent.value
        if isinstance(into, list):
            cast("list[Any]", into).append(value)
        elif parent.key is None:
            if isinstance(value, dict | list):
                raise ValueError(f"a key has to be a scalar, {_place(event.start_mark)}")
            parent.key = str(value)
        else:
            self._put(parent, parent.key, value, event)
            parent.key = None

    def _put(self, parent: _Open, key: str, value: Any, event: Any) -> None:
        mapping = cast("dict[str, Any]", parent.value)
        if key == "<<" and isinstance(value, dict | list):
            parent.merged.extend(cast("list[Any]", value) if isinstance(value, list) else [value])
            return
        if key in mapping:
            self._warn(f"the key {key[:80]!r} stands twice in one mapping, {_place(event.start_mark)}: the last counts")
        mapping[key] = value


def _plain_value(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _INTEGER.fullmatch(text) and len(text) < _MAX_DIGITS:
        return int(text)
    number = float(text) if _FLOAT.fullmatch(text) else inf
    return number if isfinite(number) else text


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _telling(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem or 'it cannot be read'}, {_place(error.problem_mark)}"
    return str(error).replace("\n", " ")


Version = Literal["2.0", "3.0", "3.1", "3.2"]

_JSON = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder(enc_hook=json_form)
_DATA = frozenset({"const", "default", "enum", "example", "examples"})  # what looks like a schema in there is none
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_REFERENCE = re.compile(rb"""\$ref["']?\s*:\s*(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'{},\[\]][^\s,}]*))""")


class Document:
    """A document, and the address against which its references are read: "" where it has none."""

    def __init__(self, root: Any, uri: str = "") -> None:
        self.root = root
        self.uri = uri


def read_text(text: bytes | str, name: str, report: Report) -> Any:
    """The plain data of a JSON or YAML text; `name` is for the error.

    Raises:
        CallError: VALIDATION_ERROR, with the place where it cannot be read.
    """
    data = _utf8(text, name)
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            return read_json(_JSON, data)
    except (ValueError, RecursionError) as error:
        if not name.endswith((".yaml", ".yml")):  # there, a brace may start a mapping of YAML
            raise _invalid(name, "JSON", _reason(error)) from None
    try:
        return read_yaml(data, lambda warning: report.warn(f"{name}: {warning}"))
    except ValueError as error:
        raise _invalid(name, "YAML", str(error)) from None


def text_of(document: Mapping[Any, Any]) -> bytes:
    """A document that is given as a mapping, as JSON: PyYAML may have put dates into it, and keys that are numbers.

    Raises:
        CallError: VALIDATION_ERROR, it holds what has no JSON form.
    """
    try:
        try:
            return write_json(_ENCODER, document)
        except TypeError:  # a key that is a date or null, for example
            return write_json(_ENCODER, _plain(document))
    except RecursionError:
        raise _invalid("the document", "plain data", "it is nested too deeply, or holds itself") from None
    except NotPlainError as error:
        raise _invalid("the document", "plain data", str(error)) from error


def version_of(root: Any, name: str) -> Version:
    """Which OpenAPI a document speaks.

    Raises:
        CallError: VALIDATION_ERROR, it is none that opwire reads.
    """
    if not isinstance(root, dict):
        raise _unusable(name, f"it is {_kind(root)}, not an object")
    document = cast("dict[str, Any]", root)
    said = document.get("openapi", document.get("swagger"))
    match str(said).split(".") if isinstance(said, str | int | float) else []:
        case ["2", *_] if "swagger" in document:
            version: Version = "2.0"
        case ["3", "0" | "1" | "2" as minor, *_]:
            version = cast("Version", f"3.{minor}")
        case ["3"]:
            version = "3.0"
        case _:
            given = f"{str(said)[:40]!r}" if said is not None else "no `openapi` or `swagger` field"
            raise _unusable(name, f"opwire reads Swagger 2.0 and OpenAPI 3.0, 3.1 and 3.2; this one has {given}")
    paths = document.get("paths")
    if paths is not None and not isinstance(paths, dict):
        raise _unusable(name, f"`paths` is {_kind(paths)}, not an object")
    if "paths" not in document and version in ("2.0", "3.0"):
        raise _unusable(name, "it has no `paths`")
    return version


def references_in(text: bytes | str, root: Any) -> set[str]:
    """Every reference of a document; some that only look like one too.

    In JSON they are found in the text, which is far quicker than a walk. In YAML, only what was read tells where one
    ends.
    """
    if text.lstrip()[:1] not in ("{", b"{"):
        return {ref for each in objects_in(root, data=True) if isinstance(ref := each.get("$ref"), str)}
    found = _REFERENCE.findall(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    return {
        _unescaped(double) if double else (single or bare).decode("utf-8", "replace") for double, single, bare in found
    }


def objects_in(root: Any, *, data: bool = False) -> Iterator[dict[str, Any]]:
    """Every object of a document that may be a schema, in no order.

    What stands in examples is none, but `default` may also be a response: with `data`, all of this counts too.
    """
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            mapping = cast("dict[str, Any]", node)
            yield mapping
            waiting.extend(value for key, value in mapping.items() if data or key not in _DATA)
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))


def _unescaped(text: bytes) -> str:
    """What stands between double quotes; its escapes are those of JSON."""
    try:
        return msgspec.json.decode(b'"%b"' % text, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return text.decode("utf-8", "replace")


def _utf8(text: bytes | str, name: str) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    encoding = next((each for bom, each in _BOMS.items() if text.startswith(bom)), None)
    try:
        return text.decode(encoding).encode() if encoding else text
    except UnicodeDecodeError as error:
        raise _invalid(name, str(encoding), f"byte {error.start} cannot be read") from None


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {_key(key): _plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple():
            return [_plain(each) for each in cast("list[Any]", value)]
        case _:
            return to_plain(value)


def _key(key: Any) -> str:
    return (
        key
        if isinstance(key, str)
        else "null"
        if key is None
        else str(key).lower()
        if isinstance(key, bool)
        else str(key)
    )


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return "empty" if value is None else kinds.get(cast("Any", type(value)), "a number")


def _invalid(name: str, expected: str, reason: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not readable as {expected}: {reason}")


def _unusable(name: str, reason: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not a usable OpenAPI document: {reason}")


_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_MAX_NUMBER_TEXT = 100  # characters of a number; more of them mean nothing


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def text(value: Any) -> str:
    """The value if it is a string, else an empty one. YAML takes names such as `1.0` and `true` for something else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else ""


def texts(value: Any) -> list[str]:
    """The strings of an array."""
    return [text(each) for each in sequence(value) if isinstance(each, str | int | float)]


def bounded(value: Any, most: float) -> float | None:
    """Return a number that a stranger says, between 0 and `most`; None if it is none.

    Waits, lives and sizes from documents and answers are read here and nowhere else: 10^400 fits into no float, NaN is
    not less than anything, and a retry in 30,000 years is a leak.
    """
    if isinstance(value, str):
        digits = value.strip()
        value = float(digits) if len(digits) <= _MAX_NUMBER_TEXT and _DECIMAL.fullmatch(digits) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:  # noqa: PLR0124 - NaN
        return None
    return float(min(max(value, 0), most))


_Step = tuple[Document, str]  # a reference, and the document that it stands in
_MAX_DEPTH = 16  # of references that lead through other references
_MAX_INDEX = 9  # digits of a place in an array


def joined(base: str, given: str) -> str:
    """An address read against another; as it is given where it is none, such as `http://[`."""
    try:
        return urljoin(base, given)
    except ValueError:
        return given


class Place(NamedTuple):
    """A value, and the document against which the references in it are read."""

    value: Any
    document: Document


class Documents:
    """A document and those that it refers to. `missing` says of an address why there is no document."""

    def __init__(self, root: dict[str, Any], uri: str, version: Version) -> None:
        self.version: Version = version
        self.main = Document(root, uri)
        self.loaded: dict[str, Document] = {uri: self.main}
        self.missing: dict[str, str] = {}
        said = root.get("$self")
        if version == "3.2" and isinstance(said, str):  # what it calls itself is also what it is read against
            self.main.uri = joined(uri, said).partition("#")[0]
            self.loaded[self.main.uri] = self.main
        self._resolved: dict[_Step, Place] = {}
        self._ends: dict[_Step, Place] = {}  # where a chain of references ends
        # Parameters by the identity of the lists that they come from, or what is wrong with them.
        self.parameters: dict[tuple[int, ...], list[Place] | str] = {}
        self._depth = 0
        self._dynamic: dict[int, dict[str, list[Any]]] = {}  # the schemas of each dynamic anchor, by document
        self._names: dict[int, dict[str, Any]] = {}  # the `$id`s and anchors of each document, once one was asked for

    def resolve(self, ref: str, document: Document) -> Place:
        """What a reference points at.

        Raises:
            SchemaError: it points at nothing, or into a document that was not loaded.
        """
        step = (document, ref)
        return self._resolve(step, {step})

    def follow(self, value: Any, document: Document) -> Place:
        """The value itself, or what it refers to, through however many references.

        Raises:
            SchemaError: as `resolve`, or they lead in a circle.
        """
        return self._follow(Place(value, document), frozenset())

    def follow_object(self, value: Any, document: Document, what: str) -> Place:
        """As `follow`, for what has to be an object.

        Raises:
            SchemaError: as `follow`, or it is none.
        """
        found, home = self.follow(value, document)
        if not isinstance(found, dict):
            raise SchemaError(f"{what} is not an object")
        return Place(cast("Any", found), home)

    def knows(self, address: str) -> bool:
        """Whether an address is that of a document which is loaded, or of a schema in the main one."""
        return address in self.loaded or address in self._named(self.main)

    def single_dynamic_anchor(self, name: str, document: Document) -> Any:
        """The one schema of a document that has this `$dynamicAnchor`; None where there is none, or several."""
        known = self._dynamic.get(id(document.root))
        if known is None:
            known = self._dynamic[id(document.root)] = {}
            for each in objects_in(document.root):
                if isinstance(anchor := each.get("$dynamicAnchor"), str):
                    known.setdefault(anchor, []).append(each)
        found = known.get(name, [])
        return found[0] if len(found) == 1 else None

    def _follow(self, place: Place, through: Set[_Step]) -> Place:
        if not isinstance(mapping(place.value).get("$ref"), str):
            return place
        steps = dict.fromkeys(through)
        while isinstance(ref := mapping(place.value).get("$ref"), str):
            step = (place.document, ref)
            if (end := self._ends.get(step)) is not None:
                return end
            if step in steps:
                raise SchemaError(f"the reference {ref!r:.200} leads in a circle")
            steps[step] = None
            place = self._resolve(step, steps.keys())
        self._ends |= dict.fromkeys(steps.keys() - through, place)
        return place

    def _resolve(self, step: _Step, through: Set[_Step]) -> Place:
        known = self._resolved.get(step)  # most references of a large document are to the same few
        if known is None:
            known = self._resolved[step] = self._find_anywhere(*step, through)
        return known

    def _find_anywhere(self, document: Document, ref: str, through: Set[_Step]) -> Place:
        """Parts of a document in files of their own often refer to the whole as if they still stood in it."""
        try:
            return self._find(document, ref, through)
        except SchemaError:
            if document is self.main or not ref.startswith("#/"):
                raise
            return self._find(self.main, ref, through)

    def _find(self, document: Document, ref: str, through: Set[_Step]) -> Place:
        base, _, fragment = ref.partition("#")
        target = self._document(joined(document.uri, base), ref) if base else document
        if not fragment:
            return Place(target.root, target)
        if "/" in fragment:  # no anchor has one: `#definitions/Pet` lacks its first
            return self._walk(f"/{fragment.removeprefix('/')}", ref, target, through)
        anchored = self._named(target).get(f"#{unquote(fragment)}")
        if anchored is None:
            raise SchemaError(f"the reference {ref!r:.200} points at nothing: there is no such anchor")
        return Place(anchored, target)

    def _document(self, address: str, ref: str) -> Document:
        if (known := self.loaded.get(address)) is not None:
            return known
        schema = self._named(self.main).get(address)  # `$id` of a schema inside the document is an address too
        if schema is not None:
            return self.loaded.setdefault(address, Document(schema, address))
        why = self.missing.get(address, "a document that is not loaded")
        raise SchemaError(f"the reference {ref!r:.200} leads to {why}")

    def _walk(self, pointer: str, ref: str, document: Document, through: Set[_Step]) -> Place:
        place = Place(document.root, document)
        for token in pointer.split("/")[1:]:
            # A part of what is itself a reference is strictly nothing, but plain to see.
            below = _below(place, token) or _below(self._follow_deeper(place, ref, through), token)
            if below is None:
                raise SchemaError(f"the reference {ref!r:.200} points at nothing: there is no {unquote(token)!r:.100}")
            place = below
        return place

    def _follow_deeper(self, place: Place, ref: str, through: Set[_Step]) -> Place:
        if self._depth >= _MAX_DEPTH:
            raise SchemaError(f"the reference {ref!r:.200} leads through more than {_MAX_DEPTH} others")
        self._depth += 1
        try:
            return self._follow(place, through)
        finally:
            self._depth -= 1

    def _named(self, document: Document) -> dict[str, Any]:
        """Every `$id` as an address, and every anchor as `#name`, with its schema."""
        known = self._names.get(id(document.root))
        if known is None:
            known = self._names[id(document.root)] = {}
            for each in objects_in(document.root):
                if isinstance(id_ := each.get("$id"), str):
                    known.setdefault(joined(document.uri, id_), each)
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := each.get(keyword), str):
                        known.setdefault(f"#{name}", each)
        return known


def _below(place: Place, token: str) -> Place | None:
    """What one step of a pointer leads to."""
    node = place.value
    for spelt in (token, unquote(token)):
        key = spelt.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            return Place(cast("dict[str, Any]", node)[key], place.document)
        if (
            isinstance(node, list)
            and key.isdecimal()
            and len(key) <= _MAX_INDEX
            and int(key) < len(cast("list[Any]", node))
        ):
            return Place(cast("list[Any]", node)[int(key)], place.document)
    return None
