"""`opwire ps`, `top` and `tap`."""

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from opwire.cli.commands.monitor import (
    Sample,
    bytes_text,
    elapsed_text,
    figure,
    milliseconds_text,
    record_line,
    server_lines,
    top_lines,
)
from opwire.cli.program import run
from opwire.observe.monitor import CallRecord, OperationStatistics, ServerStatistics
from tests.cli.process import SHOP, OnTerminal, Running, opwire
from tests.servers.brokers import NatsServer

TOKEN = "a-long-random-secret"


class Calls:
    """Calls an operation again and again, until the block ends."""

    def __init__(self, url: str, *words: str) -> None:
        self._arguments = ("call", "--url", url, *words)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            opwire(*self._arguments, OPWIRE_TOKEN=TOKEN)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """The URL of a hub with a spoke."""
    with Running("hub", "ws://127.0.0.1:0", OPWIRE_TOKEN=TOKEN) as hub:
        url = hub.says(r"hub at (ws://[^;]+)")
        with Running("spoke", url, *SHOP, OPWIRE_TOKEN=TOKEN) as spoke:
            spoke.says("serving 8 operations")
            yield url


def test_ps_lists_a_hub_and_its_spokes_for_people_and_for_programs(hub: str) -> None:
    opwire("call", "--url", hub, "math.add", "a=1", "b=2", OPWIRE_TOKEN=TOKEN)
    opwire("call", "--url", hub, "shop.fail", OPWIRE_TOKEN=TOKEN)
    listed = opwire("ps", "--url", hub, "--interval", "0.1", OPWIRE_TOKEN=TOKEN)
    assert listed.returncode == 0, listed.stderr
    header, *rows = [line.split() for line in listed.stdout.splitlines()]
    assert header == ["ID", "NAME", "KIND", "STATUS", "VERSION", "UP", "OPS", "OPEN", "CALLS/S", "CALLS", "ERRORS"]
    assert [row[1:4] for row in rows] == [["hub", "hub", "serving"], ["opwire", "spoke", "serving"]]
    assert all(int(row[-1]) >= 1 for row in rows)
    lines = opwire("ps", "--url", hub, "--interval", "0.1", "--json", OPWIRE_TOKEN=TOKEN).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [(each["kind"], each["operations"]) for each in found] == [("hub", 8), ("spoke", 8)]
    assert found[0]["callsPerSecond"] == 0


def test_ps_says_what_is_missing(hub: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["ps", "--url", hub]) == 5
    assert "a token is needed" in capsys.readouterr().err
    monkeypatch.chdir("/")
    assert run(["ps"]) == 2
    assert "missing URL" in capsys.readouterr().err


def test_tap_prints_a_line_per_call_in_80_columns_until_control_c(hub: str) -> None:
    with (
        OnTerminal("tap", "--url", hub, "--outcome", "error", OPWIRE_TOKEN=TOKEN, COLUMNS="80") as tap,
        Calls(hub, "shop.fail", "code=TIMEOUT"),
    ):
        tap.expect("waiting for calls; ^C stops")
        tap.expect("TIMEOUT             shop.fail  owner")
        code, rest = tap.interrupt()
    assert code == 130
    assert "Traceback" not in rest
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in rest.splitlines())


def test_tap_rejects_an_outcome_that_no_call_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tap", "--url", "ws://127.0.0.1:1", "--outcome", "timeuot"]) == 2
    error = capsys.readouterr().err
    assert "'timeuot' is not one of 'error', " in error
    assert "'tool_error'" in error
    assert run(["tap", "--url", "ws://127.0.0.1:1", "--outcome", "timeout"]) == 6  # unreachable


def test_tap_prints_json_and_stops_after_a_number_of_calls(hub: str) -> None:
    with Calls(hub, "math.add", "a=1", "b=2"):
        tapped = opwire("tap", "--url", hub, "--operation", "math.*", "--count", "2", "--json", OPWIRE_TOKEN=TOKEN)
    records = [json.loads(line) for line in tapped.stdout.splitlines()]
    assert [(each["operationId"], each["outcome"], each["caller"]) for each in records] == [
        ("math.add", "OK", "owner"),
        ("math.add", "OK", "owner"),
    ]


