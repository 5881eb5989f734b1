"""The call plan of one HTTP operation: plain data that the document readers produce and the request code consumes.

A plan is built lazily, when its operation is first called or inspected, not when the document is loaded. No I/O.
"""

import codecs
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from encodings import normalize_encoding
from encodings.aliases import aliases
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from opwire.auth.oauth.discovery import AuthorizationServer
from opwire.errors import CallError
from opwire.model.operation import input_error
from opwire.openapi.client.xml_text import XMLNode, XMLRoot
from opwire.schema import UNKNOWN, Problem, Schema
from opwire.schema.dialect import escaped

Location = Literal["path", "query", "header", "cookie", "querystring"]
"""Where a parameter is sent; `querystring` (3.2) is the whole query string as one value."""

Style = Literal[
    "matrix", "label", "simple", "form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject", "cookie"
]
"""How an array or object is serialized; `tabDelimited` is Swagger 2.0's `tsv`, `cookie` was added in 3.2."""

StreamKind = Literal["sse", "ndjson", "json-seq"]
"""How a stream is framed: `text/event-stream`, one JSON value per line, or RFC 7464."""

InputPath = tuple[str, ...]
"""Keys from the input to a value in it: `("limit",)`, or `("query", "limit")`."""


class PartEncoding(Struct, frozen=True, kw_only=True):
    """How one property of a form, or one item of a multipart array, is serialized (OpenAPI's `encoding`)."""

    content_type: str | None = None  # None: derived from the value
    style: Style | None = None  # None: derived from the content type
    explode: bool = True
    allow_reserved: bool = False
    headers: Mapping[str, str] = {}  # headers with a constant value
    binary: bool = False  # declared as a file


class RequestParameter(Struct, frozen=True, kw_only=True):
    """One parameter, and the path to its value in the input."""

    name: str  # as the API spells it
    location: Location
    input_path: InputPath = ()
    style: Style
    explode: bool
    required: bool = False
    allow_reserved: bool = False
    content_type: str | None = None  # serialize the value as this media type instead of in a style
    parts: Mapping[str, PartEncoding] = {}  # fields of a `querystring` that is a form


_PLAIN = PartEncoding()


class RequestBody(Struct, frozen=True, kw_only=True):
    """The body of a request.

    `input_path` is the path to its value in the input, `("body",)` by default. It is empty where the properties of the
    body are keys of the input beside the parameters: `properties` lists them, and `open` adds the input's unknown keys.
    `whole` makes the input itself the body, as in operations of another opwire, which have no parameters.
    """

    content_type: str
    required: bool
    input_path: InputPath = ("body",)
    properties: tuple[str, ...] = ()
    open: bool = False
    whole: bool = False
    parts: Mapping[str, PartEncoding] = {}
    others: tuple[tuple[Schema | None, PartEncoding], ...] = ()  # for names without a part, by schema of the name
    positions: tuple[PartEncoding, ...] = ()  # the first items of a multipart array
    items: PartEncoding = _PLAIN  # the items after those positions
    binary: bool = False  # bytes, base64 in the input
    xml: XMLRoot | None = None  # how an array or object is written as XML
    fixed: Mapping[str, Any] = {}  # properties that the operation sets itself: `stream: true`

    def part(self, name: str) -> PartEncoding:
        """Return the encoding of a form field."""
        part = self.parts.get(name)
        if part is None and self.others:
            part = next((encoding for names, encoding in self.others if names is None or names.is_valid(name)), None)
        return part or _PLAIN

    def position(self, index: int) -> PartEncoding:
        """Return the encoding of an item of a multipart array."""
        return self.positions[index] if index < len(self.positions) else self.items


class ResponseMedia(Struct, frozen=True, kw_only=True):
    """One declared media type of a response. `schema` describes the whole response, or one item of a stream."""

    content_type: str
    schema: Schema = UNKNOWN
    stream: StreamKind | None = None
    xml: XMLNode | None = None  # how an array or object is read from XML


SecretPlace = tuple[str, str]
"""Location and name of a credential, or of a parameter that takes its place."""


def secret_place(location: str, name: str) -> SecretPlace:
    """Return the place of a name in a location; names of headers are case-insensitive."""
    return location, name.lower() if location == "header" else name


