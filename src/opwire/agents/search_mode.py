"""Search mode: three operations in place of a thousand.

    serve_mcp(search_mode(registry, pinned=["shop.order"]))

A model sees `tools_search`, `tools_describe` and `tools_call`, and what is pinned. It finds the other operations by a
request in plain words, as far as its caller may see them, and calls them by id: access, validation and the
interceptors of the registry apply as to any call.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from opwire.agents.tools import ToolSchema, collect_items, input_schema
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.operation import OperationSpec, OperationType
from opwire.names import UniqueNames
from opwire.registry import OperationRegistry, RegistryView
from opwire.registry.dispatch import Dispatcher
from opwire.registry.reshape import MORE
from opwire.registry.view import Pattern
from opwire.typed.plain import as_dict

_MAX_SEARCH_RESULTS = 50
_MAX_DESCRIBED_OPERATIONS = 10
_MAX_OPTIONAL_PARAMETERS = 4
_MAX_SUMMARY_CHARACTERS = 100
_MAX_MARKUP_CHARACTERS = 2_000
_MAX_TYPE_CHARACTERS = 40
_MAX_EXPANDED_TYPE_CHARACTERS = 400
_MAX_EXPANDED_FIELDS = 8
_MAX_PARAMETER_NAMES_CHARACTERS = 1_000
_MAX_EXPANDED_DEPTH = 9  # objects and unions count twice: some 4,000 parts
_MAX_TYPE_DEPTH = 3  # references, unions and arrays count
_MAX_UNION_PARTS = 4
_MAX_DESCRIBED_NAMESPACES = 20
_MAX_SUBSCRIPTION_ITEMS = 100
_MAX_SUBSCRIPTION_SECONDS = 10.0
_JSON_CHARACTERS_PER_TOKEN = 4  # tokenizers of models differ by some 20 %
_PYTHON_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "object",
    "null": "null",
}
# Not `plain_text`: a model reads `<name>` as a placeholder.
_HTML = re.compile(r"</?(?:p|a|b|i|em|strong|code|br|ul|ol|li|div|span|h[1-6])\b[^<>]{0,300}>", re.IGNORECASE)
_SEPARATORS = re.compile(r"\W+", re.ASCII)
_EMPTY: dict[str, Any] = {}
PUBLIC = AccessControl(public=True)
"""The access of these operations: what is found and called has its own rules."""

NOTHING_FOUND = "Nothing was found: use other words, or fewer."
"""The result of a search that finds nothing."""

HINT = "Its parameters: "
"""Stands before the signature of an operation in errors about its input: a model may have called it unseen."""

Query = Annotated[str, Meta(max_length=400, description="What you want to do, such as: close an issue")]
Limit = Annotated[int, Meta(ge=1, le=_MAX_SEARCH_RESULTS)]
Id = Annotated[str, Meta(description="The id of an operation, as the search returns it")]
Input = Annotated[dict[str, Any], Meta(description="The parameters of the operation, by name")]
Ids = Annotated[list[Id], Meta(min_length=1, max_length=_MAX_DESCRIBED_OPERATIONS)]


def search_mode(
    registry: OperationRegistry,
    *,
    pinned: Iterable[Pattern] = (),
    token_budget: int | None = None,
    namespace: str = "tools",
) -> OperationRegistry:
    """Return a registry with the operations `search`, `describe` and `call`, and those that are pinned.

    What it finds is all of `registry`: pass a view, and not `exclude` of a surface, to leave operations out.
    `pinned` are patterns, as those of a view. With `token_budget`, the registry itself is returned if the definitions
    of its operations take no more tokens than that.

    Raises:
        UsageError: an option is invalid.
    """
    if token_budget is not None and fits_budget(registry.list(), token_budget):
        return registry
    mode = registry.view(include=[*pinned] or [nothing])
    ToolSearch(registry).register(mode, namespace)
    return mode


def token_cost(spec: OperationSpec) -> int:
    """Estimate the tokens of an operation as a tool: its name, description and input schema."""
    try:
        schema = msgspec.json.encode(_schema(spec).schema)
    except (TypeError, ValueError, RecursionError):
        schema = b""
    texts = (spec.id, spec.title, spec.description if spec.description != spec.title else "")
    return (sum(map(len, texts)) + len(schema)) // _JSON_CHARACTERS_PER_TOKEN + 1


def fits_budget(specs: Iterable[OperationSpec], budget: int) -> bool:
    """Return whether all definitions together take at most `budget` tokens. Schemas beyond the budget are not built."""
    remaining_budget = budget
    for spec in specs:
        remaining_budget -= token_cost(spec)
        if remaining_budget < 0:
            return False
    return True


def signature(spec: OperationSpec, *, is_nested: bool = False) -> str:
    """Return an operation in a line of some 30 tokens: `shop.order(lines: list[str], note?: str)  Order articles.`

    With `is_nested`, the fields of objects are written out, `to: {city: str, zip?: str}` instead of `to: object`, and
    all optional parameters are named.
    """
    schema = _schema(spec).schema
    definitions = as_dict(schema.get("$defs") or schema.get("definitions"))
    properties = as_dict(schema.get("properties"))
    required = [name for name in schema.get("required", ()) if name in properties]
    optional = [name for name in properties if name not in required]
    type_of = partial(_type, definitions=definitions, is_nested=is_nested)
    parameters = [f"{name}: {type_of(properties[name])}" for name in required]
    parameters += [f"{name}?: {type_of(properties[name])}" for name in optional[:_MAX_OPTIONAL_PARAMETERS]]
    if others := ", ".join(f"{name}?" for name in optional[_MAX_OPTIONAL_PARAMETERS:]):
        parameters.append(others if is_nested and len(others) <= _MAX_PARAMETER_NAMES_CHARACTERS else "…")
    line = _HTML.sub("", (spec.title or spec.description)[:_MAX_MARKUP_CHARACTERS]).strip().partition("\n")[0]
    summary = line if len(line) <= _MAX_SUMMARY_CHARACTERS else f"{line[:_MAX_SUMMARY_CHARACTERS]}…"
    return f"{spec.id}({', '.join(parameters)})  {summary}".rstrip()


class ToolSearch:
    """The operations of search mode, for the caller of each."""

    def __init__(self, registry: OperationRegistry) -> None:
        self._registry = registry
        self._dispatcher = Dispatcher(registry)
        self._names: dict[str, str] = {}  # identifiers, by id
        self._ids: dict[str, str] = {}  # by identifier
        self._named_at = -1  # changes of the registry
        self._searching = ""  # the name of the tool that finds ids

    def register(self, mode: RegistryView, namespace: str) -> None:
        """Add the operations to the registry that the model sees."""
        specs = [spec for spec in self._registry.list() if spec.id != MORE]
        spaces = dict.fromkeys(spec.namespace for spec in specs)
        namespaces_text = ", ".join(islice(spaces, _MAX_DESCRIBED_NAMESPACES)) + (
            ", …" if len(spaces) > _MAX_DESCRIBED_NAMESPACES else ""
        )
        find, describe, call = (f"{namespace}_{name}" for name in ("search", "describe", "call"))  # as tools are named
        self._searching = find
        about = (
            f"Find operations by what they do, in plain words. There are {len(specs):,}, of {namespaces_text}. "
            "Returns a line for each: its id, its parameters (? is optional), what it does. "
            f"Pass the id to {call} to call it, or to {describe} for the schema of its input."
        )
        mode.query(f"{namespace}.search", description=about, access=PUBLIC)(self.search)
        about = f"Describe operations that {find} returned: what they do, and the JSON Schema of their input."
        mode.query(f"{namespace}.describe", description=about, access=PUBLIC)(self.describe)
        about = (
            f"Call an operation that {find} returned: its id as `operation`, and its parameters in `input`. "
            "Of a subscription the first items are returned."
        )
        mode.mutation(f"{namespace}.call", description=about, access=PUBLIC)(self.call)

    async def search(self, query: Query, context: Context, limit: Limit = 5) -> str:
        """Find operations by what they do, in plain words."""
        return "\n".join(map(signature, self.found(query, context, limit))) or NOTHING_FOUND

    def found(self, query: str, context: Context, limit: int) -> tuple[OperationSpec, ...]:
        """Return the operations that match a request, as far as the caller may see them."""
        is_visible = self.visible(context)
        return self._registry.search(query, limit=limit, visible=lambda spec: spec.id != MORE and is_visible(spec))

    async def describe(self, operations: Ids, context: Context) -> list[dict[str, Any]]:
        """Describe operations by their ids: what they do, and the JSON Schema of their input."""
        described: list[dict[str, Any]] = []
        for operation in operations:
            spec = self._find(operation, context)
            about = spec.description or spec.title
            described.append(
                {"id": spec.id, "type": spec.type.value, "description": about, "input": _schema(spec).schema}
            )
        return described

    async def call(self, context: Context, /, operation: Id, input: Input = _EMPTY, **beside: Any) -> Any:
        """Call an operation by its id, with its input. Of a subscription the first items are returned."""
        spec = self._find(operation, context)
        if beside:  # models flatten the two levels; a closed schema would only say that these are unexpected
            names = ", ".join(name[:_MAX_TYPE_CHARACTERS] for name in islice(beside, _MAX_UNION_PARTS))
            message = f"the parameters of {spec.id} belong in `input`: move {names} there"
            details = {"hint": f"{HINT}{signature(spec, is_nested=True)}"}
            raise CallError(ErrorCode.VALIDATION_ERROR, message, details)
        call_input = input.get("input") if _schema(spec).wraps else input
        try:
            if spec.type is not OperationType.SUBSCRIPTION:
                return await self._dispatcher.execute(spec, call_input, context)
            stream = self._dispatcher.subscribe(spec, call_input, context)
            items, _ = await collect_items(stream, _MAX_SUBSCRIPTION_ITEMS, _MAX_SUBSCRIPTION_SECONDS)
            return items
        except CallError as error:
            if error.code is not ErrorCode.VALIDATION_ERROR or "problems" not in as_dict(error.details):
                raise
            details = {"hint": f"{HINT}{signature(spec, is_nested=True)}", **as_dict(error.details)}
            raise CallError(error.code, error.message, details) from error

    def get(self, operation_id: str) -> OperationSpec | None:
        """Return an operation, whether the caller may see it or not."""
        return self._registry.get_spec(operation_id)

    def names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the operations as identifiers: names by id, and ids by name; the same for the same operations."""
        if self._named_at != self._registry.changes:
            self._named_at = self._registry.changes
            names = UniqueNames(longest=100)
            wishes = {spec.id: _SEPARATORS.sub("_", spec.id).strip("_") for spec in self._registry.list()}
            self._names = {
                id: names.take(wish if wish[:1].isalpha() else f"_{wish}") for id, wish in sorted(wishes.items())
            }
            self._ids = {name: id for id, name in self._names.items()}
        return self._names, self._ids

    def _find(self, operation_id: str, context: Context) -> OperationSpec:
        """Return an operation by its id, or by its name as a tool or function, which models write as well."""
        if operation_id not in self._registry:
            spec_of_name = self._registry.get_spec(self.names()[1].get(operation_id.replace("-", "_"), ""))
            if spec_of_name is not None and self.visible(context)(
                spec_of_name
            ):  # otherwise the name tells that it exists
                return spec_of_name
        try:
            if _is_checked(context):
                return self._dispatcher.find(operation_id, context.identity)
            spec = self._registry.get_spec(operation_id)
            if spec is None:
                raise self._registry.not_found(operation_id)
            return spec
        except CallError as error:
            if error.code is ErrorCode.OPERATION_NOT_FOUND and self._searching and "did you mean" not in error.message:
                hint = {"hint": f"{self._searching} returns the ids of operations."}
                raise CallError(error.code, error.message, hint) from error
            raise

    def visible(self, context: Context) -> Callable[[OperationSpec], bool]:
        """Return whether the caller of a context may see an operation."""
        if _is_checked(context):
            return lambda spec: self._dispatcher.is_visible(spec, context.identity)
        return self._dispatcher.is_served


