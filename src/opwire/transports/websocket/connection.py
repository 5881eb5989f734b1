"""One WebSocket connection, of a client or of a server: messages over a `Link`, signs of life, and its end.

Nothing here waits for the peer: what arrives is handed on at once, so that pings are answered however slow the user of
the messages is.
"""

import asyncio
from collections.abc import Callable

from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from opwire.errors import CallError, ErrorCode
from opwire.transports.link import MAX_BACKLOG, Link
from opwire.transports.websocket.frames import Core, Frames

GRACE = 1.0
"""Seconds that the peer has to answer a goodbye."""

SUBPROTOCOL = Subprotocol("opwire.v1")
"""What both sides speak over the WebSocket."""

_SMALL = 4096  # bytes
_MISSES = 2  # beats in a row without a sign of life, after which the peer counts as dead


class Connection:
    """Whoever uses it is told of the peer's handshake (`greeted`), of each message (`arrived`), and once why it ended
    (`lost`).
    """

    def __init__(
        self,
        core: Core,
        *,
        greeted: Callable[[Request | Response], None],
        arrived: Callable[[bytes], None],
        lost: Callable[[str], None],
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self.link = Link(self._received, self._broken, max_backlog=max_backlog)
        self._frames = Frames(core)
        self._greeted = greeted
        self._arrived = arrived
        self._lost = lost
        self._heard = True
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._ended = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over

    # --- writing ------------------------------------------------------------------------------------------------------

    def send(self, message: bytes, *, control: bool) -> None:
        """Send a message. `control`: it ends or steers a call; if it is small, there is room for it when there is none
        for others, and a peer that leaves no room even for these is given up.

        Raises:
            CallError: RATE_LIMITED if too much is waiting already, UNAVAILABLE if the connection is gone.
        """
        if self._over:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is gone")
        if not control or len(message) > _SMALL:
            self.link.write(self._frames.text(message))
            return
        try:
            self.link.control(self._frames.text(message))
        except CallError as full:
            self.link.abort("the peer does not read what it is sent")
            raise CallError(ErrorCode.UNAVAILABLE, f"the connection was ended: {full.message}") from full

    def reply(self) -> None:
        """Send what the handshake, pings and goodbyes have given rise to."""
        for data in self._frames.replies():
            if (
                self.link.backlog <= self.link.max_backlog
            ):  # a peer that reads nothing gets no answer to a million pings
                self.link.urgent(data)
        if self._frames.over:
            self._finish(self._frames.reason)

    # --- signs of life ------------------------------------------------------------------------------------------------

    def expect(self, what: str, within: float, code: int) -> None:
        """End the connection with this code unless `beat` is called in time."""
        self._set_timer(within, lambda: self.end(code, f"no {what} came within {within:g} s"))

    def beat(self, every: float) -> None:
        """Ping from now on, once in so many seconds; two in a row without any answer end the connection.

        A peer that freezes right after a sign of life is noticed at the third beat, any other earlier.
        """
        self._set_timer(every, lambda: self._beat(every))

    def _beat(self, every: float) -> None:
        # Beats are counted, and not the time: if this very process was held up, there may be news it has not read yet.
        self._missed = 0 if self._heard else self._missed + 1
        self._heard = False
        if self._missed == _MISSES:
            self.link.abort(f"nothing was heard of the peer for {_MISSES * every:g} s")
            return
        self._frames.ping()
        self.reply()
        self.beat(every)

    def _set_timer(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)

    # --- ending -------------------------------------------------------------------------------------------------------

    def end(self, code: int, reason: str) -> None:
        """Say why, and end the connection."""
        self._frames.fail(code, reason)
        self._say_all()
        self._finish(reason)

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye, let the peer answer, and end the connection; `lost` is not called."""
        self._lost = self._arrived = _nothing
        if not self._over and self._frames.open:
            self._frames.close(code, reason)
            self._say_all()
            try:
                async with asyncio.timeout(GRACE):
                    await self._ended.wait()
            except TimeoutError:
                pass  # it does not answer: then without
        self._stop()
        await self.link.close()
        if self._ending is not None:
            await self._ending

    def drop(self) -> None:
        """End the connection without a word; `lost` is not called."""
        self._lost = self._arrived = _nothing
        self._stop()
        self.link.abort("it was dropped")

    def _say_all(self) -> None:
        """Send what there is to reply after the messages that wait, unlike other replies."""
        try:
            for data in self._frames.replies():
                self.link.control(data)
        except CallError:
            pass  # it is gone, or does not listen

    def _finish(self, reason: str) -> None:
        if not self._over:
            self._stop()
            self._ending = asyncio.get_running_loop().create_task(self.link.close(grace=GRACE))
            self._lost(reason)

    def _stop(self) -> None:
        self._over = True
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    # --- what the link calls ------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        self._heard = True
        if self._over:
            return
        if self._frames.connecting:
            data = self._greet(data)
        for message in self._frames.feed(data):
            self._arrived(message)
            if self._over:
                return
        self.reply()

    def _greet(self, data: bytes) -> bytes:
        greeting, data = self._frames.greeting(data)
        if greeting is not None:
            self._greeted(greeting)
        return data

    def _broken(self, reason: str) -> None:
        if not self._over:
            self._stop()
            self._lost(reason)


def _nothing(_: object) -> None:
    """Stands for a callback that is not wanted any more."""
