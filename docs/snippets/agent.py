import asyncio
import json
from typing import Any

from opwire import CallError, Identity, OperationSpec, OperationType
from opwire.client import Client
from opwire.dispatch import Dispatcher

from shop import registry

AGENT = Identity(id="agent", scopes=("shop:write",))


def tool(spec: OperationSpec) -> dict[str, Any]:
    """Describe an operation in the form that model APIs take."""
    return {
        "name": spec.id.replace(".", "_"),
        "description": spec.description,
        "input_schema": spec.input_schema.json,
    }


def model(messages: list[str]) -> tuple[str, dict[str, Any]] | str:
    """Stand in for the request to a model: a tool and its input, or the final text."""
    match len(messages):
        case 1:
            return "shop_order", {"lines": [{"article": "tea", "price": "cheap"}]}
        case 2:  # it has read the error, and corrects itself
            return "shop_order", {"lines": [{"article": "tea", "price": 4.5}]}
        case _:
            return f"Done: {messages[-1]}"


async def main() -> None:
    specs = {
        spec.id.replace(".", "_"): spec
        for spec in Dispatcher(registry).visible(AGENT)
        if spec.type is not OperationType.SUBSCRIPTION
    }
    print("tools:", [tool(spec)["name"] for spec in specs.values()])
    messages = ["Buy some tea."]
    async with Client(registry, act_as=AGENT, timeout=10) as client:
        while not isinstance(step := model(messages), str):
            name, arguments = step
            try:
                data = await client.call(specs[name].id, arguments)
                messages.append(json.dumps(data))
            except CallError as error:
                messages.append(f"{error.code}: {error.message}")
            print(messages[-1])
    print(step)


asyncio.run(main())
