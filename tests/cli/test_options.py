"""Options that commands share, and what a shell can complete."""

import os
import subprocess
from pathlib import Path

import pytest

from opwire.cli.program import run
from opwire.cli.sources import Sources, cache_ids
from tests.cli.process import COMMAND, ROOT, SHOP
from tests.cli.shop import registry


@pytest.mark.parametrize("pair", [("--json", "--raw"), ("--envelope", "--raw"), ("--json", "--envelope")])
def test_a_result_has_one_form(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["call", *SHOP, *pair, "math.add", "a=1", "b=2"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def completed(*words: str) -> list[str]:
    """What bash would offer for the last word."""
    env = {
        "_OPWIRE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["opwire", *words]),
        "COMP_CWORD": str(len(words)),
    }
    ended = subprocess.run(
        COMMAND, capture_output=True, text=True, env={**os.environ, **env}, cwd=ROOT, check=False, timeout=30
    )
    assert ended.stderr == ""
    return [line.partition(",")[2] for line in ended.stdout.splitlines() if line]


def test_commands_and_ids_are_completed() -> None:
    assert completed("d") == ["describe", "doctor", "demo"]
    assert completed("call", *SHOP, "shop.t") == ["shop.text", "shop.tool"]
    assert completed("watch", *SHOP, "c") == ["clock.ticks"]
    assert completed("call", *SHOP, "c") == []


def test_ids_of_servers_are_those_of_the_last_time_and_nothing_is_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = f"touch {started}"
    assert completed("describe", "--mcp", f"'{program}'", "shop.") == []
    cache_ids(Sources(mcp=(program,)).key, registry.list())
    assert completed("describe", "--mcp", f"'{program}'", "shop.b") == ["shop.bytes"]
    assert not started.exists()


def test_what_cannot_be_loaded_completes_to_nothing() -> None:
    assert completed("call", "--python", "nowhere:registry", "x") == []
    assert completed("call", "-c", "nowhere.toml", "x") == []
