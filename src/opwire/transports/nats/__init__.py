"""Calls, durable calls and durable streams over NATS. NKEYs and `.creds` files need `pip install 'opwire[nats]'`."""

from opwire.transports.nats.journal import NatsJournal
from opwire.transports.nats.stream import NatsStream
from opwire.transports.nats.transport import NatsTransport

__all__ = ["NatsJournal", "NatsStream", "NatsTransport"]
