"""Events as responses of MCP over streamable HTTP, and streams of events that a client can resume.

A response is JSON if the request ends without a notification, and else events: some clients limit the size of an event,
and JSON has a length. After 15 s without either, events start, with comments in between, so that proxies keep the
connection.

The events of a request are one stream, and so are those of the session itself. A stream outlives the HTTP responses
that carry it: its events are kept for a while, with ids. After its connection broke or was ended, a client sends the
last id that it has seen (`Last-Event-ID`) with a GET, and gets the later ones. Ids are valid in their session only.
That is so in the handshake era; the stateless one has no sessions.

What is kept is bounded in count, bytes and time for each session, and in bytes for all of them. A stream
without a response that is kept cannot be resumed.
"""

import asyncio
import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple, cast

from opwire.asgi.problem import Header, Send
from opwire.asgi.request import Receive

PING = 15.0
"""Seconds without an event, after which a comment is sent."""

_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx buffers events otherwise
)

MAX_EVENTS = 1_000
"""Events that are kept for one session; above it, the oldest are forgotten."""

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Bytes of the events of one session; an event that is longer is not kept."""

MAX_ALL_EVENT_BYTES = 64 * 1024 * 1024
"""Bytes of the events of all sessions; above it, the session with most forgets its oldest."""

EVENT_LIFETIME = 300.0
"""Seconds for which an event is kept."""

RETRY_MILLISECONDS = 1_000
"""Milliseconds after which a client resumes a stream."""

_TURNS_BEFORE_FOLLOWING = 3
_ID = re.compile(r"([0-9]{1,12})\.([0-9]{1,12})")


# --- responses --------------------------------------------------------------------------------------------------------


class EventWriter:
    """The response to one request as events, from the first one on. `preface` returns what the stream begins with."""

    def __init__(self, send: Send, headers: Iterable[Header] = (), preface: Callable[[], bytes] | None = None) -> None:
        self._send = send
        self._headers = headers
        self._preface = preface
        self._lock: asyncio.Lock | None = None
        self.is_started = False
        self.is_closed = False

    async def event(self, data: bytes, id: str = "") -> None:
        """Send an event, and start the stream."""
        name = f"id: {id}\r\n".encode() if id else b""
        await self.write(b"event: message\r\n" + name + b"data: " + data + b"\r\n\r\n")

    async def ping(self) -> None:
        """Send a comment, and start the stream."""
        await self.write(b": ping\r\n\r\n")

    async def end(self) -> None:
        """End the stream."""
        if self.is_started and not self.is_closed:
            self.is_closed = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def write(self, chunk: bytes) -> None:
        """Send a part of the stream, and start it; without effect after its end."""
        if self.is_closed:
            return
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self.is_started:
                self.is_started = True
                headers = [*_HEADERS, *self._headers]
                chunk = chunk if self._preface is None else self._preface() + chunk
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


async def ends_soon(task: "asyncio.Future[Any]") -> bool:
    """Wait a few turns of the event loop for a task: many calls end within these, and to `follow` one takes 60 µs."""
    for _ in range(_TURNS_BEFORE_FOLLOWING):
        if task.done():
            return True
        await asyncio.sleep(0)
    return task.done()


async def follow(
    task: "asyncio.Future[Any]",
    writer: EventWriter,
    receive: Receive,
    *,
    detached: "Callable[[], asyncio.Future[None]] | None" = None,
    wait_for_end: Callable[[], Coroutine[Any, Any, object]] | None = None,
    within: float | None = None,
    starts: float = PING,
) -> bool:
    """Wait for a task, with pings, the first after `starts` seconds.

    Return False if the client disconnects, the future of `detached` is done, `wait_for_end` returns, or `within`
    seconds have passed before.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(disconnected())
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[object] = loop.create_future() if wait_for_end is None else loop.create_task(wait_for_end())
    ends = None if within is None else time.monotonic() + within
    pause = starts
    detaching = None if detached is None else detached()
    awaited = (task, leaving, ending) if detaching is None else (task, leaving, ending, detaching)
    try:
        while True:
            wait = pause if ends is None else max(min(pause, ends - time.monotonic()), 0)
            await asyncio.wait(awaited, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return True
            if leaving.done() or (detaching is not None and detaching.done()):
                return False
            is_over = ending.done() or (ends is not None and time.monotonic() >= ends)
            if not is_over or not writer.is_started:  # a busy process may be late, and a response has to begin
                await writer.ping()
            if is_over:
                return False
            pause = PING
    finally:
        leaving.cancel()
        ending.cancel()


# --- streams that can be resumed --------------------------------------------------------------------------------------


class _KeptEvent(NamedTuple):
    stream: "ResumableStream"
    number: int
    data: bytes
    at: float
    is_last: bool


class EventStore:
    """What is kept of all sessions of a surface."""

    def __init__(self) -> None:
        self._logs: set[EventLog] = set()
        self._size = 0

    def changed(self, log: "EventLog", difference: int) -> None:
        """Account for a change in the size of a log, and make room if it has grown."""
        self._size += difference
        (self._logs.add if log.size else self._logs.discard)(log)
        while difference > 0 and self._size > MAX_ALL_EVENT_BYTES:
            max(self._logs, key=lambda log: log.size).forget_oldest()


class EventLog:
    """The events of one session, and the streams that can be resumed. With `primes`, clients can resume from the start.

    That is so from revision 2025-11-25 on: a stream begins with an event that has an id and no data.
    """

    def __init__(self, store: EventStore) -> None:
        self.primes = False
        self.size = 0
        self._is_closed = False
        self._store = store
        self._numbers = itertools.count()
        self._streams: dict[int, ResumableStream] = {}
        self._events: deque[_KeptEvent] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def open(self, stream: "ResumableStream") -> int:
        """Return the number of a new stream."""
        number = next(self._numbers)
        self._streams[number] = stream
        return number

    def find(self, id: str) -> tuple["ResumableStream", int] | None:
        """Return the stream of an event and the number of the event; None if they are unknown or forgotten."""
        event_id = _ID.fullmatch(id)
        stream = None if event_id is None else self._streams.get(int(event_id[1]))
        return None if event_id is None or stream is None else (stream, int(event_id[2]))

    def add(self, stream: "ResumableStream", number: int, data: bytes, *, is_last: bool) -> None:
        """Keep an event, and forget the oldest that exceed a limit; without effect after `clear`."""
        if self._is_closed:
            return
        if len(data) > MAX_EVENT_BYTES:
            if is_last:
                self._streams.pop(cast("int", stream.number), None)
            return
        self._events.append(_KeptEvent(stream, number, data, time.monotonic(), is_last))
        self.size += len(data)
        self._store.changed(self, len(data))
        while self.size > MAX_EVENT_BYTES or len(self._events) > MAX_EVENTS:
            self.forget_oldest()
        if self._timer is None and self._events:
            self._timer = asyncio.get_running_loop().call_later(EVENT_LIFETIME, self._expire)

    def after(self, stream: "ResumableStream", number: int) -> list[_KeptEvent]:
        """Return the later events of a stream."""
        return [event for event in self._events if event.stream is stream and event.number > number]

    def forget_oldest(self) -> None:
        """Forget an event, and with its last one a stream."""
        event = self._events.popleft()
        if event.is_last:
            self._streams.pop(cast("int", event.stream.number), None)
        self.size -= len(event.data)
        self._store.changed(self, -len(event.data))

    def _expire(self) -> None:
        self._timer = None
        oldest = time.monotonic() - EVENT_LIFETIME
        while self._events and self._events[0].at <= oldest:
            self.forget_oldest()
        if self._events:
            self._timer = asyncio.get_running_loop().call_later(self._events[0].at - oldest, self._expire)

    def clear(self) -> None:
        """Forget everything, and keep nothing more: the session has ended."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._events:
            self.forget_oldest()
        self._streams.clear()


class ResumableStream:
    """The events of one request, or of the session itself, and the response that carries them now, if any.

    It has a number, and can be resumed, from the start of its first response on.
    """

    __slots__ = ("_detached", "_is_ended", "_is_replaying", "_last", "_log", "number", "writer")

    def __init__(self, log: EventLog) -> None:
        self.number: int | None = None
        self.writer: EventWriter | None = None
        self._detached: asyncio.Future[None] | None = None  # of the writer
        self._log = log
        self._last = 0  # number of the last event
        self._is_replaying = False
        self._is_ended = False

    def attach(self, writer: EventWriter) -> None:
        """Send events to a response from now on, and let another one end."""
        self.detach()
        self.writer = writer

    def detached(self) -> "asyncio.Future[None]":
        """Return a future that is done when the present response has to end."""
        if self._detached is None:
            self._detached = asyncio.get_running_loop().create_future()
        return self._detached

    def detach(self, writer: EventWriter | None = None) -> None:
        """Send no more events to a response, by default to the present one."""
        if writer is None or writer is self.writer:
            self.writer = None
            if self._detached is not None:
                self._detached.set_result(None)
                self._detached = None

    def preface(self) -> bytes:
        """Return what a response begins with: an event without data, with an id to resume from."""
        if self.number is None:
            self.number = self._log.open(self)
        if not self._log.primes:
            return b""
        self._last += 1
        return f"id: {self.number}.{self._last}\r\nretry: {RETRY_MILLISECONDS}\r\ndata: \r\n\r\n".encode()

    async def event(self, data: bytes) -> None:
        """Keep an event, and send it if there is a response, until that has to end."""
        if self.writer is not None and not self.writer.is_started:
            await self.writer.write(b"")  # the preface: its number comes first
        if self.number is None:  # the client disconnected before it got an id
            return
        self._last += 1
        self._log.add(self, self._last, data, is_last=self._is_ended)
        writer = self.writer
        if writer is None or self._is_replaying:
            return
        sending = asyncio.ensure_future(writer.event(data, f"{self.number}.{self._last}"))
        await asyncio.wait((sending, self.detached()), return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():  # a connection that has failed may block for many minutes
            sending.cancel()
        elif sending.exception() is not None:
            self.detach(writer)

    async def finish(self, data: bytes) -> None:
        """Keep the response to the request, the last event, and send it if there is an HTTP response."""
        self._is_ended = True
        await self.event(data)
        self.detach()

    async def resume(self, writer: EventWriter, after: int | None) -> None:
        """Send the events after a number, by default none, to an attached response; end it after the last one."""
        self._is_replaying = True
        await writer.write(b"")
        after = self._last if after is None else after
        while events := self._log.after(self, after):
            for event in events:
                if self.writer is not writer:  # it was resumed again
                    return
                await writer.event(event.data, f"{self.number}.{event.number}")
                after = event.number
        if self.writer is writer:
            self._is_replaying = False
            if self._is_ended:
                self.detach()
            else:
                await writer.write(self.preface() or b": ping\r\n\r\n")
