"""The whole surface, over real connections."""

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry, OperationSpec, decode_envelope
from opwire.asgi.listener import listening
from opwire.auth import StaticTokens
from opwire.errors import UsageError
from opwire.openapi.server import serve_http
from opwire.openapi.server.document import NEEDS_TOKEN
from opwire.policies import Approval, ApprovalQueue, CircuitBreaker
from opwire.runtime.deadlines import CALL_TIMEOUT
from opwire.version import VERSION
from tests.openapi.server.conftest import make_registry
from tests.openapi.server.served import ME, Client, Reply, client_of, served

on_one_loop = pytest.mark.asyncio(loop_scope="module")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def _nothing() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


def refused(reply: Reply, status: int, code: str) -> str:
    assert (reply.status, reply.problem["code"]) == (status, code)
    return reply.problem["detail"]


@on_one_loop
async def test_an_operation_is_called_by_post(client: Client) -> None:
    reply = await client.post("/math/add", {"a": 1, "b": 3})
    assert (reply.status, reply.json) == (200, 4)
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"


@on_one_loop
async def test_a_query_with_flat_input_is_called_by_get(client: Client) -> None:
    assert (await client.get("/math/add?a=40")).json == 42
    reply = await client.get("/math/find?flags=true&flags=false&size=1.5&kind=b&text=a%26b+c")
    assert reply.json == {"flags": [True, False], "size": 1.5, "kind": "b", "text": "a&b c"}
    assert reply.headers["cache-control"] == "no-store"
    assert (await client.get("/math/find?size=null")).json["size"] is None


@on_one_loop
async def test_head_gives_the_headers_alone(client: Client) -> None:
    reply = await client("HEAD", "/math/add?a=40")
    assert (reply.status, reply.headers["content-length"], reply.body) == (200, "2", b"")
    reply = await client("HEAD", "/math/add?a=x")
    assert (reply.status, reply.body) == (422, b"")


@on_one_loop
async def test_data_of_every_kind_is_sent_as_what_it_is(client: Client) -> None:
    assert (await client.post("/plain/sum", [1, 2, 3])).json == 6
    assert (await client.post("/plain/any", None)).json is None
    assert (await client("POST", "/plain/any")).json is None
    reply = await client.get("/odd/text")
    assert (reply.headers["content-type"], reply.json) == ("application/json", "<script>alert(1)</script>")
    reply = await client.get("/odd/a~2Fb~20~7E~C3~A9..")
    assert (reply.headers["content-type"], reply.body) == ("application/octet-stream", b"\x00\xff")


@on_one_loop
async def test_the_whole_envelope_is_sent_where_it_is_asked_for(client: Client) -> None:
    reply = await client.post("/math/add", {"a": 1}, accept="application/vnd.opwire.envelope+json")
    assert reply.headers["content-type"] == "application/vnd.opwire.envelope+json"
    assert reply.headers["cache-control"] == "no-store"
    envelope = decode_envelope(reply.body)
    assert (envelope.data, envelope.meta.source) == (3, "local")


@on_one_loop
async def test_a_result_that_came_over_http_keeps_its_useful_headers(client: Client) -> None:
    reply = await client.get("/far/page")
    kept = {name.lower(): value for name, value in reply.headers.items() if name.lower().startswith("opwire-")}
    assert kept == {
        "opwire-upstream-status": "206",
        "opwire-upstream-link": '<https://api.example/?page=2>; rel="next"',
        "opwire-upstream-x-ratelimit-remaining": "7",
        "opwire-upstream-x-request-id": "far-1",
    }
    assert reply.headers["x-request-id"] != "far-1"


@on_one_loop
async def test_a_tool_that_failed_is_a_problem_with_its_data(client: Client) -> None:
    """An MCP result that is an error is a problem with its data, or, if chosen, an answer with a mark."""
    reply = await client.get("/far/tool")
    assert refused(reply, 500, "EXECUTION_ERROR") == "no such city"
    assert (reply.headers["opwire-is-error"], reply.problem["data"]) == ("true", [])


@on_one_loop
@pytest.mark.parametrize("path", ["/odd/a~2Fb~20~7E~C3~A9..", "/odd/~2E~2E"])
async def test_an_odd_name_is_reached_by_its_path(client: Client, path: str) -> None:
    assert (await client.get(path)).status == 200


