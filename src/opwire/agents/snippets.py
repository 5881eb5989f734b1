"""A call as text to copy: a curl command, Python, a request of MCP. No I/O.

Names and values of operations are quoted for the language that they are written in: a snippet never runs them.
"""

import shlex
from base64 import b64encode
from pprint import pformat
from typing import Any

import msgspec

from opwire.agents.tools import input_schema
from opwire.errors import SchemaError
from opwire.model.operation import OperationSpec, OperationType, PreparedRequest
from opwire.model.origin import path_of
from opwire.runtime.text import harmless
from opwire.typed.plain import as_dict, replace_surrogates

TOKEN_VARIABLE = "OPWIRE_TOKEN"  # noqa: S105 - its name
"""The environment variable that snippets take the token from."""

_PYTHON_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list[Any]",
    "object": "dict[str, Any]",
}


def curl_command(request: PreparedRequest, *more: str) -> str:
    """Return a command for POSIX shells that sends the same request. `more` are further words, quoted already."""
    words = [["curl", "--globoff", request.url]]  # brackets in a URL are not patterns
    if request.method == "HEAD":
        words.append(["--head"])
    elif request.method != ("GET" if request.body is None else "POST"):
        words.append(["--request", request.method])
    for name, value in request.headers:
        words.append(["--header", f"{name}: {value}" if value else f"{name};"])  # "name:" would remove it
    prefix = ""
    if (text := printable_body(request.body)) is not None:
        words.append(["--data-raw", text])
    elif request.body is not None:
        prefix = f"printf %s {b64encode(request.body).decode()} | base64 -d | "
        words.append(["--data-binary", "@-"])
    return prefix + " \\\n  ".join((*map(shlex.join, words), *more))


def printable_body(body: bytes | None) -> str | None:
    """Return a body that can be printed, or None: a terminal would obey control characters, and others lose bytes."""
    try:
        text = None if body is None else body.decode()
    except UnicodeDecodeError:
        return None
    return None if text is None or text != harmless(text) else text


def curl_snippet(spec: OperationSpec, input: Any, url: str) -> str:
    """Return the curl command of a call over the HTTP API at `url`."""
    body = msgspec.json.encode(replace_surrogates({} if input is None else input))
    headers = (("content-type", "application/json"),)
    request = PreparedRequest(
        protocol="http", method="POST", url=f"{url}{path_of(spec.id)}", headers=headers, body=body
    )
    more = [] if _is_public(spec) else [f'--header "Authorization: Bearer ${TOKEN_VARIABLE}"']
    if spec.type is OperationType.SUBSCRIPTION:
        more.append("--no-buffer")
    return curl_command(request, *more)


def python_snippet(spec: OperationSpec, input: Any, url: str) -> str:
    """Return a program that makes the call with `opwire.client.Client`."""
    hint = _PYTHON_TYPES.get(str(as_dict(spec.output_schema.json).get("type")), "Any")
    token = "" if _is_public(spec) else f', token=os.environ["{TOKEN_VARIABLE}"]'
    input_text = pformat(input, width=88, sort_dicts=False).replace("\n", "\n    ")
    arguments = f"{spec.id!r}" if input is None else f"{spec.id!r}, input"
    typed = "" if hint == "Any" else f", output_type={hint}"
    lines = [
        "import asyncio",
        *(["import os"] if token else []),
        *(["from typing import Any"] if "Any" in typed else []),
    ]
    lines += ["", "from opwire.client import Client", "", "", "async def main() -> None:"]
    lines += [] if input is None else [f"    input = {input_text}"]
    lines.append(f"    async with Client({url!r}{token}) as client:")
    if spec.type is OperationType.SUBSCRIPTION:
        lines += [f"        async for item in client.subscribe({arguments}{typed}):", "            print(item)"]
    else:
        lines.append(f"        print(await client.call({arguments}{typed}))")
    return "\n".join((*lines, "", "", "asyncio.run(main())", ""))


def mcp_snippet(spec: OperationSpec, input: Any, name: str) -> str:
    """Return the request `tools/call` of a call to the tool of this name."""
    try:
        wraps = input_schema(spec.input_schema).wraps
    except SchemaError:  # the tool is listed without its schema
        wraps = False
    arguments = ({"input": input} if input is not None else {}) if wraps else {} if input is None else input
    params = {"name": name, "arguments": replace_surrogates(arguments)}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return msgspec.json.format(msgspec.json.encode(request), indent=2).decode()


def _is_public(spec: OperationSpec) -> bool:
    return spec.access is not None and spec.access.public
