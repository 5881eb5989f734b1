"""The operations, calls and figures of a server elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.auth import Grant, StaticTokens
from opwire.console import serve_console, system
from opwire.console.system import KnownServers
from opwire.errors import ErrorCode
from opwire.hub import remote_server
from opwire.hub.remote_server import RemoteMonitor, RemoteServer
from opwire.model.context import Inbound, Progress
from opwire.model.questions import Question
from opwire.observe.monitor import CallMonitor, CallRecord, CallWatcher
from opwire.openapi.server import serve_http
from tests.hub.meeting import Meeting, adding

PATIENCE = 20.0
TOKENS = {name: f"{name}-token-of-a-test" for name in ("math", "ann", "boss")}
AUTH = StaticTokens(
    {
        TOKENS["math"]: Grant(Identity(id="math"), announces=("math", "stock")),
        TOKENS["ann"]: Identity(id="ann"),
        TOKENS["boss"]: Identity(id="boss", scopes=("opwire:observe",)),
    }
)
SURFACE = Context(request_id="r1", inbound=Inbound("r1"), identity=Identity(id="local", scopes=("*",)))
"""The context of a call on the page."""


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.01)


def counting() -> OperationRegistry:
    registry = adding()

    @registry.subscription("math.count")
    async def count(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    @registry.query("math.whoami")
    async def whoami(context: Context) -> str | None:
        return context.identity and context.identity.id

    return registry


async def test_operations_of_a_hub_are_called_with_the_identity_of_the_connection(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, counting(), token=TOKENS["math"])
    async with RemoteServer(hub.url, token=TOKENS["boss"]) as remote:
        assert [spec.id for spec in remote.registry.list()] == ["math.add", "math.count", "math.whoami"]
        assert (await remote.registry.execute("math.whoami", {}, SURFACE)).data == "boss"
        assert [each.data async for each in remote.registry.subscribe("math.count", {"n": 3}, SURFACE)] == [0, 1, 2]
        with pytest.raises(CallError) as failed:
            await remote.registry.execute("math.add", {"a": 1, "b": "x"}, SURFACE)
        assert failed.value.code is ErrorCode.VALIDATION_ERROR


async def test_progress_and_questions_of_a_remote_operation_reach_the_caller(meeting: Meeting) -> None:
    registry = OperationRegistry()

    @registry.mutation("math.ask")
    async def ask(context: Context) -> str:
        context.report(1, 2, "half")
        return f"answered {await context.elicit(bool, 'Really?')}"

    async def answer(question: Question) -> dict[str, Any]:
        asked.append(question.params["message"])
        return {"action": "accept", "content": {"value": True}}

    asked, reports = list[str](), list[Progress]()
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, registry, token=TOKENS["math"])
    async with RemoteServer(hub.url, token=TOKENS["boss"]) as remote:
        context = replace(SURFACE, on_progress=reports.append, on_question=answer)
        found = await remote.registry.execute("math.ask", {}, context)
    assert (asked, [each.message for each in reports]) == (["Really?"], ["half"])
    assert found.data.startswith("answered")


async def test_calls_and_figures_are_those_of_the_hub(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, adding(), token=TOKENS["math"], name="maths")
    ann = await meeting.spoke(hub.url, token=TOKENS["ann"])
    async with RemoteServer(hub.url, token=TOKENS["boss"]) as remote:
        remote.monitor.keep_timings()
        assert (remote.monitor.snapshot().kind, remote.monitor.problem) == ("hub", None)
        assert {each.name for each in await remote.servers()} == {"hub", "maths"}
        watcher = CallWatcher()
        with remote.monitor.watching(watcher):
            await until(lambda: hub.handler.monitor.watched)
            await ann.call("math.add", {"a": 1, "b": 2})
            await remote.registry.execute("math.add", {"a": 1, "b": 2}, SURFACE)
            records = list[Any]()
            await until(lambda: records.extend(watcher.take()[0]) or len(records) == 2)
        assert [(each.operation_id, each.caller, each.via) for each in records] == [
            ("math.add", "ann", "relay"),
            ("math.add", "boss", "relay"),
        ]
        assert remote.monitor.timings is not None
        assert remote.monitor.timings["math.add"].outcomes == {"OK": 2}


async def test_without_the_scope_operations_are_called_and_the_rest_is_explained(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, adding(), token=TOKENS["math"])
    async with RemoteServer(hub.url, token=TOKENS["ann"]) as remote:
        assert (await remote.registry.execute("math.add", {"a": 1, "b": 2}, SURFACE)).data == 3
        problem = "no new figures and calls: the token needs the scope opwire:observe at the server"
        await until(lambda: remote.monitor.problem == problem)
        assert await KnownServers(remote.monitor, remote.servers).shown() == []  # rather than an idle server


async def test_operations_that_come_and_go_are_followed(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_server, "_SECONDS_BETWEEN_FIGURES", 0.02)
    hub = await meeting.hub(authenticate=AUTH, linger=0)
    await meeting.spoke(hub.url, adding(), token=TOKENS["math"])
    async with RemoteServer(hub.url, token=TOKENS["boss"]) as remote:
        kept = remote.registry.get_spec("math.add")
        later = await meeting.spoke(hub.url, adding("stock"), token=TOKENS["math"])
        await until(lambda: "stock.add" in remote.registry)
        await later.close()
        await until(lambda: "stock.add" not in remote.registry)
        assert remote.registry.get_spec("math.add") is kept  # what is unchanged is not registered again


async def test_a_lost_hub_is_explained_and_used_again(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_SECONDS_BETWEEN_FIGURES", "_RETRY_PAUSE"):
        monkeypatch.setattr(remote_server, name, 0.02)
    hub = await meeting.hub(authenticate=AUTH)
    monkeypatch.setattr(system, "REFRESH", 0.0)
    async with RemoteServer(hub.url, token=TOKENS["boss"]) as remote:
        known = KnownServers(remote.monitor, remote.servers)
        [shown] = await known.shown()
        assert shown["status"] == "serving"
        await hub.close()
        await until(lambda: "not reachable" in (remote.monitor.problem or ""))
        [lost] = await known.shown()
        assert lost["status"] == "gone"  # the last figures would be shown as current
        assert sum("was lost" in each for each in caplog.messages) == 1  # calls and figures share a connection
        again = await meeting.hub(url=hub.url, authenticate=AUTH)
        await until(lambda: remote.monitor.problem is None and again.handler.monitor.watched)


async def test_a_server_over_http_is_shown_as_well() -> None:
    registry = counting()
    monitor = CallMonitor(registry, name="api")
    app = serve_http(registry, monitor=monitor, anonymous=Identity(id="guest", scopes=("*",)))
    async with app.listening() as address, RemoteServer(address) as remote:
        assert (await remote.registry.execute("math.whoami", {}, SURFACE)).data == "guest"
        assert [each.name for each in await remote.servers()] == ["api"]


async def test_its_console_has_no_other_identities_and_no_values_and_copies_calls_of_the_hub(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, adding(), token=TOKENS["math"])
    address = hub.url.removeprefix("ws://")
    async with RemoteServer(f"ws://user:secret@{address}", token=TOKENS["boss"]) as remote:
        assert remote.monitor.remote == hub.url
        everything = Identity(id="local", scopes=("*",))
        console = serve_console(remote.registry, monitor=remote.monitor, anonymous=everything)
        async with console.listening() as base, aiohttp.ClientSession(headers={"x-opwire-console": "1"}) as page:
            async with page.get(f"{base}/api/session") as reply:
                session = await reply.json()
            assert (session["mayObserve"], session["mayActAs"], session["mayShowValues"]) == (True, False, False)
            body = {"operationId": "math.add", "input": {"a": 1, "b": 2}}
            async with page.post(f"{base}/api/call", json={**body, "actAs": {"id": "ann", "scopes": []}}) as reply:
                assert reply.status == 403
            async with page.post(f"{base}/api/snippets", json=body) as reply:
                copied = await reply.json()
            assert copied["curl"] is None
            assert f"Client('{hub.url}', token=" in copied["python"]


async def test_a_hostile_server_adds_no_counters_and_takes_no_calls_back() -> None:
    monitor, watcher = RemoteMonitor(adding()), CallWatcher()
    monitor.keep_timings()
    with monitor.watching(watcher):
        for number in range(100):
            outcome = f"made up {number}"
            made_up: dict[str, Any] = {"time": 0, "request_id": "r", "outcome": outcome, "server": "s", "via": "call"}
            for id in ("math.add", f"made.up{number}"):
                monitor.show(CallRecord(**made_up, operation_id=id, ms=-(10.0**number), dropped=-5))
        records, dropped = watcher.take()
    assert (len(records), dropped) == (200, 0)
    assert monitor.timings is not None
    assert {id: each.outcomes for id, each in monitor.timings.items()} == {"math.add": {"EXECUTION_ERROR": 100}}
    assert len(monitor.timings["math.add"].buckets) == 1


async def test_an_unreachable_server_is_an_error() -> None:
    with pytest.raises(CallError) as failed:
        async with RemoteServer("ws://127.0.0.1:1"):
            pass
    assert failed.value.code is ErrorCode.UNAVAILABLE
