"""Tools in the form of a provider: definitions for its request, and messages with the results.

    tools = anthropic_tools(registry)
    response = client.messages.create(model=…, tools=tools.definitions, messages=messages)
    results = [await tools.handle(block) for block in response.content if block.type == "tool_use"]

Objects of the provider's package and their JSON form are both accepted; the package itself is not imported.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, Unpack, cast

import msgspec

from opwire.errors import UsageError
from opwire.llm.model_tools import Media, ModelTool, ModelToolOptions, ModelTools
from opwire.llm.schemas import (
    ANTHROPIC_STRICT,
    GEMINI,
    OPENAI_STRICT,
    SchemaRules,
    UnsupportedSchemaError,
    provider_schema,
    without_nulls,
)
from opwire.operation import Context
from opwire.registry import OperationRegistry
from opwire.typed.plain import shorten

Message = dict[str, Any]
"""A definition, or a message, in the JSON form of a provider."""

_MAX_DESCRIPTION = 1_024  # characters, of OpenAI
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})  # that every provider shows
_NO_CONTENT = "(no content)"  # some providers reject an empty text
_decoder = msgspec.json.Decoder()


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
        `context` is that of the operation which runs the model, if there is one.
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
                "description": shorten(tool.description, _MAX_DESCRIPTION - 1),
                "parameters": tool.schema if strict is None else strict,
                "strict": strict is not None,
            }
            definitions.append({"type": "function", **({"function": function} if self._api == "chat" else function)})
        return definitions

    def _input(self, tool: ModelTool, arguments: dict[str, Any]) -> Any:
        if self._converted(tool) is not None:
            arguments = cast("dict[str, Any]", without_nulls(arguments, tool.schema, tool.schema))
        return super()._input(tool, arguments)

    async def handle(self, call: Any, context: Context | None = None) -> Message:
        function = _field(call, "function") if self._api == "chat" else call
        arguments: Any = _field(function, "arguments")
        if isinstance(arguments, str):  # OpenAI sends JSON; what is invalid is rejected as it is
            with suppress(ValueError, RecursionError):
                arguments = _decoder.decode(arguments.strip() or "{}")
        outcome = await self.run(str(_field(function, "name")), arguments, context)
        if self._api == "chat":
            return {"role": "tool", "tool_call_id": _field(call, "id"), "content": outcome.text}
        output: str | list[Message] = outcome.text
        if any(map(_is_image, outcome.parts)):
            output = []
            for part in outcome.parts:
                if isinstance(part, Media) and _is_image(part):
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

    `strict` schemas guarantee arguments that match them; a tool whose schema cannot be strict is listed without. The
    `options` are those of `ModelTools`.

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
            if isinstance(part, Media) and _is_image(part):
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

    `strict` and the `options` are as for `openai_tools`.

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
        images = [part for part in outcome.parts if isinstance(part, Media) and _is_image(part)]
        if images:
            response["parts"] = [{"inline_data": {"mime_type": each.media_type, "data": each.data}} for each in images]
        return {"function_response": response}


def gemini_tools(registry: OperationRegistry, **options: Unpack[ModelToolOptions]) -> GeminiTools:
    """Return the operations of a registry as tools of Google's Gemini API.

        tools = gemini_tools(registry)
        config = {"tools": tools.definitions}
        response = client.models.generate_content(model=…, contents=contents, config=config)
        parts = [await tools.handle(call) for call in response.function_calls or []]
        contents.append({"role": "user", "parts": parts})

    The `options` are those of `ModelTools`.

    Raises:
        UsageError: an option is invalid.
    """
    return GeminiTools(registry, **options)


def _is_image(part: str | Media) -> bool:
    return isinstance(part, Media) and part.media_type in _IMAGES


def _field(call: Any, name: str) -> Any:
    """Return a field of an object of a provider's package, or of its JSON form."""
    return cast("Mapping[str, Any]", call).get(name) if isinstance(call, Mapping) else getattr(call, name, None)
