"""`Spoke`: serves a registry over a hub or a broker, and calls what others serve there.

`BrokerNode` is a spoke on a broker that also lists in its registry what other processes serve there.
"""

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import Self, Unpack

from opwire.client.client import Client
from opwire.errors import CallError, UsageError, check_above_zero, check_counts, check_instance, check_not_below_zero
from opwire.hub.remote_operations import RemoteOperations
from opwire.model.access import may_access
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec
from opwire.names import counted
from opwire.protocol.discovery import FoundServer, discover
from opwire.protocol.handler import CallHandler
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address, Transport
from opwire.registry import OperationRegistry
from opwire.runtime.tasks import cancel_tasks
from opwire.runtime.text import get_logger
from opwire.transports.connect import TransportOptions, connect
from opwire.version import VERSION

logger = get_logger("opwire.hub")

_MAX_LOGGED_REJECTIONS = 1_000  # any client of a broker can describe operations


class Spoke(Client):
    """A `Client` that also serves a registry, over the same connection.

        async with Spoke(registry, "ws://127.0.0.1:8700", token="…") as spoke:  # a hub
            data = await spoke.call("math.add", {"a": 1, "b": 2})

        async with Spoke(registry, ["ws://a:8700", "ws://b:8700"], token="…") as spoke:  # one of several hubs
            ...

        async with Spoke(registry, "redis://127.0.0.1:6379") as spoke:  # a broker, without a hub
            ...

    Without a registry it only calls. `url` may be a transport. It never retries. `calls` is its end of the protocol,
    for envelopes and options such as `sticky_key`.

    `anonymous` is the identity of callers without one; `announces` selects the operations that others are shown, by
    default all of them; `options` are those of the transport (`token`, `heartbeat`, `ssl`, …).
    """

    def __init__(
        self,
        registry: OperationRegistry | None,
        url: str | Sequence[str] | Transport,
        *,
        name: str = "opwire",
        version: str = VERSION,
        anonymous: Identity | None = None,
        max_calls: int = 50_000,
        max_calls_per_identity: int | None = None,
        announces: Callable[[OperationSpec], bool] | None = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        check_counts(max_calls=max_calls, max_calls_per_identity=max_calls_per_identity)
        check_instance(OperationRegistry, registry=registry)
        check_instance(Identity, anonymous=anonymous)
        self.registry = OperationRegistry() if registry is None else registry
        if not isinstance(url, str | Sequence):
            check_instance(Transport, url=url)
        self.transport = connect(url, **options) if isinstance(url, str | Sequence) else url
        self.calls = PendingRequestMap(self.transport)
        super().__init__(self.calls, retries=None)
        self._anonymous = anonymous
        self.handler = CallHandler(
            self.registry,
            self.calls,
            name=name,
            version=version,
            anonymous=anonymous,
            max_calls=max_calls,
            max_calls_per_identity=max_calls_per_identity,
            announces=announces,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {counted(len(self.registry), 'operation')} over {self.transport!r}>"

    async def start(self) -> Self:
        """Connect, and announce the operations of the registry.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, the token is invalid; ACCESS_DENIED, VALIDATION_ERROR or
                RATE_LIMITED, the hub rejects an operation.
        """
        await self.calls.start()
        await super().start()
        try:
            await self.handler.start()
        except BaseException:
            await super().close()
            await self.calls.close()
            raise
        specs = self.registry.list()
        identifies = self.transport.trusted or self.transport.local
        if specs and not identifies and not any(may_access(spec, self._anonymous) for spec in specs):
            logger.warning(
                "no caller has access to the operations that are served here (%d): callers over a broker are anonymous "
                "unless their requests are signed. Allow anonymous callers (`--open`, or `anonymous` in [spoke]), "
                "verify signatures (`--authority`, or [spoke.signed]), or make operations public",
                len(specs),
            )
        return self

    async def drain(self, timeout: float = 30.0) -> bool:
        """Reject new calls, finish those in flight, and close. Return False if some did not end in time."""
        finished = await self.handler.drain(timeout)
        await self.close()
        return finished

    async def close(self) -> None:
        """Disconnect. Calls in flight are cancelled: `drain` finishes them first."""
        await self.handler.close()
        await super().close()
        await self.calls.close()

    async def discover(self, *, wait: float = 0.5) -> list[FoundServer]:
        """Return every server, with its operations, its health and its statistics.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await discover(self.calls, wait=wait)


class BrokerNode(Spoke):
    """Serves a registry over Redis or NATS, and adds to it the operations that others serve on the broker.

        async with BrokerNode(registry, "nats://127.0.0.1:4222") as node:
            print([spec.id for spec in node.registry.list()])  # local and remote operations
            await node.registry.execute("billing.charge", {"order": 17})

    It discovers the others every `refresh` seconds. Operations of a server that was lost stay listed for `linger`
    seconds, in which calls of them raise UNAVAILABLE. The other options are those of `Spoke`. A broker authenticates
    its clients itself; `signed=SignedRequests(…)` proves the identity of each caller.

    Raises:
        UsageError: the URL is not that of a broker, or an option is invalid.
        MissingExtraError: the transport needs an optional dependency.
    """

    def __init__(
        self,
        registry: OperationRegistry | None,
        url: str,
        *,
        name: str = "node",
        version: str = VERSION,
        anonymous: Identity | None = None,
        linger: float = 30.0,
        refresh: float = 5.0,
        **options: Unpack[TransportOptions],
    ) -> None:
        check_above_zero(refresh=refresh)
        check_not_below_zero(linger=linger)
        if url.startswith(("ws://", "wss://")):
            raise UsageError("a BrokerNode takes the URL of a broker: use Hub to listen, or Spoke to connect to a hub")
        super().__init__(
            registry,
            url,
            name=name,
            version=version,
            anonymous=anonymous,
            announces=lambda spec: spec.id not in self._remote,
            **options,
        )
        self.url = url
        self._remote = RemoteOperations(self.registry, self.calls, linger=linger)
        self._refresh = refresh
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Connect, announce the operations of the registry, and discover those of others.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._remote.begin()
        await super().start()
        try:
            poller = DiscoveryPoller(self.calls, self._remote, self.registry, self.handler.about().id)
            await poller.poll()
        except BaseException:
            await self.close()
            raise
        self._polling = asyncio.create_task(poller.run(self._refresh))
        return self

    async def close(self) -> None:
        """Disconnect. Calls in flight are cancelled: `drain` finishes them first."""
        await cancel_tasks(self._polling)
        await super().close()
        self._remote.clear()


class DiscoveryPoller:
    """Keeps remote operations up to date with what is served on a broker, ignoring the operations in `own`."""

    def __init__(
        self, calls: PendingRequestMap, remote: RemoteOperations, own_operations: Container[object], server_id: str
    ) -> None:
        self._calls = calls
        self._remote = remote
        self._own = own_operations
        self._server_id = server_id
        self._seen: dict[Address, set[str]] = {}
        self._rejected: set[str] = set()  # logged already

    async def poll(self) -> None:
        """Discover the servers once."""
        servers = [server for server in await discover(self._calls) if server.server.id != self._server_id]
        # New servers before lost ones: a server that has reconnected has another address.
        for server in servers:
            former_ids = self._seen.get(server.address, set())
            current_ids = self._seen[server.address] = self._add(server)
            self._remote.remove(server.address, former_ids - current_ids)
        for lost_address in self._seen.keys() - {server.address for server in servers}:
            del self._seen[lost_address]
            self._remote.lost(lost_address)

    async def run(self, interval: float) -> None:
        """Poll forever, every `interval` seconds."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.poll()
            except CallError as error:
                logger.info("discovery on the broker failed and is retried: %s", error)

    def _add(self, server: FoundServer) -> set[str]:
        """Add the operations of a server; return the ids of those that were accepted."""
        accepted: set[str] = set()
        for info in server.operations:
            if info.id in self._own and info.id not in self._remote:
                continue  # served here as well
            try:
                digest = info.fingerprint().digest
                if digest == self._remote.digest(info.id):
                    self._remote.join(server.address, [info.id])
                else:
                    operation = self._remote.check(info, digest)
                    self._remote.check_conflict(server.address, operation)
                    self._remote.add(server.address, [operation])
                accepted.add(info.id)
            except CallError as error:
                if info.id not in self._rejected and len(self._rejected) < _MAX_LOGGED_REJECTIONS:
                    self._rejected.add(info.id)
                    logger.warning(
                        "ignoring an operation of %s at %s: %s", server.server.name, server.address, error.message
                    )
        return accepted
