"""Code mode: a model writes Python that calls operations, and nothing else is in its reach."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from opwire.agents import anthropic_tools
from opwire.agents.code_mode import CodeLimits, code_mode, json_length
from opwire.auth import StaticTokens
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.envelope import mcp_envelope
from opwire.model.identity import Identity
from opwire.openapi.server import serve_http
from opwire.policies import CallBudget
from opwire.registry import OperationRegistry

STAFF = Identity(id="ann", scopes=("staff",))


def shop(commented: list[tuple[int, str]] | None = None) -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.issues/list")
    async def issues(label: str = "") -> list[dict[str, Any]]:
        """List the issues."""
        return [{"id": n, "label": "bug" if n % 3 == 0 else "idea", "text": "x" * 500} for n in range(30)]

    @registry.mutation("shop.issues/comment")
    async def comment(id: int, text: str, context: Context) -> int:
        """Comment on an issue."""
        if commented is not None:
            commented.append((id, context.identity.id if context.identity else ""))
        return id

    @registry.query("shop.secret", access=AccessControl(required_scopes=("staff",)))
    async def secret() -> str:
        """Return the secret."""
        return "SECRET"

    @registry.query("shop.tool")
    async def tool() -> Any:
        return mcp_envelope("sold out", is_error=True, content=[])

    @registry.query("shop.blocks")
    async def blocks() -> Any:
        content = [{"type": "text", "text": "closed"}, {"type": "text", "text": "until noon"}]
        return mcp_envelope(content, is_error=True, content=content)

    @registry.subscription("shop.ticks")
    async def ticks() -> AsyncIterator[int]:
        for n in range(3):
            yield n

    @registry.query("shop.wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    return registry


async def ran(code: str, context: Context | None = None, **limits: Any) -> str:
    mode = code_mode(shop(), limits=CodeLimits(**limits))
    return (await mode.execute("tools.run", {"code": code}, context)).data


async def failed(code: str, context: Context | None = None, **limits: Any) -> CallError:
    with pytest.raises(CallError) as failure:
        await ran(code, context, **limits)
    return failure.value


async def test_a_program_composes_calls_and_only_its_result_reaches_the_model() -> None:
    commented: list[tuple[int, str]] = []
    mode = code_mode(shop(commented))
    assert [spec.id for spec in mode.list()] == ["tools.search", "tools.run"]
    found = (await mode.execute("tools.search", {"query": "list issues"})).data
    assert found.startswith("shop_issues_list(label?: str)  List the issues.")
    code = """
import asyncio
bugs = [issue for issue in await shop_issues_list() if issue["label"] == "bug"]
done = await asyncio.gather(*(shop_issues_comment(id=bug["id"], text="please fix") for bug in bugs))
print(len(bugs), "bugs")
done[:3]
"""
    context = Context(identity=Identity(id="eve"))
    assert (await mode.execute("tools.run", {"code": code}, context)).data == "10 bugs\n[0,3,6]"
    assert sorted(commented) == [(n, "eve") for n in range(0, 30, 3)]


async def test_subscriptions_give_their_items_and_dictionaries_their_arguments() -> None:
    assert await ran("await shop_ticks()") == "[0,1,2]"
    assert await ran('await shop_issues_comment({"id": 5, "text": "a"})') == "5"
    assert "no result" in await ran("None")
    assert await ran('"text"') == "text"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("await shop_issues_comment(id='x', text='a')", "VALIDATION_ERROR"),
        ("await shop_tool()", "sold out"),
        ("await shop_blocks()", "RuntimeError: shop_blocks: closed\nuntil noon"),
        ("await shop_issues_comment(1, 'a')", "takes keyword arguments"),
        ("await shop_issue()", "NameError"),
        ("def f(:", "Expected"),
        ("print('so far')\n1 / 0", "so far\n"),
        ("await shop_ticks()\nawait shop_ticks()\n1 / 0", "failed after 2 calls, which are not undone"),
    ],
)
async def test_a_failure_tells_a_model_how_to_correct_its_program(code: str, told: str) -> None:
    error = await failed(code)
    assert (error.code, told in error.message) == (ErrorCode.VALIDATION_ERROR, True)
    assert len(error.message) < 3_000


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("1 / 0", "Correct the program and run it again."),
        ("await shop_issues_comment(id='x', text='a')", "Correct the program and run it again."),
        ("shop_ticks()", "Correct the program and run it again."),
        ("await shop_secret()", "The operation failed, not the program."),
        ("await shop_tool()", "The operation failed, not the program."),
        ("try:\n    await shop_secret()\nexcept RuntimeError:\n    1 / 0", "Correct the program and run it again."),
    ],
)
async def test_the_advice_to_a_model_depends_on_what_failed(code: str, advice: str) -> None:
    tools = anthropic_tools(code_mode(shop()), identity=Identity(id="eve"))
    result = await tools.handle({"id": "1", "name": "tools_run", "input": {"code": code}})
    assert result["content"][0]["text"].splitlines()[-1] == advice


async def test_a_program_may_handle_the_failure_of_a_call() -> None:
    code = """
