"""`generate_client`: the source of a typed Python client. No I/O.

    Path("shop.py").write_text(generate_client(await client.operations(), class_name="Shop"))

The generated class works with any client, and type checkers and editors understand it:

    shop = Shop(client)
    order = await shop.orders.place(lines=[{"article": "tea"}])

With `sync=True` it takes a `SyncClient`, and its methods block.
"""

import keyword
import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from opwire.client.codegen_types import (
    ANY,
    BYTES,
    FLOAT,
    OBJECT,
    TypeReader,
    Types,
    pascal,
    quoted,
    shadowed_in,
    shadowing,
    snake,
    written,
)
from opwire.errors import UsageError
from opwire.model.operation import OperationSpec, OperationType
from opwire.names import UniqueNames, counted
from opwire.runtime.text import shorten
from opwire.schema import Schema
from opwire.typed.plain import as_dict

_LINE_WIDTH = 112
_IMPORTED = (
    "Any AsyncGenerator Client Generator Literal NotRequired SyncClient TypeAlias TypedDict UNSET UnsetType".split()
)
_RESERVED_PARAMETERS = ("self", "timeout")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_WORD = re.compile(r"\w+")
_QUOTES = re.compile(r'"{3,}|"+\Z')
_MAX_DESCRIPTION_CHARACTERS = 10_000
_GIVEN_FUNCTION = """

def _given(input: dict[str, Any]) -> dict[str, Any]:
    \"""What was given, without what was left out.\"""
    return {name: value for name, value in input.items() if value is not UNSET}""".splitlines()


class _Parameter(NamedTuple):
    name: str
    key: str
    hint: str
    required: bool


class _Method(NamedTuple):
    spec: OperationSpec
    name: str
    parameters: list[_Parameter]
    whole: str | None  # the hint of an input that is passed as one argument
    optional: bool  # whether that argument is optional
    output: str

    @property
    def hints(self) -> list[str]:
        """Return the type hints of its signature."""
        return [self.output, self.whole or "None", *(parameter.hint for parameter in self.parameters), FLOAT]


class _Style(NamedTuple):
    """What differs between methods that are awaited and methods that block."""

    client: str
    module: str
    define: str
    wait: str
    generator: str
    further_type_parameters: str


_ASYNC_STYLE = _Style("Client", "opwire.client", "async def", "await ", "AsyncGenerator", "None")
_SYNC_STYLE = _Style("SyncClient", "opwire", "def", "", "Generator", "None, None")


class _Space(NamedTuple):
    namespace: str
    attribute: str
    class_name: str
    methods: list[_Method]
    hidden: frozenset[str]  # built-in types that methods of the class shadow


def generate_client(specs: Iterable[OperationSpec], *, class_name: str = "Operations", sync: bool = False) -> str:
    """Return the source of a module: a class with an attribute per namespace, and a method per operation.

    The class takes a `Client`, or with `sync` a `SyncClient`.

    Objects are TypedDicts: data stays plain, as `Client.call` returns it. The output is deterministic.

    Names, texts and values of the operations are escaped: the module always parses, and never executes them.

    Raises:
        UsageError: the class name is invalid, or one that the module imports.
    """
    if not class_name.isidentifier() or keyword.iskeyword(class_name) or class_name in _IMPORTED:
        reserved = ", ".join(_IMPORTED)
        raise UsageError(f"class_name is the name of a class, such as Shop, not {class_name!r}; reserved: {reserved}")
    listed = sorted({spec.id: spec for spec in specs}.values(), key=lambda spec: spec.id)
    names = UniqueNames([*_IMPORTED, class_name])
    attributes, types, spaces = UniqueNames(), Types(names), list[_Space]()
    for namespace, group in groupby(listed, key=lambda spec: spec.namespace):
        attribute = attributes.take(snake(namespace, "namespace"))
        of_class = names.take(f"{pascal(namespace, 'Namespace')}Operations")
        methods, method_names = list[_Method](), UniqueNames()
        for spec in group:
            name, wish = method_names.take(snake(spec.name, "operation")), pascal(spec.name, "Operation")
            parameters, whole, optional = _input(types.reader(spec.input_schema), f"{wish}Input", spec.input_schema)
            json, reader = as_dict(spec.output_schema.json), types.reader(spec.output_schema)
            is_binary = json.get("type") == "string" and "contentEncoding" in json
            output = BYTES if is_binary else reader.hint(reader.root, f"{wish}Output")
            methods.append(_Method(spec, name, parameters, whole, optional, output))
        spaces.append(_Space(namespace, attribute, of_class, methods, shadowing(method.name for method in methods)))
    style = _SYNC_STYLE if sync else _ASYNC_STYLE
    whole = [
        f"class {class_name}:",
        f'    """{counted(sum(len(space.methods) for space in spaces), "operation")}, by namespace."""',
        "",
        f"    def __init__(self, client: {style.client}) -> None:",
        *(f"        self.{space.attribute} = {space.class_name}(client)" for space in spaces),
        *([] if spaces else ["        self._client = client"]),
        "",
    ]
    classes = [*(_namespace_class(space, style) for space in spaces), "\n".join(whole)]
    return "\n\n".join([_header(spaces, types, style), *types.definitions.values(), *classes])


