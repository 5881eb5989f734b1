"""Tasks of durable calls: they survive the server, and any replica answers for them."""

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry, UsageError
from opwire.durable import DurableCalls, DurableWorker, Journal, MemoryJournal, MemoryJournalState
from opwire.durable.redis import RedisJournal
from opwire.mcp.messages import RPCError
from opwire.mcp.server import DurableTasks, MCPSurface, durable_tasks, serve_mcp, tasks
from opwire.mcp.server.clients import RequestStates
from opwire.mcp.server.durable_tasks import KEY_META, MAX_TASK_ID_LENGTH
from opwire.mcp.server.tasks import TASKS
from tests.mcp.server.durable_process import KEY, journal_at
from tests.mcp.server.raw import Raw, call, raw, request
from tests.mcp.server.shop import NEWEST, until
from tests.servers.brokers import NatsServer, RedisServer
from tests.servers.fixtures import jetstream_server  # noqa: F401
from tests.servers.processes import Worker

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ADA, EVE = Identity(id="ada", scopes=("work",)), Identity(id="eve", scopes=("work",))
Connect = Callable[[], Any]


class Work:
    """Mutations that wait for the test, and what they saw."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.contexts: list[Context] = []
        self.failure: CallError | None = None
        self.registry = registry = OperationRegistry()

        @registry.mutation("work.slow", access=AccessControl(required_scopes=("work",)))
        async def slow(size: int, context: Context) -> dict[str, Any]:
            self.contexts.append(context)
            await self.release.wait()
            if self.failure is not None:
                raise self.failure
            return {"text": "x" * size}

        @registry.mutation("work.limited", timeout=0.02)
        async def limited() -> str:
            await self.release.wait()
            return "in time"

        @registry.query("work.quick", access=AccessControl(public=True))
        async def quick() -> int:
            return 1

        @registry.mutation("work.greet", access=AccessControl(public=True))
        async def greet(context: Context) -> str:
            self.contexts.append(context)
            return "hello"

    def surface(self, journal: Journal, caller: Identity = ADA, **options: Any) -> MCPSurface:
        """A replica of the server."""
        tasks = DurableTasks(journal, ["work.slow", "work.greet", "work.limited"], **options.pop("tasks", {}))
        options = {"state_key": KEY, "task_after": 0.1, **options}
        return serve_mcp(self.registry, stdio_identity=caller, durable_tasks=tasks, **options)

    def worker(self, journal: Journal, **options: Any) -> DurableWorker:
        """A worker that serves the mutations."""
        return DurableWorker(self.registry, journal, back_off=0.01, **options)


@pytest.fixture(params=["memory", "redis", "nats"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Connects ends of one journal."""
    prefix = token_hex(4)
    if request.param == "memory":
        state = MemoryJournalState()
        yield lambda: MemoryJournal(state)
    else:
        server = request.getfixturevalue("redis_server" if request.param == "redis" else "jetstream_server")
        yield partial(journal_at, server.url, prefix)


def declared(message: Any) -> Any:
    message["params"]["_meta"][CAPABILITIES] = {"extensions": {TASKS: {}}, "elicitation": {}}
    return message


def keyed(message: Any, key: Any) -> Any:
    message["params"]["_meta"][KEY_META] = key
    return message


def begin(size: int = 3, id: int = 1, name: str = "work_slow") -> Any:
    return declared(call(name, {"size": size} if name == "work_slow" else {}, id=id, era=NEWEST))


def about(method: str, task: str, id: int = 2, **params: Any) -> Any:
    return declared(request(f"tasks/{method}", {"taskId": task, **params}, id=id, era=NEWEST))


async def started(client: Raw, key: str | None = None) -> str:
    """The id of a task."""
    task = (await client.ask(begin() if key is None else keyed(begin(), key)))["result"]
    assert (task["resultType"], task["status"]) == ("task", "working")
    return task["taskId"]


