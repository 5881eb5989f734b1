"""The input of an operation on the command line: parsed, summarised, and completed by prompts.

count=5         typed by the schema: a number if the schema accepts numbers, otherwise the string "5"
a.b=1           a nested field; lines.0.article=tea the field of an item
tags=x tags=y   a list, also tags[]=x tags[]=y
count:=5        JSON, ignoring the schema
photo=@cat.png  the content of a file, encoded as base64 if the schema asks for it
'{"a": 1}'      the whole input as JSON; @input.json from a file, - from standard input

`SchemaField` is a lenient view of a JSON Schema, for typing, prompting and explaining. It does not validate: the schema
itself does that when the operation is called. Schemas come from foreign servers, so invalid keywords are ignored.
"""

import re
import shlex
import signal
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, cast

import click
import msgspec

from opwire.cli.screen import harmless, one_line
from opwire.cli.text import summary
from opwire.errors import SchemaError
from opwire.model.operation import OperationSpec
from opwire.names import similar_names, suggestion
from opwire.schema import Schema
from opwire.schema.dialect import References, escaped
from opwire.typed.plain import as_dict, as_list, read_json

_MAX_SUBSCHEMAS_OF_FIELD = 200  # the rest of a larger union is ignored
_MAX_SUMMARY_DEPTH = 4  # for examples and prompts, too; `describe --json` prints the whole schema
_MAX_CHOICES = 12
_MAX_INDEX_DIGITS = 6
_MAX_DEFAULT_CHARACTERS = 200
_QUOTES = (
    "; JSON has double quotes, and a shell removes them: put single quotes around the whole argument, as in "
    """'key={"a": "b"}'"""
)
_NO_VALUE = object()
_PAIR = re.compile(r"(?!:=)([^=]+?)(:?=)(.*)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d{1,4000}")  # int() raises above 4,300 digits
_PLAIN_KEY = re.compile(r"\w[\w-]*")
_decoder = msgspec.json.Decoder(Any)

_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    NoneType: "null",
}
_SAMPLES = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
_FORMAT_SAMPLES = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00",
    "email": "ann@example.org",
    "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_CONSTRAINTS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matches {}",
    "format": "format {}",
}


class SchemaField:
    """One field of a schema. `nodes` are the schemas that apply to it, or may apply, through references and unions."""

    def __init__(self, schema: Any, references: References | None = None) -> None:
        self._references = References(schema) if references is None else references
        self.nodes: list[dict[str, Any]] = []
        self._certain: list[dict[str, Any]] = []  # those outside `anyOf` and `oneOf`
        pending: list[tuple[Any, bool]] = [(schema, True)]
        seen: set[int] = set()
        while pending and len(seen) < _MAX_SUBSCHEMAS_OF_FIELD:
            node, certain = pending.pop()
            if not isinstance(node, dict) or id(node) in seen:  # pyright: ignore[reportUnknownArgumentType]
                continue
            node = cast("dict[str, Any]", node)
            seen.add(id(node))
            self.nodes.append(node)
            if certain:
                self._certain.append(node)
            children: list[tuple[Any, bool]] = []
            if isinstance(node.get("$ref"), str):
                with suppress(SchemaError):
                    children.append((self._references.resolve(node["$ref"]), certain))
            for keyword in ("allOf", "anyOf", "oneOf"):
                children += [(subschema, certain and keyword == "allOf") for subschema in as_list(node.get(keyword))]
            pending += reversed(children)

    def first(self, keyword: str) -> Any:
        """Return the first value of a keyword, or None."""
        return next((node[keyword] for node in self.nodes if keyword in node), None)

    @cached_property
    def choices(self) -> list[Any]:
        """The values of `enum` and `const`."""
        choices: list[Any] = []
        for node in self.nodes:
            choices += as_list(node.get("enum"))
            choices += [node["const"]] if "const" in node else []
        return choices

    @cached_property
    def kinds(self) -> list[str]:
        """The accepted JSON types in the order of the schema; empty if the schema does not restrict them."""
        kinds: dict[str, None] = {}
        for node in self.nodes:
            declared = node.get("type")
            kinds |= dict.fromkeys(_strings([declared] if isinstance(declared, str) else declared))
            if "properties" in node:
                kinds["object"] = None
            if "items" in node:
                kinds["array"] = None
        return list(kinds or dict.fromkeys(_KINDS[type(choice)] for choice in self.choices if type(choice) in _KINDS))

    @cached_property
    def required(self) -> list[str]:
        """The names of required fields; fields that only one alternative of a union requires are optional."""
        return list(dict.fromkeys(name for node in self._certain for name in _strings(node.get("required"))))

    @cached_property
    def fields(self) -> dict[str, "SchemaField"]:
        """The declared fields by name."""
        fields: dict[str, SchemaField] = {}
        for node in self.nodes:
            for name, schema in as_dict(node.get("properties")).items():
                if name not in fields:
                    fields[name] = SchemaField(schema, self._references)
        return fields

    def field(self, name: str) -> "SchemaField":
        """Return a declared field, or what the schema says of undeclared ones (`additionalProperties`)."""
        return self.fields.get(name) or SchemaField(self.first("additionalProperties"), self._references)

    @cached_property
    def items(self) -> "SchemaField":
        """The items of an array."""
        return SchemaField(self.first("items"), self._references)


