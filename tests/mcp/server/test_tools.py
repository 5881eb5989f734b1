"""Operations as tools: what is listed, for which caller, page by page."""

import logging
from typing import Any

import pytest
from mcp_types import methods
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from opwire import AccessControl, CallError, Identity, OperationRegistry, OperationSpec
from opwire.agents.tools import MAX_NAME
from opwire.mcp.server.tools import MAX_PAGE, Tool, ToolCatalogue
from opwire.model.context import Context
from opwire.model.origin import ORIGIN_META, read_origin
from opwire.registry.dispatch import Dispatcher
from opwire.schema import Schema
from tests.mcp.server.operations import shop

EVERYBODY = Identity(id="all", scopes=("*",))


async def _handler(input: Any, context: Context) -> Any:
    return input


def _deep(levels: int) -> Schema:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return Schema(schema)


def _one(**fields: Any) -> Tool:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="b", **fields), _handler)
    tool = ToolCatalogue(Dispatcher(registry)).find("a_b")
    assert tool is not None
    return tool


def test_an_operation_is_a_tool_with_all_that_is_known_of_it() -> None:
    """An operation is served as an MCP tool with title, description, hints, schemas and its origin."""
    tool = ToolCatalogue(Dispatcher(shop())).find("math_add")
    assert tool is not None
    assert tool.shape["title"] == "Add"
    assert tool.shape["description"] == "Add two numbers."
    assert tool.shape["annotations"] == {"readOnlyHint": True}
    assert tool.shape["inputSchema"]["required"] == ["a", "b"]
    assert tool.shape["outputSchema"] == {"type": "integer"}
    assert tool.older["outputSchema"]["properties"] == {"result": {"type": "integer"}}
    origin = read_origin(tool.older["_meta"], ORIGIN_META)
    assert origin is not None
    assert (origin.id, origin.version, origin.tags, origin.wraps_output) == ("math.add", "1.2", ("sums",), True)
    newest = read_origin(tool.shape["_meta"], ORIGIN_META)
    assert newest is not None
    assert not newest.wraps_output


def test_the_sdk_reads_every_list_in_every_revision() -> None:
    tools, _ = ToolCatalogue(Dispatcher(shop())).page(EVERYBODY, None, MAX_PAGE)
    for version in KNOWN_PROTOCOL_VERSIONS:
        newest = version == KNOWN_PROTOCOL_VERSIONS[-1]
        listed: dict[str, Any] = {"tools": [tool.shape if newest else tool.older for tool in tools]}
        if newest:
            listed |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        methods.validate_server_result("tools/list", version, listed)


def test_a_mutation_says_nothing_of_what_is_not_known() -> None:
    assert "annotations" not in _one(type="mutation").shape


def test_a_subscription_gives_a_list_of_its_items() -> None:
    tool = _one(type="subscription", output_schema={"type": "integer"})
    assert tool.shape["outputSchema"]["properties"]["items"] == {"type": "array", "items": {"type": "integer"}}
    assert tool.older["outputSchema"] == tool.shape["outputSchema"]


def test_only_what_a_caller_may_call_is_listed() -> None:
    catalogue = ToolCatalogue(Dispatcher(shop()))

    def names(identity: Identity | None) -> set[str]:
        return {tool.name for tool in catalogue.page(identity, None, MAX_PAGE)[0]}

    assert names(None) == {"public_hello"}
    assert "admin_secret" not in names(Identity(id="bob"))
    assert "admin_secret" in names(Identity(id="ann", scopes=("admin",)))


def test_pages_give_every_tool_once() -> None:
    registry = OperationRegistry()
    for number in range(25):
        registry.register(OperationSpec(namespace="n", name=f"{number:02}"), _handler)
    registry.register(OperationSpec(namespace="n", name="99", description="x" * 10_000), _handler)
    catalogue = ToolCatalogue(Dispatcher(registry))
    size = catalogue.page(EVERYBODY, None, 1)[0][0].size
    names, cursor, pages = [], None, list[int]()
    while not pages or cursor is not None:
        tools, cursor = catalogue.page(EVERYBODY, cursor, 10 * size)
        names += [tool.name for tool in tools]
        pages.append(len(tools))
    assert names == [f"n_{number:02}" for number in (*range(25), 99)]
    assert pages == [10, 10, 5, 1]  # the last one is longer than a page


def test_a_small_registry_is_listed_on_one_page() -> None:
    registry = OperationRegistry()
    for number in range(1_000):
        registry.register(OperationSpec(namespace="n", name=str(number)), _handler)
    tools, cursor = ToolCatalogue(Dispatcher(registry)).page(EVERYBODY, None, MAX_PAGE)
    assert (len(tools), cursor) == (1_000, None)


@pytest.mark.parametrize(("limit", "is_listed"), [(4_096, False), (100_000, True), (0, False)])
def test_a_long_output_schema_is_left_out_of_the_list(limit: int, is_listed: bool) -> None:
    """tools/list gives every tool once, in pages of up to 512 kB, also when operations come and go; output
    schemas above 4 kB are left out."""
    registry = OperationRegistry()
    long = Schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500)}})
    registry.register(OperationSpec(namespace="a", name="b", output_schema=long), _handler)
    tool = ToolCatalogue(Dispatcher(registry), max_output_schema=limit).find("a_b")
    assert tool is not None
    assert ("outputSchema" in tool.shape) == ("outputSchema" in tool.older) == is_listed


