"""Prove that a part of opwire can be removed by deleting it: `make removable`.

For each part, delete it in a copy of the repository together with the parts that need it and the tests that use one of
them; then import every module that remains, and collect the tests that remain. At last, delete every part and run the
tests of the core.

A part is a package that the layers of pyproject.toml have in parentheses, or one of `PARTS_OF_PACKAGES`. It needs
another one if it imports it when it is imported itself; an import in a function is of an optional feature. The table in
docs/adr/0059-parts-can-be-removed.md has what each part needs, and `tests/test_removable.py` compares the two.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS_OF_PACKAGES = {
    "cli.demo": ["cli/demo_story", "cli/demo_warehouse"],
    "client.codegen": ["client/codegen", "client/codegen_types"],
    "durable.streams": ["durable/streams"],
    "hub.cluster": ["hub/cluster"],
    "openapi.webhooks": ["openapi/webhooks"],
    "policies.cache": ["policies/cache"],
}
TESTS_OF_THE_REPOSITORY = ["docs", "judges", "proxy"]
"""Folders of tests that read the documentation, or run programs that need most of opwire."""

IMPORT_ALL = """
import importlib, pkgutil, sys
import opwire
assert opwire.__file__.startswith(sys.argv[1]), opwire.__file__
for module in pkgutil.walk_packages(opwire.__path__, "opwire."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def parts(root: Path = ROOT) -> list[str]:
    """Return the parts, packages in the order of the layers, the highest first."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = [contract for contract in pyproject["tool"]["importlinter"]["contracts"] if contract["id"] == "layers"]
    optional_layers = [name for layer in contract["layers"] for name in re.findall(r"\((\w+)\)", layer)]
    return [name for name in optional_layers if name != "__main__"] + list(PARTS_OF_PACKAGES)


def paths_of(part: str) -> list[str]:
    """Return the modules and packages of a part, as paths without a suffix."""
    return ["cli", "__main__"] if part == "cli" else PARTS_OF_PACKAGES.get(part, [part])


def part_of(module: str, all_parts: Iterable[str]) -> str | None:
    """Return the part that a module is in, the smallest if it is in two; None for a module of the core."""
    path = module.removeprefix("opwire.").replace(".", "/")
    containing = [
        part for part in all_parts if any(path == name or path.startswith(f"{name}/") for name in paths_of(part))
    ]
    return max(containing, key=len, default=None)


def imported_modules(path: Path, *, in_functions: bool) -> Iterator[str]:
    """Yield the names that a file imports: modules, and names in them, which may be modules."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements: list[ast.AST] = [tree]
    while statements:
        node = statements.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not in_functions:
            statements += node.orelse
        elif in_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            statements += ast.iter_child_nodes(node)


def needs(root: Path = ROOT) -> dict[str, set[str]]:
    """Return what each part needs, by its imports; the key "core" is what the core needs, which must be nothing."""
    all_parts = parts(root)
    package = root / "src" / "opwire"
    needed: dict[str, set[str]] = {part: set() for part in [*all_parts, "core"]}
    for path in package.rglob("*.py"):
        module = "opwire." + path.relative_to(package).with_suffix("").as_posix().replace("/", ".")
        importer = part_of(module, all_parts) or "core"
        for name in imported_modules(path, in_functions=False):
            imported = part_of(name, all_parts) if name.startswith("opwire.") else None
            if imported is not None and imported != importer:
                needed[importer].add(imported)
    for part in PARTS_OF_PACKAGES:  # that a part needs its own package is clear
        needed[part].discard(part.partition(".")[0])
    return needed


def with_dependents(part: str, needed: Mapping[str, set[str]]) -> set[str]:
    """Return a part, all parts that cannot do without it, and the parts that are inside of one of these."""
    removed = {part}
    while True:
        dependents = {name for name in needed if needed[name] & removed or name.partition(".")[0] in removed}
        if dependents <= removed:
            return removed
        removed |= dependents


def lazy_names(root: Path = ROOT) -> dict[str, str]:
    """Return the modules behind the names that `opwire` imports on first access."""
    tree = ast.parse((root / "src" / "opwire" / "__init__.py").read_text(encoding="utf-8"))
    [names] = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAZY"
    ]
    return {f"opwire.{name}": module for name, module in ast.literal_eval(names).items()}


