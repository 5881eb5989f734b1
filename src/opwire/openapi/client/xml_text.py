"""XML as plain data, and back, by the `xml` hints of a document's schemas. No I/O.

An object is an element, and its properties are elements in it, attributes of it, or its text. An array is one element
per item; if it is `wrapped`, they are in an element of its own. An element is named by its hint, else by its property,
by its array, or at the root by its schema. Where the specification is open:

- None is not written. A prefix without a namespace is not written either: nothing would declare it.
- Names are compared without namespaces, since few documents declare all of those that their APIs send.
- An undeclared element is kept: its text, or an object of the elements in it. An undeclared attribute is dropped.
- Text becomes a number or boolean if the schema asks for one and it is one.

Documents that declare entities or attributes are rejected, so nothing is fetched and nothing expands (ADR 0027): a
default of 20 kB, declared for an empty element, took 280 MB for 20,000 of these.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, cast
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from msgspec import Struct

from opwire.typed.plain import MAX_DEPTH

NodeType = Literal["element", "attribute", "text", "cdata", "none"]
"""What a value is in XML (3.2's `nodeType`); `none` is nothing of its own: its members are in the parent."""

_NAME = re.compile(r"[^\W\d][\w.\-]*")
_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_MAX_INLINED_DEPTH = 10  # levels of objects that are not elements of their own
_MAX_INLINED_PROPERTIES_PER_ELEMENT = 1_000
_MAX_MESSAGE_LENGTH = 200
_MAX_TEXT_PROPERTIES_PER_ELEMENT = 10
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class XMLMembers(NamedTuple):
    """The schemas below one schema. `items` is None unless that is an array, `extras` is of undeclared properties."""

    properties: Mapping[str, "XMLNode"]
    extras: "XMLNode | None" = None
    items: "XMLNode | None" = None


XMLProperty = tuple[tuple[str, ...], "XMLNode"]
"""A property, by its path through objects that are not elements, and its schema."""


class XMLPropertyIndex(NamedTuple):
    """The properties of an element, by the names that its parts have. If two have one name, the first is meant."""

    elements: dict[str, XMLProperty]
    attributes: dict[str, XMLProperty]
    texts: list[XMLProperty]

    def add(self, path: tuple[str, ...], node: "XMLNode") -> None:
        """Add a property that is a part of the element."""
        if node.node_type in ("attribute", "element"):
            members_by_name = self.attributes if node.node_type == "attribute" else self.elements
            members_by_name.setdefault(node.name or path[-1], (path, node))
        elif len(self.texts) < _MAX_TEXT_PROPERTIES_PER_ELEMENT:
            self.texts.append((path, node))


class XMLNode(Struct, kw_only=True, eq=False, dict=True):
    """The XML form of one schema. Schemas may be recursive, so `members_of` is called lazily."""

    name: str = ""
    namespace: str = ""
    prefix: str = ""
    node_type: NodeType = "element"
    types: frozenset[str] = frozenset()
    is_structured: bool = False  # an array or object
    members_of: Callable[[], XMLMembers] = lambda: XMLMembers({})

    @cached_property
    def members(self) -> XMLMembers:
        """The schemas below this one."""
        return self.members_of()

    @cached_property
    def index(self) -> XMLPropertyIndex:
        """The properties by what they are in an element, those of objects that are not elements of their own included.

        Such objects can contain each other, and multiply with each level: they are bounded in depth and number.
        """
        index, properties_left = XMLPropertyIndex({}, {}, []), _MAX_INLINED_PROPERTIES_PER_ELEMENT
        stack: list[tuple[tuple[str, ...], XMLNode]] = [((), self)]
        while stack:
            path, node = stack.pop()
            if path and node.node_type != "none":
                index.add(path, node)
            elif path and node.members.items is not None:
                index.elements.setdefault(node.item_name(path[-1]), (path, node))
            elif len(path) <= _MAX_INLINED_DEPTH and (not path or properties_left > 0):
                properties_left -= len(node.members.properties) if path else 0
                members_below = [((*path, name), member) for name, member in node.members.properties.items()]
                stack.extend(reversed(members_below))
        return index

    def member(self, name: str) -> "XMLNode":
        """Return the node of a property."""
        return self.members.properties.get(name) or self.members.extras or _ANY

    def item_name(self, name: str) -> str:
        """Return the name of an item of the array `name`."""
        items = self.members.items or _ANY
        return items.name or (self.name if self.node_type == "element" else "") or name

    def tag(self, name: str) -> tuple[str, str]:
        """Return the qualified name, and the attribute that declares its namespace.

        Raises:
            ValueError: the name is invalid.
        """
        name = self.name or name
        prefix = self.prefix if self.namespace else ""
        for part in filter(None, (name, prefix)):
            if not is_xml_name(part):
                raise ValueError(f"{part[:80]!r} is not a valid name in XML")
        if not self.namespace:
            return name, ""
        declared = quoteattr(_valid(self.namespace))
        return (f"{prefix}:{name}", f" xmlns:{prefix}={declared}") if prefix else (name, f" xmlns={declared}")


_ANY: Final = XMLNode()


class XMLRoot(NamedTuple):
    """The root element of a document."""

    name: str
    node: XMLNode


def is_xml_name(text: str) -> bool:
    """Return whether a text is valid as the name of an element."""
    return _NAME.fullmatch(text) is not None


# --- writing --------------------------------------------------------------------------------------------------------


def write_xml(value: Any, root: XMLRoot, to_text: Callable[[Any], str], charset: str = "utf-8") -> bytes:
    """Serialize a value as an XML document; `to_text` serializes a scalar.

    Raises:
        ValueError: a name or text is invalid in XML, or an object is meant to be an attribute.
    """
    text = _Writer(to_text).element(value, root.node, root.name)
    return f'<?xml version="1.0" encoding="{charset.upper()}"?>\n{text}'.encode(charset, errors="xmlcharrefreplace")


class _Writer:
    def __init__(self, to_text: Callable[[Any], str]) -> None:
        self._to_text = to_text

    def element(self, value: Any, node: XMLNode, name: str) -> str:
        tag, attributes = node.tag(name)
        if isinstance(value, list):
            content = self._items(cast("list[Any]", value), node, name)
        elif isinstance(value, dict):
            own_attributes, content = self._object(cast("dict[str, Any]", value), node)
            attributes += own_attributes
        else:
            content = _escaped(self._to_text(value))
        return f"<{tag}{attributes}>{content}</{tag}>" if content else f"<{tag}{attributes}/>"

    def _items(self, values: list[Any], node: XMLNode, name: str) -> str:
        items, own_name = node.members.items or _ANY, node.item_name(name)
        return "".join([self.element(item, items, own_name) for item in values if item is not None])

    def _object(self, value: dict[str, Any], node: XMLNode) -> tuple[str, str]:
        attributes, content = "", ""
        for name, member_value in value.items():
            if member_value is None:
                continue
            member = node.member(name)
            match member.node_type:
                case "attribute":
                    qualified, declared = member.tag(name)
                    attributes += f"{declared} {qualified}={quoteattr(_valid(self._scalar(name, member_value)))}"
                case "text":
                    content += _escaped(self._scalar(name, member_value))
                case "cdata":
                    text = _valid(self._scalar(name, member_value)).replace("]]>", "]]]]><![CDATA[>")
                    content += f"<![CDATA[{text}]]>"
                case "none" if isinstance(member_value, dict):
                    own_attributes, inner = self._object(cast("dict[str, Any]", member_value), member)
                    attributes, content = attributes + own_attributes, content + inner
                case _ if isinstance(member_value, list) and (
                    member.node_type == "none" or member.members.items is None
                ):
                    content += self._items(cast("list[Any]", member_value), member, name)
                case _:
                    content += self.element(member_value, member, name)
        return attributes, content

    def _scalar(self, name: str, value: Any) -> str:
        if isinstance(value, dict | list):
            raise ValueError(f"{name[:80]!r} is text in XML, not an array or object")
        return self._to_text(value)


def _valid(text: str) -> str:
    if _INVALID.search(text):
        raise ValueError("XML cannot contain control characters")
    return text


def _escaped(text: str) -> str:
    return escape(_valid(text), {"\r": "&#13;"})  # a parser would read a carriage return as a line feed


# --- reading --------------------------------------------------------------------------------------------------------


class _Element:
    """A parsed element. Lists are created when needed: a hostile document is nothing but empty elements."""

    __slots__ = ("attributes", "children", "name", "texts")

    def __init__(self, name: str, attributes: dict[str, str] | None) -> None:
        self.name = name
        self.attributes = attributes
        self.children: list[_Element] | None = None
        self.texts: list[str] | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts or ())


