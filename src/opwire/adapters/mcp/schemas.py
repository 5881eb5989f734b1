"""The schemas that a tool declares, as schemas that can be used. What cannot be used is UNKNOWN, with a warning."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from opwire.adapters.mcp.foreign import object_of
from opwire.adapters.mcp.report import Findings
from opwire.errors import SchemaError
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.schema.dialect import map_subschemas

Path = tuple[str, ...]

MAX_SCHEMA = 256 * 1024
"""Bytes of one schema: about 100 ms to compile, and 10 MB when compiled."""

EAGER = 4 * 1024 * 1024
"""Bytes of a server's schemas that are compiled when they are listed; the others are compiled at their first use."""

_DEFINITIONS = ("$defs", "definitions")


def input_schema(declared: Any, tool: str, findings: Findings, path: Path = ()) -> Schema:
    """The schema of a tool's input, which stands at a path of what is declared."""
    kind = object_of(declared).get("type", "object")
    if kind != "object":  # it would refuse whatever can be sent
        findings.warn(tool, f"its inputSchema is not used: it is of type {kind!r}, and arguments are an object")
        return UNKNOWN
    return _usable(declared, tool, "inputSchema", findings, path)


def output_schema(declared: Any, tool: str, findings: Findings, path: Path = ()) -> Schema:
    """The schema of a tool's output, which stands at a path of what is declared, if anything is."""
    return UNKNOWN if declared is None else _usable(declared, tool, "outputSchema", findings, path)


def _usable(declared: Any, tool: str, field: str, findings: Findings, path: Path) -> Schema:
    try:
        size = len(msgspec.json.encode(declared))
        if size > MAX_SCHEMA:
            findings.warn(tool, f"its {field} is not used: it has {size:,} bytes, and the limit is {MAX_SCHEMA:,}")
            return UNKNOWN
        schema = Schema(_at(declared, path) if path else declared)
        findings.schema_bytes += size
        if findings.schema_bytes <= EAGER:
            schema.compile()
    except (SchemaError, TypeError, ValueError, RecursionError) as error:
        findings.warn(tool, f"its {field} is not used: {error}")
        return UNKNOWN
    return UNKNOWN if schema.is_unknown else schema


def _at(declared: Any, path: Path) -> Any:
    """The schema at a path, with the definitions of the whole; None if there is nothing.

    Another opwire put it there because MCP asks for objects. A reference to all of it is one to "#" again.
    """
    inner: Any = declared
    for step in path:
        inner = object_of(inner).get(step)
    if not isinstance(inner, Mapping) or "$id" in inner:  # with an $id it is a document of its own
        return cast("Any", inner)
    kept = {key: declared[key] for key in _DEFINITIONS if key in declared}
    return _moved({**object_of(inner), **kept}, "#/" + "/".join(path))


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """A copy in which references into a place are references into the root."""

    def change(inner: JSONSchema) -> JSONSchema:
        return _moved(inner, place) if isinstance(inner, dict) and "$id" not in inner else inner

    copy = map_subschemas(schema, change)
    ref = copy.get("$ref")
    if isinstance(ref, str) and (ref == place or ref.startswith(f"{place}/")):
        copy["$ref"] = f"#{ref.removeprefix(place)}"
    return copy
