"""OpenAPI documents as plain data: JSON and YAML text, the specification's version, and `$ref` resolution. No I/O."""

import re
from collections.abc import Callable, Mapping, Set
from typing import Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import unquote, urljoin

import msgspec

from opwire.errors import CallError, ErrorCode, NotPlainError, SchemaError
from opwire.openapi.client.yaml_text import read_yaml
from opwire.registry.source import Report
from opwire.schema.dialect import objects_in, unescaped
from opwire.typed.plain import as_dict, as_list, json_form, read_json, to_plain, write_json

T = TypeVar("T")

Version = Literal["2.0", "3.0", "3.1", "3.2"]

_VERSION = re.compile(r"3(?:\.([0-9]{1,4})(?![0-9])|$)")
_BYTE = re.compile(r" \(byte ([0-9]{1,18})\)")
_DECODER = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder(enc_hook=json_form)
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_REFERENCE = re.compile(rb"""\$ref["']?\s*:\s*(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'{},\[\]][^\s,}]*))""")


def read_text(text: bytes | str, name: str, report: Report) -> Any:
    """Return the plain data of a JSON or YAML text; `name` is for the error.

    Raises:
        CallError: VALIDATION_ERROR, with the position of the syntax error.
    """
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    encoding = next((codec for bom, codec in _BOMS.items() if data.startswith(bom)), None)
    if encoding and not isinstance(text, str):
        try:
            data = data.decode(encoding).encode()
        except UnicodeDecodeError as error:
            raise _unreadable(name, encoding, f"byte {error.start} cannot be decoded") from None
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            return read_json(_DECODER, data)
    except (ValueError, RecursionError) as error:
        if not name.endswith((".yaml", ".yml")):  # there, a brace may start a YAML mapping
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            if (invalid_byte := _BYTE.search(reason)) is not None:
                before = data[: int(invalid_byte[1])]
                line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
                reason = reason.replace(invalid_byte[0], f", line {line}, column {column}")
            raise _unreadable(name, "JSON", reason) from None
    try:
        return read_yaml(data, lambda warning: report.warn(f"{name}: {warning}"))
    except ValueError as error:
        raise _unreadable(name, "YAML", str(error)) from None


def json_of(document: Mapping[Any, Any]) -> bytes:
    """Return a mapping as JSON: PyYAML may have put dates and numeric keys into it.

    Raises:
        CallError: VALIDATION_ERROR, a value has no JSON form.
    """

    def plain(value: Any) -> Any:
        match value:
            case Mapping():
                items = cast("Mapping[Any, Any]", value).items()
                return {"null" if key is None else as_text(key) or str(key): plain(member) for key, member in items}
            case list() | tuple():
                return [plain(element) for element in cast("list[Any]", value)]
            case _:
                return to_plain(value)

    try:
        try:
            return write_json(_ENCODER, document)
        except TypeError:  # a key that is a date or null, for example
            return write_json(_ENCODER, plain(document))
    except RecursionError:
        raise _unreadable("the document", "plain data", "it is nested too deeply, or contains itself") from None
    except NotPlainError as error:
        raise _unreadable("the document", "plain data", str(error)) from error