async def ended(client: Raw, task: str) -> Any:
    """The task, when it has ended."""
    async with asyncio.timeout(30):
        while True:
            found = (await client.ask(about("get", task)))["result"]
            if found["status"] != "working":
                return found
            await asyncio.sleep(0.01)


async def answered(surface: MCPSurface, message: Any) -> Any:
    """The result of a call that does not become a task."""
    async with client_of(surface) as client:
        result = (await client.ask(message))["result"]
        assert result["resultType"] == "complete"
        return result


def result_of(response: Any) -> Any:
    """The result of a call, without what differs between a task and a direct answer."""
    return {name: value for name, value in response.items() if name != "_meta"}


def client_of(surface: MCPSurface) -> Any:
    return raw(surface, handshake=False)


# --- every journal ----------------------------------------------------------------------------------------------------


async def test_another_replica_answers_for_a_task_with_the_result_of_a_direct_call(connect: Connect) -> None:
    work = Work()
    async with connect() as journal, connect() as another, connect() as third:
        async with client_of(work.surface(journal)) as client:
            task = (await client.ask(begin(300_000)))["result"]
        shape(task, "task")
        assert task["ttlMs"] == 86_400_000
        async with client_of(work.surface(another)) as client, work.worker(third):
            working = (await client.ask(about("get", task["taskId"])))["result"]
            shape(working, "working")
            assert "survives a restart" in working["statusMessage"]
            assert working["createdAt"] == task["createdAt"]
            work.release.set()
            done = await ended(client, task["taskId"])
            shape(done, "completed")
            direct = await answered(work.surface(another, task_after=30), begin(300_000))
            assert done["result"] == result_of(direct)
            assert done["result"]["structuredContent"] == {"text": "x" * 300_000}
            assert (await client.ask(about("update", task["taskId"], inputResponses={})))["result"]
            await client.ask(about("cancel", task["taskId"]))  # too late
            assert (await ended(client, task["taskId"]))["status"] == "completed"
    assert len(work.contexts) == 2


async def test_a_task_is_cancelled_until_a_worker_has_begun_it(connect: Connect) -> None:
    work = Work()
    async with connect() as journal, connect() as another, client_of(work.surface(journal)) as client:
        waiting = await started(client)
        assert result_of((await client.ask(about("cancel", waiting)))["result"]) == {"resultType": "complete"}
        shape((await client.ask(about("get", waiting)))["result"], "cancelled")
        async with work.worker(another):
            running = await started(client)
            await until(lambda: len(work.contexts) == 1)
            await client.ask(about("cancel", running))
            assert (await client.ask(about("get", running)))["result"]["status"] == "working"
            work.release.set()
            assert (await ended(client, running))["status"] == "completed"
            assert (await ended(client, waiting))["status"] == "cancelled"
    assert len(work.contexts) == 1


async def test_a_failed_handler_has_the_result_of_a_direct_call_and_a_buried_one_is_a_failed_task(
    connect: Connect,
) -> None:
    work = Work()
    work.failure = CallError("EXECUTION_ERROR", "sold out", {"left": 0})
    async with connect() as journal, client_of(work.surface(journal)) as client, work.worker(journal, max_attempts=2):
        failing = await started(client)
        work.release.set()
        failed = await ended(client, failing)
        shape(failed, "completed")
        assert failed["result"]["isError"]
        direct = await answered(work.surface(journal, task_after=30), begin())
        assert failed["result"] == {**result_of(direct), "_meta": failed["result"]["_meta"]}
        assert "sold out" in failed["result"]["content"][0]["text"]
        work.release.clear()
        work.failure = CallError("UNAVAILABLE", "closed")
        failing = await started(client)
        work.release.set()
        buried = await ended(client, failing)
        shape(buried, "failed")
        assert buried["error"]["message"] == "closed"