def read_xml(data: bytes, node: XMLNode, charset: str | None = None) -> Any:
    """Decode an XML document; `charset` overrides the one that it declares.

    Raises:
        ValueError: it is not well-formed, declares entities or attributes, or is nested too deeply.
    """
    if charset not in (None, "utf-8"):
        data, charset = data.decode(charset).encode(), "utf-8"
    root = _Element("", None)
    stack = [root]
    parser = expat.ParserCreate(charset)
    parser.buffer_text = True

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(stack) > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
        element = _Element(name.rpartition(":")[2], attributes or None)
        parent = stack[-1]
        if parent.children is None:
            parent.children = []
        parent.children.append(element)
        stack.append(element)

    def text(text: str) -> None:
        element = stack[-1]
        if element.texts is None:
            element.texts = []
        if element.children is None or not text.isspace():
            element.texts.append(text)

    def reject(*_: Any) -> None:
        raise ValueError("it declares entities or attributes, or refers to unknown entities")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.CharacterDataHandler = text
    parser.EntityDeclHandler = parser.SkippedEntityHandler = parser.AttlistDeclHandler = reject
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError) as error:  # LookupError: the document declares an unknown encoding
        raise ValueError(str(error)[:_MAX_MESSAGE_LENGTH]) from None
    return _value((root.children or [root])[0], node)