def _strings(value: Any) -> list[str]:
    return [element for element in as_list(value) if isinstance(element, str)]


# --- parse ------------------------------------------------------------------------------------------------------------


def read_input(words: Sequence[str], field: SchemaField, *, stdin: Callable[[], bytes] | None = None) -> Any:
    """Parse words into an input; return None without words.

    Raises:
        click.UsageError: a word is invalid, or a file is missing.
    """
    whole: Any = _NO_VALUE
    first = words[0] if words else ""
    if first == "-":
        whole = _parse_json((stdin or sys.stdin.buffer.read)(), "standard input")
    elif first.startswith("@"):
        whole = _parse_json(_read_file(first[1:]), first[1:])
    elif first.startswith(("{", "[")):
        whole = _parse_json(first.encode(), "the input", _QUOTES)
    input: dict[str, Any] = {}
    for word in words if whole is _NO_VALUE else words[1:]:
        if pair := _PAIR.fullmatch(word):
            _assign(input, field, *pair.groups())
        elif len(words) == 1 and field.kinds and "object" not in field.kinds:
            return from_text(word, field)
        else:
            raise click.UsageError(
                f"invalid input {word!r}: expected key=value or key:=JSON, or as the first word the whole input: JSON, "
                "@file, or - for standard input"
            )
    if whole is _NO_VALUE:
        return input or None
    if not input:
        return whole
    if not isinstance(whole, dict):
        raise click.UsageError("key=value needs a JSON object before it; the whole input is not an object")
    return cast("dict[str, Any]", whole) | input


