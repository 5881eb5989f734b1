"""Logs go to `opwire` and what is below it. Handlers and the root logger belong to the program that uses opwire."""

import ast
import logging
from pathlib import Path

import opwire

PACKAGE = Path(opwire.__file__).parent


def test_every_logger_is_below_opwire_and_the_root_logger_is_unused() -> None:
    wrong: list[str] = []
    for path in {*PACKAGE.rglob("*.py")} - {PACKAGE / "runtime/text.py"}:  # where `get_logger` is
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
                good = name.partition(".")[0] == "opwire"
            else:
                of_the_root = called.startswith("logging.") and callable(getattr(logging, node.func.attr, None))
                good = not (of_the_root and node.func.attr in {*_LEVELS, "basicConfig", "captureWarnings", "disable"})
            if not good:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {called}")
    assert wrong == []


_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