# --- methods ----------------------------------------------------------------------------------------------------------


def _input(reader: TypeReader, wish: str, schema: Schema) -> tuple[list[_Parameter], str | None, bool]:
    """Return how a method takes its input: as parameters, or as one argument."""
    if schema.is_unknown:
        return [], ANY, True
    root = reader.resolved(reader.root)
    properties = reader.properties(root)
    if not isinstance(root, dict) or root.get("type", "object") != "object":
        return [], reader.hint(reader.root, wish), False
    if properties is None:
        if "anyOf" in root or "oneOf" in root:
            return [], reader.hint(reader.root, wish), False
        is_empty = root.get("additionalProperties") is False or root.get("properties") == {}
        return [], None if is_empty else OBJECT, True
    declared, required = properties
    names = UniqueNames(_RESERVED_PARAMETERS)
    parameters = [
        _Parameter(
            names.take(snake(key, "field")),
            key,
            reader.hint(property_schema, f"{wish}{pascal(key, 'Field')}"),
            key in required,
        )
        for key, property_schema in declared.items()
    ]
    return sorted(parameters, key=lambda parameter: not parameter.required), None, False


def _signature(method: _Method, prefix: str, output: str, hidden: frozenset[str]) -> Iterator[str]:
    parts = ["self"]
    if method.whole is not None:
        hint = written(method.whole, hidden)
        parts.append(
            f"input: {hint}{' = None' if hint == ANY else ' | None = None'}" if method.optional else f"input: {hint}"
        )
    parts += [
        f"{parameter.name}: {written(parameter.hint, hidden)}" for parameter in method.parameters if parameter.required
    ]
    parts.append("*")
    parts += [
        f"{parameter.name}: {written(parameter.hint, hidden)} | UnsetType = UNSET"
        for parameter in method.parameters
        if not parameter.required
    ]
    parts.append(f"timeout: {written(FLOAT, hidden)} | None = None")
    line = f"    {prefix} {method.name}({', '.join(parts)}) -> {output}:"
    if len(line) <= _LINE_WIDTH:
        yield line
        return
    yield f"    {prefix} {method.name}("
    yield from (f"        {part}," for part in parts)
    yield f"    ) -> {output}:"


def _input_expression(method: _Method) -> list[str]:
    """Return the lines of the expression for the input; an empty list without an input."""
    if method.whole is not None:
        return ["input"]
    if not method.parameters:
        return []
    pairs = [f"{quoted(parameter.key)}: {parameter.name}" for parameter in method.parameters]
    opening, closing = ("{", "}") if all(parameter.required for parameter in method.parameters) else ("_given({", "})")
    line = f"{opening}{', '.join(pairs)}{closing}"
    return [line] if len(line) <= _LINE_WIDTH - 12 else [opening, *(f"    {pair}," for pair in pairs), closing]


# --- the module -------------------------------------------------------------------------------------------------------


