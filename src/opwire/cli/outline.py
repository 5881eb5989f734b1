"""A schema as lines that a person reads, and an input to begin with. No I/O."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import msgspec

from opwire.cli.arguments import from_text
from opwire.cli.fields import Field
from opwire.operation import OperationSpec

_MAX_DEPTH = 4  # of the lines: what lies deeper is shown by `describe --json`
_MAX_CHOICES = 12
_SAMPLES = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
_NUMBERS = ("integer", "number")
_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00",
    "email": "ann@example.org",
    "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matches {}",
}


class Line(NamedTuple):
    """A field: how deep it lies, its name, its type in words, and what there is to know."""

    depth: int
    name: str
    type: str
    note: str
    required: bool


def outline(field: Field) -> Iterator[Line]:
    """The fields of a schema, each followed by its own."""
    return _lines(field, 0)


def _lines(field: Field, depth: int) -> Iterator[Line]:
    if depth >= _MAX_DEPTH:
        return
    inner = field if field.fields else field.items if "array" in field.kinds else field
    for name, each in sorted(inner.fields.items(), key=lambda item: item[0] not in inner.required):
        yield Line(depth, name, type_in_words(each), _note(each), name in inner.required)
        yield from _lines(each, depth + 1)


def type_in_words(field: Field) -> str:
    """`list of string`, `integer or null`, `one of red, green`."""
    if field.choices and len(field.choices) <= _MAX_CHOICES:
        words = ", ".join(value_in_words(each) for each in field.choices)
        return words if len(field.choices) == 1 else f"one of {words}"
    kinds = [f"list of {type_in_words(field.items)}" if kind == "array" else kind for kind in field.kinds]
    return " or ".join(kinds) or "anything"


def _note(field: Field) -> str:
    parts = [str(field.first("description") or field.first("title") or "").strip()]
    parts += [words.format(field.first(keyword)) for keyword, words in _LIMITS.items() if field.first(keyword)]
    parts += [f"format {field.first('format')}"] if field.first("format") else []
    default = field.first("default")
    parts += [f"default {value_in_words(default)}"] if default is not None else []
    return "; ".join(part for part in parts if part)


def value_in_words(value: Any) -> str:
    """A text as it is, everything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def example_input(spec: OperationSpec) -> Any:
    """An input to begin with: the first example, or one made of what the schema requires."""
    if spec.examples:
        return spec.examples[0]
    field = Field(spec.input_schema.json)
    return _sample(field, 0) if field.nodes else None


def _sample(field: Field, depth: int) -> Any:
    for keyword in ("default", "example"):
        if field.first(keyword) is not None:
            return field.first(keyword)
    examples = field.first("examples")
    given = [*(cast("list[Any]", examples) if isinstance(examples, list) else ()), *field.choices]
    if given:
        return given[0]
    kind = field.kinds[0] if field.kinds else "string"
    if kind == "object":
        names = field.required if depth < _MAX_DEPTH else ()
        return {name: _sample(field.field(name), depth + 1) for name in names}
    if kind == "array":
        return [_sample(field.items, depth + 1)] if depth < _MAX_DEPTH else []
    if kind == "string":
        return _FORMATS.get(str(field.first("format")), "text")
    minimum = field.first("minimum")
    return max(_SAMPLES[kind], minimum) if kind in _NUMBERS and type(minimum) in (int, float) else _SAMPLES.get(kind)


def example_command(spec: OperationSpec, verb: str, options: Iterable[str] = ()) -> str:
    """The call of an operation, to be copied into a shell. `options` name its sources."""
    input = example_input(spec)
    words = ["opwire", verb, *options, spec.id, *_words(input, Field(spec.input_schema.json))]
    return " ".join(shlex.quote(word) for word in words)


def _words(input: Any, field: Field) -> list[str]:
    if input is None or input == {}:
        return []
    if not isinstance(input, dict) or not all(_is_word(key) for key in input):  # pyright: ignore[reportUnknownVariableType]
        return [msgspec.json.encode(input).decode()]
    return [_word(str(key), value, field) for key, value in msgspec.to_builtins(input).items()]


def _is_word(key: Any) -> bool:
    return isinstance(key, str) and key.replace("_", "").replace("-", "").isalnum()


def _word(key: str, value: Any, field: Field) -> str:
    text = value_in_words(value)
    return (
        f"{key}={text}"
        if from_text(text, field.field(key)) == value
        else f"{key}:={msgspec.json.encode(value).decode()}"
    )
