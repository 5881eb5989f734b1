"""Pagination of queries: the items of a page, and the input that requests the next page. No I/O.

The next page is found in one of two ways:

- A Link header of the response (RFC 8288). Its address is never requested: its query parameters override fields of the
  operation's input. So pagination works alike over every backend, and no response leads a caller to another host.
- A cursor that the caller names: the field of the response, and the field of the input that takes it.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from opwire.errors import CallError, ErrorCode, UsageError, check_counts
from opwire.model.envelope import HTTPResponseMeta, ResponseEnvelope
from opwire.model.operation import OperationSpec
from opwire.schema.shape import type_names
from opwire.typed.plain import as_dict

Cursor = tuple[str, str]
"""The field of a response that holds the cursor, and the field of the input that takes it."""

_LINK = re.compile(r"<([^<>]*)>\s*((?:;\s*[\w*-]+\s*=\s*(?:\"[^\"]*\"|[^\s\",;]+)\s*)*)")
_RELATION = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s\",;]+))", re.IGNORECASE)
_NUMBER_KINDS = frozenset({"integer", "number"})
_MAX_DIGITS = 1_000
_MAX_ADDRESS_CHARACTERS = 64 * 1024  # servers reject longer addresses
_CURSOR_HINT = 'pass cursor=("field of the response", "field of the input")'


class Pagination:
    """The state of one walk through pages. `input` is the input of the next request, or None after the last page."""

    def __init__(
        self, operation_id: str, input: Any, *, cursor: Cursor | None, items: str | None, max_pages: int
    ) -> None:
        check_counts(max_pages=max_pages)
        if input is not None and not isinstance(input, Mapping):
            raise UsageError(f"{operation_id}: paginate() takes an input that is an object, not {type(input).__name__}")
        self.input: dict[str, Any] | None = dict(cast("Mapping[str, Any]", input or {}))
        self._id = operation_id
        self._cursor = cursor
        self._items = items
        self._max_pages = max_pages
        self._requested = {_fingerprint(self.input)}

    def items(self, envelope: ResponseEnvelope[Any]) -> list[Any]:
        """Return the items of a page: the named field, the response itself, or its only list.

        Raises:
            CallError: VALIDATION_ERROR, the items are missing, or the response cannot lead to a next page.
        """
        data: Any = envelope.data
        if self._cursor is None and isinstance(data, dict) and not isinstance(envelope.meta, HTTPResponseMeta):
            raise self._invalid(f"the response is an object and has no Link header: {_CURSOR_HINT}")
        if self._items is not None:
            items = _dig(data, self._items)
        else:
            lists: list[Any] = [value for value in as_dict(data).values() if isinstance(value, list)]
            items = lists[0] if len(lists) == 1 else envelope.data
        if not isinstance(items, list):
            where = f"field {self._items}" if self._items else "response: pass items=, the field that holds them"
            raise self._invalid(f"no list of items in the {where}")
        return cast("list[Any]", items)

    def advance(self, envelope: ResponseEnvelope[Any], spec: OperationSpec | None) -> None:
        """Set `input` to that of the next page. The spec is optional: it types the parameters of a Link header.

        Raises:
            CallError: VALIDATION_ERROR, the input has no field for the next page; EXECUTION_ERROR, the page is a
                repetition, or one more than `max_pages`.
        """
        input, self.input = self.input or {}, None
        if self._cursor is not None:
            value = _dig(envelope.data, self._cursor[0])
            changes = {} if value is None or value is False or value == "" else {self._cursor[1]: value}
        else:
            address = _next_address(envelope)
            properties = {} if spec is None else as_dict(spec.input_schema.lowered_object.get("properties"))
            changes = {} if address is None else self._parameters(address, input, properties)
        if not changes:
            return
        following = input | changes
        fingerprint = _fingerprint(following)
        if fingerprint in self._requested:
            message = f"{self._id}: the response leads to a page that was returned before"
            raise CallError(ErrorCode.EXECUTION_ERROR, message)
        if len(self._requested) >= self._max_pages:
            message = f"{self._id} has more than {self._max_pages:,} pages; raise max_pages= to read more"
            raise CallError(ErrorCode.EXECUTION_ERROR, message)
        self._requested.add(fingerprint)
        self.input = following

    def _parameters(self, address: str, input: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
        """Return the query parameters of an address that the operation takes, ignoring lists."""
        try:
            pairs = parse_qsl(urlsplit(address[:_MAX_ADDRESS_CHARACTERS]).query, keep_blank_values=True)
        except ValueError:  # an invalid address
            pairs = []
        count = Counter(name for name, _ in pairs)
        parameters: dict[str, Any] = {}
        for name, text in pairs:
            current_value = input.get(name)
            if count[name] > 1 or isinstance(current_value, list) or (properties and name not in properties):
                continue
            kinds = _kinds(properties.get(name))  # a number where the input takes one
            is_number = (
                "string" not in kinds and not kinds.isdisjoint(_NUMBER_KINDS)
                if kinds
                else isinstance(current_value, int)
            )
            parameters[name] = int(text) if is_number and text.isdecimal() and len(text) < _MAX_DIGITS else text
        if all(input.get(name) == value for name, value in parameters.items()):
            raise self._invalid(f"the input has no field for the address of the next page: {_CURSOR_HINT}")
        return parameters

    def _invalid(self, message: str) -> CallError:
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self._id}: {message}")


def _next_address(envelope: ResponseEnvelope[Any]) -> str | None:
    """Parse the Link header; return the address with the relation `next`."""
    header = envelope.meta.headers.get("link", "") if isinstance(envelope.meta, HTTPResponseMeta) else ""
    for address, parameters in _LINK.findall(header):
        relation = _RELATION.search(parameters)
        if relation is not None and "next" in (relation[1] or relation[2] or "").lower().split():
            return address
    return None


def _kinds(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows; empty if it names none."""
    json = as_dict(schema)
    branches = [*json.get("anyOf", ()), *json.get("oneOf", ())]
    return {*type_names(json), *(kind for branch in branches for kind in _kinds(branch))}


def _dig(data: Any, path: str) -> Any:
    """Return the value at a path of names separated by dots, or None."""
    for step in path.split("."):
        data = as_dict(data).get(step)
    return data


def _fingerprint(input: Mapping[str, Any]) -> int:
    return hash(json.dumps(input, sort_keys=True, default=repr))
