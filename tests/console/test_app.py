"""The console's page and its list of operations."""

from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from yarl import URL

from opwire import AccessControl, OperationRegistry, OperationSpec
from opwire.asgi.listener import listening
from opwire.console import app, serve_console
from opwire.errors import UsageError
from opwire.openapi.server import serve_http
from tests.console.served import CLERK, TOKENS, Page, make_registry, page_of
from tests.openapi.server.served import client_of


@pytest.fixture(autouse=True)
def built_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is built."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "a-1.js").write_bytes(b"x" * 5_000)
    (tmp_path / "index.html").write_bytes(b'<script src="assets/a-1.js"></script>')
    monkeypatch.setattr(app, "STATIC", tmp_path)


async def test_the_page_is_served_with_a_strict_policy() -> None:
    async with page_of() as page:
        reply = await page.get("/console/")
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in reply.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-cache"
        again = await page.get("/console/", if_none_match=reply.headers["etag"])
        assert (again.status, again.body) == (304, b"")


async def test_the_address_without_a_slash_leads_to_the_page() -> None:
    async with page_of() as page:
        reply = await page.get("/console")
        assert (reply.status, reply.headers["location"]) == (307, "/console/")


@pytest.mark.parametrize(
    "path",
    [
        "/console/../app.py",
        "/console/%2e%2e/app.py",
        "/console/assets/../../app.py",
        "/console/assets/..%2f..%2fapp.py",
        "/console/assets/%2e%2e%5capp.py",
        "/console//etc/passwd",
        "/console/assets/\x00index.html",
        "/console/static/index.html",
        "/console/api/operations/../../../app.py",
    ],
)
async def test_no_path_leads_out_of_the_page(path: str) -> None:
    async with page_of() as page:
        await page.log_in()
        reply = await page.get(path.replace("\x00", "%00"))
        assert reply.status in (401, 404), reply.body
        assert b"import" not in reply.body


async def test_assets_are_compressed_and_cached_for_ever_because_their_names_change() -> None:
    async with page_of() as page:
        reply = await page.get("/console/assets/a-1.js")
        assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
        assert "immutable" in reply.headers["cache-control"]
        assert reply.headers["content-encoding"] == "gzip"
        assert reply.body == b"x" * 5_000
        plain = await page.get("/console/assets/a-1.js", accept_encoding="identity")
        assert int(plain.headers["content-length"]) == 5_000


async def test_an_installation_without_the_page_says_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "STATIC", tmp_path / "missing")
    async with page_of() as page:
        reply = await page.get("/console/")
        assert (reply.status, "make console" in reply.problem["detail"]) == (503, True)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/console/"), ("PUT", "/console/api/session"), ("HEAD", "/console/api/events")]
)
async def test_a_wrong_method_is_rejected_with_those_that_exist(method: str, path: str) -> None:
    async with page_of() as page:
        reply = await page(method, path, headers={"x-opwire-console": "1"})
        assert reply.status == 405
        assert "GET" in reply.headers["allow"]


async def test_the_console_exists_only_if_it_is_mounted() -> None:
    async with client_of(serve_http(make_registry())) as client:
        assert (await client.get("/console/")).status == 404


async def test_without_a_login_only_public_operations_are_listed_and_callable() -> None:
    """Without a login the console shows and calls public operations only."""
    async with page_of() as page:
        listed = (await page.api("GET", "operations")).json
        assert [each["id"] for each in listed["operations"]] == ["math.add"]
        assert (await page.api("GET", "operations/shop.order")).status == 401
        assert (await page.api("GET", "search?q=order")).json == {"ids": []}
        assert await page.result("math.add", {"a": 1}) == 3
        assert (await page.api("POST", "call", {"operationId": "shop.me"})).status == 401
        unknown = await page.api("GET", "operations/shop.ordr")
        assert "shop.order" not in unknown.problem["detail"]


async def test_a_person_sees_what_its_scopes_allow() -> None:
    async with page_of() as page:
        await page.log_in(CLERK)
        listed = (await page.api("GET", "operations")).json["operations"]
        assert "shop.order" in [each["id"] for each in listed]
        assert "shop.close" not in [each["id"] for each in listed]
        assert (await page.api("GET", "operations/shop.close")).status == 403
        found = (await page.api("GET", "operations/shop.order")).json
        assert found["access"]["requiredScopes"] == ["shop:write"]
        assert found["inputSchema"]["required"] == ["lines"]
        assert found["tokens"] > 10
        assert (found["role"], found["annotations"]) == ("tool", {})
        assert [each["readOnly"] for each in listed if each["id"] == "math.add"] == [True]
        assert (await page.api("GET", "search?q=order&limit=3")).json["ids"][0] == "shop.order"


