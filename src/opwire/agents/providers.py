"""Tools in the form of a provider: definitions for its request, and messages with the results.

    tools = anthropic_tools(registry)
    response = client.messages.create(model=…, tools=tools.definitions, messages=messages)
    results = [await tools.handle(block) for block in response.content if block.type == "tool_use"]

Objects of the provider's package and their JSON form are both accepted; the package itself is not imported.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, TypeGuard, Unpack, cast

import msgspec
from msgspec import Struct

from opwire.agents.model_tools import Media, ModelTool, ModelToolOptions, ModelTools
from opwire.errors import UsageError
from opwire.model.context import Context
from opwire.registry import OperationRegistry
from opwire.runtime.text import shorten
from opwire.schema import JSONSchema
from opwire.schema.dialect import References
from opwire.typed.plain import as_dict, as_list

Message = dict[str, Any]
"""A definition, or a message, in the JSON form of a provider."""

_MAX_DESCRIPTION_CHARACTERS = 1_024  # OpenAI's limit
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_NO_CONTENT = "(no content)"  # some providers reject an empty text
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()

_NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_STRUCTURE_KEYWORDS = frozenset(
    "$ref $defs type properties required additionalProperties items enum const anyOf title description".split()
)
_STRICT_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
_OMITTED_KEYWORDS = frozenset("$schema $id $comment $anchor example examples deprecated readOnly writeOnly".split())
_NULL_SCHEMA = {"type": "null"}
_MAX_KEYWORD_NOTE_CHARACTERS = 300


class SchemaRules(Struct, frozen=True):
    """What a provider accepts.

    `closed`: objects without additional properties. `all_required`: every property is. `recursive`: a definition may
    refer to itself. `max_depth` and `max_properties` bound the whole schema.
    """

    keywords: frozenset[str]
    formats: frozenset[str] | None = None
    closed: bool = False
    all_required: bool = False
    recursive: bool = True
    max_depth: int = 100
    max_properties: int = 100_000


OPENAI_STRICT = SchemaRules(
    _STRUCTURE_KEYWORDS | _NUMBER_KEYWORDS | {"pattern", "format", "minItems", "maxItems"},
    _STRICT_FORMATS,
    closed=True,
    all_required=True,
    max_depth=10,
    max_properties=5_000,
)
ANTHROPIC_STRICT = SchemaRules(
    _STRUCTURE_KEYWORDS | {"format", "default"}, _STRICT_FORMATS | {"uri"}, closed=True, recursive=False
)
GEMINI = SchemaRules(
    (_STRUCTURE_KEYWORDS - {"const"}) | {"format", "minimum", "maximum", "minItems", "maxItems", "oneOf", "prefixItems"}
)


class ProviderTools(ModelTools, ABC):
    """Tools in the form of one provider; `openai_tools`, `anthropic_tools` and `gemini_tools` return them."""

    _rules: SchemaRules | None = None  # of every schema, or of the strict ones

    @property
    @abstractmethod
    def definitions(self) -> list[Message]:
        """The tools for a request to the model; current after changes of the registry."""

    @abstractmethod
    async def handle(self, call: Any, context: Context | None = None) -> Message:
        """Run the call that a model asked for and return the message with its result.

        An unknown tool, invalid arguments and a failed call are messages too: the model corrects itself by them.
        Pass the `context` of the operation that runs the model, if there is one.
        """

    def _converted(self, tool: ModelTool) -> dict[str, Any] | None:
        """Return the schema by the rules of the provider, or None if it cannot be expressed by them."""
        try:
            return None if self._rules is None else provider_schema(tool.schema, self._rules)
        except UnsupportedSchemaError:
            return None


# --- OpenAI -----------------------------------------------------------------------------------------------------------


class OpenAITools(ProviderTools):
    """Tools of OpenAI's Responses API, or of Chat Completions, which many other servers of models offer."""

    def __init__(
        self,
        registry: OperationRegistry,
        *,
        api: Literal["responses", "chat"] = "responses",
        strict: bool = True,
        **options: Unpack[ModelToolOptions],
    ) -> None:
        if api not in ("responses", "chat"):
            raise UsageError(f'api is "responses" or "chat", not {api!r}')
        super().__init__(registry, **options)
        self._api = api
        self._rules = OPENAI_STRICT if strict else None

    @property
    def definitions(self) -> list[Message]:
        definitions: list[Message] = []
        for tool in self.tools:
            strict = self._converted(tool)
            function: Message = {
                "name": tool.name,
                "description": shorten(tool.description, _MAX_DESCRIPTION_CHARACTERS - 1),
                "parameters": tool.schema if strict is None else strict,
                "strict": strict is not None,
            }
            definitions.append({"type": "function", **({"function": function} if self._api == "chat" else function)})
        return definitions

    def _input(self, tool: ModelTool, arguments: dict[str, Any]) -> Any:
        if self._converted(tool) is not None:
            arguments = cast("dict[str, Any]", without_nulls(arguments, tool.schema, References(tool.schema)))
        return super()._input(tool, arguments)

    async def handle(self, call: Any, context: Context | None = None) -> Message:
        function = _field(call, "function") if self._api == "chat" else call
        arguments: Any = _field(function, "arguments")
        if isinstance(arguments, str):  # OpenAI sends JSON; invalid JSON stays text, which is rejected
            with suppress(ValueError, RecursionError):
                arguments = _decoder.decode(arguments.strip() or "{}")
        outcome = await self.run(str(_field(function, "name")), arguments, context)
        if self._api == "chat":
            return {"role": "tool", "tool_call_id": _field(call, "id"), "content": outcome.text}
        output: str | list[Message] = outcome.text
        if any(map(_is_image, outcome.parts)):
            output = []
            for part in outcome.parts:
                if _is_image(part):
                    url = f"data:{part.media_type};base64,{part.data}"
                    output.append({"type": "input_image", "image_url": url, "detail": "auto"})
                else:
                    output.append({"type": "input_text", "text": str(part)})
        return {"type": "function_call_output", "call_id": _field(call, "call_id"), "output": output}


