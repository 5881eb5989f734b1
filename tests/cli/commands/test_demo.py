"""`opwire demo`; the story itself has its own tests."""

import sys

import pytest

from opwire.cli.program import run


@pytest.mark.parametrize("package", ["starlette.applications", "aiohttp"])
def test_without_its_packages_the_demo_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo loads three sources, calls, composes, streams, fails, and is called back through both surfaces."""
    for name in [
        name
        for name in sys.modules
        if name.startswith(("opwire.cli.demo_", "opwire.mcp.client", "opwire.openapi.client"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert run(["demo"]) == 2
    assert "pip install 'opwire[demo]'" in capsys.readouterr().err