async def test_a_quick_call_is_one_round_trip_with_and_without_the_extension(connect: Connect) -> None:
    work = Work()
    work.release.set()
    async with connect() as journal, work.worker(journal):
        async with client_of(work.surface(journal, task_after=30)) as client:
            declares = (await client.ask(begin()))["result"]
            plain = (await client.ask(call("work_slow", {"size": 3}, id=2, era=NEWEST)))["result"]
            assert declares == plain
            assert plain["structuredContent"] == {"text": "xxx"}
        async with raw(work.surface(journal)) as older:
            assert (await older.ask(call("work_slow", {"size": 3}, id=3)))["result"]["structuredContent"] == {
                "text": "xxx"
            }
    assert len(work.contexts) == 3
    assert all("idempotency_key" in each.metadata for each in work.contexts)


def shape(task: Any, status: str) -> None:
    """Check a task against the specification of the extension."""
    result_type = "complete"
    if status == "task":
        result_type, status = "task", "working"
    text, number = {"type": "string"}, {"type": "integer", "minimum": 0}
    time = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
    properties: dict[str, Any] = {
        "resultType": {"const": result_type},
        "taskId": text,
        "status": {"const": status},
        "createdAt": time,
        "lastUpdatedAt": time,
        "ttlMs": number,
        "pollIntervalMs": number,
        "_meta": {"type": "object"},
    }
    more: dict[str, Any] = {
        "completed": {"result": {"type": "object", "required": ["content", "resultType"]}},
        "failed": {
            "error": {"type": "object", "required": ["code", "message"], "properties": {"code": {"type": "integer"}}}
        },
    }.get(status, {})
    required = [*properties, *more]
    optional = {"statusMessage": text} if status == "working" else {}
    schema = {
        "type": "object",
        "properties": {**properties, **more, **optional},
        "required": required,
        "additionalProperties": False,
    }
    jsonschema_rs.validate(schema, task)
    assert task["createdAt"] <= task["lastUpdatedAt"]
    assert len(task["taskId"]) < 400


# --- ids --------------------------------------------------------------------------------------------------------------


async def test_foreign_forged_and_expired_ids_are_as_unknown_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    async with MemoryJournal() as journal:
        async with client_of(work.surface(journal)) as client:
            id = await started(client)
            unknown = (await client.ask(about("get", "unknown")))["error"]
            assert unknown["code"] == -32602
            sealed = urlsafe_b64decode(id.removeprefix("d."))
            changed = sealed[:32] + sealed[32:].replace(b"work.slow", b"work.greet")
            state = RequestStates(KEY).seal(
                sealed[32:], b"state\x00"
            )  # a signature of the same key, for a request state
            with pytest.raises(RPCError, match="Invalid or expired requestState"):  # nor is an id a request state
                RequestStates(KEY).decode(urlsafe_b64encode(sealed[:32] + b"task\x00" + sealed[32:]).decode(), "")
            states = (
                f"d.{urlsafe_b64encode(each).decode()}" for each in (changed, sealed[:40], b"", bytes(32) + sealed)
            )
            forged = [*states, f"d.{state}", f"{id}=", f"{id} ", id[:-1], id[2:], "d.", "d.\ud83d", "d." + "A" * 10**6]
            for each in forged:
                for method in ("get", "update", "cancel"):
                    assert (await client.ask(about(method, each, inputResponses={})))["error"] == unknown
            plain = request("tasks/get", {"taskId": id}, id=9, era=NEWEST)
            assert (await client.ask(plain))["error"]["code"] == -32021
        for surface in (
            work.surface(journal, EVE),
            work.surface(journal, Identity(id="ada")),  # which may not call the tool any more
            work.surface(journal, state_key="another key of a server"),
        ):
            async with client_of(surface) as client:
                for method in ("get", "cancel"):
                    assert (await client.ask(about(method, id)))["error"] == unknown
        async with client_of(work.surface(journal)) as client:
            assert (await client.ask(about("get", id)))["result"]["status"] == "working"
            clock = RequestStates().clock
            lifetime = durable_tasks.DURABLE_TASK_LIFETIME
            monkeypatch.setattr(durable_tasks.RequestStates, "__init__", at(lambda: clock() + lifetime + 2))
        async with client_of(work.surface(journal)) as client:
            assert (await client.ask(about("get", id)))["error"] == unknown


