"""What a server prints: where it listens, what it serves, its access log, and the tracebacks of failures."""

import json
import re

import pytest

from opwire.cli.program import run
from tests.cli.process import SHOP, Running, opwire


def test_a_server_prints_what_it_serves_each_call_and_the_traceback_of_a_failure() -> None:
    with Running("serve", *SHOP, "--http", "--port", "0", OPWIRE_TOKEN="a-token-0123456789") as server:
        address = server.says(r"HTTP API at ([^,\s]+)")
        server.says(r"serving \d+ operations \(.*math \d.*\); \^C stops")
        opwire("call", "--url", address, "math.add", "a=1", "b=2", OPWIRE_TOKEN="a-token-0123456789")
        server.says(r"^\d\d:\d\d:\d\d http math\.add owner OK [\d.]+ ms [\d,]+ B$")
        failed = opwire("call", "--url", address, "shop.fail", "code=unforeseen", OPWIRE_TOKEN="a-token-0123456789")
        error_id = re.search("error id ([0-9a-f]+)", failed.stderr)
        assert error_id is not None
        server.says(f"error: shop.fail failed, error id {error_id[1]}")
        server.says("^Traceback")
        server.says("^ZeroDivisionError: ")
        server.says(f"http shop.fail owner EXECUTION_ERROR .* error id {error_id[1]}")
        assert server.stop() == 0


def test_with_json_every_line_of_standard_error_is_an_object() -> None:
    options = ("--http", "--port", "0", "--log-format", "json", "--open")
    with Running("serve", *SHOP, *options) as server:
        started = json.loads(server.says("^.*HTTP API at.*$"))
        assert (started["level"], started["logger"]) == ("INFO", "opwire.cli")
        address = started["message"].split()[3].rstrip(",")
        json.loads(server.says("^.*C stops.*$"))
        opwire("call", "--url", address, "shop.fail", "code=unforeseen")
        failed = json.loads(server.says("^.*traceback.*$"))
        assert failed["traceback"].startswith("Traceback (most recent call last):\n")
        entry = json.loads(server.says("^.*opwire.access.*$"))
        assert (entry["surface"], entry["operation"], entry["identity"]) == ("http", "shop.fail", "anonymous")
        assert (entry["outcome"], entry["status"]) == ("EXECUTION_ERROR", 500)
        assert failed["message"].endswith(entry["error_id"])
        assert server.stop() == 0


def test_a_generated_token_is_not_written_to_a_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *SHOP, "--http", "--port", "0", "--log-format", "json"]) == 2
    assert "set OPWIRE_TOKEN" in capsys.readouterr().err


def test_without_the_access_log_failures_are_still_printed() -> None:
    options = ("--http", "--port", "0", "--no-access-log", "--open")
    with Running("serve", *SHOP, *options) as server:
        address = server.says(r"HTTP API at ([^,\s]+)")
        opwire("call", "--url", address, "math.add", "a=1", "b=2")
        opwire("call", "--url", address, "shop.fail", "code=unforeseen")
        assert "error: shop.fail failed" in server.says(r"^.*(?:math\.add|shop\.fail).*$")
        assert server.stop() == 0
