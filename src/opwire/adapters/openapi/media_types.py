"""Content types: what is JSON, what is text, and which of the declared kinds an answer is. No I/O."""

import codecs
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from opwire.adapters.openapi.plan import Media, StreamKind

_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([^\s;\"']+)", re.IGNORECASE)
_JSON = frozenset({"application/json", "text/json", "application/x-json"})
_TEXT = frozenset(
    {
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/javascript",
        "application/x-www-form-urlencoded",
        "application/graphql",
    }
)
_STREAMS: dict[str, StreamKind] = {
    "text/event-stream": "sse",
    "application/x-ndjson": "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/x-jsonl": "ndjson",
    "application/jsonlines": "ndjson",
    "application/x-jsonlines": "ndjson",
    "application/json-lines": "ndjson",
    "application/x-json-stream": "ndjson",
    "application/stream+json": "ndjson",
    "application/json-seq": "json-seq",
}
# Codecs of Python that are no charsets, some of which take very long for what a hostile server can send.
_NO_CHARSETS = frozenset({"idna", "punycode", "undefined", "unicode_escape", "raw-unicode-escape", "unicode-escape"})


class MediaType(NamedTuple):
    """A content type without its parameters, in lower case, and the charset if one is declared that is known."""

    name: str
    charset: str | None = None

    @property
    def is_json(self) -> bool:
        """Whether the answer is one JSON value."""
        return self.name in _JSON or (self.name.endswith("+json") and self.name not in _STREAMS)

    @property
    def is_text(self) -> bool:
        """Whether the answer is text, as `text/*` is, and some that are registered elsewhere."""
        return self.name.startswith("text/") or self.name in _TEXT or self.name.endswith(("+xml", "+yaml"))

    @property
    def stream(self) -> StreamKind | None:
        """How the answer is framed, if it is a stream of items."""
        return "json-seq" if self.name.endswith("+json-seq") else _STREAMS.get(self.name)


@lru_cache(maxsize=256)
def media_type(header: str) -> MediaType:
    """What a Content-Type header says."""
    name = header.partition(";")[0].strip().lower()
    found = _CHARSET.search(header)
    return MediaType(name, _known_charset(found[1]) if found else None)


def _known_charset(name: str) -> str | None:
    try:
        known = codecs.lookup(name).name
        b"a".decode(known, errors="ignore")  # refuses those that do not make text of bytes
    except (LookupError, ValueError):
        return None
    return None if known in _NO_CHARSETS else known


def choose(declared: Iterable[Media], actual: MediaType) -> Media | None:
    """The declared kind that an answer is: the same one, else another JSON, else a range that covers it."""
    ranked = [(rank, each) for each in declared if (rank := _rank(media_type(each.content_type), actual)) is not None]
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


def _rank(declared: MediaType, actual: MediaType) -> int | None:
    if declared.name == actual.name:
        return 0
    if declared.is_json and actual.is_json:
        return 1
    if declared.name.endswith("/*") and actual.name.startswith(declared.name[:-1]):
        return 2
    return 3 if declared.name in ("*/*", "*") else None
