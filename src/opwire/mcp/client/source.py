"""`from_mcp`: MCP servers as a source of operations, kept up to date with their listings."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import (
    CallError,
    ErrorCode,
    RegistrationError,
    UsageError,
    check_above_zero,
    check_choice,
    check_known,
)
from opwire.mcp.client.negotiation import MCPServerInfo, as_text
from opwire.mcp.client.options import MCPKeywords, MCPOptions, server_auth
from opwire.mcp.client.resources import (
    MAX_REPORTED,
    can_complete,
    is_empty,
    list_all,
    list_operation,
    read_prompt,
    resource_operations,
)
from opwire.mcp.client.servers import (
    HTTPServer,
    MCPServer,
    StdioServer,
    read_server,
    read_servers,
    usable_namespace,
    usable_namespaces,
)
from opwire.mcp.client.session import CallerSessions, MCPSession, MCPSessions
from opwire.mcp.client.tools import ToolReader, declared_headers, skip
from opwire.mcp.client.transport import with_output
from opwire.mcp.revisions import STATELESS_VERSIONS, ArgumentHeader
from opwire.model.operation import NormalizeMode, Operation, OperationSpec
from opwire.registry.source import AdapterSource, Report, SourceChange
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict

if TYPE_CHECKING:
    from opwire.model.login import LoginOptions

logger = get_logger("opwire.mcp.client")

_SLICE_SECONDS = 0.01  # then other tasks run


class ListedOperation(Struct, frozen=True):
    """An operation, and its definition by the server: empty for operations that every server has.

    `changes` counts the changes of the list that the operation serves.
    """

    operation: Operation
    definition: Mapping[str, Any] = {}
    changes: int = 0


class Listing:
    """The operations of a server by id, and the report of what was skipped."""

    def __init__(self) -> None:
        self.by_id: dict[str, ListedOperation] = {}
        self.report = Report(MAX_REPORTED)

    def put(
        self, operation: Operation | None, definition: Mapping[str, Any] | None = None, *, changes: int = 0
    ) -> None:
        """Add an operation; skip one with a duplicate id."""
        if operation is None:
            return
        spec = operation.spec
        if spec.id in self.by_id:
            self.report.skip("operation", spec.id, "the id is a duplicate")
        else:
            self.by_id[spec.id] = ListedOperation(operation, definition or {}, changes)

    def changed_since(self, earlier: "Listing") -> tuple[Operation, ...]:
        """Return new and changed operations. Handlers are not compared: the definition determines them."""
        return tuple(
            listed.operation
            for id, listed in self.by_id.items()
            if (earlier_listed := earlier.by_id.get(id)) is None
            or (earlier_listed.definition, earlier_listed.changes) != (listed.definition, listed.changes)
        )


class ListingReader:
    """Read the listing of one server."""

    def __init__(self, session: MCPSession, sessions: MCPSessions, options: MCPOptions, namespace: str) -> None:
        self._session = session
        self._sessions = sessions
        self._options = options
        self._namespace = namespace

    async def read(self, timeout: float, *, changes: int = 0) -> Listing:
        """Return everything that the server lists now; `changes` is how often its resources have changed.

        Raises:
            CallError: as `MCPSession.request`.
        """
        listing, namespace = Listing(), self._namespace
        capabilities = {} if self._session.info is None else self._session.info.capabilities
        deadline = time.monotonic() + timeout
        # Always requested: some servers have tools without announcing them.
        tools = await self._list("tools/list", "tools", listing.report, deadline, announced="tools" in capabilities)
        is_modern = self._session.info is not None and self._session.info.protocol in STATELESS_VERSIONS
        headers: dict[str, list[ArgumentHeader]] = {}
        reader = ToolReader(self._sessions, self._options, namespace, listing.report)
        async for tool in _in_slices(tools):
            name = as_text(tool.get("name"))
            try:
                if is_modern and (declared := declared_headers(tool)):
                    headers[name] = declared
            except ValueError as error:  # the protocol has clients leave out such tools
                skip(listing.report, "tool", namespace, name, str(error))
            else:
                listing.put(reader.read(tool), tool)
        self._session.send_headers(headers)
        completes = self._session.info is not None and can_complete(self._session.info)
        if self._options.resources and "resources" in capabilities and await self._has_resources(deadline):
            watchable = as_dict(capabilities["resources"]).get("subscribe") is True
            for operation in resource_operations(self._sessions, namespace, watchable=watchable, completes=completes):
                listing.put(operation, changes=changes)
        if self._options.prompts and "prompts" in capabilities:
            prompts = await self._list("prompts/list", "prompts", listing.report, deadline, announced=True)
            if prompts:
                listing.put(list_operation(self._sessions, namespace, "prompts/list", "prompts", "List all prompts."))
            async for prompt in _in_slices(prompts):
                reading = (self._sessions, self._options, namespace, listing.report)
                listing.put(read_prompt(prompt, *reading, completes=completes), prompt)
        return listing

    async def _has_resources(self, deadline: float) -> bool:
        """Return whether the server has resources or templates: many announce them, and have none."""
        for method, key in (("resources/list", "resources"), ("resources/templates/list", "resourceTemplates")):
            if not await is_empty(self._session, method, key, deadline=deadline):
                return True
        return False

    async def _list(
        self, method: str, key: str, report: Report, deadline: float, *, announced: bool
    ) -> list[dict[str, Any]]:
        try:
            return await list_all(self._session, method, key, report, deadline=deadline)
        except CallError as error:
            if error.code is ErrorCode.OPERATION_NOT_FOUND and announced:
                report.warn(f"{method}: the server announces this method, and does not implement it")
            elif announced or error.code in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT):
                raise
            return []


async def _in_slices(entries: Iterable[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """Yield the entries, and let other tasks run: compiling the schemas of many tools takes seconds."""
    slice_ends = time.monotonic() + _SLICE_SECONDS
    for listed_entry in entries:
        yield listed_entry
        if time.monotonic() > slice_ends:
            await asyncio.sleep(0)
            slice_ends = time.monotonic() + _SLICE_SECONDS


SETTLE_SECONDS = 0.05
"""Seconds to wait after a change for the next: a server may send a notification for every tool that it adds."""

LONGEST_SETTLE_SECONDS = 5.0
"""The limit for a server that reports a change whenever it is listed: the delay doubles each time."""

_RESOURCES_CHANGED = "notifications/resources/list_changed"
_CHANGES = frozenset({"notifications/tools/list_changed", "notifications/prompts/list_changed", _RESOURCES_CHANGED})


def from_mcp(
    server: MCPServer | Path | str | Mapping[str, Any], *, required: bool = False, **options: Unpack[MCPKeywords]
) -> "MCPSource":
    """Return the tools, resources and prompts of one or more MCP servers as operations.

        async with from_mcp("https://tools.example/mcp", namespace="tools") as tools:
            registry.follow(tools)

        source = await from_mcp(StdioServer("uvx", ("mcp-server-time",)))  # closed by `await source.close()`

    Args:
        server: a URL, a `StdioServer` or `HTTPServer`, an entry of an `mcpServers` file, or a whole file: its path, or
            its content. The servers of a file have the namespaces of their keys.
        required: for a whole file: raise if a server cannot be reached. By default it is in `failures`, and the others
            are used.

    Options:

    - `namespace`: of the operations of a single server; the server's own name by default.
    - `trust_annotations`: trust a server that marks a tool as read-only, which makes it a query instead of a mutation,
      and another opwire in its description of operations: types, timeouts and, without a `namespace`, ids.
    - `elicit`, `sample`, `roots`, `log`: the answers to requests of servers, see `Callbacks`.
    - `resources`, `prompts`: whether to add operations for them.
    - `strict_input`: reject arguments that do not match their schema; by default they are sent, with a warning.
    - `revision`: the only one to speak, such as "2025-06-18"; by default the latest that both sides know.
    - `tool_timeout`: of every call of a tool, in seconds.
    - `normalize`, `strip`: those of `OperationSpec`.
    - `connect_timeout`: of connecting and listing, in seconds.
    - `max_message`: bytes of one message from a server.
    - `auth`: the OAuth client for servers behind a URL, `OAuthClient(login=True)` for the login of a person; see
      `MCPSource.login`. With `OAuthClient(exchange=True)`, `caller_token` or another function that takes a context and
      returns a token or headers, each caller has its own session and credentials; see `CallerSessions`.
    - `token_store`: where logins are stored; by default in the user's keyring, or in files.

    Raises:
        UsageError: the server or an option is invalid, or a namespace is given for a whole file.
        RegistrationError: the namespace is invalid.
    """
    check_known(options, MCPKeywords.__annotations__, "from_mcp")
    mcp_options = MCPOptions(**options)
    check_above_zero(tool_timeout=mcp_options.tool_timeout, connect_timeout=mcp_options.connect_timeout)
    check_choice(NormalizeMode, normalize=mcp_options.normalize)
    if mcp_options.namespace is not None:
        OperationSpec(namespace=mcp_options.namespace, name="any")
    if isinstance(server, StdioServer | HTTPServer):
        return MCPSource({server.name: (server, mcp_options)}, required=True)
    is_text = isinstance(server, str)
    if (is_text and "://" in server) or (
        isinstance(server, Mapping) and "mcpServers" not in server and "servers" not in server
    ):
        only_server = read_server(server)
        return MCPSource({only_server.name: (only_server, mcp_options)}, required=True)
    if mcp_options.namespace is not None:
        raise UsageError("every server of an mcpServers file has the namespace of its key: remove namespace=")
    servers = read_servers(server)
    namespaces = usable_namespaces(servers)
    servers_by_name = {
        name: (server_address, replace(mcp_options, namespace=namespaces[name]))
        for name, server_address in servers.items()
    }
    return MCPSource(servers_by_name, required=required)


class MCPSource(AdapterSource):
    """The operations of MCP servers, for `registry.follow`. Returned by `from_mcp`.

    `await` or `async with` connects it; `close` or the end of the block closes it. A lost server is reconnected when
    one of its operations is called.
    """

    def __init__(self, servers: Mapping[str, tuple[MCPServer, MCPOptions]], *, required: bool) -> None:
        super().__init__()
        self._servers = {
            name: ServerOperations(*server_and_options, self.notify) for name, server_and_options in servers.items()
        }
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
        return (listed.operation for server in self._servers.values() for listed in server.listing.by_id.values())

    @property
    def report(self) -> Report:
        """The skipped items and warnings of all servers."""
        merged = Report()
        for server in self._servers.values():
            merged.add(server.listing.report)
        return merged

    @property
    def failures(self) -> dict[str, CallError]:
        """The errors of servers that could not be connected, by name."""
        return self._failures

    @property
    def servers(self) -> dict[str, MCPServerInfo]:
        """The self-descriptions of all servers that were ever connected, by name."""
        return {name: info for name, server in self._servers.items() if (info := server.session.info) is not None}

    @property
    def instructions(self) -> dict[str, str]:
        """The servers' instructions for models, by namespace."""
        namespaces = ((server.namespace, server.session.info) for server in self._servers.values())
        return {
            namespace: info.instructions for namespace, info in namespaces if info is not None and info.instructions
        }

    def definition(self, operation_id: str) -> Mapping[str, Any] | None:
        """Return the server's definition of a tool or prompt, with annotations; None for an unknown operation."""
        listed_operations = (server.listing.by_id.get(operation_id) for server in self._servers.values())
        return next((listed.definition for listed in listed_operations if listed is not None), None)

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
                message = with_output(error.message, server.session.last_output)
                explained = CallError(error.code, message, error.details, retryable=error.retryable)
                if self._required:
                    raise explained from error
                self._failures[name] = explained
                logger.warning("the MCP server %s is skipped: %s", name, error)

        try:
            async with asyncio.TaskGroup() as group:
                for name, server in self._servers.items():
                    group.create_task(open_one(name, server))
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
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def sign_in(self, options: "LoginOptions") -> tuple[str, ...]:
        """Sign in to each server that has `login` in its `auth`."""
        auths = {name: server.auth for name, server in self._servers.items() if server.auth and server.auth.is_login}
        if not auths:
            raise UsageError("no server behind a URL has an OAuth client with `login` as its auth")
        for auth in auths.values():
            await auth.sign_in(options)
        return tuple(auths)

    async def logout(self) -> tuple[str, ...]:
        """Delete the stored logins of these servers, and revoke them; return the names of the servers."""
        auths = {name: server.auth for name, server in self._servers.items() if server.auth}
        return tuple([name for name, auth in auths.items() if await auth.sign_out()])


