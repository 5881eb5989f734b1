"""Loading large OpenAPI documents: time and memory, each way in a fresh process.

The clock is the processor time of that process, its memory the growth of the resident set; see `loads`. The peers run
once, since some of them take half a minute.

    python -m benchmarks.http.documents WAY PATH
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import yaml

from benchmarks.exchanges import run_peer
from benchmarks.http.loads import count_operations, measure_load
from benchmarks.measure import NotMeasuredError, Row, Table
from benchmarks.peers import ROOT
from opwire.openapi.client import from_openapi

_FOLDER = ROOT.parent / "shared" / "openapi"
_DOCUMENTS = {"GitHub's": "github_api.json", "Stripe's": "stripe_spec3.json", "OpenAI's": "openai.yaml"}
_LIMITED = "GitHub's"
_TIME, _MEMORY = 3.5, 2  # times decoding the document
_ROUNDS = 7
_PEERS = {"fastmcp": "benchmarks.peers.fastmcp_document", "utcp": "benchmarks.peers.utcp_document"}


def _decoded_json(path: Path) -> tuple[Any, int]:
    document = msgspec.json.decode(path.read_bytes())
    return document, count_operations(document)


def _decoded_yaml(path: Path) -> tuple[Any, int]:
    document = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    return document, count_operations(document)


def _listed(path: Path) -> tuple[Any, int]:
    source = from_openapi(path)
    operations = list(source)
    return (source, operations), len(operations)


def _read(path: Path) -> tuple[Any, int]:
    source = from_openapi(path)
    schemas = [(each.spec.input_schema.json, each.spec.output_schema.json) for each in source]
    return (source, schemas), len(schemas)


WAYS: dict[str, Callable[[Path], tuple[Any, int]]] = {
    "json": _decoded_json,
    "yaml": _decoded_yaml,
    "listed": _listed,
    "read": _read,
}


class _Load(NamedTuple):
    """What a load took; memory in MiB."""

    seconds: float
    mib: float
    peak: float
    operations: int
    library: list[str]


def tables() -> Iterator[Table]:
    """A table for each document that is beside this checkout."""
    for name, file in _DOCUMENTS.items():
        path = _FOLDER / file
        if path.exists():
            yield Table(f"load {name} OpenAPI document", "ms", "decode", _rows(name, path))
        else:
            print(f"{file} is not beside this checkout: loading {name} document skipped\n")


def _rows(name: str, path: Path) -> list[Row]:
    decode = "json" if path.suffix == ".json" else "yaml"
    ways = {
        decode: f"decode, {_decoder(decode)}; {path.stat().st_size / 1e6:.1f} MB",
        "listed": f"opwire {version('opwire')}: from_openapi, every operation",
        "read": "the same, and every schema of them read",
    }
    rounds = [{way: _in_a_process(way, path) for way in ways} for _ in range(_ROUNDS)]
    loads = {way: _usual([each[way] for each in rounds]) for way in ways}
    control, listed = loads[decode], loads["listed"]
    if listed.operations < control.operations:
        raise NotMeasuredError(f"opwire has {listed.operations} of {control.operations} operations of {path.name}")
    rows = [_row(label, loads[way], control) for way, label in ways.items()]
    if name == _LIMITED:
        fits = listed.seconds <= _TIME * control.seconds and listed.mib <= _MEMORY * control.mib
        rows[1] = rows[1]._replace(must_reach=f"<= {_TIME}, memory <= {_MEMORY} ×", reached=fits)
    for peer, module in _PEERS.items():
        load = _Load(**run_peer(peer, module, str(path)))
        row = _row(" ".join(load.library), load, control)
        rows.append(row._replace(must_reach="opwire ahead", reached=listed.seconds < load.seconds))
    return rows


def _decoder(decode: str) -> str:
    return f"msgspec {version('msgspec')}" if decode == "json" else f"PyYAML {version('pyyaml')}, CSafeLoader"


def _row(label: str, load: _Load, control: _Load) -> Row:
    memory = f"+{load.mib:.0f} MiB, {load.mib / control.mib:.2f} × decoded, peak {load.peak:.0f}"
    note = f"{load.operations} operations; {memory}"
    return Row(label, load.seconds * 1000, load.seconds / control.seconds, note=note)


def _usual(loads: list[_Load]) -> _Load:
    return loads[0]._replace(
        seconds=median(each.seconds for each in loads),
        mib=median(each.mib for each in loads),
        peak=median(each.peak for each in loads),
    )


def _in_a_process(way: str, path: Path) -> _Load:
    command = [sys.executable, "-m", "benchmarks.http.documents", way, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(f"{way} of {path.name}: {done.stderr.strip()[-500:]}")
    return _Load(**json.loads(done.stdout))


if __name__ == "__main__":
    measure_load(WAYS[sys.argv[1]])
