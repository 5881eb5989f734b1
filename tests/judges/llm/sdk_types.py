# pyright: reportMissingImports=false, reportInvalidTypeForm=false, reportAttributeAccessIssue=false
"""Give the tools of a registry to the packages of providers and frameworks. Runs in the environment of the judges.

Prints a line of JSON: what each of them was given and returned. A package that rejects something ends this program.
"""

import asyncio
import json
import sys
from base64 import b64decode
from typing import Any, cast

from agents import FunctionTool, ToolOutputImage
from agents.strict_schema import ensure_strict_json_schema
from agents.tool_context import ToolContext
from anthropic.types import ToolParam, ToolResultBlockParam
from anthropic.types.tool_result_block_param import Content
from google.genai import types as genai
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam
from openai.types.responses import FunctionToolParam
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.models.test import TestModel

from opwire import OperationRegistry
from opwire.agents import anthropic_tools, gemini_tools, openai_tools
from opwire.agents.frameworks import langchain_tools, openai_agents_tools, pydantic_ai_toolset

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
registry = OperationRegistry()


@registry.query("shop.price")
async def price(article: str, size: int | None = None, tags: list[str] | None = None) -> float:
    """Return the price of an article."""
    return {"tea": 2.5}[article]


@registry.mutation("shop.order")
async def order(lines: list[dict[str, int]], note: str = "") -> int:
    """Order."""
    return len(lines)


@registry.query("shop.picture")
async def picture() -> bytes:
    """Return a picture."""
    return PNG


async def agents_tool(tool: FunctionTool, arguments: dict[str, Any]) -> Any:
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id="c1", tool_arguments=json.dumps(arguments))
    return await tool.on_invoke_tool(context, json.dumps(arguments))


async def providers() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    tea = {"article": "tea", "size": None, "tags": None}
    for api, definition, message in (
        ("responses", FunctionToolParam, FunctionCallOutput),
        ("chat", ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam),
    ):
        tools = openai_tools(registry, api=cast("Any", api))
        seen[api] = TypeAdapter(list[definition]).validate_python(tools.definitions)
        function = {"name": "shop_price", "arguments": json.dumps(tea)}
        call = {"id": "c1", "function": function} if api == "chat" else {"call_id": "c1", **function}
        seen[f"{api} result"] = TypeAdapter(message).validate_python(await tools.handle(call))
    pictured = await openai_tools(registry).handle({"call_id": "c1", "name": "shop_picture", "arguments": "{}"})
    seen["responses picture"] = TypeAdapter(FunctionCallOutput).validate_python(pictured)["output"][0]["type"]
    claude = anthropic_tools(registry, strict=True)
    seen["anthropic"] = TypeAdapter(list[ToolParam]).validate_python(claude.definitions)
    for name, arguments in (("shop_price", {"article": "tea"}), ("shop_picture", {})):
        result = await claude.handle({"id": "c1", "name": name, "input": arguments})
        TypeAdapter(ToolResultBlockParam).validate_python(result)  # its content lazily, so:
        content = TypeAdapter(list[Content]).validate_python(result["content"])
        seen[f"anthropic {name}"] = [block["type"] for block in content]
    gemini = gemini_tools(registry)
    config = genai.GenerateContentConfig.model_validate({"tools": gemini.definitions})
    seen["gemini"] = config.model_dump(mode="json", exclude_none=True)["tools"]
    called = genai.FunctionCall(id="c1", name="shop_price", args={"article": "tea"})
    seen["gemini result"] = genai.Part.model_validate(await gemini.handle(called)).function_response.response
    pictured = genai.Part.model_validate(await gemini.handle(genai.FunctionCall(name="shop_picture")))
    seen["gemini picture"] = pictured.function_response.parts[0].inline_data.data == PNG
    return seen


async def frameworks() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    agents = {tool.name: tool for tool in openai_agents_tools(registry)}
    for tool in agents.values():
        if tool.strict_json_schema:  # the SDK's own idea of a strict schema changes nothing
            assert ensure_strict_json_schema(json.loads(json.dumps(tool.params_json_schema))) == tool.params_json_schema
    seen["agents"] = await agents_tool(agents["shop_price"], {"article": "tea", "size": None, "tags": None})
    seen["agents error"] = await agents_tool(agents["shop_price"], {"article": 5})
    (shown,) = await agents_tool(agents["shop_picture"], {})
    seen["agents picture"] = isinstance(shown, ToolOutputImage)
    chained = {tool.name: tool for tool in langchain_tools(registry)}
    seen["langchain"] = await chained["shop_price"].ainvoke({"article": "tea"})
    seen["langchain error"] = await chained["shop_price"].ainvoke({"article": 5})
    called = {"name": "shop_picture", "args": {}, "id": "c1", "type": "tool_call"}
    seen["langchain picture"] = (await chained["shop_picture"].ainvoke(called)).content[0]["type"]
    model = TestModel(call_tools=["shop_order", "shop_picture"])
    result = await Agent(model, toolsets=[pydantic_ai_toolset(registry)]).run("order something")
    returned = [
        part for message in result.all_messages() if isinstance(message, ModelRequest) for part in message.parts
    ]
    seen["pydantic-ai"] = [part.tool_name for part in returned if part.part_kind == "tool-return"]
    failing = TestModel(call_tools=["shop_price"])  # its article is "a", which has no price
    failed = await Agent(failing, toolsets=[pydantic_ai_toolset(registry)]).run("what does it cost?")
    seen["pydantic-ai error"] = "EXECUTION_ERROR: shop_price failed" in str(failed.all_messages())
    return seen


if __name__ == "__main__":
    json.dump({**asyncio.run(providers()), **asyncio.run(frameworks())}, sys.stdout, default=str)
