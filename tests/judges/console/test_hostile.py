"""Schemas and results of hostile servers, drawn by the functions of the page."""

import json
import shutil
from pathlib import Path

import pytest

from tests.judges.programs import npm_environment
from tests.judges.serving import finished
from tests.servers.processes import ROOT

SOURCES = ROOT / "console"


async def test_schemas_without_end_and_values_of_wrong_types_are_drawn_and_no_script_becomes_a_link() -> None:
    if shutil.which("node") is None or not (SOURCES / "node_modules" / ".bin" / "vite").exists():
        pytest.skip("console/node_modules is missing: run `make judges`")
    program = Path(__file__).with_name("hostile.mjs")
    result = await finished(["node", str(program), str(SOURCES)], npm_environment())
    assert result.code == 0, result.complaints
    found = json.loads(result.output)
    assert found.pop("addresses") == [None] * 7
    assert found.pop("hidden") == "a⟨202E⟩b⟨E0041⟩⟨E007F⟩c 👍"
    assert len(found) == 10
    assert set(found.values()) == {"drawn"}, found
