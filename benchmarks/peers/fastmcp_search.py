"""fastmcp ranks tools by BM25: `... PATH` of the tools and requests. Its search is called without server and client."""

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from time import process_time

from fastmcp.server.transforms.search import BM25SearchTransform  # pyright: ignore[reportMissingImports]
from fastmcp.tools import Tool  # pyright: ignore[reportMissingImports]

given = json.loads(Path(sys.argv[1]).read_bytes())
tools = [
    Tool(
        name=each["name"],
        description=each["description"],
        parameters={"type": "object", "properties": {name: {} for name in each["properties"]}},
    )
    for each in given["tools"]
]
transform = BM25SearchTransform(max_results=given["depth"])


async def search() -> list[list[str]]:
    return [[tool.name for tool in await transform._search(tools, text)] for text in given["requests"]]


asyncio.run(transform._search(tools, "warm up"))
began = process_time()
found = asyncio.run(search())
milliseconds = 1000 * (process_time() - began) / len(given["requests"])
print(json.dumps({"version": version("fastmcp"), "ms": milliseconds, "found": found}))
