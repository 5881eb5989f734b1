"""Memory of the compiled output schemas of a whole document, as if each operation had been called once.

    python -m benchmarks.validators stripe.yaml [--limit 512]

Not part of the ladders: the documents that matter here are not beside this checkout.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from time import process_time

from opwire import Schema
from opwire.openapi.client import from_openapi


def resident() -> float:
    """Return the resident memory of this process, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main() -> None:
    """Compile, and print the figures."""
    parser = argparse.ArgumentParser(description="Compile every output schema of an OpenAPI document.")
    parser.add_argument("document")
    parser.add_argument("--limit", type=int, help="Schema.max_compiled, in MiB")
    options = parser.parse_args()
    if options.limit:
        Schema.max_compiled = options.limit * 2**20
    operations = list(from_openapi(options.document, namespace="api"))
    before, peak, times = resident(), 0.0, [process_time()]
    for operation in operations:
        operation.spec.output_schema.conformity(strip=False)
        peak = max(peak, resident())
        times.append(process_time())
    longest = max(end - start for start, end in pairwise(times))
    print(f"{len(operations)} operations: {before:.0f} MiB loaded, {peak:.0f} MiB at most, ", end="")
    print(f"{times[-1] - times[0]:.1f} s to compile, at most {longest:.2f} s at once")


if __name__ == "__main__":
    main()
