"""Options that both surfaces share: which operations are served, and interceptors."""

from typing import Any

import pytest

from opwire import AccessControl, Context, Identity, OperationRegistry, OperationSpec
from opwire.errors import UsageError
from opwire.mcp.server import serve_mcp
from opwire.model.operation import Handler
from opwire.openapi.server import serve_http
from opwire.registry.dispatch import operation_filter
from tests.mcp.server.shop import connected
from tests.openapi.server.served import client_of

ME = Identity(id="me")


@pytest.fixture
def registry() -> OperationRegistry:
    found = OperationRegistry()
    for id, tag in (("math.add", "sums"), ("math.root", ""), ("shop.order", "sums"), ("shop.pay", "")):
        namespace, name = id.split(".")
        spec = OperationSpec(namespace=namespace, name=name, tags=(tag,) if tag else ())
        found.register(spec, lambda input, context, id=id: id, inline=True)
    return found


@pytest.mark.parametrize(
    ("include", "exclude", "served"),
    [
        ((), (), {"math.add", "math.root", "shop.order", "shop.pay"}),
        (["math.*"], (), {"math.add", "math.root"}),
        (["sums"], (), {"math.add", "shop.order"}),
        ((), ["shop.*"], {"math.add", "math.root"}),
        (["sums", "shop.*"], ["shop.order"], {"math.add", "shop.pay"}),
        (["MATH.*"], (), set()),
    ],
)
async def test_patterns_of_ids_and_tags_select_what_is_served(
    registry: OperationRegistry, include: Any, exclude: Any, served: set[str]
) -> None:
    app = serve_http(registry, anonymous=ME, include=include, exclude=exclude)
    async with client_of(app) as client:
        listed = {path[1:].replace("/", ".") for path in (await client.get("/openapi.json")).json["paths"]}
        assert listed == served
        for spec in registry.list():
            reply = await client.post(f"/{spec.namespace}/{spec.name}")
            assert reply.status == (200 if spec.id in served else 404)
            if spec.id not in served:
                _, _, hint = reply.problem["detail"].partition("did you mean ")
                assert {each.replace("/", ".")[1:] for each in hint.rstrip("?").split(" or ") if each} <= served
    surface = serve_mcp(registry, include=include, exclude=exclude)
    async with connected(surface) as tools:
        names = {tool.name for tool in (await tools.list_tools()).tools}
        assert names == {id.replace(".", "_") for id in served}


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_pattern_alone_is_not_taken_for_a_list_of_letters(registry: OperationRegistry, option: str) -> None:
    patterns: dict[str, Any] = {"include": (), "exclude": (), option: "math.*"}
    with pytest.raises(UsageError, match=rf"{option} is a list of patterns"):
        operation_filter(**patterns)


async def test_interceptors_of_a_surface_run_around_its_calls_alone(registry: OperationRegistry) -> None:
    seen: list[str] = []

    def note(label: str) -> Any:
        def interceptor(spec: OperationSpec, handler: Handler) -> Handler:
            async def call(input: Any, context: Context) -> Any:
                seen.append(f"{label} {spec.id} {context.identity and context.identity.id}")
                return await handler(input, context)

            return call

        return interceptor

    app = serve_http(registry, anonymous=ME, interceptors=[note("first"), note("second")])
    remove = app.use(note("third"))
    async with client_of(app) as client:
        assert (await client.post("/math/add")).json == "math.add"
        assert seen == ["first math.add me", "second math.add me", "third math.add me"]
        remove()
        seen.clear()
        assert (await client.post("/math/add")).json == "math.add"
        assert seen == ["first math.add me", "second math.add me"]
    surface = serve_mcp(registry, stdio_identity=ME)
    surface.use(note("mcp"))
    seen.clear()
    async with connected(surface) as tools:
        result = await tools.call_tool("math_add", {})
        assert result.structured_content in ("math.add", {"result": "math.add"})
    assert seen == ["mcp math.add me"]


async def test_access_is_checked_before_an_interceptor_runs(registry: OperationRegistry) -> None:
    secret = OperationSpec(namespace="a", name="b", access=AccessControl(required_scopes=("admin",)))
    registry.register(secret, lambda input, context: 1, inline=True)
    called: list[str] = []

    def interceptor(spec: OperationSpec, handler: Handler) -> Handler:
        called.append(spec.id)
        return handler

    async with client_of(serve_http(registry, anonymous=ME, interceptors=[interceptor])) as client:
        assert (await client.post("/a/b")).status == 403
    assert called == []