def _assign(input: dict[str, Any], field: SchemaField, key: str, sign: str, text: str) -> None:
    """Set `key` to the parsed text. Dots separate nested fields unless the schema declares the key with its dots.

    A number is the index of an item where the schema has a list, or nothing; `[]` at the end appends to a list.
    """
    steps = [key] if key in field.fields else key.split(".")
    appends = steps[-1].endswith("[]") and steps[-1] not in field.fields
    steps[-1] = steps[-1].removesuffix("[]") if appends else steps[-1]
    parent: Any = input
    for step, following in pairwise(steps):
        field = field.items if isinstance(parent, list) else field.field(step)
        is_index = following.isdecimal() and following.isascii() and following not in field.fields
        empty: Any = [] if is_index and field.kinds in ([], ["array"]) else {}
        inner = _entry(parent, step, key)
        if inner is _NO_VALUE:
            inner = empty
            _set_entry(parent, step, inner)
        if type(inner) is not type(empty):
            expected = "a list" if isinstance(empty, list) else "an object"
            raise click.UsageError(f"{key!r} conflicts with another argument: {step!r} is not {expected}")
        parent = inner
    field = field.items if isinstance(parent, list) else field.field(steps[-1])
    target = field.items if appends else field
    value = _parse_json(text.encode(), key, _QUOTES) if sign == ":=" else _read_value(text, target, key)
    value = [value] if appends else value
    before = _entry(parent, steps[-1], key)
    if before is _NO_VALUE:
        _set_entry(parent, steps[-1], value)  # the first of several items is a list already if the schema says so
    elif isinstance(before, list) and isinstance(value, list):
        cast("list[Any]", before).extend(cast("list[Any]", value))
    elif not field.kinds and not appends and isinstance(parent, dict):
        parent[steps[-1]] = [*(before if isinstance(before, list) else [before]), value]
    else:
        raise click.UsageError(f"{key!r} is given twice and is not a list")


def _entry(container: Any, step: str, key: str) -> Any:
    """Return the value in a list or an object, or _NO_VALUE."""
    if isinstance(container, dict):
        return cast("dict[str, Any]", container).get(step, _NO_VALUE)
    items = cast("list[Any]", container)
    index = int(step) if len(step) < _MAX_INDEX_DIGITS and step.isdecimal() else len(items) + 1
    if index > len(items):
        raise click.UsageError(f"{key!r}: item {len(items)} of the list is missing; items are given in order from 0")
    return items[index] if index < len(items) else _NO_VALUE


def _set_entry(container: Any, step: str, value: Any) -> None:
    if isinstance(container, dict):
        container[step] = value
    else:
        container.append(value)


def _read_value(text: str, field: SchemaField, key: str) -> Any:
    if not text.startswith("@"):
        value = item = from_text(text, field)
        while isinstance(item, list) and item == [text]:  # a list with the text as its only item
            item, field = text, field.items
        if item == text and text.startswith(("{", "[")) and field.kinds and "string" not in field.kinds:
            _parse_json(text.encode(), key, _QUOTES)
        return value
    content = _read_file(text[1:])
    if field.first("contentEncoding") == "base64" or field.first("format") in ("byte", "binary"):
        return b64encode(content).decode()
    try:
        return from_text(content.decode(), field)
    except UnicodeDecodeError:
        raise click.UsageError(f"{text[1:]}: not UTF-8 text, and the field does not accept base64") from None


def from_text(text: str, field: SchemaField) -> Any:
    """Return the text as a value of the field's type. Text that does not fit stays text, for validation to explain."""
    for choice in field.choices:
        if text == value_text(choice):
            return choice
    if not field.kinds or "string" in field.kinds:
        return text
    for kind in field.kinds:
        if kind == "integer":
            value: object = int(text) if _INTEGER.fullmatch(text) else _NO_VALUE
        else:
            try:
                value = msgspec.json.decode(text.lower() if kind == "boolean" else text)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                value = _NO_VALUE
        if _KINDS.get(type(value)) in ({"number", "integer"} if kind == "number" else {kind}):
            return value
        if kind == "array":
            return [from_text(text, field.items)]
    return text