def at(clock: Callable[[], float]) -> Any:
    original = RequestStates.__init__

    def init(self: RequestStates, key: str) -> None:
        original(self, key, clock)

    return init


async def test_the_id_of_an_operation_with_a_long_name_is_bounded_and_known() -> None:
    registry = OperationRegistry()
    name = "work." + "🜚" * 251
    registry.mutation(name)(lambda: 1)
    async with MemoryJournal() as journal:
        surface = serve_mcp(
            registry,
            state_key=KEY,
            task_after=0.01,
            durable_tasks=DurableTasks(journal, [name]),
            tool_names={name: "x"},
        )
        async with client_of(surface) as client:
            id = (await client.ask(begin(name="x")))["result"]["taskId"]
            assert len(id) < MAX_TASK_ID_LENGTH
            assert (await client.ask(about("get", id)))["result"]["status"] == "working"


async def test_anonymous_clients_have_tasks_and_no_permissions() -> None:
    work = Work()
    async with MemoryJournal() as journal:
        surface = work.surface(journal)
        async with surface.asgi().listening() as address, httpx2.AsyncClient() as http:
            post = partial(posted, http, f"{address}/mcp")
            task = (await post(begin(name="work_greet"), "work_greet"))["result"]
            async with work.worker(journal):
                async with asyncio.timeout(30):
                    while (await post(about("get", task["taskId"]), task["taskId"]))["result"]["status"] == "working":
                        await asyncio.sleep(0.01)
            done = (await post(about("get", task["taskId"]), task["taskId"]))["result"]
            assert done["result"]["structuredContent"] == "hello"
            denied = (await post(begin(), "work_slow"))["result"]
            assert denied["isError"]
        async with client_of(surface) as client:
            assert (await client.ask(about("get", task["taskId"])))["error"]["code"] == -32602
    assert [each.identity for each in work.contexts] == [None]  # and not that of the worker
    assert [info.waiting for info in await counted(journal)] == []


async def counted(journal: MemoryJournal) -> list[Any]:
    await journal.start()
    return [info for info in await journal.info() if info.waiting]


async def posted(http: httpx2.AsyncClient, url: str, message: Any, name: str) -> Any:
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": NEWEST,
        "mcp-method": message["method"],
        "mcp-name": name,
    }
    return (await http.post(url, json=message, headers=headers)).json()


# --- keys, identities, interceptors -----------------------------------------------------------------------------------


async def test_a_call_with_the_same_key_is_the_same_call_of_its_caller() -> None:
    work = Work()
    async with MemoryJournal() as journal:
        async with client_of(work.surface(journal)) as client:
            first = await started(client, "order-17")
            again = await started(client, "order-17")
            other = (await client.ask(keyed(begin(4), "order-17")))["result"]
            assert other["isError"]
            assert "'order-17' belongs to another call" in other["content"][0]["text"]
            for wrong in ("", "x" * 257, 17):
                assert (await client.ask(keyed(begin(), wrong)))["error"]["code"] == -32602
        async with client_of(work.surface(journal, EVE)) as eve:
            await started(eve, "order-17")
        async with client_of(work.surface(journal)) as client, work.worker(journal):
            work.release.set()
            results = [(await ended(client, each))["result"] for each in (first, again)]
            assert results[0] == results[1]
            await until(lambda: len(work.contexts) == 2)
    assert sorted(each.identity.id for each in work.contexts if each.identity) == ["ada", "eve"]


