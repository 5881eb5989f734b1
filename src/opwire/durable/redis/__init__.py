"""Durable calls and durable streams in Redis 6.2 or newer, or Valkey: `pip install 'opwire[redis]'`."""

from opwire.errors import needs_extra

with needs_extra("redis"):
    from opwire.durable.redis.journal import RedisJournal
    from opwire.durable.redis.stream import RedisStream

__all__ = ["RedisJournal", "RedisStream"]
