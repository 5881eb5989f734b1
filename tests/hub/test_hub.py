"""A hub and its spokes over real sockets: calls, loss, drain and restart."""

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import Hub, Spoke
from opwire.model.context import Context, Progress
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.protocol.events import CallRequested
from opwire.registry import OperationRegistry
from opwire.version import VERSION
from opwire_conformance.harness import soon
from tests.hub.meeting import BEAT, OPEN, Meeting, Waiting, adding, connected, ids, peers
from tests.servers.brokers import RedisServer
from tests.servers.certificates import self_signed
from tests.servers.processes import Worker
from tests.transports.reconnecting import reconnect_quickly
from tests.transports.websocket.ends import until


async def failure_of(call: "asyncio.Future[Any]") -> CallError:
    with pytest.raises(CallError) as failure:
        await soon("the call ends", call)
    return failure.value


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_spokes_call_each_other_through_the_hub(meeting: Meeting) -> None:
    hub = await meeting.hub()
    await meeting.spoke(hub.url, adding())
    caller = await meeting.spoke(hub.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
    assert {(found.server.name, found.server.version) for found in await caller.discover()} == {("opwire", VERSION)}
    assert hub.handler.monitor.version == VERSION


async def test_progress_reaches_a_spoke_through_the_hub_and_a_caller_of_the_hubs_registry(meeting: Meeting) -> None:
    registry = OperationRegistry()

    @registry.query("work.report")
    async def report(context: Context) -> None:
        context.report(1, 2, "half")

    hub = await meeting.hub()
    await meeting.spoke(hub.url, registry)
    caller = await meeting.spoke(hub.url)
    reports: list[Progress] = []
    context = Context(on_progress=reports.append)
    await caller.call("work.report", context=context)
    await hub.registry.execute("work.report", None, context)
    assert reports == [Progress(1, 2, "half")] * 2


async def test_a_hub_serves_its_own_registry(meeting: Meeting) -> None:
    hub = await meeting.hub(adding())
    caller = await meeting.spoke(hub.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3


async def test_a_hub_that_was_just_started_expects_spokes(meeting: Meeting) -> None:
    hub = await meeting.hub(adding("local"), linger=60)
    caller = await meeting.spoke(hub.url)
    for call in (caller.call("math.add", {"a": 1, "b": 2}), hub.calls.call("math.add", {"a": 1, "b": 2})):
        error = await failure_of(asyncio.ensure_future(call))
        assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)
        assert "may still be connecting" in error.message
    assert await caller.call("local.add", {"a": 1, "b": 2}) == 3
    assert (await caller.call("opwire.about"))["name"] == "hub"
    await meeting.spoke(hub.url, adding())
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3


@pytest.mark.parametrize(
    "options", [{"linger": 0.01}, {"linger": 60, "authenticate": None}], ids=["later", "nobody may come"]
)
async def test_what_no_spoke_will_serve_is_not_found(meeting: Meeting, options: dict[str, Any]) -> None:
    hub = await meeting.hub(adding(), **options)
    caller, code = await meeting.spoke(hub.url), ErrorCode.UNAVAILABLE
    while code is ErrorCode.UNAVAILABLE and options["linger"] < 1:
        code = (await failure_of(asyncio.ensure_future(caller.call("math.unknown")))).code
    error = await failure_of(asyncio.ensure_future(caller.call("math.unknown")))
    assert error.code is ErrorCode.OPERATION_NOT_FOUND


async def test_the_operations_of_spokes_are_in_the_registry_of_the_hub(meeting: Meeting) -> None:
    local = adding("local")
    hub = await meeting.hub(local)
    registry = adding()
    spoke = await meeting.spoke(hub.url, registry)
    assert ids(hub.registry) == ["local.add", "math.add"]
    shown, original = hub.registry.get_spec("math.add"), registry.get_spec("math.add")
    assert shown is not None
    assert original is not None
    assert shown.input_schema.json == original.input_schema.json
    assert (await hub.registry.execute("math.add", {"a": 1, "b": 2})).data == 3
    await spoke.drain()
    assert ids(hub.registry) == ["local.add"]


async def test_what_a_spoke_registers_later_is_shown_too(meeting: Meeting) -> None:
    hub = await meeting.hub()
    registry = adding()
    await meeting.spoke(hub.url, registry)
    for number in range(50):
        registry.query(f"later.op{number}")(_nothing)
    await until("they are shown", lambda: len(hub.registry) == 51)
    registry.unregister("later.op7")
    await until("it is gone", lambda: "later.op7" not in hub.registry)


async def _nothing() -> None:
    pass


async def test_subscriptions_are_shown_and_stopped(meeting: Meeting) -> None:
    registry, stopped = OperationRegistry(), asyncio.Event()

    @registry.subscription("clock.ticks")
    async def ticks() -> AsyncIterator[int]:
        try:
            for number in range(1_000_000):
                yield number
        finally:
            stopped.set()

    hub = await meeting.hub()
    await meeting.spoke(hub.url, registry)
    items = hub.registry.subscribe("clock.ticks")
    assert [(await anext(items)).data for _ in range(200)] == list(range(200))
    await items.aclose()
    await soon("the generator is closed", stopped.wait())


async def test_a_registry_of_1500_operations_is_announced_and_shown(meeting: Meeting) -> None:
    hub, registry = await meeting.hub(), OperationRegistry()
    for number in range(1_500):
        registry.query(f"many.op/{number}")(_nothing)
    spoke = await meeting.spoke(hub.url, registry)
    assert len(hub.registry) == 1_500
    assert await spoke.call("many.op/1499") is None


@pytest.mark.parametrize("input", ['{"n":1.0,"big":123456789012345678901234567890,"text":"\\u00e4ä"}', "[1e3 , 2]"])
async def test_a_payload_is_passed_on_byte_by_byte(meeting: Meeting, input: str) -> None:
    hub = await meeting.hub()
    serving = await meeting.welcome(hub.url)
    caller = await meeting.welcome(hub.url)
    peer = peers(hub)[0]
    request = f'{{"type":"call.requested","requestId":"r","operationId":"a.b","input":{input}'
    await caller.connection.send(f'{request},"peer":"{peer}"}}')
    arrived = await soon("it arrives", serving.connection.recv())
    assert isinstance(arrived, str)
    assert arrived.startswith(request + ",")


# --- sharing ----------------------------------------------------------------------------------------------------------


def naming(name: str, wait: asyncio.Event | None = None) -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("who.serves")
    async def serves(slow: bool = False) -> str:
        if wait is not None and slow:
            await wait.wait()
        return name

    return registry


async def test_spokes_that_serve_the_same_take_turns(meeting: Meeting) -> None:
    """Spokes that serve the same operation take turns while they are equally busy."""
    hub = await meeting.hub()
    for name in ("a", "b", "c"):
        await meeting.spoke(hub.url, naming(name))
    caller = await meeting.spoke(hub.url)
    names = Counter([await caller.call("who.serves") for _ in range(9)])
    names.update([(await hub.registry.execute("who.serves")).data for _ in range(9)])
    assert names == {"a": 6, "b": 6, "c": 6}


async def test_a_busy_spoke_gets_fewer_calls(meeting: Meeting) -> None:
    hub, go = await meeting.hub(balance="least_busy"), asyncio.Event()
    for name in ("a", "b"):
        await meeting.spoke(hub.url, naming(name, go))
    caller = await meeting.spoke(hub.url)
    slow = [asyncio.create_task(caller.calls.call("who.serves", {"slow": True}, sticky_key="same")) for _ in range(3)]
    await until("they are under way", lambda: caller.calls.open_calls == 3)
    quick = {await caller.call("who.serves") for _ in range(6)}
    go.set()
    assert len(quick) == 1
    assert quick.isdisjoint({(await each).data for each in slow})


async def test_calls_with_one_key_go_to_one_spoke(meeting: Meeting) -> None:
    hub = await meeting.hub()
    for name in ("a", "b", "c"):
        await meeting.spoke(hub.url, naming(name))
    caller = await meeting.spoke(hub.url)
    keys = [f"customer-{number}" for number in range(20)]
    first = [(await caller.calls.call("who.serves", sticky_key=key)).data for key in keys]
    assert [(await caller.calls.call("who.serves", sticky_key=key)).data for key in keys] == first
    context = Context(identity=Identity(id="me"))
    assert [(await hub.calls.call("who.serves", context=context, sticky_key=key)).data for key in keys] == first
    assert len(set(first)) > 1


async def test_over_redis_calls_with_one_key_go_to_one_spoke(redis_server: RedisServer, meeting: Meeting) -> None:
    """Over Redis, requests with one sticky key go to one server while it is there."""
    options: dict[str, Any] = {"prefix": token_hex(4), "anonymous": Identity(id="everybody")}
    for name in ("a", "b", "c"):
        await meeting.spoke(redis_server.url, naming(name), **options)
    caller = await meeting.spoke(redis_server.url, **options)
    keys = [f"customer-{number}" for number in range(20)]
    first = [(await caller.calls.call("who.serves", sticky_key=key)).data for key in keys]
    assert [(await caller.calls.call("who.serves", sticky_key=key)).data for key in keys] == first
    assert len(set(first)) > 1


# --- loss -------------------------------------------------------------------------------------------------------------


async def test_a_spoke_that_is_killed_ends_its_calls_at_once(meeting: Meeting) -> None:
    hub = await meeting.hub(linger=60, heartbeat=60)
    caller = await meeting.spoke(hub.url)
    async with Worker("tests.servers.worker", "websocket", hub.url) as worker:
        calls = [asyncio.create_task(caller.call("work.hang")), asyncio.create_task(hub.registry.execute("work.hang"))]
        await worker.until("hanging", 2)
        worker.kill()
        for call in calls:  # told by the end of the connection (FIN or RST): no beat and no deadline is near
            error = await failure_of(call)
            assert error.code is ErrorCode.UNAVAILABLE
            assert "the peer closed the connection" in error.message or "the connection broke" in error.message
    for call in (caller.call("work.hang"), hub.registry.execute("work.hang")):
        error = await failure_of(asyncio.ensure_future(call))
        assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "work.hang has no server at the moment")
    error = await failure_of(asyncio.ensure_future(hub.registry.execute("work.never")))
    assert error.code is ErrorCode.OPERATION_NOT_FOUND


