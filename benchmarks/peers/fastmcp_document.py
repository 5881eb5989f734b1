"""fastmcp loads an OpenAPI document and lists its tools: `... PATH`."""

import asyncio
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import yaml
from fastmcp import FastMCP  # pyright: ignore[reportMissingImports] - its own environment

from benchmarks.http.loads import measure_load


def load(path: Path) -> tuple[Any, int]:
    text = path.read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=yaml.CSafeLoader)
    server = FastMCP.from_openapi(document, httpx2.AsyncClient(base_url="http://127.0.0.1"))
    tools = asyncio.run(server.list_tools())
    return (server, tools), len(tools)


measure_load(load, "fastmcp", version("fastmcp"))
