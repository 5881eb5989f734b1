"""The official TypeScript client judges a served registry: its schemas and results, and what happens in a session."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.judges.mcp.served import over_http, over_stdio
from tests.judges.programs import NODE
from tests.judges.serving import finished
from tests.servers.processes import mortal

LEAF = {"name": "leaf", "children": []}

OBJECTS: dict[str, Any] = {
    "mapping": {"all": ["red"]},
    "person": {"name": "Ada", "born": "1815-12-10", "id": "00000000-0000-0000-0000-000000000001"},
    "stream": {"items": [[1], [2, 3]], "complete": True},
    "tree": {"name": "root", "children": [LEAF]},
}
OTHERS: dict[str, Any] = {
    "anything": [None, {"a": 1}],
    "array": [1, 2],
    "bytes": "AP8=",
    "enum": "blue",
    "forest": [{"name": "root", "children": [LEAF]}],
    "maybe": None,
    "nothing": None,
    "number": 1.5,
    "text": "tea",
    "truth": False,
    "tuple": [1, "one"],
    "union": {"side": 2, "kind": "square"},
}


async def run_client(script: str, *server: str) -> Any:
    """What a script made of the official client says of a server: its URL, or the command that starts it."""
    ended = await finished(mortal([str(NODE), str(Path(__file__).with_name(script)), *server]))
    assert ended.code == 0, ended.complaints
    return json.loads(ended.output)


async def test_results_of_every_shape_are_accepted_by_a_client_that_takes_only_objects() -> None:
    """The official TypeScript client finds results of every shape to match their schemas, cancels handlers, and
    hears of changes."""
    answer = await run_client("typescript_results.mjs", *over_stdio("shapes_registry"))
    results = {name.removeprefix("shape_"): result for name, result in answer["results"].items()}
    failure = results.pop("failure")
    assert failure["isError"]
    assert failure["content"][0]["text"] == "RATE_LIMITED: not so fast\nCall the tool again in 2 seconds."
    structured = {name: result["structuredContent"] for name, result in results.items()}
    assert structured == {**OBJECTS, **{name: {"result": data} for name, data in OTHERS.items()}}
    without_a_schema = [tool["name"] for tool in answer["tools"] if "outputSchema" not in tool]
    assert without_a_schema == ["shape_anything", "shape_bytes"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_call_that_is_given_up_is_cancelled_and_changes_of_the_registry_are_reported(
    transport: str, tmp_path: Path
) -> None:
    if transport == "stdio":
        answer = await run_client("typescript_session.mjs", *over_stdio("session_registry"))
    else:
        async with over_http("session_registry", tmp_path) as url:
            answer = await run_client("typescript_session.mjs", url)
    assert answer["progress"] == [{"progress": 1, "message": "it has begun"}]
    assert answer["givenUp"]
    assert answer["cancelled"]["structuredContent"] == {"result": True}
    assert answer["tools"] == ["work_cancelled", "work_endless", "work_grow", "work_new"]
