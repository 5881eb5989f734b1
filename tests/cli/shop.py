"""A Python module with operations, as a user of the command line would have it."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from opwire import AccessControl, CallError, Context, OperationRegistry, ResponseEnvelope, mcp_envelope

registry = OperationRegistry()


@dataclass
class Line:
    """One line of an order."""

    article: str
    pieces: Annotated[int, Meta(ge=1, description="How many.")] = 1


@registry.query("math.add", tags=["maths"])
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@registry.mutation("shop.order", access=AccessControl(required_scopes=("shop:write",)))
async def order(customer: str, lines: list[Line], size: Literal["s", "m"] = "s") -> dict[str, Any]:
    """Order something."""
    return {"customer": customer, "pieces": sum(line.pieces for line in lines), "size": size}


@registry.query("shop.fail")
async def fail(code: str = "EXECUTION_ERROR") -> None:
    """Fail in a way of one's choice."""
    if code == "unforeseen":
        raise ZeroDivisionError("a secret")
    raise CallError(code, "as you wish\x1b[2J", {"because": "you asked"})


@registry.query("shop.text")
async def text(length: int = 3) -> str:
    """A text that tries to clear the screen."""
    return "\x1b[2J" + "x" * length


@registry.query("shop.bytes")
async def binary() -> bytes:
    """Bytes that are not text."""
    return b"\xff\x00\xfe"


@registry.query("shop.tool")
async def tool(is_error: bool = False) -> ResponseEnvelope[Any]:
    """Content blocks, as an MCP server gives them."""
    image = {"type": "image", "data": b64encode(b"\x89PNG").decode(), "mimeType": "image/png"}
    content = [{"type": "text", "text": "hello"}, image]
    return mcp_envelope(content, is_error=is_error, content=content)


@registry.query("shop.slow")
async def slow(context: Context) -> str:
    """Take longer than people wait without a word."""
    context.report(1, 2, "halfway")
    await asyncio.sleep(0.6)
    return "done"


@registry.subscription("clock.ticks")
async def ticks(count: int = 3, last: bool = True) -> AsyncIterator[dict[str, int]]:
    """Tick, and then wait for ever unless this was all."""
    for number in range(count):
        yield {"tick": number}
    if not last:
        await asyncio.Event().wait()
