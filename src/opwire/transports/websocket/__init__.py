"""Calls over WebSocket: a server that relays between its clients, and clients: `pip install 'opwire[websocket]'`."""

from opwire.errors import needs_extra

with needs_extra("websocket"):
    from opwire.transports.websocket.client import WebSocketTransport
    from opwire.transports.websocket.server import WebSocketServer

__all__ = ["WebSocketServer", "WebSocketTransport"]
