"""Tests of opwire.mcp.client.source, against servers of other authors."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, RegistrationError, UsageError
from opwire.mcp.client import MCPSource, StdioServer, from_mcp
from opwire.model.envelope import unwrap
from opwire.model.operation import OperationType
from opwire.registry import OperationRegistry
from opwire.registry.source import Source, SourceChange
from tests.mcp.client.listed_server import SCRIPT, Changes, Stage, mcp_meta, opwire_tool, tool
from tests.servers.leaks import Leaks

TIME = StdioServer(sys.executable, ("-m", "mcp_server_time", "--local-timezone", "UTC"))
GIT = StdioServer(sys.executable, ("-m", "mcp_server_git"))


# --- servers from PyPI ------------------------------------------------------------------------------------------------


async def test_the_time_server_is_called() -> None:
    registry = OperationRegistry()
    async with from_mcp(TIME, namespace="time") as source:
        registry.follow(source)
        assert {spec.name for spec in registry.list()} >= {"get_current_time", "convert_time"}
        envelope = await registry.execute("time.get_current_time", {"timezone": "Europe/Warsaw"})
        told = json.loads(mcp_meta(envelope).content[0]["text"])  # pyright: ignore
        assert told["timezone"] == "Europe/Warsaw"
        failed = await registry.execute("time.get_current_time", {"timezone": "Nowhere/Land"})
        assert mcp_meta(failed).is_error is True
        judged = await registry.execute("time.get_current_time", {})  # by the server
        assert mcp_meta(judged).is_error is True


async def test_the_git_server_works_on_a_repository(tmp_path: Path) -> None:
    for command in (
        ["init", "-q", "-b", "main"],
        ["config", "user.name", "Ann"],
        ["config", "user.email", "a@b.example"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "readme.txt").write_text("hello\n")
    here = {"repo_path": str(tmp_path)}
    registry = OperationRegistry()
    async with from_mcp(GIT, trust_annotations=True) as source:
        registry.follow(source)
        (namespace,) = {spec.namespace for spec in registry.list()}
        await registry.execute(f"{namespace}.git_add", {**here, "files": ["readme.txt"]})
        await registry.execute(f"{namespace}.git_commit", {**here, "message": "Say hello"})
        shown = str(unwrap(await registry.execute(f"{namespace}.git_log", here)))
        assert "Say hello" in shown
        status = registry.get_spec(f"{namespace}.git_status")
        assert status is not None
        assert status.type is OperationType.QUERY
        assert source.definition(f"{namespace}.git_status")["annotations"]["readOnlyHint"] is True  # pyright: ignore
    log = subprocess.run(["git", "log", "--format=%s"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert log.stdout == "Say hello\n"


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_a_server_behind_a_url_is_called(sdk_address: str, path: str) -> None:
    registry = OperationRegistry()
    async with from_mcp(f"{sdk_address}{path}", namespace="far") as source:
        registry.follow(source)
        assert (await registry.execute("far.add", {"a": 1, "b": 2})).data == {"result": 3}
        (page,) = (await registry.execute("far.resources/read", {"uri": "test://page"})).data
        assert page["resource"]["text"] == "a page"


# --- one server -------------------------------------------------------------------------------------------------------


def entry(stage: Stage) -> dict[str, Any]:
    """The server as an entry of an `mcpServers` file."""
    return {"command": stage.server.command, "args": list(stage.server.args)}


async def test_the_namespace_is_the_servers_own_name_unless_given(tmp_path: Path) -> None:
    """The namespace is what is given, else the server's key or own name, made usable and unique."""
    stage = Stage(tmp_path, tools=[tool("a")], serverInfo={"name": "com.example.tools", "version": "1"})
    for namespace, id in ((None, "com_example_tools.a"), ("mine", "mine.a")):
        async with from_mcp(stage.server, namespace=namespace) as source:
            assert [each.spec.id for each in source] == [id]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *(({"namespace": name}, RegistrationError) for name in ("a.b", "", "a\n")),
        *((options, UsageError) for options in ({"tool_timeout": 0}, {"normalize": "no"})),
    ],
)
def test_what_no_operation_can_have_is_refused_at_once(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        from_mcp(TIME, **options)


async def test_a_source_is_awaited_or_entered_and_closed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[tool("a")])
    source: Source = await from_mcp(entry(stage))
    assert isinstance(source, MCPSource)
    assert [each.spec.name for each in source] == ["a"]
    assert "1 operation" in repr(source)
    assert await source is source
    assert [info.name for info in source.servers.values()] == ["misbehaving"]
    await source.close()
    await source.close()
    (operation,) = source
    registry = OperationRegistry()
    registry.register_all([operation])
    with pytest.raises(CallError) as why:
        await registry.execute("misbehaving.a")
    assert why.value.code is ErrorCode.UNAVAILABLE


