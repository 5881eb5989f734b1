"""Measure the table of the documentation: `python -m tests.proxy.table [python of FastMCP]` prints its rows."""

import asyncio
import sys
from pathlib import Path

from tests.proxy.features import FEATURES, PATIENCE, Front
from tests.proxy.fronts import ERAS, running, running_fastmcp, through_opwire

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "proxy.md"
COMBINATIONS = [(front, back) for front in ERAS for back in ERAS]
KEPT, LOST = "✓", "–"


def cell(kept: list[bool]) -> str:
    """Return the marks of the combinations in order, or one for all."""
    marks = [KEPT if each else LOST for each in kept]
    return marks[0] if len(set(marks)) == 1 else " ".join(marks)


def read_cell(text: str) -> list[bool]:
    """Return which combinations keep a feature."""
    marks = [each == KEPT for each in text.split()]
    return marks if len(marks) > 1 else marks * len(COMBINATIONS)


def read_table() -> dict[str, tuple[list[bool], list[bool]]]:
    """Return the table of the page: by feature, what opwire and FastMCP keep."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    cells = [[each.strip() for each in row] for row in rows if len(row) == 3]
    return {name: (read_cell(ours), read_cell(theirs)) for name, ours, theirs in cells if name in FEATURES}


async def keeps(name: str, front: Front) -> bool:
    """Return whether a feature reaches the client."""
    try:
        async with asyncio.timeout(PATIENCE):
            await FEATURES[name](front)
    except Exception as lost:
        sys.stderr.write(f"{name}: {type(lost).__name__}: {str(lost)[:300]}\n")
        return False
    return True


async def measure(fastmcp: Path | None) -> None:
    """Print a row for each feature."""
    ours: dict[str, list[bool]] = {name: [] for name in FEATURES}
    theirs: dict[str, list[bool]] = {name: [] for name in FEATURES}
    with running() as urls:
        for front, back in COMBINATIONS:
            sys.stderr.write(f"--- opwire: {front} in front, {back} behind\n")
            for name, kept in ours.items():
                async with through_opwire(urls[back], front) as client:
                    kept.append(await keeps(name, client))
            if fastmcp is None:
                continue
            sys.stderr.write(f"--- FastMCP: {front} in front, {back} behind\n")
            with running_fastmcp(fastmcp, urls[back]) as url:
                for name, kept in theirs.items():
                    client = Front(url, front)
                    async with client.client:
                        kept.append(await keeps(name, client))
    for name, kept in ours.items():
        sys.stdout.write(f"| {name} | {cell(kept)} | {cell(theirs[name]) if theirs[name] else '?'} |\n")


if __name__ == "__main__":
    asyncio.run(measure(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
