"""Transports of the call protocol: in memory, WebSocket, and brokers (Redis, NATS)."""
