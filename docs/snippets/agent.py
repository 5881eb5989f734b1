import asyncio
import json
from typing import Any

from opwire import Identity
from opwire.agents import anthropic_tools

from shop import registry

AGENT = Identity(id="agent", scopes=("shop:write",))


def model(messages: list[Any], tools: list[dict[str, Any]]) -> dict[str, Any] | str:
    """Stand in for `client.messages.create(...)`: a tool to call, or the final text."""
    match len(messages):
        case 1:
            return {
                "id": "1",
                "name": tools[0]["name"],
                "input": {"lines": [{"article": "tea", "price": "cheap"}]},
            }
        case 2:  # it has read the error, and corrects itself
            return {
                "id": "2",
                "name": tools[0]["name"],
                "input": {"lines": [{"article": "tea", "price": 4.5}]},
            }
        case _:
            return "Done."


async def main() -> None:
    tools = anthropic_tools(registry, identity=AGENT, timeout=10)
    print("tools:", [tool["name"] for tool in tools.definitions])
    messages: list[Any] = [{"role": "user", "content": "Buy some tea."}]
    while not isinstance(step := model(messages, tools.definitions), str):
        result = await tools.handle(step)
        messages.append({"role": "user", "content": [result]})
        print(json.dumps(result))
    print(step)


asyncio.run(main())
