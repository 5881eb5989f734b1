"""The page that is committed is the page that its sources build."""

import gzip
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.judges.programs import npm_environment
from tests.judges.serving import finished
from tests.servers.processes import ROOT

SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "opwire" / "console" / "static"
MAX_COMPRESSED = 350_000


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by their path in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_the_committed_files_are_what_the_sources_build() -> None:
    if shutil.which("npm") is None or not (SOURCES / "node_modules" / ".bin" / "vite").exists():
        pytest.skip("console/node_modules is missing: run `make judges`")
    with tempfile.TemporaryDirectory() as target:
        build = ["npm", "run", "--prefix", str(SOURCES), "build", "--", "--outDir", target, "--emptyOutDir"]
        result = await finished(build, npm_environment())
        assert result.code == 0, result.complaints
        assert contents(Path(target)) == contents(BUILT), "run `make console` and commit what it writes"


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    """The page is at most 350 kB compressed, without inline scripts, styles and foreign addresses."""
    files = {name: body for name, body in contents(BUILT).items() if name != "licenses.md"}
    assert sum(len(gzip.compress(body, 9)) for body in files.values()) <= MAX_COMPRESSED
    page = files["index.html"].decode()
    assert "<script>" not in page
    assert "style=" not in page
    assert "http://" not in page
    assert "https://" not in page
