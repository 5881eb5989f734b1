"""The shape of the repository: mirrored tests, small modules, nothing that belongs to one machine."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from opwire.version import VERSION

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "opwire"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
GENERATED = re.compile(
    r"(\.git|\.venv.*|\..*_cache|\.hypothesis|\.coverage.*|__pycache__|.*\.egg-info|mutants|dist|build|node_modules)"
)
# Written so that the patterns do not match themselves.
PRIVATE_PLACES = re.compile(
    r"(?<![\w.~$})-])/(?:home|root|Users|work|mnt)/\w"  # a folder of a machine
    r"|\b[A-Z]:\\Users\\"
    r"|https?://[^\s\"'<>)]*/simple(?![\w-])"  # a package index
    r"|--(?:extra-)?index-url|--find-link[s]"
)
FUNCTION_LINES = 60


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def repository_files(folder: Path = ROOT) -> Iterator[Path]:
    """Every file that is not generated; git is not asked, since an export of the tree has none."""
    for path in sorted(folder.iterdir()):
        if GENERATED.fullmatch(path.name):
            continue
        if path.is_dir():
            yield from repository_files(path)
        else:
            yield path


def test_the_conformance_kit_has_the_version_of_opwire() -> None:
    project = tomllib.loads((ROOT / "conformance" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION
    assert project["dependencies"] == [f"opwire[websocket]=={VERSION}"]


def test_every_package_has_tests_at_the_same_place() -> None:
    packages = {module.relative_to(PACKAGE).parent for module in MODULES}
    assert {str(each) for each in packages if not list((ROOT / "tests" / each).glob("test_*.py"))} == set()


def test_the_body_of_a_function_has_at_most_sixty_lines() -> None:
    long_functions = [
        f"{relative(module)}:{node.name}"
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > FUNCTION_LINES
    ]
    assert long_functions == []


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines after the docstring: the options of a public function and their documentation are no code."""
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def test_the_map_of_modules_is_complete() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\|([^|]+)\|", text, re.MULTILINE))))
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {each for each in modules if not each.startswith("__")} - named == set()


def test_no_module_has_a_name_that_says_nothing() -> None:
    """No module or folder is called utils, common, core or base."""
    names = {part for module in PACKAGE.rglob("*.py") for part in module.relative_to(PACKAGE).with_suffix("").parts}
    assert names & {"utils", "util", "common", "core", "base", "helpers", "misc"} == set()


def test_importing_opwire_loads_its_two_dependencies_and_nothing_else_that_is_installed() -> None:
    # Counted from where the two are loaded: msgspec itself takes typing_extensions when it finds it.
    report = (
        "import sys, msgspec, jsonschema_rs; bare = set(sys.modules); import opwire; print(*set(sys.modules) - bare)"
    )
    loaded = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - sys.stdlib_module_names == {"opwire"}


def test_no_file_names_a_folder_of_a_machine_or_a_package_index() -> None:
    found: list[str] = []
    for path in repository_files():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [f"{relative(path)}:{number}" for number, line in enumerate(lines, 1) if PRIVATE_PLACES.search(line)]
    assert found == []


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("see {}home/ann/project", True),
        ("cd {}root/x", True),
        ("'{}work/main'", True),
        ("https://index.example{}simple", True),
        ("https://index.example{}simple/", True),
        ("GET https://api.example{}home/feed", False),
        ("https://docs.example{}simple-forms", False),
        ("$HOME{}work/here", False),
        ("a/b{}work/c", False),
        ("the path {}repos/octocat", False),
    ],
)
def test_private_places_are_distinguished_from_ordinary_paths(line: str, private: bool) -> None:
    assert bool(PRIVATE_PLACES.search(line.format("/"))) is private


def test_the_help_of_the_makefile_lists_every_command() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert phony is not None
    help_text = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[1] for line in help_text.splitlines()] == phony[1].split()


def test_requirements_are_names_and_exact_versions_only() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines, path.name
        assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+( ; [^@#]+)?", line)] == [], path.name
