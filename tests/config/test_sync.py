"""`opwire.SyncClient` opens a configuration file."""

import subprocess
import sys
from pathlib import Path

import pytest

from opwire import SyncClient
from opwire.errors import ConfigError, UsageError


def test_a_script_needs_no_with_block_and_closes_its_sources_at_exit(tmp_path: Path) -> None:
    """SyncClient takes a configuration file, and calls the operations of its sources."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "opwire.toml").write_text(CONFIG, encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.splitlines() == ["3", "end of the script", "closed"]
    assert "the source gone cannot be loaded" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 0


SHOP = """
from collections.abc import AsyncIterator

from opwire import OperationRegistry

registry = OperationRegistry(namespace="shop")


@registry.query
async def add(a: int, b: int) -> int:
    return a + b


@registry.subscription
async def open() -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        print("closed")
"""
CONFIG = """
[sources.shop]
python = "shop:registry"

[sources.gone]
openapi = "gone.yaml"
"""
SCRIPT = """
from opwire import SyncClient

client = SyncClient("opwire.toml")
print(client.call("shop.add", {"a": 1, "b": 2}))
items = client.subscribe("shop.open")
next(items)
print("end of the script")
"""


def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        SyncClient(tmp_path / "missing.toml").start()
    with pytest.raises(UsageError, match=r"ends in \.toml"):
        SyncClient(tmp_path / "opwire.json").start()
