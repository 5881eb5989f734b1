"""A server's prompts as operations: one for each, and one that lists them."""

from collections.abc import Mapping
from typing import Any, cast

from opwire.adapters.mcp.foreign import list_of, object_of, text_of
from opwire.adapters.mcp.listing import list_operation
from opwire.adapters.mcp.names import MAX_NAME, is_usable
from opwire.adapters.mcp.report import Findings
from opwire.adapters.mcp.results import read_blocks, structured_envelope
from opwire.adapters.mcp.session import Session
from opwire.envelope import ResponseEnvelope
from opwire.operation import Context, Operation, OperationSpec
from opwire.schema import Schema


def prompts_operation(session: Session, namespace: str) -> Operation:
    """The operation that lists them."""
    return list_operation(
        session,
        namespace,
        "prompts/list",
        method="prompts/list",
        key="prompts",
        description="The prompts that there are.",
    )


def read_prompt(prompt: Mapping[str, Any], session: Session, namespace: str, findings: Findings) -> Operation | None:
    """The operation that a prompt is; None, and a finding, if it cannot be one."""
    name = prompt.get("name")
    if not is_usable(name):
        findings.skip(name, f"a prompt's name is printable text of 1 to {MAX_NAME} characters")
        return None
    spec = OperationSpec(
        namespace=namespace,
        name=f"prompts/{name}",
        title=text_of(prompt.get("title")),
        description=text_of(prompt.get("description")),
        input_schema=Schema(_input_schema(prompt.get("arguments"), cast("str", name), findings)),
    )

    async def get(input: Any, context: Context) -> ResponseEnvelope[Any]:
        params: dict[str, Any] = {"name": name, "arguments": input or {}}
        result = await session.request(
            "prompts/get",
            params,
            deadline=context.deadline,
            on_progress=context.on_progress,
            metadata=context.metadata,
        )
        return structured_envelope(result, read_blocks(_contents(result.get("messages")), spec.id), spec.id)

    return Operation(spec, get)


def _input_schema(arguments: Any, name: str, findings: Findings) -> dict[str, Any]:
    """An object of texts: prompts take nothing else."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument in map(object_of, list_of(arguments)):
        key = argument.get("name")
        if not isinstance(key, str):
            findings.warn(f"prompts/{name}", "an argument without a name is left out")
            continue
        described = {"title": text_of(argument.get("title")), "description": text_of(argument.get("description"))}
        properties[key] = {"type": "string", **{field: text for field, text in described.items() if text}}
        if argument.get("required") is True:
            required.append(key)
    return {"type": "object", "properties": properties, "required": required}


def _contents(messages: Any) -> list[Any]:
    """The content blocks of all messages: one each, or in newer revisions several."""
    contents: list[Any] = []
    for message in map(object_of, list_of(messages)):
        content = message.get("content")
        contents += list_of(content) if isinstance(content, list) else [content]
    return contents