try:
    result = await shop_issues_comment(id="x", text="a")
except RuntimeError as error:
    result = str(error)[:16]
result
"""
    assert await ran(code) == "VALIDATION_ERROR"


async def test_a_program_sees_and_calls_only_what_its_caller_may() -> None:
    eve = Context(identity=Identity(id="eve"))
    mode = code_mode(shop())
    assert "shop_secret" not in (await mode.execute("tools.search", {"query": "secret"}, eve)).data
    assert "shop_secret" in (await mode.execute("tools.search", {"query": "secret"}, Context(identity=STAFF))).data
    assert "ACCESS_DENIED" in (await failed("await shop_secret()", eve)).message
    assert await ran("await shop_secret()", Context(identity=STAFF)) == "SECRET"


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "import os\nos.environ['HOME']",
        "import os\nos.listdir('/')",
        "import os\nos.system('id')",
        "import subprocess",
        "import socket",
        "import sys\nsys.modules['os'].system('id')",
        "__import__('os').system('id')",
        "().__class__.__base__.__subclasses__()",
        "eval('open(\\'/etc/passwd\\').read()')",
        "exec('import subprocess')",
        "shop_secret.__globals__",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "breakpoint()",
        "tools_run",
        "(lambda: 0).__code__",
    ],
)
async def test_a_hostile_program_reaches_nothing(code: str) -> None:
    """A program reaches no file, network, environment, process, or other program."""
    error = await failed(code)
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "root:" not in error.message


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("while True: pass", "TimeoutError: computed for more than 0.5 s"),
        ("'a' * 10**9", "memory limit"),
        ("[0] * 10**9", "memory limit"),
        ("x = 'a'\nwhile True: x += x", "memory limit"),
        ("def f(): return f()\nf()", "recursion"),
        ("for _ in range(1_000): await shop_issues_list()", "the program has made 10 calls"),
        (
            "while True:\n    try: await shop_issues_list()\n    except RuntimeError: pass",
            "suspension limit",
        ),
        ("2 ** 10 ** 10", ""),
    ],
)
async def test_a_program_that_uses_too_much_is_ended(code: str, told: str) -> None:
    error = await failed(code, seconds=0.5 if code == "while True: pass" or not told else 20, calls=10)
    assert error.code in (ErrorCode.VALIDATION_ERROR, ErrorCode.EXECUTION_ERROR)
    assert told in error.message


async def test_a_program_that_waits_is_ended_at_its_deadline_and_others_run_meanwhile() -> None:
    """Computing, waiting, memory, calls, output and the number of programs are bounded."""
    mode = code_mode(shop(), limits=CodeLimits(total_seconds=0.3, programs=1))
    waiting = asyncio.create_task(mode.execute("tools.run", {"code": "await shop_wait()"}))
    await asyncio.sleep(0)
    with pytest.raises(CallError) as busy:
        await mode.execute("tools.run", {"code": "1"})
    assert busy.value.code is ErrorCode.RATE_LIMITED
    with pytest.raises(CallError) as late:
        await waiting
    assert late.value.code is ErrorCode.TIMEOUT
    assert (await mode.execute("tools.run", {"code": "1"})).data == "1"


async def test_the_programs_of_one_caller_do_not_keep_those_of_others_out() -> None:
    started = asyncio.Event()
    registry = OperationRegistry()

    @registry.query("shop.wait", access=AccessControl(public=True))
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    users, ann = StaticTokens({"token-of-ann-0123456": Identity(id="ann")}), {"x-api-key": "token-of-ann-0123456"}
    app = serve_http(code_mode(registry, limits=CodeLimits(programs=2)), authenticate=users)
    async with app.listening(drain_timeout=1) as address, aiohttp.ClientSession(address) as http, asyncio.timeout(60):
        waiting = asyncio.create_task(http.post("/tools/run", json={"code": "await shop_wait()"}))
        await started.wait()
        async with http.post("/tools/run", json={"code": "1"}) as refused:
            assert refused.status == 429
            assert "1 programs are running already, 1 of this caller" in (await refused.json())["detail"]
        async with http.post("/tools/run", json={"code": "1"}, headers=ann) as served:
            assert await served.json() == "1"
        waiting.cancel()


async def test_what_a_program_returns_and_prints_is_bounded() -> None:
    text = await ran("for n in range(100): print('y' * 1_000)\n'x' * 100_000", output=2_000)
    assert len(text) < 4_200
    assert "… (98,100 more characters)\n" in text
    assert text.endswith("… (98,000 more characters: return less)")


async def test_programs_share_nothing() -> None:
    mode = code_mode(shop())
    await mode.execute("tools.run", {"code": "kept = 5"})
    with pytest.raises(CallError, match="NameError"):
        await mode.execute("tools.run", {"code": "kept"})


async def test_a_model_of_any_provider_uses_it() -> None:
    tools = anthropic_tools(code_mode(shop()))
    assert [tool["name"] for tool in tools.definitions] == ["tools_search", "tools_run"]
    message = await tools.handle({"id": "1", "name": "tools_run", "input": {"code": "len(await shop_issues_list())"}})
    assert message["content"] == [{"type": "text", "text": "30"}]


def test_a_limit_that_is_wrong_is_refused() -> None:
    for name in ("seconds", "total_seconds", "memory", "calls", "output", "programs"):
        with pytest.raises(UsageError, match=name):
            CodeLimits(**{name: 0})


async def test_a_result_that_is_nested_too_deeply_is_not_shown() -> None:
    mode = code_mode(OperationRegistry())
    code = "value = []\nfor _ in range(100_000):\n    value = [value]\nvalue"
    assert "nested too deeply" in (await mode.execute("tools.run", {"code": code})).data


async def test_the_calls_of_a_program_share_the_budget_of_one_request() -> None:
    registry, calls = OperationRegistry(), list[int]()
    registry.use(CallBudget(5))

    @registry.query("shop.price")
    async def price() -> int:
        calls.append(1)
        return 1

    mode = code_mode(registry)
    for _ in range(2):  # each program is a request of its own
        calls.clear()
        with pytest.raises(CallError, match="the request has made 5 calls"):
            await mode.execute("tools.run", {"code": "for _ in range(20): await shop_price()"})
        assert len(calls) == 5


@pytest.mark.parametrize("ending", ["", "\n1", "\nraise ValueError('x')", "\nwhile True: pass"])
async def test_calls_that_a_program_does_not_await_end_with_it(ending: str) -> None:
    registry, began, stopped = OperationRegistry(), asyncio.Event(), asyncio.Event()

    @registry.mutation("shop.wait")
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @registry.query("shop.began")
    async def has_begun() -> None:
        await began.wait()

    mode = code_mode(registry, limits=CodeLimits(seconds=0.2))
    with pytest.raises(CallError) as failure:
        await mode.execute("tools.run", {"code": f"x = shop_wait()\nawait shop_began(){ending}"})
    assert stopped.is_set()
    assert failure.value.code is ErrorCode.VALIDATION_ERROR
    assert ("await shop_wait" in failure.value.message) == (ending in ("", "\n1"))


async def test_a_result_that_is_a_call_without_await_is_reported() -> None:
    registry = OperationRegistry()

    @registry.query("shop.quick", inline=True)
    def quick() -> int:
        return 1

    with pytest.raises(CallError, match="await"):
        await code_mode(registry).execute("tools.run", {"code": "shop_quick()"})


async def test_what_a_failed_call_needs_is_reported_by_the_name_of_its_function() -> None:
    error = await failed("await shop_issues_comment(id=1)")
    assert "Its parameters: shop_issues_comment(id: int, text: str)" in error.message
    error = await failed("await asyncio.gather(shop_issues_list())")
    assert "Did you forget to import 'asyncio'?" in error.message
    assert "tools_search" not in error.message
    error = await failed("raise ValueError('x' * 10_000)")
    assert "ValueError: x" in error.message
    assert len(error.message) < 3_000


@pytest.mark.parametrize(
    "value",
    [
        "['x' * 1_000_000] * 20_000",
        "{'a': (['x' * 1_000_000],) * 20_000}",
        "double(40)",
        "instance(['x' * 1_000_000] * 20_000)",
    ],
)
async def test_a_value_that_is_shared_many_times_counts_each_time(value: str) -> None:
    shared = """