class SecurityScheme(Struct, frozen=True, kw_only=True):
    """One security scheme of the document."""

    name: str  # its key in the document, and in `credentials=`
    kind: Literal["apiKey", "basic", "bearer", "oauth2", "openIdConnect", "other"]
    location: Literal["header", "query", "cookie"] | None = None  # of an API key
    parameter: str = ""  # name of the header, query parameter or cookie that carries an API key
    token_url: str = ""  # of the client credentials flow
    server: AuthorizationServer = AuthorizationServer()  # of the flows in which a person signs in
    metadata_url: str = ""  # of the authorization server, for OpenID Connect or by OpenAPI 3.2
    declared_as: str = ""  # the document's words for an unknown kind: "http digest", "mutualTLS"

    @property
    def place(self) -> "SecretPlace | None":
        """Where its credential is sent; None for a client certificate, which belongs to the connection."""
        if self.kind == "apiKey":
            return secret_place(self.location or "header", self.parameter)
        return None if self.declared_as == "mutualTLS" else secret_place("header", "Authorization")


class SecurityRequirement(Struct, frozen=True):
    """A scheme that has to be satisfied, and the scopes that it needs."""

    scheme: SecurityScheme
    scopes: tuple[str, ...] = ()


class CallPlan(Struct, frozen=True, kw_only=True):
    """Everything that a call of one operation needs.

    `responses` maps a status as the document spells it ("200", "2XX", "default") to its media types. `security` lists
    alternatives, each a set of requirements; an empty alternative makes credentials optional. `server` is the address
    in the document with its variables expanded; `base_url` is the caller's override.
    """

    operation_id: str  # opwire's id
    method: str  # upper-case
    path: str  # "/pets/{petId}"
    server: str
    base_url: str | None = None
    parameters: tuple[RequestParameter, ...] = ()
    body: RequestBody | None = None
    responses: Mapping[str, tuple[ResponseMedia, ...]] = {}
    security: tuple[tuple[SecurityRequirement, ...], ...] = ()
    accept: str = "*/*"
    stream: StreamKind | None = None
    file_paths: tuple[InputPath, ...] = ()  # input values that may be files

    @property
    def idempotency_header(self) -> str | None:
        """The declared header with which a mutation may be repeated, or None."""
        if self.method not in ("POST", "PATCH"):
            return None
        return next(
            (parameter.name for parameter in self.parameters if is_idempotency_key(parameter.location, parameter.name)),
            None,
        )


def is_idempotency_key(location: str, name: str) -> bool:
    """Return whether a parameter is the `Idempotency-Key` of the IETF draft, or one that came before it."""
    return location == "header" and name.lower() in ("idempotency-key", "x-idempotency-key")


def without_fragment(path: str) -> str:
    """Return a path without its fragment, which only tells it from others, as `/#Action=List` does.

    A `#` before a slash is part of the path.
    """
    start, mark, fragment = path.rpartition("#")
    return start if mark and "/" not in fragment else path


def invalid_input(operation_id: str, path: Sequence[str], message: str) -> CallError:
    """Return the error for a value that passes its schema but cannot be sent."""
    pointer = "".join(f"/{escaped(key)}" for key in path)
    return input_error(operation_id, [Problem(pointer, message)])


_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([\w.:+-]{1,40})[\s;\"']", re.IGNORECASE | re.ASCII)
_JSON = frozenset({"application/json", "text/json", "application/x-json"})
_TEXT = frozenset(
    f"application/{name}" for name in ("yaml", "x-yaml", "javascript", "x-www-form-urlencoded", "graphql")
)
_STREAMS: dict[str, StreamKind] = {
    "text/event-stream": "sse",
    **dict.fromkeys((f"application/{name}" for name in ("x-ndjson", "ndjson", "jsonl", "x-jsonl")), "ndjson"),
    **dict.fromkeys((f"application/{name}" for name in ("jsonlines", "x-jsonlines", "json-lines")), "ndjson"),
    **dict.fromkeys((f"application/{name}" for name in ("x-json-stream", "stream+json")), "ndjson"),
    "application/json-seq": "json-seq",
}
# Python codecs that are not charsets, and UTF-7, which no browser decodes. Some take very long to decode what a hostile
# server can send.
_NO_CHARSETS = frozenset(
    {"idna", "punycode", "undefined", "unicode_escape", "raw-unicode-escape", "unicode-escape", "utf-7"}
)

FAST_CHARSETS = (None, "utf-8", "ascii")
"""Charsets in which a bracket is its ASCII byte, and that are decoded at once."""

