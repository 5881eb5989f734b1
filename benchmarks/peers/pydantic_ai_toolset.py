"""pydantic-ai's FunctionToolset: arguments validated as the agent does it, then `call_tool`."""

import asyncio
from importlib.metadata import version
from typing import Any

from pydantic_ai import RunContext  # pyright: ignore[reportMissingImports] - its own environment
from pydantic_ai.models.test import TestModel  # pyright: ignore[reportMissingImports]
from pydantic_ai.toolsets import FunctionToolset  # pyright: ignore[reportMissingImports]
from pydantic_ai.usage import RunUsage  # pyright: ignore[reportMissingImports]

from benchmarks.measure import Contender
from benchmarks.peers import report
from benchmarks.work import BARE, EXECUTE, INPUT, SUM, add


async def main() -> None:
    toolset = FunctionToolset(tools=[add])
    context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    tool = (await toolset.get_tools(context))["add"]
    validate = tool.args_validator.validate_python

    async def call_tool(n: int) -> Any:
        result = None
        for _ in range(n):
            result = await toolset.call_tool("add", validate(INPUT), context, tool)
        return result

    await report(version("pydantic-ai-slim"), BARE, EXECUTE, [Contender("toolset, validated", call_tool, SUM)])


asyncio.run(main())