@on_one_loop
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/o%64d/a%7E2Fb~20~7E~C3~A9..", "/odd/a~2Fb~20~7E~C3~A9.."),
        ("/odd/%7E2E~2E", "/odd/~2E~2E"),
        ("/math%2Fadd?a=1", "/math/add?a=1"),
        ("/m%61th/add", "/math/add"),
        ("/math/add/", "/math/add"),
        ("/math/add//", "/math/add"),
        ("/math/add%2F?a=1&b=%2F", "/math/add?a=1&b=%2F"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_path_that_is_percent_encoded_or_ends_with_a_slash_leads_to_the_one_that_is_served(
    client: Client, method: str, path: str, place: str
) -> None:
    reply = await client(method, path, json={"a": 1} if method == "POST" else None)
    assert (reply.status, reply.headers["location"]) == (308, place)
    assert reply.headers["cache-control"] == "no-store"
    assert (await client.get(place)).status not in (308, 404)


@on_one_loop
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/odd/a%2Fb%20~%C3%A9..", "/odd/a~2Fb~20~7E~C3~A9.."),
        ("/odd/a/b%20~%C3%A9..", "/odd/a~2Fb~20~7E~C3~A9.."),
        ("/odd/%2E%2E", "/odd/~2E~2E"),
        ("/odd/..", "/odd/~2E~2E"),
        ("/~6Dath/add", "/math/add"),
        ("/math/~61dd", "/math/add"),
        ("/deep.admin/list", "/deep/admin.list"),
        ("/deep~2Eadmin/list", "/deep/admin.list"),
        ("/deep/admin~2Elist/", "/deep/admin.list"),
    ],
)
async def test_any_other_spelling_is_not_found_and_the_answer_names_the_path(
    client: Client, path: str, place: str
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert refused(await client(method, path), 404, "OPERATION_NOT_FOUND").endswith(f"this one is at {place}")


@on_one_loop
@pytest.mark.parametrize(
    "path",
    [
        *("/Math/add", "/math/Add", "//math/add", "/math//add", "/./math/add", "/x/../math/add", "/math/./add"),
        *("/math/add;x=1", "/math/add%00", "/math/add%20", "/math%5Cadd", "/math/%2561dd", "/openapi%2Ejson"),
        *("/health%7A", "/shop.close", "/sh%6Fp/close", "/shop/clos~65", "/plain%2Funserved"),
    ],
)
async def test_what_is_not_a_spelling_of_a_path_or_one_of_a_hidden_operation_is_not_found(
    client: Client, path: str
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        refused(await client(method, path), 404, "OPERATION_NOT_FOUND")


async def test_no_redirect_leaves_the_server_wherever_it_is_mounted() -> None:
    registry = OperationRegistry()

    @registry.query("math.add")
    async def add() -> int:
        return 1

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for root in ("//evil.example", "/api\r\nx: y", "/é"):
        scope = {"type": "http", "method": "GET", "path": f"{root}/math/add/", "root_path": root, "query_string": b""}
        await serve_http(registry, anonymous=ME)({**scope, "headers": [(b"host", b"localhost")]}, _nothing, send)
        location = dict(sent[-2]["headers"])[b"location"]
        assert re.fullmatch(rb"/[a-z%A-Z0-9.]+/math/add", location)


@on_one_loop
async def test_what_an_operation_raises_is_a_problem(client: Client) -> None:
    reply = await client.get("/fail/on_purpose", x_request_id="r-1")
    assert reply.problem == {
        "type": "urn:opwire:RATE_LIMITED",
        "title": "Too many calls.",
        "status": 429,
        "detail": "once a minute",
        "code": "RATE_LIMITED",
        "retryable": True,
        "instance": "urn:opwire:request:r-1",
        "retryAfterMs": 59_500,
        "details": {"limit": 1},
    }
    assert (reply.headers["retry-after"], reply.headers["x-request-id"]) == ("60", "r-1")


@on_one_loop
async def test_an_unforeseen_error_shows_nothing_of_itself(client: Client) -> None:
    reply = await client.get("/fail/by_mistake")
    refused(reply, 500, "EXECUTION_ERROR")
    assert b"secret" not in reply.body


@on_one_loop
async def test_invalid_input_is_reported_with_its_problems(client: Client) -> None:
    reply = await client.post("/math/add", {"a": "x", "c": 1})
    refused(reply, 422, "VALIDATION_ERROR")
    assert {problem["path"] for problem in reply.problem["details"]["problems"]} >= {"/a"}
    assert "/a" in refused(await client.get("/math/add?a=x"), 422, "VALIDATION_ERROR")
    refused(await client.get("/math/add?a=1&c=1"), 422, "VALIDATION_ERROR")
    refused(await client.get("/math/add?a=1&a=2"), 400, "PROTOCOL_ERROR")
    refused(await client("POST", "/math/add"), 422, "VALIDATION_ERROR")
    assert "object" in refused(await client.send("null", "/odd/text"), 422, "VALIDATION_ERROR")
    assert (await client("POST", "/odd/text")).status == 200


@on_one_loop
async def test_a_body_that_is_not_clearly_json_is_refused(client: Client) -> None:
    refused(await client.send("a=1", "/math/add", "application/x-www-form-urlencoded"), 415, "PROTOCOL_ERROR")
    for body in ("{", '{"a":1,"a":2}', '{"a":NaN}', "[" * 50_000, '{"a":' + "1" * 5_000 + "}"):
        refused(await client.send(body, "/math/add"), 400, "PROTOCOL_ERROR")
    refused(await client.send("[" * 500 + "]" * 500, "/plain/any"), 422, "VALIDATION_ERROR")


@on_one_loop
async def test_other_methods_are_not_for_a_path_and_it_says_which_are(client: Client) -> None:
    for method, path, allow in (
        ("PUT", "/math/add", "GET, HEAD, POST, OPTIONS"),
        ("GET", "/shop/order", "POST, OPTIONS"),
        ("HEAD", "/clock/ticks", "GET, POST, OPTIONS"),
        ("GET", "/plain/any", "POST, OPTIONS"),
        ("POST", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
    ):
        reply = await client(method, path)
        assert (reply.status, reply.headers["allow"]) == (405, allow)
        options = await client("OPTIONS", path)
        assert (options.status, options.headers["allow"], options.body) == (204, allow, b"")


@on_one_loop
async def test_what_is_not_there_is_not_found_with_what_comes_close(client: Client) -> None:
    assert "did you mean /math/add" in refused(await client.post("/math/ad"), 404, "OPERATION_NOT_FOUND")
    assert "/openapi.json" in refused(await client.get("/"), 404, "OPERATION_NOT_FOUND")
    for path in ("/math", "/math/", "//", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/" + "x" * 9_000 + "/y"):
        refused(await client.get(path), 404, "OPERATION_NOT_FOUND")
    refused(await client.post("/plain/unserved"), 404, "OPERATION_NOT_FOUND")


@on_one_loop
async def test_a_hint_names_nothing_that_the_caller_may_not_call(client: Client) -> None:
    assert "close" not in refused(await client.post("/shop/clos"), 404, "OPERATION_NOT_FOUND")


@on_one_loop
async def test_id_trace_and_deadline_of_a_request_reach_the_handler(client: Client) -> None:
    reply = await client.get("/shop/me", x_request_id="mine-1", traceparent=TRACE, x_deadline_ms="5000")
    assert reply.headers["x-request-id"] == "mine-1"
    assert (reply.json["id"], reply.json["request"]) == ("me", "mine-1")
    assert reply.json["metadata"] == {"traceparent": TRACE}
    assert 4 < reply.json["left"] <= 5
    reply = await client.get("/shop/me", x_request_id="not sane\t")
    assert reply.json["request"] == reply.headers["x-request-id"] != "not sane"
    assert CALL_TIMEOUT - 5 < reply.json["left"] <= CALL_TIMEOUT


@on_one_loop
async def test_a_call_ends_at_its_deadline(client: Client) -> None:
    refused(await client.get("/fail/slow", x_deadline_ms="30"), 504, "TIMEOUT")
    refused(await client.get("/fail/slow", x_deadline_ms="0"), 504, "TIMEOUT")
    refused(await client.get("/fail/slow", x_deadline_ms="soon"), 400, "PROTOCOL_ERROR")
    assert (await client.get("/shop/me", x_deadline_ms="9" * 18)).json["left"] <= 86_400


@on_one_loop
async def test_the_document_is_at_its_place_and_need_not_be_fetched_twice(client: Client) -> None:
    """The OpenAPI document describes every operation."""
    reply = await client.get("/openapi.json")
    assert (reply.status, reply.json["info"]) == (200, {"title": "Shop", "version": "2.1"})
    assert "/shop/order" in reply.json["paths"]
    assert "/shop/close" not in reply.json["paths"]
    again = await client.get("/openapi.json", if_none_match=f'"x", {reply.headers["etag"]}')
    assert (again.status, again.body) == (304, b"")
    assert (await client("HEAD", "/openapi.json")).headers["content-length"] == str(len(reply.body))
    assert (await client.get("/openapi.json?version=3.2")).json["openapi"] == "3.2.0"
    refused(await client.get("/openapi.json?version=1.2"), 400, "PROTOCOL_ERROR")


async def test_access_is_checked_on_calls_and_on_the_document() -> None:
    token, admin = "a-token-0123456789", "admin-token-0123456789"
    grants = {token: Identity(id="me"), admin: Identity(id="root", scopes=("*",))}
    async with served(make_registry(), anonymous=None, authenticate=StaticTokens(grants)) as client:
        assert (await client.get("/math/add?a=1")).status == 200
        nobody = await client.get("/shop/me")
        refused(nobody, 401, "UNAUTHENTICATED")
        assert nobody.headers["www-authenticate"] == "Bearer"
        refused(await client.post("/shop/order", {"lines": []}, x_api_key=token), 403, "ACCESS_DENIED")
        refused(await client.get("/math/add?a=1", x_api_key="another"), 401, "UNAUTHENTICATED")
        assert (await client.get("/shop/me", authorization=f"Bearer {token}")).json["id"] == "me"
        assert (await client.post("/shop/close", authorization=f"Bearer {admin}")).json is None
        seen = [(await client.get("/openapi.json", x_api_key=key)).json["paths"] for key in (token, admin)]
        assert ("/shop/close" in seen[0], "/shop/close" in seen[1]) == (False, True)
        public = (await client.get("/openapi.json")).json
        assert sorted(public["paths"]) == ["/math/add", "/math/find"]
        assert public["paths"]["/math/add"]["get"]["security"] == []
        hidden = public["info"]["x-opwire-hidden"]
        assert hidden == len(make_registry()) - 3  # one has no handler
        assert f"{hidden} more operations are not listed; send a token" in public["info"]["description"]
        known = (await client.get("/openapi.json", x_api_key=token)).json["info"]
        assert known == {"title": "opwire", "version": VERSION}


async def test_a_document_without_public_operations_needs_a_token() -> None:
    registry = OperationRegistry()
    registry.query("a.b")(lambda: 1)
    tokens = StaticTokens({"a-token-0123456789": Identity(id="me")})
    async with served(registry, anonymous=None, authenticate=tokens) as client:
        reply = await client.get("/openapi.json")
        detail = refused(reply, 401, "UNAUTHENTICATED")
        assert detail == "the operation is for callers with a token; " + NEEDS_TOKEN
        assert reply.headers["www-authenticate"] == "Bearer"
        assert list((await client.get("/openapi.json", x_api_key="a-token-0123456789")).json["paths"]) == ["/a/b"]
    async with served(registry, anonymous=None) as client:
        info = (await client.get("/openapi.json")).json["info"]
        assert info["description"] == "1 more operation is not listed; this server accepts no tokens."


async def test_without_tokens_and_identity_only_public_operations_can_be_called() -> None:
    async with served(make_registry(), anonymous=None) as client:
        assert (await client.get("/math/add?a=1")).status == 200
        refused(await client.get("/shop/me"), 401, "UNAUTHENTICATED")


async def test_a_tool_that_failed_may_be_an_answer_with_a_mark() -> None:
    async with served(make_registry(), is_error="return") as client:
        reply = await client.get("/far/tool")
        assert (reply.status, reply.headers["opwire-is-error"], reply.json) == (200, "true", [])


async def test_when_the_client_leaves_the_handler_is_cancelled() -> None:
    registry = OperationRegistry()
    running, stopped = asyncio.Event(), asyncio.Event()

    @registry.mutation("slow.work")
    async def work() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with served(registry) as client, asyncio.timeout(5):
        call = asyncio.create_task(client.post("/slow/work"))
        await running.wait()
        call.cancel()
        await stopped.wait()


async def test_draining_ends_readiness_and_lets_calls_finish() -> None:
    registry = OperationRegistry()
    running, go_on = asyncio.Event(), asyncio.Event()

    @registry.mutation("slow.work")
    async def work() -> str:
        running.set()
        await go_on.wait()
        return "done"

    app = serve_http(registry, anonymous=ME)
    async with asyncio.timeout(5):
        async with client_of(app) as client:
            assert (await client.get("/readyz")).json == {"status": "ok"}
            call = asyncio.create_task(client.post("/slow/work"))
            await running.wait()
            app.drain()
            refused(await client.get("/readyz"), 503, "UNAVAILABLE")
            assert (await client.get("/healthz")).status == 200
            go_on.set()
            assert (await call).json == "done"


async def test_health_is_reported_to_probes_without_name_and_token() -> None:
    """Probes need neither name nor token."""
    app = serve_http(OperationRegistry(), authenticate=StaticTokens({}))
    async with client_of(app) as client:
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path, host="10.0.0.7:8000", authorization="Bearer bad")).status == 200
        assert (await client.get("/openapi.json", host="10.0.0.7:8000")).status == 421
        assert (await client.get("/a/healthz")).status == 404


@pytest.mark.parametrize(
    "line", [b"GET %s/healthz", b"GET %s/readyz", b"OPTIONS %s/math/add", b"OPTIONS %s/math/add\nOrigin: %s"]
)
async def test_what_is_answered_before_the_guard_does_not_take_a_body_for_the_next_request(line: bytes) -> None:
    page = b"https://shop.example"
    async with served(make_registry(), cors_origins=[page.decode()]) as client:
        target, _, more = (line % ((client.path, page) if line.count(b"%s") == 2 else client.path)).partition(b"\n")
        head = [target + b" HTTP/1.1", b"Host: localhost", b"Connection: upgrade", b"Upgrade: websocket"]
        head += [more, b"Access-Control-Request-Method: POST"] if more else []
        inner = b"GET %s/math/add?a=1 HTTP/1.1\r\nHost: localhost\r\n\r\n" % client.path
        reader, writer = await client.connect()
        try:
            writer.write(b"\r\n".join([*head, b"Content-Length: %d\r\n\r\n" % len(inner)]))
            assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 ")
            writer.write(inner)  # in a packet of its own, as a proxy sends it
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP/1.1 " not in await asyncio.wait_for(reader.read(), 5)  # until the server closes
        finally:
            writer.close()


async def test_pages_of_other_hosts_may_read_answers_only_where_that_is_said() -> None:
    """CORS is off unless pages are named."""
    page = "https://shop.example"
    async with served(make_registry(), cors_origins=[page]) as client:
        reply = await client.get("/math/add?a=1", origin=page)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, page)
        preflight = await client(
            "OPTIONS", "/math/add", headers={"origin": page, "access-control-request-method": "POST"}
        )
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, page)
        assert (await client.get("/math/add?a=1", origin="https://evil.example")).status == 403
        bad = await client.get("/math/add?a=x", origin=page)
        assert (bad.status, bad.headers["access-control-allow-origin"]) == (422, page)


