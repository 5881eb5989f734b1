"""`ResponseCache`: an interceptor that caches the results of queries.

The results of HTTP APIs are cached as RFC 9111 says for a private cache: `no-store` and `Vary: *` are not stored,
`max-age` and `Expires` are fresh, anything older is revalidated with its `ETag` or `Last-Modified`. The key has the
caller's identity, its token and the whole input, so `Vary` over other headers is met. A mutation invalidates its
namespace.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from hashlib import sha256
from math import inf
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import OpwireError, check_counts, check_not_below_zero
from opwire.model.caller import find_caller_token
from opwire.model.condition import with_condition
from opwire.model.context import Context
from opwire.model.envelope import HTTPResponseMeta, ResponseEnvelope, decode_envelope, encode_envelope
from opwire.model.operation import Handler, OperationSpec, OperationType
from opwire.names import counted

_MAX_AGE_SECONDS = 365 * 24 * 60 * 60.0
_ENTRY_OVERHEAD_BYTES = 512
_MAX_RESULT_SHARE = 1 / 8  # a larger result would evict too many others
_DIRECTIVE = re.compile(r'([a-z-]+)(?:\s*=\s*"?([^",]*)"?)?', re.IGNORECASE)
_OK, _NOT_MODIFIED = 200, 304


class _CachedResult(Struct, frozen=True):
    """A result, encoded, so that callers may change what they get."""

    content: bytes
    fresh_until: float
    validators: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        return len(self.content) + _ENTRY_OVERHEAD_BYTES


class ResponseCache:
    """Caches the results of queries in memory, for each identity.

        registry.use(ResponseCache(max_bytes=16 * 1024 * 1024))

    Args:
        max_bytes: of all results; the least recently used ones are dropped.
        max_entries: how many results.
        ttl: seconds that a result without rules of HTTP is fresh, of functions and MCP tools; by default it is not
            cached.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        max_entries: int = 10_000,
        ttl: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_counts(max_bytes=max_bytes, max_entries=max_entries)
        check_not_below_zero(ttl=ttl)
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[tuple[str, bytes], _CachedResult] = OrderedDict()
        self._size = 0
        self._changes: dict[str, int] = {}  # mutations of each namespace

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ResponseCache of {counted(len(self), 'result')}, {counted(self._size, 'byte')}>"

    def __call__(self, spec: OperationSpec, handler: Handler) -> Handler:
        """Return the handler of a query with the cache, of a mutation with invalidation."""

        async def query(input: Any, context: Context) -> Any:
            key = _key(spec, input, context)
            if key is None:
                return await handler(input, context)
            cached = self._entries.get(key)
            if cached is not None:
                self._entries.move_to_end(key)
                if self._clock() < cached.fresh_until:
                    return decode_envelope(cached.content)
                context = with_condition(context, spec.id, cached.validators)
            changes = self._changes.get(spec.namespace)
            envelope = await handler(input, context)
            meta = getattr(envelope, "meta", None)
            if cached is not None and isinstance(meta, HTTPResponseMeta) and meta.status_code == _NOT_MODIFIED:
                envelope = decode_envelope(cached.content)
                if isinstance(envelope.meta, HTTPResponseMeta):  # with the newer headers (RFC 9111, section 3.2)
                    newer = {name: value for name, value in meta.headers.items() if not name.startswith("content-")}
                    headers = {**envelope.meta.headers, **newer}
                    envelope = replace(envelope, meta=replace(envelope.meta, headers=headers))
            if changes == self._changes.get(spec.namespace):  # otherwise the result may be older than a mutation
                self._store(key, envelope)
            return envelope

        async def mutation(input: Any, context: Context) -> Any:
            try:
                return await handler(input, context)
            finally:  # an error does not mean that nothing has changed
                self._changes[spec.namespace] = self._changes.get(spec.namespace, 0) + 1
                self.clear(spec.namespace)

        return {OperationType.QUERY: query, OperationType.MUTATION: mutation}.get(spec.type, handler)

    def clear(self, namespace: str | None = None) -> None:
        """Drop the results of a namespace, or all."""
        for key in [key for key in self._entries if namespace is None or key[0].partition(".")[0] == namespace]:
            self._drop(key)

    def _drop(self, key: tuple[str, bytes]) -> None:
        entry = self._entries.pop(key, None)
        self._size -= 0 if entry is None else entry.size

    def _store(self, key: tuple[str, bytes], envelope: Any) -> None:
        """Replace the entry of a key, unless the result must not be stored or cannot be encoded."""
        self._drop(key)
        if not isinstance(envelope, ResponseEnvelope) or getattr(envelope.meta, "is_error", False):
            return
        fresh_until, validators = self._rules(envelope.meta)
        if not validators and fresh_until <= self._clock():
            return
        try:
            content = encode_envelope(cast("ResponseEnvelope[Any]", envelope))
        except (OpwireError, TypeError, ValueError, RecursionError):
            return
        entry = _CachedResult(content, fresh_until, validators)
        if entry.size > self._max_bytes * _MAX_RESULT_SHARE:
            return
        self._entries[key] = entry
        self._size += entry.size
        while self._size > self._max_bytes or len(self._entries) > self._max_entries:
            self._drop(next(iter(self._entries)))

    def _rules(self, meta: Any) -> tuple[float, tuple[tuple[str, str], ...]]:
        """Return until when a result is fresh, and the headers that revalidate it."""
        now = self._clock()
        if not isinstance(meta, HTTPResponseMeta):
            return now + self._ttl, ()
        headers = meta.headers
        rules = {name.lower(): value for name, value in _DIRECTIVE.findall(headers.get("cache-control", "")[:1000])}
        if "no-store" in rules or headers.get("vary", "").strip() == "*" or meta.status_code != _OK:
            return -inf, ()
        pairs = (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
        validators = tuple((name, headers[source]) for name, source in pairs if headers.get(source))
        if "no-cache" in rules:
            return -inf, validators
        if "max-age" in rules:
            return now + max(_seconds(rules["max-age"]) - _seconds(headers.get("age", "")), 0), validators
        if "expires" in headers:
            try:
                expires = parsedate_to_datetime(headers["expires"][:100]).timestamp()
            except (ValueError, OverflowError, IndexError, TypeError):  # `Expires: 0` means that it has expired
                expires = -inf
            return min(expires, now + _MAX_AGE_SECONDS), validators
        return (now + self._ttl if self._ttl else -inf), validators


def _key(spec: OperationSpec, input: Any, context: Context) -> tuple[str, bytes] | None:
    """Return the key of a result; None if the input cannot be encoded."""
    try:
        encoded = msgspec.msgpack.encode((context.identity, find_caller_token(context), input), order="deterministic")
        return spec.id, sha256(encoded).digest()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _seconds(text: str) -> float:
    digits = text.strip()
    return min(float(digits), _MAX_AGE_SECONDS) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0.0
