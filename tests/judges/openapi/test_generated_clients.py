"""Clients that generators make from the document of a served registry call it, and get what was meant."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.judges.openapi.conftest import TOKEN, Served
from tests.judges.programs import NODE, PYTHON_PROGRAMS, npm_program, python_program
from tests.judges.serving import finished

HERE = Path(__file__).parent / "clients"
EXPECTED: dict[str, Any] = {
    "query": 42,
    "query by post": 41,
    "list": [{"name": "rex", "tricks": ["red", "blue"], "kind": "dog"}],
    "mutation": {"value": 2, "children": [{"value": 1, "children": [{"value": 0, "children": []}]}]},
    "order": {
        "id": "5a3f1c52-7d0e-4f2b-9c7b-1f0a2c9c4b11",
        "pet": {"name": "tom", "lives": 9, "kind": "cat"},
        "when": "2024-02-29",
        "made": None,
        "price": "1.50",
        "level": 1,
        "labels": {"a": "b"},
        "places": [[1, 2.5]],
        "photo": "AAH+/w==",
        "note": None,
    },
    "union": [{"name": "new", "lives": 3, "kind": "cat"}, {"name": "new", "tricks": ["sit"], "kind": "dog"}],
    "shape": {"round": True, "radius": 1.5},
    "whole": 6,
    "maybe": None,
    "nothing": None,
    "bytes": [0, 1, 2, 3],
    "odd": "3 a&b",
    "error": [429, "RATE_LIMITED", True],
    "denied": [401, "UNAUTHENTICATED"],
}


async def output_of(command: list[str], **env: str) -> str:
    """What a program prints that has to end well."""
    found = await finished(command, {**os.environ, **env})
    assert found.code == 0, f"{found.output}\n{found.complaints}"
    return found.output


async def test_the_client_of_openapi_python_client_calls_the_server(served: Served, tmp_path: Path) -> None:
    generate = [python_program("openapi-python-client"), "generate", "--meta", "none", "--fail-on-warning"]
    places = ["--path", str(served.document), "--output-path", str(tmp_path / "shop_client")]
    path = f"{PYTHON_PROGRAMS}{os.pathsep}{os.environ['PATH']}"  # it formats what it writes with ruff
    await output_of([*generate, *places], PATH=path)
    calls = [python_program("python"), str(HERE / "calls.py"), served.address, TOKEN]
    assert json.loads(await output_of(calls, PYTHONPATH=str(tmp_path))) == {
        **EXPECTED,
        "query by post": 2**70 + 1,  # Python has integers of any size
        "maybe": 5,
        "union": [list(each) for each in zip(("Cat", "Dog"), EXPECTED["union"], strict=True)],
    }


async def test_the_client_of_hey_api_fits_its_types_and_calls_the_server(served: Served, tmp_path: Path) -> None:
    """A client made by hey-api passes the type checker and calls the served registry."""
    for name in ("calls.ts", "tsconfig.json"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    generate = [*npm_program("openapi-ts"), "--file", str(HERE / "hey-api.mjs")]
    await output_of(generate, SHOP_DOCUMENT=str(served.document), SHOP_CLIENT=str(tmp_path / "client"))
    await output_of([*npm_program("tsc"), "--project", str(tmp_path)])
    came = json.loads(await output_of([str(NODE), str(tmp_path / "calls.ts"), served.address, TOKEN]))
    ticks = [{"value": number, "children": []} for number in range(2)]
    assert came == {**EXPECTED, "ticks": ticks}