def _parse_json(text: bytes, where: str, hint: str = "") -> Any:
    try:
        return read_json(_decoder, text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{where}: invalid JSON: {error}{hint}") from None


def _read_file(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise click.UsageError(f"{name}: cannot read the file: {error.strerror}") from None


# --- summarise --------------------------------------------------------------------------------------------------------


class FieldSummary(NamedTuple):
    """One line about a field; `note` has its description, constraints and default."""

    depth: int
    name: str
    type: str
    note: str
    required: bool


def schema_summary(field: SchemaField, depth: int = 0) -> Iterator[FieldSummary]:
    """Yield the fields of a schema, required ones first, each followed by its nested fields."""
    if depth >= _MAX_SUMMARY_DEPTH:
        return
    inner = field.items if "array" in field.kinds and not field.fields else field
    required = frozenset(inner.required)
    for name, subfield in sorted(inner.fields.items(), key=lambda item: item[0] not in required):
        about = summary(str(subfield.first("description") or subfield.first("title") or ""))
        more = [
            words.format(subfield.first(keyword)) for keyword, words in _CONSTRAINTS.items() if subfield.first(keyword)
        ]
        default = subfield.first("default")
        more += [f"default {value_text(default)}"] if default is not None else []
        note = one_line("; ".join(filter(None, (about.removesuffix(".") if more else about, *more))))
        yield FieldSummary(depth, name, type_name(subfield), note, name in required)
        yield from schema_summary(subfield, depth + 1)


def type_name(field: SchemaField) -> str:
    """Return `list of string`, `integer or null`, `one of red, green`."""
    if field.choices and len(field.choices) <= _MAX_CHOICES:
        words = ", ".join(map(value_text, field.choices))
        return words if len(field.choices) == 1 else f"one of {words}"
    kinds = [f"list of {type_name(field.items)}" if kind == "array" else kind for kind in field.kinds]
    return " or ".join(kinds) or "anything"


def value_text(value: Any) -> str:
    """Return a string unchanged, other values encoded as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def example_input(spec: OperationSpec) -> Any:
    """Return the first example of the spec, or one built from the required fields of the schema."""
    if spec.examples:
        return spec.examples[0]
    field = SchemaField(spec.input_schema.json)
    return _sample(field, 0) if field.nodes else None


def _sample(field: SchemaField, depth: int) -> Any:
    for keyword in ("default", "example"):
        if field.first(keyword) is not None:
            return field.first(keyword)
    if examples := [*as_list(field.first("examples")), *field.choices]:
        return examples[0]
    kind = field.kinds[0] if field.kinds else "string"
    if kind == "object":
        names = field.required if depth < _MAX_SUMMARY_DEPTH else ()
        return {name: _sample(field.field(name), depth + 1) for name in names}
    if kind == "array":
        return [_sample(field.items, depth + 1)] if depth < _MAX_SUMMARY_DEPTH else []
    if kind == "string":
        return _FORMAT_SAMPLES.get(str(field.first("format")), "text")
    minimum = field.first("minimum")
    if kind in ("integer", "number") and type(minimum) in (int, float):
        return max(_SAMPLES[kind], minimum)
    return _SAMPLES.get(kind)


def example_command(spec: OperationSpec, verb: str, options: Iterable[str] = ()) -> str:
    """Return a command that calls the operation, quoted for a shell. `options` name its sources."""
    input, field = example_input(spec), SchemaField(spec.input_schema.json)
    words: list[str] = []
    if isinstance(input, dict) and all(isinstance(key, str) and _PLAIN_KEY.fullmatch(key) for key in input):  # pyright: ignore[reportUnknownVariableType]
        for key, value in msgspec.to_builtins(input).items():
            text = value_text(value)
            is_typed = not text.startswith("@") and from_text(text, field.field(key)) == value  # @ names a file
            words.append(f"{key}={text}" if is_typed else f"{key}:={msgspec.json.encode(value).decode()}")
    elif input is not None:
        words.append(msgspec.json.encode(input).decode())
    return shlex.join(["opwire", verb, *options, spec.id, *words])


# --- complete ---------------------------------------------------------------------------------------------------------

_MAX_COMPLETIONS = 200
_MAX_COMPLETION_CHARACTERS = 200


def completed_fields(field: SchemaField, prefix: str = "", depth: int = 0) -> dict[str, list[str]]:
    """Return the keys of an input with their known values, required ones first: `{"size": ["s", "m"], "a.0.b": []}`."""
    completions: dict[str, list[str]] = {}
    required = frozenset(field.required)
    for name, subfield in sorted(field.fields.items(), key=lambda item: item[0] not in required):
        items = subfield.items if "array" in subfield.kinds and not subfield.fields else None
        inner = subfield if items is None else items
        if inner.fields and depth < _MAX_SUMMARY_DEPTH:
            completions |= completed_fields(inner, f"{prefix}{name}.{'' if items is None else '0.'}", depth + 1)
        elif len(prefix + name) <= _MAX_COMPLETION_CHARACTERS and name.isprintable() and "=" not in name:
            choices = inner.choices or ([True, False] if subfield.kinds == ["boolean"] else [])
            words = [
                word
                for choice in choices
                if len(word := value_text(choice)) <= _MAX_COMPLETION_CHARACTERS and word.isprintable()
            ]
            completions[prefix + name] = words[:_MAX_COMPLETIONS]
        if len(completions) >= _MAX_COMPLETIONS:
            break
    return dict(list(completions.items())[:_MAX_COMPLETIONS])


# --- prompt -----------------------------------------------------------------------------------------------------------


def complete_input(input: Any, schema: Schema) -> Any:
    """Prompt for the required fields that are missing from the input.

    Raises:
        UsageError: a field is unknown, and so may be a required one that is misspelt.
    """
    field = SchemaField(schema.json)
    if not field.required or not isinstance({} if input is None else input, dict):
        return input
    if field.first("additionalProperties") is False and field.first("patternProperties") is None:
        for name in as_dict(input):
            if name not in field.fields:
                raise click.UsageError(f"unknown field {name!r}{suggestion(similar_names(name, field.fields))}")
    # ^C must end a prompt at once: asyncio's own handler only cancels a task, which waits for the prompt to return.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _complete(input or {}, field, schema, ())
    finally:
        signal.signal(signal.SIGINT, before)


def _complete(input: dict[str, Any], field: SchemaField, schema: Schema, path: tuple[str, ...]) -> dict[str, Any]:
    completed = dict(input)
    for name in field.required:
        inner, here = field.field(name), (*path, name)
        current_value: Any = completed.get(name)
        if (
            inner.required
            and (name not in completed or isinstance(current_value, dict))
            and len(path) < _MAX_SUMMARY_DEPTH
        ):
            completed[name] = _complete(cast("dict[str, Any]", current_value or {}), inner, schema, here)
        elif name not in completed:
            completed[name] = _prompt(inner, schema, here, completed)
    return completed


def _prompt(field: SchemaField, schema: Schema, path: tuple[str, ...], siblings: dict[str, Any]) -> Any:
    """Prompt until the schema accepts the value, and return it."""
    default = field.first("default")
    default = None if default is None else value_text(default)
    secret = field.first("format") == "password" or field.first("writeOnly") is True
    # Not click's own display of the default: it would print control characters, and an escaped default must not become
    # the value.
    default_text = f" [{default[:_MAX_DEFAULT_CHARACTERS]}]" if default is not None and not secret else ""
    kind = type_name(field)
    kind += " as JSON" if kind.endswith("object") else ""
    words = harmless(f"{'.'.join(path)} ({kind}){default_text}").replace("\n", "\\n")
    if about := summary(str(field.first("description") or "")):
        click.echo(harmless(about), err=True)
    while True:
        text = click.prompt(words, default=default, hide_input=secret, show_default=False, err=True, type=str)
        value = from_text(text, field)
        problem = _problem(schema, path, {**siblings, path[-1]: value})
        if problem is None:
            return value
        click.echo(harmless(problem), err=True)


def _problem(schema: Schema, path: tuple[str, ...], value: Any) -> str | None:
    """Return the first problem of the field at `path`, according to the whole schema, which resolves references."""
    for step in reversed(path[:-1]):
        value = {step: value}
    pointer = "".join(f"/{escaped(step)}" for step in path)
    with suppress(SchemaError):  # raised again by the call
        for problem in schema.problems(value):
            if problem.path == pointer or problem.path.startswith(f"{pointer}/"):
                return problem.message
    return None
