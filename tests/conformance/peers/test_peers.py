"""The kit finds nothing wrong with our own peers, and finds each peer that breaks one promise."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from opwire.auth import Grant, StaticTokens
from opwire.client import Client
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import Hub, Spoke
from opwire.model.identity import Identity
from opwire.transports.redis import RedisTransport
from opwire_conformance.harness import soon
from opwire_conformance.peers import (
    ConformanceReport,
    check_broker,
    check_connecting_peer,
    check_hub,
    check_peer,
    conformance_operations,
    wires,
)
from opwire_conformance.peers.hub import HUB_CHECKS
from opwire_conformance.peers.listening import CALLER_CHECKS, SESSION_CHECKS
from opwire_conformance.peers.server import BROKER_CHECKS, SERVER_CHECKS
from tests.conformance.peers.proxy import Change, Event, drop, on, proxied, setting, without

TOKEN = "token-of-the-kit-0123"
AUTH = StaticTokens({TOKEN: Grant(Identity(id="kit"), announces=("conformance",))})
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"


@asynccontextmanager
async def hub(**options: Any) -> AsyncIterator[str]:
    async with Hub(conformance_operations(), "ws://127.0.0.1:0", authenticate=AUTH, linger=0, **options) as served:
        yield served.url


def failures(report: ConformanceReport) -> dict[str, str]:
    return {each.promise: each.message for each in report.broken}


def skipped(report: ConformanceReport) -> list[str]:
    return [each.promise for each in report.results if each.status == "skipped"]


def test_every_check_names_a_section_of_the_page() -> None:
    headings = set(re.findall(r"^#+ (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    tables: list[Any] = [HUB_CHECKS, SERVER_CHECKS, BROKER_CHECKS, SESSION_CHECKS, CALLER_CHECKS]
    sections = {section for table in tables for section, _ in table.values()}
    assert sections <= headings


# --- our own peers ----------------------------------------------------------------------------------------------------


async def test_our_hub_keeps_every_promise() -> None:
    async with hub() as url:
        report = await check_peer(url, token=TOKEN)
    assert (failures(report), skipped(report)) == ({}, [])
    assert len(report.results) == len(HUB_CHECKS) + len(SERVER_CHECKS) + 1


async def test_what_a_token_does_not_allow_is_skipped() -> None:
    auth = StaticTokens({TOKEN: Identity(id="user")})
    async with Hub(None, "ws://127.0.0.1:0", authenticate=auth, linger=0) as served:
        report = await check_hub(served.url, token=TOKEN)
    assert failures(report) == {}
    assert {"calls are relayed unchanged", "data arrives as it was sent"} <= set(skipped(report))


@pytest.mark.parametrize("engine", ["redis", "nats"])
async def test_our_spoke_on_a_broker_keeps_every_promise(engine: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{engine}_server").url
    async with Spoke(conformance_operations(), url, prefix="conformance"):
        report = await check_peer(url, prefix="conformance")
    assert (failures(report), skipped(report)) == ({}, [])
    assert len(report.results) == len(BROKER_CHECKS) + len(SERVER_CHECKS) + 1


class Listening:
    """A run of the kit that listens."""

    def __init__(self, **options: Any) -> None:
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._run = asyncio.create_task(check_connecting_peer(listening_at=self._url.set_result, **options))

    async def url(self) -> str:
        return await soon("the kit listens", self._url)

    async def report(self) -> ConformanceReport:
        return await self._run


async def test_our_spoke_keeps_every_promise() -> None:
    kit = Listening()
    async with Spoke(conformance_operations(), await kit.url()):
        report = await kit.report()
    assert failures(report) == {}
    assert skipped(report) == list(CALLER_CHECKS)


async def test_our_client_keeps_every_promise() -> None:
    kit = Listening()
    async with Client(await kit.url(), retries=None) as client:
        assert await client.call("conformance.echo", {"a": 1}) == {"a": 1}
        assert [item async for item in client.subscribe("conformance.count", {"to": 300})][-1] == 300
        with pytest.raises(CallError, match="UNAVAILABLE"):
            assert [item async for item in client.subscribe("conformance.gap")]
        with pytest.raises(CallError, match="TIMEOUT"):
            await client.call("conformance.wait", timeout=0.1)
    report = await kit.report()
    assert failures(report) == {}
    assert not set(skipped(report)) & set(CALLER_CHECKS)


# --- peers that break one promise -------------------------------------------------------------------------------------


def twice(event: Event) -> list[Event]:
    return [event, event]


def of(operation_id: str, change: Change) -> Change:
    """Change the responses of one operation."""

    def changed(event: Event) -> list[Event]:
        return change(event) if event["output"]["meta"]["operationId"] == operation_id else [event]

    return on("call.responded", changed)


def shifted(event: Event) -> list[Event]:
    return [{**event, "seq": event["seq"] + 1}]


def changed_data(event: Event) -> list[Event]:
    output = event["output"]
    return [{**event, "output": {**output, "data": None if output["data"] == {} else output["data"]}}]


def renamed_wait() -> Change:
    """Give every request of `conformance.wait` an id of its own."""
    numbers = count()
    return on("call.requested", lambda e: [{**e, "requestId": f"n{next(numbers)}"}], operationId="conformance.wait")


def forged_answer(event: Event) -> list[Event]:
    return [{**event, "output": {**event["output"], "data": "forged"}}]


FORGED = {"id": "forged", "scopes": ["*"], "resources": dict[str, Any]()}

BROKEN_HUBS: dict[str, tuple[str, dict[str, Any]]] = {
    "a session opens": ("version", {"to_caller": setting("session.welcome", version=3)}),
    "hello comes first": ("1000", {"close_code": 1000}),
    "a binary message closes the connection": ("1000", {"close_code": 1000}),
    "a message above the limit closes it": ("1000", {"close_code": 1000}),
    "fragments, null, 1.0 and unknown fields": (
        "did not arrive",
        {"to_server": on("session.hello", lambda e: [{**e, "version": 2} if "newer" in e else e])},
    ),
    "only the server of a call answers it": (
        "not routed to it",
        {"to_caller": on("call.responded", forged_answer, requestId="r1")},
    ),
    "delegation needs a served request": ("answered by", {"to_server": without("call.requested", "parentRequestId")}),
    "other versions are refused": ("4401", {"to_server": setting("session.hello", version=1)}),
    "invalid tokens are refused": ("ACCESS_DENIED", {"to_caller": setting("session.refused", code="ACCESS_DENIED")}),
    "invalid messages leave it open": ("PROTOCOL", {"to_caller": setting("call.error", code="EXECUTION_ERROR")}),
    "announced, described, withdrawn": ("session.done", {"to_caller": drop("session.done")}),
    "an announcement may carry descriptions": (
        "answered by",
        {"to_server": without("session.announce", "descriptions")},
    ),
    "an empty announcement is refused": (
        "session.refused",
        {"to_caller": on("session.refused", lambda event: [{"type": "session.done", "id": event["id"]}])},
    ),
    "what is not described is refused": (
        "one of two",
        {"to_caller": setting("session.done", refused=[{"operation": "x", "code": "INTERNAL", "message": ""}])},
    ),
    "all servers are listed": ("not listed", {"to_caller": setting("session.here", peers=[])}),
    "goaway withdraws, and ends no call": ("call.error", {"to_server": drop("session.goaway")}),
    "calls are relayed unchanged": ("name its sender", {"to_caller": without("call.responded", "peer")}),
    "identities cannot be forged": (
        "passed it on",
        {"to_caller": on("call.requested", lambda e: [{**e, "identity": FORGED}], requestId="r1")},
    ),
    "an unknown peer is unavailable": ("answered by", {"to_caller": setting("call.error", code="INTERNAL")}),
    "two callers may use the same id": ("caller 0", {"to_caller": drop("call.responded", requestId="same")}),
    "an open request is not repeated": ("duplicate", {"to_caller": on("call.requested", twice, requestId="r1")}),
    "items, credit and progress are relayed": ("the credit", {"to_caller": drop("call.credit")}),
    "questions and answers are relayed": ("the answer", {"to_server": drop("call.answer")}),
    "an abort reaches the server": ("the abort", {"to_server": drop("call.aborted")}),
    "a lost server fails its calls": ("failed by", {"to_caller": setting("call.error", code="INTERNAL")}),
    "a lost caller is reported": ("session.left", {"to_caller": drop("session.left")}),
    "every event agrees with its schema": ("maxMessage", {"to_caller": without("session.welcome", "maxMessage")}),
}

BROKEN_SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown operation is not found": ("answered by", {"to_caller": setting("call.error", code="INTERNAL")}),
    "operations are described on request": ("did not arrive", {"to_caller": drop("call.completed")}),
    "an invalid event fails its call alone": ("did not arrive", {"to_server": drop("call.requested", credits=-1)}),
    "events of unknown calls are ignored": (
        "answered",
        {"to_server": on("call.completed", lambda e: [{**e, "type": "call.requested", "operationId": "a.b"}])},
    ),
    "unknown fields, null and 5.0 are accepted": (
        "answered by",
        {"to_server": on("call.requested", lambda e: [{**e, "operationId": "a.b"} if "newer" in e else e])},
    ),
    "data arrives as it was sent": ("came back as", {"to_caller": of("conformance.echo", changed_data)}),
    "calls at once are not mixed up": ("more than once", {"to_caller": of("conformance.echo", twice)}),
    "the text of an exception is not sent": ("code", {"to_caller": setting("call.error", code="INTERNAL")}),
    "a producer waits for credit": ("without credit", {"to_server": without("call.requested", "credits")}),
    "a consumer may leave credits out": ("another seq", {"to_caller": of("conformance.count", shifted)}),
    "a subscription without items ends": (
        "ended with",
        {"to_caller": on("call.completed", lambda e: [{**e, "seq": e["seq"] or 1}])},
    ),
    "a call is stopped at its deadline": ("did not arrive", {"to_server": without("call.requested", "timeoutMs")}),
    "an expired request is not started": ("answered by", {"to_server": without("call.requested", "timeoutMs")}),
    "an aborted call is stopped": ("not stopped", {"to_server": drop("call.aborted")}),
    "a request that arrives twice runs once": ("runs 2 times", {"to_server": renamed_wait()}),
    "questions are sent only to those who answer": (
        "the question",
        {"to_server": without("call.requested", "questions")},
    ),
    "progress is sent only if it is asked for": (
        "did not ask",
        {"to_server": setting("call.requested", progress=True)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("promise", BROKEN_HUBS)
async def test_a_hub_that_breaks_one_promise_is_found(promise: str) -> None:
    """The conformance kit finds every peer that breaks one promise."""
    complaint, changes = BROKEN_HUBS[promise]
    async with hub() as url, proxied(url, **changes) as broken_url:
        report = await check_hub(broken_url, token=TOKEN, only="" if "schema" in promise else promise)
    assert complaint in failures(report).get(promise, "it was not found")


@pytest.mark.slow
@pytest.mark.parametrize("promise", BROKEN_SERVERS)
async def test_a_server_that_breaks_one_promise_is_found(promise: str) -> None:
    complaint, changes = BROKEN_SERVERS[promise]
    async with hub() as url, proxied(url, **changes) as broken_url:
        report = await check_hub(broken_url, token=TOKEN, only=promise)
    assert complaint in failures(report).get(promise, "it was not found")


def test_every_check_can_fail() -> None:
    # The proxy answers pings by itself.
    assert {*HUB_CHECKS, *SERVER_CHECKS} - {*BROKEN_HUBS, *BROKEN_SERVERS} == {"pings are answered"}


async def test_an_end_on_a_broker_that_does_not_confirm_its_calls_is_found(redis_server: Any) -> None:
    async with Spoke(conformance_operations(), redis_server.url, prefix="broken") as spoke:
        assert isinstance(spoke.transport, RedisTransport)
        connection = spoke.transport.connection
        send = connection.send

        def forgetful(to: str, token: str, message: bytes, *, control: bool) -> None:
            if b"session.serving" not in message:
                send(to, token, message, control=control)

        connection.send = forgetful
        report = await check_broker(redis_server.url, prefix="broken", only="confirmed")
    assert "did not name a call in flight" in failures(report)["calls in flight are confirmed"]


BROKEN_CALLERS: dict[str, tuple[str, Change]] = {
    "the first message is session.hello": ("session.hello was expected", drop("session.hello")),
    "every request has a new id": ("used", setting("call.requested", requestId="same")),
    "a consumer grants what it has consumed": ("no more credit", drop("call.credit")),
    "a missing item ends a subscription": ("not aborted", drop("call.aborted")),
    "a caller aborts what it gives up": ("not aborted", drop("call.aborted")),
    "every event agrees with its schema": ("n:", setting("call.credit", n="many")),
}


async def use(url: str) -> None:
    """Call everything that the kit serves, as far as it goes."""
    async with Client(url, retries=None) as client:
        for _ in range(2):
            with suppress(CallError):
                await client.call("conformance.echo", {}, timeout=1)
        with suppress(CallError):
            await client.call("conformance.wait", timeout=0.1)
        for name in ("gap", "count"):
            with suppress(CallError):
                async for _ in client.subscribe(f"conformance.{name}", {"to": 300}):
                    pass


@pytest.mark.slow
@pytest.mark.parametrize("promise", BROKEN_CALLERS)
async def test_a_caller_that_breaks_one_promise_is_found(promise: str) -> None:
    complaint, change = BROKEN_CALLERS[promise]
    kit = Listening(wait=3)
    async with proxied(await kit.url(), to_server=change) as url:
        using = asyncio.create_task(use(url))
        report = await kit.report()
        using.cancel()
        await asyncio.wait([using])
    assert complaint in failures(report).get(promise, "it was not found")


async def test_a_spoke_that_does_not_describe_what_it_announces_is_found() -> None:
    kit = Listening()
    forgetful = on("call.responded", lambda event: [event] if event.get("seq") != 2 else [])
    async with proxied(await kit.url(), to_server=forgetful) as url, Spoke(conformance_operations(), url):
        report = await kit.report()
    assert "what is announced is described" in failures(report)


# --- peers that do nothing --------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_silent_hub_does_not_stop_the_run() -> None:
    async with hub() as url, proxied(url, to_caller=lambda _: []) as silent:
        report = await check_hub(silent, token=TOKEN)
    assert failures(report) == {"a session opens": "session.welcome did not arrive within 4 s"}


async def test_a_run_ends_when_its_time_is_up() -> None:
    """The conformance kit ends in bounded time for any behaviour of a peer."""
    async with hub() as url, proxied(url, to_caller=drop("call.error")) as slow:
        report = await check_hub(slow, token=TOKEN, timeout=3)
    assert "not checked: the time of the run is up" in failures(report).values()


@pytest.mark.slow
async def test_a_hub_that_floods_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "_MAX_BYTES", 2_000_000)

    def flood(event: Event) -> list[Event]:
        return [event, *({"type": "session.goaway", "reason": "x" * 100_000} for _ in range(30))]

    async with hub() as url, proxied(url, to_caller=on("session.welcome", flood)) as flooding:
        report = await check_hub(flooding, token=TOKEN, timeout=10)
    assert "more than 2,000,000 bytes" in failures(report)["every event agrees with its schema"]


async def test_a_token_that_is_refused_is_an_error_of_the_user_and_not_of_the_hub() -> None:
    async with hub() as url:
        with pytest.raises(CallError, match="the hub refuses the token: a token is needed") as failure:
            await check_hub(url)
    assert failure.value.code is ErrorCode.UNAUTHENTICATED


async def test_a_peer_that_cannot_be_reached_is_an_error(redis_server: Any) -> None:
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    for run in (
        check_hub("ws://127.0.0.1:1"),
        check_hub(f"ws://127.0.0.1:{port}"),
        check_broker(redis_server.url, prefix="nothing-here"),
        check_connecting_peer(wait=0.1),
    ):
        with pytest.raises(CallError) as failure:
            await run
        assert failure.value.code is ErrorCode.UNAVAILABLE
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    silent.close()
    await silent.wait_closed()
    with pytest.raises(UsageError):
        await check_broker("ws://127.0.0.1:1")
