"""Durable calls: mutations that are stored in a journal, survive crashes, and have exactly one recorded outcome.

Durable streams: items that are stored for later readers.
"""

from opwire.durable.calls import DurableCalls
from opwire.durable.journal import Claim, Journal, JournalInfo, Outcome, PendingTask, Task
from opwire.durable.memory import MemoryJournal, MemoryJournalState
from opwire.durable.streams import DurableStream, MemoryStream, StoredItem
from opwire.durable.worker import DurableWorker

__all__ = [
    "Claim",
    "DurableCalls",
    "DurableStream",
    "DurableWorker",
    "Journal",
    "JournalInfo",
    "MemoryJournal",
    "MemoryJournalState",
    "MemoryStream",
    "Outcome",
    "PendingTask",
    "StoredItem",
    "Task",
]