def test_tap_says_once_why_it_is_not_connected() -> None:
    with NatsServer() as server, OnTerminal("tap", "--url", server.url, COLUMNS="200") as tap:
        tap.expect("waiting for calls; ^C stops")
        server.kill()
        tap.expect("Connection refused")
        time.sleep(2.5)  # two more attempts
        _, rest = tap.interrupt()
    assert "not connected" not in rest
    assert "waiting for calls" not in rest


def test_top_fills_the_terminal_and_restores_it(hub: str) -> None:
    with (
        OnTerminal("top", "--url", hub, "--interval", "0.5", OPWIRE_TOKEN=TOKEN, COLUMNS="80", LINES="24") as top,
        Calls(hub, "math.add", "a=1", "b=2"),
    ):
        top.expect("\x1b[?1049h")
        top.expect("2 servers, ")
        top.expect("OPERATION")
        top.expect("math.add")
        code, rest = top.interrupt()
    assert code == 130
    assert "\x1b[?1049l" in rest
    assert "Traceback" not in rest


def test_top_leaves_the_last_table_on_the_terminal(hub: str) -> None:
    with OnTerminal("top", "--url", hub, "--interval", "0.1", "--count", "1", OPWIRE_TOKEN=TOKEN) as top:
        code, shown = top.end()
    assert code == 0
    assert "2 servers, " in shown.partition("\x1b[?1049l")[2]


def test_top_prints_tables_in_a_pipe_and_lines_of_json(hub: str) -> None:
    shown = opwire("top", "--url", hub, "--interval", "0.1", "--count", "2", OPWIRE_TOKEN=TOKEN)
    assert shown.stdout.count("2 servers, ") == 2, shown.stderr
    lines = opwire("top", "--url", hub, "--interval", "0.1", "--count", "1", "--json", OPWIRE_TOKEN=TOKEN).stdout
    assert [json.loads(line)["kind"] for line in lines.splitlines()] == ["hub", "spoke"]


@pytest.mark.slow
def test_servers_on_a_broker_and_behind_http_are_observed(nats_server: NatsServer) -> None:
    with Running("spoke", nats_server.url, *SHOP, "--open") as spoke:
        spoke.says("serving 8 operations")
        listed = opwire("ps", "--url", nats_server.url, "--interval", "0.1", "--json")
        assert '"kind":"spoke"' in listed.stdout, listed.stderr
    with Running("serve", *SHOP, "--http", "--port", "0", OPWIRE_TOKEN=TOKEN) as server:
        url = server.says(r"HTTP API at ([^,\s]+)")
        with Calls(url, "math.add", "a=1", "b=2"):
            tapped = opwire("tap", "--url", url, "--count", "1", "--json", OPWIRE_TOKEN=TOKEN)
        assert json.loads(tapped.stdout)["via"] == "http", tapped.stderr
        listed = opwire("ps", "--url", url.removeprefix("http://"), "--interval", "0.1", OPWIRE_TOKEN=TOKEN)
        assert "server serving" in listed.stdout, listed.stderr
        assert server.stop() == 0


def statistics(**fields: Any) -> ServerStatistics:
    given: dict[str, Any] = {
        "id": "0123456789abcdef",
        "name": "a-name-that-is-much-longer-than-any-column",
        "version": "1.0",
        "kind": "spoke",
        "started": 0,
        "status": "serving",
        "in_flight": 123_456,
        "operations": 20_000,
        "calls": 123_456_789,
        "errors": 1_234_567,
        "seconds": 1.0,
        "busiest": [OperationStatistics(id="a.b", calls=10)],
    }
    return ServerStatistics(**{**given, **fields})


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_names_shrink_and_figures_do_not(width: int) -> None:
    sample = Sample(1.0, [statistics(), statistics(name="\x1b[2Jevil")], {})
    lines = server_lines(sample, width)
    assert all(len(line) <= width for line in lines)
    assert lines[0].split()[:2] == (["NAME", "STATUS"] if width == 40 else ["ID", "NAME"])
    assert lines[0].split()[-3:] == ["CALLS/S", "CALLS", "ERRORS"]
    assert all("123M" in line for line in lines[1:])
    assert "\x1b" not in "".join(lines)


def spokes(number: int) -> list[ServerStatistics]:
    return [statistics(id=f"{each:016}", name=f"spoke-{each:02}", in_flight=0, calls=20) for each in range(number)]