class ServerOperations:
    """The operations of one server, from `open` to `close`."""

    def __init__(self, server: MCPServer, options: MCPOptions, notify: Callable[[SourceChange], None]) -> None:
        self._options = options
        self._notify = notify
        self.auth = server_auth(server, options)
        self._stale = asyncio.Event()
        self._resource_changes = 0
        self._task: asyncio.Task[None] | None = None
        by_caller = options.auth if callable(options.auth) else self.auth if self.auth and self.auth.exchanges else None
        has_header = isinstance(server, HTTPServer) and any(name.lower() == "authorization" for name in server.headers)
        self.session = MCPSession(
            server,
            options,
            # Where tokens of callers are exchanged, a header of the server is there to list its tools with.
            auth=None if has_header and by_caller is not None else self.auth,
            on_notification=self._on_notification,
            on_connected=self._stale.set,
        )
        self._sessions: MCPSession | CallerSessions = self.session
        if by_caller is not None and isinstance(server, HTTPServer):
            self._sessions = CallerSessions(server, by_caller, self.session, options)
        self.listing = Listing()
        self.namespace = ""
        """The namespace of the operations, once the server was connected."""

    async def open(self) -> None:
        """Connect, and read the listing.

        Raises:
            CallError: the server is unreachable, or does not list its tools.
        """
        try:
            info = await self.session.start()
            self.namespace = self._options.namespace or usable_namespace(info.name)
            reader = ListingReader(self.session, self._sessions, self._options, self.namespace)
            self._stale.clear()
            self._replace(await reader.read(self._options.connect_timeout))
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._keep_up(reader))

    async def close(self) -> None:
        """Disconnect; idempotent."""
        if self._task is not None and not self._task.done():  # it is done if its event loop has ended
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._sessions.close()
        await self.session.close()
        if self.auth is not None:
            await self.auth.close()

    def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method in _CHANGES:
            self._resource_changes += method == _RESOURCES_CHANGED
            self._stale.set()

    async def _keep_up(self, reader: ListingReader) -> None:
        settle_seconds = SETTLE_SECONDS
        read_at = 0.0
        read_seconds = 0.0
        while True:
            await self._stale.wait()
            is_soon = time.monotonic() < read_at + settle_seconds
            settle_seconds = min(settle_seconds * 2, LONGEST_SETTLE_SECONDS) if is_soon else SETTLE_SECONDS
            # A server with a slow listing takes at most half of the time.
            await asyncio.sleep(max(settle_seconds, read_seconds))
            self._stale.clear()
            started = time.monotonic()
            try:
                listing = await reader.read(self._options.connect_timeout, changes=self._resource_changes)
                earlier_listing = self._replace(listing)
                changed_operations = listing.changed_since(earlier_listing)
                removed_ids = tuple(id for id in earlier_listing.by_id if id not in listing.by_id)
                if changed_operations or removed_ids:
                    self._notify(SourceChange(changed_operations, removed_ids))
            except CallError as error:  # retried after the next change, or the next connect
                logger.warning("a changed listing of an MCP server cannot be read: %s", error)
            except Exception:  # this task must go on
                logger.exception("a changed listing of an MCP server is invalid")
            read_at = time.monotonic()
            read_seconds = read_at - started

    def _replace(self, listing: Listing) -> Listing:
        """Replace the listing, log new entries of its report, and return the old one."""
        earlier_listing, self.listing = self.listing, listing
        earlier_lines = set(earlier_listing.report)
        for line in listing.report:
            if line not in earlier_lines:
                logger.warning("%s", line)
        return earlier_listing
