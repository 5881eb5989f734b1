"""fastmcp ranks tools by BM25: `... PATH` of the tools and requests. Its search is called without server and client."""

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from time import process_time

from fastmcp import FastMCP  # pyright: ignore[reportMissingImports] - its own environment
from fastmcp.server.transforms.search import BM25SearchTransform  # pyright: ignore[reportMissingImports]
from fastmcp.server.transforms.search.base import serialize_tools_for_output_json  # pyright: ignore[reportMissingImports]
from fastmcp.tools import Tool  # pyright: ignore[reportMissingImports]

given = json.loads(Path(sys.argv[1]).read_bytes())
tools = [Tool(name=each["name"], description=each["description"], parameters=each["schema"]) for each in given["tools"]]
transform = BM25SearchTransform(max_results=given["depth"])


async def search() -> list[list[str]]:
    return [[tool.name for tool in await transform._search(tools, text)] for text in given["requests"]]


asyncio.run(transform._search(tools, "warm up"))
began = process_time()
found = asyncio.run(search())
milliseconds = 1000 * (process_time() - began) / len(given["requests"])
by_name = {tool.name: tool for tool in tools}
results = [serialize_tools_for_output_json([by_name[name] for name in names[:5]]) for names in found]
sizes = [len(json.dumps(each)) / 4 for each in results]
server = FastMCP("peer")
server.add_transform(transform)
listed = sum(len(json.dumps(each)) / 4 for each in serialize_tools_for_output_json(asyncio.run(server.list_tools())))
print(
    json.dumps(
        {
            "version": version("fastmcp"),
            "ms": milliseconds,
            "found": found,
            "result": sum(sizes) / len(sizes),
            "listed": listed,
        }
    )
)
