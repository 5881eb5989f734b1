"""Compiling all component schemas of GitHub's OpenAPI document: time and memory, each way in a fresh process."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import jsonschema_rs

from benchmarks.measure import NotMeasuredError, Row, Table, compared
from benchmarks.peers import ROOT
from opwire import Schema
from opwire.schema.dialect import lower

_DOCUMENT = ROOT.parent / "shared" / "openapi" / "github_api.json"
_PREFIX = "#/components/schemas/"
_ROUNDS = 3


def _prepared(schemas: list[dict[str, Any]]) -> list[Any]:
    return [lower(schema, "openapi-3.0") for schema in schemas]


def _kept(schemas: list[dict[str, Any]]) -> list[Any]:
    return schemas


def _validators(schemas: list[Any]) -> list[Any]:
    return [jsonschema_rs.validator_for(schema, offline=True, ignore_unknown_formats=True) for schema in schemas]


def _made(schemas: list[Any]) -> list[Any]:
    return [Schema(schema, dialect="openapi-3.0") for schema in schemas]


def _compiled(schemas: list[Any]) -> list[Any]:
    return [schema.compile() for schema in _made(schemas)]


def _fitting(schemas: list[Any]) -> list[Any]:
    made = _made(schemas)
    return [(schema, schema.conformity(strip=True)) for schema in made]


WAYS: dict[str, tuple[Callable[[list[dict[str, Any]]], list[Any]], Callable[[list[Any]], list[Any]]]] = {
    "jsonschema-rs validator_for, dialect lowered before": (_prepared, _validators),
    "Schema(...): nothing is compiled": (_kept, _made),
    "Schema.compile(), lowering included": (_kept, _compiled),
    "compile() and conformity(), as `fit` needs them": (_kept, _fitting),
}
"""Each way: what is done before the timed part, and the timed part."""


def tables() -> Iterator[Table]:
    """One table, where the document is beside this checkout."""
    if not _DOCUMENT.exists():
        print(f"{_DOCUMENT.name} is not beside this checkout: compile time of GitHub's schemas skipped\n")
        return
    rounds = [{way: _in_a_process(way) for way in WAYS} for _ in range(_ROUNDS)]
    usual = {way: sorted((each[way] for each in rounds), key=lambda each: each["ms"])[_ROUNDS // 2] for way in WAYS}
    control, *_ = usual.values()
    rows: list[Row] = []
    for way, measured in usual.items():
        note = f"+{measured['mib']:.0f} MiB" if measured["mib"] >= 0 else ""
        rows.append(compared(way, measured["ms"], control["ms"], note=note))
    yield Table(f"compile GitHub's {control['schemas']:.0f} component schemas", "ms", "first", rows)


def _in_a_process(way: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.github", way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(f"{way}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def _measure(way: str) -> dict[str, float]:
    prepare, work = WAYS[way]
    prepared = prepare(_component_schemas())
    gc.collect()
    before = _resident()
    began = process_time()
    made = work(prepared)
    seconds = process_time() - began
    if len(made) != len(prepared):
        raise NotMeasuredError(f"{way}: {len(made)} of {len(prepared)}")
    return {"ms": seconds * 1000, "mib": _resident() - before, "schemas": len(made)}


def _component_schemas() -> list[dict[str, Any]]:
    """Each component as a schema of its own, with the components that it needs."""
    components = json.loads(_DOCUMENT.read_bytes())["components"]["schemas"]
    needs = {name: set(_references(schema)) for name, schema in components.items()}
    schemas: list[dict[str, Any]] = []
    for name in components:
        needed, found = {name}, {name}
        while found:
            found = set().union(*(needs[each] for each in found)) - needed
            needed |= found
        inside = {each: components[each] for each in sorted(needed)}
        schemas.append({"$ref": f"{_PREFIX}{name}", "components": {"schemas": inside}})
    return schemas


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for each in node:
            yield from _references(each)
    elif isinstance(node, str) and node.startswith(_PREFIX):
        yield node.removeprefix(_PREFIX).partition("/")[0]


def _resident() -> float:
    """MiB of memory in use; 0 where the system does not tell it this way."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1])))
