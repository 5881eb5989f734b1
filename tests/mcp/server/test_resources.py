"""Resources of a registry, read by the SDK's client in both eras."""

import asyncio
import base64
import json
import tracemalloc
from itertools import count
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import TextContent

from opwire import AccessControl, Identity, MCPPresentation, OperationRegistry, OperationSpec, mcp_envelope
from opwire.auth import StaticTokens
from opwire.mcp.server import serve_mcp
from opwire.model.mcp_presentation import Role
from opwire.model.origin import FIELDS_META
from tests.mcp.server.library import BOOKS, ICON, PNG, library
from tests.mcp.server.raw import HANDSHAKE, raw, request
from tests.mcp.server.shop import ERAS, NEWEST, OLDER, PATIENCE, connected, http_client, served
from tests.mcp.server.test_app import browsing
from tests.mcp.server.test_streams import opened

READER = Identity(id="reader")


async def content(client: Client, uri: str) -> Any:
    """Return the only content of a resource: text or a blob."""
    (found,) = (await client.read_resource(uri)).contents
    return found


@pytest.mark.parametrize("era", ERAS)
async def test_functions_with_a_uri_are_listed_as_resources_and_templates_and_not_as_tools(era: str) -> None:
    async with connected(serve_mcp(library(), stdio_identity=READER), era) as client:
        (shelf,) = (await client.list_resources()).resources
        assert (shelf.uri, shelf.name) == ("shelf://all", "shelf")
        assert shelf.icons is not None
        assert shelf.icons[0].src == ICON["src"]
        assert shelf.annotations is not None
        assert (shelf.annotations.audience, shelf.annotations.priority) == (["user"], 0.5)
        book, cover = (await client.list_resource_templates()).resource_templates
        assert (book.uri_template, book.title, book.mime_type) == ("book://{title}", "A book", "text/markdown")
        assert book.description == "The text of a book."
        assert cover.uri_template == "cover://{title}/{number}{?width}"
        assert [tool.name for tool in (await client.list_tools()).tools] == ["books_rewrite"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_resource_is_text_json_or_bytes_and_its_variables_are_typed(era: str) -> None:
    async with connected(serve_mcp(library()), era) as client:
        text = await content(client, "book://dune")
        assert (text.uri, text.mime_type, text.text) == ("book://dune", "text/markdown", "Sand.")
        data = await content(client, "shelf://all")
        assert data.mime_type == "application/json"
        assert json.loads(data.text) == {"books": 2}
        image = await content(client, "cover://dune/7?width=9")
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.blob) == PNG + b"\x07\x09"


@pytest.mark.parametrize(("era", "code"), [(OLDER, -32002), (NEWEST, -32602)])
async def test_an_unknown_resource_has_the_code_of_its_era_and_the_uri(era: str, code: int) -> None:
    """An unknown resource has the error code of the client's era; a failed one says why."""
    async with connected(serve_mcp(library(), stdio_identity=READER), era) as client:
        for uri in ("book://a/b", "nothing://here", "book://..", "cover://dune/x/y"):
            with pytest.raises(MCPError) as unknown:
                await client.read_resource(uri)
            assert (unknown.value.error.code, unknown.value.error.data) == (code, {"uri": uri})
        with pytest.raises(MCPError, match="missing scope admin") as denied:
            await client.read_resource("vault://gold")
        assert denied.value.error.code == -32003
        with pytest.raises(MCPError, match="it is lent out") as failed:
            await client.read_resource("book://persuasion")
        assert (failed.value.error.code, failed.value.error.data) == (-32000, {"until": "Monday"})
        with pytest.raises(MCPError, match='is not of type "integer"') as invalid:
            await client.read_resource("cover://dune/seven")
        assert invalid.value.error.code == -32602