async def test_what_a_lost_spoke_served_is_logged_and_shown_for_a_while(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    hub = await meeting.hub(linger=0.2)
    async with Worker("tests.servers.worker", "websocket", hub.url) as worker:
        assert "work.echo" in hub.registry
        worker.kill()
    await until("the loss is noticed", lambda: not peers(hub))
    assert re.search(r"connection .*, which served work\.\w+ and \d+ more, was lost: ", caplog.text)
    await until("it is shown no longer", lambda: "work.echo" not in hub.registry)


async def test_a_spoke_that_is_frozen_is_dropped(meeting: Meeting) -> None:
    """A spoke that is frozen is dropped after two to three beats."""
    hub = await meeting.hub(heartbeat=BEAT)
    async with Worker("tests.servers.worker", "websocket", hub.url) as worker:
        call = asyncio.create_task(hub.registry.execute("work.hang"))
        await worker.until("hanging")
        worker.freeze()
        error = await failure_of(call)
        assert error.code is ErrorCode.UNAVAILABLE
        assert not peers(hub)
        worker.thaw()
        await until("it has come back", lambda: bool(peers(hub)))


async def test_a_handler_is_cancelled_when_its_caller_is_gone(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(), Waiting()
    await meeting.spoke(hub.url, waiting.registry)
    caller = await meeting.welcome(hub.url)
    await caller.say("call.requested", requestId="r", operationId="slow.wait")
    await soon("the handler begins", waiting.began.wait())
    caller.connection.transport.abort()
    await soon("the handler is cancelled", waiting.stopped.wait())


async def test_a_caller_at_the_hub_that_gives_up_cancels_the_handler(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(), Waiting()
    await meeting.spoke(hub.url, waiting.registry)
    call = asyncio.create_task(hub.registry.execute("slow.wait"))
    await soon("the handler begins", waiting.began.wait())
    call.cancel()
    await soon("the handler is cancelled", waiting.stopped.wait())


# --- leaving ----------------------------------------------------------------------------------------------------------


async def test_a_rolling_restart_of_three_spokes_fails_no_call(meeting: Meeting) -> None:
    hub = await meeting.hub()
    spokes = [await meeting.spoke(hub.url, adding()) for _ in range(3)]
    caller = await meeting.spoke(hub.url)
    done, over = Counter[str](), asyncio.Event()

    async def load(call: Callable[..., Awaitable[ResponseEnvelope[Any]]]) -> None:
        while not over.is_set():
            assert (await call("math.add", {"a": 1, "b": 2})).data == 3
            done["calls"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(load(caller.call_envelope))
            group.create_task(load(hub.registry.execute))
        for spoke in spokes:
            await asyncio.sleep(0.05)
            assert await spoke.drain()
            await meeting.spoke(hub.url, adding())
        over.set()
    assert done["calls"] > 50


async def test_a_hub_that_drains_lets_calls_finish_and_sends_spokes_away(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(), Waiting()
    await meeting.spoke(hub.url, waiting.registry)
    caller = await meeting.spoke(hub.url)
    call = asyncio.create_task(caller.call("slow.wait"))
    await soon("the handler begins", waiting.began.wait())
    draining = asyncio.create_task(hub.drain(5))
    await until("the spokes know", lambda: _refuses(caller))
    waiting.go.set()
    assert await soon("the call ends", call) == "done"
    assert await soon("the hub is drained", draining)
    assert len(hub.registry) == 0


def _refuses(spoke: Spoke) -> bool:
    try:
        spoke.transport.request(CallRequested(request_id="probe", operation_id="slow.none"))
    except CallError as error:
        return "about to leave" in error.message
    return False


async def test_a_hub_does_not_wait_for_ever(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(), Waiting()
    await meeting.spoke(hub.url, waiting.registry)
    caller = await meeting.spoke(hub.url)
    call = asyncio.create_task(caller.call("slow.wait"))
    await soon("the handler begins", waiting.began.wait())
    assert not await hub.drain(0.05)
    assert (await failure_of(call)).code is ErrorCode.UNAVAILABLE


async def test_after_a_restart_of_the_hub_its_spokes_are_back(meeting: Meeting) -> None:
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(Hub(None, "ws://127.0.0.1:0", authenticate=OPEN))
        waiting = Waiting()
        await meeting.spoke(hub.url, waiting.registry)
        caller = await meeting.spoke(hub.url)
        calls = [asyncio.create_task(caller.call("slow.wait")) for _ in range(5)]
        await soon("a handler begins", waiting.began.wait())
        await hub.close()
        outcomes = await soon("every call ends", asyncio.gather(*calls, return_exceptions=True))
        assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [ErrorCode.UNAVAILABLE] * 5
        await soon("the handlers are stopped", waiting.stopped.wait())
    again = await meeting.hub(None, hub.url)
    await until("the operation is shown again", lambda: "slow.wait" in again.registry)
    waiting.go.set()
    await until("the caller is back", lambda: connected(caller))
    assert await caller.call("slow.wait") == "done"


async def test_when_the_hub_is_killed_every_call_ends_and_the_next_hub_is_found(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconnect_quickly(monkeypatch)
    waiting = Waiting()
    async with Worker("tests.hub.process", "0") as first:
        port = first.lines[0].removeprefix("port ")
        url = f"ws://127.0.0.1:{port}"
        await meeting.spoke(url, waiting.registry)
        caller = await meeting.spoke(url)
        calls = [asyncio.create_task(caller.call("slow.wait")) for _ in range(20)]
        await soon("a handler begins", waiting.began.wait())
        first.kill()
        outcomes = await soon("every call ends", asyncio.gather(*calls, return_exceptions=True))
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [ErrorCode.UNAVAILABLE] * 20
    waiting.go.set()
    outage = asyncio.create_task(_outage(caller, "slow.wait"))
    async with Worker("tests.hub.process", port) as second:
        await second.until("shown slow.wait")
        assert await soon("calls are answered again", outage) == {ErrorCode.UNAVAILABLE}
        assert await caller.call("slow.wait") == "done"


async def _outage(caller: Spoke, operation_id: str) -> set[ErrorCode]:
    """How calls fail until one is answered."""
    codes: set[ErrorCode] = set()
    while True:
        try:
            await caller.call(operation_id)
            return codes
        except CallError as error:
            codes.add(error.code)
            await asyncio.sleep(0.01)


async def test_a_spoke_with_several_hubs_goes_to_the_next_one(meeting: Meeting) -> None:
    first, second = await meeting.hub(), await meeting.hub()
    spoke = await meeting.spoke([first.url, second.url], adding())
    assert ids(first.registry) == ["math.add"]
    assert await first.drain()
    await until("it is at the other one", lambda: ids(second.registry) == ["math.add"])
    await until("and can call", lambda: connected(spoke))
    assert await spoke.call("math.add", {"a": 1, "b": 2}) == 3


async def test_a_hub_that_is_not_there_is_passed_over_at_the_start(meeting: Meeting) -> None:
    hub = await meeting.hub()
    spoke = await meeting.spoke(["ws://127.0.0.1:1", hub.url])
    assert connected(spoke)
    with pytest.raises(CallError) as failure:
        await Spoke(None, ["ws://127.0.0.1:1", "ws://127.0.0.1:2"]).start()
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_hub_may_be_encrypted(meeting: Meeting, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    serving, calling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=certificate)
    serving.load_cert_chain(certificate)
    hub = await meeting.hub(adding(), "wss://127.0.0.1:0", ssl=serving)
    spoke = await meeting.spoke(hub.url, ssl=calling)
    assert await spoke.call("math.add", {"a": 1, "b": 2}) == 3


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "complaint"),
    [
        ("wss://127.0.0.1:0", {}, "needs ssl="),
        ("redis://127.0.0.1", {}, "BrokerNode"),
        ("carrier://pigeon", {}, "ws://"),
        ("ws://[", {}, "host:port"),
        ("ws://h:port", {}, "host:port"),
        ("ws://h:99999", {}, "host:port"),
    ],
)
def test_what_cannot_work_is_said_at_once(url: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Hub(None, url, **options)


async def test_a_hub_that_cannot_listen_leaves_nothing_behind(meeting: Meeting) -> None:
    hub = await meeting.hub()
    with pytest.raises(CallError) as failure:
        await Hub(None, hub.url).start()
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_call_of_the_hub_itself_has_the_identity_of_its_context(meeting: Meeting) -> None:
    hub = await meeting.hub()
    registry = OperationRegistry()

    @registry.query("who.calls")
    async def calls(context: Context) -> str | None:
        return context.identity and context.identity.id

    await meeting.spoke(hub.url, registry)
    context = Context(identity=Identity(id="web-user"))
    assert (await hub.registry.execute("who.calls", None, context)).data == "web-user"