def _header(spaces: list[_Space], types: Types, style: _Style) -> str:
    """Return the docstring and the imports that the rest needs."""
    methods = [method for space in spaces for method in space.methods]
    hints = [*types.hints, *(hint for method in methods for hint in method.hints)]
    words = set(_WORD.findall(" ".join(_TEXT.sub("", hint) for hint in hints)))
    optional = any(not parameter.required for method in methods for parameter in method.parameters)
    streams = any(method.spec.type is OperationType.SUBSCRIPTION for method in methods)
    typing = {name for name in ("Any", "Literal", "NotRequired", "TypeAlias", "TypedDict") if name in words}
    number = counted(len(methods), "operation")
    lines = [
        f'"""A typed client of {number}, written by `opwire gen client`: the next run replaces it."""',
        "",
        "from __future__ import annotations",
        "",
    ]
    if any(space.hidden & shadowed_in(hint) for space in spaces for method in space.methods for hint in method.hints):
        lines.append("import builtins")
    if streams:
        lines.append(f"from collections.abc import {style.generator}")
    if typing or optional:
        lines.append(f"from typing import {', '.join(sorted(typing | ({'Any'} if optional else set())))}")
    lines += ["", *(["from msgspec import UNSET, UnsetType", ""] if optional else [])]
    lines += [f"from {style.module} import {style.client}", *(_GIVEN_FUNCTION if optional else [])]
    return "\n".join(lines).replace("\n\n\nfrom", "\n\nfrom") + "\n"


def _namespace_class(space: _Space, style: _Style) -> str:
    lines = [
        f"class {space.class_name}:",
        f'    """The operations of {_in_docstring(_printable(space.namespace))}."""',
        "",
        f"    def __init__(self, client: {style.client}) -> None:",
        "        self._client = client",
    ]
    for method in space.methods:
        streams = method.spec.type is OperationType.SUBSCRIPTION
        output = written(method.output, space.hidden)
        prefix, verb = style.define, f"{style.wait}self._client.call"
        if streams:
            prefix, verb = "def", "self._client.subscribe"
            output = f"{style.generator}[{output}, {style.further_type_parameters}]"
        lines += ["", *_signature(method, prefix, output, space.hidden), *_docstring(method.spec)]
        id, input = quoted(method.spec.id), _input_expression(method)
        line = f"        return {verb}({id}, {''.join(input)}{', ' if input else ''}timeout=timeout)"
        if len(line) <= _LINE_WIDTH and len(input) <= 1:
            lines.append(line)
            continue
        lines += [f"        return {verb}(", f"            {id},"]
        lines += [f"            {line}{',' if number == len(input) else ''}" for number, line in enumerate(input, 1)]
        lines += ["            timeout=timeout,", "        )"]
    return "\n".join(lines) + "\n"


def _docstring(spec: OperationSpec) -> Iterator[str]:
    said = [_printable(text) for text in (spec.title, spec.description)]
    text = "\n\n".join(dict.fromkeys(paragraph for paragraph in said if paragraph))
    wrapped = [
        part
        for line in textwrap.dedent(text or _printable(spec.id)).splitlines()
        for part in (textwrap.wrap(line, _LINE_WIDTH - 8, break_long_words=False, break_on_hyphens=False) or [""])
    ]
    lines = _in_docstring("\n".join(wrapped)).split("\n")
    if len(lines) == 1:
        yield f'        """{lines[0]}"""'
        return
    yield f'        """{lines[0]}'
    yield from (f"        {line}".rstrip() for line in lines[1:])
    yield '        """'


def _printable(text: str) -> str:
    """Replace control characters and surrogates, which are invalid in source files, and truncate."""
    cut = shorten(text, _MAX_DESCRIPTION_CHARACTERS).replace("\r\n", "\n")
    return "".join(character if character.isprintable() or character == "\n" else " " for character in cut).strip()


def _in_docstring(text: str) -> str:
    """Escape printable text for a docstring: it can neither close the quotes nor escape the closing ones."""
    return _QUOTES.sub(lambda quotes: '\\"' * len(quotes[0]), text.replace("\\", "\\\\"))
