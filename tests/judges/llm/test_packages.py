"""The packages of providers and frameworks take the tools of a registry, and show their results to a model."""

import json
import subprocess
from pathlib import Path

from tests.judges.programs import python_program

PROGRAM = Path(__file__).with_name("sdk_types.py")


def test_every_package_accepts_the_tools_and_their_results() -> None:
    """The packages of the providers, pydantic-ai, LangChain and the OpenAI Agents SDK accept the tools."""
    command = [python_program("python"), str(PROGRAM)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    seen = json.loads(ended.stdout)
    assert [tool["strict"] for tool in seen["responses"]] == [True, False, True]
    assert [tool["function"]["strict"] for tool in seen["chat"]] == [True, False, True]
    assert [tool.get("strict", False) for tool in seen["anthropic"]] == [True, False, True]
    assert len(seen["gemini"][0]["function_declarations"]) == 3
    assert seen["responses result"]["output"] == seen["chat result"]["content"] == "2.5"
    assert seen["gemini result"] == {"output": "2.5"}
    assert (seen["anthropic shop_price"], seen["anthropic shop_picture"]) == (["text"], ["image"])
    assert (seen["responses picture"], seen["gemini picture"], seen["agents picture"]) == ("input_image", True, True)
    assert seen["agents"] == seen["langchain"] == "2.5"
    assert all("Correct the arguments" in seen[name] for name in ("agents error", "langchain error"))
    assert seen["langchain picture"] == "image"
    assert seen["pydantic-ai"] == ["shop_order", "shop_picture"]
    assert seen["pydantic-ai error"]
