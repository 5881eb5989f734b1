"""Calls over NATS. NKEYs and `.creds` files need `pip install 'opwire[nats]'`."""

from opwire.transports.nats.transport import NatsTransport

__all__ = ["NatsTransport"]
