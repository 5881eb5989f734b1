"""Durable streams over JetStream: `NatsStream`.

The cursor of an item is its sequence number. Readers fetch messages by number, several at once, and have no consumers
in the server: nothing is left of one that is gone, and any server continues for any reader. A subscription to the
subjects of the stream tells when there are new messages; without the permission for it, readers poll.

Durability is that of JetStream: see `jetstream.journal`. A user of the server needs permissions to publish to
`$JS.API.STREAM.>` and the subject, and to subscribe to `<prefix>.in.>` and the subject.
"""

import asyncio
import re
from collections.abc import Iterable
from os import PathLike
from secrets import token_hex
from ssl import SSLContext
from typing import Literal

from opwire.durable.jetstream.session import (
    NO_STREAM,
    NOT_FOUND,
    JetStreamSession,
    MessageFound,
    SessionListener,
    StoredMessage,
    StreamFound,
    StreamState,
)
from opwire.durable.streams import MAX_BATCH_ITEMS, MAX_ITEMS, DurableStream, StoredItem, position_number
from opwire.errors import CallError, UsageError, check_counts
from opwire.runtime.text import get_logger
from opwire.transports.nats.connection import NatsCredentials, NatsServers, Security
from opwire.transports.nats.transport import Subjects
from opwire.typed.plain import as_list

logger = get_logger("opwire.durable.streams")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
_SUBJECT = re.compile(r"[!-)+-\-/-=?-~]+(?:\.[!-)+-\-/-=?-~]+)*")  # without wildcards: `append` publishes to it
_MAX_SUBSCRIBED_SUBJECTS = 100


class _NewsListener(SessionListener):
    """Creates the stream on each new connection if it is missing, and wakes the readers for each message."""

    def __init__(self, stream: "NatsStream", config: dict[str, object]) -> None:
        self._stream = stream
        self._config = config

    async def prepare(self) -> None:
        """Create the stream if it is missing, and subscribe to its subjects."""
        session, name = self._stream.session, self._config["name"]
        response = await session.api(StreamFound, f"STREAM.INFO.{name}", unless=[NO_STREAM], preparing=True)
        if response.error is not None:
            response = await session.api(StreamFound, f"STREAM.CREATE.{name}", self._config, preparing=True)
        for subject in as_list(response.config.get("subjects"))[:_MAX_SUBSCRIBED_SUBJECTS]:
            session.listen(str(subject))
        self._stream.notify()

    def heard(self, subject: str, payload: bytes) -> None:
        self._stream.notify()

    def refused(self, subject: str, error: CallError) -> None:
        logger.info("%s: readers poll for new items: %s", self._stream.name, error.message)


class NatsStream(DurableStream):
    """A stream of JetStream, with the name `name`; one of another program, too.

        async with NatsStream("nats://127.0.0.1:4222", "orders") as orders:
            registry.subscription("orders.follow")(orders.follow)

    `append` publishes to `subject`, by default the name. A stream that does not exist is created with that subject,
    `max_items` and `replicas`. `domain` is that of JetStream. The other options are those of `NatsTransport`.

    Raises:
        UsageError: an invalid URL, name or number.
    """

    def __init__(
        self,
        url: str | Iterable[str],
        name: str,
        *,
        subject: str | None = None,
        max_items: int = MAX_ITEMS,
        replicas: int = 1,
        prefix: str = "opwire",
        domain: str | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials_file: str | PathLike[str] | None = None,
        ssl: SSLContext | None = None,
        tls_first: bool = False,
    ) -> None:
        check_counts(max_items=max_items, replicas=replicas)
        if not _NAME.fullmatch(name):
            raise UsageError(f"the name of a stream of JetStream has letters, digits, _ and -: {name!r:.80} is invalid")
        if subject is not None and not _SUBJECT.fullmatch(subject):
            raise UsageError(f"the subject of a stream has names with dots between them: {subject!r:.80} is invalid")
        servers = NatsServers(url)
        super().__init__(f"the stream {name} at {servers}")
        self._stream = name
        self._subject = subject or name
        config: dict[str, object] = {
            "name": name,
            "subjects": [self._subject],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_msgs": max_items,
            "num_replicas": replicas,
        }
        security = Security(NatsCredentials(user, password, token, credentials_file), ssl, tls_first)
        self.session = JetStreamSession(servers, security, Subjects(prefix).inbox(token_hex(8)), domain)
        self.session.listeners.append(_NewsListener(self, config))

    async def start(self) -> None:
        """Connect, and create the stream if it is missing."""
        await self.session.connect()

    async def close(self) -> None:
        """Disconnect. A second call is a no-op."""
        await self.session.close()

    async def store(self, encoded: bytes) -> str:
        """Store an encoded item and return its cursor."""
        return str((await self.session.store(self._subject, encoded)).seq)

    async def position(self, start: Literal["first", "new"]) -> str:
        """Return the cursor before the first item to read."""
        return str((await self._bounds()).last_seq) if start == "new" else "0"

    async def read(self, cursor: str) -> list[StoredItem]:
        """Return items after a cursor."""
        position, bounds = position_number(cursor), await self._bounds()
        if position is None or position > bounds.last_seq or 0 < position < bounds.first_seq - 1:
            raise self.lost(cursor)
        begin = max(position + 1, bounds.first_seq)
        numbers = range(begin, min(begin + MAX_BATCH_ITEMS - 1, bounds.last_seq) + 1)
        messages = await asyncio.gather(*(self._get({"seq": number}) for number in numbers))
        if None in messages and 0 < position < (await self._bounds()).first_seq - 1:  # discarded meanwhile
            raise self.lost(cursor)
        if numbers and not any(messages):  # deleted one by one
            messages = [await self._get({"seq": begin, "next_by_subj": ">"})]
        return [StoredItem(message.data, str(message.seq)) for message in messages if message is not None]

    async def _bounds(self) -> StreamState:
        return (await self.session.api(StreamFound, f"STREAM.INFO.{self._stream}")).state

    async def _get(self, query: dict[str, object]) -> StoredMessage | None:
        method = f"STREAM.MSG.GET.{self._stream}"
        return (await self.session.api(MessageFound, method, query, unless=NOT_FOUND)).message
