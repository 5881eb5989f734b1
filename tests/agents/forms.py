"""The forms of four APIs of models: how a call is written there, and how a result is read."""

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from opwire.agents import ProviderTools, anthropic_tools, gemini_tools, openai_tools


class Form(Struct, frozen=True):
    """One API: `make` returns its tools, `call` writes a call, `read` returns text, types of parts and is_error."""

    name: str
    make: Callable[..., ProviderTools]
    call: Callable[[str, Any], dict[str, Any]]
    read: Callable[[dict[str, Any]], tuple[str, list[str], bool | None]]
    definitions: Callable[[ProviderTools], list[dict[str, Any]]] = lambda tools: tools.definitions

    def __str__(self) -> str:
        return self.name


def _responses(message: dict[str, Any]) -> tuple[str, list[str], bool | None]:
    assert (message["type"], message["call_id"]) == ("function_call_output", "c1")
    output = message["output"]
    parts = [{"type": "input_text", "text": output}] if isinstance(output, str) else output
    return "".join(part.get("text", "") for part in parts), [part["type"] for part in parts], None


def _chat(message: dict[str, Any]) -> tuple[str, list[str], bool | None]:
    assert (message["role"], message["tool_call_id"]) == ("tool", "c1")
    return message["content"], ["text"], None


def _anthropic(message: dict[str, Any]) -> tuple[str, list[str], bool | None]:
    assert (message["type"], message["tool_use_id"]) == ("tool_result", "c1")
    parts = message["content"]
    assert all(part.get("text", "x") for part in parts)  # an empty text is rejected
    text = "\n".join(part["text"] for part in parts if "text" in part)
    return text, [part["type"] for part in parts], message.get("is_error", False)


def _gemini(message: dict[str, Any]) -> tuple[str, list[str], bool | None]:
    response = message["function_response"]
    assert response["id"] == "c1"
    (key, text), media = *response["response"].items(), response.get("parts", [])
    return text, ["text", *("inline_data" for _ in media)], key == "error"


FORMS = [
    Form(
        "responses",
        openai_tools,
        lambda name, arguments: {"call_id": "c1", "name": name, "arguments": json.dumps(arguments)},
        _responses,
    ),
    Form(
        "chat",
        lambda registry, **options: openai_tools(registry, api="chat", **options),
        lambda name, arguments: {"id": "c1", "function": {"name": name, "arguments": json.dumps(arguments)}},
        _chat,
        lambda tools: [each["function"] for each in tools.definitions],
    ),
    Form(
        "anthropic", anthropic_tools, lambda name, arguments: {"id": "c1", "name": name, "input": arguments}, _anthropic
    ),
    Form(
        "gemini",
        gemini_tools,
        lambda name, arguments: {"id": "c1", "name": name, "args": arguments},
        _gemini,
        lambda tools: [each for entry in tools.definitions for each in entry["function_declarations"]],
    ),
]