def test_a_source_that_is_not_connected_has_no_operations_to_give(tmp_path: Path) -> None:
    source = from_mcp(Stage(tmp_path).server)
    assert "not connected" in repr(source)
    with pytest.raises(RegistrationError, match="await it"):
        OperationRegistry().follow(source)


async def test_a_server_that_cannot_be_started_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CallError) as why:
        await from_mcp(StdioServer(str(tmp_path / "missing")))
    assert why.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(CallError):
        await from_mcp(StdioServer(sys.executable, ("-S", str(SCRIPT), str(tmp_path / "missing"))))


async def test_a_caller_that_leaves_while_it_connects_leaves_nothing_behind(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hangs = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(60)"
    connecting = asyncio.ensure_future(from_mcp(StdioServer(sys.executable, ("-c", hangs), stop_timeout=0.2)).open())
    async with asyncio.timeout(5):
        while not (pid.exists() and pid.read_text()):
            await asyncio.sleep(0.01)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert not Path(f"/proc/{pid.read_text()}").exists()


async def test_closing_leaves_nothing_behind_in_any_state(tmp_path: Path) -> None:
    ticks = opwire_tool("ticks", id="clock.ticks", type="subscription")
    stage = Stage(
        tmp_path,
        tools=[tool("play"), ticks],
        capabilities={"resources": {"subscribe": True}},
        resources=[{"uri": "a:1", "name": "one"}],
        answers={"resources/subscribe": {}},
    )
    registry = OperationRegistry()
    async with Leaks():
        source = await from_mcp(stage.server, trust_annotations=True)
        registry.follow(source)
        going_on = [
            asyncio.ensure_future(registry.execute("misbehaving.play", {"hold": True})),
            asyncio.ensure_future(anext(registry.subscribe("clock.ticks", {"hold": True}))),
            asyncio.ensure_future(anext(registry.subscribe("misbehaving.resources/watch", {"uri": "a:1"}))),
        ]
        async with asyncio.timeout(5):
            while len((await registry.execute("misbehaving.play", {"result": "received"})).data) < 7:
                pass
            await source.close()
            outcomes = await asyncio.gather(*going_on, return_exceptions=True)
        assert [getattr(each, "code", each) for each in outcomes] == [ErrorCode.UNAVAILABLE] * 3


async def test_the_definition_of_an_operation_is_what_the_server_said(tmp_path: Path) -> None:
    described = tool("a", annotations={"destructiveHint": True}, icons=[{"src": "x"}])
    stage = Stage(tmp_path, tools=[described], capabilities={"resources": {}}, resources=[{"uri": "a:1"}])
    async with from_mcp(stage.server, namespace="ns") as source:
        assert source.definition("ns.a") == described
        assert source.definition("ns.resources/read") == {}
        assert source.definition("ns.nothing") is None


async def test_a_listener_that_fails_or_has_left_affects_no_other_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path, tools=[tool("play")])

    def fail(change: SourceChange) -> None:
        raise ValueError("listener")

    left: list[SourceChange] = []
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        source.on_change(fail)
        leave = source.on_change(left.append)
        leave()
        leave()
        changes = Changes(source)
        stage.set(tools=[tool("play"), tool("new")])
        await registry.execute("misbehaving.play", {"notify": [{"method": "notifications/tools/list_changed"}]})
        await changes.next()
    assert "a listener raised" in caplog.text
    assert left == []


# --- a whole file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
@pytest.mark.parametrize("given", ["path", "text", "mapping"])
async def test_a_file_gives_the_operations_of_all_its_servers(tmp_path: Path, key: str, given: str) -> None:
    servers = {}
    for name in ("one", "two.x"):
        (tmp_path / name).mkdir()
        servers[name] = entry(Stage(tmp_path / name, tools=[tool("a")]))
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({key: servers}))
    forms: dict[str, Any] = {"path": file, "text": str(file), "mapping": {key: servers}}
    async with from_mcp(forms[given]) as source:
        assert [each.spec.id for each in source] == ["one.a", "two_x.a"]
        assert list(source.servers) == ["one", "two.x"]
        assert source.failures == {}


async def test_a_server_that_fails_costs_the_others_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = {"mcpServers": {"bad": {"command": str(tmp_path / "no")}, "good": entry(Stage(tmp_path, tools=[tool("a")]))}}
    async with from_mcp(file) as source:
        assert [each.spec.id for each in source] == ["good.a"]
        assert [(name, error.code) for name, error in source.failures.items()] == [("bad", ErrorCode.UNAVAILABLE)]
        assert "the MCP server bad is skipped" in caplog.text
    async with Leaks():
        with pytest.raises(CallError) as why:
            await from_mcp(file, required=True)
    assert why.value.code is ErrorCode.UNAVAILABLE


def test_a_namespace_for_a_whole_file_is_refused() -> None:
    with pytest.raises(UsageError, match="namespace of its key"):
        from_mcp({"mcpServers": {}}, namespace="all")


async def test_a_file_without_servers_has_no_operations() -> None:
    async with from_mcp({"mcpServers": {}}) as source:
        assert list(source) == []
