"""Parameters of an operation."""

from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.openapi.client import from_openapi
from opwire.openapi.client.plan import RequestParameter
from tests.openapi.client.documents import Read, document, parameter
from tests.openapi.client.echo import EchoServer


def read(*parameters: Any, path: str = "/a", version: str = "3.1.0", item: Any = ()) -> Read:
    return Read(document({path: {"parameters": list(item), "get": {"parameters": list(parameters)}}}, version))


def sent(*parameters: Any, **options: Any) -> dict[str, RequestParameter]:
    return {each.name: each for each in read(*parameters, **options).only.plan.parameters}


@pytest.mark.parametrize(
    ("given", "style", "explode"),
    [
        (parameter("p", "path"), "simple", False),
        (parameter("p", "header"), "simple", False),
        (parameter("p", "query"), "form", True),
        (parameter("p", "cookie"), "form", True),
        (parameter("p", "query", explode=False), "form", False),
        (parameter("p", "query", style="deepObject"), "deepObject", True),
        (parameter("p", "query", style="pipeDelimited"), "pipeDelimited", False),
        (parameter("p", "path", style="matrix", explode=True), "matrix", True),
        (parameter("p", "cookie", style="cookie"), "cookie", True),
        (parameter("p", "query", style="unheard-of", explode="yes"), "form", True),
    ],
)
def test_styles_have_defaults(given: Any, style: str, explode: bool) -> None:
    found = sent(given, path="/{p}" if given["in"] == "path" else "/a")["p"]
    assert (found.style, found.explode) == (style, explode)


@pytest.mark.parametrize(
    ("collection", "style", "explode"),
    [("csv", "form", False), ("ssv", "spaceDelimited", False), ("tsv", "tabDelimited", False),
     ("pipes", "pipeDelimited", False), ("multi", "form", True), (None, "form", False)],
)  # fmt: skip
def test_swagger_calls_styles_collection_formats(collection: str | None, style: str, explode: bool) -> None:
    given = {"name": "p", "in": "query", "type": "array", "items": {"type": "integer"}, "collectionFormat": collection}
    one = read(given, version="2.0").only
    assert (one.plan.parameters[0].style, one.plan.parameters[0].explode) == (style, explode)
    json = one.spec.input_schema.json
    assert isinstance(json, dict)
    assert json["properties"]["p"]["items"] == {"type": "integer"}


def test_parameters_of_the_path_count_unless_the_operation_has_its_own() -> None:
    """Parameters have their place, style and defaults; those of the path can be overridden."""
    item = [parameter("a", schema={"type": "integer"}), parameter("b"), parameter("c", "header")]
    found = read(parameter("a", required=True), parameter("c"), item=item).only.plan.parameters
    assert [(each.name, each.location, each.required) for each in found] == [
        ("a", "query", True), ("b", "query", False), ("c", "header", False), ("c", "query", False)
    ]  # fmt: skip


def test_headers_that_have_places_of_their_own_are_ignored() -> None:
    framing = ["Host", "content-length", "Transfer-Encoding", "Connection"]  # the HTTP client's own
    names = ["Accept", "content-type", *framing, "AUTHORIZATION", "X-Trace"]
    assert list(sent(*(parameter(name, "header") for name in names))) == ["X-Trace"]
    swagger = [{"name": name, "in": "header", "type": "string"} for name in names]
    assert list(sent(*swagger, version="2.0")) == ["AUTHORIZATION", "X-Trace"]


def test_undescribed_path_variables_are_strings() -> None:
    found = read(path="/a/{b}/{c}.{d}", item=[parameter("c", "path"), parameter("elsewhere", "path")])
    assert [(each.name, each.required) for each in found.only.plan.parameters] == [
        ("c", True),
        ("b", True),
        ("d", True),
    ]
    assert found.only.spec.input_schema.is_valid({"b": "x", "c": "y", "d": "z"})
    assert [warning.partition(": ")[2] for warning in found.report.warnings] == [
        "the path has no variable for the parameter 'elsewhere'",
        "no parameter describes {b}: it is a string",
        "no parameter describes {d}: it is a string",
    ]


def test_a_parameter_may_be_written_as_a_media_type() -> None:
    filter_ = {"name": "filter", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}
    one = read(filter_).only
    assert one.plan.parameters[0].content_type == "application/json"
    assert one.spec.input_schema.is_valid({"filter": {"a": 1}})


def test_the_whole_query_may_be_one_parameter() -> None:
    whole = {
        "name": "q",
        "in": "querystring",
        "content": {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}},
    }
    found = sent(whole, version="3.2.0")["q"]
    assert (found.location, found.content_type) == ("querystring", "application/x-www-form-urlencoded")


