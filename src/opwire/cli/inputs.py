"""From words on a command line to the input of an operation, typed by its schema.

count=5         a number where the schema says number, otherwise the text "5"
a.b=1           a field of a field
tags=x tags=y   a list
count:=5        JSON, whatever the schema says
photo=@cat.png  what stands in a file; base64 where the schema says so
'{"a": 1}'      the whole input as JSON; @input.json from a file, - from standard input

What a JSON Schema says of a place in the input: which types it takes, which fields it has. No I/O.

This is for typing, asking and explaining. Whether a value is valid is decided by the schema itself, when it is called.

A schema as lines that a person reads, and an input to begin with. No I/O.

Asks a person at a terminal for the required fields that the command line left out.
"""

import re
import shlex
import signal
import sys
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import msgspec

from opwire.cli.screen import harmless, one_line
from opwire.errors import SchemaError
from opwire.operation import OperationSpec
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import References
from opwire.typed.plain import read_json

_MAX_NODES = 200  # of one place: a union of more is not read to its end
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Field:
    """A place in a schema. Its `nodes` are the schemas that apply there, or may: through references and unions."""

    def __init__(self, schema: Any, references: References | None = None) -> None:
        self._references = References(schema) if references is None else references
        found = list(self._collect(schema, set(), certain=True))
        self.nodes = [node for node, _ in found]
        self._certain = [node for node, certain in found if certain]

    def _collect(self, schema: Any, seen: set[int], *, certain: bool) -> Iterator[tuple[dict[str, Any], bool]]:
        if not isinstance(schema, dict) or id(cast("Any", schema)) in seen or len(seen) >= _MAX_NODES:
            return
        node = cast("dict[str, Any]", schema)
        seen.add(id(node))
        yield node, certain
        if isinstance(node.get("$ref"), str):
            yield from self._collect(self._resolved(node["$ref"]), seen, certain=certain)
        for keyword in ("allOf", "anyOf", "oneOf"):
            for each in _list(node.get(keyword)):
                yield from self._collect(each, seen, certain=certain and keyword == "allOf")

    def _resolved(self, ref: str) -> JSONSchema:
        try:
            return self._references.resolve(ref)
        except SchemaError:
            return True

    def first(self, keyword: str) -> Any:
        """The value of a keyword where it is found first, or None."""
        return next((node[keyword] for node in self.nodes if keyword in node), None)

    @cached_property
    def choices(self) -> list[Any]:
        """The values of `enum` and `const`, if there are any."""
        found: list[Any] = []
        for node in self.nodes:
            found += _list(node.get("enum"))
            found += [node["const"]] if "const" in node else []
        return found

    @cached_property
    def kinds(self) -> list[str]:
        """The types that are taken here, in the order of the schema; none: nothing is known."""
        found: dict[str, None] = {}
        for node in self.nodes:
            given = node.get("type")
            found.update(dict.fromkeys(_texts([given] if isinstance(given, str) else given)))
            if "properties" in node:
                found["object"] = None
            if "items" in node:
                found["array"] = None
        return list(found or dict.fromkeys(_KINDS[type(each)] for each in self.choices if type(each) in _KINDS))

    @cached_property
    def required(self) -> list[str]:
        """The fields without which nothing is valid here."""
        return list(dict.fromkeys(name for node in self._certain for name in _texts(node.get("required"))))

    @cached_property
    def fields(self) -> dict[str, "Field"]:
        """The declared fields, by name."""
        found: dict[str, Field] = {}
        for node in self.nodes:
            declared = node.get("properties")
            if isinstance(declared, dict):
                for name, schema in cast("dict[str, Any]", declared).items():
                    found.setdefault(name, Field(schema, self._references))
        return found

    def field(self, name: str) -> "Field":
        """The field of a name; what is said of every other one where it is not declared."""
        return self.fields.get(name) or Field(self.first("additionalProperties"), self._references)

    @cached_property
    def items(self) -> "Field":
        """An item of a list."""
        return Field(self.first("items"), self._references)


