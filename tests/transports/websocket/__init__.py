"""Calls over real WebSockets on the loopback interface."""