@on_one_loop
async def test_by_default_no_page_of_another_host_may_call(client: Client) -> None:
    reply = await client.get("/math/add?a=1", origin="https://shop.example")
    assert reply.status == 403
    assert not [name for name in reply.headers if name.lower().startswith("access-control")]


async def test_changes_of_the_registry_are_served_at_once() -> None:
    registry = make_registry()
    async with served(registry) as client:
        assert (await client.get("/math/add?a=1")).json == 3
        registry.register(OperationSpec(namespace="math", name="add"), lambda input, context: "new", replace=True)
        assert (await client.post("/math/add")).json == "new"
        assert (await client.get("/math/add?a=1")).status == 405
        registry.unregister("math.add")
        assert (await client.post("/math/add")).status == 404


async def test_it_can_be_mounted_into_another_application() -> None:
    app = Starlette(routes=[Mount("/api", serve_http(make_registry(), anonymous=ME))])
    async with listening(app, drain_timeout=1) as address, aiohttp.ClientSession() as session:
        client = Client(session, f"{address}/api")
        assert (await client.get("/math/add?a=1")).json == 3
        assert (await client.get("/odd/a~2Fb~20~7E~C3~A9..")).status == 200
        assert (await client.get("/readyz")).status == 200
        assert (await client.get("/openapi.json")).json["servers"] == [{"url": "/api"}]
        assert (await client.post("/math/add/")).headers["location"] == "/api/math/add"