async def test_a_subscribed_client_is_notified_of_updates_until_it_unsubscribes() -> None:
    registry = library()
    async with raw(serve_mcp(registry)) as client:
        assert (await client.ask(request("resources/subscribe", {"uri": "book://emma"})))["result"] == {}
        assert (await client.ask(request("resources/subscribe", {"uri": "book://emma"})))["result"] == {}
        registry.resource_updated("book://dune")
        await asyncio.to_thread(registry.resource_updated, "book://emma")
        assert await client.receive() == {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "book://emma"},
        }
        assert (await client.ask(request("resources/unsubscribe", {"uri": "book://emma"})))["result"] == {}
        assert registry._updated == []
        registry.resource_updated("book://emma")
        assert (await client.ask(request("ping")))["result"] == {}
        error = (await client.ask(request("resources/subscribe", {"uri": "nothing://here"})))["error"]
        assert error["code"] == -32002
        await client.ask(request("resources/subscribe", {"uri": "book://emma"}))
    assert registry._updated == []


async def test_a_resource_that_is_subscribed_to_twice_at_once_is_followed_once_and_not_after_the_session() -> None:
    registry = library()
    async with browsing(registry, anonymous=READER) as browser:
        session = await opened(browser, "2025-03-26")
        uris = ["book://emma", "book://dune"] * 5
        batch = [request("resources/subscribe", {"uri": uri}, id=n) for n, uri in enumerate(uris)]
        async with browser.post(batch, Mcp_Session_Id=session) as response:
            assert [each["result"] for each in await response.json()] == [{}] * 10
        assert len(registry._updated) == 1  # the surface, however many clients it has
        async with browser.delete(Mcp_Session_Id=session) as response:
            assert response.status == 200
        assert not registry._updated


async def test_the_subscriptions_of_one_identity_are_bounded_over_all_of_its_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opwire.mcp.server.resources.MAX_WATCHED", 4)
    async with browsing(library(), anonymous=READER) as browser:
        first, second = await opened(browser), await opened(browser)

        async def ask(session: str, method: str, uri: str) -> Any:
            async with browser.post(request(method, {"uri": uri}), Mcp_Session_Id=session) as response:
                return await response.json()

        for session in (first, second):
            assert "result" in await ask(session, "resources/subscribe", "book://emma")
        refused = await ask(second, "resources/subscribe", "book://dune")
        assert "too many resources are subscribed to, 2 by this identity" in refused["error"]["message"]
        wanted = {"notifications": {"resourceSubscriptions": ["book://emma"]}}
        async with browser.post(request("subscriptions/listen", wanted, era=NEWEST), era=NEWEST) as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    assert json.loads(line[5:])["params"]["notifications"] == {}
                    break
        assert "result" in await ask(first, "resources/unsubscribe", "book://emma")
        assert "result" in await ask(second, "resources/subscribe", "book://dune")


async def test_in_the_newest_era_updates_come_with_the_stream_that_asked_for_them() -> None:
    registry = library()
    surface = serve_mcp(registry, stdio_identity=READER)
    async with raw(surface, handshake=False) as client:
        uris = ["book://emma", "vault://gold", "nothing://here"]
        wanted = {"resourceSubscriptions": uris, "promptsListChanged": True}
        await client.send(request("subscriptions/listen", {"notifications": wanted}, id=5, era=NEWEST))
        opened = (await client.receive())["params"]
        assert opened["notifications"] == {"promptsListChanged": True, "resourceSubscriptions": ["book://emma"]}
        registry.resource_updated("vault://gold")
        registry.resource_updated("book://emma")
        updated = await client.receive()
        assert updated["method"] == "notifications/resources/updated"
        assert updated["params"] == {"uri": "book://emma", "_meta": {"io.modelcontextprotocol/subscriptionId": 5}}
        registry.register(OperationSpec(namespace="a", name="tool"), lambda input, context: 1)
        registry.unregister("books.dialogue")
        assert (await client.receive())["method"] == "notifications/prompts/list_changed"


