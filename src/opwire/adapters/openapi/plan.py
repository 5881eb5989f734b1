"""What has to be known of one HTTP operation to call it: plain data, made by `read`, used by everything else here.

A plan is made when an operation is first called or looked at, not when its document is loaded. No I/O.

Places in an input, as a plan names them: the steps from the input to a value.

Content types: what is JSON, what is text, and which of the declared kinds an answer is. No I/O.

Header fields that cannot break out of their line.
"""

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.schema import UNKNOWN, Schema

Location = Literal["path", "query", "header", "cookie", "querystring"]
"""Where a parameter goes; `querystring` (3.2) is the whole query as one value."""

Style = Literal[
    "matrix", "label", "simple", "form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject", "cookie"
]
"""How an array or object is written; `tabDelimited` is Swagger 2.0's `tsv`, `cookie` came with 3.2."""

StreamKind = Literal["sse", "ndjson", "json-seq"]
"""How a stream of items is framed: `text/event-stream`, one JSON a line, or RFC 7464."""


class Parameter(Struct, frozen=True, kw_only=True):
    """One parameter. `path_to` are the steps to its value in the input: `("limit",)`, or `("query", "limit")`."""

    name: str  # as the API spells it
    location: Location
    path_to: tuple[str, ...]
    style: Style
    explode: bool
    required: bool = False
    allow_reserved: bool = False
    content_type: str | None = None  # the value is written as this media type, not in a style
    parts: Mapping[str, "Part"] = {}  # of a whole query that is a form: how its fields are written


class Part(Struct, frozen=True, kw_only=True):
    """How one property of a form, or one item of a multipart array, is written (`encoding`)."""

    content_type: str | None = None  # None: by the value
    style: Style | None = None  # None: as the content type says
    explode: bool = True
    allow_reserved: bool = False
    headers: Mapping[str, str] = {}  # those that have a fixed value
    binary: bool = False  # the schema says that it is a file


_PLAIN = Part()


class Body(Struct, frozen=True, kw_only=True):
    """The body of a request.

    `path_to` are the steps to its value in the input: `("body",)` where it has a place of its own. Where its
    properties stand in the input beside the parameters, `path_to` is empty and `properties` names them. `open` says
    that properties beyond these are the body's too. `whole` says that the input itself is the body, whatever kind of
    value it is: so it is with operations of another opwire, which have no parameters.
    """

    content_type: str
    required: bool
    path_to: tuple[str, ...] = ("body",)
    properties: tuple[str, ...] = ()
    open: bool = False
    whole: bool = False
    parts: Mapping[str, Part] = {}
    others: tuple[tuple[Schema | None, Part], ...] = ()  # of names without a part: by what the name fits, None: any
    positions: tuple[Part, ...] = ()  # of a multipart body that is an array
    items: Part = _PLAIN  # of the array beyond those positions
    binary: bool = False  # bytes, given as base64 in the input
    fixed: Mapping[str, Any] = {}  # properties that this operation sets itself: `stream: true`

    def part(self, name: str) -> Part:
        """Return how a field is written."""
        part = self.parts.get(name)
        if part is None and self.others:
            part = next((each for names, each in self.others if names is None or names.is_valid(name)), None)
        return part or _PLAIN

    def position(self, index: int) -> Part:
        """Return how an item of a multipart array is written."""
        return self.positions[index] if index < len(self.positions) else self.items


class Media(Struct, frozen=True, kw_only=True):
    """One kind of answer. `schema` is that of the whole answer, or of one item of a stream."""

    content_type: str
    schema: Schema = UNKNOWN
    stream: StreamKind | None = None


class Scheme(Struct, frozen=True, kw_only=True):
    """One security scheme of the document."""

    name: str  # its key in the document: credentials are given under it
    kind: Literal["apiKey", "basic", "bearer", "oauth2", "openIdConnect", "other"]
    location: Literal["header", "query", "cookie"] | None = None  # of an API key
    parameter: str = ""  # of an API key: the name of the header, query parameter or cookie
    token_url: str = ""  # of the client credentials flow
    said: str = ""  # how the document calls a kind that opwire does not know: "http digest", "mutualTLS"


class Need(Struct, frozen=True):
    """A scheme that has to be satisfied, with the scopes that are asked of it."""

    scheme: Scheme
    scopes: tuple[str, ...] = ()


class Plan(Struct, frozen=True, kw_only=True):
    """Everything about one operation.

    `responses` maps a status as the document writes it ("200", "2XX", "default") to its kinds of answer. `security`
    are alternatives, each of which is a set of needs; `()` is no security at all, and an empty alternative says that
    it may be left out. `server` is the address that the document gives, with its variables filled; `base_url` is what
    the user fixed instead, if he did.
    """

    operation_id: str  # opwire's own id
    method: str  # upper-case
    path: str  # "/pets/{petId}"
    server: str
    base_url: str | None = None
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    responses: Mapping[str, tuple[Media, ...]] = {}
    security: tuple[tuple[Need, ...], ...] = ()
    accept: str = "*/*"
    stream: StreamKind | None = None
    input_schema: Schema = UNKNOWN
    output_schema: Schema = UNKNOWN
    files: tuple[tuple[str, ...], ...] = ()  # steps to the values of the input that may be files


MISSING: Any = object()
"""What is at a place where nothing is; None is a value."""


def find(input: Any, place: Sequence[str]) -> Any:
    """The value at a place, or MISSING."""
    for step in place:
        if not isinstance(input, dict) or step not in input:
            return MISSING
        input = cast("dict[str, Any]", input)[step]
    return input


def invalid(operation_id: str, place: Sequence[str], message: str) -> CallError:
    """The error for a value that its schema let pass and that cannot be used all the same."""
    pointer = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in place)
    return CallError(
        ErrorCode.VALIDATION_ERROR,
        f"{operation_id}: {pointer or 'the input'}: {message}",
        {"problems": [{"path": pointer, "message": message}]},
    )


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


_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110: token
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")  # control characters but the tab, and no text
_CONTENT_TYPE = re.compile(r"[!#$&^_.+\-0-9A-Za-z]+/[!#$&^_.+\-0-9A-Za-z]+( *;[\x20-\x7e]*)?")


def header_name(name: str, of: str = "header") -> str:
    """The name, if it can be one: that of a header, or of another thing with the same rules.

    Raises:
        ValueError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a {of}")
    return name


def header_value(value: str) -> str:
    """The value, if it can be one. The error does not show it: it may be a secret.

    Raises:
        ValueError: it holds a line break, another control character, or half of a surrogate pair.
    """
    if _FORBIDDEN.search(value):
        raise ValueError("a header cannot hold line breaks or other control characters")
    return value


def content_type_value(value: str) -> str:
    """The value, if it can be a Content-Type.

    Raises:
        ValueError: it cannot.
    """
    if not _CONTENT_TYPE.fullmatch(value):
        raise ValueError("a content type looks like text/plain")
    return value
