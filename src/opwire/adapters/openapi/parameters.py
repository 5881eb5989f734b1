"""Parameters of an operation: where each goes, how it is written, and the schema of its value."""

from typing import Any, NamedTuple, cast

from opwire.adapters.openapi.endpoints import VARIABLE, Endpoint, contents, is_token, parameters_of
from opwire.adapters.openapi.plan import Location, Style
from opwire.adapters.openapi.refs import Documents, Place
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.shapes import mapping, text

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
