"""Endpoints of a document: one per method and path, with its parameters, request body and responses as declared.

Only cheap checks are done here, and schemas are not read. An invalid endpoint is skipped with its reason; the others
are not affected.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, cast

from opwire.errors import SchemaError
from opwire.openapi.client.document import DocumentSet, Located, as_text, as_texts
from opwire.openapi.client.plan import RequestParameter, Style, is_token, media_type, without_fragment
from opwire.openapi.client.schemas import MAX_COMPOSED_SCHEMAS
from opwire.registry.source import Report
from opwire.typed.plain import as_dict, as_list

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
VARIABLE = re.compile(r"\{([^{}]*)\}")
OPERATION_USES = 10
"""Uses that an operation counts for by itself: it takes 60 µs and 3 kB."""

_LOCATIONS = frozenset({"path", "query", "header", "cookie", "querystring", "body", "formData"})
_NAMELESS = frozenset({"querystring", "body"})
_SUCCESS = re.compile(r"2([0-9]{2}|XX)")


class HTTPEndpoint(NamedTuple):
    """One operation of a document: a method and a path, and its declaration."""

    method: str  # upper-case
    path: str
    item: Located  # its path item
    operation: Located

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class MediaContent(NamedTuple):
    """One media type of a request or response."""

    content_type: str
    fields: Located  # `schema`, `itemSchema`, `encoding`


def endpoints(documents: DocumentSet, report: Report) -> Iterator[HTTPEndpoint]:
    """Iterate over the usable endpoints, in the order of the document."""
    try:  # a document of several files may have its paths in one of their own
        paths = documents.follow(documents.main.root.get("paths"), documents.main)
    except SchemaError as error:
        report.skip("*", "*", str(error))
        return
    for path, path_item in as_dict(paths.value).items():
        if path.startswith("x-"):
            continue
        try:
            item = documents.follow_object(path_item, paths.document, "the path item")
            documents.use(len(item.value) + len(as_dict(item.value.get("additionalOperations"))))
            if "$ref" in path_item and len(path_item) > 1:  # the keywords beside a reference override its target
                siblings = {key: field for key, field in path_item.items() if key != "$ref"}
                item = Located({**item.value, **siblings}, item.document)
        except SchemaError as error:
            report.skip("*", path, str(error))
            continue
        for method, operation in _operations(item.value, documents.version):
            try:
                # In documents of several files, an operation too may be a reference.
                located = documents.follow_object(operation, item.document, "the operation")
                endpoint = HTTPEndpoint(method, path if path.startswith("/") else f"/{path}", item, located)
                if not is_token(method):
                    raise SchemaError("invalid HTTP method")
                _count_uses(endpoint, documents)
                parameters_of(endpoint, documents)
                request_body(endpoint, documents)
            except SchemaError as error:
                report.skip(method, path, str(error))
            else:
                yield endpoint


def _operations(item: dict[str, Any], version: str) -> Iterator[tuple[str, Any]]:
    for key, operation in item.items():
        if key.lower() in METHODS or (version == "3.2" and key == "query"):
            yield key.upper(), operation
    if version == "3.2":
        yield from as_dict(item.get("additionalOperations")).items()  # unchanged: methods are case-sensitive


def _count_uses(endpoint: HTTPEndpoint, documents: DocumentSet) -> None:
    """Count what an operation uses and may share with others, before it is read.

    Raises:
        SchemaError: see `DocumentSet.use`.
    """
    item, operation, root = endpoint.item.value, endpoint.operation.value, documents.main.root
    lists = [item.get("parameters"), operation.get("parameters"), operation.get("security", root.get("security"))]
    lists += [operation.get(key, root.get(key)) for key in ("consumes", "produces")]
    responses = documents.find_object(operation.get("responses"), endpoint.operation.document)
    count = OPERATION_USES + len(responses.value) + sum(len(as_list(list_field)) for list_field in lists)
    documents.use(count, operation, item.get("description"))
    for parameters, document in zip(lists, (endpoint.item.document, endpoint.operation.document), strict=False):
        documents.use(0, *(documents.find_object(parameter, document).value for parameter in as_list(parameters)))
    for key, declared_response in responses.value.items():
        if _SUCCESS.fullmatch(key) or key in ("default", "2xx"):
            response = documents.find_object(declared_response, responses.document)
            documents.use(len(as_dict(response.value.get("content"))), response.value)
    if "requestBody" in operation:
        body = documents.find_object(operation["requestBody"], endpoint.operation.document)
        documents.use(len(as_dict(body.value.get("content"))), body.value)
        for media in as_dict(body.value.get("content")).values():  # its properties become properties of the input
            queue = [Located(as_dict(media).get("schema"), body.document)]
            for number, declared_response in enumerate(queue):  # grows during the iteration
                schema = documents.find_object(*declared_response)
                documents.use(len(as_dict(schema.value.get("properties"))), schema.value)
                if number < MAX_COMPOSED_SCHEMAS:
                    queue += [
                        Located(part, schema.document)
                        for part in as_list(schema.value.get("allOf"))[:MAX_COMPOSED_SCHEMAS]
                    ]


def webhook_items(documents: DocumentSet) -> Iterator[tuple[str, Located]]:
    """Iterate over the names and path items of webhooks, then of callbacks, which may be references.

    Raises:
        SchemaError: see `DocumentSet.use`: each operation of a path item that many paths share may share callbacks.
    """
    root, main = documents.main.root, documents.main
    for key in ("webhooks", "x-webhooks"):
        yield from ((name, Located(path_item, main)) for name, path_item in as_dict(root.get(key)).items())
    for operation in _with_callbacks(documents):
        callbacks = as_dict(operation.value.get("callbacks"))
        documents.use(len(callbacks))
        for name, declared_callback in callbacks.items():
            try:
                callback = documents.follow(declared_callback, operation.document)
            except SchemaError:
                continue
            items = as_dict(callback.value)
            documents.use(len(items))
            for expression, path_item in items.items():
                if not expression.startswith("x-"):
                    yield name, Located(path_item, callback.document)


def _with_callbacks(documents: DocumentSet) -> Iterator[Located]:
    try:
        paths = documents.follow(documents.main.root.get("paths"), documents.main)
    except SchemaError:  # reported where the operations are read
        return
    for path_item in as_dict(paths.value).values():
        try:
            item = documents.follow(path_item, paths.document)
        except SchemaError:
            continue
        documents.use(len(as_dict(item.value)))
        yield from (
            Located(operation, item.document) for operation in as_dict(item.value).values() if as_dict(operation)
        )


def parameters_of(endpoint: HTTPEndpoint, documents: DocumentSet) -> list[Located]:
    """Return the parameters of an operation and of its path, which the operation may override by name and location.

    The name of an optional one that cannot be sent, since the document does not name it, is empty.

    Raises:
        SchemaError: one of them is invalid.
    """
    parameters_by_place: dict[tuple[str, str], Located] = {}
    for owner in (endpoint.item, endpoint.operation):
        declared_parameters = owner.value.get("parameters")
        if declared_parameters is not None and not isinstance(declared_parameters, list):
            raise SchemaError("`parameters` is not an array")
        for declared_parameter in as_list(declared_parameters):
            located = documents.follow(declared_parameter, owner.document)
            fields = as_dict(located.value)
            location = as_text(fields.get("in"))
            # The whole query and the body need no name, but their keys in the input do.
            name = as_text(fields.get("name")) or (location if location in _NAMELESS else "")
            is_needed = location == "path" or fields.get("required") is True
            if location not in _LOCATIONS or (not name and is_needed):
                raise SchemaError(f"a parameter needs `name` and `in`: {str(fields)[:80]}")
            if (
                documents.version != "3.0"
                and "$ref" in as_dict(declared_parameter)
                and "description" in declared_parameter
            ):
                located = Located({**fields, "description": declared_parameter["description"]}, located.document)
            if name != fields.get("name"):
                located = Located({**located.value, "name": name}, located.document)
            parameters_by_place[name, location] = located
    return list(parameters_by_place.values())


def request_body(endpoint: HTTPEndpoint, documents: DocumentSet) -> Located | None:
    """Return the `requestBody` of an operation.

    Raises:
        SchemaError: it is invalid.
    """
    declared_body = endpoint.operation.value.get("requestBody")
    if declared_body is None or documents.version == "2.0":
        return None
    body = documents.follow_object(declared_body, endpoint.operation.document, "`requestBody`")
    return body if as_dict(body.value.get("content")) else None


def contents(holder: Located, documents: DocumentSet) -> list[MediaContent]:
    """Return the `content` of a request, response or parameter. An unresolved reference counts as empty."""
    declared_media = as_dict(holder.value.get("content")).items()
    return [
        MediaContent(content_type, documents.find_object(media, holder.document))
        for content_type, media in declared_media
    ]


def offered(endpoint: HTTPEndpoint, documents: DocumentSet, key: Literal["consumes", "produces"]) -> list[str]:
    """Return the content types of an operation in Swagger 2.0, or the defaults of its document."""
    operation_types = endpoint.operation.value.get(key)
    return as_texts(operation_types if operation_types is not None else documents.main.root.get(key)) or [
        "application/json"
    ]


def success_contents(endpoint: HTTPEndpoint, documents: DocumentSet) -> dict[str, list[MediaContent]]:
    """Return the media types of successful responses by status, lowest first; `default` only without any other."""
    try:
        holder = documents.follow(endpoint.operation.value.get("responses"), endpoint.operation.document)
    except SchemaError:
        holder = endpoint.operation
    declared_responses = as_dict(holder.value).items()
    responses = {
        status.upper() if status.lower() == "2xx" else status: response for status, response in declared_responses
    }
    statuses = sorted(status for status in responses if _SUCCESS.fullmatch(status))
    if not statuses and "default" in responses:
        statuses = ["default"]
    contents_by_status: dict[str, list[MediaContent]] = {status: [] for status in statuses}
    for status in statuses:
        try:
            response = documents.follow(responses[status], holder.document)
        except SchemaError:
            continue
        response = Located(as_dict(response.value), response.document)
        if documents.version != "2.0":
            contents_by_status[status] = contents(response, documents)
            continue
        types = offered(endpoint, documents, "produces")
        if "schema" not in response.value:  # an empty response, unless it is a stream without a description
            types = [
                content_type
                for content_type in as_texts(endpoint.operation.value.get("produces"))
                if media_type(content_type).stream
            ]
        contents_by_status[status] = [MediaContent(content_type, response) for content_type in types]
    return contents_by_status


# --- parameters -----------------------------------------------------------------------------------------------------

_STYLES = frozenset("matrix label simple form spaceDelimited pipeDelimited tabDelimited deepObject cookie".split())
_DEFAULT_STYLES: dict[str, Style] = {"path": "simple", "header": "simple"}
# Swagger 2.0; `csv` is the default style of the location, not exploded.
_COLLECTION_STYLES: dict[str, Style] = {"ssv": "spaceDelimited", "tsv": "tabDelimited", "pipes": "pipeDelimited"}
_NOT_SCHEMA = frozenset("name in required description collectionFormat allowEmptyValue x-example".split())
# The HTTP client sets the framing; the document describes the others elsewhere. Swagger 2.0 has no bearer tokens, and
# does not mention `authorization`.
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_IGNORED = {"2.0": _FRAMING | {"accept", "content-type"}}
_IGNORED_HEADERS = _FRAMING | {"accept", "content-type", "authorization"}


class DeclaredParameter(RequestParameter, frozen=True, kw_only=True):
    """A parameter as the document declares it; its path in the input is not known yet."""

    schema: Located
    annotations: Mapping[str, Any] = {}  # keywords of the parameter that describe its value
    encoding: Located | None = None  # of a `querystring` that is a form: the encoding of each field

    @property
    def is_form(self) -> bool:
        """Whether it is the whole query as form fields."""
        return self.location == "querystring" and is_form(self.content_type or "")


def read_parameters(endpoint: HTTPEndpoint, documents: DocumentSet, report: Report) -> list[DeclaredParameter]:
    """Return the parameters to send. Undeclared variables of the path, and of its query, are strings.

    Raises:
        SchemaError: one of them is invalid.
    """
    variables = dict.fromkeys(VARIABLE.findall(endpoint.path))
    moved = _query_variables(endpoint.path)
    ignored = _IGNORED.get(documents.version, _IGNORED_HEADERS)
    parameters: list[DeclaredParameter] = []
    for located in parameters_of(endpoint, documents):
        name, location = located.value["name"], located.value["in"]
        if not name:
            report.warn(f"{endpoint}: a {location} parameter has no name: it is not sent")
            continue
        if location in ("path", "query") and name in moved:
            if name in variables:
                variables.pop(name)
                required = location == "path" or located.value.get("required")
                fields = {**located.value, "in": moved[name], "required": required}
                parameters.append(_parameter(Located(fields, located.document), documents))
            continue
        if location in ("body", "formData") or (location == "header" and name.lower() in ignored):
            continue
        if location == "path" and name not in variables:
            report.warn(f"{endpoint}: the path has no variable for the parameter {name!r}")
        elif location == "header" and not is_token(name):
            report.warn(f"{endpoint}: {name!r} is not a valid header name: it is not sent")
        else:
            if location == "path":
                variables.pop(name, None)
            parameters.append(_parameter(located, documents))
    for name in variables:
        report.warn(f"{endpoint}: no parameter describes {{{name}}}: it is a string")
        schema = Located({"type": "string"}, endpoint.operation.document)
        location = moved.get(name, "path")
        style = _DEFAULT_STYLES.get(location, "form")
        parameters.append(
            DeclaredParameter(name=name, location=location, schema=schema, style=style, explode=False, required=True)
        )
    return parameters


def _query_variables(path: str) -> dict[str, Literal["path", "query"]]:
    """Return the location of each variable that a path has in its query only, whichever the document declares.

    In `/alerts?lat={lat}`, it is the query parameter `lat`. In `/alerts?area={lat},{lon}`, it fills the template.
    """
    path, _, query = without_fragment(path).partition("?")
    fields = set(query.split("&"))
    path_variables = set(VARIABLE.findall(path))
    return {
        name: "query" if f"{name}={{{name}}}" in fields else "path"
        for name in VARIABLE.findall(query)
        if name not in path_variables
    }


def _parameter(located: Located, documents: DocumentSet) -> DeclaredParameter:
    fields = located.value
    if documents.version == "2.0":
        swagger, multiple = swagger_style(fields)
        return DeclaredParameter(
            name=fields["name"],
            location=fields["in"],
            schema=swagger_schema(located),
            style=swagger or _DEFAULT_STYLES.get(fields["in"], "form"),
            explode=multiple,
            required=fields.get("required") is True or fields["in"] == "path",
            annotations={"description": fields["description"]} if as_text(fields.get("description")) else {},
        )
    content = contents(located, documents)
    style = as_text(fields.get("style"))
    if style not in _STYLES:
        style = _DEFAULT_STYLES.get(fields["in"], "form")
    explode = fields.get("explode")
    holder = content[0].fields if content else located
    annotations: dict[str, Any] = {"description": as_text(fields.get("description")).strip()}
    annotations["deprecated"] = fields.get("deprecated") is True
    if "example" in fields:
        annotations["examples"] = [fields["example"]]
    elif examples := as_dict(fields.get("examples")):
        values = [as_dict(example) for example in examples.values()]
        annotations["examples"] = [example["value"] for example in values if "value" in example]
    return DeclaredParameter(
        name=fields["name"],
        location=fields["in"],
        schema=Located(holder.value.get("schema"), holder.document),
        style=cast("Style", style),
        explode=explode if isinstance(explode, bool) else style in ("form", "cookie", "deepObject"),
        required=fields.get("required") is True or fields["in"] == "path",
        allow_reserved=fields.get("allowReserved") is True,
        content_type=content[0].content_type if content else None,
        annotations=annotations,
        encoding=Located(as_dict(holder.value.get("encoding")), holder.document),
    )


def swagger_style(fields: dict[str, Any]) -> tuple[Style | None, bool]:
    """Return the style of a `collectionFormat`, None for the default of the location, and whether it is exploded."""
    collection = as_text(fields.get("collectionFormat"))
    return _COLLECTION_STYLES.get(collection), collection == "multi"


def swagger_schema(located: Located) -> Located:
    """Return the schema of a parameter of Swagger 2.0, which is a schema itself."""
    fields = as_dict(located.value)
    if "schema" in fields:
        return Located(fields["schema"], located.document)
    return Located({key: field for key, field in fields.items() if key not in _NOT_SCHEMA}, located.document)


# --- content types --------------------------------------------------------------------------------------------------

_MAX_ACCEPTED_TYPES = 50
_FORM = "application/x-www-form-urlencoded"


def is_any(content_type: str) -> bool:
    """Return whether a content type is a range that includes JSON, or missing."""
    return media_type(content_type).name in ("*/*", "application/*", "*", "")


def is_form(content_type: str) -> bool:
    """Return whether the content has named fields."""
    return media_type(content_type).name in (_FORM, "multipart/form-data")


def is_multipart(content_type: str) -> bool:
    """Return whether the content has parts."""
    return media_type(content_type).name.startswith("multipart/")


def is_text(content_type: str) -> bool:
    """Return whether the content is text that is neither JSON nor a form."""
    kind = media_type(content_type)
    return kind.is_text and not kind.is_json and not is_form(content_type)


# By preference: JSON itself before its relatives, which often are other representations of the same thing.
_PREFERENCES: tuple[Callable[[str], bool], ...] = (
    lambda content_type: content_type == "application/json",
    lambda content_type: media_type(content_type).name == "application/json",
    lambda content_type: media_type(content_type).is_json,
    is_any,
    lambda content_type: media_type(content_type).name == _FORM,
    is_multipart,
    is_text,
)


def preferred(types: Iterable[MediaContent]) -> MediaContent | None:
    """Return the preferred media type; None without any."""
    candidates = list(types)
    for prefers in _PREFERENCES:
        for candidate in candidates:
            if prefers(candidate.content_type):
                return candidate
    return candidates[0] if candidates else None


def accept_header(preferred_types: Iterable[str], others: Iterable[str]) -> str:
    """Return the Accept header: only JSON if that is chosen, else every declared type. Nothing is excluded.

    Other JSON types are not requested beside it: they often are other representations of the response.
    """
    accepted_types = [content_type for content_type in preferred_types if media_type(content_type).is_json]
    accepted_types = accepted_types or [
        content_type for content_type in others if "/" in (name := media_type(content_type).name) and name != "*/*"
    ]
    accepted_types = list(
        dict.fromkeys(
            content_type for content_type in accepted_types if "\n" not in content_type and "\r" not in content_type
        )
    )[:_MAX_ACCEPTED_TYPES]
    return ", ".join([*accepted_types, "*/*;q=0.1"]) if accepted_types else "*/*"
