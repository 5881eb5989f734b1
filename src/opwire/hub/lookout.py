"""What a hub does on a broker, where nobody comes to a door: it looks around, again and again."""

import asyncio
import logging
from collections.abc import Container

from opwire.call import Address, Found, OperationInfo, PendingRequestMap, discover
from opwire.errors import CallError
from opwire.hub.mirror import Mirror

logger = logging.getLogger("opwire.hub")


class Lookout:
    """Keeps a mirror up to date with what is served on a broker. `own` are the operations that are not to be shown."""

    def __init__(self, calls: PendingRequestMap, mirror: Mirror, own: Container[object], server_id: str) -> None:
        self._calls = calls
        self._mirror = mirror
        self._own = own
        self._server_id = server_id
        self._seen: dict[Address, set[str]] = {}
        self._refused: set[str] = set()  # what was logged already

    async def look(self) -> None:
        """Show what is served now.

        Raises:
            CallError: UNAVAILABLE.
        """
        found = [each for each in await discover(self._calls) if each.server.id != self._server_id]
        # Those who are new before those who are gone: whoever has reconnected has another address.
        for each in found:
            before = self._seen.get(each.address, set())
            now = self._seen[each.address] = self._show(each)
            self._mirror.hide(each.address, before - now)
        for gone in self._seen.keys() - {each.address for each in found}:
            del self._seen[gone]
            self._mirror.lost(gone)

    async def keep_looking(self, every: float) -> None:
        """Look once in so many seconds."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.look()
            except CallError as error:
                logger.info("the hub could not look around: %s", error)

    def _show(self, found: Found) -> set[str]:
        shown: set[str] = set()
        for info in found.operations:
            if info.id in self._own and info.id not in self._mirror:
                continue  # it is served here as well
            try:
                self._show_one(found.address, info)
                shown.add(info.id)
            except CallError as error:
                if info.id not in self._refused:
                    self._refused.add(info.id)
                    logger.warning("%s at %s is not shown: %s", found.server.name, found.address, error.message)
        return shown

    def _show_one(self, address: Address, info: OperationInfo) -> None:
        digest = info.fingerprint().digest
        if digest == self._mirror.digest(info.id):
            self._mirror.join(address, [info.id])
            return
        operation = self._mirror.check(info, digest)
        conflict = self._mirror.conflict(address, operation)
        if conflict is not None:
            raise conflict
        self._mirror.show(address, [operation])
