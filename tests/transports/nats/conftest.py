"""Fixtures of the tests on NATS."""

from tests.servers.fixtures import jetstream_server  # noqa: F401
