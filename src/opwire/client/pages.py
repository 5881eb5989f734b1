"""The pages of a query: what items a page holds, and what to ask for to get the next one. No I/O.

Addresses of next pages are never called: what their query says is put into the operation's input. So pages are found
alike whichever source answers, and no answer leads a caller to another host.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast
from urllib.parse import parse_qsl, urlsplit

from opwire.client.page_fields import Field, input_field, items_field, next_fields, total_reached
from opwire.client.retries import check_number
from opwire.envelope import HTTPResponseMeta, ResponseEnvelope
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import OperationSpec
from opwire.schema.dialect import lower

Cursor = tuple[str, str]
"""The field of an answer that leads to the next page, and the field of the input that takes it."""

_LINK = re.compile(r"<([^<>]*)>\s*((?:;\s*[\w*-]+\s*=\s*(?:\"[^\"]*\"|[^\s\",;]+)\s*)*)")
_RELATION = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s\",;]+))", re.IGNORECASE)
_OTHER_PAGES = frozenset({"first", "prev", "previous", "last"})
_NUMBERS = frozenset({"integer", "number"})
_MAX_DIGITS = 1_000
_MAX_ADDRESS = 64 * 1024  # characters; more is no address that a server takes
_PAGE = ("page", "page_number", "pagenumber")
_OFFSET = ("offset", "skip", "startat")


class Pages:
    """One walk through the pages of an operation. `input` is that of the page to be asked for; None at the end."""

    def __init__(
        self, operation_id: str, input: Any, *, cursor: Cursor | None, items: str | None, max_pages: int
    ) -> None:
        check_number("max_pages", max_pages, least=1, whole=True)
        if input is not None and not isinstance(input, Mapping):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id}: only an input that is an object has pages")
        self.input: dict[str, Any] | None = dict(cast("Mapping[str, Any]", input or {}))
        self._id = operation_id
        self._cursor = cursor
        self._items = items
        self._max_pages = max_pages
        self._asked = {_fingerprint(self.input)}
        self._count = 0  # of items
        self._last: list[Any] | None = None  # the last page, where pages are only counted
        self._way: Literal["link", "field"] | None = None  # how an answer led to the next page: its absence is the end

    def items(self, envelope: ResponseEnvelope[Any]) -> list[Any]:
        """The items of a page.

        Raises:
            CallError: VALIDATION_ERROR, if nobody can tell where they are.
        """
        found = _dig(envelope.data, self._items) if self._items else items_field(envelope.data)
        if not isinstance(found, list):
            where = f"in {self._items}" if self._items else "in the answer: items= names the field that holds them"
            raise self._invalid(f"there is no list of items {where}")
        items = cast("list[Any]", found)
        if self._last is not None and items == self._last:  # it does not count pages after all
            items = []
        self._count += len(items)
        return items

    def advance(self, envelope: ResponseEnvelope[Any], found: list[Any], spec: OperationSpec | None) -> None:
        """Go on to the next page, if there is one.

        Raises:
            CallError: VALIDATION_ERROR, if there is no way to it; EXECUTION_ERROR, if it is one too many.
        """
        input, known = self.input or {}, _properties(spec)
        following = self._following(envelope, found, input, known)
        self.input = None
        if not following:
            return
        following = {**input, **following}
        mark = _fingerprint(following)
        if mark in self._asked:
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{self._id}: the answer leads to a page that was there before")
        if len(self._asked) >= self._max_pages:
            more = f"{self._id} has more than {self._max_pages:,} pages: max_pages= allows for more"
            raise CallError(ErrorCode.EXECUTION_ERROR, more)
        self._asked.add(mark)
        self.input = following

    def _following(
        self, envelope: ResponseEnvelope[Any], found: list[Any], input: dict[str, Any], known: dict[str, Any]
    ) -> dict[str, Any] | None:
        """What changes in the input for the next page; None if there is none."""
        data = envelope.data
        if self._cursor is not None:
            value = _dig(data, self._cursor[0])
            return None if value is None or value is False or value == "" else {self._cursor[1]: value}
        links = _links(envelope)
        if "next" in links:
            self._way = "link"
            return self._by_address(links["next"], input, known)
        if self._way == "link" or not _OTHER_PAGES.isdisjoint(links):
            return None
        fields = next_fields(data, found)
        if fields is None:
            return None
        for field in fields:
            if following := self._by_field(field, input, known):
                self._way = "field"
                return following
        return None if self._way == "field" else self._by_count(data, found, input, known)

    def _by_field(self, field: Field, input: dict[str, Any], known: dict[str, Any]) -> dict[str, Any] | None:
        if field.is_address:
            return self._by_address(str(field.value), input, known)
        name = input_field(field, known or input)
        if name is not None:
            return {name: field.value}
        if field.is_certain:
            raise self._lost(f"{field.name!r} of the answer")
        return None

    def _by_address(self, address: str, input: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        """The input that an address stands for, as far as the operation takes what its query says."""
        pairs = _query(address)
        count = Counter(name for name, _ in pairs)
        following = {
            name: _typed(text, known.get(name), input.get(name))
            for name, text in pairs
            if (name in known or not known) and count[name] == 1 and not isinstance(input.get(name), list)
        }
        if all(input.get(name) == value for name, value in following.items()):
            raise self._lost("the address of the next page")
        return following

    def _by_count(
        self, data: Any, found: list[Any], input: dict[str, Any], known: dict[str, Any]
    ) -> dict[str, Any] | None:
        self._last = found
        for names, start, step in ((_PAGE, 1, 1), (_OFFSET, 0, len(found))):
            name = next((each for each in known or input if each.lower() in names), None)
            if name is not None and found and _counts(known.get(name), input.get(name)):
                first = _default(known.get(name), start)
                place = input.get(name, first)
                page = place - first + 1 if names is _PAGE else None
                return None if total_reached(data, self._count, page) else {name: place + step}
        return None

    def _lost(self, what: str) -> CallError:
        hint = 'cursor=("field of the answer", "field of the input") says how to get there'
        return self._invalid(f"there is a next page, but no field of the input takes {what}: {hint}")

    def _invalid(self, message: str) -> CallError:
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self._id}: {message}")


def _links(envelope: ResponseEnvelope[Any]) -> dict[str, str]:
    """The addresses of a Link header (RFC 8288), by their relation."""
    if not isinstance(envelope.meta, HTTPResponseMeta):
        return {}
    return {relation: address for address, relation in _relations(envelope.meta.headers.get("link", ""))}


def _relations(header: str) -> Iterator[tuple[str, str]]:
    for link in _LINK.finditer(header):
        relation = _RELATION.search(link[2])
        for each in (relation[1] or relation[2] or "").lower().split() if relation else ():
            yield link[1], each


def _query(address: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(urlsplit(address[:_MAX_ADDRESS]).query, keep_blank_values=True)
    except ValueError:  # no address at all
        return []


def _properties(spec: OperationSpec | None) -> dict[str, Any]:
    """What the input of an operation is known to take."""
    if spec is None:
        return {}
    try:
        schema = lower(spec.input_schema.json, spec.input_schema.dialect)
    except SchemaError:
        return {}
    declared = schema.get("properties") if isinstance(schema, dict) else None
    return cast("dict[str, Any]", declared) if isinstance(declared, dict) else {}


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    json = cast("dict[str, Any]", schema)
    named = json.get("type", [])
    branches = [*json.get("anyOf", ()), *json.get("oneOf", ())]
    return {*([named] if isinstance(named, str) else named), *(kind for each in branches for kind in _kinds(each))}


def _counts(schema: Any, given: Any) -> bool:
    """Whether a field is a number."""
    if given is not None:
        return isinstance(given, int) and not isinstance(given, bool)
    return not _kinds(schema).isdisjoint(_NUMBERS)


def _default(schema: Any, otherwise: int) -> int:
    default = cast("dict[str, Any]", schema).get("default") if isinstance(schema, dict) else None
    return default if isinstance(default, int) else otherwise


def _typed(text: str, schema: Any, given: Any) -> Any:
    """A text of a query as the number that the input takes it as."""
    kinds = _kinds(schema)
    is_number = isinstance(given, int) if not kinds else "string" not in kinds and not kinds.isdisjoint(_NUMBERS)
    return int(text) if is_number and text.isdecimal() and len(text) < _MAX_DIGITS else text


def _dig(data: Any, path: str) -> Any:
    """The value at a path of names with dots between them; None if there is none."""
    for step in path.split("."):
        data = cast("dict[str, Any]", data).get(step) if isinstance(data, dict) else None
    return data


def _fingerprint(input: Mapping[str, Any]) -> int:
    return hash(json.dumps(input, sort_keys=True, default=repr))