def parts_of_tests(root: Path = ROOT) -> dict[Path, set[str]]:
    """Return the parts that each file of the tests uses, itself or through the helpers that it imports."""
    all_parts, lazy = parts(root), lazy_names(root)
    files = sorted(path for path in (root / "tests").rglob("*.py") if "node_modules" not in path.parts)
    module_files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files
    }
    used: dict[Path, set[str]] = {}
    helpers: dict[Path, set[Path]] = {}
    for path in files:
        imported = set(imported_modules(path, in_functions=True))
        imported_parts = {part_of(lazy.get(name, name), all_parts) for name in imported if name.startswith("opwire.")}
        used[path] = {part for part in imported_parts if part is not None}
        if any(name.startswith("opwire_conformance") for name in imported):
            used[path] |= {"protocol", "transports", "durable"}
        helpers[path] = {module_files[name] for name in imported if name in module_files}
        helpers[path] |= {
            conftest for folder in path.parents if (conftest := folder / "conftest.py") in module_files.values()
        }
    while True:
        grown = {path: used[path].union(*(used[helper] for helper in helpers[path])) for path in files}
        if grown == used:
            return used
        used = grown


def copy_without(removed: set[str], folder: Path) -> None:
    """Copy what importing and testing need, and delete the parts and the tests that use them."""
    for name in ("src", "tests", "conformance"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules", "static"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    for path in (folder / "src" / "opwire" / name for part in removed for name in paths_of(part)):
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".py").unlink(missing_ok=True)
    for name in TESTS_OF_THE_REPOSITORY:
        shutil.rmtree(folder / "tests" / name)
    for test, used in parts_of_tests().items():
        if used & removed:
            (folder / test.relative_to(ROOT)).unlink(missing_ok=True)


def run_in(folder: Path, *arguments: str) -> str:
    """Run Python in a copy, and return the last line that it printed.

    Raises:
        AssertionError: the program failed; the message is the end of its output.
    """
    search_path = os.pathsep.join(str(folder / name) for name in ("src", "conformance/src"))
    program = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if program.returncode != 0:
        last_lines = f"{program.stdout}\n{program.stderr}".splitlines()[-30:]
        raise AssertionError("\n".join(last_lines))
    return program.stdout.strip().rpartition("\n")[2]


def check_without(removed: set[str]) -> str:
    """Import every module and collect every test that remain without some parts; return how many there are."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_without(removed, folder)
        run_in(folder, "-c", IMPORT_ALL, str(folder))
        run_in(folder, "-m", "pytest", "-qq", "--collect-only", "-p", "no:cacheprovider", "tests")
        modules = len([*(folder / "src").rglob("*.py")])
        return f"{modules} modules and {len([*(folder / 'tests').rglob('test_*.py')])} files of tests remain"


def check_core() -> str:
    """Delete every part, and run the tests of what is left; return the summary."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_without(set(parts()), folder)
        run_in(folder, "-c", IMPORT_ALL, str(folder))
        packages = [
            path.name for path in (folder / "src" / "opwire").iterdir() if (folder / "tests" / path.name).is_dir()
        ]
        return run_in(
            folder, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", *(f"tests/{name}" for name in packages)
        )


def main(chosen_parts: Sequence[str]) -> int:
    """Check the parts with these names, or all parts and the core; return 1 if one of them cannot be removed."""
    needed = needs()
    alternatives: dict[frozenset[str], list[str]] = {}
    for part in chosen_parts or parts():
        alternatives.setdefault(frozenset(with_dependents(part, needed)), []).append(part)
    failed = False
    with ThreadPoolExecutor(max_workers=2) as executor:
        checks = {executor.submit(check_without, set(removed)): removed for removed in alternatives}
        for check in as_completed(checks):
            removed = checks[check]
            title = f"without {', '.join(alternatives[removed])}"
            if others := removed - {*alternatives[removed]}:
                title += f", and with it {', '.join(sorted(others))}"
            try:
                print(f"{title}: {check.result()}", flush=True)
            except AssertionError as error:
                failed = True
                print(f"{title}: FAILED\n{error}", flush=True)
    if not chosen_parts:
        try:
            print(f"the core alone: {check_core()}")
        except AssertionError as error:
            failed = True
            print(f"the core alone: FAILED\n{error}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
