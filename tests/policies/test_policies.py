"""Policies: what they let through, what they reject, and what they write."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opwire.asgi.listener import listening
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.mcp.client import from_mcp
from opwire.mcp.server import serve_mcp
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.model.operation import Interceptor, OperationSpec, OperationType
from opwire.model.questions import Question
from opwire.policies import (
    Approval,
    ApprovalChange,
    ApprovalQueue,
    ApprovalRequest,
    AuditLog,
    CallBudget,
    CircuitBreaker,
    ConcurrencyLimit,
    RateLimit,
    ask_caller,
)
from opwire.registry import OperationRegistry

ANN, EVE = Context(identity=Identity(id="ann")), Context(identity=Identity(id="eve"))


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def shop(*policies: Interceptor) -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.price")
    async def price(article: str = "tea", code: str = "") -> float:
        if code:
            raise CallError(code, "as asked")
        return 2.5

    @registry.mutation("shop.order")
    async def order(article: str, password: str = "") -> str:
        return article

    @registry.subscription("shop.ticks")
    async def ticks(last: int = 3) -> AsyncIterator[int]:
        for n in range(last):
            yield n

    @registry.query("shop.again")
    async def again(context: Context) -> int:
        return (await context.env.shop.again()).data + 1

    for policy in policies:
        registry.use(policy)
    return registry


async def refused(registry: OperationRegistry, id: str, input: Any = None, context: Context | None = None) -> CallError:
    with pytest.raises(CallError) as failure:
        await registry.execute(id, input, context)
    return failure.value


# --- audit ------------------------------------------------------------------------------------------------------------


async def test_every_call_is_a_line_of_json_with_its_caller_and_outcome(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    registry = shop(AuditLog(path))
    await registry.execute("shop.price", {"article": "tea"}, ANN)
    await refused(registry, "shop.price", {"code": "UNAVAILABLE"}, EVE)
    assert [item.data async for item in registry.subscribe("shop.ticks")] == [0, 1, 2]
    stream = registry.subscribe("shop.ticks", {"last": 1_000})
    await anext(stream)
    await stream.aclose()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["identity"], line["operation"], line["outcome"]) for line in lines] == [
        ("ann", "shop.price", "OK"),
        ("eve", "shop.price", "UNAVAILABLE"),
        (None, "shop.ticks", "OK"),
        (None, "shop.ticks", "CANCELLED"),
    ]
    assert (lines[0]["inputBytes"], lines[0]["outputBytes"], lines[2]["items"], lines[3]["items"]) == (17, 3, 3, 1)
    assert all(line["ms"] >= 0 and line["time"].endswith("+00:00") and "input" not in line for line in lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_inputs_are_written_only_if_asked_for_and_without_secrets() -> None:
    lines: list[bytes] = []
    registry = shop(AuditLog(lines.append, values=True, redact=["Article"], exclude=["shop.price"]))
    await registry.execute("shop.order", {"article": "s3cret", "password": "s3cret"})
    await registry.execute("shop.order", {"article": "x" * 20_000})
    await registry.execute("shop.price")
    assert [json.loads(line)["input"] for line in lines] == [{"article": "***", "password": "***"}, "(too long)"]
    assert b"s3cret" not in b"".join(lines)


@pytest.mark.parametrize(
    ("value", "logged"),
    [
        (10**5_000, "(no JSON form)"),
        ("\ud800", {"article": "\ufffd"}),
        ({1: 2}, {"article": {"1": 2}}),
        (({"password": "s3cret"},), {"article": [{"password": "***"}]}),
    ],
    ids=["long integer", "lone surrogate", "integer keys", "tuple"],
)
async def test_no_input_evades_the_line_of_a_call(value: Any, logged: Any) -> None:
    lines: list[bytes] = []
    registry = OperationRegistry()
    registry.use(AuditLog(lines.append, values=True))

    @registry.mutation("shop.order")
    async def order(article: Any) -> str:
        return "done"

    assert (await registry.execute("shop.order", {"article": value})).data == "done"
    assert [json.loads(line)["input"] for line in lines] == [logged]


async def test_an_audit_log_that_is_installed_first_has_the_calls_that_others_reject() -> None:
    lines: list[bytes] = []
    registry = shop(AuditLog(lines.append), Approval(lambda _: False))
    await refused(registry, "shop.order", {"article": "tea"})
    assert json.loads(lines[0])["outcome"] == "ACCESS_DENIED"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
async def test_a_call_that_cannot_be_recorded_fails_and_says_why_and_one_that_failed_keeps_its_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    registry = shop(AuditLog(path))
    path.unlink()
    path.symlink_to("/dev/full")
    error = await refused(registry, "shop.price", {"article": "tea"}, ANN)
    assert (error.code, error.message, error.retryable) == (
        "EXECUTION_ERROR",
        "shop.price ran, but cannot be recorded: cannot write the audit log: No space left on device",
        False,
    )
    assert caplog.messages == [f"cannot write the audit log: {path}: No space left on device; shop.price ended with OK"]
    assert (await refused(registry, "shop.price", {"code": "RATE_LIMITED"})).code == "RATE_LIMITED"


async def test_a_line_that_is_written_in_part_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = shop(AuditLog(tmp_path / "audit.jsonl"))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:10]))  # as on a disk with 10 bytes left
    assert "cannot be recorded" in (await refused(registry, "shop.price", {"article": "tea"})).message


# --- approval ---------------------------------------------------------------------------------------------------------


async def test_a_call_with_input_that_cannot_be_shown_to_a_person_is_rejected() -> None:
    registry = OperationRegistry()
    registry.use(Approval(lambda request: bool(str(request))))
    registry.register(OperationSpec(namespace="shop", name="order", type=OperationType.MUTATION), lambda _i, _c: "done")
    rejected = await refused(registry, "shop.order", {"amount": 1, "note": 10**5_000})
    assert rejected.code is ErrorCode.VALIDATION_ERROR
    assert "no JSON form to ask a person about" in rejected.message
    assert (await registry.execute("shop.order", {"note": "\ud800"})).data == "done"


async def test_a_mutation_runs_only_if_a_person_approves() -> None:
    asked: list[ApprovalRequest] = []

    async def ask(request: ApprovalRequest) -> bool | str:
        asked.append(request)
        return request.input["article"] == "tea" or "too expensive"

    registry = shop(Approval(ask))
    assert (await registry.execute("shop.order", {"article": "tea"}, ANN)).data == "tea"
    denied = await refused(registry, "shop.order", {"article": "gold"}, ANN)
    assert (denied.code, denied.message) == (ErrorCode.ACCESS_DENIED, "shop.order was not approved: too expensive")
    await registry.execute("shop.price")
    assert [str(each) for each in asked] == [
        'ann calls shop.order with {"article":"tea"}',
        'ann calls shop.order with {"article":"gold"}',
    ]


@pytest.mark.parametrize("decision", [False, "", None, 1, "yes"])
async def test_everything_but_true_denies(decision: Any) -> None:
    denied = await refused(shop(Approval(lambda _: decision)), "shop.order", {"article": "tea"})
    assert denied.code is ErrorCode.ACCESS_DENIED


async def test_a_decision_has_a_deadline_and_few_calls_wait_for_one() -> None:
    forever = asyncio.Event()

    async def ask(_: ApprovalRequest) -> bool:
        return await forever.wait()

    registry = shop(Approval(ask, timeout=0.05, max_waiting=4))
    outcomes = await asyncio.gather(*(refused(registry, "shop.order", {"article": "tea"}) for _ in range(3)))
    assert sorted(error.code for error in outcomes) == ["ACCESS_DENIED", "ACCESS_DENIED", "RATE_LIMITED"]
    assert "no decision within 0.05 s" in max(error.message for error in outcomes)
    assert (await refused(registry, "shop.order", {"article": "tea"})).code is ErrorCode.ACCESS_DENIED


async def waiting(queue: ApprovalQueue, calls: int) -> tuple[ApprovalRequest, ...]:
    async with asyncio.timeout(30):
        while len(queue.waiting) < calls:
            await asyncio.sleep(0)
    return queue.waiting


async def test_calls_wait_in_a_queue_until_each_is_approved_or_denied() -> None:
    queue, changes = ApprovalQueue(), list[ApprovalChange]()
    stop = queue.on_change(changes.append)
    registry = shop(Approval(queue))
    calls = [asyncio.create_task(registry.execute("shop.order", {"article": each}, ANN)) for each in ("tea", "gold")]
    tea, gold = await waiting(queue, 2)
    assert (tea.identity, tea.shown_input, tea.expires - tea.since) == (ANN.identity, {"article": "tea"}, 300)
    assert queue.deny(gold.id, "too expensive", by="eve")
    assert queue.approve(tea.id, by="eve")
    assert not queue.approve(gold.id)  # it was denied already
    assert not queue.deny("unknown")
    assert (await calls[0]).data == "tea"
    with pytest.raises(CallError, match="was not approved: too expensive"):
        await calls[1]
    assert [(each.kind, each.request.id, each.reason, each.by) for each in changes] == [
        ("waiting", tea.id, "", ""),
        ("waiting", gold.id, "", ""),
        ("denied", gold.id, "too expensive", "eve"),
        ("approved", tea.id, "", "eve"),
    ]
    stop()


async def test_a_call_that_expires_or_is_cancelled_leaves_the_queue_and_cannot_be_approved() -> None:
    queue, changes = ApprovalQueue(), list[ApprovalChange]()
    queue.on_change(changes.append)
    queue.on_change(lambda _: 1 / 0)  # does not affect the others
    late = await refused(shop(Approval(queue, timeout=0.05)), "shop.order", {"article": "tea"})
    assert "no decision within 0.05 s" in late.message
    call = asyncio.create_task(shop(Approval(queue)).execute("shop.order", {"article": "tea"}))
    (request,) = await waiting(queue, 1)
    call.cancel()
    assert queue.waiting
    await asyncio.wait([call])
    assert [each.kind for each in changes] == ["waiting", "expired", "waiting", "cancelled"]
    assert not queue.waiting
    assert not queue.approve(request.id)


async def test_a_person_reads_neither_secrets_nor_the_whole_of_a_long_input() -> None:
    asked: list[ApprovalRequest] = []
    registry = shop(Approval(lambda request: bool(asked.append(request)) or True))
    await registry.execute("shop.order", {"article": "tea", "password": "hunter2"})
    assert str(asked[0]) == 'an anonymous caller calls shop.order with {"article":"tea","password":"***"}'
    await registry.execute("shop.order", {"article": "t" * 5_000})
    assert str(asked[1]).endswith("t… (3,014 more characters)")
    await registry.execute("shop.order", {"article": "a\u202etea\u2066"})  # which a client would display reversed
    assert str(asked[2]).endswith(r'{"article":"a\u202etea\u2066"}')


async def test_the_caller_is_asked_and_one_that_cannot_be_asked_is_denied() -> None:
    """The person that makes a call can be asked for approval, over MCP by elicitation."""
    registry, asked, answers = shop(Approval(ask_caller)), list[str](), iter([True, False])

    async def on_question(question: Question) -> dict[str, Any]:
        asked.append(question.params["message"])
        return {"action": "accept", "content": {"value": next(answers)}}

    context = replace(ANN, on_question=on_question)
    assert (await registry.execute("shop.order", {"article": "tea", "password": "x"}, context)).data == "tea"
    assert asked == ['ann calls shop.order with {"article":"tea","password":"***"}. Approve?']
    assert "declined" in (await refused(registry, "shop.order", {"article": "tea"}, context)).message
    alone = await refused(registry, "shop.order", {"article": "tea"}, ANN)
    assert (alone.code, len(asked)) == (ErrorCode.ACCESS_DENIED, 2)


@pytest.mark.parametrize("accepts", [True, False])
async def test_a_client_of_mcp_shows_the_question(accepts: bool) -> None:
    asked: list[dict[str, Any]] = []

    def elicit(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return {"action": "accept", "content": {"value": True}} if accepts else {"action": "decline"}

    app = serve_mcp(shop(Approval(ask_caller))).asgi(anonymous=Identity(id="ann"))
    async with listening(app) as address, from_mcp(f"{address}/mcp", namespace="x", elicit=elicit) as source:
        client = OperationRegistry()
        client.follow(source)
        envelope = await client.execute("x.shop_order", {"article": "tea"})
    assert "shop.order with" in asked[0]["message"]
    assert getattr(envelope.meta, "is_error", None) is not accepts
    assert envelope.data == "tea" if accepts else "was not approved" in str(envelope.data)


# --- limits -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.floats(0.1, 10), st.lists(st.floats(0, 3), max_size=40))
def test_no_more_calls_pass_than_the_rate_allows(calls: int, per: float, steps: list[float]) -> None:
    async def run() -> None:
        clock, passed = Clock(), list[float]()
        registry = shop(RateLimit(calls, per=per, clock=clock))
        for step in steps:
            clock.now += step
            try:
                await registry.execute("shop.price", {}, ANN)
            except CallError as error:
                clock.now += (error.retry_after or 0) + 1e-6
                await registry.execute("shop.price", {}, ANN)  # as the error said
            passed.append(clock.now)
        for start, first in enumerate(passed):
            for end, last in enumerate(passed[start:], start=start):
                assert end - start + 1 <= calls + (last - first) * calls / per + 1e-3

    asyncio.run(run())


async def test_a_limit_is_for_each_identity_and_a_thousand_calls_at_once_pass_as_few() -> None:
    registry = shop(RateLimit(10, per=1_000))

    async def attempt(context: Context) -> bool:
        try:
            await registry.execute("shop.price", {}, context)
        except CallError:
            return False
        return True

    outcomes = await asyncio.gather(*(attempt(ANN if n % 2 else EVE) for n in range(1_000)))
    assert sum(outcomes) == 20
    together = shop(RateLimit(1, per=1_000, by=()))
    await together.execute("shop.price", {}, ANN)
    assert (await refused(together, "shop.price", {}, EVE)).code is ErrorCode.RATE_LIMITED


async def test_a_limited_number_of_calls_run_and_others_wait_or_are_rejected() -> None:
    running, most, go = 0, 0, asyncio.Event()

    def register(policy: Interceptor) -> OperationRegistry:
        registry = OperationRegistry()
        registry.use(policy)

        @registry.query("slow.call")
        async def slow() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await go.wait()
            running -= 1

        return registry

    waiting = ConcurrencyLimit(3, wait=30)
    tasks = [asyncio.create_task(_ended(register(waiting), "slow.call"))]
    registry = register(waiting)
    tasks = [asyncio.create_task(registry.execute("slow.call")) for _ in range(100)] + tasks
    rejecting = register(ConcurrencyLimit(3))
    more = [asyncio.create_task(_ended(rejecting, "slow.call")) for _ in range(10)]
    while sum(task.done() for task in more) < 7:
        await asyncio.sleep(0)
    assert running <= 6
    assert waiting.active == {("slow.call",): 101}
    tasks[50].cancel()
    go.set()
    await asyncio.wait([*tasks, *more])
    assert most <= 6
    assert [task.result() for task in more].count("RATE_LIMITED") == 7
    assert sum(task.cancelled() for task in tasks) == 1
    assert waiting.active == {}


async def _ended(registry: OperationRegistry, id: str) -> str:
    try:
        await registry.execute(id)
    except CallError as error:
        return error.code
    return "OK"


async def test_what_keeps_failing_is_not_called_until_a_trial_succeeds() -> None:
    clock = Clock()
    registry = shop(CircuitBreaker(3, pause=30, clock=clock))
    down, up = {"code": "UNAVAILABLE"}, {}
    for _ in range(3):
        assert (await refused(registry, "shop.price", down)).message == "as asked"
    stopped = await refused(registry, "shop.price", up)
    assert (stopped.code, stopped.retry_after) == (ErrorCode.UNAVAILABLE, 30)
    assert "the last 3 calls failed" in stopped.message
    clock.now += 31
    assert (await refused(registry, "shop.price", down)).message == "as asked"  # the trial
    assert "the last 4 calls failed" in (await refused(registry, "shop.price", up)).message
    clock.now += 31
    await registry.execute("shop.price", up)
    await registry.execute("shop.price", up)


async def test_errors_of_the_caller_do_not_open_a_circuit() -> None:
    registry = shop(CircuitBreaker(1))
    for code in ("VALIDATION_ERROR", "ACCESS_DENIED", "RATE_LIMITED", "EXECUTION_ERROR"):
        await refused(registry, "shop.price", {"code": code})
    await registry.execute("shop.price")


async def test_one_call_at_a_time_tries_an_open_circuit_and_a_cancelled_one_is_not_a_result() -> None:
    clock, go = Clock(), asyncio.Event()
    registry = OperationRegistry()
    registry.use(CircuitBreaker(1, pause=1, clock=clock))

    @registry.query("slow.call")
    async def slow(fails: bool = False) -> None:
        if fails:
            raise CallError("UNAVAILABLE")
        await go.wait()

    await refused(registry, "slow.call", {"fails": True})
    clock.now += 2
    trial = asyncio.create_task(registry.execute("slow.call"))
    await asyncio.sleep(0)
    assert "the last 1 calls failed" in (await refused(registry, "slow.call")).message
    trial.cancel()
    await asyncio.wait([trial])
    go.set()
    await registry.execute("slow.call")


async def test_a_request_has_a_budget_of_calls_that_ends_loops() -> None:
    """A request makes a bounded number of calls, with all calls that are made for it."""
    registry = shop(CallBudget(20))
    spent = await refused(registry, "shop.again")
    assert (spent.code, spent.retryable) == (ErrorCode.RATE_LIMITED, False)
    assert "has made 20 calls" in spent.message
    for _ in range(50):  # each is a request of its own
        await registry.execute("shop.price")


def test_a_policy_that_is_wrong_is_refused() -> None:
    for make in (
        lambda: RateLimit(0),
        lambda: RateLimit(1, per=0),
        lambda: RateLimit(1, by=cast("Any", ("user",))),
        lambda: ConcurrencyLimit(0),
        lambda: ConcurrencyLimit(1, wait=-1),
        lambda: CircuitBreaker(0),
        lambda: CircuitBreaker(pause=0),
        lambda: CallBudget(0),
        lambda: Approval(lambda _: True, timeout=0),
        lambda: RateLimit(1, include="shop.*"),
    ):
        with pytest.raises(UsageError):
            make()
    with pytest.raises(UsageError, match="has no option 'exlude'; did you mean exclude"):
        RateLimit(1, **cast("Any", {"exlude": ["shop"]}))


async def test_an_input_that_changes_while_it_waits_is_not_approved() -> None:
    registry, queue, ran = OperationRegistry(), ApprovalQueue(), list[int]()

    @registry.mutation("shop.delete")
    async def delete(count: int) -> None:
        ran.append(count)

    registry.use(Approval(queue))
    waiting = asyncio.Event()
    queue.on_change(lambda _: waiting.set())
    given = {"count": 1}
    call = asyncio.create_task(registry.execute("shop.delete", given))
    await asyncio.wait_for(waiting.wait(), 10)
    given["count"] = 999
    queue.approve(queue.waiting[0].id)
    with pytest.raises(CallError, match="its input has changed") as failure:
        await call
    assert failure.value.code is ErrorCode.ACCESS_DENIED
    assert not ran
