"""Schemas that no operation should have."""

import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

from opwire import OperationSpec, Schema, SchemaError
from tests.hostile.limits import Case, given, result, run

MODES = ("fit", "cast", "check")
SELF = {"$ref": "#"}
RING = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
ALL_OF_SELF = {"allOf": [{"$ref": "#"}], "properties": {"a": {"type": "integer", "default": 1}}}
ENDLESS_DEFAULT = {"type": "object", "properties": {"next": {"$ref": "#", "default": {}}}, "required": ["next"]}
TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
BOMBS = ("^(a+)+$", "^(?=(a+)+$)", r"^(a|aa)+\1$", "(x+x+)+y")


def refused(schema: Any) -> bool:
    """Whether an operation with this schema, given as a dict, cannot be made."""
    try:
        OperationSpec(namespace="a", name="b", input_schema=schema)
    except SchemaError:
        return True
    return False


class Visitors:
    """A server that counts its requests."""

    def __init__(self) -> None:
        self.count = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            self.count += 1
            connection.close()


async def remote_references() -> Any:
    visitors = Visitors()
    schema = {"$ref": f"http://127.0.0.1:{visitors.port}/schema.json"}
    calls = [await given(1, input_schema=Schema(schema), unchecked_input=True)]
    calls.append(await given(1, input_schema=Schema(schema)))
    calls += [await result(1, output_schema=Schema(schema), normalize=mode) for mode in MODES]
    with socket.create_connection(("127.0.0.1", visitors.port)) as probe:
        probe.recv(1)  # closed by the server, so it has counted this visit
    return {"refused": refused(schema), "calls": calls, "visits": visitors.count}


async def file_references() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schema.json"
        path.write_text('{"type": "string"}', encoding="utf-8")
        schema = {"$ref": path.as_uri()}
        calls = [await given(1, input_schema=Schema(schema), unchecked_input=True)]
        calls.append(await given(1, input_schema=Schema(schema)))
        calls += [await result(1, output_schema=Schema(schema), normalize=mode) for mode in MODES]
    return {"refused": refused(schema), "calls": calls}


async def patterns() -> Any:
    bait = {"text": "a" * 60 + "!"}
    found: list[Any] = []
    for bomb in BOMBS:
        schema = Schema({"type": "object", "properties": {"text": {"type": "string", "pattern": bomb}}})
        found.append(await given(bait, input_schema=schema))
        found += [await result(bait, output_schema=schema, normalize=mode) for mode in MODES]
    names = Schema({"patternProperties": {BOMBS[0]: {"type": "integer"}}, "additionalProperties": False})
    found.append(await result({"a" * 60 + "!": 1}, output_schema=names))
    return found


async def endless() -> Any:
    found: list[Any] = []
    for schema in (SELF, RING, ALL_OF_SELF, ENDLESS_DEFAULT):
        found.append(await given({"next": {}}, input_schema=Schema(schema)))
        found += [await result({"next": {}}, output_schema=Schema(schema), normalize=mode) for mode in MODES]
    return found


async def deep_tree() -> Any:
    value: Any = {}
    for _ in range(100_000):
        value = {"left": value}
    found = [await given(value, input_schema=TREE)]
    found += [await result(value, len, output_schema=TREE, normalize=mode) for mode in MODES]
    return found


async def deep_schema() -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(100_000):
        schema = {"items": schema}
    calls = [await given([[1]], input_schema=Schema(schema))]
    calls += [await result([[1]], output_schema=Schema(schema), normalize=mode) for mode in MODES]
    return {"refused": refused(schema), "calls": calls}


async def cyclic_schema() -> Any:
    schema: Any = {"type": "array"}
    schema["items"] = schema
    calls = [await given([[1]], input_schema=Schema(schema))]
    calls += [await result([[1]], output_schema=Schema(schema), normalize=mode) for mode in MODES]
    return {"refused": refused(schema), "calls": calls}


CASES: dict[str, Case] = {
    "remote references": remote_references,
    "file references": file_references,
    "patterns": patterns,
    "endless": endless,
    "deep tree": deep_tree,
    "deep schema": deep_schema,
    "cyclic schema": cyclic_schema,
}

if __name__ == "__main__":
    run(CASES)
