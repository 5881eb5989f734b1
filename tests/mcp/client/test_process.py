"""A server's process, from its start to the end of its children."""

import asyncio
import gc
import logging
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import from_mcp
from opwire.mcp.client.questions import ServerLog
from opwire.mcp.client.servers import StdioServer
from opwire.mcp.client.session import MCPSession
from tests.mcp.client.connections import PATIENCE, call, connected, rogue, until
from tests.servers.processes import wait_until_gone


async def test_a_server_gets_what_it_is_given_and_not_our_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUR_SECRET", "s3cret")
    async with connected(rogue(env={"ITS_KEY": "k"}, cwd=str(tmp_path))) as session:
        found = await call(session, "environment")
    assert found["environment"]["ITS_KEY"] == "k"
    assert found["environment"]["PATH"] == os.environ["PATH"]
    assert "OUR_SECRET" not in found["environment"]
    assert found["cwd"] == str(tmp_path)


async def test_a_server_keeps_the_variables_of_proxies_and_certificates_and_the_others_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {
        "SSL_CERT_FILE": "/ca.pem",
        "SSL_CERT_DIR": "/ca",
        "HTTPS_PROXY": "http://proxy:3128",
        "NO_PROXY": "a.example",
    }
    for name, value in {**kept, "OUR_SECRET": "s3cret", "OTHER": "x"}.items():
        monkeypatch.setenv(name, value)
    server = rogue(env={"OTHER": "its own"})
    async with connected(server) as session:
        found = (await call(session, "environment"))["environment"]
    assert found.items() >= {**kept, "OTHER": "its own"}.items()
    assert set(server.withheld) == os.environ.keys() - found.keys()
    assert "OUR_SECRET" in server.withheld


async def test_lines_of_a_megabyte_pass_and_those_above_the_limit_end_the_connection() -> None:
    async with connected(rogue(), max_message=2_000_000) as session:
        assert len((await call(session, "long", size=1_900_000))["text"]) == 1_900_000
        with pytest.raises(CallError, match=r"sent \d+ bytes in one message; the connection is closed") as failure:
            await call(session, "long", size=30_000_000)
        assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert not failure.value.retryable
        assert await call(session, "echo") == {"arguments": {}}


async def test_many_long_answers_at_once_arrive_whole() -> None:
    async with connected(rogue(), max_message=300_000) as session:
        results = await asyncio.gather(*(call(session, "long", size=200_000 + n) for n in range(20)))
        assert [len(result["text"]) for result in results] == [200_000 + n for n in range(20)]


async def test_what_a_server_prints_between_its_messages_is_logged_once_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connected(rogue("noisy")) as session:
        for number in range(3):
            assert await call(session, "echo", n=number) == {"arguments": {"n": number}}
    assert caplog.text.count("writes to stdout what is not a message") == 1
    assert "'Listening on stdio...'" in caplog.text


async def test_what_a_server_prints_is_logged_once_although_it_is_started_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connected(rogue("noisy", "picky")) as session:
        assert await call(session, "echo") == {"arguments": {}}
    assert caplog.text.count("writes to stdout what is not a message") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"jsonrpc": "2.0", "id": %, "result": [5]}', "with what is not a JSON-RPC response"),
        ('{"jsonrpc": "2.0", "id": %, "error": "no"}', "with what is not a JSON-RPC response"),
        ('{"jsonrpc": "2.0", "id": %, "result": {', "broke the protocol: a message that is not JSON"),
    ],
)
async def test_a_broken_answer_is_an_error_at_once(text: str, words: str) -> None:
    async with connected(rogue()) as session:
        with pytest.raises(CallError, match=words) as failure:
            await call(session, "raw", within=None, text=text)
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR
        assert await call(session, "echo") == {"arguments": {}}


async def test_an_answer_with_bytes_that_are_not_utf_8_is_kept() -> None:
    async with connected(rogue()) as session:
        assert await call(session, "raw", text='{"jsonrpc": "2.0", "id": %, "result": {"a": "\xe9!"}}') == {
            "a": "\ufffd!"
        }


async def test_what_a_server_says_on_stderr_is_in_the_log_line_by_line_and_not_endless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "opwire.mcp.client")
    async with connected(rogue()) as session:
        await call(session, "say", text="first\nsecond é")
        await call(session, "say", text="x" * 50_000)
    lines = [record.getMessage() for record in caplog.records if record.name == "opwire.mcp.client"]
    assert any(line.endswith(": first") for line in lines)
    assert any(line.endswith(": second é") for line in lines)
    assert 2000 <= max(map(len, lines)) < 2100


FLOOD = "import sys; sys.stderr.write('x\\n' * 300_000 + 'last\\n'); sys.exit(1)"


async def test_a_flood_on_stderr_is_not_read_line_by_line_and_its_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(ServerLog, "write", lambda log, level, text: lines.append(text))
    with pytest.raises(CallError, match=r"  x\n  last$"):
        await from_mcp(StdioServer(sys.executable, ("-I", "-S", "-c", FLOOD)))
    assert len(lines) < 150_000


async def test_empty_lines_between_messages_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(rogue()) as session:
        assert await call(session, "raw", text="\n" * 100_000 + '{"jsonrpc": "2.0", "id": %, "result": {}}') == {}
    assert "not a message" not in caplog.text


