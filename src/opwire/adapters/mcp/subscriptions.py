"""How a server of 2026-07-28 tells of changes: a request that stays open, `subscriptions/listen`.

Earlier servers just send notifications. Here the same notifications come out, and a stream that broke is opened again.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from opwire.adapters.mcp.foreign import object_of, text_of
from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.mcp")

_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until a stream that ended is opened again; doubled each time
_LISTS = ("tools", "prompts", "resources")
_ids = itertools.count(1)  # of the process: the SDK's transport asks that an id is not used twice


def changes_of(capabilities: Mapping[str, Any]) -> dict[str, bool]:
    """The changes that a server says it tells of."""
    return {
        f"{kind}ListChanged": True for kind in _LISTS if object_of(capabilities.get(kind)).get("listChanged") is True
    }


class Subscriptions:
    """`listen` makes the request, under an id, and returns when the stream has ended."""

    def __init__(
        self,
        listen: Callable[[dict[str, Any], str], Awaitable[object]],
        notify: Callable[[str, dict[str, Any]], object],
    ) -> None:
        self._listen = listen
        self._notify = notify
        self._unacknowledged: dict[str, Callable[[], object]] = {}
        self._streams: dict[str, asyncio.Task[object]] = {}

    async def run(self, wanted: Mapping[str, Any], opened: Callable[[], object]) -> None:
        """Listen until cancelled; `opened` is called when the server has agreed for the first time.

        Raises:
            CallError: the server does not do this, or the connection is gone.
        """
        pause = _PAUSE
        while True:
            name = f"listen-{next(_ids)}"
            self._unacknowledged[name] = opened
            await self._stream(wanted, name)
            if self._unacknowledged.pop(name, None) is None:  # it was open
                pause = _PAUSE
                opened = partial(self._tell_all, wanted)  # what changes until the next one is open is not told
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _stream(self, wanted: Mapping[str, Any], name: str) -> None:
        """One stream. It is a task of its own, so that its end is told from ours."""
        stream = self._streams[name] = asyncio.ensure_future(self._listen({"notifications": dict(wanted)}, name))
        try:
            await asyncio.wait((stream,))
        finally:
            del self._streams[name]
            stream.cancel()
        error = None if stream.cancelled() else stream.exception()
        if isinstance(error, CallError) and error.code is ErrorCode.UNAVAILABLE and error.retryable:
            logger.debug("a subscription broke: %s", error)
        elif error is not None:
            raise error

    def _tell_all(self, wanted: Mapping[str, Any]) -> None:
        for kind in _LISTS:
            if wanted.get(f"{kind}ListChanged"):
                self._notify(f"notifications/{kind}/list_changed", {})
        for uri in wanted.get("resourceSubscriptions", ()):
            self._notify("notifications/resources/updated", {"uri": uri})

    def acknowledge(self, params: Mapping[str, Any]) -> None:
        """The server has agreed to a subscription."""
        opened = self._unacknowledged.pop(text_of(object_of(params.get("_meta")).get(SUBSCRIPTION_ID_META_KEY)), None)
        if opened is not None:
            opened()

    def end(self, params: Mapping[str, Any]) -> None:
        """The server has ended a subscription by cancelling our request."""
        stream = self._streams.get(text_of(params.get("requestId")))
        if stream is not None:
            stream.cancel()
