"""The views of a file, served and called."""

from pathlib import Path
from typing import Any

import pytest

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.asgi.listener import listening
from opwire.client import Client
from opwire.config import mcp_http_options, mcp_surface, open_config
from opwire.config.reading import parse_config
from opwire.config.surfaces import http_surface
from opwire.config.views import served_view, view_of
from opwire.mcp.client import HTTPServer, from_mcp
from tests.config.projects import SHOP, project

TOKEN = "a-token-of-many-letters"
FILE = """
[identities.alice]
token = "${OPWIRE_ALICE}"

[sources.shop]
python = "shop:registry"
rename = { "shop.price" = "shop.price_of" }

[sources.other]
python = "other:registry"

[views.support]
include = ["source:shop"]
rename = { shop = "store" }

[views.support.reshape."shop.price_of"]
title = "Price"
from_context = { article = "identity.id" }

[serve.mcp]
view = "support"

[serve.http]
view = "support"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OPWIRE_ALICE", TOKEN)
    (tmp_path / "shop.py").write_text(SHOP.format(price='f"price of {article}"').replace("-> int", "-> str"))
    (tmp_path / "other.py").write_text(SHOP.format(price=2).replace("shop.price", "other.price"))
    return project(tmp_path, FILE)


async def test_a_view_of_the_file_selects_by_source_renames_and_reshapes(config: Any) -> None:
    async with open_config(config) as opened:
        assert [spec.id for spec in opened.registry.list()] == ["shop.price_of", "other.price"]
        assert opened.source_of("shop.price_of") == "shop"
        view = view_of(config, "support", opened.registry)
        assert [(spec.id, spec.title) for spec in view.list()] == [("store.price_of", "Price")]
        assert view.problems == ()
    assert len(view) == 0


async def test_http_serves_the_view_to_each_identity(config: Any) -> None:
    async with open_config(config) as opened, http_surface(config, opened.registry).listening() as address:
        async with Client(address, token=TOKEN) as client:
            assert await client.call("store.price_of") == "price of alice"
            with pytest.raises(CallError, match="OPERATION_NOT_FOUND: unknown path /other/price"):
                await client.call("other.price", {"article": "x"})
        async with Client(address) as client:
            with pytest.raises(CallError, match="requires an authenticated caller"):
                await client.call("store.price_of")


async def test_mcp_serves_the_view_to_each_identity(config: Any) -> None:
    async with open_config(config) as opened:
        app = mcp_surface(config, opened.registry).asgi(**mcp_http_options(config))
        async with listening(app, "127.0.0.1", 0) as address:
            server = HTTPServer(f"{address}/mcp", headers={"Authorization": f"Bearer {TOKEN}"})
            async with from_mcp(server, namespace="remote") as tools:
                (tool,) = tools
                assert (tool.spec.id, tool.spec.title) == ("remote.store_price_of", "Price")
                registry = OperationRegistry()
                registry.follow(tools)
                assert (await registry.execute(tool.spec.id)).data == "price of alice"


async def test_mcp_serves_a_view_in_search_mode(tmp_path: Path, config: Any) -> None:
    always = FILE.replace("[views.support]", '[views.support]\nsearch = "always"\npinned = []')
    config = project(tmp_path, always)
    async with open_config(config) as opened:
        app = mcp_surface(config, opened.registry).asgi(**mcp_http_options(config))
        async with listening(app, "127.0.0.1", 0) as address:
            server = HTTPServer(f"{address}/mcp", headers={"Authorization": f"Bearer {TOKEN}"})
            async with from_mcp(server, namespace="remote") as tools:
                registry = OperationRegistry()
                registry.follow(tools)
                names = sorted(spec.id for spec in registry.list())
                assert names == ["remote.tools_call", "remote.tools_describe", "remote.tools_search"]
                found = await registry.execute("remote.tools_search", {"query": "what does it cost?"})
                assert found.data == "store.price_of()  Price"
                result = await registry.execute("remote.tools_call", {"operation": "store.price_of"})
                assert result.data == "price of alice"


async def test_a_view_is_served_in_code_mode(tmp_path: Path, config: Any) -> None:
    config = project(tmp_path, FILE.replace("[views.support]", "[views.support]\ncode = true"))
    async with open_config(config) as opened:
        mode = served_view(config, "support", opened.registry)
        context = Context(identity=Identity(id="alice", scopes=("support",)))
        program = {"code": "await store_price_of()"}
        assert (await mode.execute("tools.run", program, context)).data == "price of alice"


async def test_search_mode_is_automatic_above_a_budget(tmp_path: Path, config: Any) -> None:
    """Search mode can take effect only if the definitions exceed a budget of tokens."""
    for budget, mode in ((10_000, False), (1, True)):
        auto = FILE.replace("[views.support]", f'[views.support]\nsearch = "auto"\ntoken_budget = {budget}')
        config = project(tmp_path, auto)
        async with open_config(config) as opened:
            assert ("tools.search" in served_view(config, "support", opened.registry)) is mode


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('[views.a]\nincldue = ["x"]', "views.a.incldue", "unknown key"),
        (
            '[views.a]\ninclude = ["source:shp"]\n[sources.shop]\npython = "x"',
            "views.a.include",
            "unknown source 'shp'",
        ),
        ('[views.a]\nrename = { "a.*" = "b" }', "views.a", "rename: 'a.*' to 'b'"),
        ('[views.a.reshape."a.b"]\nfrom_context = { x = "who" }', "views.a", "from_context: 'who' is unknown"),
        ('[views.a.reshape."a.b"]\nmax_chars = 0', 'views.a.reshape."a.b".max_chars', "expected `integer` >= 1"),
        ('[sources.s]\npython = "x"\nrename = { a = "" }', "sources.s", "rename: 'a' to ''"),
        ('[serve.mcp]\nview = "suport"\n[views.support]', "serve.mcp.view", "unknown view 'suport'"),
    ],
)
def test_problems_of_views_are_found_when_the_file_is_read(text: str, key: str, message: str) -> None:
    (problem,) = parse_config(text)[1]
    assert problem.key == key
    assert problem.message.startswith(message)
