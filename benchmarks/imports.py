"""`import opwire` in fresh processes, against bare Python, its parts, and the peers in their environments.

As in `measure`, the clock is processor time: that of the fresh process.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.measure import NotMeasuredError, Row, Table
from benchmarks.peers import ROOT, python_of

_ROUNDS = 11
_LIMIT = 130  # ms over bare Python


class _Import(NamedTuple):
    name: str
    python: str
    statement: str
    limit: int | None = None


def tables() -> Iterator[Table]:
    """One table; each import is compared with bare Python of the same environment."""
    here = sys.executable
    parts = "import asyncio, msgspec, jsonschema_rs"
    yield Table(
        "import, over bare Python of the same environment",
        "ms",
        "parts",
        _rows(
            [
                _Import(parts, here, parts),
                _Import("import opwire", here, "import opwire", _LIMIT),
                _Import("import opwire.protocol, opwire.transports.memory", here, "import opwire.transports.memory"),
                _Import("import pydantic_ai", python_of("pydantic-ai"), "import pydantic_ai"),
                _Import("import fastmcp", python_of("fastmcp"), "import fastmcp"),
            ]
        ),
    )


def _rows(imports: list[_Import]) -> list[Row]:
    pythons = list(dict.fromkeys(each.python for each in imports))
    times: dict[tuple[str, str], list[float]] = {
        (python, statement): [] for python in pythons for statement in _statements(python, imports)
    }
    with TemporaryDirectory() as compiled:
        for _ in range(1 + _ROUNDS):  # in the first one the bytecode is made
            for (python, statement), taken in times.items():
                taken.append(_milliseconds(python, statement, compiled))
    usual = {key: median(taken[1:]) for key, taken in times.items()}
    over = [usual[each.python, each.statement] - usual[each.python, "pass"] for each in imports]
    rows = [Row("(bare Python itself)", usual[imports[0].python, "pass"])]
    for each, amount in zip(imports, over, strict=True):
        reached = None if each.limit is None else amount <= each.limit
        rows.append(Row(each.name, amount, amount / over[0], f"<= {each.limit} ms" if each.limit else "", reached))
    return rows


def _statements(python: str, imports: list[_Import]) -> list[str]:
    return ["pass", *(each.statement for each in imports if each.python == python)]


def _milliseconds(python: str, statement: str, compiled: str) -> float:
    """The time of a process. Bytecode is kept in a folder of its own, regardless of the user's settings."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    settings["PYTHONPYCACHEPREFIX"] = compiled
    began = _processor_time()
    done = subprocess.run([python, "-c", statement], cwd=ROOT, env=settings, capture_output=True, check=False)
    elapsed = (_processor_time() - began) * 1000
    if done.returncode:
        raise NotMeasuredError(f"{statement!r} failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return elapsed


def _processor_time() -> float:
    """Seconds that all child processes so far have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
