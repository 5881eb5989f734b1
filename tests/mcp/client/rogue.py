"""An MCP server over stdio that breaks connections. A process of its own, without the SDK: it writes what it likes.

    python rogue.py [habit ...]

Habits: silent (answers nothing), dying (ends at once), picky (ends unless `initialize` comes first), stubborn (ignores
SIGTERM and the end of its input), parent (starts a child that holds its output open), ancient (speaks a revision that
nobody knows), noisy (writes to stdout what is no message), modern (speaks 2026-07-28 alone), lax (does not tell of
changes, although it says so), mute (does not say whether it will). What it does later is the name of the tool that is
called.
"""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

HABITS = frozenset(sys.argv[1:])
CANCELLED: list[Any] = []
LISTENING: dict[str, Any] = {}  # what is wanted, by the id of the request that stays open
INTERVIEWS: dict[str, Any] = {}  # what is done with the answer to one question of many, by its id
ASKED: dict[str, Any] = {}  # the ids of our own requests, and the calls that wait for them


def main() -> None:
    if "dying" in HABITS:
        sys.exit(3)
    if "stubborn" in HABITS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "parent" in HABITS:
        # Without a pipe of its own for stdin, it would take messages that are for us.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.DEVNULL)
        sys.stderr.write(f"child {child.pid}\n")
    for number, line in enumerate(sys.stdin):
        receive(json.loads(line), first=number == 0)
    while "stubborn" in HABITS:
        time.sleep(1)


def receive(message: dict[str, Any], *, first: bool) -> None:
    if "silent" in HABITS:
        return
    if "noisy" in HABITS:
        for nonsense in ("Listening on stdio...", "", '{"level": "info"}', "[1, 2]", '"text"'):
            write(nonsense)
    method = message.get("method")
    if first and method != "initialize" and "picky" in HABITS:
        sys.exit(4)
    if method is None and message["id"] in INTERVIEWS:
        INTERVIEWS.pop(message["id"])(message)
    elif method is None:
        answer(
            ASKED.pop(message["id"]), {"answer": {key: message[key] for key in ("result", "error") if key in message}}
        )
    elif method in METHODS:
        METHODS[method](message.get("id"), message.get("params") or {})
    elif "id" in message:
        fail(message["id"], -32601, f"no {method} here")


def initialize(id: Any, params: dict[str, Any]) -> None:
    version = "1999-01-01" if "ancient" in HABITS else params["protocolVersion"]
    server = {"name": "rogue", "version": "1"}
    answer(id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server})


def discover(id: Any, params: dict[str, Any]) -> None:
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
    answer(id, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "_meta": "nonsense"})


def listen(id: Any, params: dict[str, Any]) -> None:
    LISTENING[id] = params["notifications"]
    if "mute" not in HABITS:
        notify("notifications/subscriptions/acknowledged", {**params, **subscription(id)})


def forget(id: Any, params: dict[str, Any]) -> None:
    CANCELLED.append(params["requestId"])
    LISTENING.pop(params["requestId"], None)


def call(id: Any, params: dict[str, Any]) -> None:
    TOOLS[params["name"]](id, params.get("arguments") or {}, params)


METHODS = {"initialize": initialize, "tools/call": call, "notifications/cancelled": forget}
if "modern" in HABITS:
    METHODS["server/discover"] = discover
    if "lax" not in HABITS:
        METHODS["subscriptions/listen"] = listen