def _list(value: Any) -> list[Any]:
    """A list as it is, and anything else as none: foreign schemas hold much that is no schema."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


_INTEGER = re.compile(r"[+-]?\d+")
_MISSING = object()
_decoder = msgspec.json.Decoder(Any)


def read_input(words: Sequence[str], field: Field, *, stdin: Callable[[], bytes] | None = None) -> Any:
    """The input that the words say; None if there are none.

    Raises:
        click.UsageError: a word cannot be read.
    """
    whole: Any = _MISSING
    given: dict[str, Any] = {}
    for number, word in enumerate(words):
        value = _whole(word, stdin or sys.stdin.buffer.read)
        if value is not _MISSING and number == 0:
            whole = value
        elif _pair(word) is not None:
            _put(given, *cast("tuple[str, str, str]", _pair(word)), field)
        elif len(words) == 1 and field.kinds and "object" not in field.kinds:
            return from_text(word, field)
        else:
            what = "an input is key=value, key:=JSON, or first of all a whole one: JSON, @file, or - for standard input"
            raise click.UsageError(f"{word!r} cannot be read: {what}")
    if whole is _MISSING:
        return given or None
    if not given:
        return whole
    if not isinstance(whole, dict):
        raise click.UsageError("key=value adds to an object, and the input before it is none")
    return {**cast("dict[str, Any]", whole), **given}


def _whole(word: str, stdin: Callable[[], bytes]) -> Any:
    if word == "-":
        return _json(stdin(), "standard input")
    if word.startswith("@"):
        return _json(_file(word[1:]), word[1:])
    return _json(word.encode(), "the input") if word.startswith(("{", "[")) else _MISSING


def _pair(word: str) -> tuple[str, str, str] | None:
    """Key, sign and text."""
    key, equals, text = word.partition("=")
    if not equals or not key.removesuffix(":"):
        return None
    return (key[:-1], ":=", text) if key.endswith(":") else (key, "=", text)


def _put(given: dict[str, Any], key: str, sign: str, text: str, field: Field) -> None:
    """Put a value where its key says. A key that the schema declares as a whole is one, dots and all."""
    place, steps = given, [key] if key in field.fields else key.split(".")
    for step in steps[:-1]:
        field = field.field(step)
        inner = place.setdefault(step, {})
        if not isinstance(inner, dict):
            raise click.UsageError(f"{key!r} and another argument do not fit together: {step!r} is not an object")
        place = cast("dict[str, Any]", inner)
    last = steps[-1]
    field = field.field(last)
    value = _json(text.encode(), key) if sign == ":=" else _value(text, field)
    if last not in place:
        # The first of several items: with a list as its type it is one already.
        place[last] = value
    elif isinstance(place[last], list) and isinstance(value, list):
        place[last] += value
    elif not field.kinds:
        place[last] = [*(place[last] if isinstance(place[last], list) else [place[last]]), value]
    else:
        raise click.UsageError(f"{key!r} is given twice, and is no list")


def _value(text: str, field: Field) -> Any:
    if not text.startswith("@"):
        return from_text(text, field)
    content = _file(text[1:])
    if field.first("contentEncoding") == "base64" or field.first("format") in ("byte", "binary"):
        return b64encode(content).decode()
    try:
        return from_text(content.decode(), field)
    except UnicodeDecodeError:
        raise click.UsageError(f"{text[1:]} is not text, and the field does not take base64") from None


def from_text(text: str, field: Field) -> Any:
    """A text as the type that the schema says; as the text that it is where that is no such thing.

    Text stays text wherever the schema takes text. What does not fit is left for the validation to explain.
    """
    for choice in field.choices:
        if text == (choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()):
            return choice
    if not field.kinds or "string" in field.kinds:
        return text
    for kind in field.kinds:
        value = _READERS[kind](text, field) if kind in _READERS else _MISSING
        if value is not _MISSING:
            return value
    return text


def _number(text: str, _: Field) -> Any:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _MISSING
    return value if type(value) in (int, float) else _MISSING


def _array(text: str, field: Field) -> Any:
    whole: Any = _decoded(text, list) if text.startswith("[") else _MISSING
    return [from_text(text, field.items)] if whole is _MISSING else whole


def _decoded(text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return _MISSING


_READERS: dict[str, Callable[[str, Field], Any]] = {
    "integer": lambda text, _: int(text) if _INTEGER.fullmatch(text) else _MISSING,
    "number": _number,
    "boolean": lambda text, _: {"true": True, "false": False}.get(text.lower(), _MISSING),
    "null": lambda text, _: None if text == "null" else _MISSING,
    "array": _array,
    "object": lambda text, _: _decoded(text, dict),
}


def _json(text: bytes, where: str) -> Any:
    try:
        return read_json(_decoder, text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{where}: not JSON: {error}") from None


def _file(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise click.UsageError(f"{name}: cannot be read: {error.strerror}") from None


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


_MAX_PROMPT_DEPTH = 4
_MAX_DEFAULT = 200  # characters of a default that a question shows


def complete_input(input: Any, schema: Schema) -> Any:
    """The input with its missing required fields, asked for one after the other."""
    field = Field(schema.json)
    if not field.required or not isinstance({} if input is None else input, dict):
        return input
    with _interruptible():
        return _completed(input or {}, field, schema, ())


def _completed(given: dict[str, Any], field: Field, schema: Schema, path: tuple[str, ...]) -> dict[str, Any]:
    completed = dict(given)
    for name in field.required:
        inner, here = field.field(name), (*path, name)
        known: Any = completed.get(name)
        if inner.required and (name not in completed or isinstance(known, dict)) and len(path) < _MAX_PROMPT_DEPTH:
            completed[name] = _completed(cast("dict[str, Any]", known or {}), inner, schema, here)
        elif name not in completed:
            completed[name] = _asked(inner, schema, here, {**completed})
    return completed


def _asked(field: Field, schema: Schema, path: tuple[str, ...], beside: dict[str, Any]) -> Any:
    """Ask until the schema accepts the answer; gives it."""
    default = _default(field)
    secret = field.first("format") == "password" or field.first("writeOnly") is True
    # click would show the default as it is; and an escaped one must not become the answer.
    shown = f" [{default[:_MAX_DEFAULT]}]" if default is not None and not secret else ""
    words = harmless(f"{'.'.join(path)} ({type_in_words(field)}){shown}").replace("\n", "\\n")
    about = one_line(str(field.first("description") or ""))
    if about:
        click.echo(about, err=True)
    while True:
        text = click.prompt(words, default=default, hide_input=secret, show_default=False, err=True, type=str)
        value = from_text(text, field)
        problem = _problem(value, path, schema, beside)
        if problem is None:
            return value
        click.echo(harmless(problem), err=True)


def _default(field: Field) -> str | None:
    default = field.first("default")
    return None if default is None else value_in_words(default)


def _problem(value: Any, path: tuple[str, ...], schema: Schema, beside: dict[str, Any]) -> str | None:
    """What the whole schema says of this place alone: it knows its references, this field by itself does not."""
    whole: Any = {**beside, path[-1]: value}
    for step in reversed(path[:-1]):
        whole = {step: whole}
    here = "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in path)
    try:
        problems = schema.problems(whole)
    except SchemaError:  # the call says so
        return None
    found = [each for each in problems if each.path == here or each.path.startswith(f"{here}/")]
    return found[0].message if found else None


@contextmanager
def _interruptible() -> Generator[None]:
    """Let ^C end a question at once: asyncio's own handler would only ask a task to end, which waits for the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