def version_of(root: Any, name: str, report: Report) -> Version:
    """Return the OpenAPI version by the rules of which a document is read. Later ones than 3.2 are read as 3.2.

    Raises:
        CallError: VALIDATION_ERROR, the version is unknown, or `paths` is invalid.
    """

    def unusable(reason: str) -> CallError:
        return CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not a usable OpenAPI document: {reason}")

    def kind(value: Any) -> str:
        kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "empty"}
        return kinds.get(cast("Any", type(value)), "a number")

    if not isinstance(root, dict):
        raise unusable(f"it is {kind(root)}, not an object")
    document = cast("dict[str, Any]", root)
    declared = document.get("openapi", document.get("swagger"))
    match _VERSION.match(as_text(declared)):
        case None if "swagger" in document and as_text(declared).partition(".")[0] == "2":
            version: Version = "2.0"
        case re.Match() as version_match if (minor := int(version_match[1] or 0)) <= 2:
            version = cast("Version", f"3.{minor}")
        case re.Match():
            version = "3.2"
            report.warn(f"{name}: OpenAPI {str(declared)[:40]!r} is read as 3.2, the latest version that opwire knows")
        case None:
            declaration = f"{str(declared)[:40]!r}" if declared is not None else "no `openapi` or `swagger` field"
            raise unusable(f"opwire reads Swagger 2.0 and OpenAPI 3.0, 3.1 and 3.2; this one has {declaration}")
    paths = document.get("paths")
    if paths is not None and not isinstance(paths, dict):
        raise unusable(f"`paths` is {kind(paths)}, not an object")
    if "paths" not in document and version in ("2.0", "3.0"):
        raise unusable("it has no `paths`")
    return version