async def test_a_client_without_the_extension_gets_the_key_by_which_it_can_ask_again() -> None:
    work = Work()
    async with MemoryJournal() as journal, client_of(work.surface(journal, timeout=1)) as client:
        late = (await client.ask(call("work_slow", {"size": 3}, era=NEWEST)))["result"]
        error = late["_meta"]["opwire/error"]
        assert (error["code"], error["retryable"]) == ("TIMEOUT", True)
        assert "and continues" in error["message"]
        key = error["details"]["idempotencyKey"]
        assert "mcp-" not in json.dumps(late)  # the key in the journal
        work.release.set()
        async with work.worker(journal):
            await until(lambda: len(work.contexts) == 1)
            message = keyed(call("work_slow", {"size": 3}, id=2, era=NEWEST), key)
            assert (await client.ask(message))["result"]["structuredContent"] == {"text": "xxx"}
    assert len(work.contexts) == 1


async def test_the_worker_acts_with_the_identity_of_the_caller_or_not_at_all(redis_server: RedisServer) -> None:
    work = Work()
    work.release.set()
    async with MemoryJournal() as journal, work.worker(journal), client_of(work.surface(journal)) as client:
        await client.ask(begin())
    assert [each.identity for each in work.contexts] == [ADA]
    async with RedisJournal(redis_server.url, prefix=token_hex(4)) as journal:
        with pytest.raises(UsageError, match="trusted=True"):
            DurableTasks(journal, ["work.slow"])
    async with MemoryJournal() as journal, client_of(work.surface(journal, Identity(id="guest"))) as client:
        denied = (await client.ask(begin()))["result"]
        assert denied["_meta"]["opwire/error"]["code"] == "ACCESS_DENIED"
        invalid = call("work_slow", {"size": "many"}, id=2, era=NEWEST)
        assert (await client.ask(invalid))["result"]["isError"]
        assert await journal.info() == []


async def test_invalid_input_is_not_submitted() -> None:
    work = Work()
    async with MemoryJournal() as journal, client_of(work.surface(journal)) as client:
        wrong = (await client.ask(declared(call("work_slow", {"size": "many"}, era=NEWEST))))["result"]
        assert wrong["_meta"]["opwire/error"]["code"] == "VALIDATION_ERROR"
        assert await journal.info() == []


async def test_interceptors_run_around_the_submission_and_see_the_outcome() -> None:
    work, seen = Work(), list[Any]()

    def audit(spec: Any, handler: Any) -> Any:
        async def run(input: Any, context: Context) -> Any:
            if input == {"size": 13}:
                raise CallError("ACCESS_DENIED", "unlucky")
            seen.append((spec.id, input, context.identity))
            try:
                envelope = await handler({"size": input["size"] + 1}, context)
                seen.append(envelope.data)
            except BaseException as error:
                seen.append(error)
                raise
            return envelope

        return run

    async with MemoryJournal() as journal:
        surface = work.surface(journal)
        surface.use(audit)
        async with client_of(surface) as client:
            denied = (await client.ask(begin(13)))["result"]
            assert "unlucky" in denied["content"][0]["text"]
            assert await journal.info() == []
            task = await started(client)
            async with work.worker(journal):
                work.release.set()
                done = await ended(client, task)
                assert done["result"]["structuredContent"] == {"text": "xxxx"}
                await until(lambda: len(seen) == 2)  # in this process, while the client polls
            lost = await started(client)
    assert seen[:2] == [("work.slow", {"size": 3}, ADA), {"text": "xxxx"}]
    assert lost
    await until(lambda: len(seen) == 4)
    assert seen[3].code == "UNAVAILABLE"  # the journal is closed before there is an outcome


async def test_a_call_that_an_interceptor_holds_is_a_task_of_the_process_until_it_is_submitted() -> None:
    work, approved = Work(), asyncio.Event()

    def approval(spec: Any, handler: Any) -> Any:
        async def run(input: Any, context: Context) -> Any:
            await approved.wait()
            return await handler(input, context)

        return run

    async with MemoryJournal() as journal, work.worker(journal):
        surface = work.surface(journal)
        surface.use(approval)
        async with client_of(surface) as client:
            task = await started(client)
            assert not task.startswith("d.")
            assert await journal.info() == []
            approved.set()
            work.release.set()
            done = await ended(client, task)
            assert done["result"]["structuredContent"] == {"text": "xxx"}


