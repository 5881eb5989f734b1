"""`BrokerNode`: a registry on a broker that lists what other processes serve there."""

import asyncio
import logging
from collections.abc import Container
from typing import Any, Self

from opwire.call import Address, FoundServer, OperationInfo, PendingRequestMap, discover
from opwire.errors import CallError, UsageError, check_above_zero, check_not_below_zero
from opwire.hub.remote_operations import RemoteOperations
from opwire.hub.spoke import Spoke
from opwire.operation import Identity
from opwire.registry import OperationRegistry

logger = logging.getLogger("opwire.hub")


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
        version: str = "0.0.0",
        anonymous: Identity | None = None,
        linger: float = 30.0,
        refresh: float = 5.0,
        **options: Any,
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
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        await super().close()
        self._remote.clear()


class DiscoveryPoller:
    """Keeps remote operations up to date with what is served on a broker, ignoring the operations in `own`."""

    def __init__(
        self, calls: PendingRequestMap, remote: RemoteOperations, own: Container[object], server_id: str
    ) -> None:
        self._calls = calls
        self._remote = remote
        self._own = own
        self._server_id = server_id
        self._seen: dict[Address, set[str]] = {}
        self._rejected: set[str] = set()  # logged already

    async def poll(self) -> None:
        """Discover the servers once.

        Raises:
            CallError: UNAVAILABLE.
        """
        found = [each for each in await discover(self._calls) if each.server.id != self._server_id]
        # New servers before lost ones: a server that has reconnected has another address.
        for each in found:
            before = self._seen.get(each.address, set())
            now = self._seen[each.address] = self._add(each)
            self._remote.remove(each.address, before - now)
        for gone in self._seen.keys() - {each.address for each in found}:
            del self._seen[gone]
            self._remote.lost(gone)

    async def run(self, interval: float) -> None:
        """Poll forever, every `interval` seconds."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.poll()
            except CallError as error:
                logger.info("discovery on the broker failed and is retried: %s", error)

    def _add(self, found: FoundServer) -> set[str]:
        """Add the operations of a server; return the ids of those that were accepted."""
        accepted: set[str] = set()
        for info in found.operations:
            if info.id in self._own and info.id not in self._remote:
                continue  # served here as well
            try:
                self._add_one(found.address, info)
                accepted.add(info.id)
            except CallError as error:
                if info.id not in self._rejected:
                    self._rejected.add(info.id)
                    logger.warning(
                        "ignoring an operation of %s at %s: %s", found.server.name, found.address, error.message
                    )
        return accepted

    def _add_one(self, address: Address, info: OperationInfo) -> None:
        digest = info.fingerprint().digest
        if digest == self._remote.digest(info.id):
            self._remote.join(address, [info.id])
            return
        operation = self._remote.check(info, digest)
        conflict = self._remote.conflict(address, operation)
        if conflict is not None:
            raise conflict
        self._remote.add(address, [operation])
