"""The long run of chaos: `python -m opwire.testing --calls 100000 --seed 1`."""

import argparse
import sys

from opwire.testing.chaos import Chaos
from opwire.testing.chaos_run import run_chaos
from opwire.testing.virtual_time import run_virtually


def main(arguments: list[str] | None = None) -> None:
    """Run, and print what was injected and how the calls ended."""
    parser = argparse.ArgumentParser(prog="python -m opwire.testing", description="Calls through injected faults.")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    report = run_virtually(run_chaos(Chaos.storm(options.seed), calls=options.calls, slack=0.02))
    sys.stdout.write(f"seed {options.seed}, {report}\n")


if __name__ == "__main__":
    main()
