"""Run the ladders that are named, or all, and print their tables, and at the end a line for each.

Exit status 1 if a comparator did not run. A missed limit is printed and does not fail: machines are noisy.
"""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from benchmarks import call, execute, github, hostile, imports, scale, schemas, search
from benchmarks.http import documents
from benchmarks.http import ladder as http
from benchmarks.mcp_tools import ladder as mcp
from benchmarks.measure import NotMeasuredError, Table, in_short
from benchmarks.transports import ladder as transports

LADDERS = {
    "execute": execute.tables,
    "call": call.tables,
    "transports": transports.tables,
    "mcp": mcp.tables,
    "http": http.tables,
    "documents": documents.tables,
    "import": imports.tables,
    "schema": schemas.tables,
    "github": github.tables,
    "hostile": hostile.tables,
    "search": search.tables,
    "scale": scale.tables,
}


def main(names: list[str]) -> int:
    """Measure; the exit status."""
    unknown = set(names) - set(LADDERS)
    if unknown:
        print(f"no such ladder: {', '.join(sorted(unknown))}; there are {', '.join(LADDERS)}")
        return 2
    began = perf_counter()
    print(_machine(), end="\n\n")
    tables: list[Table] = []
    failed: list[str] = []
    for name in names or LADDERS:
        try:
            for table in LADDERS[name]():
                print(table, end="\n\n", flush=True)
                tables.append(table)
        except NotMeasuredError as error:
            failed.append(f"{name}: {error}")
    print(in_short(tables), end="\n\n")
    missed = [f"{table.title}: {row.name}" for table in tables for row in table.rows if row.reached is False]
    print(f"{perf_counter() - began:.0f} s. Limits missed: {'; '.join(missed) or 'none'}.")
    for failure in failed:
        print(f"NOT MEASURED: {failure}")
    return 1 if failed else 0


def _machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("opwire", "msgspec", "jsonschema-rs", "pydantic"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"Python {platform.python_version()}, {packages}\n{_processor()}, {os.cpu_count()} cores{load}"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