@pytest.mark.parametrize(("root", "other"), [("/api", "/%61pi"), ("/%C3%A9", "/%c3%a9")])
async def test_where_an_app_is_mounted_has_one_spelling_too(root: str, other: str) -> None:
    app = Starlette(routes=[Mount(unquote(root), serve_http(make_registry(), anonymous=ME))])
    async with listening(app, drain_timeout=1) as address, aiohttp.ClientSession() as session:
        client = Client(session, address)
        assert (await client.get(f"{root}/math/add?a=1")).json == 3
        assert (await client.get(f"{other}/math/add?a=1")).headers["location"] == f"{root}/math/add?a=1"


@pytest.mark.parametrize("kind", ["query", "subscription"])
async def test_a_caller_that_does_not_wait_does_not_use_up_the_threads_of_others(kind: str) -> None:
    registry, go_on = OperationRegistry(max_workers=2), threading.Event()

    if kind == "query":

        @registry.query("slow.report", access=AccessControl(public=True))
        def report() -> None:
            go_on.wait(30)
    else:

        @registry.subscription("slow.report", access=AccessControl(public=True))
        def reports() -> Iterator[int]:
            go_on.wait(30)
            yield 1

    @registry.query("fast.price", access=AccessControl(public=True))
    def price() -> int:
        return 5

    async def leave(client: Client) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.post("/slow/report"), 0.3)

    users = StaticTokens({"token-of-ann-0123456": ME})
    async with served(registry, anonymous=None, authenticate=users) as client:
        try:
            async with asyncio.timeout(30):
                while (await client.post("/fast/price")).status == 200:
                    await asyncio.gather(*(leave(client) for _ in range(3)))
            assert (await client.post("/fast/price", x_api_key="token-of-ann-0123456")).json == 5
        finally:
            go_on.set()


