"""Durable calls and durable streams in NATS JetStream."""

from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.jetstream.stream import NatsStream

__all__ = ["NatsJournal", "NatsStream"]