async def test_the_list_is_sent_again_only_after_a_change() -> None:
    registry = make_registry()
    async with page_of(registry) as page:
        first = await page.api("GET", "operations")
        same = await page.api("GET", "operations", if_none_match=first.headers["etag"])
        assert (same.status, same.body) == (304, b"")
        registry.unregister("math.add")
        changed = await page.api("GET", "operations", if_none_match=first.headers["etag"])
        assert (changed.status, changed.json["operations"]) == (200, [])
        await page.log_in()
        mine = await page.api("GET", "operations", if_none_match=changed.headers["etag"])
        assert mine.status == 200


async def test_ten_thousand_operations_are_one_compressed_response() -> None:
    registry = OperationRegistry()
    for number in range(10_000):
        spec = OperationSpec(
            namespace=f"space{number % 50}", name=f"operation{number}", access=AccessControl(public=True)
        )
        registry.register(spec, close_nothing)
    async with page_of(registry) as page:
        reply = await page.api("GET", "operations")
        assert len(reply.json["operations"]) == 10_000
        assert int(reply.headers["content-length"]) < 400_000


async def close_nothing(input: object, context: object) -> None: ...


@pytest.mark.parametrize(
    "name",
    ["a/b", "../../etc", "<script>alert(1)</script>", "a?b#c", "a%2Fb", "ä ö", '"', "a\\b", "x" * 900, "..", "~2F"],
)
async def test_operations_with_hostile_names_are_found_and_called(name: str) -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="n", name=name, access=AccessControl(public=True)), hello)
    async with page_of(registry) as page:
        quoted = "".join(f"%{byte:02X}" for byte in f"n.{name}".encode())
        reply = await page.api("GET", f"operations/{quoted}")
        assert (reply.status, reply.json["id"]) == (200, f"n.{name}")
        assert reply.headers["content-type"] == "application/json"
        assert await page.result(f"n.{name}") == "hello"


async def hello(input: object, context: object) -> str:
    return "hello"


async def test_an_error_is_a_problem_that_no_browser_runs() -> None:
    async with page_of() as page:
        reply = await page.api("GET", "operations/n.%3Cscript%3E")
        assert (reply.status, reply.problem["code"]) == (404, "OPERATION_NOT_FOUND")
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in reply.headers["content-security-policy"]


async def test_the_console_works_below_the_path_of_another_app() -> None:
    registry = make_registry()
    console = serve_console(registry, authenticate=TOKENS)
    api = serve_http(registry, authenticate=TOKENS, mounts={"/console": console})
    outer = Starlette(routes=[Mount("/shop", api)])
    jar = aiohttp.CookieJar(unsafe=True)
    async with listening(outer) as address, aiohttp.ClientSession(cookie_jar=jar) as session:
        page = Page(session, f"{address}/shop")
        assert (await page.get("/console")).headers["location"] == "/shop/console/"
        assert (await page.get("/console/")).status == 200
        assert "Path=/shop/console;" in (await page.log_in()).headers["set-cookie"]
        assert await page.result("shop.order", {"lines": ["a"]}) == ["a"]
        snippet = (await page.api("POST", "snippets", {"operationId": "shop.order"})).json["curl"]
        assert f"{address}/shop/shop/order" in snippet


async def test_snippets_of_a_large_input_are_refused_because_writing_them_takes_long() -> None:
    async with page_of() as page:
        for size, status in ((90_000, 200), (110_000, 413)):
            wanted = {"operationId": "math.add", "input": {"a": "'" * size}}
            assert (await page.api("POST", "snippets", wanted)).status == status


@pytest.mark.parametrize("path", ["console", "/console/", ""])
def test_a_console_is_mounted_at_a_path(path: str) -> None:
    registry = OperationRegistry()
    with pytest.raises(UsageError, match="such as /console"):
        serve_http(registry, mounts={path: serve_console(registry)})


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/", 200),
        ("/c%6fnsole/", 404),
        ("/console%2f", 404),
        ("/console%2Fapi/session", 404),
        ("/console/api/session", 200),
        ("/console/%61pi/session", 404),
        ("/console/api/sessio%6e", 404),
        ("/console/api/operations/shop%2Ecount", 200),
        ("/console/api/%6fperations/shop.count", 404),
        ("/console/api/operations%2Fshop.count", 404),
    ],
)
async def test_its_address_has_one_spelling_so_that_rules_of_a_proxy_hold(path: str, status: int) -> None:
    registry = OperationRegistry()

    @registry.query("shop.count", access=AccessControl(public=True))
    async def count() -> int:
        return 1

    mounted = serve_http(registry, mounts={"/console": serve_console(registry)})
    async with (
        mounted.listening() as address,
        aiohttp.ClientSession() as session,
        session.get(URL(address + path, encoded=True)) as reply,
    ):
        assert reply.status == status
