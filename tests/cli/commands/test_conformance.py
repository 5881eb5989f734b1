"""`opwire conformance`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.cli.process import Running, opwire

TOKEN = "a-long-random-secret"


def test_a_hub_is_checked_and_its_promises_are_listed() -> None:
    with Running("hub", "ws://127.0.0.1:0", OPWIRE_TOKEN=TOKEN) as hub:
        url = hub.says(r"hub at (ws://[^;]+)")
        shown = opwire("conformance", url, COLUMNS="80", OPWIRE_TOKEN=TOKEN)
        as_json = opwire("conformance", url, "--only", "forged", "--json", OPWIRE_TOKEN=TOKEN)
    assert shown.returncode == 0, shown.stdout
    lines = shown.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "✓ identities cannot be forged                  peer and identity" in lines
    assert lines[-1].endswith("0 broken, 13 not checked")
    results = json.loads(as_json.stdout)
    assert [each["status"] for each in results] == ["kept", "kept"]
    assert results[0]["section"] == "peer and identity"


def test_a_broken_promise_gives_the_exit_code_1() -> None:
    with Running("conformance", "ws://127.0.0.1:0", "--listen", "--wait", "20", "--only", "hello") as kit:
        url = kit.says(r"listening at (\S+)")
        with connect(url, subprotocols=[Subprotocol("opwire.v1")]) as peer:
            peer.send('{"type":"session.who","id":1}')
            assert kit.ends() == 1


@pytest.mark.parametrize("words", [("http://127.0.0.1:1",), ("redis://127.0.0.1:1", "--listen")])
def test_another_url_is_a_usage_error(words: tuple[str, ...], tmp_path: Path) -> None:
    assert opwire("conformance", *words, cwd=tmp_path).returncode == 2


def test_it_says_how_to_install_the_checks() -> None:
    code = "import sys; sys.modules['opwire_conformance'] = None; from opwire.cli import main; sys.exit(main())"
    program = subprocess.run(
        [sys.executable, "-c", code, "conformance", "ws://127.0.0.1:1"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert program.returncode != 0
    assert "run: pip install opwire-conformance" in program.stderr
    assert "Traceback" not in program.stderr
