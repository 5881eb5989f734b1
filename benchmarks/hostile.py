"""Hostile input: how long it stops the event loop, and how much memory it takes.

Each row is one input, made and sent in a fresh process that may take 3 GB and 30 s: a regression prints a figure, it
does not hang. A heartbeat measures the longest time between two turns of the loop, in processor time of all threads, so
that a busy machine is hardly seen, and a thread that holds the GIL is; memory is what the resident set grows by at its
peak. One input may take 100 ms, and 100 ms more for each of its megabytes. Run by itself with the name of a case and a
size, this module is that process.
"""

import asyncio
import json
import logging
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from benchmarks.measure import NotMeasuredError, Row, Table, need_linux
from opwire import CallError, OperationRegistry, OperationSpec, Schema
from opwire.hub import Hub
from opwire.mcp.server import serve_mcp
from opwire.model.access import AccessControl
from opwire.model.operation import NormalizeMode, Operation
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from opwire.protocol import decode_event

_MEMORY, _SECONDS = 3 * 2**30, 30
_STALL, _STALL_PER_MEGABYTE = 100.0, 100.0  # milliseconds


class Attack(NamedTuple):
    """What is sent, how large it is, and what to await: it returns a word on how it ended."""

    size: int
    run: Callable[[], Awaitable[str]]


class Result(NamedTuple):
    """What one process measured."""

    size: int
    stall: float  # milliseconds
    memory: float  # megabytes
    outcome: str


# --- the inputs -------------------------------------------------------------------------------------------------------


def _given(schema: dict[str, Any], value: Any) -> Attack:
    return _call(OperationSpec(namespace="a", name="b", input_schema=Schema(schema)), value, None)


def _answered(schema: dict[str, Any], value: Any, normalize: NormalizeMode = "fit") -> Attack:
    spec = OperationSpec(namespace="a", name="b", output_schema=Schema(schema), normalize=normalize)
    return _call(spec, None, value)


def _call(spec: OperationSpec, input: Any, answer: Any) -> Attack:
    registry = OperationRegistry()
    registry.register(spec, lambda _input, _context: answer, inline=True)
    size = len(json.dumps([input, answer])) + len(json.dumps([spec.input_schema.json, spec.output_schema.json]))

    async def run() -> str:
        await registry.execute(spec.id, input)
        return "passed on"

    return Attack(size, run)


def _received(schema: dict[str, Any], value: Any) -> Attack:
    """A result of a source, such as an HTTP API."""
    registry, spec = OperationRegistry(), OperationSpec(namespace="a", name="b", output_schema=Schema(schema))

    async def receive(_input: Any, _context: Any) -> Any:
        return value

    registry.register_all([Operation(spec, receive)])

    async def run() -> str:
        await registry.execute(spec.id)
        return "passed on"

    return Attack(len(json.dumps(value)) + len(json.dumps(schema)), run)


def _texts(n: int) -> tuple[dict[str, Any], Any]:
    return {"type": "array", "items": {"type": "string"}}, [1] * n


def _unions(n: int) -> tuple[dict[str, Any], Any]:
    variants = [
        {"type": "object", "properties": {f"k{i}": {"type": "string"}}, "required": [f"k{i}"]} for i in range(20)
    ]
    return {"type": "array", "items": {"anyOf": variants}}, [{"z": 1}] * n


def _tagged(variants: int, n: int) -> tuple[dict[str, Any], Any]:
    kinds = [
        {"type": "object", "properties": {"kind": {"const": i}, "name": {"type": "string"}}, "required": ["kind"]}
        for i in range(variants)
    ]
    return {"items": {"oneOf": kinds}}, [{"kind": i % variants, "name": "name", "more": 1} for i in range(n)]