def openai_tools(
    registry: OperationRegistry,
    *,
    api: Literal["responses", "chat"] = "responses",
    strict: bool = True,
    **options: Unpack[ModelToolOptions],
) -> OpenAITools:
    """Return the operations of a registry as tools of OpenAI's API.

        tools = openai_tools(registry)
        response = client.responses.create(model=…, input=messages, tools=tools.definitions)
        messages += [await tools.handle(item) for item in response.output if item.type == "function_call"]

    `strict` schemas guarantee arguments that match them; a schema that cannot be strict is listed without. The
    `options` are those of `ModelTools`: `identity`, `timeout` (60), `max_chars` (50,000), `max_items` (100) and
    `max_seconds` (30).

    Raises:
        UsageError: an option is invalid.
    """
    return OpenAITools(registry, api=api, strict=strict, **options)


# --- Anthropic --------------------------------------------------------------------------------------------------------


class AnthropicTools(ProviderTools):
    """Tools of Anthropic's Messages API."""

    def __init__(
        self, registry: OperationRegistry, *, strict: bool = False, **options: Unpack[ModelToolOptions]
    ) -> None:
        super().__init__(registry, **options)
        self._rules = ANTHROPIC_STRICT if strict else None

    @property
    def definitions(self) -> list[Message]:
        definitions: list[Message] = []
        for tool in self.tools:
            strict = self._converted(tool)
            definition = {"name": tool.name, "description": tool.description, "input_schema": strict or tool.schema}
            definitions.append(definition if strict is None else {**definition, "strict": True})
        return definitions

    async def handle(self, call: Any, context: Context | None = None) -> Message:
        outcome = await self.run(str(_field(call, "name")), _field(call, "input"), context)
        content: list[Message] = []
        for part in outcome.parts:
            if _is_image(part):
                source = {"type": "base64", "media_type": part.media_type, "data": part.data}
                content.append({"type": "image", "source": source})
            else:
                content.append({"type": "text", "text": str(part) or _NO_CONTENT})
        message = {"type": "tool_result", "tool_use_id": _field(call, "id"), "content": content}
        return {**message, "is_error": True} if outcome.is_error else message


