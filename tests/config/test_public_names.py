"""What `opwire.config` exports, and what it costs."""

import subprocess
import sys

import pytest

import opwire.config


def test_every_public_name_is_there() -> None:
    assert {name for name in opwire.config.__all__ if not hasattr(opwire.config, name)} == set()
    assert len(opwire.config.__all__) == len(set(opwire.config.__all__))


def test_other_names_are_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'lode_config'"):
        opwire.config.lode_config  # noqa: B018


def test_reading_a_file_loads_no_optional_package_nor_what_only_serving_needs() -> None:
    code = "import sys, opwire.config; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    heavy = {
        "mcp",
        "aiohttp",
        "yaml",
        "starlette",
        "uvicorn",
        "jwt",
        "urllib.request",
        "opwire.hub",
        "opwire.asgi",
        "opwire.mcp.server",
    }
    heavy |= {"opwire.openapi.server", "opwire.console"}
    assert heavy.intersection(loaded) == set()
