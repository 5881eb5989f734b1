"""APICredentials: which ones a request needs, and where they go."""

import asyncio
import logging
from base64 import b64encode
from typing import Any

import pytest

from opwire import Identity, OperationRegistry
from opwire.auth.oauth import OAuthClient
from opwire.errors import CallError, ErrorCode
from opwire.http.client import HTTPRequest
from opwire.model.context import Context
from opwire.openapi.client import from_openapi
from opwire.openapi.client.plan import CallPlan, SecurityRequirement, SecurityScheme
from opwire.openapi.client.security import APICredentials
from tests.openapi.client.documents import document
from tests.openapi.client.echo import EchoServer, Exchange, json_answer
from tests.openapi.client.plans import build_request

CONTEXT = Context(identity=Identity(id="ada"))
HEADER_KEY = SecurityScheme(name="header_key", kind="apiKey", location="header", parameter="X-Key")
QUERY_KEY = SecurityScheme(name="query_key", kind="apiKey", location="query", parameter="api key")
COOKIE_KEY = SecurityScheme(name="cookie_key", kind="apiKey", location="cookie", parameter="sid")
BASIC = SecurityScheme(name="basic", kind="basic")
BEARER = SecurityScheme(name="bearer", kind="bearer")
OIDC = SecurityScheme(name="oidc", kind="openIdConnect")
DIGEST = SecurityScheme(name="digest", kind="other", declared_as="http digest")
MUTUAL_TLS = SecurityScheme(name="tls", kind="other", declared_as="mutualTLS")
OAUTH = SecurityScheme(name="login", kind="oauth2", token_url="https://api.example/token")


def plan(*alternatives: tuple[SecurityScheme, ...], **options: Any) -> CallPlan:
    security = tuple(tuple(SecurityRequirement(scheme, ("read",)) for scheme in schemes) for schemes in alternatives)
    fields: dict[str, Any] = {"server": "https://api.example/v1", **options}
    return CallPlan(operation_id="shop.get", method="GET", path="/x", security=security, **fields)


async def signed(plan: CallPlan, credentials: Any, request: HTTPRequest | None = None) -> HTTPRequest:
    keeper = credentials if isinstance(credentials, APICredentials) else APICredentials(credentials)
    return await keeper.apply(plan, request or build_request(plan, {}), CONTEXT)


def secrets(request: HTTPRequest) -> dict[str, str]:
    return {name: value for name, value in request.headers if name != "Accept"}


@pytest.mark.parametrize(
    ("scheme", "credential", "header"),
    [
        (HEADER_KEY, "k1", ("X-Key", "k1")),
        (COOKIE_KEY, "k2", ("Cookie", "sid=k2")),
        (BASIC, ("ada", "pass:word"), ("Authorization", "Basic " + b64encode(b"ada:pass:word").decode())),
        (BASIC, ("ädä", ""), ("Authorization", "Basic " + b64encode("ädä:".encode()).decode())),
        (BEARER, "t1", ("Authorization", "Bearer t1")),
        (BEARER, "Token t1", ("Authorization", "Token t1")),
        (OIDC, "t2", ("Authorization", "Bearer t2")),
        (OAUTH, "t3", ("Authorization", "Bearer t3")),
        (DIGEST, 'Digest username="ada"', ("Authorization", 'Digest username="ada"')),
    ],
)
async def test_each_scheme_puts_its_credential_into_a_header_that_is_marked_as_secret(
    scheme: SecurityScheme, credential: Any, header: tuple[str, str]
) -> None:
    request = await signed(plan((scheme,)), {scheme.name: credential})
    assert secrets(request) == dict([header])
    assert request.secret_headers == {header[0].lower()}
    assert not request.secret_query


async def test_a_key_in_the_query_is_encoded_and_marked_as_secret() -> None:
    request = await signed(plan((QUERY_KEY,)), {"query_key": "a&b=c"})
    assert request.url == "https://api.example/v1/x?api%20key=a%26b%3Dc"
    assert (request.secret_query, request.secret_headers) == ({"api%20key"}, frozenset())
    with_query = await signed(plan((QUERY_KEY,), server="https://api.example/?v=1"), {"query_key": "k"})
    assert with_query.url == "https://api.example/x?v=1&api%20key=k"


