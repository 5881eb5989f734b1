"""The TypeScript package calls and serves over a hub in Python, and withstands one that sends nonsense."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from opwire import (
    CallError,
    Context,
    ErrorCode,
    Identity,
    OperationRegistry,
    ResponseEnvelope,
    mcp_envelope,
)
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub, Spoke
from opwire.model.tool_envelope import encode_blocks
from opwire_conformance.peers import ConformanceReport, check_connecting_peer
from opwire_conformance.peers.listening import CALLER_CHECKS
from opwire_conformance.peers.server import SERVER_CHECKS
from tests.judges.programs import NODE, NODE_MODULES
from tests.judges.serving import HOST, finished, free_port
from tests.servers.processes import ROOT, mortal
from tests.transports.websocket.foreign import WELCOME, foreign

PACKAGE = ROOT / "peers" / "typescript"
HERE = Path(__file__).parent
PATIENCE = 30.0
TOKENS = {
    "caller-token-0123456789": Grant(Identity(id="ann", scopes=("all",))),
    "spoke-token-0123456789": Grant(Identity(id="node"), announces=("ts",)),
    "deputy-token-0123456789": Grant(Identity(id="node"), announces=("ts",), delegates=True),
}


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the package as its users get it."""
    folder = tmp_path_factory.mktemp("package")
    tsc = [str(NODE), str(NODE_MODULES / "typescript" / "bin" / "tsc"), "-p", str(PACKAGE), "--outDir", str(folder)]
    built = subprocess.run(tsc, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stdout
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    return str(folder / "index.js")


class Work:
    """The operations of the hub, and what happened to them."""

    def __init__(self, restart: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self.produced = 0
        self.stopped = asyncio.Event()
        self.cancelled = 0
        self.changed = asyncio.Condition()
        self.restarting: list[asyncio.Task[None]] = []
        self._restart = restart

    def registry(self) -> OperationRegistry:
        registry = OperationRegistry()
        self._add_values(registry.query)
        self._add_waits(registry.query)

        @registry.subscription("work.count")
        async def count(to: int) -> AsyncIterator[int]:
            try:
                for number in range(1, to + 1):
                    self.produced = number
                    yield number
            finally:
                if to == 1_000_000:
                    self.stopped.set()

        return registry

    def _add_values(self, operation: Callable[..., Any]) -> None:

        @operation("math.add")
        async def add(a: int, b: int) -> int:
            return a + b

        @operation("math.whoami")
        async def whoami(context: Context) -> str | None:
            return None if context.identity is None else context.identity.id

        @operation("work.bytes")
        async def data() -> bytes:
            return b"\x00\xff"

        @operation("work.tool")
        async def tool() -> ResponseEnvelope[Any]:
            return mcp_envelope(
                None, is_error=False, content=encode_blocks("# Sum", {"sum": "3 €"}, tool="add", ts="now")
            )

        @operation("work.broken")
        async def broken() -> None:
            raise RuntimeError("the password is hunter2")

    def _add_waits(self, operation: Callable[..., Any]) -> None:
        @operation("work.endless")
        async def endless(context: Context) -> None:
            context.report(1)
            try:
                await asyncio.Event().wait()
            finally:
                async with self.changed:
                    self.cancelled += 1
                    self.changed.notify_all()

        @operation("work.cancelled")
        async def cancelled(number: int) -> int:
            async with self.changed:
                await self.changed.wait_for(lambda: self.cancelled >= number)
            return self.cancelled

        @operation("work.produced")
        async def produced() -> int:
            return self.produced

        @operation("work.stopped")
        async def has_stopped() -> bool:
            return await self.stopped.wait()

        @operation("work.restart")
        async def restart() -> None:
            assert self._restart is not None
            self.restarting.append(asyncio.create_task(self._restart()))
            await asyncio.Event().wait()


@asynccontextmanager
async def spoke(package: str, url: str, token: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the spoke until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *mortal([str(NODE), str(HERE / "spoke.mjs"), package, url, token]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"ready ACCESS_DENIED\n"
        yield process
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_packages_own_tests_pass() -> None:
    tests = sorted(map(str, (PACKAGE / "test").glob("*.test.ts")))
    ended = await finished([str(NODE), "--test", *tests])
    assert ended.code == 0, ended.output


def node_20() -> list[str]:
    """The Node 20 of this machine, and the WebSocket that it needs."""
    node = shutil.which("node")
    version = node and subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if node is None or not str(version).startswith("v20."):
        pytest.skip(f"Node 20 is missing: `node` is {version or 'not there'}")
    return [node, str(NODE_MODULES / "ws" / "wrapper.mjs")]


@pytest.mark.parametrize("version", ["24", "20"])
async def test_it_calls_what_a_hub_serves(package: str, version: str) -> None:
    node, *ws = node_20() if version == "20" else [str(NODE)]
    port = free_port()
    hub: Hub

    async def restart() -> None:
        nonlocal hub
        await hub.close()
        hub = await Hub(work.registry(), f"ws://{HOST}:{port}", authenticate=StaticTokens(TOKENS), linger=0).start()

    work = Work(restart)
    hub = await Hub(work.registry(), f"ws://{HOST}:{port}", authenticate=StaticTokens(TOKENS), linger=0).start()
    try:
        command = [node, str(HERE / "caller.mjs"), package, hub.url, "caller-token-0123456789", *ws]
        ended = await asyncio.wait_for(finished(mortal(command)), 2 * PATIENCE)
        assert ended.code == 0, ended.complaints
    finally:
        await asyncio.gather(*work.restarting)
        await hub.close()
    results = json.loads(ended.output)
    assert results["refused"]["code"] == "UNAUTHENTICATED"
    assert results["add"]["data"] == 3
    assert results["add"]["meta"]["operationId"] == "math.add"
    assert results["bytes"] == [0, 255]
    assert results["tool"] == {"payload": {"sum": "3 €"}, "meta": {"tool": "add", "ts": "now", "version": 1}}
    codes = {name: results[name].get("code") for name in ("unknown", "invalid", "broken", "large", "wrongKind")}
    assert codes == {
        "unknown": "OPERATION_NOT_FOUND",
        "invalid": "VALIDATION_ERROR",
        "broken": "EXECUTION_ERROR",
        "large": "PAYLOAD_TOO_LARGE",
        "wrongKind": "VALIDATION_ERROR",
    }
    assert "math.add" in results["unknown"]["message"]
    assert results["invalid"]["details"]["problems"][0]["path"] == "/a"
    assert "hunter2" not in json.dumps(results["broken"])
    assert results["late"]["code"] == "TIMEOUT"
    assert results["aborted"]["code"] == "ABORTED"
    assert results["endless"] == 2
    assert results["sum"] == 500_500
    assert results["few"] == [1, 2, 3]
    assert results["produced"] <= 8  # the window, and what was granted after half of it
    assert results["stopped"] is True
    assert results["lost"]["code"] in ("UNAVAILABLE", "ABORTED")  # the hub may stop the call before it leaves
    assert results["after"] == 4
    assert results["openCalls"] == 0
    assert results["closed"] is None
    assert results["afterClose"]["code"] == "UNAVAILABLE"


async def test_it_serves_what_others_call_over_a_hub(package: str) -> None:
    async with (
        Hub(Work().registry(), f"ws://{HOST}:0", authenticate=StaticTokens(TOKENS)) as hub,
        spoke(package, hub.url, "spoke-token-0123456789"),
        Spoke(None, hub.url, token="caller-token-0123456789") as caller,
    ):
        spec = hub.registry.get_spec("ts.add")
        assert spec is not None
        assert spec.description == "Add two numbers."
        assert spec.input_schema.json["required"] == ["a", "b"]  # pyright: ignore[reportIndexIssue]
        assert await caller.call("ts.add", {"a": 1, "b": 2}) == 3
        assert await caller.call("ts.bytes") == b"\x00\xff"
        assert (await caller.call("ts.who"))["id"] == "ann"
        await refuses(caller, ErrorCode.VALIDATION_ERROR, "ts.add", {"a": "one", "b": 2})
        await refuses(caller, ErrorCode.ACCESS_DENIED, "ts.secret")
        assert await hub.registry.execute("ts.secret") is not None  # as the hub's program
        limited = await refuses(caller, ErrorCode.RATE_LIMITED, "ts.fail", {"known": True})
        assert (limited.message, limited.retry_after, limited.details) == ("not so fast", 1.5, {"left": 0})
        hidden = await refuses(caller, ErrorCode.EXECUTION_ERROR, "ts.fail", {"known": False})
        assert "hunter2" not in str(hidden) + str(hidden.details)
        await refuses(caller, ErrorCode.ACCESS_DENIED, "ts.nested")  # its token does not delegate
        assert await caller.call("ts.own") == "node"
        found = await caller.discover()
        assert [each.server.name for each in found if "ts.add" in [info.id for info in each.operations]] == [
            "typescript"
        ]


async def test_its_streams_wait_for_their_consumer_and_end_with_it(package: str) -> None:
    async with (
        Hub(Work().registry(), f"ws://{HOST}:0", authenticate=StaticTokens(TOKENS)) as hub,
        spoke(package, hub.url, "spoke-token-0123456789"),
        Spoke(None, hub.url, token="caller-token-0123456789") as caller,
    ):
        assert sum([item.data async for item in caller.calls.subscribe("ts.count", {"to": 1000})]) == 500_500
        items = caller.calls.subscribe("ts.count", {"to": 1_000_000})
        async with aclosing(items):
            assert (await anext(items)).data == 1
            state = await caller.call("ts.state")
            assert state["produced"] <= 2 * 64
        await until(caller, "stopped", 2)
        begun = asyncio.Event()
        context = Context(on_progress=lambda _: begun.set())
        call = asyncio.create_task(caller.calls.call("ts.endless", context=context))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        call.cancel()
        await until(caller, "aborted", 1)
        await refuses(caller, ErrorCode.TIMEOUT, "ts.endless", None, timeout=0.05)
        await until(caller, "aborted", 2)


async def test_it_calls_on_behalf_of_its_caller_if_its_token_delegates_and_returns_to_a_restarted_hub(
    package: str,
) -> None:
    port = free_port()
    hub = await Hub(Work().registry(), f"ws://{HOST}:{port}", authenticate=StaticTokens(TOKENS), linger=0).start()
    try:
        async with spoke(package, hub.url, "deputy-token-0123456789") as process:
            async with Spoke(None, hub.url, token="caller-token-0123456789") as caller:
                assert await caller.call("ts.nested") == "ann"
            await hub.close()
            hub = await Hub(
                Work().registry(), f"ws://{HOST}:{port}", authenticate=StaticTokens(TOKENS), linger=0
            ).start()
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"again\n"
            async with Spoke(None, hub.url, token="caller-token-0123456789") as caller:
                assert await caller.call("ts.add", {"a": 2, "b": 2}) == 4
    finally:
        await hub.close()


# --- the conformance kit, a browser, and the package itself -----------------------------------------------------------


@asynccontextmanager
async def checked(script: Path, *words: str, wait: float = 20.0) -> AsyncIterator[asyncio.Task[ConformanceReport]]:
    """Connect a program to the conformance kit; the words may contain `{url}`."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    run = asyncio.create_task(check_connecting_peer(listening_at=url.set_result, wait=wait))
    address = await asyncio.wait_for(url, PATIENCE)
    command = mortal([str(NODE), str(script), *(word.format(url=address) for word in words)])
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            process.kill()
        await process.wait()


def broken(report: ConformanceReport) -> list[str]:
    return [f"{each.promise}: {each.message}" for each in report.broken]


def kept(report: ConformanceReport, role: str) -> int:
    return sum(each.status == "kept" for each in report.results if each.role == role)


async def test_its_spoke_keeps_every_promise_of_the_protocol(package: str) -> None:
    async with checked(HERE / "conformance.mjs", package, "{url}", "serve") as run:
        report = await run
    assert broken(report) == []
    assert kept(report, "server") == len(SERVER_CHECKS) - 1  # it asks no questions


async def test_its_caller_keeps_every_promise_of_the_protocol(package: str) -> None:
    async with checked(HERE / "conformance.mjs", package, "{url}", "call") as run:
        report = await run
    assert broken(report) == []
    assert kept(report, "caller") == len(CALLER_CHECKS)


async def test_a_peer_that_was_written_from_the_page_alone_keeps_every_promise() -> None:
    async with checked(ROOT / "peers" / "javascript" / "peer.mjs", "{url}") as run:
        report = await run
    assert broken(report) == []
    assert (kept(report, "server"), kept(report, "caller")) == (len(SERVER_CHECKS) - 1, len(CALLER_CHECKS))


async def test_it_calls_and_serves_in_a_browser(package: str) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is missing: run `make browser`")
    if not (NODE_MODULES / "playwright-core").exists():
        pytest.skip("playwright-core is missing: run `make judges`")
    origin = f"http://{HOST}:{free_port()}"
    options: dict[str, Any] = {"authenticate": StaticTokens(TOKENS), "origins": [origin], "linger": 0}
    async with Hub(Work().registry(), f"ws://{HOST}:0", **options) as hub:
        words = [str(Path(package).parent), origin, hub.url, "spoke-token-0123456789", "caller-token-0123456789"]
        command = [str(NODE), str(HERE / "browser.mjs"), *words]
        ended = await asyncio.wait_for(finished(command, {**os.environ, "CHROMIUM": chromium}), 3 * PATIENCE)
    assert ended.code == 0, ended.complaints
    assert json.loads(ended.output) == {
        "add": 3,
        "bytes": [0, 255],
        "unknown": "OPERATION_NOT_FOUND",
        "title": "peer",
        "items": [1, 2, 3],
        "servers": 2,
    }


def test_the_package_has_what_it_exports_and_at_most_1200_lines_of_code(package: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "package", ignore=shutil.ignore_patterns("node_modules", "dist"))
    shutil.copytree(Path(package).parent, tmp_path / "package" / "dist", ignore=shutil.ignore_patterns("package.json"))
    pack = ["npm", "pack", "--dry-run", "--json", "--ignore-scripts"]
    packed = subprocess.run(pack, cwd=tmp_path / "package", capture_output=True, text=True, timeout=60, check=True)
    files = {each["path"] for each in json.loads(packed.stdout)[0]["files"]}
    modules = [path.stem for path in (PACKAGE / "src").glob("*.ts")]
    built = {f"dist/{module}{end}" for module in modules for end in (".js", ".d.ts")}
    sources = {f"src/{module}.ts" for module in modules}
    assert files == {"package.json", "README.md", "LICENSE"} | built | sources
    manifest = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert {path.removeprefix("./") for path in manifest["exports"]["."].values()} <= files
    assert manifest.get("dependencies", {}) == {}
    lines = [line.strip() for path in (PACKAGE / "src").glob("*.ts") for line in path.read_text("utf-8").splitlines()]
    code = [line for line in lines if line and not line.startswith(("//", "/*", "*"))]
    assert len(code) <= 1200


HOSTILE = [
    "nonsense",
    "[]",
    "null",
    "{}",
    '{"type":"__proto__"}',
    '{"type":"call.requested"}',
    '{"type":"call.requested","requestId":7,"operationId":"ts.add"}',
    '{"type":"call.responded","requestId":"unknown","output":{"data":1,"meta":{"source":"local"}}}',
    '{"type":"call.credit","requestId":"unknown","n":-1}',
    '{"type":"session.done","id":99}',
    '{"type":"session.pending","ids":"all"}',
    '{"type":"session.welcome","version":1,"peer":"c2","maxMessage":1,"heartbeatMs":1}',
    '{"__proto__":{"polluted":true},"type":"session.left","peer":"c9"}',
    "[" * 100_000,
    '{"type":"call.requested","requestId":"' + "x" * 2000 + '","operationId":"ts.add"}',
]


async def test_it_survives_a_server_that_sends_nonsense(package: str) -> None:
    answers: list[dict[str, Any]] = []
    done = asyncio.Event()

    async def talk(connection: ServerConnection) -> None:
        async def message(kind: str) -> dict[str, Any]:
            while (found := json.loads(await connection.recv()))["type"] != kind:
                pass
            return found

        await message("session.hello")
        await connection.send(json.dumps(WELCOME))
        for _ in range(2):  # what the spoke serves, and what it may not
            announced = await message("session.announce")
            refused = [
                {"operation": each, "code": "ACCESS_DENIED", "message": "no"} for each in announced["operations"]
            ]
            only = refused if announced["operations"] == ["other.thing"] else []
            await connection.send(json.dumps({"type": "session.done", "id": announced["id"], "refused": only}))
        for each in HOSTILE:
            await connection.send(each)
        valid = {"type": "call.requested", "operationId": "ts.add", "input": {"a": 1, "b": 2}}
        identity = {"id": "ann", "scopes": []}
        await connection.send(json.dumps({**valid, "requestId": "r1", "credits": -1, "peer": "c7"}))
        answers.append(await message("call.error"))
        await connection.send(json.dumps({**valid, "requestId": "r2", "identity": identity, "peer": "c7"}))
        answers.append(await message("call.responded"))
        await connection.send(json.dumps({**valid, "requestId": "r2", "identity": identity, "peer": "c7"}))
        answers.append(await message("call.error"))
        await connection.send(json.dumps({**valid, "requestId": "r3", "peer": "c7"}))
        answers.append(await message("call.error"))
        done.set()
        await connection.wait_closed()

    async with foreign(talk) as url, spoke(package, url, "any"):
        await asyncio.wait_for(done.wait(), PATIENCE)
    shown = [(each["requestId"], each.get("code"), each["peer"]) for each in answers]
    assert shown == [
        ("r1", "PROTOCOL_ERROR", "c7"),
        ("r2", None, "c7"),
        ("r2", "PROTOCOL_ERROR", "c7"),  # used before
        ("r3", "UNAUTHENTICATED", "c7"),
    ]
    assert answers[1]["output"]["data"] == 3


async def refuses(
    caller: Spoke, code: ErrorCode, operation_id: str, input: Any = None, *, timeout: float | None = None
) -> CallError:
    with pytest.raises(CallError) as raised:
        await caller.calls.call(operation_id, input, timeout=timeout)
    assert raised.value.code is code
    return raised.value


async def until(caller: Spoke, what: str, number: int) -> None:
    """Ask until a counter of the spoke has this value."""
    async with asyncio.timeout(PATIENCE):
        while (await caller.call("ts.state"))[what] < number:
            await asyncio.sleep(0.01)