def _doubling(n: int) -> tuple[dict[str, Any], Any]:
    twice = [[{"$ref": f"#/$defs/d{i + 1}"}] * 2 for i in range(n)]
    definitions = {f"d{i}": {"properties": {"a": {"anyOf": both}}} for i, both in enumerate(twice)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{n}": False}}, _nested(n, 1, lambda inner: {"a": inner})


def _nodes(kinds: int) -> dict[str, Any]:
    children = {"type": "array", "items": {"$ref": "#/$defs/node"}}
    variants = [
        {"type": "object", "properties": {"children": children, "type": {"const": f"k{i}"}}, "required": ["type"]}
        for i in range(kinds)
    ]
    return {"$ref": "#/$defs/node", "$defs": {"node": {"oneOf": variants}}}


def _wrong_leaf(n: int) -> tuple[dict[str, Any], Any]:
    leaf = {"children": [], "type": "none"}
    return _nodes(5), _nested(n, leaf, lambda inner: {"children": [inner], "type": "k0"})


def _document(n: int) -> tuple[dict[str, Any], Any]:
    leaves = [{"children": [], "type": f"k{i % 20}"} for i in range(n)]
    return _nodes(20), {"type": "k1", "children": [{"type": "k2", "children": leaves[i::100]} for i in range(100)]}


def _unique_arrays(n: int) -> tuple[dict[str, Any], Any]:
    """Arrays of nothing but arrays, all different: they have one and the same hash."""

    def digits(number: int) -> Any:
        value: Any = []
        for digit in range(n.bit_length()):
            value = [value, []] if number >> digit & 1 else [value]
        return value

    return {"type": "array", "uniqueItems": True}, [digits(number) for number in range(n)]


def _enum_of_objects(n: int) -> tuple[dict[str, Any], Any]:
    return {"items": {"enum": [{"n": i} for i in range(400)]}}, [{"n": 399}] * n


def _large_multiples(n: int) -> tuple[dict[str, Any], Any]:
    return {"type": "array", "items": {"type": "number", "multipleOf": 0.01}}, [1e308] * n


def _undeclared(n: int) -> tuple[dict[str, Any], Any]:
    item = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    return {"type": "array", "items": item}, [{"id": i, "name": "name", "more": 1} for i in range(n)]


def _nested(levels: int, leaf: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


def _public() -> OperationRegistry:
    registry = OperationRegistry()

    async def put(values: Any) -> int:
        return len(values)

    registry.mutation("pub.put", access=AccessControl(public=True))(put)
    return registry


async def _post(address: str, path: str, body: bytes, headers: str = "") -> tuple[str, str]:
    """Send a request over a connection of its own; return the head of the response, and its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n{headers}"
    writer.write(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + body)
    head, _, text = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head, text


def _posted(body: bytes) -> Attack:
    """A request of a stranger to a served operation."""

    async def run() -> str:
        async with serve_http(_public()).listening(port=0) as address:
            head, _ = await _post(address, "/pub/put", body)
            return head.partition("\r\n")[0].split(" ", 1)[1]

    return Attack(len(body), run)


def _posted_to_mcp(values: bytes) -> Attack:
    """A call of a tool by an anonymous client."""
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pub_put","arguments":{"values":%b}}}' % values
    )
    version, info = "2025-06-18", {"name": "stranger", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
    hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
    accept = "accept: application/json, text/event-stream\r\n"

    async def run() -> str:
        async with serve_mcp(_public()).asgi().listening(port=0) as address:
            head, _ = await _post(address, "/mcp", hello, accept)
            session = head.lower().partition("mcp-session-id: ")[2].partition("\r\n")[0]
            headers = f"{accept}mcp-session-id: {session}\r\nmcp-protocol-version: {version}\r\n"
            head, text = await _post(address, "/mcp", body, headers)
            called = '"isError":false' in text or '"structuredContent"' in text
            return "called" if called else head.partition("\r\n")[0].split(" ", 1)[1]

    return Attack(len(body), run)


def _sent_to_hub(values: bytes) -> Attack:
    """A call of an operation of a hub by an anonymous peer."""
    message = b'{"type":"call.requested","requestId":"1","operationId":"pub.put","input":{"values":%b}}' % values

    async def run() -> str:
        protocol = [Subprotocol("opwire.v1")]
        async with (
            Hub(_public(), "ws://127.0.0.1:0") as hub,
            connect(hub.url, subprotocols=protocol, compression=None) as peer,
        ):
            await peer.send('{"type":"session.hello","version":1}')
            await peer.recv()
            await peer.send(message.decode())
            answer = json.loads(await peer.recv())
            return answer.get("code", "called")

    return Attack(len(message), run)


def _lists(size: int) -> bytes:
    return b"[" + b",".join([b"[]"] * (size // 3)) + b"]"


def _objects(size: int) -> bytes:
    return b"[" + b",".join([b'{"a":1}'] * (size // 8)) + b"]"


def _last_nan(n: int) -> bytes:
    return b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(n)) + b',"z":NaN}'


def _duplicate_keys(n: int) -> Attack:
    return _posted(b'{"values":{' + b",".join(b'"%d":0' % i for i in range(n)) + b',"z":1,"z":2}}')


def _deep_body(n: int) -> Attack:
    return _posted(b'{"a":' * n + b"1" + b"}" * n)


def _unknown_id(n: int) -> Attack:
    """An id that nothing has, in a registry of 2,000 operations with names that look like it."""
    registry = OperationRegistry()
    for i in range(2_000):
        spec = OperationSpec(namespace="api", name=f"repos/list/pull/requests/for/{i}")
        registry.register(spec, lambda _input, _context: None, inline=True)

    async def run() -> str:
        await registry.execute(f"api.{'repos/list/pull/requests/' * (n // 25)}")
        return "found"

    return Attack(n, run)


def _names(n: int) -> Attack:
    paths = {f"/{chr(0x4E00 + i)}": {"get": {"responses": {}}} for i in range(n)}
    document = {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": paths}

    async def run() -> str:  # as configurations are loaded; iterating without `await` blocks the loop by design
        async with from_openapi(document, namespace="x") as api:
            return f"{len(api):,} operations"

    return Attack(len(json.dumps(document, ensure_ascii=False).encode()), run)


def _event(input: bytes) -> Attack:
    message = b'{"type":"call.requested","requestId":"1","operationId":"a.b","input":' + input + b"}"

    async def run() -> str:
        decode_event(message)
        return "decoded"

    return Attack(len(message), run)


def _long_numbers(n: int) -> Attack:
    return _event(b"[" + b",".join([b"9" * 4_000] * (n // 4_000)) + b"]")


ATTACKS: dict[str, tuple[Callable[[int], Attack], tuple[int, ...]]] = {
    "wrong items of a list, as input": (lambda n: _given(*_texts(n)), (10_000, 100_000, 2_000_000)),
    "wrong items of a list, as output": (lambda n: _answered(*_texts(n)), (10_000, 100_000, 2_000_000)),
    "wrong items of a union of 20, as input": (lambda n: _given(*_unions(n)), (3_000, 100_000)),
    "wrong items of a union of 20, as output": (lambda n: _answered(*_unions(n)), (3_000, 100_000)),
    "an undeclared property in each object": (lambda n: _answered(*_undeclared(n)), (1_000, 20_000)),
    "the same in a tagged union, of an API": (lambda n: _received(*_tagged(20, n)), (1_000, 20_000)),
    "a union of many variants, of an API": (lambda n: _received(*_tagged(n, 1)), (200, 4_500)),
    "definitions that double, levels": (lambda n: _given(*_doubling(n)), (20, 60)),
    "the same as output, levels": (lambda n: _answered(*_doubling(n)), (20, 60)),
    "a wrong leaf in a tree of unions, levels": (lambda n: _given(*_wrong_leaf(n)), (8, 90)),
    "a document of 20 kinds of nodes, valid": (lambda n: _given(*_document(n)), (1_000, 50_000)),
    "unique arrays with one hash": (lambda n: _given(*_unique_arrays(n)), (1_000, 50_000)),
    "items of an enum of 400 objects": (lambda n: _given(*_enum_of_objects(n)), (100, 50_000)),
    "multiples of 0.01 as large as 1e308": (lambda n: _given(*_large_multiples(n)), (1_000, 100_000)),
    "duplicate keys over HTTP": (_duplicate_keys, (1_000, 40_000)),
    "a nested body over HTTP, levels": (_deep_body, (1_000, 100_000)),
    "empty lists over HTTP, bytes": (lambda n: _posted(b'{"values":%b}' % _lists(n)), (200_000, 1_000_000)),
    "small objects over HTTP, bytes": (lambda n: _posted(b'{"values":%b}' % _objects(n)), (1_000_000, 4_000_000)),
    "empty lists over MCP, bytes": (lambda n: _posted_to_mcp(_lists(n)), (200_000, 1_000_000)),
    "small objects over MCP, bytes": (lambda n: _posted_to_mcp(_objects(n)), (1_000_000, 4_000_000)),
    "an invalid number after many keys over MCP": (lambda n: _posted_to_mcp(_last_nan(n)), (10_000, 250_000)),
    "empty lists to a hub, bytes": (lambda n: _sent_to_hub(_lists(n)), (200_000, 1_000_000)),
    "small objects to a hub, bytes": (lambda n: _sent_to_hub(_objects(n)), (200_000, 1_000_000)),
    "an unknown operation, letters": (_unknown_id, (100, 1_000_000)),
    "paths without a usable name": (_names, (1_000, 8_000)),
    "an event with nested input, levels": (lambda n: _event(b"[" * n + b"]" * n), (1_000, 1_000_000)),
    "an event with long numbers, bytes": (_long_numbers, (100_000, 4_000_000)),
}


# --- one process ------------------------------------------------------------------------------------------------------


async def _measure(attack: Attack) -> Result:
    stall = 0.0

    async def beat() -> None:
        nonlocal stall
        while True:
            began = process_time()
            await asyncio.sleep(0)
            stall = max(stall, process_time() - began)

    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _peak()
    heart = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    stall = 0.0
    try:
        outcome = await attack.run()
    except CallError as error:
        outcome = f"{error.code}"
    await asyncio.sleep(0)
    heart.cancel()
    return Result(attack.size, stall * 1e3, (_peak() - before) / 1e3, outcome)


def _peak() -> int:
    """The most memory that was resident, in kB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def main(name: str, size: int) -> None:
    """Be the process of one row."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    logging.disable()  # warnings are made, and not written
    print(json.dumps(asyncio.run(_measure(ATTACKS[name][0](size)))))


# --- the table --------------------------------------------------------------------------------------------------------


def _row(name: str, size: int) -> Row:
    command = [sys.executable, "-m", "benchmarks.hostile", name, str(size)]
    label = f"{name}: {size:,}"
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Row(label, _SECONDS * 1e3, must_reach="an end", reached=False, note=f"stopped after {_SECONDS} s")
    if ran.returncode:
        lines = ran.stderr.strip().splitlines() or [f"status {ran.returncode}"]
        if "MemoryError" not in lines[-1] and ran.returncode > 0:
            raise NotMeasuredError(f"{label}: {lines[-1]}")
        return Row(label, 0.0, must_reach="an end", reached=False, note=f"the process ended: {lines[-1][:80]}")
    result = Result(*json.loads(ran.stdout))
    limit = _STALL + _STALL_PER_MEGABYTE * result.size / 1e6
    note = f"{result.size / 1e3:,.1f} kB; +{result.memory:,.0f} MB; {result.outcome}"
    return Row(label, result.stall, must_reach=f"<= {limit:,.0f}", reached=result.stall <= limit, note=note)


def tables() -> Iterator[Table]:
    """One table: the longest stall of the loop for each input and size."""
    need_linux()
    rows = [_row(name, size) for name, (_, sizes) in ATTACKS.items() for size in sizes]
    yield Table("hostile input: longest stall of the event loop", "ms", "-", rows)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
