"""Run chaos from the command line: `python -m tests.chaos --calls 100000 --seed 1`."""

import argparse
import sys

from tests.chaos.run import run_chaos
from tests.chaos.transport import Chaos
from tests.chaos.virtual_time import run_virtually


def main(arguments: list[str] | None = None) -> None:
    """Run, and print the injected faults and the outcomes of the calls."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Make calls through injected faults.")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    report = run_virtually(run_chaos(Chaos.storm(options.seed), calls=options.calls, slack=0.02))
    sys.stdout.write(f"seed {options.seed}, {report}\n")


if __name__ == "__main__":
    main()
