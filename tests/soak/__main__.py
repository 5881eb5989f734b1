"""`python -m tests.soak`: prints a table for each engine, and exits with 1 if a guarantee was violated."""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.run import ENGINES, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Calls, random kills, and a history.")
    parser.add_argument("--minutes", type=float, default=10.0, help="shared by the engines")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="all of them, one after the other, if none")
    parser.add_argument("--rate", type=float, help="at most so many calls per second; otherwise what comes of it")
    parser.add_argument("--calm", type=float, default=1, help="times as long between faults; one server is spared")
    parser.add_argument("--seed", type=int, default=1, help="of the faults, and not of what they meet")
    parser.add_argument("--folder", type=Path, help="where the histories are kept; otherwise only if one is broken")
    options = parser.parse_args()
    engines = options.engine or ENGINES
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    good = True
    for engine in engines:
        random.seed(f"{engine} {options.seed}")
        place = folder / engine
        place.mkdir(parents=True)
        seconds = options.minutes * 60 / len(engines)
        report = asyncio.run(Soak(engine, seconds, place, options.rate, options.calm).run())
        sys.stdout.write(f"\n{engine}, seed {options.seed}, {place}\n{report}\n")
        good = good and not report.violations
    if good and options.folder is None:
        shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