def _value(element: _Element, node: XMLNode) -> Any:
    if any(name.endswith(":nil") and text in ("true", "1") for name, text in (element.attributes or {}).items()):
        return None
    members = node.members
    if members.items is not None:
        return [_value(child, members.items) for child in element.children or ()]
    if node.is_structured or element.children:
        return _object(element, node)
    return _scalar(element.text, node)


def _object(element: _Element, node: XMLNode) -> dict[str, Any]:
    children_by_name: dict[str, list[_Element]] = {}
    for child in element.children or ():
        children_by_name.setdefault(child.name, []).append(child)
    members: dict[str, Any] = {}
    for path, value in _declared(element, node.index, children_by_name):
        holder = members
        for name in path[:-1]:
            holder = holder.setdefault(name, {})
        holder[path[-1]] = value
    for name, children in children_by_name.items():
        values = [_value(child, node.members.extras or _ANY) for child in children]
        members.setdefault(name, values if len(values) > 1 else values[0])
    return members


def _declared(
    element: _Element, index: XMLPropertyIndex, children_by_name: dict[str, list[_Element]]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Iterate over the declared properties of an element, and remove their elements from `found`.

    By what the element has: a response of empty elements took seconds when each was searched for 1,000 properties.
    """
    for key in [child_name for child_name in children_by_name if child_name in index.elements]:
        path, member = index.elements[key]
        items, children = member.members.items, children_by_name.pop(key)
        if member.node_type == "none" and items is not None:
            yield path, [_value(child, items) for child in children]
        else:
            values = [_value(child, member) for child in children]
            yield path, values if len(values) > 1 else values[0]
    for key, text in (element.attributes or {}).items():
        if (declared := index.attributes.get(key.rpartition(":")[2])) is not None:
            yield declared[0], _scalar(text, declared[1])
    if element.texts:
        for path, member in index.texts:
            yield path, _scalar(element.text, member)


def _scalar(text: str, node: XMLNode) -> Any:
    stripped_text = text.strip()
    if "integer" in node.types and _INTEGER.fullmatch(stripped_text):
        return int(stripped_text)
    if "number" in node.types and _NUMBER.fullmatch(stripped_text) and isfinite(number := float(stripped_text)):
        return number
    if "boolean" in node.types and stripped_text in _BOOLEANS:
        return _BOOLEANS[stripped_text]
    return text
