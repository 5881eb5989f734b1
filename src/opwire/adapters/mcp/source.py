"""`from_mcp`: MCP servers as a source of operations, kept up to date with their listings."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, Unpack

from msgspec.structs import replace

from opwire.adapters.mcp.listing import Listing, ListingReader
from opwire.adapters.mcp.negotiation import MCPServerInfo
from opwire.adapters.mcp.servers import (
    HTTPServer,
    MCPKeywords,
    MCPOptions,
    MCPServer,
    StdioServer,
    read_server,
    read_servers,
)
from opwire.adapters.mcp.session import MCPSession, ResourceUpdates
from opwire.adapters.report import Report
from opwire.adapters.source import AdapterSource
from opwire.errors import CallError, RegistrationError, UsageError
from opwire.names import UniqueNames
from opwire.operation import Operation, OperationSpec, SourceChange

logger = logging.getLogger("opwire.mcp")

SETTLE = 0.05
"""Seconds to wait after a change for the next: a server may send a notification for every tool that it adds."""

LONGEST_SETTLE = 5.0
"""The limit for a server that reports a change whenever it is listed: the delay doubles each time."""

_MAX_NAMESPACE = 100  # characters: every id starts with it
_CHANGES = frozenset({"notifications/tools/list_changed", "notifications/prompts/list_changed"})


def from_mcp(
    server: MCPServer | Path | str | Mapping[str, Any], *, required: bool = False, **options: Unpack[MCPKeywords]
) -> "MCPSource":
    """Return the tools, resources and prompts of one or more MCP servers as operations.

        async with from_mcp("https://tools.example/mcp", namespace="tools") as tools:
            registry.follow(tools)

        source = await from_mcp(StdioServer("uvx", ("mcp-server-time",)))  # closed by `await source.close()`

    Tools are mutations by default.

    Args:
        server: a URL, a `StdioServer` or `HTTPServer`, an entry of an `mcpServers` file, or a whole file: its path, or
            its content. The servers of a file have the namespaces of their keys.
        required: for a whole file: raise if a server cannot be reached. By default it is in `failures`, and the others
            are used.
        namespace: of the operations of a single server; the server's own name by default.
        trust_annotations: trust a server that marks a tool as read-only, which makes it a query, and another opwire in
            its description of operations: types, timeouts and, without a `namespace`, ids.
        elicit, sample, roots, log: the answers to requests of servers, see `Callbacks`.
        resources: whether to add operations for resources.
        prompts: whether to add operations for prompts.
        tool_timeout: of every call of a tool, in seconds.
        normalize: that of `OperationSpec`.
        strip: that of `OperationSpec`.
        connect_timeout: of connecting and listing, in seconds.
        max_message: bytes of one message from a server.

    Raises:
        UsageError: the server is invalid, or a namespace is given for a whole file.
        RegistrationError: an option is invalid for operations.
    """
    given = MCPOptions(**options)
    # Rejects, once and here, what every single operation would reject.
    OperationSpec(
        namespace="any" if given.namespace is None else given.namespace,
        name="any",
        timeout=given.tool_timeout,
        normalize=given.normalize,
    )
    if isinstance(server, StdioServer | HTTPServer):
        return MCPSource({server.name: (server, given)}, required=True)
    is_text = isinstance(server, str)
    if (is_text and "://" in server) or (
        isinstance(server, Mapping) and "mcpServers" not in server and "servers" not in server
    ):
        one = read_server(server)
        return MCPSource({one.name: (one, given)}, required=True)
    if given.namespace is not None:
        raise UsageError("every server of an mcpServers file has the namespace of its key: remove namespace=")
    servers = read_servers(server)
    namespaces = usable_namespaces(servers)
    named = {name: (each, replace(given, namespace=namespaces[name])) for name, each in servers.items()}
    return MCPSource(named, required=required)


def usable_namespace(name: str, default: str = "mcp") -> str:
    """Return the name, cut, with underscores for dots and control characters, which a namespace cannot contain."""
    given = name.strip()[:_MAX_NAMESPACE]
    return "".join(char if char.isprintable() and char != "." else "_" for char in given) or default


def usable_namespaces(names: Iterable[str]) -> dict[str, str]:
    """Return a unique namespace for each name: "a.b" and "a_b" become "a_b_2" and "a_b"."""
    names = list(names)
    unchanged = {name for name in names if usable_namespace(name) == name}
    unique = UniqueNames(unchanged)
    return {name: name if name in unchanged else unique.take(usable_namespace(name)) for name in names}


class MCPSource(AdapterSource):
    """The operations of MCP servers, for `registry.follow`. Returned by `from_mcp`.

    `await` or `async with` connects it; `close` or the end of the block closes it. A lost server is reconnected when
    one of its operations is called.
    """

    def __init__(self, servers: Mapping[str, tuple[MCPServer, MCPOptions]], *, required: bool) -> None:
        super().__init__()
        self._servers = {name: ServerOperations(*each, self.notify) for name, each in servers.items()}
        self._required = required
        self._is_open = False
        self._failures: dict[str, CallError] = {}

    def __repr__(self) -> str:
        state = f"{sum(1 for _ in self)} operations" if self._is_open else "not connected"
        return f"<MCPSource of {', '.join(self._servers)}: {state}>"

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations.

        Raises:
            RegistrationError: the source is not connected.
        """
        if not self._is_open:
            raise RegistrationError("the source is not connected: write `async with from_mcp(...)`, or await it")
        return (listed.operation for each in self._servers.values() for listed in each.listing.by_id.values())

    @property
    def report(self) -> Report:
        """The skipped items and warnings of all servers."""
        merged = Report()
        for each in self._servers.values():
            merged.add(each.listing.report)
        return merged

    @property
    def failures(self) -> dict[str, CallError]:
        """The errors of servers that could not be connected, by name."""
        return self._failures

    @property
    def servers(self) -> dict[str, MCPServerInfo]:
        """The self-descriptions of all servers that were ever connected, by name."""
        return {name: info for name, each in self._servers.items() if (info := each.session.info) is not None}

    def definition(self, operation_id: str) -> Mapping[str, Any] | None:
        """Return the server's definition of a tool or prompt, with annotations; None for an unknown operation."""
        found = (each.listing.by_id.get(operation_id) for each in self._servers.values())
        return next((listed.definition for listed in found if listed is not None), None)

    async def open(self) -> Self:
        """Connect to all servers; idempotent.

        Raises:
            CallError: a server that is required cannot be reached.
        """
        if self._is_open:
            return self

        async def open_one(name: str, server: "ServerOperations") -> None:
            try:
                await server.open()
            except CallError as error:
                if self._required:
                    raise
                self._failures[name] = error
                logger.warning("the MCP server %s is skipped: %s", name, error)

        try:
            async with asyncio.TaskGroup() as group:
                for name, each in self._servers.items():
                    group.create_task(open_one(name, each))
        except BaseExceptionGroup as failed:
            await self.close()
            raise failed.exceptions[0] from None
        except asyncio.CancelledError:
            await self.close()
            raise
        self._is_open = True
        return self

    async def close(self) -> None:
        """Disconnect from every server; idempotent. Calls in flight fail."""
        await asyncio.gather(*(each.close() for each in self._servers.values()))