def echo(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(id, {"arguments": arguments})


def crash(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> NoReturn:
    sys.stdout.flush()
    os._exit(arguments.get("status", 3))


def killed(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    pass


def cancelled(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(id, {"cancelled": CANCELLED})


def long(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(id, {"text": "x" * arguments["size"]})


def raw(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """Bytes as they are, in Latin-1; `%` stands for the id of the call."""
    sys.stdout.buffer.write(arguments["text"].replace("%", json.dumps(id)).encode("latin-1") + b"\n")
    sys.stdout.buffer.flush()


def refuse(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    fail(id, arguments["code"], arguments["message"], arguments.get("data"))


def ask(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """Ask the client something before answering, and answer with what it said."""
    asking = f"asking-{id}"
    ASKED[asking] = id
    send({"jsonrpc": "2.0", "id": asking, "method": arguments["method"], "params": arguments.get("params", {})})


def flood(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """Ask many times without reading a single answer, then answer."""
    for number in range(arguments["count"]):
        send({"jsonrpc": "2.0", "id": f"flood-{number}", "method": "sampling/createMessage", "params": {}})
    answer(id, {"flooded": True})


def interview(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """Ask one question after the other, and answer with how many were refused and why."""
    refusals: list[str] = []

    def ask_again(number: int) -> None:
        if number == arguments["count"]:
            answer(id, {"refused": len(refusals), "last": refusals[-1:]})
            return

        def take(message: dict[str, Any]) -> None:
            refusals.extend([message["error"]["message"]] if "error" in message else [])
            ask_again(number + 1)

        INTERVIEWS[f"interview-{number}"] = take
        send({"jsonrpc": "2.0", "id": f"interview-{number}", "method": arguments["method"], "params": {}})

    ask_again(0)


def progress(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    token = params["_meta"]["progressToken"]
    for number in range(arguments["steps"]):
        step = {"progressToken": token, "progress": number, "total": arguments["steps"], "_meta": {"number": number}}
        notify("notifications/progress", step)
    notify("notifications/progress", {"progressToken": token, "progress": "much"})
    notify("notifications/progress", {"progressToken": "of nobody", "progress": 1})
    answer(id, {"done": True})


def stringly(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    notify("notifications/progress", {"progressToken": str(params["_meta"]["progressToken"]), "progress": 1})
    notify("notifications/progress", {"progressToken": [], "progress": 1})
    answer(id, {})


def announce(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    notify(arguments["method"], arguments["params"])
    answer(id, {})


def update(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """Notify listeners that the tools and a resource have changed."""
    for listener, wanted in LISTENING.items():
        if wanted.get("toolsListChanged"):
            notify("notifications/tools/list_changed", subscription(listener))
        for uri in wanted.get("resourceSubscriptions", ()):
            notify("notifications/resources/updated", {"uri": uri, **subscription(listener)})
    answer(id, {"listening": LISTENING})


def hang_up(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """End all subscriptions, in one of the two ways that there are."""
    for listener in LISTENING:
        if arguments["politely"]:
            answer(listener, subscription(listener))
        else:
            notify("notifications/cancelled", {"requestId": listener})
    LISTENING.clear()
    answer(id, {})


def quiz(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """Answer with the questions that were asked for, until there were enough rounds; with what was said at last."""
    round = int(params.get("requestState", "0"))
    if round >= arguments["rounds"]:
        answer(id, {"said": params.get("inputResponses"), "state": params.get("requestState")})
    else:
        questions = {} if arguments["questions"] is None else {"inputRequests": arguments["questions"]}
        answer(id, {"resultType": "input_required", "requestState": str(round + 1), **questions})


def meta(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(id, {"meta": params.get("_meta")})


def say(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    sys.stderr.write(arguments["text"] + "\n")
    answer(id, {})


def environment(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(id, {"environment": dict(os.environ), "cwd": str(Path.cwd()), "pid": os.getpid()})


def deaf(id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    """Read nothing more: writers have to wait."""
    answer(id, {})
    time.sleep(60)


TOOLS = {
    name: tool for name, tool in globals().items() if inspect.isfunction(tool) and tool.__annotations__.get("arguments")
}


def subscription(id: Any) -> dict[str, Any]:
    return {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}


def answer(id: Any, result: dict[str, Any]) -> None:
    send({"jsonrpc": "2.0", "id": id, "result": result})


def fail(id: Any, code: int, message: str, data: Any = None) -> None:
    send({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, "data": data}})


def notify(method: str, params: dict[str, Any]) -> None:
    send({"jsonrpc": "2.0", "method": method, "params": params})


def send(message: dict[str, Any]) -> None:
    write(json.dumps(message))


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