CRASH = "import sys; print('\\n'.join(sys.argv[1:]), file=sys.stderr); sys.exit(1)"


def crashing(*lines: str, **options: Any) -> StdioServer:
    return StdioServer(sys.executable, ("-I", "-S", "-c", CRASH, *lines), **options)


async def test_the_last_lines_of_a_server_that_cannot_start_are_in_the_error() -> None:
    lines = [f"line {number}" for number in range(15)]
    with pytest.raises(CallError, match="ended with status 1") as failure:
        await from_mcp(crashing(*lines, "", "\x1b[2J" + "x" * 5000))
    head, *shown = failure.value.message.split("\n")
    assert head.endswith("; its last lines on stderr:")
    assert shown[:-1] == [f"  {line}" for line in lines[-9:]]
    assert shown[-1].startswith("  \\x1b[2Jxxx")
    assert len(shown[-1]) < 320


async def test_the_error_hides_values_of_env_and_names_a_variable_that_was_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "s3cret-of-ours")
    with pytest.raises(CallError) as failure:
        await from_mcp(crashing("SHOP_TOKEN is missing, but KEY is 12345678", env={"KEY": "12345678"}))
    assert "  SHOP_TOKEN is missing, but KEY is ***\n" in failure.value.message
    assert "not passed on to the server, although set here: SHOP_TOKEN; add it to its env" in failure.value.message


async def test_the_last_lines_of_a_server_that_crashes_later_are_logged_and_do_not_reach_its_callers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connected(rogue()) as session:
        await call(session, "say", text="out of memory")
        with pytest.raises(CallError, match="ended with status 3") as failure:
            await call(session, "crash")
        assert "out of memory" not in str(failure.value)
        await until(lambda: "its last lines on stderr:\n      out of memory" in caplog.text)
        caplog.clear()
    assert caplog.text == ""  # a server that is closed has not crashed


async def test_a_server_ends_at_once_when_its_input_is_closed() -> None:
    async with connected(rogue(stop_timeout=60)) as session:
        pid = (await call(session, "environment"))["pid"]
        await asyncio.wait_for(session.close(), PATIENCE)
        wait_until_gone(pid)


async def test_a_server_that_ignores_everything_is_killed() -> None:
    async with connected(rogue("stubborn", stop_timeout=0.2)) as session:
        pid = (await call(session, "environment"))["pid"]
        await asyncio.wait_for(session.close(), PATIENCE)
        wait_until_gone(pid)


@pytest.mark.parametrize("habit", ["polite", "stubborn"])
async def test_the_children_of_a_server_end_with_it(habit: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server is stopped with its children, even a stubborn one, even if we are cancelled."""
    caplog.set_level(logging.INFO, "opwire.mcp.client")
    async with connected(rogue("parent", habit, stop_timeout=0.3)) as session:
        await session.start()
        await until(lambda: "child" in caplog.text)
        child = re.search(r"child (\d+)", caplog.text)
        assert child is not None
        await session.close()
        wait_until_gone(int(child[1]))


async def test_a_server_that_does_not_read_delays_no_call_beyond_its_deadline() -> None:
    async with connected(rogue(stop_timeout=0.2)) as session:
        await call(session, "deaf")
        calls = (call(session, "echo", within=0.3, text="x" * 200_000) for _ in range(5))
        async with asyncio.timeout(PATIENCE):  # the server is deaf for a minute
            failures = await asyncio.gather(*calls, return_exceptions=True)
        for failure in failures:
            assert isinstance(failure, CallError)
            assert failure.code is ErrorCode.TIMEOUT


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            StdioServer("no-such-program-anywhere"),
            "cannot be started: there is no program no-such-program-anywhere; check",
        ),
        (
            StdioServer("no-such-program-anywhere -y server"),
            "there is no program no-such-program-anywhere -y server; its arguments belong in `args`",
        ),
        (StdioServer("true", cwd="/no/such/folder"), "cannot be started in /no/such/folder: No such file"),
        (StdioServer("/tmp"), "cannot be started: Permission denied"),
        (StdioServer("tr\0ue"), "cannot be started: embedded null byte"),
        (StdioServer("true"), "ended with status 0"),
    ],
    ids=["command", "command line", "cwd", "folder", "nul", "ends"],
)
async def test_what_cannot_be_started_is_said_with_the_reason(server: StdioServer, words: str) -> None:
    async with connected(server) as session:
        with pytest.raises(CallError, match=words) as failure:
            await session.start()
        assert failure.value.code is ErrorCode.UNAVAILABLE


def test_a_stop_that_is_interrupted_leaves_no_open_pipes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def interrupted() -> None:
        session = MCPSession(rogue("stubborn"))
        await call(session, "echo")
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0.1)  # its input is closed, which it ignores; the end of `asyncio.run` cancels the rest
        assert not closing.done()

    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    asyncio.run(interrupted())
    for thread in threading.enumerate():
        if thread.name.startswith("asyncio-waitpid"):  # refers to the process, before Python 3.12
            thread.join(PATIENCE)
    gc.collect()
    assert reported == []
    assert "is closed" not in caplog.text
