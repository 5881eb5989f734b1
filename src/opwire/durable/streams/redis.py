"""Durable streams over Redis Streams: `RedisStream`. Needs Redis 6.2 or newer, or Valkey.

An item is an entry with the field `data`, its JSON; entries of other programs are objects with their fields. The cursor
is the id of the entry. Readers poll by a script, which finds out whether entries after the cursor were trimmed: the
entry of the cursor has to be stored, or to be the last one of the stream. One connection per stream waits for new
entries (XREAD BLOCK), and wakes all readers of this process.

Durability is that of Redis: see `redis.journal`.
"""

import asyncio
import re
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Literal

import msgspec

from opwire.durable.redis.session import RedisSession
from opwire.durable.streams import MAX_BATCH_ITEMS, MAX_ITEMS, DurableStream, StoredItem
from opwire.errors import CallError, UsageError, check_counts
from opwire.runtime.deadlines import back_off
from opwire.runtime.tasks import cancel_tasks
from opwire.runtime.text import get_logger
from opwire.transports.redis.connection import command, load_script
from opwire.transports.redis.servers import parse_servers

logger = get_logger("opwire.durable.streams")

_FIRST_CURSOR = "0-0"
_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_BLOCKING_READ_SECONDS = 2.0

_load = partial(load_script, Path(__file__).with_name("scripts"))
_READ_SCRIPT, _LAST_SCRIPT = _load("last_id", "read_items"), _load("last_id", "last_item")


class RedisStream(DurableStream):
    """A stream of Redis, at the key `name`; one of another program, too.

        async with RedisStream("redis://127.0.0.1:6379", "orders", max_items=1_000_000) as orders:
            registry.subscription("orders.follow")(orders.follow)

    The URL is that of `RedisTransport`. `append` discards items above `max_items`, a few hundred late.

    Raises:
        UsageError: an invalid URL, name or number.
    """

    def __init__(self, url: str, name: str, *, max_items: int = MAX_ITEMS, ssl: SSLContext | None = None) -> None:
        check_counts(max_items=max_items)
        if not name or not name.isprintable():
            raise UsageError(f"the name of a stream is printable and not empty: {name!r:.80} is invalid")
        servers = parse_servers(url, ssl, prefix=name)
        super().__init__(f"the stream {name} at {servers.name}")
        self._key = servers.key_prefix(name).encode()
        self._max_items = max_items
        self._session = RedisSession(servers, scripts=(_READ_SCRIPT, _LAST_SCRIPT))
        self._blocking = RedisSession(servers)
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect."""
        last_cursor = await self._last_cursor()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(last_cursor))

    async def close(self) -> None:
        """Disconnect. A second call is a no-op."""
        watching, self._watching = self._watching, None
        await cancel_tasks(watching)
        await self._blocking.close()
        await self._session.close()

    async def store(self, encoded: bytes) -> str:
        """Store an encoded item and return its cursor."""
        add = command(b"XADD", self._key, b"MAXLEN", b"~", self._max_items, b"*", b"data", encoded)
        (id,) = await self._session.ask(add)
        self.notify()
        return id.decode()

    async def position(self, start: Literal["first", "new"]) -> str:
        """Return the cursor before the first item to read."""
        return await self._last_cursor() if start == "new" else _FIRST_CURSOR

    async def read(self, cursor: str) -> list[StoredItem]:
        """Return items after a cursor."""
        if not _CURSOR.fullmatch(cursor) or any(int(part) >= 2**64 for part in cursor.split("-")):
            raise self.lost(cursor)
        entries = await self._session.run(_READ_SCRIPT, [self._key], cursor, MAX_BATCH_ITEMS)
        if entries is None:
            raise self.lost(cursor)
        return [StoredItem(_encoded(fields), id.decode()) for id, fields in entries]

    async def _last_cursor(self) -> str:
        return (await self._session.run(_LAST_SCRIPT, [self._key])).decode()

    async def _watch(self, last_cursor: str) -> None:
        """Wake the readers when there are entries after `last_cursor`, until cancelled."""
        failures = 0
        while True:
            try:
                wait = command(
                    b"XREAD",
                    b"COUNT",
                    1,
                    b"BLOCK",
                    int(_BLOCKING_READ_SECONDS * 1000),
                    b"STREAMS",
                    self._key,
                    last_cursor,
                )
                (new_entries,) = await self._blocking.ask(wait, patience=2 * _BLOCKING_READ_SECONDS)
                failures = 0
                if new_entries:
                    last_cursor = await self._last_cursor()
                    self.notify()
            except CallError as error:  # the readers get it from their own requests
                failures += 1
                logger.info("%s: waiting for new items failed, and is repeated: %s", self.name, error.message)
                await asyncio.sleep(back_off(failures, first=0.1, longest=2.0))


def _encoded(fields: list[bytes]) -> bytes:
    """Return the JSON of an entry: its data, or the fields that another program has written."""
    pairs = dict(zip(fields[::2], fields[1::2], strict=False))
    if b"data" in pairs:
        return pairs[b"data"]
    texts = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in pairs.items()}
    return msgspec.json.encode(texts)
