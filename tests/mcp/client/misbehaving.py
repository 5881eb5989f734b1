"""An MCP server over stdio that does what a test tells it, right or wrong. Lines of JSON, without the SDK.

It runs as a process of its own: `python misbehaving.py stage.json`. The stage says what the server lists and announces;
it is read again whenever something is asked. What a tool does is written in the arguments of its call: see `_play`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

STAGE = Path(sys.argv[-1])
received: list[dict[str, Any]] = []  # every message that came, for `{"result": "received"}`


def send(message: dict[str, Any]) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def stage() -> dict[str, Any]:
    """What there is to list."""
    return json.loads(STAGE.read_text(encoding="utf-8"))


def initialize(params: dict[str, Any]) -> dict[str, Any]:
    """The handshake."""
    default = {"tools": {"listChanged": True}}
    return {
        "protocolVersion": params["protocolVersion"],
        "capabilities": stage().get("capabilities", default),
        "serverInfo": stage().get("serverInfo", {"name": "misbehaving", "version": "1"}),
    }


def page(key: str, params: dict[str, Any]) -> dict[str, Any]:
    """One page of a list. The stage may ask for cursors that never end: the same one, or ever new ones."""
    entries, size = stage().get(key, []), stage().get("page", 3)
    start = int(params.get("cursor", 0))
    match stage().get("cursors"):
        case "same":
            return {key: entries, "nextCursor": "1"}
        case "endless":
            return {key: entries if start == 0 else [], "nextCursor": str(start + 1)}
    more = {"nextCursor": str(start + size)} if start + size < len(entries) else {}
    return {key: entries[start : start + size], **more}


def answer(method: str, params: dict[str, Any]) -> Any:
    """The result of a request, or None if the stage has none."""
    lists = {
        "tools/list": "tools",
        "prompts/list": "prompts",
        "resources/list": "resources",
        "resources/templates/list": "resourceTemplates",
    }
    if method in lists and lists[method] in stage():
        return page(lists[method], params)
    if method == "initialize":
        return initialize(params)
    if method == "ping":
        return {}
    return stage().get("answers", {}).get(method)  # the same result for any parameters


def play(request: dict[str, Any]) -> None:
    """What a tool's arguments say: send notifications and progress, then crash, hold, fail, or give a result."""
    params = request["params"]
    arguments = params.get("arguments", {})
    script = arguments.get("input", arguments)
    token = params.get("_meta", {}).get("progressToken")
    for each in script.get("notify", []):
        send(each)
    for each in script.get("progress", []):
        send({"method": "notifications/progress", "params": {"progressToken": token, **each}})
    if script.get("crash"):
        os._exit(1)
    if script.get("hold"):
        return
    if "error" in script:
        send({"id": request["id"], "error": script["error"]})
        return
    result = script.get("result", {"content": [], "structuredContent": arguments})
    if result == "received":
        result = {"content": [], "structuredContent": received}
    send({"id": request["id"], "result": result})


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        received.append(message)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] == "tools/call":
            play(message)
        elif message["method"] in stage().get("errors", {}):
            send({"id": message["id"], "error": stage()["errors"][message["method"]]})
        elif (result := answer(message["method"], message.get("params", {}))) is not None:
            send({"id": message["id"], "result": result})
            if stage().get("restless") and message["method"] == "tools/list":
                send({"method": "notifications/tools/list_changed"})
        else:
            send({"id": message["id"], "error": {"code": -32601, "message": f"no {message['method']} here"}})


if __name__ == "__main__":
    main()
