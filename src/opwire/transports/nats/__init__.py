"""Calls over NATS."""

from opwire.transports.nats.journal import NatsJournal
from opwire.transports.nats.transport import NatsTransport

__all__ = ["NatsJournal", "NatsTransport"]
