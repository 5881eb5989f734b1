import asyncio

from opwire import OperationRegistry, OperationSpec, Schema

registry = OperationRegistry()
spec = OperationSpec(
    namespace="users",
    name="get",
    input_schema=Schema(
        {
            "type": "object",
            "properties": {"id": {"type": "integer"}},
            "required": ["id"],
        }
    ),
    output_schema=Schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "plan": {"default": "free"}},
        }
    ),
)
registry.register(spec, lambda input, context: {"name": "Ada", "internal": True})

print(asyncio.run(registry.execute("users.get", {"id": 1})).data)
