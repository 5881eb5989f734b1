"""The tests of `test_everything.py` over the transports on which its server listens on all interfaces.

They run in networks of their own, each server together with its client.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.judges.mcp.everything import TRANSPORT
from tests.judges.network import alone, refusal
from tests.judges.serving import finished
from tests.servers.processes import mortal

TESTS = Path(__file__).with_name("test_everything.py")


async def test_everything_is_the_same_over_streamable_http_and_sse(tmp_path: Path) -> None:
    if reason := refusal():
        pytest.skip(reason)

    async def run(transport: str) -> str:
        tests = ["-m", "pytest", str(TESTS), "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / transport}"]
        command = alone(mortal([sys.executable, *tests]))
        return (await finished(command, {**os.environ, TRANSPORT: transport})).output

    for printed in await asyncio.gather(run("streamableHttp"), run("sse")):
        assert f"{TESTS.read_text().count('async def test_')} passed in" in printed, printed
