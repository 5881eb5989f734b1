"""Search 3,437 operations of nine documents: time and recall, beside a scan for every word, fastmcp and bm25s.

    .venv-bench/bin/python -m benchmarks search
    .venv-bench/bin/python -m benchmarks.search        # cross-validate the weights, half a minute

The documents and 110 requests with their right operations are in `../shared` beside the checkout, further requests
in `search_requests.tsv`: a request, and the ids that are right.
"""

import json
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, NamedTuple

from benchmarks.measure import NotMeasuredError, Row, Table
from benchmarks.peers import ROOT, python_of
from opwire import OperationRegistry, OperationSpec
from opwire.agents.search_mode import search_mode, signature, token_cost
from opwire.agents.tools import input_schema
from opwire.openapi.client import from_openapi
from opwire.registry.search import SearchIndex, SearchWeights

_SHARED = ROOT.parent / "shared"
_REQUESTS = _SHARED / "search" / "queries-dev.json"
_FURTHER_REQUESTS = Path(__file__).with_name("search_requests.tsv")
_DEPTH = 10
_SHOWN = 5  # operations of a search by a model
_LIMIT = 5.0  # ms per request
_PATIENCE = 300  # seconds
_GRID = {
    "description": (0.15, 0.25, 0.4),
    "synonym": (0.45, 0.6, 0.75),
    "coverage": (0.5, 0.8, 1.1),
    "intent": (0.1, 0.15, 0.25),
}
_SPLITS = 200


class Request(NamedTuple):
    """A request in plain words, and the ids that are right."""

    text: str
    right: frozenset[str]


def tables() -> Iterator[Table]:
    """One table, where the requests are beside this checkout."""
    if not _REQUESTS.exists():
        print(f"{_REQUESTS.name} is not beside this checkout: search skipped\n")
        return
    specs, requests = _load()
    began = process_time()
    index = SearchIndex(specs)
    built = 1000 * (process_time() - began)
    rows: list[Row] = [
        _row("every word, by a scan", *_timed(lambda text: _scan(specs, text), requests), requests),
        _row("registry.search", *_timed(lambda text: _ids(index.find(text, _DEPTH)), requests), requests, limit=_LIMIT),
    ]
    fastmcp, bm25s = _peer("fastmcp", specs, requests), _peer("bm25s", specs, requests)
    rows.append(_row(f"fastmcp {fastmcp['version']}: BM25", fastmcp["ms"], fastmcp["found"], requests))
    rows.append(_row(f"bm25s {bm25s['version']}, split and stemmed", bm25s["ms"], bm25s["found"], requests))
    lines = [len("\n".join(map(signature, index.find(request.text, _SHOWN)))) for request in requests]
    costs = {"search mode": (sum(map(token_cost, _mode(specs).list())), mean(lines) / 4)}
    costs[f"fastmcp {fastmcp['version']}: BM25"] = (fastmcp["listed"], fastmcp["result"])
    scan, *_ = rows
    rows = [row._replace(ratio=row.amount / scan.amount) for row in rows]
    yield Table(f"search {len(specs):,} operations (index: {built:.0f} ms)", "ms", "scan", rows)
    whole = sum(map(token_cost, specs))
    tokens = [Row("every operation is a tool", whole, 1.0)]
    for name, (listed, result) in costs.items():
        tokens.append(Row(name, listed, listed / whole, note=f"a search of {_SHOWN} returns {result:,.0f}"))
    yield Table(f"tokens of the definitions of {len(specs):,} operations", "tokens", "all", tokens)


def _load() -> tuple[list[OperationSpec], list[Request]]:
    given = json.loads(_REQUESTS.read_bytes())
    specs = [
        operation.spec
        for namespace, name in given["corpus"].items()
        for operation in from_openapi(_SHARED / "openapi" / name, namespace=namespace)
    ]
    requests: list[Request] = []
    for query in given["queries"]:
        right: set[str] = set()
        for each in query["relevant"]:
            path = "_".join("".join(c if c.isalnum() else " " for c in each["path"]).split())
            right |= {each["id"], f"{each['id']}_stream", f"{each['namespace']}.{each['method'].lower()}_{path}"}
        requests.append(Request(query["query"], frozenset(right)))
    for line in _FURTHER_REQUESTS.read_text(encoding="utf-8").splitlines():
        text, _, ids = line.partition("\t")
        requests.append(Request(text, frozenset(form for id in ids.split() for form in (id, f"{id}_stream"))))
    return specs, requests