async def test_a_cookie_joins_those_that_are_there_and_a_header_takes_the_place_of_its_namesake() -> None:
    both = plan((COOKIE_KEY, HEADER_KEY))
    given = HTTPRequest(method="GET", url="https://api.example/x", headers=[("cookie", "a=1"), ("x-key", "input")])
    request = await signed(both, {"cookie_key": "s", "header_key": "k"}, given)
    assert request.headers == [("X-Key", "k"), ("Cookie", "a=1; sid=s")]
    assert request.secret_headers == {"cookie", "x-key"}
    assert given.headers == [("cookie", "a=1"), ("x-key", "input")]


@pytest.mark.parametrize(
    ("alternatives", "given", "names"),
    [
        ((), {"bearer": "t"}, set()),
        (((),), {"bearer": "t"}, set()),
        (((), (BEARER,)), {"bearer": "t"}, {"Authorization"}),
        (((), (BEARER,)), {}, set()),
        (((BEARER,), (HEADER_KEY,)), {"bearer": "t", "header_key": "k"}, {"Authorization"}),
        (((BEARER,), (HEADER_KEY,)), {"header_key": "k"}, {"X-Key"}),
        (((BEARER, HEADER_KEY), (COOKIE_KEY,)), {"bearer": "t", "cookie_key": "c"}, {"Cookie"}),
        (((BEARER, HEADER_KEY),), {"bearer": "t", "header_key": "k"}, {"Authorization", "X-Key"}),
        (((BEARER, HEADER_KEY),), {"bearer": "t"}, set()),
        (((MUTUAL_TLS, HEADER_KEY),), {"header_key": "k"}, {"X-Key"}),
        (((MUTUAL_TLS,), (HEADER_KEY,)), {"header_key": "k"}, {"X-Key"}),
        (((BEARER,),), {"other": "t"}, set()),
        (((BEARER,),), None, set()),
    ],
)
async def test_the_first_alternative_with_all_credentials_is_used(
    alternatives: tuple[tuple[SecurityScheme, ...], ...], given: Any, names: set[str]
) -> None:
    assert set(secrets(await signed(plan(*alternatives), given))) == names


OAUTH_TOO = SecurityScheme(name="login_too", kind="oauth2")
HEADER_KEY_TOO = SecurityScheme(name="header_key_too", kind="apiKey", location="header", parameter="x-kEY")
QUERY_KEY_TOO = SecurityScheme(name="query_key_too", kind="apiKey", location="query", parameter="api key")


@pytest.mark.parametrize(
    ("schemes", "given", "sent"),
    [
        ((OAUTH, OAUTH_TOO), {"login": "a", "login_too": "b"}, [("Authorization", "Bearer a")]),
        ((OAUTH, OAUTH_TOO), {"login": "a"}, [("Authorization", "Bearer a")]),
        ((OAUTH, OAUTH_TOO), {"login_too": "b"}, [("Authorization", "Bearer b")]),
        ((HEADER_KEY, HEADER_KEY_TOO), {"header_key": "a", "header_key_too": "b"}, [("X-Key", "a")]),
        ((OAUTH, HEADER_KEY, OAUTH_TOO), {"login_too": "b"}, []),
        (
            (OAUTH, HEADER_KEY, OAUTH_TOO),
            {"login_too": "b", "header_key": "k"},
            [("Authorization", "Bearer b"), ("X-Key", "k")],
        ),
    ],
)
async def test_schemes_that_share_a_header_are_satisfied_by_either_and_it_is_sent_once(
    schemes: tuple[SecurityScheme, ...], given: Any, sent: list[tuple[str, str]]
) -> None:
    request = await signed(plan(schemes), given)
    assert [header for header in request.headers if header[0] != "Accept"] == sent


async def test_a_key_that_the_query_or_a_cookie_has_already_is_overridden_not_repeated() -> None:
    shared = plan((QUERY_KEY, QUERY_KEY_TOO), server="https://api.example/?api%20key=old&api=1")
    request = await signed(shared, {"query_key": "a", "query_key_too": "b"})
    assert request.url == "https://api.example/x?api=1&api%20key=a"
    given = HTTPRequest(method="GET", url="https://api.example/x", headers=[("Cookie", "sid=old; sid2=1")])
    assert secrets(await signed(plan((COOKIE_KEY,)), {"cookie_key": "s"}, given)) == {"Cookie": "sid2=1; sid=s"}


