"""Tools of agent frameworks: pydantic-ai, LangChain and the OpenAI Agents SDK. Each is imported when it is used.

agent = Agent(model, toolsets=[pydantic_ai_toolset(registry)])
agent = create_agent(model, langchain_tools(registry))
agent = Agent(name="shop", tools=openai_agents_tools(registry))
"""

from base64 import b64decode
from importlib import import_module
from typing import Any, Unpack

from opwire.agents.model_tools import Media, ModelTool, ModelToolOptions, ModelTools
from opwire.agents.providers import OpenAITools
from opwire.errors import ErrorCode, MissingExtraError
from opwire.registry import OperationRegistry

_CORRECTABLE_CODES = frozenset({ErrorCode.VALIDATION_ERROR, ErrorCode.OPERATION_NOT_FOUND})


def _package(module: str, distribution: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{module} is not installed: pip install {distribution}") from error


def pydantic_ai_toolset(registry: OperationRegistry, **options: Unpack[ModelToolOptions]) -> Any:
    """Return a `Toolset` of pydantic-ai with the operations of a registry; each step of a run sees its changes.

    Arguments that the operation rejects are a `ModelRetry`, every other failure is a `ToolFailed`. The `options` are
    those of `ModelTools`.

    Raises:
        MissingExtraError: pydantic-ai is not installed.
        UsageError: an option is invalid.
    """
    ai = _package("pydantic_ai", "pydantic-ai-slim")
    toolsets, definitions = import_module("pydantic_ai.toolsets"), import_module("pydantic_ai.tools")
    failed = import_module("pydantic_ai.exceptions").ToolFailed
    core = import_module("pydantic_core")
    anything = core.SchemaValidator(core.core_schema.dict_schema())  # the registry validates
    tools = ModelTools(registry, **options)

    class OperationToolset(toolsets.AbstractToolset):
        id = "opwire"

        async def get_tools(self, ctx: Any) -> dict[str, Any]:
            toolset_tools: dict[str, Any] = {}
            for tool in tools.tools:
                defined = definitions.ToolDefinition(
                    name=tool.name, description=tool.description, parameters_json_schema=tool.schema
                )
                toolset_tools[tool.name] = toolsets.ToolsetTool(
                    toolset=self, tool_def=defined, max_retries=1, args_validator=anything
                )
            return toolset_tools

        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
            outcome = await tools.run(name, tool_args)
            if outcome.is_error:
                raise (ai.ModelRetry if outcome.code in _CORRECTABLE_CODES else failed)(outcome.text)
            parts = [
                ai.BinaryContent(b64decode(part.data), media_type=part.media_type) if isinstance(part, Media) else part
                for part in outcome.parts
            ]
            return parts[0] if len(parts) == 1 else parts

    return OperationToolset()


def langchain_tools(registry: OperationRegistry, **options: Unpack[ModelToolOptions]) -> list[Any]:
    """Return the operations of a registry as tools of LangChain, for `ainvoke`.

    The `options` are those of `ModelTools`.

    Raises:
        MissingExtraError: langchain-core is not installed.
        UsageError: an option is invalid.
    """
    langchain = _package("langchain_core.tools", "langchain-core")
    tools = ModelTools(registry, **options)

    def convert(tool: ModelTool) -> Any:
        async def call(**arguments: Any) -> Any:
            outcome = await tools.run(tool.name, arguments)
            if outcome.is_error:
                raise langchain.ToolException(outcome.text)
            if not any(isinstance(part, Media) for part in outcome.parts):
                return outcome.text
            return [
                {"type": part.media_type.partition("/")[0], "base64": part.data, "mime_type": part.media_type}
                if isinstance(part, Media)
                else {"type": "text", "text": part}
                for part in outcome.parts
            ]

        return langchain.StructuredTool(
            name=tool.name,
            description=tool.description or tool.name,
            args_schema={"properties": {}, **tool.schema},
            coroutine=call,
            handle_tool_error=True,
        )

    return [convert(tool) for tool in tools.tools]


def openai_agents_tools(
    registry: OperationRegistry, *, strict: bool = True, **options: Unpack[ModelToolOptions]
) -> list[Any]:
    """Return the operations of a registry as tools of the OpenAI Agents SDK; the options are those of `openai_tools`.

    Raises:
        MissingExtraError: openai-agents is not installed.
        UsageError: an option is invalid.
    """
    agents = _package("agents", "openai-agents")
    tools = OpenAITools(registry, strict=strict, **options)

    def convert(definition: dict[str, Any]) -> Any:
        async def invoke(_: Any, arguments: str) -> Any:
            message = await tools.handle({"name": definition["name"], "arguments": arguments})
            if isinstance(output := message["output"], str):
                return output
            return [
                agents.ToolOutputImage(image_url=part["image_url"], detail=part["detail"])
                if part["type"] == "input_image"
                else agents.ToolOutputText(text=part["text"])
                for part in output
            ]

        return agents.FunctionTool(
            name=definition["name"],
            description=definition["description"],
            params_json_schema=definition["parameters"],
            on_invoke_tool=invoke,
            strict_json_schema=definition["strict"],
        )

    return [convert(definition) for definition in tools.definitions]
