"""An HTTP request from a call plan and an input. No I/O, no clock."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from yarl import URL

from opwire.errors import CallError, ErrorCode
from opwire.http.client import HTTPRequest
from opwire.openapi.client.plan import (
    CallPlan,
    RequestBody,
    RequestParameter,
    header_name,
    header_value,
    invalid_input,
    media_type,
    without_fragment,
)
from opwire.openapi.client.serialize import EncodedBody, body_encoder, parameter_writer
from opwire.typed.plain import as_dict

MISSING: Any = object()
"""The value of a missing key; None is a value."""

_VARIABLE = re.compile(r"\{([^{}]*)\}")
_IN_PATH = "/:@!$&'()*+,;=-._~%"  # characters that a template keeps unencoded
_IN_QUERY = _IN_PATH + "?"
_NOT_IN_QUERY = str.maketrans({"&": "%26", "+": "%2B"})  # which `allowReserved` keeps in a path


class BaseURL(NamedTuple):
    """The URL to which the paths of a document are appended. `path` has no trailing slash."""

    origin: str
    path: str
    query: str


_REMEDY = "set base_url, of from_openapi or of the source in opwire.toml"


def base_url_of(plan: CallPlan) -> BaseURL:
    """Parse the caller's base URL, else the server of the document.

    Raises:
        ValueError: it is not a complete URL. The message does not show it, since it may contain a password.
    """
    server_url = plan.server if plan.base_url is None else plan.base_url
    if unknown := _VARIABLE.search(server_url):
        raise ValueError(f"the variable {unknown[0]} of its server's URL has no value; {_REMEDY}")
    try:
        url = URL(server_url)
        origin = str(url.origin())
    except ValueError:
        raise ValueError(f"its server has no complete URL; {_REMEDY}") from None
    if url.scheme not in ("http", "https"):
        raise ValueError(f"its server's URL is neither http:// nor https://; {_REMEDY}")
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError("its server's URL contains a user name or password; use credentials= instead")
    return BaseURL(origin, url.raw_path.removesuffix("/"), url.raw_query_string)


def _is_dots(segment: str) -> bool:
    """Return whether servers resolve a segment: some of them strip everything after a semicolon before."""
    return segment.lower().replace("%2e", ".").partition(";")[0] in (".", "..")


class PathTemplate:
    """A path of a document, `/pets/{petId}/toys/{kind}.{format}`. Its query is kept, its fragment dropped.

    A field `lat={lat}` of its query is not part of the template if `lat` is among the query parameters.

    Raises:
        ValueError: a variable is not among the names, or a segment leads out of the base URL.
    """

    def __init__(self, template: str, names: set[str], query_names: Collection[str] = ()) -> None:
        def pieces_of(text: str, safe: str) -> list[str]:
            """Return alternately encoded literal text and the names of variables."""
            pieces = _VARIABLE.split(text)
            pieces[::2] = [quote(piece, safe=safe) for piece in pieces[::2]]
            for name in pieces[1::2]:
                if name not in names:
                    raise ValueError(f"no parameter describes the variable {{{name}}} of its path")
            return pieces

        path, _, query = without_fragment(template).partition("?")
        template_pairs = {f"{name}={{{name}}}" for name in query_names}
        self._query = pieces_of("&".join(pair for pair in query.split("&") if pair not in template_pairs), _IN_QUERY)
        self._segments = [pieces_of(segment, _IN_PATH) for segment in path.removeprefix("/").split("/")]
        for pieces in self._segments:
            if len(pieces) == 1 and _is_dots(pieces[0]):
                raise ValueError(f"its path has a segment {pieces[0]!r}, which is another path")

    def fill_query(self, texts: Mapping[str, str]) -> str:
        """Return the query with these texts, which are already encoded, at least for a path."""
        pieces = enumerate(self._query)
        return "".join([texts[piece].translate(_NOT_IN_QUERY) if index % 2 else piece for index, piece in pieces])

    def fill(self, texts: Mapping[str, str]) -> str:
        """Return the path with these texts, which are already encoded.

        Raises:
            ValueError: a segment would be empty, `.` or `..`. Servers and proxies resolve these, even when encoded.
        """
        path = ""
        for pieces in self._segments:
            segment = "".join([texts[piece] if index % 2 else piece for index, piece in enumerate(pieces)])
            if len(pieces) > 1 and (not segment or _is_dots(segment)):
                variables = " and ".join(f"{{{name}}}" for name in pieces[1::2])
                raise ValueError(f"{variables} would make a path segment {segment!r}, which is another path")
            path += f"/{segment}"
        return path


def value_at(input: Any, path: Sequence[str]) -> Any:
    """Return the value at a path in the input, or MISSING."""
    for key in path:
        if not isinstance(input, dict) or key not in input:
            return MISSING
        input = cast("dict[str, Any]", input)[key]
    return input


def compile_request(plan: CallPlan) -> Callable[[Any], HTTPRequest]:
    """Return the function that turns inputs into requests; it raises CallError VALIDATION_ERROR.

    Raises:
        CallError: EXECUTION_ERROR, the plan is invalid: an unknown variable in its path, no server URL.
    """
    try:
        return _RequestBuilder(plan).build
    except ValueError as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, f"{plan.operation_id} cannot be called: {error}") from error


_TextOf = Callable[[dict[str, Any]], str | None]
"""Serializes a parameter of an input; None if it is not to be sent."""


def _text_of(parameter: RequestParameter, operation_id: str) -> _TextOf:
    write, path, location = parameter_writer(parameter), parameter.input_path, parameter.location

    def is_sent(value: Any) -> bool:
        if value is MISSING or value is None:
            # A path needs its values, even if the document does not declare them required.
            if not parameter.required and location != "path":
                return False
            if value is MISSING:
                raise invalid_input(operation_id, path, f"this {location} parameter is required")
        elif location == "header" and not parameter.required and isinstance(value, list | dict):
            # An optional header is omitted if nothing in it has a value.
            items = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
            return any(item is not None for item in items)
        return True

    def text_of(input_object: dict[str, Any]) -> str | None:
        value = value_at(input_object, path)
        if not is_sent(value):
            return None
        try:
            return write(value)
        except ValueError as error:
            raise invalid_input(operation_id, path, f"as a {location} parameter: {error}") from error

    return text_of


class _RequestBuilder:
    def __init__(self, plan: CallPlan) -> None:
        def texts(*locations: str) -> list[tuple[str, _TextOf]]:
            """Return the names and texts of parameters."""
            parameters = [parameter for parameter in plan.parameters if parameter.location in locations]
            return [(parameter.name, _text_of(parameter, plan.operation_id)) for parameter in parameters]

        self._plan = plan
        base = base_url_of(plan)
        self._base = base.origin + base.path
        self._variables = texts("path")
        self._base_query = base.query
        self._query = texts("query", "querystring")
        self._path = PathTemplate(plan.path, {name for name, _ in self._variables}, {name for name, _ in self._query})
        self._headers = texts("header")
        for name, _ in self._headers:
            header_name(name)
        self._accept = ("Accept", header_value(plan.accept))
        self._cookies = texts("cookie")
        self._body = None if plan.body is None else _BodyBuilder(plan.body, plan.parameters)

    def build(self, input: Any) -> HTTPRequest:
        input_object = cast("dict[str, Any]", input) if isinstance(input, dict) else {}
        url = self._url(input_object)
        headers: list[tuple[str, str]] = [self._accept]
        headers += [(name, text) for name, text_of in self._headers if (text := text_of(input_object)) is not None]
        if cookies := [text for _, text_of in self._cookies if (text := text_of(input_object))]:
            # A request has one Cookie line (RFC 6265, section 5.4): join those of a header parameter.
            cookie_texts = [text for name, text in headers if name.lower() == "cookie" and text]
            headers = [header for header in headers if header[0].lower() != "cookie"]
            headers.append(("Cookie", "; ".join([*cookie_texts, *cookies])))
        body = None
        if self._body is not None:
            try:
                body = self._body.build(input)
            except ValueError as error:
                path = self._body.input_path
                raise invalid_input(self._plan.operation_id, path, f"as the body: {error}") from error
        if body is None:
            return HTTPRequest(method=self._plan.method, url=url, headers=headers)
        headers.append(("Content-Type", body.content_type))
        return HTTPRequest(method=self._plan.method, url=url, headers=headers, body=body.data)

    def _url(self, input_object: dict[str, Any]) -> str:
        texts = {name: text_of(input_object) or "" for name, text_of in self._variables}
        try:
            url = self._base + self._path.fill(texts)
        except ValueError as error:
            raise invalid_input(self._plan.operation_id, (), str(error)) from error
        parameters = [text_of(input_object) for _, text_of in self._query]
        query = list(filter(None, (self._base_query, self._path.fill_query(texts), *parameters)))
        return f"{url}?{'&'.join(query)}" if query else url


class _BodyBuilder:
    def __init__(self, body: RequestBody, parameters: Sequence[RequestParameter]) -> None:
        self.input_path = body.input_path
        self._body = body
        self._encode = body_encoder(body)
        self._nullable = media_type(body.content_type).is_json
        self._parameters = {parameter.input_path[0] for parameter in parameters}

    def build(self, input: Any) -> EncodedBody | None:
        """Return the body, or None if it is missing and optional. Raises ValueError."""
        body = self._body
        if body.whole:
            value = input
        elif body.input_path:
            value = value_at(input, body.input_path)
        else:  # the properties are among the parameters
            input_object = as_dict(input)
            value = {name: input_object[name] for name in body.properties if name in input_object}
            if body.open and len(value) < len(input_object):
                extras = input_object.keys() - value.keys() - self._parameters
                value |= {name: member for name, member in input_object.items() if name in extras}
            value = value if value or body.required else MISSING
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
            raise ValueError("it is required, and null cannot be sent as this content type")
        return self._encode(value)
