"""Durable calls: mutations that must not be lost. They are kept in a journal, and have one recorded outcome each."""

from opwire.durable.calls import DurableCalls
from opwire.durable.journal import Claim, Journal, JournalInfo, Outcome, Task
from opwire.durable.memory import Books, MemoryJournal
from opwire.durable.worker import DurableWorker

__all__ = [
    "Books",
    "Claim",
    "DurableCalls",
    "DurableWorker",
    "Journal",
    "JournalInfo",
    "MemoryJournal",
    "Outcome",
    "Task",
]
