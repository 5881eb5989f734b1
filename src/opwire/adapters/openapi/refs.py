"""Where a `$ref` of a document leads: inside it, or into another one that was loaded with it. No I/O."""

from collections.abc import Set
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urljoin

from opwire.adapters.openapi.document import Document, Version, objects_in
from opwire.adapters.openapi.shapes import mapping
from opwire.errors import SchemaError

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
