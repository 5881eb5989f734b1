"""Calls over a real NATS server: the contract, and the traps that its client libraries hold."""

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from opwire import AccessControl, Context, OperationRegistry
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.protocol import LOCAL_IDENTITY, MAX_MESSAGE, CallHandler, PendingRequestMap
from opwire.transports.broker import BrokerTransport
from opwire.transports.nats import NatsTransport
from opwire_conformance import LIMIT_CONTRACT, TRANSPORT_CONTRACT
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, PORTS, NatsServer
from tests.servers.leaks import Leaks
from tests.transports.nats.ends import plain_client
from tests.transports.websocket.ends import until

StartNats = Callable[..., NatsServer]

PUBLIC = AccessControl(public=True)


@pytest.mark.parametrize("promise", TRANSPORT_CONTRACT)
async def test_nats_keeps_the_promise_of_every_transport(promise: str, nats_server: NatsServer) -> None:
    async with Leaks():
        await TRANSPORT_CONTRACT[promise](lambda: NatsTransport(nats_server.url))


@pytest.mark.parametrize("promise", LIMIT_CONTRACT)
@pytest.mark.parametrize("limit", [MAX_MESSAGE, 64 * 1024])
async def test_nats_keeps_its_promise_about_the_limit(promise: str, limit: int, nats_server: NatsServer) -> None:
    await LIMIT_CONTRACT[promise](lambda: NatsTransport(nats_server.url, max_message=limit), limit)


@pytest.mark.parametrize("promise", LIMIT_CONTRACT)
async def test_the_servers_limit_counts_where_it_is_smaller(promise: str, own_nats: StartNats) -> None:
    server = own_nats(max_payload=64 * 1024)
    await LIMIT_CONTRACT[promise](lambda: NatsTransport(server.url), 64 * 1024)


@asynccontextmanager
async def served(url: str, registry: OperationRegistry, **options: Any) -> AsyncIterator[PendingRequestMap]:
    calls = PendingRequestMap(NatsTransport(url, **options))
    async with calls, CallHandler(registry, calls, anonymous=LOCAL_IDENTITY):
        yield calls


@asynccontextmanager
async def calling(url: str, **options: Any) -> AsyncIterator[PendingRequestMap]:
    async with PendingRequestMap(NatsTransport(url, **options)) as calls:
        yield calls


# --- traps of nats-py -------------------------------------------------------------------------------------------------


async def test_handlers_of_one_operation_run_at_the_same_time(nats_server: NatsServer) -> None:
    registry, together = OperationRegistry(), asyncio.Barrier(8)

    @registry.query("trap.meet")
    async def meet() -> str:
        await together.wait()  # one after the other, they would wait for ever
        return "met"

    async with served(nats_server.url, registry), calling(nats_server.url) as calls:
        answers = await soon("all eight meet", asyncio.gather(*(calls.call("trap.meet") for _ in range(8))))
        assert [answer.data for answer in answers] == 8 * ["met"]


async def test_a_handler_may_call_back_the_end_that_called_it(nats_server: NatsServer) -> None:
    one, other = OperationRegistry(), OperationRegistry()
    ends: dict[str, PendingRequestMap] = {}

    @one.query("trap.count")
    async def count_down(number: int, context: Context) -> list[int]:
        rest = await ends["one"].call("trap.pass_on", {"number": number}, context=context.child())
        return [number, *rest.data]

    @other.query("trap.pass_on")
    async def pass_on(number: int, context: Context) -> list[int]:
        if number == 0:
            return []
        return (await ends["other"].call("trap.count", {"number": number - 1}, context=context.child())).data

    async with served(nats_server.url, one) as ends["one"], served(nats_server.url, other) as ends["other"]:
        answer = await soon("the calls come back", ends["other"].call("trap.count", {"number": 5}))
        assert answer.data == [5, 4, 3, 2, 1, 0]


