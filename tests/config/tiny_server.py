"""The smallest MCP server over stdio, which starts in no time: its tool tells where and with what it runs."""

import json
import os
import sys
from pathlib import Path
from typing import Any

TOOLS = [{"name": "where", "inputSchema": {"type": "object"}}]


def send(message: dict[str, Any]) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The rest of the message that answers a request."""
    match method:
        case "initialize":
            about = {"serverInfo": {"name": "tiny", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}
            return {"result": {"protocolVersion": params["protocolVersion"], **about}}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "tools/call":
            if name := params["arguments"].get("add"):
                TOOLS.append({"name": name, "inputSchema": {"type": "object"}})
                send({"method": "notifications/tools/list_changed"})
            told = {"folder": str(Path.cwd()), "process": os.getpid(), "environment": dict(os.environ)}
            return {"result": {"content": [], "structuredContent": told}}
        case _:
            return {"error": {"code": -32601, "message": f"there is no {method}"}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        send({"id": request["id"], **answer(request["method"], request.get("params", {}))})
