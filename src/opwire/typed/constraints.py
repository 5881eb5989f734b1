"""What `Annotated` adds to a type: bounds, lengths, patterns and documentation.

msgspec.Meta, annotated_types and pydantic.Field say the same things in different words. The latter two are
recognised by their attributes: neither library is imported for it.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, cast

import msgspec

from opwire.typed.nodes import Constant, Misfit, Node, Refs, Schema
from opwire.typed.plain import to_plain

Check = Callable[[Any], str | None]
"""Gives the reason why a converted value does not fit, or None."""

_BOUNDS: dict[str, tuple[str, str, Callable[[Any, Any], bool]]] = {
    "gt": ("exclusiveMinimum", "greater than", operator.gt),
    "ge": ("minimum", "at least", operator.ge),
    "lt": ("exclusiveMaximum", "less than", operator.lt),
    "le": ("maximum", "at most", operator.le),
}
_LENGTHS: dict[str, tuple[dict[str, str], str, Callable[[int, int], bool]]] = {
    "min_length": ({"string": "minLength", "array": "minItems", "object": "minProperties"}, "at least", operator.ge),
    "max_length": ({"string": "maxLength", "array": "maxItems", "object": "maxProperties"}, "at most", operator.le),
}
_DOCUMENTATION = ("title", "description", "examples")
_WORDS = (*_BOUNDS, *_LENGTHS, "multiple_of", "pattern", "tz", *_DOCUMENTATION, "extra_json_schema")


class Constrained(Node):
    """A node with more demands and more documentation."""

    def __init__(self, hint: Any, inner: Node, metadata: Iterable[Any]) -> None:
        self.hint, self.inner, self.name = hint, inner, inner.name
        self.kinds, self.identity, self.native = inner.kinds, inner.identity, True
        self._keywords: Schema = {}
        self._checks: list[Check] = []
        for each in flatten(metadata):
            words = _words_of(each)
            # msgspec enforces its own Meta only.
            self.native = self.native and (isinstance(each, msgspec.Meta) or not words)
            for word, value in words.items():
                self._add(word, value)

    def _add(self, word: str, value: Any) -> None:
        if word in _BOUNDS:
            self._bound(*_BOUNDS[word], value)
        elif word in _LENGTHS:
            self._length(*_LENGTHS[word], value)
        elif word == "multiple_of":
            if _is_json_number(value):
                self._keywords["multipleOf"] = value
            self._checks.append(lambda each: None if _is_multiple(each, value) else f"is not a multiple of {value}")
        elif word == "pattern":
            self._keywords["pattern"] = getattr(value, "pattern", value)
            self._checks.append(lambda each: _match(each, value))
        elif word == "tz":
            self._keywords["format"] = "date-time" if value else None
            self._checks.append(lambda each: _has_offset(each, value))
        elif word == "extra_json_schema":
            self._keywords |= value
        else:
            self._keywords[word] = to_plain(value)

    def _bound(self, keyword: str, words: str, holds: Callable[[Any, Any], bool], limit: Any) -> None:
        if _is_json_number(limit) and self.inner.hint is not Decimal:  # which is text in JSON
            self._keywords[keyword] = limit

        def check(value: Any) -> str | None:
            try:
                return None if holds(value, limit) else f"is not {words} {limit}"
            except TypeError:  # another member of a union: None beside an int
                return None

        self._checks.append(check)

    def _length(self, keywords: dict[str, str], words: str, holds: Callable[[int, int], bool], limit: int) -> None:
        for kind, keyword in keywords.items():
            if kind in self.kinds:
                self._keywords[keyword] = 4 * ((limit + 2) // 3) if self._is_base64 else limit

        def check(value: Any) -> str | None:
            size = len(value) if hasattr(value, "__len__") else limit
            return None if holds(size, limit) else f"has a length of {size}, not {words} {limit}"

        self._checks.append(check)

    @property
    def _is_base64(self) -> bool:
        return self.inner.hint is bytes or self.inner.hint is bytearray

    def parts(self) -> Iterable[Node]:
        return (self.inner,)

    def schema(self, refs: Refs) -> Schema:
        merged = refs.of(self.inner) | self._keywords
        return {key: value for key, value in merged.items() if value is not None}

    def convert(self, value: Any) -> Any:
        converted = self.inner.run(value)
        for check in self._checks:
            reason = check(converted)
            if reason is not None:
                raise Misfit(reason)
        return converted

    def options(self) -> list[Any]:
        return self.inner.options()

    def constants(self) -> dict[str, Constant]:
        return self.inner.constants()

    def known(self, value: dict[str, Any]) -> int:
        return self.inner.known(value)


def flatten(metadata: Iterable[Any]) -> Iterable[Any]:
    """Single pieces of metadata: groups (annotated_types.Len, pydantic.Field) taken apart."""
    for each in metadata:
        if getattr(each, "__is_annotated_types_grouped_metadata__", False):
            yield from flatten(each)
        elif is_pydantic_field(each):
            yield from flatten(each.metadata)
            yield each
        else:
            yield each


def only_pydantic_knows(metadata: Any) -> bool:
    """Validators and the like: dropping them silently would accept what the author refuses."""
    if is_pydantic_field(metadata):
        return False
    if hasattr(metadata, "__get_pydantic_core_schema__") or hasattr(metadata, "__get_pydantic_json_schema__"):
        return True
    if type(metadata).__name__ == "_PydanticGeneralMetadata":  # StringConstraints that change the text
        words = cast("dict[str, Any]", vars(metadata))
        return any(value for word, value in words.items() if word not in ("pattern", "strict"))
    return False


def is_pydantic_field(metadata: Any) -> bool:
    """Whether it is what `pydantic.Field(...)` makes."""
    return type(metadata).__name__ == "FieldInfo" and type(metadata).__module__.startswith("pydantic.")


def _words_of(metadata: Any) -> dict[str, Any]:
    """The demands and documentation that one piece of metadata holds, in msgspec's words."""
    if isinstance(metadata, msgspec.Meta):
        words = {word: getattr(metadata, word) for word in _WORDS}
    elif is_pydantic_field(metadata):
        words = {word: getattr(metadata, word) for word in _DOCUMENTATION}
        extra = metadata.json_schema_extra
        words["extra_json_schema"] = cast("Schema", extra) if isinstance(extra, dict) else None
    elif type(metadata).__module__.partition(".")[0] in ("annotated_types", "pydantic"):
        words = {word: getattr(metadata, word, None) for word in (*_BOUNDS, *_LENGTHS, "multiple_of", "pattern")}
    else:
        words = {}
    if type(metadata).__name__ in ("Doc", "DocInfo"):  # of typing_extensions and annotated_types
        words["description"] = getattr(metadata, "documentation", None)
    return {word: value for word, value in words.items() if value is not None}


def _is_json_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_multiple(value: Any, factor: Any) -> bool:
    if not isinstance(value, int | float | Decimal):  # another member of a union
        return True
    if isinstance(value, int) and isinstance(factor, int):
        return value % factor == 0
    return math.isfinite(value) and Decimal(str(value)) % Decimal(str(factor)) == 0


def _match(value: Any, pattern: Any) -> str | None:
    if isinstance(value, str) and not re.search(pattern, value):
        return f"does not match the pattern {getattr(pattern, 'pattern', pattern)!r}"
    return None


def _has_offset(value: Any, wanted: bool) -> str | None:
    if hasattr(value, "tzinfo") and (value.tzinfo is not None) is not wanted:
        return f"is a time {'without' if wanted else 'with'} an offset from UTC"
    return None