def anthropic_tools(
    registry: OperationRegistry, *, strict: bool = False, **options: Unpack[ModelToolOptions]
) -> AnthropicTools:
    """Return the operations of a registry as tools of Anthropic's API.

        tools = anthropic_tools(registry)
        response = client.messages.create(model=…, messages=messages, tools=tools.definitions, max_tokens=…)
        results = [await tools.handle(block) for block in response.content if block.type == "tool_use"]
        messages += [{"role": "assistant", "content": response.content}, {"role": "user", "content": results}]

    `strict` is as for `openai_tools`. The `options` are those of `ModelTools`: `identity`, `timeout` (60), `max_chars`
    (50,000), `max_items` (100) and `max_seconds` (30).

    Raises:
        UsageError: an option is invalid.
    """
    return AnthropicTools(registry, strict=strict, **options)


# --- Gemini -----------------------------------------------------------------------------------------------------------


class GeminiTools(ProviderTools):
    """Tools of Google's Gemini API."""

    _rules = GEMINI

    @property
    def definitions(self) -> list[Message]:
        """The tools for a request to the model: one entry, with all functions."""
        declarations: list[Message] = []
        for tool in self.tools:
            schema = self._converted(tool) or {"type": "object"}
            declarations.append({"name": tool.name, "description": tool.description, "parameters_json_schema": schema})
        return [{"function_declarations": declarations}] if declarations else []

    async def handle(self, call: Any, context: Context | None = None) -> Message:
        outcome = await self.run(str(_field(call, "name")), _field(call, "args") or {}, context)
        response: Message = {"name": _field(call, "name"), "response": {}}
        if _field(call, "id") is not None:
            response["id"] = _field(call, "id")
        response["response"] = {"error" if outcome.is_error else "output": outcome.text}
        images = [part for part in outcome.parts if _is_image(part)]
        if images:
            response["parts"] = [
                {"inline_data": {"mime_type": image.media_type, "data": image.data}} for image in images
            ]
        return {"function_response": response}


def gemini_tools(registry: OperationRegistry, **options: Unpack[ModelToolOptions]) -> GeminiTools:
    """Return the operations of a registry as tools of Google's Gemini API.

        tools = gemini_tools(registry)
        config = {"tools": tools.definitions}
        response = client.models.generate_content(model=…, contents=contents, config=config)
        parts = [await tools.handle(call) for call in response.function_calls or []]
        contents.append({"role": "user", "parts": parts})

    The `options` are those of `ModelTools`: `identity`, `timeout` (60), `max_chars` (50,000), `max_items` (100) and
    `max_seconds` (30).

    Raises:
        UsageError: an option is invalid.
    """
    return GeminiTools(registry, **options)


def _is_image(part: str | Media) -> TypeGuard[Media]:
    return isinstance(part, Media) and part.media_type in _IMAGE_TYPES


def _field(call: Any, name: str) -> Any:
    """Return a field of an object of a provider's package, or of its JSON form."""
    return cast("Mapping[str, Any]", call).get(name) if isinstance(call, Mapping) else getattr(call, name, None)


# --- schemas ----------------------------------------------------------------------------------------------------------
#
# Keywords that a provider does not know become part of the description, so that the model still reads them: the
# registry validates the input by the whole schema in any case. A strict schema guarantees arguments that match it: its
# objects are closed, and for some providers every property is required, so that an optional one becomes nullable. A
# schema that cannot be strict, such as an object with arbitrary properties, is passed unchanged.


class UnsupportedSchemaError(ValueError):
    """The schema cannot be expressed in the subset of a provider."""


def provider_schema(schema: dict[str, Any], rules: SchemaRules) -> dict[str, Any]:
    """Return an object schema in the subset of a provider.

    Raises:
        UnsupportedSchemaError: it cannot be expressed.
    """
    try:
        return _Conversion(schema, rules).convert_root()
    except RecursionError:
        raise UnsupportedSchemaError("it is nested too deeply") from None