def _is_checked(context: Context) -> bool:
    """Return whether a call comes from outside: one of this process without an identity is trusted, as `execute`."""
    return context.identity is not None or context.inbound is not None


def nothing(_: OperationSpec) -> bool:
    """Select no operation."""
    return False


def _schema(spec: OperationSpec) -> ToolSchema:
    try:
        return input_schema(spec.input_schema)
    except SchemaError:
        return ToolSchema({})


def _type(schema: Any, definitions: dict[str, Any], depth: int = 0, *, is_nested: bool = False) -> str:
    schema_dict = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    reference = str(schema_dict.get("$ref", "")).rpartition("/")[2]
    if depth > (_MAX_EXPANDED_DEPTH if is_nested else _MAX_TYPE_DEPTH):
        return "any"
    type_of = partial(_type, definitions=definitions, is_nested=is_nested)
    if reference:
        return type_of(definitions.get(reference), depth=depth + 1)
    parts = schema_dict.get("anyOf") or schema_dict.get("oneOf")
    if isinstance(parts, list):
        names = [type_of(part, depth=depth + 1 + is_nested) for part in cast("list[Any]", parts)[:_MAX_UNION_PARTS]]
    elif isinstance(choices := schema_dict.get("enum"), list):
        names = [repr(choice) for choice in cast("list[Any]", choices)[: 2 * _MAX_UNION_PARTS]]
    elif "const" in schema_dict:
        names = [repr(schema_dict["const"])]
    elif schema_dict.get("type") in ("array", ["array", "null"]):
        names = [f"list[{type_of(schema_dict.get('items'), depth=depth + 1)}]"]
    elif is_nested and isinstance(fields := schema_dict.get("properties"), dict):
        required = cast("list[str]", schema_dict.get("required") or [])
        shown_fields = islice(cast("dict[str, Any]", fields).items(), _MAX_EXPANDED_FIELDS)
        written = [
            f"{name}{'' if name in required else '?'}: {type_of(field_schema, depth=depth + 2)}"
            for name, field_schema in shown_fields
        ]
        names = [
            f"{{{', '.join(written)}{', …' if len(cast('dict[str, Any]', fields)) > _MAX_EXPANDED_FIELDS else ''}}}"
        ]
    else:
        kinds = schema_dict.get("type", "any")
        several = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]
        names = [_PYTHON_TYPES.get(str(kind), str(kind)) for kind in several]
    text = "|".join(dict.fromkeys(name for name in names if name not in ("null", "None"))) or "null"
    longest = _MAX_EXPANDED_TYPE_CHARACTERS if is_nested else _MAX_TYPE_CHARACTERS
    return text if len(text) <= longest else f"{text[:longest]}…"