async def test_a_caller_that_does_not_wait_does_not_open_a_circuit_for_others() -> None:
    registry = OperationRegistry()
    registry.use(CircuitBreaker(2))

    @registry.query("slow.work")
    async def work(fails: bool = False) -> None:
        if fails:
            raise CallError("TIMEOUT", "the service did not answer")
        await asyncio.Event().wait()

    @registry.query("slow.ping")
    async def ping() -> str:
        return "pong"

    async with served(registry) as client:
        for _ in range(3):
            refused(await client.post("/slow/work", {}, x_deadline_ms="20"), 504, "TIMEOUT")
        assert (await client.post("/slow/ping")).json == "pong"
        for _ in range(2):  # that of the service counts, whatever the deadline of the caller
            refused(await client.post("/slow/work", {"fails": True}, x_deadline_ms="20000"), 504, "TIMEOUT")
        assert "the last 2 calls failed" in refused(await client.post("/slow/ping"), 503, "UNAVAILABLE")


async def test_one_caller_cannot_use_up_the_room_of_calls_that_wait_for_approval() -> None:
    registry, queue = OperationRegistry(), ApprovalQueue()
    registry.use(Approval(queue, max_waiting=4))

    @registry.mutation("shop.order")
    async def order() -> str:
        return "ordered"

    users = {f"token-of-{name}-0123456": Identity(id=name) for name in ("ann", "bob")}
    async with served(registry, anonymous=None, authenticate=StaticTokens(users)) as client, asyncio.timeout(30):
        held = [asyncio.create_task(client.post("/shop/order", x_api_key="token-of-ann-0123456")) for _ in range(2)]
        while len(queue.waiting) < 2:
            await asyncio.sleep(0.01)
        third = await client.post("/shop/order", x_api_key="token-of-ann-0123456")
        assert "2 calls wait for approval already, 2 of this caller" in refused(third, 429, "RATE_LIMITED")
        other = asyncio.create_task(client.post("/shop/order", x_api_key="token-of-bob-0123456"))
        while len(queue.waiting) < 3:
            await asyncio.sleep(0.01)
        for each in queue.waiting:
            queue.approve(each.id)
        assert [reply.json for reply in await asyncio.gather(*held, other)] == ["ordered"] * 3