async def test_a_server_that_withdraws_answers_everything_that_arrived_before(nats_server: NatsServer) -> None:
    registry, begun, go_on = OperationRegistry(), asyncio.Semaphore(0), asyncio.Event()

    @registry.query("trap.slow")
    async def slow(number: int) -> int:
        begun.release()
        await go_on.wait()
        return number

    patient = {"heartbeat": 30.0}  # a caller that does not hear of its calls in time asks whether there is a server
    async with (
        served(nats_server.url, registry, **patient) as server,
        calling(nats_server.url, **patient) as calls,
    ):
        waiting = [asyncio.create_task(calls.call("trap.slow", {"number": number})) for number in range(100)]
        for _ in range(100):
            await soon("the handler begins", begun.acquire())
        await server.transport.withdraw(["trap.slow"])
        with pytest.raises(CallError, match="no server available") as failure:
            await calls.call("trap.slow", {"number": -1})
        assert failure.value.code is ErrorCode.UNAVAILABLE
        go_on.set()
        answers = await soon("all are answered", asyncio.gather(*waiting))
        assert [answer.data for answer in answers] == list(range(100))


async def test_a_server_that_withdraws_first_reports_the_calls_that_it_has(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwire.transports.leases.MOMENT", 60.0)  # when it reports them otherwise
    registry, begun, go_on = OperationRegistry(), asyncio.Event(), asyncio.Event()

    @registry.query("trap.slow")
    async def slow() -> int:
        begun.set()
        await go_on.wait()
        return 1

    patient = {"heartbeat": 30.0}
    async with (
        served(nats_server.url, registry, **patient) as server,
        calling(nats_server.url, **patient) as calls,
    ):
        waiting = asyncio.create_task(calls.call("trap.slow"))
        await soon("the handler begins", begun.wait())
        [request_id] = calls.open_requests()
        outgoing = cast("BrokerTransport", calls.transport).leases.calls.by_request_id[request_id]
        assert outgoing.server is None
        await server.transport.withdraw(["trap.slow"])
        await until("it is reported", lambda: outgoing.server is not None)
        go_on.set()
        assert (await soon("it is answered", waiting)).data == 1


async def test_what_an_exception_says_does_not_reach_the_caller(nats_server: NatsServer) -> None:
    registry = OperationRegistry()

    @registry.query("trap.fail", access=PUBLIC)
    async def fail() -> None:
        raise ValueError("s3cret")

    request = json.dumps({"type": "call.requested", "requestId": "1", "operationId": "trap.fail", "input": {}}).encode()
    async with served(nats_server.url, registry), calling(nats_server.url) as calls:
        with pytest.raises(CallError) as failure:
            await calls.call("trap.fail")
        assert failure.value.code is ErrorCode.EXECUTION_ERROR
        assert "s3cret" not in f"{failure.value} {failure.value.details}"
        async with plain_client(nats_server.url) as client:
            reply = await client.request("opwire.call.trap.fail", request, timeout=5)
        assert b"EXECUTION_ERROR" in reply.data
        assert b"s3cret" not in reply.data
        assert reply.headers is None


async def test_each_call_has_one_outcome_while_the_server_is_killed_and_started_again(own_nats: StartNats) -> None:
    """nats-py loses what is published during an outage, and says nothing."""
    server, registry, runs = own_nats(), OperationRegistry(), Counter[int]()

    @registry.mutation("trap.run")
    async def run(number: int) -> int:
        runs[number] += 1
        return number

    outcomes: dict[int, object] = {}

    async def call(number: int) -> None:
        try:
            answer = await calls.call("trap.run", {"number": number}, timeout=4)
        except CallError as error:
            outcomes[number] = error.code
        else:
            outcomes[number] = answer.data == number or "another call's answer"

    async with Leaks(), served(server.url, registry, heartbeat=0.2), calling(server.url, heartbeat=0.2) as calls:
        callers: list[asyncio.Task[None]] = []
        recovered, began = 0, time.monotonic()
        while recovered < 100 and time.monotonic() < began + 20:
            callers.append(asyncio.create_task(call(len(callers))))
            await asyncio.sleep(0.001)
            if len(callers) == 200:
                server.kill()
            elif len(callers) == 300:
                server.start()
            recovered = sum(outcomes.get(number) is True for number in range(300, len(callers)))
        await soon("each call ends", asyncio.gather(*callers))
    assert recovered >= 100, "calls did not succeed again"
    assert set(outcomes.values()) == {True, ErrorCode.UNAVAILABLE}
    assert set(runs.values()) == {1}
    assert all(number in runs for number, outcome in outcomes.items() if outcome is True)


async def test_an_abort_never_overtakes_its_request(nats_server: NatsServer) -> None:
    registry, running = OperationRegistry(), 0

    @registry.query("trap.wait")
    async def wait() -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            running -= 1

    url, slowly = nats_server.url, 60  # no beat is to end what an abort missed
    async with served(url, registry, heartbeat=slowly) as server, calling(url, heartbeat=slowly) as calls:
        for _ in range(20):
            tasks = [asyncio.create_task(calls.call("trap.wait")) for _ in range(50)]
            await asyncio.sleep(0)  # they leave
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        async def idle() -> None:
            while server.open_calls or running:
                await asyncio.sleep(0.01)

        await calls.transport.servers(wait=0.05)  # what was sent before has arrived by then
        await soon("no handler runs any more", idle())


# --- what NATS adds ---------------------------------------------------------------------------------------------------


async def test_a_call_without_a_server_fails_at_once_and_says_which(nats_server: NatsServer) -> None:
    """Over NATS a call without a server fails within a round trip."""
    async with calling(nats_server.url) as calls:
        with pytest.raises(CallError, match=r"no\.such: no server available") as failure:
            await soon("it fails long before its deadline", calls.call("no.such", timeout=60))
        assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_call_that_the_server_forbids_fails_at_once_and_others_go_on(own_nats: StartNats) -> None:
    permissions = {"publish": {"deny": ["opwire.call.shop.>"]}}
    server = own_nats(authorization={"users": [{"user": "ann", "password": "s3cret", "permissions": permissions}]})
    registry = OperationRegistry()
    registry.query("math.one")(lambda: 1)
    registry.query("shop.order")(lambda: 2)
    url = f"nats://ann:s3cret@{HOST}:{server.port}"
    async with served(url, registry, heartbeat=60), calling(url, heartbeat=60) as calls:
        with pytest.raises(CallError, match=r"shop\.order: Permissions Violation") as failure:
            await soon("it fails before its lease ends", calls.call("shop.order", timeout=60))
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert (await calls.call("math.one")).data == 1


async def test_a_plain_nats_client_calls_an_operation_with_json_alone(nats_server: NatsServer) -> None:
    registry = OperationRegistry()

    @registry.query("math.add", access=PUBLIC)
    async def add(a: int, b: int) -> int:
        return a + b

    @registry.subscription("math.count", access=PUBLIC)
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    def request(operation_id: str, **input: int) -> bytes:
        return json.dumps(
            {"type": "call.requested", "requestId": operation_id, "operationId": operation_id, "input": input}
        ).encode()

    async with served(nats_server.url, registry), plain_client(nats_server.url) as client:
        reply = await client.request("opwire.call.math.add", request("math.add", a=1, b=2), timeout=5)
        answer = json.loads(reply.data)
        assert (answer["type"], answer["requestId"]) == ("call.responded", "math.add")
        assert answer["output"]["data"] == 3
        items = await client.subscribe("_INBOX.items")
        await client.publish("opwire.call.math.count", request("math.count", to=3), reply="_INBOX.items")
        events = [json.loads((await items.next_msg(timeout=5)).data) for _ in range(4)]
        assert [event.get("output", {}).get("data") for event in events] == [0, 1, 2, None]
        assert events[3]["type"] == "call.completed"


async def test_a_stream_for_a_plain_client_that_left_is_stopped(nats_server: NatsServer) -> None:
    registry, stopped = OperationRegistry(), asyncio.Event()

    @registry.subscription("clock.ticks", access=PUBLIC)
    async def ticks() -> AsyncIterator[int]:
        try:
            for number in range(1_000_000):
                yield number
                await asyncio.sleep(0.001)
        finally:
            stopped.set()

    request = {"type": "call.requested", "requestId": "1", "operationId": "clock.ticks", "input": {}}
    async with served(nats_server.url, registry):
        async with plain_client(nats_server.url) as client:
            items = await client.subscribe("_INBOX.items")
            await client.publish("opwire.call.clock.ticks", json.dumps(request).encode(), reply="_INBOX.items")
            await items.next_msg(timeout=5)
        await soon("the generator is closed", stopped.wait())


async def test_a_plain_nats_service_can_answer_calls(nats_server: NatsServer) -> None:
    async with plain_client(nats_server.url) as client, calling(nats_server.url) as calls:

        async def respond(message: Any) -> None:
            asked = json.loads(message.data)
            meta = {"source": "local", "operationId": asked["operationId"], "timestamp": 0}
            output = {"data": asked["input"], "meta": meta}
            answer = {"type": "call.responded", "requestId": asked["requestId"], "output": output}
            await message.respond(json.dumps(answer).encode())

        await client.subscribe("opwire.call.other.echo", cb=respond)
        await client.flush()
        await client.flush()
        envelope = await soon("it is answered", calls.call("other.echo", {"from": "elsewhere"}))
        assert envelope.data == {"from": "elsewhere"}


async def test_two_prefixes_do_not_meet(nats_server: NatsServer) -> None:
    registry = OperationRegistry()
    registry.query("math.one")(lambda: 1)
    async with (
        served(nats_server.url, registry, prefix="acme.one"),
        calling(nats_server.url, prefix="acme.two") as calls,
    ):
        with pytest.raises(CallError, match="no server available"):
            await calls.call("math.one")
        assert await calls.transport.servers(wait=0.1) == []


async def test_a_frozen_server_is_noticed_within_three_beats_and_used_again_when_it_thaws(own_nats: StartNats) -> None:
    server, registry = own_nats(), OperationRegistry()
    registry.query("math.one")(lambda: 1)
    async with served(server.url, registry, heartbeat=0.1), calling(server.url, heartbeat=0.1) as calls:
        server.freeze()
        with pytest.raises(CallError, match=r"does not answer|no message from it") as failure:
            await soon("it fails", calls.call("math.one", timeout=60))
        assert failure.value.code is ErrorCode.UNAVAILABLE
        server.thaw()

        async def answered() -> None:
            while True:
                try:
                    await calls.call("math.one")
                    return
                except CallError:
                    await asyncio.sleep(0.02)

        await soon("calls are answered again", answered())


async def test_a_caller_that_may_not_publish_to_inboxes_reroutes_nothing(own_nats: StartNats) -> None:
    users = [
        {"user": "server", "password": "s3cret"},
        {"user": "ann", "password": "s3cret", "permissions": {"publish": {"deny": ["opwire.in.>"]}}},
    ]
    port, registry = own_nats(authorization={"users": users}).port, OperationRegistry()
    registry.query("math.one")(lambda: 1)
    async with (
        served(f"nats://server:s3cret@{HOST}:{port}", registry),
        calling(f"nats://ann:s3cret@{HOST}:{port}", heartbeat=60) as calls,
    ):
        assert (await calls.call("math.one")).data == 1
        transport = calls.transport
        assert isinstance(transport, NatsTransport)
        reroutes = transport.leases.calls.reroutes
        (server,) = transport.leases.calls.latest_servers.values()
        reroutes.unanswered("math.one", server, time.monotonic())
        results = await soon("the broker routes them", asyncio.gather(*(calls.call("math.one") for _ in range(20))))
        assert [result.data for result in results] == [1] * 20
        assert not reroutes


async def test_no_message_or_log_line_shows_the_password(own_nats: StartNats, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "opwire")
    server = own_nats(user="ann", password="s3cret")
    async with calling(server.url, heartbeat=0.1) as calls:
        transport = calls.transport
        assert isinstance(transport, NatsTransport)

        async def until(connected: bool) -> None:
            while transport.connected is not connected:
                await asyncio.sleep(0.01)

        server.kill()
        await soon("the loss is noticed", until(False))
        with pytest.raises(CallError) as failure:
            await calls.call("math.one")
        server.start()
        await soon("it is connected again", until(True))
    server.kill()
    with pytest.raises(CallError) as refused:
        await NatsTransport(server.url).start(calls)
    assert "s3cret" not in f"{failure.value} {refused.value} {caplog.text}"
    assert f"nats://{HOST}:{server.port}" in caplog.text


@pytest.mark.parametrize("options", [{"prefix": "a b"}, {"queue": "*"}, {"url": "http://x"}, {"url": []}])
def test_options_that_cannot_be_used_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        NatsTransport(**options)


async def test_nats_own_tools_see_what_a_registry_serves_and_how_it_is_doing(nats_server: NatsServer) -> None:
    registry, prefix = OperationRegistry(), "srv-test"

    @registry.query("math.add", access=PUBLIC)
    async def add(a: int, b: int) -> int:
        return a + b

    serving = PendingRequestMap(NatsTransport(nats_server.url, prefix=prefix))
    calling = PendingRequestMap(NatsTransport(nats_server.url, prefix=prefix))
    async with serving, CallHandler(registry, serving, name="calc", version="1.2.3") as handler, calling:
        await calling.call("math.add", {"a": 1, "b": 2})
        with pytest.raises(CallError):
            await calling.call("math.add", {"a": "one", "b": 2})
        async with plain_client(nats_server.url) as client:
            where = f"calc.{handler.about().id}"
            ping = json.loads((await client.request(f"$SRV.PING.{where}")).data)
            info = json.loads((await client.request(f"$SRV.INFO.{where}")).data)
            stats = json.loads((await client.request(f"$SRV.STATS.{where}")).data)
    assert (ping["type"], ping["name"], ping["version"]) == ("io.nats.micro.v1.ping_response", "calc", "1.2.3")
    assert info["endpoints"][0]["subject"] == f"{prefix}.call.math.add"
    counted = stats["endpoints"][0]
    assert (counted["num_requests"], counted["num_errors"], counted["last_error"]) == (2, 1, "VALIDATION_ERROR")


# --- leaf nodes and accounts ------------------------------------------------------------------------------------------


async def test_ends_at_a_leaf_node_and_at_its_hub_are_in_one_account_and_those_of_another_are_not(
    own_nats: StartNats,
) -> None:
    def account(name: str) -> dict[str, Any]:
        return {"users": [{"user": name, "password": "s3cret"}]}

    port = secrets.choice(PORTS)
    hub = own_nats(
        accounts={"shop": account("shop"), "billing": account("billing")},
        leafnodes={"host": HOST, "port": port},
    )
    leaf = own_nats(leafnodes={"remotes": [{"url": f"nats://shop:s3cret@{HOST}:{port}"}]})
    shop, billing = (f"nats://{name}:s3cret@{HOST}:{hub.port}" for name in ("shop", "billing"))
    registry = OperationRegistry()

    @registry.mutation("trap.where", access=PUBLIC)
    async def where() -> str:
        return "at the hub"

    async with served(shop, registry), calling(leaf.url) as near, calling(billing) as stranger:

        async def reached() -> str:
            while True:
                try:
                    return (await near.call("trap.where")).data
                except CallError:  # the leaf node is still connecting
                    await asyncio.sleep(0.02)

        assert await soon("the leaf node is connected", reached()) == "at the hub"
        with pytest.raises(CallError, match="no server available"):
            await stranger.call("trap.where")