class _Conversion:
    def __init__(self, root: dict[str, Any], rules: SchemaRules) -> None:
        self._root = root
        self._rules = rules
        self._properties = 0
        self._definitions = {**as_dict(root.get("definitions")), **as_dict(root.get("$defs"))}
        self._referred: dict[str, set[str]] = {}  # the definitions to which each definition refers; "" is the root
        self._place = ""

    def convert_root(self) -> dict[str, Any]:
        body = {key: value for key, value in self._root.items() if key not in ("$defs", "definitions")}
        converted = self._convert({"properties": {}, **body, "type": "object"}, 0)
        definitions: dict[str, Any] = {}
        referred_names = sorted(self._referred.get("", ()))
        while referred_names:
            self._place = name = referred_names.pop()
            if name not in definitions:
                definitions[name] = self._convert(self._definitions[name], 1)
                referred_names += sorted(self._referred.get(name, ()))
        if not self._rules.recursive:
            try:
                TopologicalSorter(self._referred).prepare()
            except CycleError:
                raise UnsupportedSchemaError("a definition refers to itself") from None
        return {**converted, "$defs": definitions} if definitions else converted

    def _convert(self, schema: JSONSchema, depth: int) -> dict[str, Any]:
        rules = self._rules
        if depth > rules.max_depth:
            raise UnsupportedSchemaError(f"it is nested deeper than {rules.max_depth}")
        if not isinstance(schema, dict):
            return self._convert({} if schema else {"not": {}}, depth)
        if "$ref" in schema:
            return self._refer(schema["$ref"])
        converted = self._keep(_merged(schema))
        for keyword in ("anyOf", "oneOf", "prefixItems"):
            if keyword in converted:
                converted[keyword] = [self._convert(branch, depth + 1) for branch in as_list(converted[keyword])]
        if "items" in converted:
            converted["items"] = self._convert(converted["items"], depth + 1)
        if "properties" in converted or converted.get("type") == "object":
            self._convert_object(converted, depth)
        if rules.closed and not converted.keys() & {"type", "anyOf", "enum", "const"}:
            raise UnsupportedSchemaError("a value may be anything")
        if rules.closed and "array" in _types(converted) and "items" not in converted:
            raise UnsupportedSchemaError("the items of an array may be anything")
        return converted

    def _keep(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords that the provider accepts, with the others in the description."""
        rules = self._rules
        if "oneOf" in schema and "oneOf" not in rules.keywords:
            schema["anyOf"] = [*as_list(schema.get("anyOf")), *as_list(schema.pop("oneOf"))]
        if "const" in schema and "const" not in rules.keywords:
            schema["enum"] = [schema.pop("const")]
        supported = {key: value for key, value in schema.items() if key in rules.keywords}
        if rules.formats is not None and str(supported.get("format", "")) not in rules.formats:
            supported.pop("format", None)
        notes: list[str] = []
        for keyword, value in schema.items():
            if (
                keyword not in supported
                and keyword not in _OMITTED_KEYWORDS
                and not (keyword == "default" and value is None)
            ):
                with suppress(TypeError, ValueError, RecursionError):
                    text = value if isinstance(value, str) else _encoder.encode(value).decode()
                    notes.append(f"{keyword}: {text[:_MAX_KEYWORD_NOTE_CHARACTERS]}")
        if notes:
            supported["description"] = f"{supported.get('description', '')} ({'; '.join(notes)})".strip()
        return supported

    def _refer(self, ref: Any) -> dict[str, Any]:
        for prefix in ("#/$defs/", "#/definitions/"):
            name = str(ref).removeprefix(prefix)
            if str(ref).startswith(prefix) and name in self._definitions:
                self._referred.setdefault(self._place, set()).add(name)
                return {"$ref": f"#/$defs/{name}"}
        raise UnsupportedSchemaError(f"the reference {str(ref)[:100]} is not to a definition")

    def _convert_object(self, schema: dict[str, Any], depth: int) -> None:
        rules = self._rules
        names = as_dict(schema.get("properties"))
        additional = schema.get("additionalProperties", True)
        self._properties += len(names)
        if self._properties > rules.max_properties:
            raise UnsupportedSchemaError(f"it has more than {rules.max_properties} properties")
        required = {name: None for name in as_list(schema.get("required")) if isinstance(name, str) and name in names}
        converted = {name: self._convert(property_schema, depth + 1) for name, property_schema in names.items()}
        if rules.closed:
            is_open = isinstance(additional, dict) or (additional is True and not names and depth > 0)
            if is_open:
                raise UnsupportedSchemaError("an object has any properties")
            additional = False
        elif isinstance(additional, dict):
            additional = self._convert(cast("dict[str, Any]", additional), depth + 1)
        if rules.all_required:
            converted = {
                name: property_schema if name in required else _nullable(property_schema)
                for name, property_schema in converted.items()
            }
            required = converted
        schema.update({"type": schema.get("type", "object"), "properties": converted, "required": list(required)})
        if additional is not True:
            schema["additionalProperties"] = additional


def _merged(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the branches of `allOf` that only add properties or describe it merged into it."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    branches = list(map(as_dict, as_list(schema.get("allOf"))))
    if any("$ref" in branch or "allOf" in branch for branch in branches):
        raise UnsupportedSchemaError("allOf cannot be merged")
    parts = [schema, *branches] if branches else []
    if any("properties" in part for part in parts):
        properties_of_parts = [as_dict(part.get("properties")) for part in parts]
        merged["properties"] = {name: value for properties in properties_of_parts for name, value in properties.items()}
    if any("required" in part for part in parts):
        merged["required"] = [name for part in parts for name in as_list(part.get("required"))]
    for branch in branches:
        for key, value in branch.items():
            if key in ("properties", "required"):
                continue
            if merged.setdefault(key, value) != value:
                raise UnsupportedSchemaError(f"the branches of allOf disagree in {key}")
    return merged


def _types(schema: dict[str, Any]) -> list[Any]:
    declared_type = schema.get("type")
    return cast("list[Any]", declared_type) if isinstance(declared_type, list) else [declared_type]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    types = _types(schema)
    if "null" in types:
        return schema
    if "anyOf" in schema:
        branches = as_list(schema["anyOf"])
        return schema if _NULL_SCHEMA in branches else {**schema, "anyOf": [*branches, _NULL_SCHEMA]}
    if "type" not in schema or "const" in schema:
        return {"anyOf": [schema, _NULL_SCHEMA]}
    enum = {"enum": [*as_list(schema["enum"]), None]} if "enum" in schema else {}
    return {**schema, **enum, "type": [*types, "null"]}


def without_nulls(value: Any, schema: JSONSchema, references: References) -> Any:
    """Return arguments without the nulls that a strict schema demands for absent optional properties."""
    resolved = as_dict(references.follow(schema))
    if isinstance(value, list) and "items" in resolved:
        return [without_nulls(element, resolved["items"], references) for element in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return cast("Any", value)
    arguments = cast("dict[str, Any]", value)
    branches = [
        as_dict(references.follow(branch)) for key in ("anyOf", "oneOf") for branch in as_list(resolved.get(key))
    ]
    objects = [
        resolved,
        *(branch for branch in branches if arguments.keys() <= as_dict(branch.get("properties")).keys()),
    ]
    objects += [as_dict(references.follow(branch)) for branch in as_list(resolved.get("allOf"))]
    properties = {
        name: property_schema
        for object_schema in objects
        for name, property_schema in as_dict(object_schema.get("properties")).items()
    }
    required = {name for object_schema in objects for name in as_list(object_schema.get("required"))}
    return {
        name: without_nulls(property_value, properties.get(name, True), references)
        for name, property_value in arguments.items()
        if property_value is not None
        or name in required
        or name not in properties
        or _allows_null(properties[name], references)
    }


def _allows_null(schema: JSONSchema, references: References) -> bool:
    resolved = as_dict(references.follow(schema))
    if not resolved.keys() & {"type", "enum", "const", "anyOf", "oneOf", "allOf"}:
        return True
    if "const" in resolved:
        return resolved["const"] is None
    if "enum" in resolved:
        return None in as_list(resolved["enum"])
    branches = [*as_list(resolved.get("anyOf")), *as_list(resolved.get("oneOf"))]
    if branches and "type" not in resolved:
        return any(_allows_null(branch, references) for branch in branches)
    return "null" in _types(resolved)
