"""The operations of a document as it writes them, each checked as far as that costs nothing.

A broken one is left out with its reason; the others do not notice. Schemas are not looked at here.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from opwire.adapters.openapi.document import Document
from opwire.adapters.openapi.media_types import media_type
from opwire.adapters.openapi.refs import Documents, Place
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.shapes import mapping, sequence, text, texts
from opwire.errors import SchemaError

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
VARIABLE = re.compile(r"\{([^{}]*)\}")

_LOCATIONS = frozenset({"path", "query", "header", "cookie", "querystring", "body", "formData"})
_SUCCESS = re.compile(r"2([0-9]{2}|XX)")
_MAX_PARAMETERS = 1_000  # of one operation; path items can be shared by thousands of paths
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Endpoint(NamedTuple):
    """One operation of a document: a method and a path, and what is said of it."""

    method: str  # upper-case
    path: str
    item: Place  # the path item that holds it
    operation: Place


class Content(NamedTuple):
    """One kind of content that is sent or answered."""

    content_type: str
    fields: Place  # `schema`, `itemSchema`, `encoding`


def is_token(name: str) -> bool:
    """Whether it can be a method, or the name of a header."""
    return _TOKEN.fullmatch(name) is not None


def endpoints(documents: Documents, report: Report) -> Iterator[Endpoint]:
    """The operations that can be used, in the order of the document."""
    paths = _paths(documents, report)
    for path, given in mapping(paths.value).items():
        if path.startswith("x-"):
            continue
        try:
            item = _path_item(given, paths.document, documents)
        except SchemaError as error:
            report.skip("*", path, str(error))
            continue
        for method, operation in _operations(item.value, documents.version):
            try:
                # In documents of several files an operation, too, may stand elsewhere.
                place = documents.follow_object(operation, item.document, "the operation")
                endpoint = Endpoint(method, path if path.startswith("/") else f"/{path}", item, place)
                _check(endpoint, documents)
            except SchemaError as error:
                report.skip(method, path, str(error))
            else:
                yield endpoint


def _paths(documents: Documents, report: Report) -> Place:
    """The paths, which a document of several files may keep in one of their own."""
    try:
        return documents.follow(documents.main.root.get("paths"), documents.main)
    except SchemaError as error:
        report.skip("*", "*", str(error))
        return Place({}, documents.main)


def _path_item(given: Any, home: Document, documents: Documents) -> Place:
    item = documents.follow_object(given, home, "the path item")
    siblings = {key: each for key, each in given.items() if key != "$ref"}
    return Place({**item.value, **siblings}, item.document) if "$ref" in given and siblings else item


def _operations(item: dict[str, Any], version: str) -> Iterator[tuple[str, Any]]:
    for key, operation in item.items():
        if key.lower() in METHODS or (version == "3.2" and key == "query"):
            yield key.upper(), operation
    if version == "3.2":
        yield from mapping(item.get("additionalOperations")).items()  # as it is: methods are case-sensitive


def _check(endpoint: Endpoint, documents: Documents) -> None:
    """Raises SchemaError where the operation cannot be called."""
    if not is_token(endpoint.method):
        raise SchemaError("the method is not one of HTTP")
    parameters_of(endpoint, documents)
    request_body(endpoint, documents)


def parameters_of(endpoint: Endpoint, documents: Documents) -> list[Place]:
    """The parameters of an operation: those of its path too, unless it has its own of that name and place.

    Raises:
        SchemaError: one of them cannot be used.
    """
    key = tuple(id(owner.value.get("parameters")) for owner in (endpoint.item, endpoint.operation))
    known = documents.parameters.get(key)  # thousands of paths may refer to one path item
    if known is None:
        try:
            known = _parameters(endpoint, documents)
        except SchemaError as error:
            known = str(error)
        documents.parameters[key] = known
    if isinstance(known, str):
        raise SchemaError(known)
    return known


def _parameters(endpoint: Endpoint, documents: Documents) -> list[Place]:
    found: dict[tuple[str, str], Place] = {}
    for owner in (endpoint.item, endpoint.operation):
        given = owner.value.get("parameters")
        if given is not None and not isinstance(given, list):
            raise SchemaError("`parameters` is not an array")
        for each in sequence(given):
            place = documents.follow(each, owner.document)
            fields = mapping(place.value)
            location = text(fields.get("in"))
            # The whole query needs no name, but the input has to call it something.
            name = text(fields.get("name")) or (location if location == "querystring" else "")
            if not name or location not in _LOCATIONS:
                raise SchemaError(f"a parameter needs a name and a place: {str(fields)[:80]}")
            if documents.version != "3.0" and "$ref" in mapping(each) and "description" in each:
                place = Place({**fields, "description": each["description"]}, place.document)
            if name != fields.get("name"):
                place = Place({**place.value, "name": name}, place.document)
            found[name, location] = place
            if len(found) > _MAX_PARAMETERS:
                raise SchemaError(f"it has more than {_MAX_PARAMETERS:,} parameters")
    return list(found.values())


def request_body(endpoint: Endpoint, documents: Documents) -> Place | None:
    """The `requestBody` of an operation.

    Raises:
        SchemaError: it cannot be used.
    """
    given = endpoint.operation.value.get("requestBody")
    if given is None or documents.version == "2.0":
        return None
    body = documents.follow_object(given, endpoint.operation.document, "`requestBody`")
    return body if mapping(body.value.get("content")) else None


def contents(holder: Place, documents: Documents) -> list[Content]:
    """What the `content` of a request, response or parameter offers. What cannot be found says nothing."""
    found: list[Content] = []
    for content_type, given in mapping(holder.value.get("content")).items():
        try:
            place = documents.follow(given, holder.document)
        except SchemaError:
            place = Place({}, holder.document)
        found.append(Content(content_type, Place(mapping(place.value), place.document)))
    return found


def offered(endpoint: Endpoint, documents: Documents, what: Literal["consumes", "produces"]) -> list[str]:
    """The content types that Swagger 2.0 names once for all."""
    own = endpoint.operation.value.get(what)
    return texts(own if own is not None else documents.main.root.get(what)) or ["application/json"]


def successes(endpoint: Endpoint, documents: Documents) -> dict[str, list[Content]]:
    """The kinds of answer by status, lowest first; `default` only where no other one tells of a success."""
    given, home = _responses(endpoint, documents)
    responses = {status.upper() if status.lower() == "2xx" else status: each for status, each in given.items()}
    statuses = sorted(each for each in responses if _SUCCESS.fullmatch(each))
    if not statuses and "default" in responses:
        statuses = ["default"]
    return {status: _answers(endpoint, Place(responses[status], home), documents) for status in statuses}


def _responses(endpoint: Endpoint, documents: Documents) -> Place:
    try:
        place = documents.follow(endpoint.operation.value.get("responses"), endpoint.operation.document)
    except SchemaError:
        place = endpoint.operation
    return Place(mapping(place.value), place.document)


def _answers(endpoint: Endpoint, given: Place, documents: Documents) -> list[Content]:
    try:
        response = documents.follow(*given)
    except SchemaError:
        return []
    response = Place(mapping(response.value), response.document)
    if documents.version != "2.0":
        return contents(response, documents)
    if "schema" not in response.value:  # nothing is answered, unless it is a stream that nobody describes
        own = texts(endpoint.operation.value.get("produces"))
        return [Content(each, response) for each in own if media_type(each).stream]
    return [Content(each, response) for each in offered(endpoint, documents, "produces")]


def summary_of(endpoint: Endpoint) -> tuple[str, str]:
    """Title and description."""
    own = endpoint.operation.value
    title = text(own.get("summary")).strip()
    return title, text(own.get("description")).strip() or title or text(endpoint.item.value.get("description")).strip()
