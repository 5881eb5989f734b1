"""`from_mcp`: MCP servers as a source of operations.

The operations of one server, kept up with it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from opwire.adapters.mcp.listing import OfferReader, Offers
from opwire.adapters.mcp.report import Report, merged, usable_namespace, usable_namespaces
from opwire.adapters.mcp.servers import Callbacks, HTTPServer, MCPServer, StdioServer, read_server, read_servers
from opwire.adapters.mcp.session import MAX_MESSAGE, ResourceUpdates, ServerInfo, Session
from opwire.adapters.mcp.tools import Reading
from opwire.errors import CallError, RegistrationError
from opwire.operation import NormalizeMode, Operation, OperationSpec, SourceChange

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


def from_mcp(
    server: MCPServer | Path | str | Mapping[str, Any],
    *,
    namespace: str | None = None,
    trust_annotations: bool = False,
    elicit: Callable[[dict[str, Any]], Any] | None = None,
    sample: Callable[[dict[str, Any]], Any] | None = None,
    roots: Callable[[], Any] | None = None,
    log: Callable[[dict[str, Any]], Any] | None = None,
    resources: bool = True,
    prompts: bool = True,
    tool_timeout: float | None = None,
    normalize: NormalizeMode | None = None,
    strip: bool | None = None,
    connect_timeout: float = 30.0,
    max_message: int = MAX_MESSAGE,
    required: bool = False,
) -> "MCPSource":
    """The tools, resources and prompts of an MCP server, or of several, as operations.

        async with from_mcp("https://tools.example/mcp", namespace="tools") as tools:
            registry.follow(tools)

        source = await from_mcp(StdioServer("uvx", ("mcp-server-time",)))  # closed by `await source.close()`

    `server` is a URL, a `StdioServer` or `HTTPServer`, an entry of an `mcpServers` file, or a whole one: its path, or
    what stands in it. Then each server has the namespace of its key, and one that cannot be reached is in `failures`
    and costs the others nothing, unless `required`. Otherwise `namespace` is the server's own name unless given.

    Tools are mutations. `trust_annotations` believes a server that calls a tool read-only, which makes it a query,
    and one that is an opwire itself in what it says of its operations: types, timeouts and, without a `namespace`, ids.

    `elicit`, `sample`, `roots` and `log` answer what a server asks; see `Callbacks`. `tool_timeout` is in seconds for
    every call of a tool. `normalize` and `strip` are those of `OperationSpec`.

    Raises:
        CallError: VALIDATION_ERROR, if the server is not given in a way that can be read.
        RegistrationError: an option is none that an operation can have, or a namespace is given for a whole file.
    """
    # Refuses, once and here, what every single operation would refuse.
    OperationSpec(
        namespace="any" if namespace is None else namespace, name="any", timeout=tool_timeout, normalize=normalize
    )
    options = Options(
        namespace=namespace,
        trust_annotations=trust_annotations,
        callbacks=Callbacks(elicit=elicit, sample=sample, roots=roots, log=log),
        resources=resources,
        prompts=prompts,
        timeout=tool_timeout,
        normalize=normalize,
        strip=strip,
        connect_timeout=connect_timeout,
        max_message=max_message,
    )
    return _source(server, options, required=required)


def _source(server: Any, options: Options, *, required: bool) -> "MCPSource":
    if not _is_file(server):
        one = server if isinstance(server, StdioServer | HTTPServer) else read_server(server)
        return MCPSource({one.name: (one, options)}, required=True)
    if options.namespace is not None:
        raise RegistrationError("every server of an mcpServers file has the namespace of its key: give none")
    servers = read_servers(server)
    namespaces = usable_namespaces(servers)
    named = {name: (each, replace(options, namespace=namespaces[name])) for name, each in servers.items()}
    return MCPSource(named, required=required)


def _is_file(server: Any) -> bool:
    """Whether it is a whole `mcpServers` file, or what stands in one."""
    if isinstance(server, str):
        return "://" not in server
    return isinstance(server, Path) or (isinstance(server, Mapping) and ("mcpServers" in server or "servers" in server))


class MCPSource:
    """The operations of MCP servers, which `registry.follow` keeps up with. Made by `from_mcp`.

    It is connected by `await` or `async with`, and closed by `close` or at the end of the block. Servers that are
    lost are connected again when one of their operations is called.
    """

    def __init__(self, servers: Mapping[str, tuple[MCPServer, Options]], *, required: bool) -> None:
        self._catalogues = {name: Catalogue(server, options, self._tell) for name, (server, options) in servers.items()}
        self._required = required
        self._listeners: list[Callable[[SourceChange], None]] = []
        self._is_open = False
        self.failures: dict[str, CallError] = {}
        """The servers that could not be connected, by name, and why."""

    def __repr__(self) -> str:
        state = f"{sum(1 for _ in self)} operations" if self._is_open else "not connected"
        return f"<MCPSource of {', '.join(self._catalogues)}: {state}>"

    def __iter__(self) -> Iterator[Operation]:
        """The operations as they are now.

        Raises:
            RegistrationError: the source was not connected yet.
        """
        if not self._is_open:
            raise RegistrationError("the source is not connected: write `async with from_mcp(...)`, or await it")
        return (offer.operation for each in self._catalogues.values() for offer in each.offers.by_id.values())

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Be told of every change; the function that is returned ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    @property
    def report(self) -> Report:
        """What of the servers could not be used, or not as it was given."""
        return merged(each.offers.report for each in self._catalogues.values())

    @property
    def servers(self) -> dict[str, ServerInfo]:
        """What the servers say of themselves, by name; those that were never connected are left out."""
        return {name: each.info for name, each in self._catalogues.items() if each.info is not None}

    def definition(self, operation_id: str) -> Mapping[str, Any] | None:
        """The tool or prompt as its server describes it, annotations and all; None if the operation is neither."""
        for each in self._catalogues.values():
            if offer := each.offers.by_id.get(operation_id):
                return offer.definition
        return None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect from every server; idempotent. Calls that are still running fail."""
        await asyncio.gather(*(each.close() for each in self._catalogues.values()))

    async def _open(self) -> Self:
        if self._is_open:
            return self
        try:
            async with asyncio.TaskGroup() as group:
                for name, each in self._catalogues.items():
                    group.create_task(self._open_one(name, each))
        except BaseExceptionGroup as failed:
            await self.close()
            raise failed.exceptions[0] from None
        except asyncio.CancelledError:
            await self.close()
            raise
        self._is_open = True
        return self

    async def _open_one(self, name: str, catalogue: Catalogue) -> None:
        try:
            await catalogue.open()
        except CallError as error:
            if self._required:
                raise
            self.failures[name] = error
            logger.warning("the MCP server %s is left out: %s", name, error)

    def _tell(self, change: SourceChange) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                logger.exception("a listener failed on a change of MCP operations")
