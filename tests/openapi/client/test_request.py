"""An HTTP request from a plan and an input, judged by the servers that it arrives at."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from aiohttp import ClientSession, web
from hypothesis import event, given
from hypothesis import strategies as st
from yarl import URL

from opwire import OperationRegistry
from opwire.errors import CallError, ErrorCode
from opwire.http.client import HTTPRequest
from opwire.openapi.client import from_openapi
from opwire.openapi.client.plan import CallPlan, Location, PartEncoding, RequestBody, RequestParameter, Style
from opwire.openapi.client.request import compile_request
from tests.openapi.client.echo import EchoServer
from tests.openapi.client.plans import build_request

STYLES: dict[Location, Style] = {"path": "simple", "header": "simple"}


def parameter(name: str, location: Location, **options: Any) -> RequestParameter:
    fields: dict[str, Any] = {"input_path": (name,), "style": STYLES.get(location, "form"), "explode": True, **options}
    return RequestParameter(name=name, location=location, **fields)


def plan(path: str = "/", *parameters: RequestParameter, **options: Any) -> CallPlan:
    fields: dict[str, Any] = {"method": "GET", "server": "http://127.0.0.1:1/v1", **options}
    return CallPlan(operation_id="pets.get", path=path, parameters=parameters, **fields)


def body_plan(body: RequestBody, *parameters: RequestParameter) -> CallPlan:
    return plan("/", *parameters, method="POST", body=body)


PETS = plan(
    "/pets/{id}",
    parameter("id", "path", required=True),
    parameter("tags", "query"),
    parameter("X-Trace", "header"),
    parameter("session", "cookie"),
    parameter("theme", "cookie", style="cookie"),
    accept="application/json",
)


def test_every_parameter_goes_to_its_place() -> None:
    input = {"id": "a/b", "tags": ["x y", "z"], "X-Trace": 7, "session": "s;1", "theme": "dark"}
    assert build_request(PETS, input) == HTTPRequest(
        method="GET",
        url="http://127.0.0.1:1/v1/pets/a%2Fb?tags=x%20y&tags=z",
        headers=[("Accept", "application/json"), ("X-Trace", "7"), ("Cookie", "session=s%3B1; theme=dark")],
    )


def test_what_is_not_given_or_null_is_left_out() -> None:
    bare = HTTPRequest(
        method="GET", url="http://127.0.0.1:1/v1/pets/1", headers=[("Accept", "application/json")], body=None
    )
    assert build_request(PETS, {"id": 1}) == bare
    nulls = {"id": 1, "tags": None, "X-Trace": None, "session": None, "theme": None}
    assert build_request(PETS, nulls) == bare
    assert build_request(PETS, {"id": 1, "tags": []}) == bare


def refusal(plan: CallPlan, input: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        build_request(plan, input)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    return caught.value


@pytest.mark.parametrize("input", [{}, None, {"path": {}}])
def test_a_required_parameter_that_is_not_given_is_named(input: Any) -> None:
    error = refusal(PETS, input)
    assert error.message == "pets.get: /id: this path parameter is required"
    assert error.details == {"problems": [{"path": "/id", "message": "this path parameter is required"}]}
    query = plan("/", parameter("q", "query", required=True, input_path=("query", "q")))
    assert refusal(query, {"query": {}}).message == "pets.get: /query/q: this query parameter is required"


def test_a_required_null_is_written_as_the_specification_writes_an_undefined_value() -> None:
    required = plan("/x{m}", parameter("m", "path", style="matrix"), parameter("q", "query", required=True))
    assert build_request(required, {"m": None, "q": None}).url == "http://127.0.0.1:1/v1/x;m?q="
    assert "{id} would make a path segment ''" in refusal(PETS, {"id": None}).message


def test_a_parameter_is_found_where_its_plan_says() -> None:
    grouped = plan(
        "/{id}",
        parameter("id", "path", input_path=("path", "id")),
        parameter("id", "query", input_path=("query", "id")),
    )
    assert build_request(grouped, {"path": {"id": 1}, "query": {"id": 2}}).url == "http://127.0.0.1:1/v1/1?id=2"


def test_queries_of_server_and_path_are_kept_before_the_parameters() -> None:
    queries = plan("/?action=list", parameter("q", "query"), server="http://h/base?version=1")
    assert build_request(queries, {"q": 1}).url == "http://h/base/?version=1&action=list&q=1"


@pytest.mark.parametrize("bad", ["", ".", "..", [], {}])
def test_a_value_that_would_mean_another_path_is_refused(bad: Any) -> None:
    assert "{id} would make a path segment" in refusal(PETS, {"id": bad}).message


@pytest.mark.parametrize(("name", "place"), [("X-Trace", "header"), ("theme", "cookie")])
def test_a_line_break_is_refused_and_its_parameter_named(name: str, place: str) -> None:
    error = refusal(PETS, {"id": 1, name: "x\r\nEvil: 1"})
    assert error.message.startswith(f"pets.get: /{name}: as a {place} parameter: ")
    assert "Evil" not in error.message


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (plan("/{x}"), "variable {x}"),
        (plan(server="/v1"), "set base_url"),
        (plan("/", parameter("X Y", "header")), "name of a header"),
        (plan(accept="a/b\r\nEvil: 1"), "line breaks"),
        (plan(body=RequestBody(content_type="a/b\r\nEvil: 1", required=False)), "line breaks"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_an_error_before_any_input(broken: CallPlan, why: str) -> None:
    with pytest.raises(CallError) as caught:
        compile_request(broken)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    assert caught.value.message.startswith("pets.get cannot be called: ")
    assert why in caught.value.message


def test_the_repr_of_a_request_shows_neither_query_nor_headers() -> None:
    request = HTTPRequest(method="GET", url="http://h/p?key=secret", headers=[("Authorization", "secret")])
    assert repr(request) == "<HTTPRequest GET http://h/p>"


# --- bodies -----------------------------------------------------------------------------------------------------------

JSON_BODY = RequestBody(content_type="application/json", required=False)


def test_a_body_is_sent_with_its_content_type_or_not_at_all() -> None:
    request = build_request(body_plan(JSON_BODY), {"body": {"a": 1}})
    assert (request.body, request.headers[-1]) == (b'{"a":1}', ("Content-Type", "application/json"))
    for input in ({}, {"body": None}, None):
        request = build_request(body_plan(JSON_BODY), input)
        assert (request.body, request.headers) == (None, [("Accept", "*/*")])


def test_a_required_body_may_be_null_in_json_alone() -> None:
    required = RequestBody(content_type="application/json", required=True)
    assert build_request(body_plan(required), {"body": None}).body == b"null"
    assert refusal(body_plan(required), {}).message == "pets.get: /body: as the body: it is required"
    text = RequestBody(content_type="text/plain", required=True)
    assert "null cannot be sent" in refusal(body_plan(text), {"body": None}).message


def test_the_properties_of_a_body_are_gathered_from_among_the_parameters() -> None:
    body = RequestBody(content_type="application/json", required=False, input_path=(), properties=("a", "b"))
    query = parameter("q", "query")
    assert build_request(body_plan(body, query), {"q": 1, "a": None, "x": 3}).body == b'{"a":null}'
    assert build_request(body_plan(body, query), {"q": 1}).body is None
    required = RequestBody(content_type="application/json", required=True, input_path=(), properties=("a",))
    assert build_request(body_plan(required), None).body == b"{}"
    opened = RequestBody(content_type="application/json", required=False, input_path=(), properties=("a",), open=True)
    assert build_request(body_plan(opened, query), {"q": 1, "x": 3, "a": 2}).body == b'{"a":2,"x":3}'


def test_fixed_properties_override_the_input() -> None:
    fixed = RequestBody(content_type="application/json", required=False, fixed={"stream": True})
    assert build_request(body_plan(fixed), {"body": {"stream": False, "a": 1}}).body == b'{"stream":true,"a":1}'
    assert build_request(body_plan(fixed), {}).body == b'{"stream":true}'
    assert build_request(body_plan(fixed), {"body": [1]}).body == b"[1]"
    flat = RequestBody(
        content_type="application/json", required=True, input_path=(), properties=("a",), fixed={"stream": True}
    )
    assert build_request(body_plan(flat), {"a": 1}).body == b'{"a":1,"stream":true}'


def test_a_body_that_cannot_be_written_names_the_property() -> None:
    form = RequestBody(content_type="multipart/form-data", required=True, parts={"file": PartEncoding(binary=True)})
    assert refusal(body_plan(form), {"body": {"file": "x"}}).message.startswith(
        "pets.get: /body: as the body: file: a file is given as bytes"
    )


def test_the_callers_input_is_not_changed() -> None:
    fixed = RequestBody(content_type="application/json", required=False, fixed={"stream": True})
    input = {"body": {"a": 1}}
    build_request(body_plan(fixed), input)
    assert input == {"body": {"a": 1}}


# --- what arrives -----------------------------------------------------------------------------------------------------


async def send(request: HTTPRequest) -> Any:
    async with (
        ClientSession() as session,
        session.request(
            request.method, URL(request.url, encoded=True), headers=request.headers, data=request.body
        ) as response,
    ):
        return await response.json()


@pytest.mark.parametrize("value", ["../admin", "..%2Fadmin", "a?b=c", "a#b", "a/../../b", "%2e%2e", "a\\..\\b", "ä"])
async def test_what_a_path_value_holds_arrives_in_its_own_segment(value: str) -> None:
    async with EchoServer() as server:
        template = plan("/pets/{id}/toys", parameter("id", "path"), server=server.url)
        await send(build_request(template, {"id": value}))
        (arrived,) = server.arrived
    pieces = arrived.path.split("/")
    assert (len(pieces), pieces[1], pieces[3], arrived.query) == (4, "pets", "toys", "")
    assert URL(f"http://h/{pieces[2]}", encoded=True).parts[1] == value


async def test_every_vector_of_the_specification_arrives_as_it_says(shared: Path) -> None:
    vectors = json.loads((shared / "openapi" / "param-style-vectors-dev.json").read_bytes())["vectors"]
    wrong: list[Any] = []
    async with EchoServer() as server:
        for vector in vectors:
            for location in vector["in"].split("|"):
                async with from_openapi(document_of(vector, location), namespace="api", base_url=server.url) as api:
                    registry = OperationRegistry()
                    registry.register_all(api)
                    await registry.execute("api.get", {vector["name"]: vector["value"]})
                arrived = server.arrived[-1]
                text = {
                    "path": arrived.path.removeprefix("/x"),
                    "query": arrived.query,
                    "header": arrived.header(vector["name"]),
                    "cookie": arrived.header("cookie"),
                }[location]
                if text != vector["serialized"]:
                    wrong.append((vector, location, text))
    assert not wrong


def document_of(vector: dict[str, Any], location: str) -> dict[str, Any]:
    """A document with the parameter of a vector."""
    fields = {"name": vector["name"], "in": location, "style": vector["style"], "required": True, "schema": {}}
    if vector["explode"] is not None:
        fields["explode"] = vector["explode"]
    operation = {"operationId": "get", "parameters": [fields], "responses": {"200": {"description": "what arrived"}}}
    return {
        "openapi": vector["oas"],
        "info": {"title": "Styles", "version": "1"},
        "paths": {f"/x{{{vector['name']}}}" if location == "path" else "/x": {"get": operation}},
    }


async def test_the_length_of_a_body_is_said_and_so_is_that_of_none() -> None:
    async with EchoServer() as server:
        operation = plan("/", method="POST", body=JSON_BODY, server=server.url)
        await send(build_request(operation, {"body": "ä"}))
        await send(build_request(operation, {}))
        first, second = server.arrived
    assert (first.header("Content-Length"), first.body) == ("4", '"ä"'.encode())
    assert (second.header("Content-Length"), second.body) == ("0", b"")


@pytest.fixture
async def form_server() -> AsyncIterator[str]:
    """A server that tells which fields it read from a form: those of aiohttp, a parser that is not ours."""

    async def read(request: web.Request) -> web.Response:
        fields: list[Any] = []
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                fields.append([name, value.filename, value.content_type, b64encode(value.file.read()).decode()])
                value.file.close()
            else:
                fields.append([name, value if isinstance(value, str) else bytes(value).decode()])
        return web.json_response(fields)

    app = web.Application()
    app.router.add_post("/", read)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def test_a_multipart_form_is_read_by_a_real_server(form_server: str) -> None:
    data = b64encode(bytes(range(256))).decode()
    photo = {"filename": "große Katze.png", "contentType": "image/png", "data": data}
    form = RequestBody(content_type="multipart/form-data", required=True, parts={"photo": PartEncoding(binary=True)})
    request = build_request(
        plan("/", method="POST", body=form, server=form_server),
        {"body": {"note": "grüße", "tags": ["a", "b"], "meta": {"k": 1}, "photo": photo}},
    )
    assert await send(request) == [
        ["note", "grüße"],
        ["tags", "a"],
        ["tags", "b"],
        ["meta", '{"k":1}'],
        ["photo", "große Katze.png", "image/png", data],
    ]


async def test_an_urlencoded_form_is_read_by_a_real_server(form_server: str) -> None:
    form = RequestBody(
        content_type="application/x-www-form-urlencoded",
        required=True,
        parts={"items": PartEncoding(style="deepObject")},
    )
    request = build_request(
        plan("/", method="POST", body=form, server=form_server),
        {"body": {"name": "a+b c&d", "items": [{"price": "p_1", "quantity": 2}]}},
    )
    assert await send(request) == [["name", "a+b c&d"], ["items[0][price]", "p_1"], ["items[0][quantity]", "2"]]


# --- any input --------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SEGMENT = st.text("a./?#%2F\\ä\r;&", min_size=1, max_size=8) | JSON.filter(
    lambda value: value not in (None, "", [], {})
)
ALL = compile_request(
    plan(
        "/a/{p}/{r}.{s}/z",
        *(parameter(name, "path") for name in "prs"),
        parameter("q", "query"),
        parameter("o", "query", style="deepObject"),
        parameter("w", "query", allow_reserved=True),
        parameter("X-H", "header"),
        parameter("c", "cookie"),
        parameter("k", "cookie", style="cookie"),
    )
)
NAMES = ("q", "o", "w", "X-H", "c", "k")


@given(st.fixed_dictionaries({"p": SEGMENT, "r": SEGMENT, "s": SEGMENT}, optional=dict.fromkeys(NAMES, JSON)))
def test_any_input_is_refused_clearly_or_stays_in_its_places(input: dict[str, Any]) -> None:
    try:
        request = ALL(input)
    except CallError as error:
        event(error.message.rpartition(": ")[2])
        return
    url = URL(request.url, encoded=True)
    assert url.origin() == URL("http://127.0.0.1:1")
    assert request.url.isascii()
    assert request.url.isprintable()
    assert " " not in request.url
    assert url.fragment == ""
    pieces = url.raw_path.split("/")
    assert (len(pieces), pieces[:3], pieces[5]) == (6, ["", "v1", "a"], "z")
    assert not {"", ".", ".."} & set(pieces[3:5])
    assert [name for name, _ in request.headers[1:]] in ([], ["X-H"], ["Cookie"], ["X-H", "Cookie"])
    assert not any(set("\r\n\0") & set(value) for _, value in request.headers)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10), st.text(max_size=3))
def test_a_query_is_read_back_as_it_was_given(text: str, other: str) -> None:
    request = ALL({"p": 1, "r": 2, "s": 3, "q": text, "w": "plain", "o": {"x": text}})
    query = request.url.partition("?")[2]
    assert parse_qsl(query, keep_blank_values=True) == [("q", text), ("o[x]", text), ("w", "plain")]


def planned(*parameters: RequestParameter) -> CallPlan:
    return CallPlan(operation_id="a.b", method="GET", path="/", server="http://api.test", parameters=parameters)


@pytest.mark.parametrize("empty", [[], {}, [None], {"a": None}])
def test_an_optional_header_of_nothing_is_left_out(empty: Any) -> None:
    plan = planned(parameter("X-Tags", "header"))
    assert [name for name, _ in build_request(plan, {"X-Tags": empty}).headers] == ["Accept"]
    assert ("X-Tags", "") in build_request(plan, {"X-Tags": ""}).headers


def test_a_request_has_one_line_of_cookies() -> None:
    plan = planned(parameter("Cookie", "header"), parameter("a", "cookie"), parameter("b", "cookie"))
    headers = build_request(plan, {"Cookie": "own=1", "a": "2", "b": "3"}).headers
    assert [each for each in headers if each[0].lower() == "cookie"] == [("Cookie", "own=1; a=2; b=3")]


def test_names_are_encoded_even_where_values_may_hold_what_is_reserved() -> None:
    plan = planned(
        parameter("a=b", "query", allow_reserved=True),
        parameter("o", "query", allow_reserved=True),
        parameter("d", "query", allow_reserved=True, style="deepObject"),
    )
    url = build_request(plan, {"a=b": "x=/y", "o": {"k=/": "v=/"}, "d": {"k=/": "v=/"}}).url
    assert url.partition("?")[2] == "a%3Db=x=/y&k%3D%2F=v=/&d%5Bk%3D%2F%5D=v=/"
