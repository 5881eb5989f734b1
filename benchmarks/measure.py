"""Timing, and the tables that show it.

Every contender runs in every round, so that a busy machine slows all of them alike. The clock is the processor time of
this process: all that is timed here is computation, and while another program has the processor, the clock stands. The
median of the rounds counts, not the best one, which hides what costs much now and then. Data is built before, results
are checked after the timed part. Only the standard library, because the peers' environments use this file too.
"""

import gc
import sys
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from time import clock_gettime, process_time
from typing import Any, NamedTuple

ROUNDS = 21
_SECONDS = 0.015  # that a contender runs in each round, unless a single piece of work takes longer


class NotMeasuredError(Exception):
    """A comparator is missing or gave a wrong result: the benchmark fails."""


def processor_time(pid: int) -> float:
    """Seconds that another process has used, in all its threads.

    Raises:
        NotMeasuredError: this is not Linux.
    """
    need_linux()
    # The number of its clock, as clock_getcpuclockid() of the C library makes it; /proc counts in steps of 10 ms.
    return clock_gettime(~pid << 3 | 2)


def need_linux() -> None:
    """Other processes are looked at in Linux' way.

    Raises:
        NotMeasuredError: this is not Linux.
    """
    if sys.platform != "linux":
        raise NotMeasuredError("the processor time of other processes is read in Linux' way")


class Contender(NamedTuple):
    """Something to be timed: `run(n)` does its work n times and gives the last result, which is checked."""

    name: str
    run: Callable[[int], Awaitable[Any]]
    expected: Any
    read: Callable[[Any], Any] = lambda result: result  # what of the result is compared, outside the timed part
    per: int = 1  # calls or items in one piece of work
    limit: float | None = None  # minimum ratio to the control


class Row(NamedTuple):
    """One line of a table."""

    name: str
    amount: float
    ratio: float | None = None
    must_reach: str = ""
    reached: bool | None = None
    note: str = ""


class Table(NamedTuple):
    """What one ladder measured, in one unit, against its first row or that which `control` names."""

    title: str
    unit: str
    control: str
    rows: list[Row]

    def __str__(self) -> str:
        head = f"{self.title:<58}{self.unit:>10}  {'× ' + self.control:>12}  must reach"
        return "\n".join([head, "-" * len(head), *map(_line, self.rows)])


def in_short(tables: Sequence[Table]) -> str:
    """A line for each table with a limit or a peer: opwire's ratio, its limit, and the peer that comes closest."""
    head = f"{'in short':<62}{'opwire':>20}  {'must reach':<16}  closest peer"
    return "\n".join([head, "-" * len(head), *filter(None, map(_short_line, tables))])


def _short_line(table: Table) -> str:
    peers = [row for row in table.rows if row.must_reach.endswith("ahead") and row.ratio is not None]
    limits = [row for row in table.rows if row.reached is not None and row not in peers]
    ours = limits or [row for row in table.rows if row.name.startswith("opwire")]
    if not limits and not peers:
        return ""
    if len(ours) == 1:
        (row,) = ours
        is_amount = row.ratio is None or row.must_reach.endswith(table.unit)
        ratio = f"{_figure(row.amount)} {table.unit}" if is_amount else f"{row.ratio:.2f} × {table.control}"
        reached = f"{row.must_reach} {'ok' if row.reached else 'MISSED'}" if limits else ""
    else:
        ratio, reached = "", f"{sum(row.reached is True for row in ours)} of {len(ours)}"
    is_rate = table.unit.endswith("/s")  # of which a larger one is better
    closest = sorted(peers, key=lambda row: row.ratio or 0.0, reverse=is_rate)[:1]
    peer = "".join(f"{row.ratio:.2f} × {row.name}" for row in closest)
    return f"{table.title:<62}{ratio:>20}  {reached:<16}  {peer}".rstrip()


async def race(contenders: Sequence[Contender], *, rounds: int = ROUNDS) -> list[float]:
    """The seconds that each contender takes for one call, in the median of the rounds.

    Raises:
        NotMeasuredError: a contender gave a wrong result.
    """
    sizes = [await _size(each) for each in contenders]
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for contender, size, taken in zip(contenders, sizes, times, strict=True):
            gc.collect()
            taken.append(await _time(contender, size) / size / contender.per)
    return [median(taken) for taken in times]


async def ladder(contenders: Sequence[Contender], *, rounds: int = ROUNDS, scale: float = 1e6) -> list[Row]:
    """A race as rows, compared with the first contender; in microseconds unless another scale is given."""
    times = await race(contenders, rounds=rounds)
    return [
        compared(each.name, seconds * scale, times[0] * scale, each.limit)
        for each, seconds in zip(contenders, times, strict=True)
    ]


def compared(name: str, amount: float, control: float, limit: float | None = None, note: str = "") -> Row:
    """A row that is compared with a control, and with its limit where it has one."""
    ratio = amount / control
    if limit is None:
        return Row(name, amount, ratio, note=note)
    return Row(name, amount, ratio, f"<= {limit:g}", ratio <= limit, note)


async def _size(contender: Contender) -> int:
    """How often a contender does its work in a round."""
    size = 1
    while True:
        seconds = await _time(contender, size)
        if seconds >= _SECONDS / 4:
            return max(1, round(size * _SECONDS / seconds))
        size *= 4


async def _time(contender: Contender, size: int) -> float:
    began = process_time()
    result = await contender.run(size)
    seconds = process_time() - began
    if contender.read(result) != contender.expected:
        raise NotMeasuredError(f"{contender.name} gave a wrong result: {str(result)[:200]}")
    return seconds


def _line(row: Row) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    verdict = {None: "", True: "ok", False: "MISSED"}[row.reached]
    line = f"{row.name:<58}{_figure(row.amount):>10}  {ratio:>12}  {row.must_reach} {verdict}".rstrip()
    return f"{line}  {row.note}" if row.note else line


def _figure(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.3g}"
