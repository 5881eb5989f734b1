"""Lines of a server in the log."""

import logging

import pytest

from opwire.mcp.client.questions import MAX_LOG_LINE_LENGTH, MAX_LOG_LINES_PER_SECOND, ServerLog
from opwire.observe import logs


def test_a_server_cannot_flood_the_log_or_forge_lines_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    log = ServerLog("judge")
    log.write(logging.WARNING, "a\nb\x1b]0;c\x07\u202e" + "x" * 10_000)
    first = caplog.records[0].getMessage()
    assert first.startswith("judge: a\\nb\\x1b]0;c\\x07\\u202exxx")
    assert len(first) < MAX_LOG_LINE_LENGTH + 50
    for number in range(MAX_LOG_LINES_PER_SECOND * 3):
        log.write(logging.WARNING, f"line {number}")
    assert len(caplog.records) == MAX_LOG_LINES_PER_SECOND + 1
    assert "the rest of this second is dropped" in caplog.records[-1].getMessage()
    now[0] += 1
    log.write(logging.WARNING, "again")
    assert caplog.records[-1].getMessage() == "judge: again"