async def test_the_lifespan_of_a_server_begins_and_ends_with_it() -> None:
    app = serve_http(OperationRegistry())
    async with listening(app, lifespan="on", drain_timeout=1):
        assert not app.draining
    assert app.draining


async def test_it_runs_until_it_is_stopped(unused_tcp_port: int) -> None:
    app = serve_http(make_registry(), anonymous=ME)
    async with asyncio.timeout(5), aiohttp.ClientSession() as session:
        running = asyncio.create_task(app.run(port=unused_tcp_port))
        client = Client(session, f"http://localhost:{unused_tcp_port}")
        while True:
            try:
                assert (await client.get("/math/add?a=1")).json == 3
                break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_sync_handler_runs_beside_others() -> None:
    registry = OperationRegistry()
    release = threading.Event()
    access = AccessControl(public=True)

    @registry.query("sync.wait", access=access)
    def wait() -> bool:
        return release.wait(5)

    @registry.query("sync.release", access=access)
    def let_go() -> None:
        release.set()

    async with served(registry) as client:
        waiting = asyncio.create_task(client.get("/sync/wait"))
        assert (await client.get("/sync/release")).status == 200
        assert (await waiting).json is True


async def test_a_fault_of_the_surface_itself_is_logged_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("a secret")

    caplog.set_level(logging.ERROR)
    monkeypatch.setattr("opwire.openapi.server.app.encode_response", fail)
    async with served(make_registry()) as client:
        reply = await client.get("/math/add?a=1", x_request_id="r-9")
        assert "r-9" in refused(reply, 500, "INTERNAL")
        assert b"secret" not in reply.body
    assert "request r-9 failed" in caplog.text


