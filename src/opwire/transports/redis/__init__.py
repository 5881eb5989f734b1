"""Calls over Redis 6.2 or newer, or Valkey: `pip install 'opwire[redis]'`.

Requests and responses travel by publish/subscribe: at most once, and never over a disk.
"""

from opwire.errors import needs_extra

with needs_extra("redis"):
    from opwire.transports.redis.transport import RedisTransport

__all__ = ["RedisTransport"]
