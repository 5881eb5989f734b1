"""An HTTP request from a plan and an input. Pure: no I/O, no clock.

The address of a request but for its query: the server's, and the path with its variables filled. Pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from msgspec import Struct
from yarl import URL

from opwire.adapters.openapi.bodies import EncodedBody, Write, body_encoder, parameter_writer
from opwire.adapters.openapi.plan import (
    MISSING,
    Body,
    Parameter,
    Plan,
    find,
    header_name,
    header_value,
    invalid,
    media_type,
)
from opwire.errors import CallError, ErrorCode

_VARIABLE = re.compile(r"\{([^{}]*)\}")
_IN_PATH = "/:@!$&'()*+,;=-._~%"  # what a template may hold as it is
_IN_QUERY = _IN_PATH + "?"
_DOTS = (".", "..")


class Address(NamedTuple):
    """What the paths of a document are appended to. `path` ends without a slash."""

    origin: str
    path: str
    query: str


def read_address(plan: Plan) -> Address:
    """The address that the user fixed, else that of the document.

    Raises:
        ValueError: it is not a complete address. The message does not show it, because it may hold a password.
    """
    given = plan.server if plan.base_url is None else plan.base_url
    if unknown := _VARIABLE.search(given):
        raise ValueError(f"its server's address has a variable {unknown[0]} without a value; base_url= gives another")
    try:
        url = URL(given)
        origin = str(url.origin())
    except ValueError:
        raise ValueError("its server has no complete address; base_url= gives one") from None
    if url.scheme not in ("http", "https"):
        raise ValueError("its server's address is neither http:// nor https://; base_url= gives another")
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError("its server's address holds a user name or password; give credentials= instead")
    return Address(origin, url.raw_path.removesuffix("/"), url.raw_query_string)


class PathTemplate:
    """A path of a document, `/pets/{petId}/toys/{kind}.{format}`. A query in it is kept, a fragment is not.

    Raises:
        ValueError: a variable is not among the names.
    """

    def __init__(self, template: str, names: set[str]) -> None:
        path, _, query = template.partition("#")[0].partition("?")
        self.query = quote(query, safe=_IN_QUERY)
        self._segments: list[str | list[str]] = []  # a list alternates literal text and names
        for segment in path.removeprefix("/").split("/"):
            pieces = _VARIABLE.split(segment)
            pieces[::2] = [quote(piece, safe=_IN_PATH) for piece in pieces[::2]]
            for name in pieces[1::2]:
                if name not in names:
                    raise ValueError(f"its path has a variable {{{name}}} that no parameter describes")
            self._segments.append(pieces[0] if len(pieces) == 1 else pieces)

    def fill(self, texts: Mapping[str, str]) -> str:
        """The path with these texts, which are encoded already.

        Raises:
            ValueError: a segment would be empty, `.` or `..`. Servers and proxies resolve these, even when encoded.
        """
        path = ""
        for segment in self._segments:
            path += f"/{segment if isinstance(segment, str) else _filled(segment, texts)}"
        return path


def _filled(pieces: list[str], texts: Mapping[str, str]) -> str:
    segment = "".join([texts[piece] if index % 2 else piece for index, piece in enumerate(pieces)])
    # Some servers take off what follows a semicolon before they resolve the dots.
    if not segment or segment.lower().replace("%2e", ".").partition(";")[0] in _DOTS:
        variables = " and ".join(f"{{{name}}}" for name in pieces[1::2])
        raise ValueError(f"{variables} would make a segment of the path {segment!r}, which is another path")
    return segment


_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})  # the client's own


class HTTPRequest(Struct, frozen=True, kw_only=True):
    """A request, ready to be sent. Its repr shows neither query nor headers: credentials may stand there.

    `url` is complete and encoded: it is to be sent as it is (`yarl.URL(url, encoded=True)`). `headers` hold Accept
    and Content-Type, but neither Host nor Content-Length, which are the client's. `secret_headers` are the lower-case
    names of the headers that carry credentials: they, and a query with a secret, never cross to another origin.
    `token` is the one among its credentials that can be had anew, after a 401.
    """

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes | None = None
    secret_headers: frozenset[str] = frozenset()
    secret_query: bool = False
    token: str | None = None

    def __repr__(self) -> str:
        return f"<HTTPRequest {self.method} {self.url.partition('?')[0]}>"


def build_request(plan: Plan, input: Any) -> HTTPRequest:
    """The request for one input: `compile_request` for those who ask only once.

    Raises:
        CallError: VALIDATION_ERROR, naming the parameter; EXECUTION_ERROR, if the plan itself cannot be carried out.
    """
    return compile_request(plan)(input)


def compile_request(plan: Plan) -> Callable[[Any], HTTPRequest]:
    """What turns inputs of an operation into requests, made once a plan; it raises CallError VALIDATION_ERROR.

    Raises:
        CallError: EXECUTION_ERROR, if the plan cannot be carried out: an unknown variable in its path, no address.
    """
    try:
        return _RequestWriter(plan).write
    except ValueError as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, f"{plan.operation_id} cannot be called: {error}") from error


class _RequestWriter:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        address = read_address(plan)
        self._base = address.origin + address.path
        self._variables = _writers(plan.parameters, "path")
        self._path = PathTemplate(plan.path, {parameter.name for parameter, _ in self._variables})
        self._fixed_query = [query for query in (address.query, self._path.query) if query]
        self._query = _writers(plan.parameters, "query", "querystring")
        self._headers = [each for each in _writers(plan.parameters, "header") if each[0].name.lower() not in _FRAMING]
        for parameter, _ in self._headers:
            header_name(parameter.name)
        self._accept = ("Accept", header_value(plan.accept))
        self._cookies = _writers(plan.parameters, "cookie")
        self._body = None if plan.body is None else _BodyWriter(plan.body, plan.parameters)

    def write(self, input: Any) -> HTTPRequest:
        url = self._base + self._path_of(input)
        query = [*self._fixed_query, *(text for _, text in self._written(self._query, input) if text)]
        if query:
            url = f"{url}?{'&'.join(query)}"
        headers: list[tuple[str, str]] = [self._accept]
        if self._headers:
            headers += [(parameter.name, text) for parameter, text in self._written(self._headers, input)]
        if self._cookies:
            cookies = [text for _, text in self._written(self._cookies, input) if text]
            headers = _with_cookies(headers, cookies) if cookies else headers
        body = self._body_of(input)
        if body is None:
            return HTTPRequest(method=self._plan.method, url=url, headers=headers)
        headers.append(("Content-Type", body.content_type))
        return HTTPRequest(method=self._plan.method, url=url, headers=headers, body=body.data)

    def _written(self, writers: Iterable[tuple[Parameter, Write]], input: Any) -> Iterator[tuple[Parameter, str]]:
        """The parameters that are given, as text."""
        for parameter, write in writers:
            value = find(input, parameter.path_to)
            if value is MISSING or value is None:
                # A path needs its values, even where the document forgets to say so.
                if not parameter.required and parameter.location != "path":
                    continue
                if value is MISSING:
                    raise self._invalid(parameter.path_to, f"this {parameter.location} parameter is required")
            elif not parameter.required and parameter.location == "header" and _is_empty(value):
                continue
            try:
                text = write(value)
            except ValueError as error:
                raise self._invalid(parameter.path_to, f"as a {parameter.location} parameter: {error}") from error
            yield parameter, text

    def _path_of(self, input: Any) -> str:
        texts = {parameter.name: text for parameter, text in self._written(self._variables, input)}
        try:
            return self._path.fill(texts)
        except ValueError as error:
            raise self._invalid((), str(error)) from error

    def _body_of(self, input: Any) -> EncodedBody | None:
        if self._body is None:
            return None
        try:
            return self._body.write(input)
        except ValueError as error:
            raise self._invalid(self._body.place, f"as the body: {error}") from error

    def _invalid(self, place: Sequence[str], message: str) -> CallError:
        return invalid(self._plan.operation_id, place, message)


class _BodyWriter:
    def __init__(self, body: Body, parameters: Sequence[Parameter]) -> None:
        self.place = body.path_to
        self._body = body
        self._encode = body_encoder(body)
        self._nullable = media_type(body.content_type).is_json
        self._elsewhere = {parameter.path_to[0] for parameter in parameters}

    def write(self, input: Any) -> EncodedBody | None:
        """The body; None if it is not given and need not be. Raises ValueError."""
        body = self._body
        value = input if body.whole else find(input, body.path_to) if body.path_to else self._gathered(input)
        if value is None and not body.required:
            value = MISSING
        if body.fixed and (value is MISSING or value is None):
            value = dict(body.fixed)
        elif body.fixed and isinstance(value, dict):
            value = {**cast("dict[str, Any]", value), **body.fixed}
        if value is MISSING:
            if body.required:
                raise ValueError("it is required")
            return None
        if value is None and not self._nullable:
            raise ValueError("it is required, and null cannot be written")
        return self._encode(value)

    def _gathered(self, input: Any) -> Any:
        """The body's properties among the parameters."""
        given = cast("dict[str, Any]", input) if isinstance(input, dict) else {}
        value = {name: given[name] for name in self._body.properties if name in given}
        if self._body.open:
            value |= {name: each for name, each in given.items() if name not in value and name not in self._elsewhere}
        return value if value or self._body.required else MISSING


def _is_empty(value: Any) -> bool:
    """Whether nothing is left to be written of an array or object."""
    if not isinstance(value, list | dict):
        return False
    items = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
    return all(each is None for each in items)


def _with_cookies(headers: list[tuple[str, str]], cookies: list[str]) -> list[tuple[str, str]]:
    """Add cookies to those of a header parameter: a request has one line of them (RFC 6265, section 5.4)."""
    own = [text for name, text in headers if name.lower() == "cookie" and text]
    others = [header for header in headers if header[0].lower() != "cookie"]
    return [*others, ("Cookie", "; ".join([*own, *cookies]))]


def _writers(parameters: Sequence[Parameter], *locations: str) -> list[tuple[Parameter, Write]]:
    return [(each, parameter_writer(each)) for each in parameters if each.location in locations]
