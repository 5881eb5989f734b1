"""utcp-http converts an OpenAPI document into its tools: `... PATH`."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from utcp_http.openapi_converter import OpenApiConverter  # pyright: ignore[reportMissingImports] - its own environment

from benchmarks.http.loads import measure_load


def load(path: Path) -> tuple[Any, int]:
    text = path.read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=yaml.CSafeLoader)
    manual = OpenApiConverter(document).convert()
    return manual, len(manual.tools)


measure_load(load, "utcp-http", version("utcp-http"))