async def test_each_changed_list_has_its_notification() -> None:
    registry = library()
    async with raw(serve_mcp(registry)) as client:
        await client.ask(request("ping"))
        registry.unregister("books.shelf")
        assert (await client.receive())["method"] == "notifications/resources/list_changed"
        registry.unregister("books.review")
        assert (await client.receive())["method"] == "notifications/prompts/list_changed"
        registry.unregister("books.rewrite")
        assert (await client.receive())["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_served_is_announced_and_nothing_else(era: str) -> None:
    announced = {
        "logging": {},
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "completions": {},
    }
    first = HANDSHAKE[0] if era == OLDER else request("server/discover", era=NEWEST)
    async with raw(serve_mcp(library(), task_after=None), handshake=False) as client:
        assert (await client.ask(first))["result"]["capabilities"] == announced
    async with raw(serve_mcp(library(), exclude=["books.*"], task_after=None), handshake=False) as client:
        assert (await client.ask(first))["result"]["capabilities"].keys() == {"logging", "tools"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the SDK: this era is not its newest
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_over_http_updates_come_on_the_stream_of_the_session() -> None:
    registry = library()
    told: asyncio.Queue[Any] = asyncio.Queue()

    async def listen(message: Any) -> None:
        await told.put(message)

    async with (
        served(serve_mcp(registry), anonymous=READER) as url,
        http_client(url, OLDER, message_handler=listen) as client,
    ):
        await client.subscribe_resource("book://emma")
        await client.call_tool("books_rewrite", {"title": "emma", "text": BOOKS["emma"]})
        async with asyncio.timeout(PATIENCE):
            message = await told.get()
        assert message.params.uri == "book://emma"


async def test_lists_have_pages_of_bytes_and_survive_changes_between_them() -> None:
    registry = OperationRegistry()
    for number in range(20):
        registry.resource(f"page://{number}", id=f"pages.p{number:02}", description="x" * 300)(lambda: "text")
    async with raw(serve_mcp(registry, max_page=2000), handshake=False) as client:  # it is not notified
        seen: list[str] = []
        cursor: str | None = None
        while True:
            params = {} if cursor is None else {"cursor": cursor}
            page = (await client.ask(request("resources/list", params, era=NEWEST)))["result"]
            assert 1 <= len(page["resources"]) <= 5
            seen += [each["uri"] for each in page["resources"]]
            if len(seen) == len(page["resources"]):
                registry.unregister("pages.p00")
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        assert seen == [f"page://{number}" for number in range(20)]
        for cursor in ("", "7", "x:y", f"{'9' * 5000}:0123456789abcdef"):
            error = (await client.ask(request("resources/list", {"cursor": cursor}, era=NEWEST)))["error"]
            assert error["code"] == -32602


async def test_resources_and_prompts_are_tools_as_well_if_wanted() -> None:
    async with connected(serve_mcp(library(), all_tools=True, stdio_identity=READER)) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        expected = ["book", "covers", "dialogue", "review", "rewrite", "shelf"]
        assert names == [f"books_{name}" for name in expected]
        result = await client.call_tool("books_book", {"title": "dune"})
        assert result.structured_content == {"result": "Sand."} or result.structured_content == "Sand."
        assert (await client.list_resources()).resources


async def test_views_select_and_restrict_resources_as_other_operations() -> None:
    registry = library()
    view = registry.view(exclude=["books.shelf"], rename={"books": "novels"}, scopes=["read"])
    async with connected(serve_mcp(view, stdio_identity=Identity(id="a", scopes=("read",)))) as client:
        assert (await client.list_resources()).resources == []
        assert (await content(client, "book://dune")).text == "Sand."
        with pytest.raises(MCPError):
            await client.read_resource("shelf://all")
        assert (await client.get_prompt("novels_review", {"title": "dune"})).messages
    async with connected(serve_mcp(view, stdio_identity=READER)) as client:
        with pytest.raises(MCPError, match="missing scope read"):
            await client.read_resource("book://dune")


async def test_an_operation_with_an_invalid_uri_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    registry = library()
    registry.register(
        OperationSpec(namespace="odd", name="one", mcp=MCPPresentation(role="resource", uri="no uri")), lambda i, c: 1
    )
    async with connected(serve_mcp(registry)) as client:
        assert len((await client.list_resources()).resources) == 2
        assert (await client.read_resource("book://dune")).contents
    assert "odd.one is not shown as a resource" in caplog.text


@pytest.mark.parametrize("era", ERAS)
async def test_a_result_of_more_than_a_mebibyte_reaches_the_client_over_http(era: str) -> None:
    """A result of any size is plain JSON over HTTP where nothing was notified before."""
    registry = OperationRegistry()
    text = "x" * (3 * 1024 * 1024)  # the SDK's client limits events to 1 MiB, and JSON not at all

    @registry.query("data.large")
    async def large() -> str:
        return text

    registry.resource("data://large", id="data.file")(large)
    async with served(serve_mcp(registry), anonymous=READER) as url, http_client(url, era) as client:
        (block,) = (await client.call_tool("data_large")).content
        assert isinstance(block, TextContent)
        assert block.text == text
        assert (await content(client, "data://large")).text == text


ADA, BOB = "a" * 32, "b" * 32
TOKENS = StaticTokens({ADA: Identity(id="ada", scopes=("shop",)), BOB: Identity(id="bob")})


def put_server(registry: OperationRegistry, namespace: str, list_uris: Any, answer: Any, **spec: Any) -> None:
    """Register the operations that `from_mcp` has for a server with resources."""

    def listed(*_: Any) -> dict[str, Any]:
        return {"resources": [{"uri": uri, "name": "r"} for uri in list_uris()]}

    roles: tuple[tuple[Role, Any], ...] = (("resources/list", listed), ("resources/read", lambda *_: answer))
    for role, handler in roles:
        mcp = MCPPresentation(role=role)
        registry.register(OperationSpec(namespace=namespace, name=role, mcp=mcp, **spec), handler)


async def test_a_server_does_not_take_the_resources_of_one_before_it_by_listing_them_to_another_caller() -> None:
    """A resource is read at the first server that has listed it, in the order of the registry; what servers list
    is remembered within limits."""
    registry = OperationRegistry()
    put_server(registry, "good", lambda: ["shop://orders"], "good", access=AccessControl(required_scopes=("shop",)))
    put_server(registry, "evil", lambda: ["shop://orders"], "evil")
    async with (
        served(serve_mcp(registry), authenticate=TOKENS) as url,
        http_client(url, token=ADA) as ada,
        http_client(url, token=BOB) as bob,
    ):
        assert len((await ada.list_resources()).resources) == 1
        assert len((await bob.list_resources()).resources) == 1
        assert (await content(bob, "shop://orders")).text == "evil"  # all that this caller may see
        assert (await content(ada, "shop://orders")).text == "good"


async def test_resources_that_change_with_every_list_are_not_kept() -> None:
    registry, number = OperationRegistry(), count()
    put_server(registry, "evil", lambda: [f"x://{next(number)}/{'a' * 1_000_000}"], "")
    async with raw(serve_mcp(registry), handshake=False) as client:
        assert len((await client.ask(request("resources/list", era=NEWEST)))["result"]["resources"]) == 1
        tracemalloc.start()
        try:
            for _ in range(10):
                await client.ask(request("resources/list", era=NEWEST))
            assert tracemalloc.get_traced_memory()[0] < 6_000_000  # 10 MB, and more with every list
        finally:
            tracemalloc.stop()


async def test_a_result_of_another_server_is_neither_a_question_nor_public() -> None:
    asked = {"resultType": "input_required", "inputRequests": {"q": {"method": "roots/list"}}}
    fields = {**asked, "cacheScope": "public", "ttlMs": 5, "contents": [], "content": [], "isError": True}
    registry = OperationRegistry()
    block: Any = {"type": "resource", "resource": {"uri": "x://y", "text": "hi"}}
    read = mcp_envelope([block], is_error=False, content=[block], _meta={FIELDS_META: fields})
    put_server(registry, "x", list, read)
    registry.register(OperationSpec(namespace="x", name="tool"), lambda *_: read)
    messages = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], **asked}
    said = mcp_envelope(messages, is_error=False, content=[], structured_content=messages, _meta={FIELDS_META: fields})
    for name, result in (("other", said), ("own", messages)):
        registry.register(
            OperationSpec(namespace="x", name=name, mcp=MCPPresentation(role="prompt")),
            lambda *_, result=result: result,
        )
    async with raw(serve_mcp(registry), handshake=False) as client:
        for method, params in (
            ("resources/read", {"uri": "x://y"}),
            ("tools/call", {"name": "x_tool"}),
            ("prompts/get", {"name": "x_other"}),
            ("prompts/get", {"name": "x_own"}),
        ):
            result = (await client.ask(request(method, params, era=NEWEST)))["result"]
            assert result["resultType"] == "complete"
            assert not result.get("isError")
            if method == "resources/read":
                assert (result["ttlMs"], result["cacheScope"]) == (5, "private")
                assert result["contents"] == [block["resource"]]
