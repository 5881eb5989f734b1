"""What the console shows of the system: servers, sources, timings, errors by code, and the journal of durable calls."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import UNSET, Struct, UnsetType, to_builtins

from opwire.durable.journal import Journal, Outcome
from opwire.errors import CallError, ErrorCode
from opwire.observe.monitor import CallMonitor, OperationTimings, ServerStatistics
from opwire.protocol.events import CallFailed
from opwire.registry.source import Skipped

if TYPE_CHECKING:
    from opwire.policies import ApprovalQueue

REFRESH = 2.0
"""Seconds for which the figures of other servers are not requested again."""

FORGET = 600.0
"""Seconds for which a server that is gone is shown."""

MAX_SERVERS = 1_000
MAX_SHOWN_TIMINGS = 1_000
"""Operations with timings in one response: those with the most calls."""

MAX_TASKS = 200
"""Dead letters in one response."""

MAX_PENDING = 50
"""Tasks that wait or run in one response, the oldest of each operation; in NATS each of them takes two requests."""

_JOURNAL_TIMEOUT_SECONDS = 5.0


RequestServers = Callable[[], Awaitable[Iterable[ServerStatistics]]]
"""Requests the figures of other servers."""


class SourceStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source of operations."""

    name: str
    kind: str
    state: Literal["loaded", "failed", "disabled"]
    operations: int = 0
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | UnsetType = UNSET


class SourceCatalog(Protocol):
    """The sources of a registry, such as `OpenedConfig`."""

    def source_of(self, operation_id: str) -> str | None:
        """Return the name of an operation's source, or None."""
        ...

    def statuses(self) -> Iterable[SourceStatus]:
        """Return the status of every source."""
        ...


class ConsoleSystem(Struct, frozen=True, kw_only=True):
    """What the console shows beside the operations and their calls; every part is optional.

    `servers` requests the figures of other servers: those of a hub are `Hub.servers`. `journal` has the durable calls,
    and `approvals` the calls that wait for a person.
    """

    sources: SourceCatalog | None = None
    servers: RequestServers | None = None
    journal: Journal | None = None
    approvals: "ApprovalQueue | None" = None


class KnownServers:
    """This server and those behind it. Servers that are gone are shown for a while."""

    def __init__(self, monitor: CallMonitor, request: RequestServers | None) -> None:
        self._monitor = monitor
        self._request = request
        self._seen: dict[str, tuple[ServerStatistics, float]] = {}  # with the time of their figures
        self._present: set[str] = set()
        self._refreshed = 0.0
        self._lock = asyncio.Lock()

    async def shown(self) -> list[dict[str, Any]]:
        """Return the figures of all servers, this one first."""
        async with self._lock:
            if self._request is not None and time.monotonic() - self._refreshed > REFRESH:
                figures = {statistics.id: (statistics, time.time()) for statistics in await self._request()}
                self._refreshed, self._present = time.monotonic(), set(figures)
                self._seen |= figures
        own_figures, now = self._monitor.snapshot(), time.time()
        recent = [(id, figures) for id, figures in self._seen.items() if now - figures[1] < FORGET]
        self._seen = dict(recent[-MAX_SERVERS:])
        others = [
            _server(*figures, is_gone=id not in self._present)
            for id, figures in self._seen.items()
            if id != own_figures.id
        ]
        return [*([_server(own_figures, now)] if self._monitor.has_figures else []), *others]


def _server(statistics: ServerStatistics, seen: float, *, is_gone: bool = False) -> dict[str, Any]:
    server = to_builtins(statistics) | {"lastSeen": round(seen * 1000)}
    del server["busiest"]
    return server | {"status": "gone"} if is_gone else server


def shown_timings(timings: dict[str, OperationTimings]) -> list[dict[str, Any]]:
    """Return the durations and outcomes of the operations with the most calls."""
    counted = ((timing.calls, id) for id, timing in timings.items())
    rows: list[dict[str, Any]] = []
    for calls, id in nlargest(MAX_SHOWN_TIMINGS, counted):
        timing = timings[id]
        p50, p95, p99 = timing.percentiles(0.5, 0.95, 0.99)
        rows.append(
            {
                "id": id,
                "calls": calls,
                "errors": sum(timing.failures.values()),
                "p50": p50,
                "p95": p95,
                "p99": p99,
                "histogram": timing.histogram(),
                "byCode": timing.outcomes,
            }
        )
    return rows


async def shown_journal(journal: Journal, *, messages: bool) -> dict[str, Any]:
    """Return how many tasks wait, run and are dead letters, and the oldest of them.

    `messages`: with the messages of their errors.
    """
    tasks: list[dict[str, Any]] = []
    overview: dict[str, Any] = {"name": journal.name, "operations": [], "tasks": tasks, "more": False}
    try:
        async with asyncio.timeout(_JOURNAL_TIMEOUT_SECONDS):
            counted = await journal.info()
            overview["operations"] = [
                {
                    "id": counts.operation_id,
                    "waiting": counts.waiting,
                    "claimed": counts.claimed,
                    "buried": counts.dead_letters,
                }
                for counts in counted
            ]
            async for outcome in journal.dead_letters():
                if len(tasks) == MAX_TASKS:
                    break
                tasks.append(_task(outcome, messages=messages))
            room = MAX_PENDING
            for counts in counted:
                if room and counts.waiting + counts.claimed:
                    pending = await journal.pending(counts.operation_id, limit=room)
                    tasks += [
                        {
                            "id": task.key,
                            "operationId": task.operation_id,
                            "state": "running" if task.claimed else "retried later" if task.attempts else "waiting",
                            "attempts": task.attempts,
                            "lastError": None,
                            "since": task.submitted,
                        }
                        for task in pending
                    ]
                    room -= len(pending)
            overview["more"] = len(tasks) < sum(
                counts.waiting + counts.claimed + counts.dead_letters for counts in counted
            )
    except TimeoutError:
        overview["error"] = f"the journal did not respond within {_JOURNAL_TIMEOUT_SECONDS:g} s"
    except CallError as error:
        overview["error"] = str(error)
    return overview


def _task(outcome: Outcome, *, messages: bool) -> dict[str, Any]:
    error = None
    try:
        event = outcome.read()
        if isinstance(event, CallFailed):
            error = {"code": event.code, "message": event.message if messages else None}
    except CallError as invalid:
        error = {"code": invalid.code, "message": invalid.message}
    return {
        "id": outcome.key,
        "operationId": outcome.operation_id,
        "state": "buried",
        "attempts": outcome.attempts,
        "lastError": error,
        "since": outcome.recorded,
    }


async def decide_task(journal: Journal, key: str, action: Literal["retry", "discard"]) -> None:
    """Submit a dead letter again, or delete it.

    Raises:
        CallError: OPERATION_NOT_FOUND, it is no dead letter any more; UNAVAILABLE.
    """
    outcome = await journal.outcome(key)
    is_dead_letter = outcome is not None and outcome.dead_letter
    if not is_dead_letter or not await (journal.replay(key) if action == "retry" else journal.purge(key)):
        raise CallError(ErrorCode.OPERATION_NOT_FOUND, "the task is not buried any more")
