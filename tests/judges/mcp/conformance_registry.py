"""The tools that the public MCP conformance suite asks of a server, as operations of a registry.

The suite says in its scenarios what each tool is called, and what it has to do.
"""

import asyncio
import sys
from base64 import b64encode
from typing import Any

from opwire import (
    CallError,
    Context,
    ErrorCode,
    OperationRegistry,
    OperationSpec,
    OperationType,
    Schema,
    mcp_envelope,
)
from tests.judges.mcp.conformance_features import IMAGE, PIXEL, TASK_AFTER, add_features
from tests.judges.mcp.served import POLL_AFTER, serve

SILENCE = b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\2\0\0\0\0\0"

AUDIO = {"type": "audio", "data": b64encode(SILENCE).decode(), "mimeType": "audio/wav"}
EMBEDDED = {
    "type": "resource",
    "resource": {
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "This is an embedded resource content.",
    },
}

registry = OperationRegistry()


def blocks(*content: Any) -> Any:
    """The answer of a tool that gives content blocks, and no data beside them."""
    return mcp_envelope(list(content), is_error=False, content=list(content))


async def echo(input: Any, context: Context) -> Any:
    """Returns what it was given."""
    return input


@registry.query("test.simple_text")
async def simple_text() -> str:
    """Returns text."""
    return "This is a simple text response for testing."


@registry.query("test.image_content")
async def image_content() -> bytes:
    """Returns an image: bytes that are one."""
    return PIXEL


@registry.query("test.audio_content")
async def audio_content() -> Any:
    """Returns sound."""
    return blocks(AUDIO)


@registry.query("test.embedded_resource")
async def embedded_resource() -> Any:
    """Returns an embedded resource."""
    return blocks(EMBEDDED)


@registry.query("test.multiple_content_types")
async def multiple_content_types() -> Any:
    """Returns three kinds of blocks."""
    return blocks({"type": "text", "text": "Multiple content types test:"}, IMAGE, EMBEDDED)


@registry.query("test.error_handling")
async def error_handling() -> str:
    """Always fails."""
    raise CallError(ErrorCode.EXECUTION_ERROR, "This tool intentionally returns an error for testing")


@registry.query("test.tool_with_progress")
async def tool_with_progress(context: Context) -> str:
    """Says how far it has come, three times."""
    for percent in (0, 50, 100):
        context.report(percent, 100)
        await asyncio.sleep(0.05)  # the suite asks for it: notifications of one moment may be told as one
    return "done"


@registry.query("test.reconnection")
async def reconnection() -> str:
    """Takes longer than the stream of its call lasts, so that the client has to resume it."""
    await asyncio.sleep(2 * POLL_AFTER)
    return "done"


@registry.query("test.streaming_elicitation")
async def streaming_elicitation(context: Context) -> str:
    """Answers with a stream, on which the server must not ask anything."""
    context.report(1, 1)
    return "nothing was asked"


@registry.mutation("test.trigger_tool_change")
async def trigger_tool_change() -> bool:
    """Adds a tool, or removes it again. Returns whether it is there."""
    if registry.get_spec("test.sometimes") is None:
        registry.register(OperationSpec(namespace="test", name="sometimes", description="Not always here."), echo)
        return True
    registry.unregister("test.sometimes")
    return False


registry.register(
    OperationSpec(
        namespace="test",
        name="header_echo",
        description="Takes an argument that travels as a header too.",
        input_schema=Schema({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}),
    ),
    echo,
)
registry.register(
    OperationSpec(
        namespace="json",
        name="schema_2020_12_tool",
        type=OperationType.MUTATION,
        description="Tool with JSON Schema 2020-12 features",
        input_schema=Schema(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "$defs": {
                    "address": {
                        "$anchor": "addressDef",
                        "type": "object",
                        "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                    }
                },
                "properties": {
                    "name": {"type": "string"},
                    "address": {"$ref": "#/$defs/address"},
                    "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                    "phone": {"type": "string"},
                    "email": {"type": "string"},
                },
                "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
                "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
                "then": {"required": ["phone"]},
                "else": {"required": ["email"]},
                "additionalProperties": False,
            }
        ),
    ),
    echo,
)


add_features(registry)

if __name__ == "__main__":
    serve(registry, *sys.argv[1:], task_after=TASK_AFTER, tool_names={"tasks.greet": "greet"})
