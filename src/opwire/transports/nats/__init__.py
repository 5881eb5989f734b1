"""Calls over NATS."""

from opwire.transports.nats.transport import NatsTransport

__all__ = ["NatsTransport"]
