"""Journals that break a promise each: what the contract has to notice."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from opwire.durable import Claim, JournalInfo, MemoryJournal, MemoryJournalState, Outcome, PendingTask, Task
from opwire.durable.waiters import OutcomeWaiters


class ForgetsFields(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        claims = await super().claim(operation_ids, **options)
        return [replace(claim, task=replace(claim.task, submitted=0)) for claim in claims]


class SubmitsTwice(MemoryJournal):
    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        known = await super().submit(task, wait=wait)
        await super().submit(replace(task, key=task.key + "'"))
        return known


class IgnoresFingerprints(MemoryJournal):
    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        return await super().submit(replace(task, fingerprint=""), wait=wait)


class LendsToEverybody(MemoryJournal):
    """A task that was claimed stays where it was."""

    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        claims = await super().claim(operation_ids, **options)
        for claim in claims:
            self.state.release(claim, 0, time.monotonic())
        return claims


class TakesTooMany(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        options["limit"] = 100
        return await super().claim(operation_ids, **options)


class NewestFirst(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        for queue in self.state.queues.values():
            for _, key in queue.ready:
                entry = self.state.entries.get(key)
                if entry is not None:
                    entry.number = -abs(entry.number)
            queue.ready = sorted((-abs(born), key) for born, key in queue.ready)
        return await super().claim(operation_ids, **options)


class ClaimsWhateverThereIs(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        return await super().claim(list(self.state.queues), **options)


class SleepsBetweenLooks(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        if options["wait"]:
            await asyncio.sleep(1.5)
        options["wait"] = 0
        return await super().claim(operation_ids, **options)


class LendsForEver(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        options["lease"] = 1e9
        return await super().claim(operation_ids, **options)


class HasOneLeaseForAll(MemoryJournal):
    """The lease of the next claim counts."""

    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        for entry in self.state.entries.values():
            if entry.claimed:
                self.state.postpone(entry, min(entry.due, time.monotonic() + options["lease"]))
        return await super().claim(operation_ids, **options)


class PretendsToRenew(MemoryJournal):
    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        return True


class CountsRenewals(MemoryJournal):
    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        self._opened()
        entry = self.state.entries[claim.task.key]
        entry.attempts += 1
        self.state.postpone(entry, time.monotonic() + claim.lease)
        return True


class ReleasesAtOnce(MemoryJournal):
    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        await super().release(claim, 0, failed=failed)


class ReleasesForAnybody(MemoryJournal):
    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        entry = self._opened().entries[claim.task.key]
        if entry.outcome is None:
            entry.claimed = False
            self.state.postpone(entry, time.monotonic() + delay)
            self.claimable()


class TakesItsTasksAlong(MemoryJournal):
    """What an end submitted is gone with it."""

    def __init__(self, state: MemoryJournalState) -> None:
        super().__init__(state)
        self.submitted: list[str] = []

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        self.submitted.append(task.key)
        return await super().submit(task, wait=wait)

    async def close(self) -> None:
        for key in self.submitted:
            self.state.entries.pop(key, None)
        await super().close()


class AcceptsAfterClose(MemoryJournal):
    def _opened(self) -> MemoryJournalState:
        return self.state


class CannotBeClosedTwice(MemoryJournal):
    async def close(self) -> None:
        assert self._is_open
        await super().close()


class ForgetsWhoWaitsWhenItCloses(MemoryJournal):
    async def close(self) -> None:
        self._waiters = OutcomeWaiters(inf)
        await super().close()


class ChangesEvents(MemoryJournal):
    async def outcome(self, key: str) -> Outcome | None:
        outcome = await super().outcome(key)
        return None if outcome is None else replace(outcome, event=outcome.event.replace(b"\x00", b""))


class TheLastOutcomeStands(MemoryJournal):
    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        await super().record(claim, outcome)
        self.state.entries[claim.task.key].outcome = outcome
        return outcome


class RecordsForOwnersOnly(MemoryJournal):
    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        return await super().record(claim, outcome) if await self.renew(claim) else None


class ForgetsThatTasksHaveEnded(MemoryJournal):
    """Unless it was ended with its lease."""

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        owned = await self.renew(claim)
        stands = await super().record(claim, outcome)
        if not owned and stands is not None:
            self.state.entries[claim.task.key].outcome = None
        return stands


class TellsOne(MemoryJournal):
    """Of several callers that wait for the same outcome."""

    def __init__(self, state: MemoryJournalState) -> None:
        super().__init__(state)
        self._waiting_keys: set[str] = set()

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        if key in self._waiting_keys:
            await asyncio.sleep(timeout)
            return None
        self._waiting_keys.add(key)
        try:
            return await super().wait(key, timeout)
        finally:
            self._waiting_keys.discard(key)


class WaitsForEver(MemoryJournal):
    async def wait(self, key: str, timeout: float) -> Outcome | None:
        return await super().wait(key, 1e6)


class SubmitsAndForgets(MemoryJournal):
    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        known = await super().submit(task)
        if known is None:
            await asyncio.sleep(wait)
        return known


class SubmitsForEver(MemoryJournal):
    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        return await super().submit(task, wait=1e6 if wait else 0.0)


class ListsTheNewestFirst(MemoryJournal):
    async def dead_letters(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        for outcome in reversed([each async for each in super().dead_letters(operation_id)]):
            yield outcome


class GoesOnCountingAfterAReplay(MemoryJournal):
    async def replay(self, key: str) -> bool:
        entry = self._opened().entries.get(key)
        done = await super().replay(key)
        if done and entry is not None:
            self.state.entries[key].attempts = entry.attempts
        return done


class MixesUpLives(MemoryJournal):
    """A replayed task keeps its number, so that old receipts are good again."""

    async def replay(self, key: str) -> bool:
        entry = self._opened().entries.get(key)
        if entry is None or entry.outcome is None or not entry.outcome.dead_letter:
            return False
        entry.outcome, entry.attempts, entry.claimed = None, 0, False
        self.state.postpone(entry, 0)
        self.claimable()
        return True


class PurgesAnything(MemoryJournal):
    async def purge(self, key: str) -> bool:
        return self._opened().entries.pop(key, None) is not None


class PurgesNothing(MemoryJournal):
    async def purge(self, key: str) -> bool:
        return await self.outcome(key) is not None


class CountsWhatHasEnded(MemoryJournal):
    async def info(self) -> list[JournalInfo]:
        ended = sum(entry.outcome is not None for entry in self._opened().entries.values())
        return [replace(info, waiting=info.waiting + ended) for info in await super().info()]


class ListsWhatRunsAsWaiting(MemoryJournal):
    async def pending(self, operation_id: str, *, limit: int = 100) -> list[PendingTask]:
        return [replace(each, claimed=False) for each in await super().pending(operation_id, limit=limit)]


class CountsLossesAsFailures(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        claims = await super().claim(operation_ids, **options)
        return [replace(claim, failures=claim.failures + claim.losses) for claim in claims]


class BlamesEverybody(MemoryJournal):
    """The tasks in flight when a worker died."""

    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        claims = await super().claim(operation_ids, **options)
        return [replace(claim, lone_losses=claim.losses) for claim in claims]


class BlamesNobody(MemoryJournal):
    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        return await super().renew(claim)


class StaysAlone(MemoryJournal):
    """A task that was alone once stays alone."""

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        entry = self._opened().entries.get(claim.task.key)
        return await super().renew(claim, alone=alone or (entry is not None and entry.alone))


class HandsOutSuspectsTogether(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        claims = await super().claim(operation_ids, **options)
        limit, options["limit"], options["wait"] = options.get("limit", 1), 1, 0
        while claims and len(claims) < limit and (more := await super().claim(operation_ids, **options)):
            claims += more
        return claims


class HandsOutSuspectsUnasked(MemoryJournal):
    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        return await super().claim(operation_ids, **options | {"suspects": True})


class KeepsSuspectsForItself(MemoryJournal):
    """A suspect that was left out once is gone."""

    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        if not options.get("suspects", True):
            await super().claim(operation_ids, **options | {"suspects": True, "wait": 0, "lease": 1e6, "limit": 1})
        return await super().claim(operation_ids, **options)


class ClearsWhatIsReleased(MemoryJournal):
    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        await super().release(claim, delay, failed=failed)
        self.state.entries[claim.task.key].lost = False


class SuspectsForEver(MemoryJournal):
    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        await super().release(claim, delay, failed=failed)
        self.state.entries[claim.task.key].lost = claim.suspect


class CancelsWhatRuns(MemoryJournal):
    async def cancel(self, outcome: Outcome) -> Outcome | None:
        entry = self.state.entries.get(outcome.key)
        if entry is not None:
            entry.claimed = False
        return await super().cancel(outcome)


class CancelsWhatHasEnded(MemoryJournal):
    async def cancel(self, outcome: Outcome) -> Outcome | None:
        entry = self.state.entries.get(outcome.key)
        if entry is not None and entry.outcome is not None:
            entry.outcome = None
            entry.claimed = False
        return await super().cancel(outcome)


class CancelsNothing(MemoryJournal):
    async def cancel(self, outcome: Outcome) -> Outcome | None:
        return None


class RunsWhatWasCancelled(MemoryJournal):
    """Callers are notified, and workers are not."""

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        cancelled = await super().cancel(outcome)
        entry = self.state.entries.get(outcome.key)
        if cancelled is not None and cancelled.cancelled and entry is not None:
            self.state.enter(replace(entry.task, key=entry.task.key + "'"))
        return cancelled


class CancelsInSilence(MemoryJournal):
    """Callers that wait are not told."""

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        listeners, self.state.listeners = self.state.listeners, set()
        try:
            return await super().cancel(outcome)
        finally:
            self.state.listeners = listeners


class RecordsTheFirstOnly(MemoryJournal):
    """Of the outcomes of one turn of the event loop."""

    _is_recording = False

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        if self._is_recording:
            return outcome
        self._is_recording = True
        await asyncio.sleep(0)
        self._is_recording = False
        return await super().record(claim, outcome)


class MixesUpReplies(MemoryJournal):
    """Those to the outcomes of one turn of the event loop."""

    def __init__(self, state: MemoryJournalState) -> None:
        super().__init__(state)
        self._replies: list[Outcome | None] = []

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        self._replies.append(await super().record(claim, outcome))
        await asyncio.sleep(0)
        return self._replies.pop()
