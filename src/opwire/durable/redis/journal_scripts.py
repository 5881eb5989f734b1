"""The data model of `RedisJournal`, and the Lua `scripts` that change it atomically. All commands exist in Redis 6.2.

Each operation has a stream of tasks, with one consumer group. An entry has one field: a JSON array of key, fingerprint
and time of submission, a line feed, and the request. It stays in its stream, under one id, from `submit` until its
outcome is recorded; its attempts are the group's delivery count. The lease of a claim is part of the name of its
consumer (`<end>:<milliseconds>`): it has expired when the entry was idle for that time, by any reader's clock. A
released entry belongs to the consumer `released`, and is in the sorted set `later` under the time when it is due; a
released suspect is in the set `suspects`. An entry that has failed or was lost has a line in the hash `history`:
failures, losses, losses while alone, 1 for a suspect, 1 if its worker runs nothing else.

Each idempotency key has a string. Until the task has an outcome, it is `<fingerprint> <id of the entry> <ends>`: the
ends at which callers wait. Outcomes that are recorded together are published to the channel of each, as one array of
MessagePack. Then the string is the fingerprint, a line feed and the outcome, and expires. That of a buried task does
not, and its entry is in the hash `requests`, for a replay. One command reads or sets the strings of many tasks.

Tasks are submitted, claimed and recorded many at a time, since a script costs more than what it does for one task.

When Redis is out of memory, a script that has begun to write may finish. So the scripts that end a task begin with a
command that needs no memory: outcomes can be recorded even then, and every script is all or nothing.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from opwire.durable.journal import Claim
from opwire.transports.redis.connection import load_script


class JournalKeys:
    """The names of the keys under one prefix. Journals with different prefixes are isolated from each other."""

    def __init__(self, prefix: str) -> None:
        def name(kind: str, of: str) -> bytes:
            # Callers may pass any text; text that UTF-8 cannot encode is an unknown name, not an error.
            return f"{prefix}:durable:{kind}:{of}".encode("utf-8", "surrogatepass")

        self.operations = f"{prefix}:durable:operations".encode()
        self.channels = f"{prefix}:durable:inbox:".encode()  # followed by the name of an end
        self.task = partial(name, "call")  # the string of an idempotency key; the others are by operation id
        self.stream = partial(name, "queue")
        self.later = partial(name, "later")  # a sorted set: released tasks
        self.suspects = partial(name, "suspects")  # a sorted set: released tasks after a lost attempt
        self.history = partial(name, "history")  # a hash: failures and losses
        self.buried = partial(name, "buried")  # a sorted set
        self.requests = partial(name, "requests")  # a hash: the entries of buried tasks

    def queue(self, operation_id: str) -> list[bytes]:
        """Return the keys of the unfinished tasks of an operation, in the order in which scripts take them."""
        return [name(operation_id) for name in (self.stream, self.later, self.suspects, self.history)]

    def every(self, operation_id: str) -> list[bytes]:
        """Return all keys of an operation, in the order in which scripts take them."""
        return [*self.queue(operation_id), self.buried(operation_id), self.requests(operation_id)]

    def read(self, name: bytes) -> str:
        """Decode a key or an id. Those of other programs may be invalid, and must not hide the others."""
        try:
            return name.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return name.decode(errors="replace")


class StreamReceipt(NamedTuple):
    """The receipt of a claim: the entry, and the consumer that claimed it."""

    id: str
    consumer: str

    @classmethod
    def of(cls, claim: Claim) -> "StreamReceipt":
        """Parse the receipt of a claim."""
        id, _, consumer = claim.receipt.partition(" ")
        return cls(id, consumer)


def without_space(fingerprint: str) -> str:
    """Return a fingerprint without white space; different ones stay different, and hexadecimal ones the same."""
    return fingerprint if fingerprint.isascii() and fingerprint.isalnum() else quote(fingerprint, safe="")


_load = partial(load_script, Path(__file__).with_name("scripts"))

SUBMIT = _load("note_end", "submit")
WAIT = _load("note_end", "wait")
TAKE = _load("history", "take")
RENEW = _load("history", "if_ours", "renew")
RELEASE = _load("history", "if_ours", "release")
RECORD = _load("record")
CANCEL = _load("cancel")
REPLAY = _load("replay")
PURGE = _load("purge")
COUNT = _load("count")
PENDING = _load("pending")
LEAVE = _load("leave")

SCRIPTS = (SUBMIT, WAIT, TAKE, RENEW, RELEASE, RECORD, CANCEL, REPLAY, PURGE, COUNT, PENDING, LEAVE)