def test_a_parameter_without_a_schema_takes_anything_and_says_so() -> None:
    found = read({"name": "q", "in": "query"})
    assert found.only.spec.input_schema.is_valid({"q": ["anything"]})
    assert "the parameter 'q' has no schema" in found.report.warnings[0]


def test_a_reference_may_override_the_description_of_the_parameter() -> None:
    root = document(
        {"/a": {"get": {"parameters": [{"$ref": "#/components/parameters/Q", "description": "here"}]}}},
        components={"parameters": {"Q": parameter("q", description="there")}},
    )
    json = Read(root).only.spec.input_schema.json
    assert isinstance(json, dict)
    assert json["properties"]["q"]["description"] == "here"


@pytest.mark.parametrize("version", ["2.0", "3.1.0"])
@pytest.mark.parametrize(
    ("path", "declared", "input", "target"),
    [
        ("/alerts?lat={lat}&lon={lon}", "path", {"lat": "1", "lon": "2&3"}, "/alerts?lat=1&lon=2%263"),
        ("/alerts?lat={lat}&lon={lon}", "query", {"lat": "1", "lon": "2&3"}, "/alerts?lat=1&lon=2%263"),
        ("/alerts?lat={lat}&lon={lon}", "both", {"lat": "1", "lon": "2&3"}, "/alerts?lat=1&lon=2%263"),
        ("/alerts?lat={lat}&lon={lon}", "", {"lat": "1", "lon": "2&3"}, "/alerts?lat=1&lon=2%263"),
        ("/alerts?area={lat},{lon}&all", "query", {"lat": "1", "lon": "2&3"}, "/alerts?area=1,2%263&all"),
        ("/alerts?area={lat},{lon}&all", "", {"lat": "1", "lon": "2&3"}, "/alerts?area=1,2%263&all"),
        ("/{lat}?lat={lat}&lon={lon}", "path", {"lat": "1", "lon": "2"}, "/1?lat=1&lon=2"),
    ],
)
async def test_variables_in_the_query_of_a_path_are_filled(
    server: EchoServer, version: str, path: str, declared: str, input: dict[str, str], target: str
) -> None:
    kind: dict[str, Any] = {"type": "string"} if version == "2.0" else {"schema": {"type": "string"}}
    locations = ["path", "query"] if declared == "both" else [declared] if declared else []
    get = {
        "operationId": "get",
        "parameters": [
            {"name": name, "in": location, "required": location == "path", **kind}
            for location in locations
            for name in ("lat", "lon")
        ],
        "responses": {"200": {"description": ""}},
    }
    async with from_openapi(document({path: {"get": get}}, version), namespace="test", base_url=server.url) as api:
        (operation,) = api
        json = operation.spec.input_schema.json
        assert isinstance(json, dict)
        is_optional = declared == "query" and "lat={lat}" in path
        assert sorted(json.get("required", ())) == ([] if is_optional else ["lat", "lon"])
        registry = OperationRegistry()
        registry.register_all([operation])
        await registry.execute("test.get", input)
    (arrived,) = server.arrived
    assert f"{arrived.path}?{arrived.query}" == target


@pytest.mark.parametrize("name", [{}, {"name": ""}, {"name": None}])
@pytest.mark.parametrize(
    ("version", "location"),
    [("2.0", "query"), ("2.0", "header"), ("2.0", "formData"), ("3.1.0", "query"), ("3.1.0", "cookie")],
)
async def test_an_optional_parameter_without_a_name_is_dropped_with_a_warning(
    server: EchoServer, name: dict[str, Any], version: str, location: str
) -> None:
    """An optional parameter without a name costs itself, not its operation; the report says so."""
    kind: dict[str, Any] = {"type": "string"} if version == "2.0" else {"schema": {"type": "string"}}
    post = {
        "operationId": "post",
        "parameters": [{**name, "in": location, **kind}, {"name": "q", "in": "query", **kind}],
        "responses": {"200": {"description": ""}},
    }
    root = document({"/a": {"post": post}}, version)
    async with from_openapi(root, namespace="test", base_url=server.url) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        await registry.execute("test.post", {"q": "1"})
        assert api.report.skipped == []
        assert api.report.warnings == [f"POST /a: a {location} parameter has no name: it is not sent"]
    assert [(arrived.query, arrived.body) for arrived in server.arrived] == [("q=1", b"")]


def test_the_body_of_swagger_needs_no_name() -> None:
    found = read({"in": "body", "required": True, "schema": {"type": "array"}}, version="2.0")
    assert found.only.plan.body is not None
    assert found.only.plan.body.required
    assert found.report.warnings == []