def test_servers_can_be_told_apart_by_their_names_on_a_narrow_terminal() -> None:
    lines = server_lines(Sample(1.0, spokes(50), {}), 40)
    assert all(f"spoke-{each:02} " in line for each, line in enumerate(lines[1:]))


def test_many_servers_leave_room_for_the_busiest_operations() -> None:
    before = {each.id: replace(each, busiest=[]) for each in spokes(50)}
    lines = top_lines(Sample(1.0, spokes(50), before), 80, 24)
    assert len(lines) == 24
    assert lines[-1].startswith("a.b ")
    assert "… 33 more: `opwire ps` lists all" in lines
    assert len(top_lines(Sample(1.0, spokes(50), before), 80)) == 56


def test_a_server_that_states_no_version_has_none() -> None:
    _, stated, missing = server_lines(Sample(1.0, [statistics(), statistics(version="")], {}), 140)
    assert (stated.split()[4], missing.split()[4]) == ("1.0", "-")


def test_rates_are_those_since_the_sample_before() -> None:
    before = statistics(calls=100, busiest=[OperationStatistics(id="a.b", calls=10, seconds=1.0)])
    now = statistics(calls=104, busiest=[OperationStatistics(id="a.b", calls=14, seconds=1.2)])
    sample = Sample(2.0, [now, statistics(id="new")], {before.id: before})
    assert sample.rate(now, lambda found: found.calls) == 2.0
    assert sample.rate(sample.servers[1], lambda found: found.calls) is None
    [(operation, rate, ms)] = sample.busiest()
    assert (operation.id, rate, round(ms)) == ("a.b", 2.0, 50)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"outcome": "OK", "input_bytes": 12, "output_bytes": 5_400}, "OK 12 B → 5 kB"),
        ({"outcome": "OK", "items": 3}, "OK 3 items"),
        ({"outcome": "OPERATION_NOT_FOUND"}, "OPERATION_NOT_FOUND math.add"),
    ],
)
def test_a_line_has_the_sizes_the_items_or_the_error(record: dict[str, Any], expected: str) -> None:
    given = {
        "time": 0,
        "request_id": "0123456789",
        "operation_id": "math.add",
        "ms": 1.25,
        "server": "a",
        "via": "call",
    }
    line = record_line(CallRecord(**{**given, **record, "caller": "a" * 100}), 78)
    assert expected in line
    assert len(line) == 78
    assert " 01234567 " in line


@pytest.mark.parametrize("width", [38, 58, 78])
def test_the_line_of_a_call_fits_into_a_narrow_terminal(width: int) -> None:
    record = CallRecord(
        time=0,
        request_id="0123456789",
        operation_id="warehouse.articles_in_stock",
        outcome="OK",
        ms=1.25,
        server="a",
        via="call",
        caller="a" * 100,
        input_bytes=12,
        output_bytes=5_400,
    )
    line = record_line(record, width)
    assert len(line) <= width
    assert "OK" in line
    assert "warehouse" in line
    assert (" 01234567 " in line) == (width == 78)


@pytest.mark.parametrize("command", [("ps",), ("top", "--count", "1"), ("tap", "--count", "1")])
def test_a_token_that_is_missing_or_wrong_is_named_with_where_it_comes_from(hub: str, command: tuple[str, ...]) -> None:
    hint = "set OPWIRE_TOKEN to the token of the server: `opwire serve` and `opwire hub` print theirs"
    for token, problem in (("", "a token is needed"), ("wrong", "the token is not valid")):
        ended = opwire(*command, "--url", hub, OPWIRE_TOKEN=token)
        assert ended.returncode == 5
        assert ended.stderr.endswith(f"{problem}; {hint}\n")


def test_figures_are_short() -> None:
    assert [figure(each) for each in (0, 3.24, 10, 812.4, 12_400, 3_100_000, 123_456_789, 5e10)] == [
        *("0", "3.2", "10", "812", "12.4k", "3100k", "123M", "50G")
    ]
    assert [elapsed_text(each) for each in (12.9, 184, 7_800, 442_800)] == ["12s", "3m04s", "2h10m", "5d03h"]
    assert [milliseconds_text(each) for each in (0.25, 1_500, 900_000)] == ["0.2 ms", "1.5 s", "15 min"]
    assert [bytes_text(each) for each in (12, 12_345, 12_345_678)] == ["12 B", "12 kB", "12 MB"]
