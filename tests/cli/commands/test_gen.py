"""`opwire gen client`."""

from pathlib import Path

import pytest

from opwire.cli.program import run
from tests.cli.process import SHOP


def test_a_module_is_written_that_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typed client of the operations is written as a module that compiles."""
    module = tmp_path / "shop_client.py"
    assert run(["gen", "client", *SHOP, "-n", "math", "--class-name", "Shop", "-o", str(module)]) == 0
    assert "1 operation" in capsys.readouterr().err
    code = module.read_text()
    compile(code, "shop_client.py", "exec")
    assert "class Shop" in code
    assert "def add" in code
    assert "def order" not in code
    assert run(["gen", "client", *SHOP]) == 0
    assert "def order" in capsys.readouterr().out
    assert run(["gen", "client", *SHOP, "-n", "shop", "-n", "shp"]) == 2
    assert "unknown namespace 'shp'; did you mean shop?" in capsys.readouterr().err
    assert run(["gen", "client", *SHOP, "-o", str(tmp_path / "nowhere" / "x.py")]) == 2
