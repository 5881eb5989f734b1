"""Calls that outlive their request: the extension for tasks."""

import asyncio
import gc
from typing import Any
from weakref import WeakSet

import httpx2
import pytest

from opwire import AccessControl, Context, Identity, OperationRegistry, UsageError
from opwire.mcp.messages import RPCError
from opwire.mcp.server import serve_mcp
from opwire.mcp.server import tasks as module
from opwire.mcp.server.tasks import TASKS, CallTask, CallTasks, TaskRequest
from tests.mcp.server.raw import Raw, call, raw, request
from tests.mcp.server.shop import NEWEST, served

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
DECLARED = {"elicitation": {}, "extensions": {TASKS: {}}}


class Work:
    """Operations that wait for the test."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.stopped = asyncio.Event()
        self.registry = registry = OperationRegistry()
        public = AccessControl(public=True)

        @registry.mutation("work.slow", access=public)
        async def slow() -> dict[str, int]:
            try:
                await self.release.wait()
            finally:
                self.stopped.set()
            return {"n": 7}

        @registry.mutation("work.ask", access=public)
        async def ask(context: Context) -> str:
            await self.release.wait()
            first = await context.elicit(bool, "Go on?", key="go")
            second = await context.elicit(bool, "Go on?", key="go")
            return f"{bool(first)} {second.action}"

        @registry.mutation("work.confirm", access=public)
        async def confirm(context: Context) -> str:
            await context.elicit(bool, "First?")
            await self.release.wait()
            return "done"

        @registry.query("work.quick", access=public)
        async def quick() -> int:
            return 1


def declared(message: Any) -> Any:
    message["params"]["_meta"][CAPABILITIES] = DECLARED
    return message


def begin(name: str, id: int = 1) -> Any:
    return declared(call(name, id=id, era=NEWEST))


def about(method: str, task: str, id: int, **params: Any) -> Any:
    return declared(request(f"tasks/{method}", {"taskId": task, **params}, id=id, era=NEWEST))


async def until(client: Raw, task: str, status: str) -> Any:
    """The task, when it has this status."""
    for id in range(1000, 3000):
        found = (await client.ask(about("get", task, id)))["result"]
        if found["status"] == status:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"it is {found['status']}, not {status}")


async def test_a_long_call_becomes_a_task_and_its_result_is_polled() -> None:
    work = Work()
    async with raw(serve_mcp(work.registry, task_after=0.01), handshake=False) as client:
        discovered = (await client.ask(declared(request("server/discover", era=NEWEST))))["result"]
        assert discovered["capabilities"]["extensions"] == {TASKS: {}}
        quick = (await client.ask(begin("work_quick", 2)))["result"]
        assert quick["resultType"] == "complete"
        task = (await client.ask(begin("work_slow", 3)))["result"]
        assert (task["resultType"], task["status"]) == ("task", "working")
        assert isinstance(task["ttlMs"], int)
        assert task["createdAt"].endswith("Z")
        working = (await client.ask(about("get", task["taskId"], 4)))["result"]
        assert (working["resultType"], working["status"]) == ("complete", "working")
        work.release.set()
        done = await until(client, task["taskId"], "completed")
        assert done["result"]["structuredContent"] == {"n": 7}


async def test_a_task_asks_and_is_answered_by_updates() -> None:
    work = Work()
    async with raw(serve_mcp(work.registry, task_after=0.01), handshake=False) as client:
        id = (await client.ask(begin("work_ask")))["result"]["taskId"]
        work.release.set()
        first = (await until(client, id, "input_required"))["inputRequests"]
        (key,) = first
        assert first[key]["params"]["message"] == "Go on?"
        accept = {"action": "accept", "content": {"value": True}}
        updated = await client.ask(about("update", id, 5, inputResponses={"unknown": accept, key: accept}))
        assert updated["result"]["resultType"] == "complete"
        second = (await until(client, id, "input_required"))["inputRequests"]
        assert set(second).isdisjoint(first)
        await client.ask(about("update", id, 6, inputResponses={key: accept}))  # answered before
        await client.ask(about("update", id, 7, inputResponses={each: {"action": "decline"} for each in second}))
        done = await until(client, id, "completed")
        assert done["result"]["content"][0]["text"] == "True decline"


async def test_a_question_before_that_is_asked_by_the_request_itself() -> None:
    work = Work()
    async with raw(serve_mcp(work.registry, task_after=0.01), handshake=False) as client:
        asked = (await client.ask(begin("work_confirm")))["result"]
        assert asked["resultType"] == "input_required"
        again = begin("work_confirm", 2)
        again["params"]["requestState"] = asked["requestState"]
        again["params"]["inputResponses"] = {
            key: {"action": "accept", "content": {"value": True}} for key in asked["inputRequests"]
        }
        task = (await client.ask(again))["result"]
        assert task["resultType"] == "task"
        work.release.set()
        await until(client, task["taskId"], "completed")


async def test_a_task_is_cancelled() -> None:
    work = Work()
    async with raw(serve_mcp(work.registry, task_after=0.01), handshake=False) as client:
        id = (await client.ask(begin("work_slow")))["result"]["taskId"]
        assert (await client.ask(about("cancel", id, 2)))["result"]["resultType"] == "complete"
        await until(client, id, "cancelled")
    assert work.stopped.is_set()


async def test_only_clients_that_declare_the_extension_get_tasks_and_know_them() -> None:
    work = Work()
    async with raw(serve_mcp(work.registry, task_after=0.01), handshake=False) as client:
        id = (await client.ask(begin("work_slow")))["result"]["taskId"]
        for n, method in enumerate(("get", "update", "cancel"), 2):
            plain = request(f"tasks/{method}", {"taskId": id, "inputResponses": {}}, id=n, era=NEWEST)
            error = (await client.ask(plain))["error"]
            assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"extensions": {TASKS: {}}}})
        unknown = await client.ask(about("get", "unknown", 8))
        assert unknown["error"]["code"] == -32602
        await client.send(call("work_slow", id=9, era=NEWEST))
        work.release.set()
        answer = await client.receive()
        assert (answer["id"], answer["result"]["resultType"]) == (9, "complete")
    with pytest.raises(UsageError):
        serve_mcp(work.registry, task_after=0)
    async with raw(serve_mcp(work.registry, task_after=None), handshake=False) as client:
        assert (await client.ask(about("get", "x", 1)))["error"]["code"] == -32601


async def test_a_task_belongs_to_the_identity_of_its_caller_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TASKS_EACH", 1)
    release = asyncio.Event()

    async def work() -> dict[str, Any]:
        await release.wait()
        return {"n": 1}

    tasks, ada = CallTasks(0.001), Identity(id="ada")
    handle = await tasks.run(work(), TaskRequest(ada, DECLARED))
    assert tasks.find(handle["taskId"], ada).status == "working"
    for other in (None, Identity(id="eve")):
        with pytest.raises(RPCError, match="Unknown task"):
            tasks.find(handle["taskId"], other)
    waiting = asyncio.create_task(tasks.run(work(), TaskRequest(ada, DECLARED)))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    release.set()
    assert await waiting == {"n": 1}
    await tasks.close()
    with pytest.raises(RPCError, match="Unknown task"):
        tasks.find(handle["taskId"], ada)


async def test_a_call_with_a_large_input_becomes_no_task_if_others_have_as_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_INPUTS", 200_000)
    release, ada = asyncio.Event(), Identity(id="ada")

    async def work() -> dict[str, Any]:
        await release.wait()
        return {"n": 1}

    tasks = CallTasks(0.001)
    large, small = (TaskRequest(ada, DECLARED, {"text": "x" * size}) for size in (80_000, 1_000))
    assert "taskId" in await tasks.run(work(), large)
    waiting = asyncio.create_task(tasks.run(work(), large))
    assert "taskId" in await tasks.run(work(), small)
    assert not waiting.done()
    release.set()
    assert await waiting == {"n": 1}
    release.clear()
    assert "taskId" in await tasks.run(work(), large)
    await tasks.close()


async def test_a_task_outlives_its_http_connection() -> None:
    work = Work()
    async with served(serve_mcp(work.registry, task_after=0.01)) as url, httpx2.AsyncClient() as http:

        async def post(message: Any, name: str) -> Any:
            headers = {
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": NEWEST,
                "mcp-method": message["method"],
                "mcp-name": name,
            }
            return (await http.post(url, json=message, headers=headers)).json()

        id = (await post(begin("work_slow"), "work_slow"))["result"]["taskId"]
        mismatch = await post(about("get", id, 2), "another")
        assert mismatch["error"]["code"] == -32020
        work.release.set()
        async with asyncio.timeout(30):
            while (found := (await post(about("get", id, 3), id))["result"])["status"] == "working":
                await asyncio.sleep(0.01)
        assert found["result"]["structuredContent"] == {"n": 7}


async def test_results_that_are_kept_are_bounded_in_bytes_for_each_identity_and_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_RESULT_BYTES_EACH", 2_500)
    monkeypatch.setattr(module, "MAX_RESULT_BYTES", 4_000)
    tasks = CallTasks(after=0.0)
    alive = WeakSet[CallTask]()

    async def keep(identity: Identity | None, size: int = 1_000) -> str:
        go = asyncio.Event()

        async def work() -> dict[str, Any]:
            await go.wait()
            return {"text": "x" * (size - len('{"text":""}'))}

        handle = await tasks.run(work(), TaskRequest(identity, DECLARED))
        go.set()
        await asyncio.wait((tasks.find(handle["taskId"], identity).call,))
        await asyncio.sleep(0)
        alive.add(tasks.find(handle["taskId"], identity))
        return handle["taskId"]

    def known(owner: Identity | None, ids: list[str]) -> list[bool]:
        def is_known(id: str) -> bool:
            try:
                return tasks.find(id, owner).status == "completed"
            except RPCError:
                return False

        return [is_known(id) for id in ids]

    ann, bob, eve = (Identity(id=name, scopes=()) for name in ("ann", "bob", "eve"))
    of_ann = [await keep(ann) for _ in range(3)]
    assert known(ann, of_ann) == [False, True, True]
    of_bob = [await keep(bob) for _ in range(2)]
    of_eve = [await keep(eve), await keep(eve, size=9_000)]  # the newest result is kept, however large
    assert known(eve, of_eve) == [False, True]
    assert known(ann, of_ann) + known(bob, of_bob) == [False] * 5
    gc.collect()
    assert [task.id for task in alive] == of_eve[1:]  # no timer keeps the others
    await tasks.close()