async def test_an_interceptor_asks_before_the_call_is_submitted() -> None:
    work = Work()

    def confirm(spec: Any, handler: Any) -> Any:
        async def run(input: Any, context: Context) -> Any:
            if not await context.elicit(bool, "Really?", key="really"):
                raise CallError("ABORTED", "not confirmed")
            return await handler(input, context)

        return run

    async with MemoryJournal() as journal:
        surface = work.surface(journal)
        surface.use(confirm)
        async with client_of(surface) as client:
            asked = (await client.ask(begin()))["result"]
            assert asked["resultType"] == "input_required"
            assert await journal.info() == []
            again = begin(id=2)
            again["params"]["requestState"] = asked["requestState"]
            again["params"]["inputResponses"] = {"really": {"action": "accept", "content": {"value": True}}}
            task = (await client.ask(again))["result"]
            assert task["resultType"] == "task"
            assert [info.waiting for info in await journal.info()] == [1]


# --- limits, formats, failures ----------------------------------------------------------------------------------------


async def test_a_call_has_a_task_without_room_for_its_interceptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_TASKS_EACH", 1)
    work, ends = Work(), list[BaseException]()

    def watch(spec: Any, handler: Any) -> Any:
        async def run(input: Any, context: Context) -> Any:
            try:
                return await handler(input, context)
            except BaseException as error:
                ends.append(error)
                raise

        return run

    async with MemoryJournal() as journal:
        surface = work.surface(journal)
        surface.use(watch)
        async with client_of(surface) as client:
            first, second = await started(client), await started(client)
            await until(lambda: len(ends) == 1)
            assert isinstance(ends[0], asyncio.CancelledError)
            async with work.worker(journal):
                work.release.set()
                assert [(await ended(client, each))["status"] for each in (first, second)] == ["completed"] * 2
            work.release.clear()
            third = await started(client)
            assert (await client.ask(about("get", third)))["result"]["status"] == "working"
            assert len(ends) == 1  # there is room again


async def test_a_journal_that_is_not_available_is_an_error_with_the_key() -> None:
    """A surface keeps few durable calls, and says that its journal is not available."""
    work, state = Work(), MemoryJournalState()
    async with MemoryJournal(state) as journal, client_of(work.surface(journal)) as client:
        task = await started(client)
        await journal.close()
        lost = (await client.ask(begin(id=3)))["result"]
        error = lost["_meta"]["opwire/error"]
        assert (error["code"], [*error["details"]]) == ("UNAVAILABLE", ["idempotencyKey"])
        for method in ("get", "cancel"):
            failed = (await client.ask(about(method, task)))["error"]
            assert "closed" in failed["message"]
        await journal.start()
        assert (await client.ask(about("get", task)))["result"]["status"] == "working"


async def test_results_are_encoded_as_tool_envelopes_if_the_surface_does_so() -> None:
    work = Work()
    async with (
        MemoryJournal() as journal,
        work.worker(journal),
        client_of(work.surface(journal, tool_envelopes=True)) as client,
    ):
        task = await started(client)
        work.release.set()
        done = await ended(client, task)
        assert done["result"]["content"][1]["text"].startswith("__ENVELOPE_V1__:")


async def test_the_timeout_of_an_operation_is_that_of_its_handler_and_not_of_the_wait() -> None:
    work = Work()
    async with MemoryJournal() as journal, client_of(work.surface(journal)) as client:
        waiting = (await client.ask(begin(name="work_limited")))["result"]
        assert waiting["resultType"] == "task"
        async with work.worker(journal, max_attempts=1):
            late = await ended(client, waiting["taskId"])
            assert late["status"] == "failed"
            assert "work.limited did not answer within 0.0" in late["error"]["message"]


