"""The operations of a document as it writes them, each checked as far as that costs nothing.

A broken one is left out with its reason; the others do not notice. Schemas are not looked at here.

Parameters of an operation: where each goes, how it is written, and the schema of its value.

Content types: which of several is taken, and which of them are streams.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast

from opwire.adapters.openapi.document import Document, Documents, Place, mapping, sequence, text, texts
from opwire.adapters.openapi.plan import Location, StreamKind, Style, media_type
from opwire.adapters.report import Report
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


_STYLES = frozenset("matrix label simple form spaceDelimited pipeDelimited tabDelimited deepObject cookie".split())
_DEFAULT_STYLES: dict[str, Style] = {"path": "simple", "header": "simple"}
# Swagger 2.0; `csv` is the default style of the place, not exploded.
_COLLECTION_STYLES: dict[str, Style] = {"ssv": "spaceDelimited", "tsv": "tabDelimited", "pipes": "pipeDelimited"}
_NOT_SCHEMA = frozenset("name in required description collectionFormat allowEmptyValue x-example".split())
# The document describes these in places of their own. Swagger 2.0 knows no bearer token, and says nothing of this.
_IGNORED = {"2.0": frozenset({"accept", "content-type"})}
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})


class Given(NamedTuple):
    """A parameter as the document gives it."""

    name: str
    location: Location
    schema: Place
    style: Style
    explode: bool
    required: bool
    allow_reserved: bool
    content_type: str | None
    describes: dict[str, Any]  # what the parameter says of its value beside the schema
    encoding: Place  # of a whole query that is a form: how its fields are sent, by name


def read_parameters(endpoint: Endpoint, documents: Documents, report: Report) -> list[Given]:
    """The parameters that are sent. Path variables that nobody describes are texts.

    Raises:
        SchemaError: one of them cannot be used.
    """
    where = f"{endpoint.method} {endpoint.path}"
    variables = dict.fromkeys(VARIABLE.findall(endpoint.path))
    found: list[Given] = []
    for place in parameters_of(endpoint, documents):
        given = _read(place, documents)
        if given is None:
            continue
        if given.location == "path" and given.name not in variables:
            report.warn(f"{where}: the path has no place for the parameter {given.name!r}")
            continue
        if given.location == "header" and not is_token(given.name):
            report.warn(f"{where}: {given.name!r} cannot be the name of a header: it is not sent")
            continue
        variables.pop(given.name if given.location == "path" else "", None)
        found.append(given)
    for name in variables:
        report.warn(f"{where}: no parameter describes {{{name}}}: it is a text")
        schema = Place({"type": "string"}, endpoint.operation.document)
        nothing = Place({}, schema.document)
        found.append(Given(name, "path", schema, "simple", False, True, False, None, {}, nothing))
    return found


def _read(place: Place, documents: Documents) -> Given | None:
    fields = mapping(place.value)
    name, location = fields["name"], fields["in"]
    ignored = _IGNORED.get(documents.version, _IGNORED_HEADERS)
    if location in ("body", "formData") or (location == "header" and name.lower() in ignored):
        return None
    if documents.version == "2.0":
        return _from_swagger(place)
    content = contents(place, documents)
    style = text(fields.get("style"))
    if style not in _STYLES:
        style = _DEFAULT_STYLES.get(location, "form")
    explode = fields.get("explode")
    holder = content[0].fields if content else place
    return Given(
        name=name,
        location=location,
        schema=Place(holder.value.get("schema"), holder.document),
        style=cast("Style", style),
        explode=explode if isinstance(explode, bool) else style in ("form", "cookie", "deepObject"),
        required=fields.get("required") is True or location == "path",
        allow_reserved=fields.get("allowReserved") is True,
        content_type=content[0].content_type if content else None,
        describes=_descriptions(fields, documents, place),
        encoding=Place(mapping(holder.value.get("encoding")), holder.document),
    )


def _descriptions(fields: dict[str, Any], documents: Documents, place: Place) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if description := text(fields.get("description")).strip():
        said["description"] = description
    if fields.get("deprecated") is True:
        said["deprecated"] = True
    if "example" in fields:
        said["examples"] = [fields["example"]]
    elif examples := mapping(fields.get("examples")):
        values = [mapping(each) for each in examples.values()]
        said["examples"] = [each["value"] for each in values if "value" in each]
    return said


def _from_swagger(place: Place) -> Given:
    fields = mapping(place.value)
    style, explode = swagger_style(fields)
    return Given(
        name=fields["name"],
        location=fields["in"],
        schema=swagger_schema(place),
        style=style or _DEFAULT_STYLES.get(fields["in"], "form"),
        explode=explode,
        required=fields.get("required") is True or fields["in"] == "path",
        allow_reserved=False,
        content_type=None,
        describes={"description": fields["description"]} if text(fields.get("description")) else {},
        encoding=Place({}, place.document),
    )


def swagger_style(fields: dict[str, Any]) -> tuple[Style | None, bool]:
    """The style that a `collectionFormat` stands for, None where it is that of the place, and whether it explodes."""
    collection = text(fields.get("collectionFormat"))
    return _COLLECTION_STYLES.get(collection), collection == "multi"


def swagger_schema(place: Place) -> Place:
    """The schema of a parameter that is one itself, as in Swagger 2.0."""
    fields = mapping(place.value)
    if "schema" in fields:
        return Place(fields["schema"], place.document)
    return Place({key: each for key, each in fields.items() if key not in _NOT_SCHEMA}, place.document)


_MAX_ACCEPTED = 50  # content types that a request asks for
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def stream_kind(content_type: str) -> StreamKind | None:
    """How a stream of this type is framed; None if it is none."""
    return media_type(content_type).stream


def is_any(content_type: str) -> bool:
    """Whether it is a range that JSON is in."""
    return media_type(content_type).name in ("*/*", "application/*")


def is_form(content_type: str) -> bool:
    """Whether the content is made of named fields."""
    return media_type(content_type).name in _FORMS


def is_multipart(content_type: str) -> bool:
    """Whether the content is made of parts."""
    return media_type(content_type).name.startswith("multipart/")


def is_text(content_type: str) -> bool:
    """Whether the content is text that is neither JSON nor a form."""
    kind = media_type(content_type)
    return kind.is_text and not kind.is_json and not is_form(content_type)


def is_json(content_type: str) -> bool:
    """Whether the content is one JSON value."""
    return media_type(content_type).is_json


# What comes first is taken: JSON itself before its relatives, which often are other forms of the same thing.
_PREFERENCES: tuple[Callable[[str], bool], ...] = (
    lambda each: each == "application/json",
    lambda each: media_type(each).name == "application/json",
    is_json,
    is_any,
    lambda each: media_type(each).name == "application/x-www-form-urlencoded",
    is_multipart,
    is_text,
)


def preferred(types: Iterable[Content]) -> Content | None:
    """The one that is taken of several."""
    given = list(types)
    for prefers in _PREFERENCES:
        for each in given:
            if prefers(each.content_type):
                return each
    return given[0] if given else None


def accept_header(chosen: Iterable[str], others: Iterable[str]) -> str:
    """What to ask for: JSON alone where that is chosen, else whatever there is. Nothing is refused.

    Other kinds of JSON are not asked for beside it: they often are other forms of the answer.
    """
    wanted = [each for each in chosen if is_json(each)] or [each for each in others if media_type(each).name != "*/*"]
    wanted = list(dict.fromkeys(each for each in wanted if "\n" not in each and "\r" not in each))[:_MAX_ACCEPTED]
    return ", ".join([*wanted, "*/*;q=0.1"]) if wanted else "*/*"
