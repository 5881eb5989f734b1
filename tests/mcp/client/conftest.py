"""Servers for the tests of MCP."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.servers.processes import ROOT, mortal


@pytest.fixture(scope="package")
def sdk_address() -> Iterator[str]:
    """The SDK's own server over HTTP, for every test that leaves it as it was."""
    command = mortal([sys.executable, "-m", "tests.mcp.client.sdk_server", "http"])
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
