"""Fixtures of the tests of durable calls."""

from tests.servers.fixtures import jetstream_server  # noqa: F401