def double(times):
    value = ['x']
    for _ in range(times): value = [value, value]
    return value
class A: pass
def instance(value):
    a = A()
    a.value = value
    return [a]
"""
    assert "more than 4,194,304 characters: return less" in await ran(f"{shared}{value}")
    error = await failed(f"{shared}await shop_issues_list(repo={value})")
    assert "PAYLOAD_TOO_LARGE" in error.message
    assert await ran(f"{shared}value = double(2)\n[value, value]") == str([[[["x"]] * 2] * 2] * 2).replace(
        " ", ""
    ).replace("'", '"')


async def test_a_list_of_many_small_lists_counts_as_what_it_costs() -> None:
    assert "more than 4,194,304 characters" in await ran("[[]] * 300_000")
    assert "PAYLOAD_TOO_LARGE" in (await failed("await shop_issues_list(repo=[[]] * 300_000)")).message
    assert await ran("len([[]] * 300_000)") == "300000"


async def test_the_arguments_of_calls_at_the_same_time_are_bounded() -> None:
    registry, may_end, held = OperationRegistry(), asyncio.Event(), list[int]()

    @registry.query("shop.hold")
    async def hold(text: str) -> None:
        held.append(len(text))
        await may_end.wait()

    @registry.query("shop.size")
    async def size(text: str) -> int:
        return len(text)

    mode = code_mode(registry)
    at_once = "import asyncio\ntext = 'x' * 4_000_000\nawait asyncio.gather(*[shop_hold(text=text) for _ in range(20)])"
    with pytest.raises(CallError, match=r"PAYLOAD_TOO_LARGE: the arguments of calls at the same time .*: await some"):
        await mode.execute("tools.run", {"code": at_once})
    assert len(held) <= 4
    one_by_one = "text = 'x' * 4_000_000\n[await shop_size(text=text) for _ in range(20)]"
    assert (await mode.execute("tools.run", {"code": one_by_one})).data == str([4_000_000] * 20).replace(" ", "")


async def test_large_values_are_measured_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[int, threading.Thread]] = []

    def measure(value: Any, most: int) -> int:
        measured.append((len(value), threading.current_thread()))
        return json_length(value, most)

    monkeypatch.setattr("opwire.agents.code_mode.json_length", measure)
    await ran("await shop_issues_list(label='x' * 10)\n[[n] for n in range(1_000)]")
    assert [size for size, _ in measured] == [1, 1_000]
    assert threading.main_thread() not in [thread for _, thread in measured]


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (["abcdefgh", b"abcdef"], 2 + 11 + 9),
        ([True, 2**30, 0], 2 + 6 + 31 // 3 + 1),
        ([1.5, None, "ab"], 2 + 8 + 8 + 5),
        ([["abcdefghijkl"], ["abcdefghijkl"], 7], 2 + 17 + 17 + 3),
        ([[], {}, ["ab"]], 2 + 16 + 16 + 16),  # each costs a server more than its characters
        ([], 16),
    ],
)
def test_the_length_of_a_value_is_close_to_that_of_its_json(value: Any, length: int) -> None:
    assert length - 2 <= json_length(value, length) <= length
    assert json_length(value, length - 3) > length - 3


async def test_a_result_that_has_no_text_is_not_shown() -> None:
    assert "too many digits" in await ran("2 ** 100_000")