async def test_credentials_may_be_given_by_a_function_of_each_call() -> None:
    async def later(context: Context) -> str:
        assert context.identity
        return f"{context.identity.id}-later"

    def of_all(name: str, context: Context) -> str | None:
        assert context.identity
        return f"{name}-{context.identity.id}" if name == "bearer" else None

    by_name = {"header_key": lambda context: context.identity.id, "bearer": later}
    assert secrets(await signed(plan((HEADER_KEY, BEARER)), by_name)) == {
        "X-Key": "ada",
        "Authorization": "Bearer ada-later",
    }
    assert secrets(await signed(plan((HEADER_KEY,), (BEARER,)), of_all)) == {"Authorization": "Bearer bearer-ada"}
    assert secrets(await signed(plan((BEARER,)), {"bearer": lambda _: None})) == {}


async def test_a_function_is_asked_once_a_call_and_scheme() -> None:
    asked: list[str] = []

    def give(name: str, _: Context) -> str | None:
        asked.append(name)
        return "k" if name == "header_key" else None

    await signed(plan((HEADER_KEY, BEARER), (HEADER_KEY, BASIC), (HEADER_KEY,)), give)
    assert asked == ["header_key", "bearer", "basic"]


async def refusal(plan: CallPlan, credentials: Any) -> str:
    with pytest.raises(CallError) as caught:
        await signed(plan, credentials)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    return caught.value.message


async def test_a_function_that_fails_is_an_error_that_names_the_scheme_alone() -> None:
    def fail(_: Context) -> str:
        raise RuntimeError("no luck with s3cret")

    message = await refusal(plan((BEARER,)), {"bearer": fail})
    assert message == "shop.get: the credential 'bearer' cannot be used: its callback failed"

    def refuse(_: Context) -> str:
        raise CallError(ErrorCode.ACCESS_DENIED, "not for you")

    with pytest.raises(CallError, match="not for you"):
        await signed(plan((BEARER,)), {"bearer": refuse})


