"""What a request says: its path as it was written, its input, its id, its deadline, and what it wants back.

Ends what a request runs when nobody waits for it any more, or when it may not go on.
"""

import asyncio
import gc
import json
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, cast

import msgspec
from msgspec import UNSET

from opwire.deadlines import Deadlines, bounded_seconds
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity, Trace, trace_of
from opwire.origin import ENVELOPE_JSON
from opwire.serve.guard import Receive, Refusal, Scope, expires_of, identity_of

_ENVELOPE = ENVELOPE_JSON.encode()
_JSON = re.compile(rb"application/(?:json|[\w.!#$&^-]+\+json)\s*(?:;\s*charset=\"?utf-?8\"?\s*)?;?", re.IGNORECASE)
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
_QUALITY = re.compile(rb"(?:^|;)\s*q=([01](?:\.[0-9]{0,3})?)\s*(?:;|$)")
_EPOCH = 100_000_000_000  # milliseconds: no call takes three years, so more than that is a date
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_SMALL = 64 * 1024
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class Request:
    """One request, read as far as it is asked for."""

    __slots__ = ("expires", "headers", "identity", "is_plain", "method", "path", "query", "request_id", "root_path")

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.root_path: str = scope.get("root_path", "")
        self.path = _below(self.root_path, scope["path"])
        # Whether the path came as it is, and not percent-encoded: %61 is an `a` to us, and may not be to a proxy.
        raw: bytes = scope.get("raw_path") or b""
        self.is_plain = b"%" not in raw or raw.endswith(self.path.encode("utf-8", "replace"))
        self.query: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.identity: Identity | None = identity_of(scope)
        self.expires: float | None = expires_of(scope)
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _SANE_ID.fullmatch(given) else os.urandom(16).hex()

    @property
    def wants_envelope(self) -> bool:
        """Whether the whole envelope is asked for, and liked better than plain JSON.

        Some clients name every type of the document: they take plain data, which is the default.
        """
        accept = self.headers.get(b"accept", b"")
        if _ENVELOPE not in accept.lower():
            return False
        liked = dict(map(_quality, accept.lower().split(b",")))
        return liked.get(_ENVELOPE, 0.0) > liked.get(b"application/json", 0.0)

    @property
    def last_event_id(self) -> str | None:
        """The last event that a client has seen of a stream."""
        given = self.headers.get(b"last-event-id")
        return given.decode("utf-8", "replace") if given else None

    @property
    def metadata(self) -> Trace:
        """The trace that this call is part of, for the context."""
        parent, state = self.headers.get(b"traceparent"), self.headers.get(b"tracestate", b"")
        if parent is None:
            return {}
        return trace_of({"traceparent": parent.decode("latin-1"), "tracestate": state.decode("latin-1")})

    def deadline(self, default: float | None) -> float | None:
        """Return the monotonic time until which the client waits.

        `X-Deadline-Ms` holds the milliseconds that are left, or the time in milliseconds of the Unix epoch. More than
        a day counts as a day.

        Raises:
            CallError: PROTOCOL_ERROR, if it is not a number; TIMEOUT, if it has passed.
        """
        given = self.headers.get(b"x-deadline-ms")
        if given is None:
            return None if default is None else time.monotonic() + default
        if not given.isdigit() or len(given) > 18:
            raise CallError(ErrorCode.PROTOCOL_ERROR, "the header x-deadline-ms is a number of milliseconds")
        left = int(given)
        if left > _EPOCH:
            left -= time.time_ns() // 1_000_000
        if left <= 0:
            raise CallError(ErrorCode.TIMEOUT, "the deadline had passed before the call arrived")
        return time.monotonic() + bounded_seconds(left / 1000)

    async def json(self, receive: Receive) -> Any:
        """The body; UNSET if there is none.

        Raises:
            Refusal: it is not said to be JSON.
            CallError: PROTOCOL_ERROR, if it is not.
        """
        body: bytes = (await receive()).get("body", b"")  # the door gives it whole
        if not body:
            return UNSET
        if not _JSON.fullmatch(self.headers.get(b"content-type", b"")):
            wrong = CallError(
                ErrorCode.PROTOCOL_ERROR, "the body is JSON in UTF-8, sent as content-type: application/json"
            )
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, wrong, (b"accept", b"application/json"))
        return read_body(body)