def _unreadable(name: str, expected: str, reason: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not readable as {expected}: {reason}")


def references_in(text: bytes | str, root: Any) -> set[str]:
    """Return every reference of a document, and some strings that only look like one.

    In JSON they are found in the text, which is much faster than walking the data. In YAML, only the parsed data shows
    where one ends.
    """
    if text.lstrip()[:1] not in ("{", b"{"):
        return {ref for node in objects_in(root, data=True) if isinstance(ref := node.get("$ref"), str)}

    def unquoted(quoted: bytes) -> str:
        try:
            return msgspec.json.decode(b'"%b"' % quoted, type=str)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return quoted.decode("utf-8", "replace")

    references = _REFERENCE.findall(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    return {
        unquoted(double) if double else (single or bare).decode("utf-8", "replace")
        for double, single, bare in references
    }


def as_text(value: Any) -> str:
    """Return a string, or "" for anything else. YAML parses names such as `1.0` and `true` as other types."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else ""


def as_texts(value: Any) -> list[str]:
    """Return the strings of an array."""
    return [as_text(element) for element in as_list(value) if isinstance(element, str | int | float)]


class SourceDocument:
    """A document, and the base URI of its references: "" if it has none."""

    def __init__(self, root: Any, uri: str = "") -> None:
        self.root = root
        self.uri = uri


class Located(NamedTuple):
    """A value, and the document in which its references are resolved."""

    value: Any
    document: SourceDocument


_Step = tuple[SourceDocument, str]  # a document, and a reference in it
_MAX_REFERENCES_IN_REFERENCES = 16
_MAX_REFERENCE_CHAIN = 100  # a broken chain is followed again from each of its links
_MAX_INDEX_DIGITS = 9
# Parts that the operations of a document may use: methods, parameters, responses, content types, properties of bodies.
# Without references, each of them takes ten bytes at least. 1,000 paths of 40 bytes that refer to one path item with
# 1,000 methods were a million operations.
_MIN_USES = 100_000
_BYTES_PER_USE = 10
# Bytes of their declarations, and of what these refer to: 0.3 to 1.6 times the document in real ones. 300 operations
# that shared a description, or a parameter with an enumeration, of 1 MB were a served document of 600 MB.
_MIN_COPIED_BYTES = 10_000_000
_COPIED_BYTES_PER_BYTE = 8


def join_uri(base: str, uri: str) -> str:
    """Resolve a URI against a base; return an invalid one, such as `http://[`, unchanged."""
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


class DocumentSet:
    """A document and the documents it refers to. `missing` maps an address to the reason why it was not loaded."""

    def __init__(self, root: dict[str, Any], uri: str, version: Version) -> None:
        self.version: Version = version
        self.uses_left = _MIN_USES
        self.bytes_left = _MIN_COPIED_BYTES
        self.main = SourceDocument(root, uri)
        self.loaded: dict[str, SourceDocument] = {uri: self.main}
        self.missing: dict[str, str] = {}
        self_uri = root.get("$self")
        if version == "3.2" and isinstance(self_uri, str):  # it is the base URI as well
            self.main.uri = join_uri(uri, self_uri).partition("#")[0]
            self.loaded[self.main.uri] = self.main
        self._shared: dict[tuple[str, int], Any] = {}  # by kind and identity
        self._resolved: dict[_Step, Located] = {}
        self._ends: dict[_Step, Located] = {}  # the end of each chain of references
        self._depth = 0
        self._dynamic: dict[int, dict[str, list[Any]]] = {}  # schemas by `$dynamicAnchor`, per document
        self._names: dict[int, dict[str, Any]] = {}  # schemas by `$id` and anchor, per document; built lazily

    def count_size(self, size: int) -> None:
        """Allow the uses of a document of this many bytes."""
        self.uses_left += size // _BYTES_PER_USE
        self.bytes_left += size * _COPIED_BYTES_PER_BYTE

    def use(self, count: int, *parts: Any) -> None:
        """Count the parts that an operation uses, and their bytes. References share them, so that they multiply.

        Raises:
            SchemaError: all operations together use more than the size of the document allows; a part is nested too
                deeply.
        """
        size = sum(map(self._size, parts))
        if count > self.uses_left or size > self.bytes_left:
            raise SchemaError("the operations share more of the document by references than its size allows")
        self.uses_left -= count
        self.bytes_left -= size

    def _size(self, part: Any) -> int:
        """Return the bytes of a part of a document as JSON."""

        def measured() -> int:
            try:
                return len(write_json(_ENCODER, part))
            except RecursionError:
                raise SchemaError("it is nested too deeply") from None

        return self.shared("size", part, measured) if part else 0

    def shared(self, kind: str, source_value: Any, make: Callable[[], T]) -> T:
        """Read a part of a document once: many operations may share it. `source_value` lives as long as that."""
        key = kind, id(source_value)
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def resolve(self, ref: str, document: SourceDocument) -> Located:
        """Return the target of a reference.

        Raises:
            SchemaError: the target is missing, or in a document that was not loaded.
        """
        step = (document, ref)
        return self._resolve(step, {step})

    def follow(self, value: Any, document: SourceDocument) -> Located:
        """Return the value, or the end of its chain of references.

        Raises:
            SchemaError: as `resolve`, or the references form a cycle.
        """
        return self._follow(Located(value, document), frozenset())

    def follow_object(self, value: Any, document: SourceDocument, what: str) -> Located:
        """Follow references to an object; `what` names it in the error.

        Raises:
            SchemaError: as `follow`, or the target is not an object.
        """
        located = self.follow(value, document)
        if not isinstance(located.value, dict):
            raise SchemaError(f"{what} is not an object")
        return located

    def find_object(self, value: Any, document: SourceDocument) -> Located:
        """Follow references to an object; return an empty one if there is none, which is reported where it is read."""
        try:
            located = self.follow(value, document)
        except SchemaError:
            return Located({}, document)
        return located if isinstance(located.value, dict) else Located({}, document)

    def is_known(self, address: str) -> bool:
        """Return whether a document with this address is loaded, or a schema in the main one has it as `$id`."""
        return address in self.loaded or address in self._named(self.main)

    def single_dynamic_anchor(self, name: str, document: SourceDocument) -> Any:
        """Return the schema with this `$dynamicAnchor`; None if it is missing or ambiguous."""
        anchors = self._dynamic.get(id(document.root))
        if anchors is None:
            anchors = self._dynamic[id(document.root)] = {}
            for node in objects_in(document.root):
                if isinstance(anchor := node.get("$dynamicAnchor"), str):
                    anchors.setdefault(anchor, []).append(node)
        nodes = anchors.get(name, [])
        return nodes[0] if len(nodes) == 1 else None

    def _follow(self, located: Located, through: Set[_Step]) -> Located:
        if not isinstance(as_dict(located.value).get("$ref"), str):
            return located
        steps = dict.fromkeys(through)
        while isinstance(ref := as_dict(located.value).get("$ref"), str):
            step = (located.document, ref)
            if (end := self._ends.get(step)) is not None:
                return end
            if step in steps:
                raise SchemaError(f"the reference {ref!r:.200} is part of a cycle")
            if len(steps) - len(through) >= _MAX_REFERENCE_CHAIN:
                raise SchemaError(f"the reference {ref!r:.200} is one of more than {_MAX_REFERENCE_CHAIN} in a row")
            steps[step] = None
            located = self._resolve(step, steps.keys())
        self._ends |= dict.fromkeys(steps.keys() - through, located)
        return located

    def _resolve(self, step: _Step, through: Set[_Step]) -> Located:
        resolved = self._resolved.get(step)  # most references of a large document have the same few targets
        if resolved is None:
            document, ref = step
            try:
                resolved = self._find(document, ref, through)
            except SchemaError:
                # Parts of a document in files of their own often refer to the whole as if they were still in it.
                if document is self.main or not ref.startswith("#/"):
                    raise
                resolved = self._find(self.main, ref, through)
            self._resolved[step] = resolved
        return resolved

    def _find(self, document: SourceDocument, ref: str, through: Set[_Step]) -> Located:
        base, _, fragment = ref.partition("#")
        address = join_uri(document.uri, base)
        target = self.loaded.get(address) if base else document
        if target is None:
            schema = self._named(self.main).get(address)  # the `$id` of a schema in the document is an address too
            if schema is None:
                why = self.missing.get(address, "a document that is not loaded")
                raise SchemaError(f"the reference {ref!r:.200} leads to {why}")
            target = self.loaded[address] = SourceDocument(schema, address)
        if not fragment:
            return Located(target.root, target)
        if "/" in fragment:  # a JSON Pointer, since anchors have no slash; `#definitions/Pet` lacks its first one
            return self._walk(f"/{fragment.removeprefix('/')}", ref, target, through)
        anchored = self._named(target).get(f"#{unquote(fragment)}")
        if anchored is None:
            raise SchemaError(f"the reference {ref!r:.200} has no target: there is no such anchor")
        return Located(anchored, target)

    def _walk(self, pointer: str, ref: str, document: SourceDocument, through: Set[_Step]) -> Located:
        located = Located(document.root, document)
        for token in pointer.split("/")[1:]:
            child = _child(located, token)
            if child is None:
                # Strictly, a reference has no children; resolve it anyway, the intention is obvious.
                if self._depth >= _MAX_REFERENCES_IN_REFERENCES:
                    raise SchemaError(
                        f"the reference {ref!r:.200} leads through more than {_MAX_REFERENCES_IN_REFERENCES} others"
                    )
                self._depth += 1
                try:
                    child = _child(self._follow(located, through), token)
                finally:
                    self._depth -= 1
            if child is None:
                raise SchemaError(f"the reference {ref!r:.200} has no target: there is no {unquote(token)!r:.100}")
            located = child
        return located

    def _named(self, document: SourceDocument) -> dict[str, Any]:
        """Return the schemas of a document by `$id`, as an address, and by anchor, as `#name`."""
        named_nodes = self._names.get(id(document.root))
        if named_nodes is None:
            named_nodes = self._names[id(document.root)] = {}
            for node in objects_in(document.root):
                if isinstance(id_ := node.get("$id"), str):
                    named_nodes.setdefault(join_uri(document.uri, id_), node)
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := node.get(keyword), str):
                        named_nodes.setdefault(f"#{name}", node)
        return named_nodes


def _child(located: Located, token: str) -> Located | None:
    """Return the value one step of a JSON Pointer down."""
    node, document = located
    for spelled in (token, unquote(token)):
        key = unescaped(spelled)
        if isinstance(node, dict) and key in node:
            return Located(cast("dict[str, Any]", node)[key], document)
        if isinstance(node, list) and key.isdecimal() and len(key) <= _MAX_INDEX_DIGITS:
            items = cast("list[Any]", node)
            if int(key) < len(items):
                return Located(items[int(key)], document)
    return None