@pytest.mark.parametrize(
    ("scheme", "credential", "why"),
    [
        (HEADER_KEY, ("s3cret", "s3cret"), "expected a string, not tuple"),
        (HEADER_KEY, "s3cret\r\nEvil: 1", "line breaks"),
        (COOKIE_KEY, "s3cret; admin=1", "cookie"),
        (QUERY_KEY, "\ud800s3cret", "surrogates"),
        (BASIC, "s3cret", "(user, password)"),
        (BASIC, ("s3:cret", "s3cret"), "without a colon"),
        (BEARER, 7, "expected a token or an OAuth client"),
        (OAUTH, {"client_id": "a", "secret": "s3cret"}, "expected a token or an OAuth client"),
        (OAUTH, {"client_id": "a", "client_secret": "s3cret"}, "token requests are not available"),
        (SecurityScheme(name="bad", kind="apiKey", location="header", parameter="X Key"), "s3cret", "name of a header"),
    ],
)
async def test_a_credential_that_does_not_fit_is_an_error_that_does_not_show_it(
    scheme: SecurityScheme, credential: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    message = await refusal(plan((scheme,)), {scheme.name: credential})
    assert message.startswith(f"shop.get: the credential {scheme.name!r} cannot be used: ")
    assert why in message
    assert "s3cret" not in message + caplog.text


async def test_no_repr_shows_a_credential() -> None:
    credentials = APICredentials({"query_key": "s3cret"})
    assert repr(credentials) == "<APICredentials ['query_key']>"
    assert repr(APICredentials(lambda name, context: None)) == "<APICredentials by callback>"
    assert "s3cret" not in repr(await signed(plan((QUERY_KEY,)), credentials))


@pytest.mark.parametrize(
    ("alternatives", "given", "sentence"),
    [
        (((BEARER,),), {"bearer": "t"}, ""),
        (((BEARER,), ()), None, ""),
        ((), None, ""),
        (((BEARER,),), lambda name, context: None, ""),
        (((BEARER,),), None, "'bearer'."),
        (((BEARER, HEADER_KEY), (BASIC,)), {"bearer": "t"}, "'bearer' and 'header_key' or 'basic'."),
        (((OAUTH, OAUTH_TOO), (OAUTH, OAUTH_TOO)), None, "with the key 'login' or 'login_too'."),
        (((OAUTH, OAUTH_TOO, HEADER_KEY),), None, "with the key ('login' or 'login_too') and 'header_key'."),
        (((OAUTH, OAUTH_TOO),), {"login_too": "t"}, ""),
    ],
)
def test_what_is_missing_is_said_with_the_names_that_it_is_to_be_given_under(
    alternatives: tuple[tuple[SecurityScheme, ...], ...], given: Any, sentence: str
) -> None:
    said = APICredentials(given).missing(plan(*alternatives))
    assert said.endswith(sentence)
    assert bool(said) == bool(sentence)


# --- OAuth ------------------------------------------------------------------------------------------------------------


class Endpoint:
    """Gives the tokens t1, t2, …"""

    def __init__(self) -> None:
        self.asked: list[HTTPRequest] = []

    async def __call__(self, request: HTTPRequest) -> Any:
        self.asked.append(request)
        return {"access_token": f"t{len(self.asked)}"}


FIELDS = {"client_id": "shop", "client_secret": "s3cret"}


@pytest.mark.parametrize("scheme", [OAUTH, BEARER, OIDC])
@pytest.mark.parametrize("as_struct", [True, False])
async def test_an_oauth_client_gets_a_token_for_the_scopes_that_the_operation_asks_for(
    scheme: SecurityScheme, as_struct: bool
) -> None:
    endpoint = Endpoint()
    fields: dict[str, Any] = {**FIELDS, "token_url": "https://login.example/token"}
    given = OAuthClient(**fields) if as_struct else fields
    request = await signed(plan((scheme,)), APICredentials({scheme.name: given}, endpoint))
    assert secrets(request) == {"Authorization": "Bearer t1"}
    assert endpoint.asked[0].url == "https://login.example/token"
    assert endpoint.asked[0].body == b"grant_type=client_credentials&scope=read"


async def test_scopes_that_are_given_with_the_client_stand_before_those_of_the_operation() -> None:
    endpoint = Endpoint()
    await signed(plan((OAUTH,)), APICredentials({"login": {**FIELDS, "scopes": ["all", "more"]}}, endpoint))
    assert endpoint.asked[0].body == b"grant_type=client_credentials&scope=all%20more"


async def test_after_a_refusal_the_token_is_requested_again_by_the_first_call_that_met_it() -> None:
    endpoint = Endpoint()
    credentials = APICredentials({"login": FIELDS}, endpoint)
    first, second = [await signed(plan((OAUTH,)), credentials) for _ in range(2)]
    assert credentials.reject(first)
    assert secrets(await signed(plan((OAUTH,)), credentials)) == {"Authorization": "Bearer t2"}
    assert credentials.reject(second)
    assert secrets(await signed(plan((OAUTH,)), credentials)) == {"Authorization": "Bearer t2"}
    await credentials.close()


async def test_other_credentials_cannot_be_refreshed() -> None:
    credentials = APICredentials({"bearer": "t"}, Endpoint())
    assert not credentials.reject(await signed(plan((BEARER,)), credentials))
    assert not credentials.reject(build_request(plan(), {}))
    await APICredentials().close()


async def test_with_a_base_url_no_secret_goes_where_the_document_alone_says() -> None:
    endpoint = Endpoint()
    fixed = plan((OAUTH,), base_url="https://mine.example/v1")
    message = await refusal(fixed, APICredentials({"login": FIELDS}, endpoint))
    assert "another origin than base_url" in message
    assert not endpoint.asked
    given = {**FIELDS, "token_url": "https://api.example/token"}
    request = await signed(fixed, APICredentials({"login": given}, endpoint))
    assert request.url == "https://mine.example/v1/x"
    assert secrets(request) == {"Authorization": "Bearer t1"}
    same = plan((OAUTH,), base_url="https://api.example/v2")
    assert secrets(await signed(same, APICredentials({"login": FIELDS}, endpoint))) == {"Authorization": "Bearer t2"}


@pytest.mark.parametrize("url", ["http://api.example/token", "http://127.0.0.1:9200/token", "ftp://api.example/token"])
async def test_the_document_of_an_https_api_sends_no_secret_without_https(url: str) -> None:
    endpoint = Endpoint()
    scheme = SecurityScheme(name="login", kind="oauth2", token_url=url)
    assert "not https" in await refusal(plan((scheme,)), APICredentials({"login": FIELDS}, endpoint))
    assert not endpoint.asked
    given = {**FIELDS, "token_url": url}
    assert secrets(await signed(plan((scheme,)), APICredentials({"login": given}, endpoint)))


async def test_a_relative_token_endpoint_is_that_of_the_server() -> None:
    endpoint = Endpoint()
    relative = SecurityScheme(name="login", kind="oauth2", token_url="/oauth/token")
    await signed(plan((relative,)), APICredentials({"login": FIELDS}, endpoint))
    assert endpoint.asked[0].url == "https://api.example/oauth/token"


async def test_a_client_needs_to_know_where_tokens_are_to_be_had() -> None:
    message = await refusal(plan((BEARER,)), APICredentials({"bearer": FIELDS}, Endpoint()))
    assert "set the client's token_url" in message


# --- all together -----------------------------------------------------------------------------------------------------

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/x": {
            "get": {
                "operationId": "get",
                "security": [{"login": ["read"]}],
                "responses": {"200": {"description": "", "content": {"application/json": {}}}},
            }
        }
    },
    "components": {
        "securitySchemes": {
            "login": {
                "type": "oauth2",
                "flows": {"clientCredentials": {"tokenUrl": "/token", "scopes": {"read": "reads"}}},
            }
        }
    },
}