def _mode(specs: Sequence[OperationSpec]) -> OperationRegistry:
    registry = OperationRegistry()
    for spec in specs:
        registry.register(spec)
    return search_mode(registry)


def _timed(find: Callable[[str], list[str]], requests: Sequence[Request]) -> tuple[float, list[list[str]]]:
    find("warm up")
    began = process_time()
    found = [find(request.text) for request in requests]
    return 1000 * (process_time() - began) / len(requests), found


def _scan(specs: Sequence[OperationSpec], text: str) -> list[str]:
    words = text.lower().split()
    texts = ((spec.id, f"{spec.id} {spec.title} {spec.description}".lower()) for spec in specs)
    return [id for id, text in texts if all(word in text for word in words)][:_DEPTH]


def _ids(specs: Sequence[OperationSpec]) -> list[str]:
    return [spec.id for spec in specs]


def _rank(found: Sequence[str], request: Request) -> int:
    return next((at for at, id in enumerate(found, 1) if id in request.right), 0)


def _recall(ranks: Sequence[int], depth: int) -> float:
    return 100 * mean(0 < rank <= depth for rank in ranks)


def _row(
    name: str, ms: float, found: Sequence[Sequence[str]], requests: Sequence[Request], *, limit: float | None = None
) -> Row:
    ranks = [_rank(each, request) for each, request in zip(found, requests, strict=True)]
    note = f"recall@1 {_recall(ranks, 1):.0f} %, recall@5 {_recall(ranks, 5):.0f} %"
    if limit is None:
        return Row(name, ms, note=note)
    return Row(name, ms, must_reach=f"<= {limit:g} ms", reached=ms <= limit, note=note)


def _peer(peer: str, specs: Sequence[OperationSpec], requests: Sequence[Request]) -> dict[str, Any]:
    tools = [
        {"name": spec.id, "description": f"{spec.title}\n{spec.description}", "schema": _schema(spec)} for spec in specs
    ]
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "work.json").write_text(
            json.dumps({"tools": tools, "requests": [each.text for each in requests], "depth": _DEPTH})
        )
        command = [python_of(peer), "-m", f"benchmarks.peers.{peer}_search", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode:
        raise NotMeasuredError(f"{peer} did not run: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _schema(spec: OperationSpec) -> dict[str, Any]:
    return input_schema(spec.input_schema).schema


def cross_validate() -> None:
    """Choose weights on one half of the requests and measure them on the other, for many halves."""
    specs, requests = _load()
    ranks: dict[SearchWeights, list[int]] = {}
    for values in product(*_GRID.values()):
        weights = SearchWeights(**dict(zip(_GRID, values, strict=True)))
        index = SearchIndex(specs, weights=weights)
        ranks[weights] = [_rank(_ids(index.find(request.text, _DEPTH)), request) for request in requests]
    chosen: list[tuple[float, float]] = []
    order = list(range(len(requests)))
    shuffle = random.Random(1).shuffle
    for _ in range(_SPLITS):
        shuffle(order)
        one, other = order[: len(order) // 2], order[len(order) // 2 :]
        best = max(ranks.values(), key=lambda each: sum(1 / each[at] if each[at] else 0 for at in one))
        held_out = [best[at] for at in other]
        chosen.append((_recall(held_out, 1), _recall(held_out, 5)))
    usual = ranks[SearchWeights()]
    print(f"{len(ranks)} weights over {len(specs):,} operations and {len(requests)} requests, {_SPLITS} halves")
    print(f"chosen on one half, on the other: recall@1 {mean(a for a, _ in chosen):.1f}", end=", ")
    print(f"recall@5 {mean(b for _, b in chosen):.1f}")
    print(f"the default weights, on all: recall@1 {_recall(usual, 1):.1f}, recall@5 {_recall(usual, 5):.1f}")
    spread = sorted(_recall(each, 5) for each in ranks.values())
    print(f"recall@5 of all weights: {spread[0]:.1f} to {spread[-1]:.1f}")


if __name__ == "__main__":
    cross_validate()
