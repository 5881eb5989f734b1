"""Logs go to `opwire` and what is below it. Handlers and the root logger belong to the program that uses opwire."""

import ast
import logging
import subprocess
import sys
from pathlib import Path

import opwire

PACKAGE = Path(opwire.__file__).parent

WALK = """
import importlib, logging, pkgutil, sys
import opwire
root = logging.getLogger()
before = (list(root.handlers), root.level, root.disabled, list(root.filters))
for module in pkgutil.walk_packages(opwire.__path__, "opwire."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            print("not importable:", module.name, error, file=sys.stderr)
ours = {name: logger for name, logger in root.manager.loggerDict.items() if name.partition(".")[0] == "opwire"}
loggers = [logger for logger in ours.values() if isinstance(logger, logging.Logger)]
print(len(loggers) > 10)
print((list(root.handlers), root.level, root.disabled, list(root.filters)) == before)
print([logger.name for logger in loggers if any(not isinstance(h, logging.NullHandler) for h in logger.handlers)])
print([logger.name for logger in loggers if not logger.propagate or logger.level or logger.disabled])
"""


def test_importing_everything_adds_no_handler_and_leaves_the_root_logger_alone() -> None:
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["True", "True", "[]", "[]"], done.stderr


def test_every_logger_is_below_opwire_and_the_root_logger_is_unused() -> None:
    wrong: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        if "logging" not in (source := path.read_text(encoding="utf-8")):
            continue
        filtered: list[ast.AST] = []  # loggers of others, of which lines are left out while a surface listens
        for node in ast.walk(ast.parse(source)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)) or node in filtered:
                continue
            if node.func.attr in ("addFilter", "removeFilter"):  # met before what it is called on
                filtered.append(node.func.value)
            called = ast.unparse(node.func)
            if called == "logging.getLogger":
                name = ast.unparse(node.args[0]).strip("'\"") if node.args else ""
                good = name == "__name__" or name.partition(".")[0] == "opwire"
            else:
                of_the_root = called.startswith("logging.") and callable(getattr(logging, node.func.attr, None))
                good = not (of_the_root and node.func.attr in {*_LEVELS, "basicConfig", "captureWarnings", "disable"})
            if not good:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {called}")
    assert wrong == []


_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