class ServerOperations:
    """The operations of one server, from `open` to `close`."""

    def __init__(self, server: MCPServer, options: MCPOptions, notify: Callable[[SourceChange], None]) -> None:
        self._options = options
        self._notify = notify
        self._updates = ResourceUpdates()
        self._stale = asyncio.Event()
        self._reconnected = False
        self._task: asyncio.Task[None] | None = None
        self.session = MCPSession(
            server,
            callbacks=options,
            connect_timeout=options.connect_timeout,
            on_notification=self._on_notification,
            on_connected=self._on_connected,
            max_message=options.max_message,
        )
        self.listing = Listing()

    async def open(self) -> None:
        """Connect, and read the listing.

        Raises:
            CallError: the server is unreachable, or does not list its tools.
        """
        try:
            info = await self.session.start()
            namespace = self._options.namespace or usable_namespace(info.name)
            reader = ListingReader(self.session, self._options, namespace, self._updates)
            self._reconnected = False
            self._stale.clear()
            self._replace(await reader.read(self._options.connect_timeout))
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._keep_up(reader))

    async def close(self) -> None:
        """Disconnect; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._updates.close()
        await self.session.close()

    def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method in _CHANGES:
            self._stale.set()
        elif method == "notifications/resources/updated":
            self._updates.publish(params)

    def _on_connected(self) -> None:
        self._reconnected = True
        self._stale.set()

    async def _keep_up(self, reader: ListingReader) -> None:
        settle, took, was_read = SETTLE, 0.0, 0.0
        while True:
            await self._stale.wait()
            settle = min(settle * 2, LONGEST_SETTLE) if time.monotonic() < was_read + settle else SETTLE
            await asyncio.sleep(max(settle, took))  # a server with a slow listing takes at most half of the time
            self._stale.clear()
            started = time.monotonic()
            try:
                listing = await reader.read(self._options.connect_timeout)
                if self._reconnected:  # not before, because the resources are watched again only now
                    self._reconnected = False
                    self._updates.missed()
                before = self._replace(listing)
                put = listing.changed_since(before)
                gone = tuple(id for id in before.by_id if id not in listing.by_id)
                if put or gone:
                    self._notify(SourceChange(put, gone))
            except CallError as error:  # retried after the next change, or the next connect
                logger.warning("a changed listing of an MCP server cannot be read: %s", error)
            except Exception:  # this task must go on
                logger.exception("a changed listing of an MCP server is invalid")
            was_read = time.monotonic()
            took = was_read - started

    def _replace(self, listing: Listing) -> Listing:
        """Replace the listing, log new entries of its report, and return the old one."""
        before, self.listing = self.listing, listing
        known = set(before.report)
        for line in listing.report:
            if line not in known:
                logger.warning("%s", line)
        return before