def _quality(accepted: bytes) -> tuple[bytes, float]:
    """One item of an Accept header: a media type, and how much it is liked."""
    kind, _, parameters = accepted.partition(b";")
    quality = _QUALITY.search(parameters)
    return kind.strip(), float(quality[1]) if quality else 1.0


def _below(root_path: str, path: str) -> str:
    """The path within this application, which may be mounted into another one."""
    return path[len(root_path) :] if root_path and path.startswith(f"{root_path}/") else path


def read_body(body: bytes) -> Any:
    """Return the value that a JSON text holds. Lone surrogates, which JavaScript writes, are replaced.

    Raises:
        CallError: PROTOCOL_ERROR, if it is not JSON, or holds what two readers would not understand alike.
    """
    try:
        with _uncollected() if len(body) > _SMALL else nullcontext():
            value = _decoded(body)
        # A flat object of as many keys as there are colons has no key twice. Other values are checked in full.
        if b":" in body and not (isinstance(value, dict) and len(cast("dict[str, Any]", value)) == body.count(b":")):
            _check_keys(body, value)
    except RecursionError:
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the body is nested too deeply") from None
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"the body is not valid JSON: {error}") from error
    return cast("Any", value)


@contextmanager
def _uncollected() -> Generator[None]:
    """Keep the garbage collector from looking at a value while it is read: 4 MB of small lists take 380 ms, not 95."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _decoded(body: bytes) -> Any:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
    # On bytes, because Python's `json` holds up every thread for 0.9 s with 4 MB. Pairs of backslashes step aside, so
    # that each backslash that is left begins an escape; a NUL is in no JSON text, and cannot stand for one of them.
    if b"\0" in body:
        raise ValueError("it holds a NUL")
    repaired = _LONE_SURROGATE.sub(rb"\\ufffd", body.replace(rb"\\", b"\0"))
    return _decoder.decode(repaired.replace(b"\0", rb"\\"))


def _check_keys(body: bytes, value: Any) -> None:
    """Refuse an object with a key that is there twice: two readers would take different values.

    A colon is either between a key and its value or part of a string, and a key that is there twice takes its colon
    with it. So the value, written again, has as many as the text had. This takes 15 ms for 4 MB.
    """
    escaped = 0
    if b"\\u003" in body:
        plain = body.replace(rb"\\", b"__")
        escaped = plain.count(rb"\u003a") + plain.count(rb"\u003A")
    if _encoder.encode(value).count(b":") == body.count(b":") + escaped:
        return
    if len(body) <= _SMALL:  # to find the key takes longer
        json.loads(body, object_pairs_hook=_unique)
    raise ValueError("a key is there more than once")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the key {name[:100]!r} is there more than once")
        seen.add(name)


PATIENCE = 0.02
"""Seconds after which somebody looks whether the client is still there. Most calls have ended by then, for free."""


class Guard:
    """While the block runs, its task is cancelled if the client leaves, or by `interrupt`; the block ends there.

    with Guard(receive, deadlines) as guard:
        envelope = await registry.execute(...)
    if guard.interrupted: ...

    `reason` is what the client is to be told. None: it is not there.
    """

    def __init__(self, receive: Receive, deadlines: Deadlines) -> None:
        self._receive = receive
        self._deadlines = deadlines
        self._tick = 0
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.interrupted = False
        self.reason: CallError | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._tick = self._deadlines.add(self, time.monotonic() + PATIENCE, Guard._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._deadlines.discard(self, self._tick)
        for timer in self._timers:
            timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        task, self._task = self._task, None
        # Somebody else may have cancelled the task too, and wants it to end.
        others = self.interrupted and task is not None and task.uncancel() > 0
        return self.interrupted and not others and isinstance(error, asyncio.CancelledError)

    def interrupt(self, reason: CallError | None = None) -> None:
        """End the block now, once."""
        if self._task is not None and not self.interrupted:
            self.interrupted, self.reason = True, reason
            self._task.cancel()

    def interrupt_at(self, when: float | None, reason: CallError) -> None:
        """End the block at a time (Unix epoch, in seconds); None: never."""
        if when is not None:
            self._timers.append(self._loop.call_later(max(0, when - time.time()), self.interrupt, reason))

    def _watch(self) -> None:
        self._watcher = self._loop.create_task(self._wait_for_the_end())

    async def _wait_for_the_end(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt()
