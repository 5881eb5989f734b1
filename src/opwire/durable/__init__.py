"""Durable calls: mutations that are stored in a journal, survive crashes, and have exactly one recorded outcome."""

from opwire.durable.calls import DurableCalls
from opwire.durable.journal import Claim, Journal, JournalInfo, Outcome, PendingTask, Task
from opwire.durable.memory import MemoryJournal, MemoryJournalState
from opwire.durable.worker import DurableWorker

__all__ = [
    "Claim",
    "DurableCalls",
    "DurableWorker",
    "Journal",
    "JournalInfo",
    "MemoryJournal",
    "MemoryJournalState",
    "Outcome",
    "PendingTask",
    "Task",
]
