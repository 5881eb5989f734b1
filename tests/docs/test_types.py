"""The code that readers copy passes the strictest checks of their editor."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, SNIPPETS
from tests.properties import is_thorough

ROOTS = [{"root": "snippets"}, {"root": "."}]
STRICT = {"include": ["."], "typeCheckingMode": "strict", "pythonVersion": "3.11", "executionEnvironments": ROOTS}


@pytest.mark.skipif(not is_thorough(), reason="runs with CI=true; `make check` checks snippets and examples")
def test_snippets_examples_and_the_readme_pass_pyright_in_strict_mode(tmp_path: Path) -> None:
    shutil.copytree(SNIPPETS, tmp_path / "snippets")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    readme = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "readme.py").write_text("\n".join(readme), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(STRICT), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 errors, 0 warnings" in checked.stdout
