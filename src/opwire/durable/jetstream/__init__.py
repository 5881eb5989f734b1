"""Durable calls in NATS JetStream."""

from opwire.durable.jetstream.journal import NatsJournal

__all__ = ["NatsJournal"]
