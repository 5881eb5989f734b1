"""What has to be known of one HTTP operation to call it: plain data, made by `read`, used by everything else here.

A plan is made when an operation is first called or looked at, not when its document is loaded. No I/O.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

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
