"""Streams of JSON values: one a line (NDJSON, JSON Lines), or each after a record separator (RFC 7464). No I/O.

Both take a stream in pieces and give the values that are complete. What is not JSON is left out with a warning, since
what comes after it can still be read.
"""

import logging
from typing import Any

import msgspec

from opwire.errors import CallError, ErrorCode
from opwire.typed.text import read_json

logger = logging.getLogger("opwire.adapters.openapi")

MAX_ITEM = 16 * 1024 * 1024
"""Bytes that one value may have."""

DONE = "[DONE]"
"""What some APIs send as the last item of a stream. It is not JSON, and nobody's data."""

_SPACE = b" \t\r\n\x1e"
_BOM = b"\xef\xbb\xbf"
_json = msgspec.json.Decoder()


class NDJSONDecoder:
    """One JSON value a line; blank lines, CRLF, record separators and a missing last line break do no harm."""

    def __init__(self, *, max_item: int = MAX_ITEM) -> None:
        self.done = False  # the sentinel was there: nothing follows
        self._pieces: list[bytes] = []  # of a record that has not ended yet
        self._size = 0
        self._max_item = max_item

    def feed(self, chunk: bytes) -> list[Any]:
        """The values that a piece of the stream completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, if a value is larger than it may be.
        """
        return self._split(chunk, b"\n")

    def end(self) -> list[Any]:
        """The value that the end of the stream completes, if there is one."""
        return self._values([self._taken()])

    def _split(self, chunk: bytes, separator: bytes) -> list[Any]:
        first, *others = chunk.split(separator)
        self._keep(first)
        if not others:
            return []
        records = [self._taken(), *others]
        self._keep(records.pop())
        return self._values(records)

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._max_item:
            message = f"an item of the stream is larger than {self._max_item:,} bytes"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)

    def _taken(self) -> bytes:
        record = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return record

    def _values(self, records: list[bytes]) -> list[Any]:
        values: list[Any] = []
        for record in records:
            text = record.strip(_SPACE).removeprefix(_BOM)
            if text == DONE.encode():
                self.done = True
            if self.done:
                break
            if text:
                try:
                    values.append(read_json(_json, text))
                except (ValueError, RecursionError) as error:
                    logger.warning("an item of %d bytes that is not JSON is left out: %s", len(text), error)
        return values


class JSONSeqDecoder(NDJSONDecoder):
    """JSON values, each after a record separator; one that ends in a line break need not wait for the next."""

    def __init__(self, *, max_item: int = MAX_ITEM) -> None:
        super().__init__(max_item=max_item)
        self._worth_trying = 0  # the size from which it is worth to look whether a record is complete

    def feed(self, chunk: bytes) -> list[Any]:
        """The values that a piece of the stream completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, if a value is larger than it may be.
        """
        values = self._split(chunk, b"\x1e")
        if b"\x1e" in chunk:
            self._worth_trying = 0
        if not self.done and chunk.endswith(b"\n") and self._size > self._worth_trying:
            values += self._complete()
        return values

    def _complete(self) -> list[Any]:
        """The last record, if it is JSON already: a line break may stand inside of a value too."""
        record = self._taken()
        try:
            value = read_json(_json, record)
        except (ValueError, RecursionError):
            self._keep(record)
            self._worth_trying = 2 * len(record)  # so that a long record is not read again with each of its lines
            return []
        self._worth_trying = 0
        return [value]