_MARKS = {"utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)}
_DECODED_PIECE_BYTES = 64 * 1024  # 10 ms if all of them are invalid


class MediaType(NamedTuple):
    """A parsed Content-Type: the lower-case name without parameters, the charset if known, and how to decode it."""

    name: str
    charset: str | None
    is_json: bool  # one JSON value
    is_xml: bool
    is_text: bool  # `text/*`, XML, and text types that are registered elsewhere
    stream: StreamKind | None  # the framing of a stream of items


@lru_cache(maxsize=256)
def media_type(header: str) -> MediaType:
    """Parse a Content-Type header."""
    name = header.partition(";")[0].strip().lower()
    charset = None
    if (charset_match := _CHARSET.search(f"{header};")) and _is_codec(charset_match[1]):
        try:
            codec_name = codecs.lookup(charset_match[1]).name
            b"a".decode(codec_name, errors="ignore")  # raises for codecs that do not decode bytes to text
            charset = None if codec_name in _NO_CHARSETS else codec_name
        except (LookupError, ValueError):
            charset = None
    is_xml = name in ("application/xml", "text/xml") or name.endswith("+xml")
    return MediaType(
        name,
        charset,
        is_json=name in _JSON or (name.endswith("+json") and name not in _STREAMS),
        is_xml=is_xml,
        is_text=is_xml or name.startswith("text/") or name in _TEXT or name.endswith("+yaml"),
        stream="json-seq" if name.endswith("+json-seq") else _STREAMS.get(name),
    )


def decode_text(data: bytes, charset: str, errors: Literal["strict", "replace"] = "strict") -> str:
    """Decode in pieces, between which other threads run: 16 MB of invalid UTF-16 take 2 s.

    Raises:
        UnicodeError: `strict`, and it is invalid.
    """
    if len(data) <= _DECODED_PIECE_BYTES:
        return data.decode(charset, errors)
    if charset in _MARKS and not data.startswith(_MARKS[charset]):
        charset += f"-{sys.byteorder[0]}e"  # as `decode` does; the incremental decoder would raise
    decoder = codecs.getincrementaldecoder(charset)(errors)
    pieces = (data[start : start + _DECODED_PIECE_BYTES] for start in range(0, len(data), _DECODED_PIECE_BYTES))
    return "".join([*map(decoder.decode, pieces), decoder.decode(b"", True)])


def _is_codec(name: str) -> bool:
    """Return whether Python has a codec: `codecs.lookup` keeps unknown names forever, and an API can invent many."""
    module = normalize_encoding(name).lower().replace(".", "_")
    return module in aliases or (bool(module) and find_spec(f"encodings.{module}") is not None)


def choose(declared: Iterable[ResponseMedia], actual: MediaType) -> ResponseMedia | None:
    """Return the declared media of a response: the same type, else another JSON type, else a range that covers it."""

    def rank(media: ResponseMedia) -> int:
        kind = media_type(media.content_type)
        if kind.name == actual.name:
            return 0
        if kind.is_json and actual.is_json:
            return 1
        if kind.name.endswith("/*") and actual.name.startswith(kind.name[:-1]):
            return 2
        return 3 if kind.name in ("*/*", "*") else 4

    best = min(declared, key=rank, default=None)
    return best if best is not None and rank(best) < 4 else None


_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110: token
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")  # control characters except tab; lone surrogates
_CONTENT_TYPE = re.compile(r"[!#$&^_.+\-0-9A-Za-z]+/[!#$&^_.+\-0-9A-Za-z]+( *;[\x20-\x7e]*)?")


def is_token(name: str) -> bool:
    """Return whether a name is valid as a method, or as the name of a header or cookie."""
    return _NAME.fullmatch(name) is not None


def header_name(name: str, of: str = "header") -> str:
    """Return a valid header or cookie name.

    Raises:
        ValueError: it is invalid.
    """
    if not is_token(name):
        raise ValueError(f"{name!r} is not a valid name of a {of}")
    return name


def header_value(value: str) -> str:
    """Return a valid header value. The error does not show it: it may be a secret.

    Raises:
        ValueError: it contains a line break, another control character, or a lone surrogate.
    """
    if _FORBIDDEN.search(value):
        raise ValueError("a header cannot contain line breaks or other control characters")
    return value


def is_visible_ascii(value: str) -> bool:
    """Return whether a text of another server or caller can be sent back as a header, within 1,000 characters."""
    return 0 < len(value) <= 1000 and value.isascii() and value.isprintable()


def content_type_value(value: str) -> str:
    """Return a valid Content-Type.

    Raises:
        ValueError: it is invalid.
    """
    if not _CONTENT_TYPE.fullmatch(value):
        raise ValueError("invalid content type; expected one like text/plain")
    return value
