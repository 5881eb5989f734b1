"""The operations of one server, kept up with it."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from opwire.adapters.mcp.callbacks import Callbacks
from opwire.adapters.mcp.names import usable_namespace
from opwire.adapters.mcp.offers import OfferReader, Offers
from opwire.adapters.mcp.servers import MCPServer
from opwire.adapters.mcp.session import MAX_MESSAGE, ServerInfo, Session
from opwire.adapters.mcp.tools import Reading
from opwire.adapters.mcp.updates import ResourceUpdates
from opwire.errors import CallError
from opwire.operation import NormalizeMode, SourceChange

logger = logging.getLogger("opwire.mcp")

SETTLE = 0.05
"""Seconds to wait after a change for the next: a server may tell of every single tool that it adds."""

LONGEST_SETTLE = 5.0
"""The same for a server that never stops, as it tells of a change whenever it is asked: each time twice as long."""

_CHANGES = frozenset({"notifications/tools/list_changed", "notifications/prompts/list_changed"})


class Options(Struct, frozen=True, kw_only=True):
    """What `from_mcp` was told of a server. Without a namespace, the server's own name is taken."""

    namespace: str | None = None
    trust_annotations: bool = False
    callbacks: Callbacks = Callbacks()
    resources: bool = True
    prompts: bool = True
    timeout: float | None = None
    normalize: NormalizeMode | None = None
    strip: bool | None = None
    connect_timeout: float = 30.0
    max_message: int = MAX_MESSAGE

    def reading(self, server_name: str) -> Reading:
        """How the operations of the server of this name are made."""
        return Reading(
            namespace=self.namespace or usable_namespace(server_name),
            own_ids=self.namespace is None,
            trust_annotations=self.trust_annotations,
            timeout=self.timeout,
            normalize=self.normalize,
            strip=self.strip,
        )


class Catalogue:
    """What one server offers, from `open` to `close`."""

    def __init__(self, server: MCPServer, options: Options, tell: Callable[[SourceChange], None]) -> None:
        self._options = options
        self._tell = tell
        self._updates = ResourceUpdates()
        self._stale = asyncio.Event()
        self._was_lost = False
        self._keeper: asyncio.Task[None] | None = None
        self._session = Session(
            server,
            callbacks=options.callbacks,
            connect_timeout=options.connect_timeout,
            on_notification=self._on_notification,
            on_connected=self._on_connected,
            max_message=options.max_message,
        )
        self.offers = Offers()

    @property
    def info(self) -> ServerInfo | None:
        """What the server said of itself when it was last connected."""
        return self._session.info

    async def open(self) -> None:
        """Connect, and read what there is.

        Raises:
            CallError: the server cannot be reached, or does not list its tools.
        """
        try:
            info = await self._session.start()
            reader = self._reader(info)
            self._was_lost = False
            self._stale.clear()
            self._take(await reader.read(self._options.connect_timeout))
        except BaseException:
            await self.close()
            raise
        self._keeper = asyncio.create_task(self._keep_up(reader))

    async def close(self) -> None:
        """Disconnect; idempotent."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._updates.close()
        await self._session.close()

    def _reader(self, info: ServerInfo) -> OfferReader:
        options, reading = self._options, self._options.reading(info.name)
        return OfferReader(self._session, reading, self._updates, resources=options.resources, prompts=options.prompts)

    def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method in _CHANGES:
            self._stale.set()
        elif method == "notifications/resources/updated":
            self._updates.tell(params)

    def _on_connected(self) -> None:
        self._was_lost = True
        self._stale.set()

    async def _keep_up(self, reader: OfferReader) -> None:
        settle, took, was_read = SETTLE, 0.0, 0.0
        while True:
            await self._stale.wait()
            settle = min(settle * 2, LONGEST_SETTLE) if time.monotonic() < was_read + settle else SETTLE
            await asyncio.sleep(max(settle, took))  # a server that is slow to read takes at most half of our time
            self._stale.clear()
            started = time.monotonic()
            try:
                await self._refresh(reader)
            except CallError as error:  # the next change, or the next connection, is the next occasion
                logger.warning("what an MCP server offers has changed, and cannot be read: %s", error)
            except Exception:  # this task must go on, whatever a server lists
                logger.exception("what an MCP server offers has changed, and cannot be used")
            was_read = time.monotonic()
            took = was_read - started

    async def _refresh(self, reader: OfferReader) -> None:
        offers = await reader.read(self._options.connect_timeout)
        if self._was_lost:  # not before, because the resources are watched again only now
            self._was_lost = False
            self._updates.missed()
        before = self._take(offers)
        put = offers.changed_since(before)
        gone = tuple(id for id in before.by_id if id not in offers.by_id)
        if put or gone:
            self._tell(SourceChange(put, gone))

    def _take(self, offers: Offers) -> Offers:
        """These are the offers now; gives those of before."""
        before, self.offers = self.offers, offers
        for found in offers.report.since(before.report):
            logger.warning("%s", found)
        return before
