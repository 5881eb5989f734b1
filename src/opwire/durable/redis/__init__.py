"""Durable calls in Redis 6.2 or newer, or Valkey: `pip install 'opwire[redis]'`."""

from opwire.errors import needs_extra

with needs_extra("redis"):
    from opwire.durable.redis.journal import RedisJournal

__all__ = ["RedisJournal"]
