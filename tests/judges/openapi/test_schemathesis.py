"""Schemathesis sends what the document allows and what it forbids, and looks whether the answers are as promised."""

import json
import os
import sys
from pathlib import Path

from tests.judges.openapi.conftest import TOKEN, Served
from tests.judges.programs import python_program
from tests.judges.serving import Finished, finished

CONFIG = Path(__file__).parent / "schemathesis.toml"
# It keeps what it wants to remember in the folder where it runs.
ENTER = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"


async def verdict(document: Path, address: str, *options: str) -> Finished:
    """What schemathesis says of a server: all of its checks, with a fixed seed."""
    program = [python_program("schemathesis"), "--config-file", str(CONFIG), "run", str(document), "--url", address]
    quiet = ["--no-color", "--generation-database", ":memory:"]
    command = [sys.executable, "-c", ENTER, str(document.parent), *program, *quiet, *options]
    return await finished(command, {**os.environ, "SHOP_TOKEN": TOKEN})


async def test_schemathesis_finds_no_failure(served: Served) -> None:
    """Schemathesis, with all of its checks, finds no failure in a served registry."""
    found = await verdict(served.document, served.address)
    assert found.code == 0, found.output
    assert "Tested: 42" in found.output
    assert "No issues found" in found.output


async def test_schemathesis_is_awake(served: Served, tmp_path: Path) -> None:
    document = json.loads(served.document.read_bytes())
    content = document["paths"]["/shop/add"]["get"]["responses"]["200"]["content"]
    content["application/json"]["schema"] = {"type": "string"}
    (tmp_path / "lie.json").write_text(json.dumps(document))
    found = await verdict(tmp_path / "lie.json", served.address, "--include-path", "/shop/add")
    assert found.code == 1
    assert "Response violates schema" in found.output