async def test_a_context_has_an_id_even_if_the_request_has_none() -> None:
    registry = OperationRegistry()
    seen: list[Context] = []
    registry.register(OperationSpec(namespace="a", name="b"), lambda input, context: seen.append(context), inline=True)
    async with served(registry, anonymous=None, authenticate=None) as client:
        assert (await client.post("/a/b")).status == 401
    async with served(registry) as client:
        assert (await client.post("/a/b")).status == 200
    assert seen[0].request_id


@pytest.mark.parametrize("option", ["timeout", "heartbeat", "max_body", "max_requests", "body_timeout"])
@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5"])
def test_an_option_that_is_not_a_number_above_zero_is_refused_by_its_name(option: str, wrong: Any) -> None:
    options: dict[str, Any] = {option: wrong}
    with pytest.raises(UsageError, match=option):
        serve_http(OperationRegistry(), **options)


async def test_an_image_or_a_link_on_a_page_of_another_site_runs_nothing() -> None:
    """Pages of other sites cannot make a browser call anything."""
    registry, ran = OperationRegistry(), list[str]()

    @registry.query("mail.search")
    async def search(q: str) -> str:
        ran.append(q)
        return "private"

    async with served(registry) as client:
        for mode in ("no-cors", "navigate", "cors", "websocket"):
            reply = await client.get("/mail/search?q=evil", sec_fetch_site="cross-site", sec_fetch_mode=mode)
            refused(reply, 403, "ACCESS_DENIED")
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "origin": "https://evil.example"}
        refused(await client.get("/mail/search?q=evil", **upgrade), 403, "ACCESS_DENIED")
        assert (await client.get("/mail/search?q=mine", sec_fetch_site="same-origin")).status == 200
    assert ran == ["mine"]


async def test_a_404_compares_few_operations_and_echoes_little() -> None:
    registry = OperationRegistry()
    for n in range(500):
        access = AccessControl(public=True) if n % 2 else AccessControl(required_scopes=("admin",))
        registry.register(OperationSpec(namespace="api", name=f"repos/list/{n}", access=access), lambda i, c: 1)
    async with served(registry) as client:
        hint = refused(await client.get("/api/repos~2Flist~2F77x"), 404, "OPERATION_NOT_FOUND")
        assert "/api/repos~2Flist~2F77" in hint
        named = re.findall(r"list~2F([0-9]+)", hint)[1:]
        assert named
        assert all(int(number) % 2 for number in named)
        assert len(refused(await client.get("/api/" + "x" * 9_000), 404, "OPERATION_NOT_FOUND")) < 300