def test_only_mutations_of_a_surface_with_a_key_can_be_durable_tasks() -> None:
    work, journal = Work(), MemoryJournal()
    tasks = DurableTasks(journal, ["work.slow"])
    with pytest.raises(UsageError, match="need a state_key"):
        serve_mcp(work.registry, durable_tasks=tasks)
    with pytest.raises(UsageError, match="only mutations"):
        serve_mcp(work.registry, durable_tasks=tasks, state_key=KEY, exclude=["work.slow"])
    for wrong in ("work.quick", "work.unknown"):
        with pytest.raises(UsageError, match=f"only mutations .* unlike {wrong}"):
            serve_mcp(work.registry, durable_tasks=DurableTasks(journal, [wrong]), state_key=KEY)
    with pytest.raises(UsageError, match="list of ids"):
        DurableTasks(journal, "work.slow")
    with pytest.raises(UsageError, match="lifetime"):
        DurableTasks(journal, [], lifetime=0)


# --- processes --------------------------------------------------------------------------------------------------------


class Place:
    """A journal in a server, and the processes that use it."""

    def __init__(self, url: str, file: Path) -> None:
        self.url, self.prefix, self.file = url, token_hex(4), file

    def process(self, role: str) -> Worker:
        return Worker("tests.mcp.server.durable_process", role, self.url, self.prefix, str(self.file))

    @property
    def runs(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []


@pytest.fixture(params=["redis", "nats"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    server: RedisServer | NatsServer
    server = request.getfixturevalue("redis_server" if request.param == "redis" else "jetstream_server")
    return Place(server.url, tmp_path / "runs")


@asynccontextmanager
async def client_at(worker: Worker) -> AsyncGenerator[Callable[..., Any]]:
    url = next(line for line in worker.lines if line.startswith("http"))
    async with httpx2.AsyncClient() as http:
        yield partial(posted, http, url)


def begin_job(number: int) -> Any:
    return declared(call("job_run", {"number": number}, era=NEWEST))


async def job_ended(post: Callable[..., Any], task: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            found = (await post(about("get", task), task))["result"]
            if found["status"] != "working":
                return found
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_tasks_survive_kill_9_of_the_server_and_of_the_worker(place: Place) -> None:
    async with place.process("serve") as server, client_at(server) as post:
        tasks = [(await post(begin_job(number), "job_run"))["result"]["taskId"] for number in (1, 2, -3)]
        async with place.process("work") as worker:
            await until(lambda: len(place.runs) == 3)
            worker.kill()
        server.kill()
    place.file.with_suffix(".go").touch()
    async with place.process("serve") as server, client_at(server) as post:
        working = (await post(about("get", tasks[0]), tasks[0]))["result"]
        assert working["status"] == "working"
        async with place.process("work"):
            found = [await job_ended(post, task) for task in tasks]
        assert [each["status"] for each in found] == ["completed"] * 3
        assert [each["result"]["structuredContent"] for each in found[:2]] == [
            {"number": 1, "caller": None},
            {"number": 2, "caller": None},
        ]
        assert found[2]["result"]["isError"]
    assert sorted(place.runs) == ["-3", "-3", "1", "1", "2", "2"]


@pytest.mark.slow
async def test_a_mutation_that_kills_its_worker_is_a_failed_task(place: Place) -> None:
    place.file.with_suffix(".poison").touch()
    async with place.process("serve") as server, client_at(server) as post:
        task = (await post(begin_job(1), "job_run"))["result"]["taskId"]
        for run in (1, 2):
            async with place.process("work") as worker:
                await until(lambda: len(place.runs) == run)  # noqa: B023
                worker.kill()
        async with place.process("work"):
            failed = await job_ended(post, task)
        shape(failed, "failed")
        assert "was given up" in failed["error"]["message"]
        async with journal_at(place.url, place.prefix) as journal:
            (dead_letter,) = [each async for each in DurableCalls(journal).dead_letters("job.run")]
            place.file.with_suffix(".poison").unlink()
            place.file.with_suffix(".go").touch()
            assert await journal.replay(dead_letter.key)
        async with place.process("work"):
            async with asyncio.timeout(60):
                while (await post(about("get", task), task))["result"]["status"] != "completed":
                    await asyncio.sleep(0.02)
