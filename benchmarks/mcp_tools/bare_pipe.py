"""JSON-RPC over pipes by hand, without any checks: the limit of what a client and a server over stdio can save.

As a program, it serves the tool of the others: `python -m benchmarks.mcp_tools.bare_pipe`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.exchanges import Call
from benchmarks.peers import ROOT
from benchmarks.transports.messages import NOTE
from benchmarks.upstream import round_trip

_REVISION = "2026-07-28"
_DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": [_REVISION],
    "ttlMs": 0,
    "cacheScope": "private",
    "capabilities": {"tools": {}},
}
_META = {
    "io.modelcontextprotocol/protocolVersion": _REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_LISTED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_TOOL = {"name": "add", "description": "Add two numbers.", "inputSchema": {"type": "object"}}


@asynccontextmanager
async def bare_over_stdio(command: str, arguments: Sequence[str]) -> AsyncGenerator[tuple[Call, int]]:
    """Requests as lines of JSON; the call, and the process that answers."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(command, *arguments, cwd=ROOT, stdin=pipe, stdout=pipe)
    write, read = process.stdin, process.stdout
    assert write is not None
    assert read is not None
    sent = 0

    async def request(method: str, params: dict[str, Any]) -> Any:
        nonlocal sent
        sent += 1
        message = {"jsonrpc": "2.0", "id": sent, "method": method, "params": {**params, "_meta": _META}}
        write.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await write.drain()
        answer = json.loads(await read.readline())
        assert answer["id"] == sent
        return answer["result"]

    async def call(number: int) -> int:
        result = await request("tools/call", {"name": "add", "arguments": {"a": number, "b": 1, "note": NOTE}})
        return result["structuredContent"]["sum"]

    await request("server/discover", {})
    try:
        yield call, process.pid
    finally:
        write.close()
        await process.wait()


async def _answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "server/discover":
        return _DISCOVERED
    if method == "tools/list":
        return {**_LISTED, "tools": [_TOOL]}
    await round_trip()
    given = params["arguments"]
    total = {"sum": given["a"] + given["b"]}
    text = {"type": "text", "text": json.dumps(total)}
    return {"resultType": "complete", "content": [text], "structuredContent": total}


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    read = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(read), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    write = asyncio.StreamWriter(transport, protocol, None, loop)
    while line := await read.readline():
        request = json.loads(line)
        if "id" not in request:
            continue
        result = await _answer(request["method"], request["params"])
        write.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode() + b"\n")
        await write.drain()


if __name__ == "__main__":
    asyncio.run(_serve())
