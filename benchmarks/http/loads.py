"""The time and the memory of one load, in a process that does nothing else. Only the standard library."""

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.measure import NotMeasuredError

_METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def measure_load(load: Callable[[Path], tuple[Any, int]], *library: str) -> None:
    """Load the document that the last argument names, and print what it took.

    `load` gives what has to stay in memory, and the number of operations; `library` is its name and version. Memory is
    the growth of the resident set after a garbage collection. The file is read by `load`: a text that is kept counts.
    """
    path = Path(sys.argv[-1])
    gc.collect()
    before = _resident("VmRSS")
    began = process_time()
    kept, operations = load(path)
    seconds = process_time() - began
    peak = _resident("VmHWM") - before
    gc.collect()
    after = _resident("VmRSS") - before
    if not kept:
        raise NotMeasuredError(f"{path.name} gave nothing")
    print(json.dumps({"seconds": seconds, "mib": after, "peak": peak, "operations": operations, "library": library}))


def count_operations(document: Any) -> int:
    """How many operations an OpenAPI document has."""
    return sum(1 for item in document["paths"].values() for method in item if method in _METHODS)


def _resident(field: str) -> float:
    """MiB of memory in use; only Linux tells it this way."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise NotMeasuredError("the memory of a process is read in Linux' way")
