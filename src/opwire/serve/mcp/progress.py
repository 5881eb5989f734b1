"""How far a call has come, as progress notifications: of a handler that reports, and of a subscription's items."""

import asyncio
from math import inf, isfinite
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types import ProgressNotification, ProgressNotificationParams

from opwire.operation import Progress
from opwire.origin import ITEM_META
from opwire.serve.mcp.results import Sendable
from opwire.typed.plain import replace_surrogates

_MAX_MESSAGE = 200
_MAX_REPORT = 2000

RequestContext = ServerRequestContext[Any, Any]


def progress_token(ctx: RequestContext) -> str | int | None:
    """The token of a client that wants to know."""
    return None if ctx.meta is None else ctx.meta.get("progress_token")


class Reports:
    """Sends what a handler reports, as fast as the client takes it: what is overtaken by a newer one is left out."""

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        self._highest = float("-inf")
        self._sending: asyncio.Task[None] | None = None
        self._any = False
        self._closed = False

    def __call__(self, progress: Progress) -> None:
        """Take a report, from whatever thread."""
        self._any = True
        self._loop.call_soon_threadsafe(self._take, progress)

    def _take(self, progress: Progress) -> None:
        sent = _sendable(progress)
        if self._closed or sent is None or not sent.progress > self._highest:  # the protocol: each above the one before
            return
        self._latest, self._highest = sent, sent.progress
        if self._sending is None:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while (latest := self._latest) is not None:
            self._latest = None
            await self._ctx.session.report_progress(latest.progress, latest.total, latest.message)
        self._sending = None

    async def flush(self) -> None:
        """Wait until everything is sent that was reported before."""
        if self._any:
            await asyncio.sleep(0)  # they are on their way through the loop
        if self._sending is not None:
            await self._sending

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        if self._sending is not None:
            self._sending.cancel()


def _sendable(progress: Progress) -> Progress | None:
    """What can be sent of what a handler reports: what has no JSON form would cost the whole connection."""
    reached, message = _number(progress.progress), progress.message
    if reached is None:
        return None
    shown = None if message is None else replace_surrogates(str(message)[:_MAX_REPORT])
    return Progress(reached, _number(progress.total), shown)


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else inf
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if isfinite(number) else None


async def send_item(ctx: RequestContext, token: str | int, number: int, item: Sendable) -> None:
    """Tell the client of one item of a subscription, the first being number 0."""
    carried: dict[str, Any] = {"n": number, "data": item.data}
    if item.encoding is not None:
        carried["encoding"] = item.encoding
    shown = item.json[: 4 * _MAX_MESSAGE].decode(errors="ignore")
    message = shown if len(shown) <= _MAX_MESSAGE else f"{shown[:_MAX_MESSAGE]}…"
    params = ProgressNotificationParams(
        progress_token=token, progress=number + 1, message=message, _meta={ITEM_META: carried}
    )
    await ctx.session.send_notification(ProgressNotification(params=params), related_request_id=ctx.request_id)
