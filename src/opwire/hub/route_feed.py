"""What a hub announces to the other hubs of its cluster."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from opwire.call.description import OperationInfo
from opwire.monitor import Statistics
from opwire.operation import OperationSpec

Version = tuple[str, str]
"""A version of an operation: the operation's id, and the version."""

_NO_CALLS = Statistics()


class RouteChange(Struct, omit_defaults=True):
    """A change of the routes of a hub, or (without an operation) the end of those that it had when asked.

    `number` counts the changes, from 1. Without a description the operation is not served there any more; `expected`:
    it is expected back.
    """

    number: int
    id: str = ""
    version: str = ""
    description: dict[str, Any] | None = None
    expected: bool = False
    proof: str = ""  # in the first one, if there is a secret


class RouteFeed:
    """What this hub offers to others: a stream for each of them, in which only the last change of a route counts."""

    def __init__(self) -> None:
        self.number = 0
        self._offered: dict[Version, RouteChange] = {}
        self._followers: dict[asyncio.Event, dict[Version, RouteChange]] = {}

    def put(self, id: str, version: str, spec: OperationSpec | None, *, expected: bool = False) -> None:
        """Offer a version of an operation, or (None) do not offer it any more."""
        key = id, version
        if spec is None and key not in self._offered:
            return
        self.number += 1
        change = RouteChange(self.number, id, version, expected=expected)
        if spec is None:
            del self._offered[key]
        else:
            change.description = OperationInfo.of(spec, _NO_CALLS).plain()
            self._offered[key] = change
        for news, changes in self._followers.items():
            changes.pop(key, None)  # so that numbers ascend
            changes[key] = change
            news.set()

    def __contains__(self, key: Version) -> bool:
        return key in self._offered

    async def follow(self) -> AsyncIterator[RouteChange]:
        """Yield what is offered, and then every change."""
        news, changes = asyncio.Event(), dict(sorted(self._offered.items(), key=lambda each: each[1].number))
        self._followers[news] = changes
        number, greeted = self.number, False
        try:
            while True:
                while changes:
                    yield changes.pop(next(iter(changes)))
                if not greeted:
                    greeted = True
                    yield RouteChange(number)
                news.clear()
                await news.wait()
        finally:
            del self._followers[news]
