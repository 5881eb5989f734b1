"""Durable streams: items that are stored for later readers, as subscriptions that survive every restart.

    async with RedisStream("redis://127.0.0.1:6379", "orders") as orders:
        registry.subscription("orders.follow")(orders.follow)
        await orders.append({"article": "tea"})

    async for order in client.subscribe("orders.follow", resume=True): ...

The cursor of an item is its position in the stream. The broker stores the items and nothing about readers, so that any
server continues for any reader. A reader that falls so far behind that items it has not seen were discarded gets an
error, never a gap. Positions and storage are the broker's: `streams.redis` has `RedisStream`, `streams.jetstream` has
`NatsStream`. `MemoryStream` has its own.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from opwire.errors import CallError, ErrorCode, NotPlainError, check_counts, resume_error
from opwire.model.envelope import Item
from opwire.protocol.events import MAX_MESSAGE
from opwire.runtime.tasks import AsyncResource
from opwire.typed.plain import MAX_DEPTH, parse_float, read_peer_json, survey, to_plain, write_json

MAX_ITEMS = 100_000
"""Default number of items that a stream keeps; Redis may keep a few more."""

MAX_BATCH_ITEMS = 64
"""Items that a reader fetches at once, and holds in memory."""

_LARGE_ITEM_BYTES = 64 * 1024
POLL_SECONDS = 1.0
"""Time after which a reader looks for items, if it hears of none."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(float_hook=parse_float)


class StoredItem(NamedTuple):
    """An item as it is stored: JSON, or what another program has written."""

    encoded: bytes
    cursor: str


class DurableStream(AsyncResource):
    """A stream of items in a store. `follow` is the handler of a subscription that can be resumed.

    Every method may raise `CallError(UNAVAILABLE)`: the store cannot be reached.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    async def append(self, data: Any) -> str:
        """Store an item, any value with a JSON form, and return its cursor.

        After UNAVAILABLE an item may be stored nevertheless: a retry can store it twice.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, it has no JSON form; PAYLOAD_TOO_LARGE.
        """
        try:
            encoded = write_json(_encoder, to_plain(data))
        except (NotPlainError, TypeError, ValueError, RecursionError) as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{self.name}: the item has no JSON form: {error}") from error
        if len(encoded) > MAX_MESSAGE:
            size = f"{self.name}: the item has {len(encoded):,} bytes, and the limit is {MAX_MESSAGE:,}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size)
        return await self.store(encoded)

    async def follow(
        self, start: Literal["first", "new"] = "first", resume_from: str | None = None
    ) -> AsyncGenerator[Item[Any]]:
        """Stream the items of the stream: those that are stored, then each new one.

        Args:
            start: "first" for all stored items, "new" for those from now on.

        Raises:
            CallError: UNAVAILABLE; VALIDATION_ERROR, with RESUME in its details, the items after the cursor are gone.
        """
        position = await self.position(start) if resume_from is None else resume_from
        while True:
            news = self._news
            items = await self.read(position)
            for encoded, position in items:
                yield Item(decode_item(encoded), cursor=position)
                if len(encoded) > _LARGE_ITEM_BYTES:  # decoding one takes up to 0.1 s: other tasks run before the next
                    await asyncio.sleep(0)
            if not items:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await news.wait()

    def notify(self) -> None:
        """Wake the readers that wait for an item."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def lost(self, cursor: str) -> CallError:
        """Return the error for a cursor after which items are missing."""
        return resume_error(f"{self.name} no longer has all items after {cursor[:100]}: start over without resume_from")

    @abstractmethod
    async def store(self, encoded: bytes) -> str:
        """Store an encoded item and return its cursor."""

    @abstractmethod
    async def position(self, start: Literal["first", "new"]) -> str:
        """Return the cursor before the first item to read. That of the first stored item is never reported as lost."""

    @abstractmethod
    async def read(self, cursor: str) -> list[StoredItem]:
        """Return items after a cursor, at most `MAX_BATCH_ITEMS`; empty at the end. They are decoded one by one.

        Raises:
            CallError: `lost(cursor)`, items after it are gone or it is unknown; UNAVAILABLE.
        """


def decode_item(encoded: bytes) -> Any:
    """Decode the data of an item; what another program stored as text or bytes is returned as it is.

    So is JSON that is nested deeper, or takes longer to decode, than a message may: readers could not get past it.
    """
    with suppress(ValueError, RecursionError):
        data = read_peer_json(_decoder, encoded)
        # Nesting needs pairs of brackets: counting them is faster than walking the values.
        may_be_deep = len(encoded) <= MAX_MESSAGE and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH
        if not may_be_deep or not survey(data).deep:
            return data
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded


class MemoryStream(DurableStream):
    """A stream in this process, for tests. It keeps the last `max_items`."""

    def __init__(self, name: str = "memory", *, max_items: int = MAX_ITEMS) -> None:
        check_counts(max_items=max_items)
        super().__init__(name)
        self._items: deque[bytes] = deque(maxlen=max_items)
        self._last_number = 0

    async def start(self) -> None:
        """No-op."""

    async def close(self) -> None:
        """No-op; the items stay."""

    async def store(self, encoded: bytes) -> str:
        """Store an encoded item and return its cursor."""
        self._items.append(encoded)
        self._last_number += 1
        self.notify()
        return str(self._last_number)

    async def position(self, start: Literal["first", "new"]) -> str:
        """Return the cursor before the first item to read."""
        return str(self._last_number if start == "new" else 0)

    async def read(self, cursor: str) -> list[StoredItem]:
        """Return items after a cursor."""
        position = position_number(cursor)
        first_number = self._last_number - len(self._items) + 1
        if position is None or position > self._last_number or 0 < position < first_number - 1:
            raise self.lost(cursor)
        begin = max(position + 1, first_number)
        end = min(begin + MAX_BATCH_ITEMS, self._last_number + 1)
        return [StoredItem(self._items[number - first_number], str(number)) for number in range(begin, end)]


def position_number(cursor: str) -> int | None:
    """Return the position of a cursor that is a number of at most 18 digits, or None."""
    return int(cursor) if cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18 else None