async def test_calls_at_once_share_a_token_and_its_renewal_after_a_401() -> None:
    async def guarded(exchange: Exchange) -> None:
        is_good = exchange.request.header("Authorization") == "Bearer t2"
        await exchange.send(json_answer("served") if is_good else json_answer("expired", 401))

    async with EchoServer() as server:
        server.on("/token", *(json_answer({"access_token": token}) for token in ("t1", "t2", "t3")))
        server.on("/x", guarded)
        credentials = {"login": {"client_id": "shop", "client_secret": "s3cret"}}
        async with from_openapi(DOCUMENT, namespace="shop", base_url=server.url, credentials=credentials) as api:
            registry = OperationRegistry()
            registry.register_all(api)
            answers = await asyncio.gather(*(registry.execute("shop.get") for _ in range(10)))
        asked = [request for request in server.arrived if request.path == "/token"]
    assert [answer.data for answer in answers] == ["served"] * 10
    assert [request.body for request in asked] == [b"grant_type=client_credentials&scope=read"] * 2


@pytest.mark.parametrize("version", ["2.0", "3.0.3"])
async def test_a_declared_key_parameter_is_optional_where_a_credential_fills_it(
    server: EchoServer, version: str
) -> None:
    schemes = {
        "query_key": {"type": "apiKey", "in": "query", "name": "api_key"},
        "query_key_too": {"type": "apiKey", "in": "query", "name": "api_key"},
        "header_key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    }
    kind: dict[str, Any] = {"type": "string"} if version == "2.0" else {"schema": {"type": "string"}}
    names = [("api_key", "query"), ("x-key", "header"), ("city", "query")]
    get = {
        "operationId": "get",
        "security": [{"query_key": [], "query_key_too": [], "header_key": []}],
        "parameters": [{"name": name, "in": location, "required": True, **kind} for name, location in names],
        "responses": {"200": {"description": ""}},
    }
    declared = {"securityDefinitions": schemes} if version == "2.0" else {"components": {"securitySchemes": schemes}}
    root = document({"/x": {"get": get}}, version, **declared)
    credentials = {"query_key": "k1", "query_key_too": "k2", "header_key": "h"}
    async with from_openapi(root, namespace="shop", base_url=server.url, credentials=credentials) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        (operation,) = api
        json = operation.spec.input_schema.json
        assert isinstance(json, dict)
        assert json["required"] == ["city"]
        await registry.execute("shop.get", {"city": "Rome"})
        await registry.execute("shop.get", {"city": "Rome", "api_key": "mine", "x-key": "mine"})
    async with from_openapi(root, namespace="shop", base_url=server.url) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        await registry.execute("shop.get", {"city": "Rome", "api_key": "mine"})
    assert [request.query for request in server.arrived] == [
        "city=Rome&api_key=k1",
        "city=Rome&api_key=k1",
        "api_key=mine&city=Rome",
    ]
    keys = [[text for name, text in request.headers if name.lower() == "x-key"] for request in server.arrived]
    assert keys == [["h"], ["h"], []]


async def test_a_document_like_those_of_google_is_called_with_either_of_its_two_flows(server: EchoServer) -> None:
    flow = {"authorizationUrl": "https://accounts.example/auth", "scopes": {"read": "reads", "write": "writes"}}
    schemes = {
        "Oauth2": {"type": "oauth2", "flows": {"implicit": flow}},
        "Oauth2c": {
            "type": "oauth2",
            "flows": {"authorizationCode": {**flow, "tokenUrl": "https://accounts.example/token"}},
        },
    }
    get = {
        "operationId": "get",
        "security": [{name: [scope] for name in schemes} for scope in ("read", "write")],
        "responses": {"200": {"description": ""}},
    }
    root = document({"/x": {"get": get}}, "3.0.3", components={"securitySchemes": schemes})
    for credentials in ({"Oauth2": "t"}, {"Oauth2c": "t"}, {"Oauth2": "t", "Oauth2c": "u"}):
        async with from_openapi(root, namespace="shop", base_url=server.url, credentials=credentials) as api:
            registry = OperationRegistry()
            registry.register_all(api)
            await registry.execute("shop.get")
    assert [request.header("Authorization") for request in server.arrived] == ["Bearer t"] * 3


@pytest.mark.parametrize(
    ("scheme", "credential", "secret"),
    [
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, "s3cret", "s3cret"),
        ({"type": "apiKey", "in": "query", "name": "key"}, "s3 cret", "s3 cret"),
        ({"type": "apiKey", "in": "query", "name": "key"}, "s3 cret", "s3%20cret"),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, "s3cret", "s3cret"),
        ({"type": "http", "scheme": "bearer"}, "s3cret", "s3cret"),
        ({"type": "http", "scheme": "basic"}, ("user", "s3cret"), "s3cret"),
        ({"type": "http", "scheme": "basic"}, ("s3cret", ""), "s3cret"),
    ],
)
async def test_an_error_that_quotes_the_credential_is_quoted_without_it(
    server: EchoServer, scheme: dict[str, Any], credential: Any, secret: str
) -> None:
    get = {"operationId": "get", "security": [{"s": []}], "responses": {"200": {"description": ""}}}
    root = document({"/x": {"get": get}}, components={"securitySchemes": {"s": scheme}})
    problem = {"Content-Type": "application/problem+json"}
    server.on("/x", json_answer({"detail": f"the key {secret} has expired"}, 403, problem))
    async with from_openapi(root, namespace="shop", base_url=server.url, credentials={"s": credential}) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        with pytest.raises(CallError) as caught:
            await registry.execute("shop.get")
    assert caught.value.message == "HTTP 403: Forbidden: the key *** has expired"
    assert caught.value.details["body"] == {"detail": "the key *** has expired"}  # a model may read it


async def test_an_error_of_the_token_endpoint_is_not_quoted(server: EchoServer) -> None:
    server.on("/token", json_answer({"error": "invalid_client", "error_description": "s3cret is wrong"}, 401))
    credentials = {"login": {"client_id": "shop", "client_secret": "s3cret"}}
    async with from_openapi(DOCUMENT, namespace="shop", base_url=server.url, credentials=credentials) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        with pytest.raises(CallError) as caught:
            await registry.execute("shop.get")
    host = f"127.0.0.1:{server.port}"
    assert caught.value.message == f"the token request failed: HTTP 401 from {host}: invalid_client"
