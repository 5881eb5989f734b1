"""Log records as text and as JSON: bounded, escaped, one line."""

import json
import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, Identity, OperationRegistry, local_envelope
from opwire.observe.logs import AccessEntry, JSONFormatter, begin_access
from opwire.runtime.limits import LimitedLog
from opwire.runtime.text import get_logger, traceback_of


def record_of(message: str, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    caught = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("opwire.a", logging.ERROR, __file__, 1, "%s", (message,), caught)
    vars(record).update(extra)
    return record


def test_an_entry_exists_only_while_the_log_is_enabled(caplog: pytest.LogCaptureFixture) -> None:
    assert begin_access("http") is None
    caplog.set_level(logging.INFO, "opwire.access")
    assert begin_access("http") is not None


def test_a_monitor_that_polls_the_statistics_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "opwire.access")
    polled, denied = AccessEntry("call", operation="opwire.statistics"), AccessEntry("call", operation="opwire.calls")
    denied.failed(CallError("ACCESS_DENIED", "no"))
    polled.write()
    denied.write()
    assert [vars(record)["access"]["operation"] for record in caplog.records] == ["opwire.calls"]


@given(text=st.text(max_size=600))
def test_text_of_callers_is_one_bounded_printable_line(text: str) -> None:
    entry = AccessEntry("call", operation=text, identity=Identity(id=text or "x"))
    entry.request_id = entry.path = entry.error_id = text
    entry.failed(CallError("INTERNAL", text, {"errorId": text}))
    for shown in (each for each in entry.fields().values() if isinstance(each, str)):
        assert len(shown) <= 2_000
        assert not set(shown) & set("\n\r\t\x00\x1b\x7f\x9b\u2028\u202e")


def test_what_has_no_json_form_has_no_size() -> None:
    entry = AccessEntry("call")
    entry.measured(local_envelope("hello", "a.b"))
    size = entry.bytes
    assert size > len("hello")
    entry.measured(local_envelope(object(), "a.b"))
    assert entry.bytes == size


def test_a_record_is_one_json_object_with_the_fields_of_its_call() -> None:
    record = record_of("a\x1b[2J\n", access={"surface": "http", "bytes": 3})
    line = JSONFormatter().format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("ERROR", "opwire.a", "a\x1b[2J\n")
    assert (found["surface"], found["bytes"]) == ("http", 3)
    assert found["time"].endswith("+00:00")


def test_a_traceback_keeps_its_end_if_it_is_too_long() -> None:
    try:
        raise ValueError("x" * 200_000 + "the end")
    except ValueError as error:
        record = record_of("failed", error)
    found = traceback_of(record)
    assert found is not None
    assert len(found) <= 64 * 1024 + 1
    assert found.endswith("xthe end")
    assert json.loads(JSONFormatter().format(record))["traceback"] == found
    assert traceback_of(record_of("fine")) is None


def test_lines_above_the_limit_of_a_second_are_dropped_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = LimitedLog(get_logger("opwire.a"), per_second=2)
    for n in range(10):
        log.write(logging.WARNING, "line %d", n)
        log.write(logging.DEBUG, "not enabled")
    now[0] += 1
    log.write(logging.WARNING, "again")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["line 0", "line 1", "line 2 (the rest of this second is dropped)", "again"]


async def test_text_of_peers_in_a_traceback_is_escaped_and_forges_no_record(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()

    @registry.query("shop.parse")
    def parse(text: str) -> str:
        raise RuntimeError(f"cannot parse {text}")

    with pytest.raises(CallError, match="error id"):
        await registry.execute("shop.parse", {"text": "no\x1b]52;c;eA==\x07\u202e\nERROR forged"})
    [record] = [record for record in caplog.records if record.exc_info]
    lines = logging.Formatter("%(levelname)s %(message)s").format(record).splitlines()
    assert lines[-2:] == ["    RuntimeError: cannot parse no\\x1b]52;c;eA==\\x07\\u202e", "    ERROR forged"]
    assert [line for line in lines if not line.startswith(" ")] == [lines[0], "Traceback (most recent call last):"]