def test_a_tool_that_goes_between_two_pages_costs_no_other() -> None:
    registry = OperationRegistry()
    for name in "abcd":
        registry.register(OperationSpec(namespace="n", name=name), _handler)
    catalogue = ToolCatalogue(Dispatcher(registry))
    size = catalogue.page(EVERYBODY, None, 1)[0][0].size
    _, cursor = catalogue.page(EVERYBODY, None, 2 * size)
    registry.unregister("n.a")
    registry.unregister("n.b")
    assert [tool.name for tool in catalogue.page(EVERYBODY, cursor, 2 * size)[0]] == ["n_c", "n_d"]


def test_a_page_that_is_just_full_is_the_last() -> None:
    registry = OperationRegistry()
    for name in "ab":
        registry.register(OperationSpec(namespace="n", name=name), _handler)
    catalogue = ToolCatalogue(Dispatcher(registry))
    size = catalogue.page(EVERYBODY, None, 1)[0][0].size
    assert catalogue.page(EVERYBODY, None, 2 * size)[1] is None


def test_an_invented_cursor_is_rejected() -> None:
    with pytest.raises(CallError, match="cursor"):
        ToolCatalogue(Dispatcher(shop())).page(EVERYBODY, "made up", MAX_PAGE)


def test_what_has_no_handler_or_is_not_served_is_not_a_tool() -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="known"))
    registry.register(OperationSpec(namespace="a", name="b"), _handler)
    registry.register(OperationSpec(namespace="c", name="d"), _handler)
    catalogue = ToolCatalogue(Dispatcher(registry, serves=lambda spec: spec.namespace == "c"))
    assert [tool.name for tool in catalogue.page(EVERYBODY, None, MAX_PAGE)[0]] == ["c_d"]
    assert catalogue.find("a_b") is catalogue.find("a_known") is catalogue.find("a_nothing") is None


def test_a_long_name_is_found_again() -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="x" * 100), _handler)
    catalogue = ToolCatalogue(Dispatcher(registry))
    (tool,), _ = catalogue.page(EVERYBODY, None, MAX_PAGE)
    assert len(tool.name) == MAX_NAME
    assert catalogue.find(tool.name) is tool


def test_a_tool_is_made_once_and_again_when_its_operation_is_replaced() -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="b", title="old"), _handler)
    catalogue = ToolCatalogue(Dispatcher(registry))
    first = catalogue.find("a_b")
    assert catalogue.find("a_b") is first
    registry.register(OperationSpec(namespace="a", name="b", title="new"), _handler, replace=True)
    replaced = catalogue.find("a_b")
    assert replaced is not None
    assert replaced.shape["title"] == "new"


def test_tools_of_operations_that_are_gone_are_forgotten() -> None:
    registry = OperationRegistry()
    catalogue = ToolCatalogue(Dispatcher(registry))
    for number in range(10):
        registry.register(OperationSpec(namespace="a", name=str(number)), _handler)
    catalogue.page(EVERYBODY, None, MAX_PAGE)
    for number in range(9):
        registry.unregister(f"a.{number}")
    catalogue.page(EVERYBODY, None, MAX_PAGE)
    assert len(catalogue._tools) == len(catalogue._names) == 1


def test_a_broken_schema_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    broken = Schema({"type": "object", "properties": []})
    with caplog.at_level(logging.WARNING, "opwire.mcp.server"):
        tool = _one(input_schema=broken, output_schema=broken)
        streams = _one(type="subscription", output_schema=_deep(20_000))
    assert tool.shape["inputSchema"] == {"type": "object"}
    assert "outputSchema" not in tool.older
    assert streams.shape["outputSchema"]["required"] == ["items", "complete"]
    assert "without its input schema" in caplog.text
    assert "without its output schema" in caplog.text
    assert "without the schema of its items" in caplog.text


def test_an_operation_that_has_no_json_form_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="bad", examples=(object(),)), _handler)
    registry.register(OperationSpec(namespace="a", name="good", title="\ud800", examples=(float("nan"),)), _handler)
    (tool,), _ = ToolCatalogue(Dispatcher(registry)).page(EVERYBODY, None, MAX_PAGE)
    assert tool.name == "a_good"
    assert tool.shape["_meta"][ORIGIN_META]["examples"] == [None]
    assert tool.shape["title"] == "\ufffd"
    assert "a.bad is not shown" in caplog.text


def test_a_schema_that_is_too_deep_to_be_sent_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="b", output_schema=_deep(300)), _handler)
    assert ToolCatalogue(Dispatcher(registry)).page(EVERYBODY, None, MAX_PAGE) == ([], None)
    assert "nested deeper" in caplog.text


def test_whether_anything_is_public() -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="b"), _handler)
    assert not ToolCatalogue(Dispatcher(registry)).has_public()
    registry.register(OperationSpec(namespace="a", name="c", access=AccessControl(public=True)), _handler)
    assert ToolCatalogue(Dispatcher(registry)).has_public()
