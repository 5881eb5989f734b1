"""Functions as resources and prompts, their completions, and annotations of every operation."""

import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, cast

import pytest

from opwire import (
    Annotations,
    CallError,
    Completion,
    CompletionRequest,
    Context,
    Depends,
    LogMessage,
    MCPPresentation,
    OperationRegistry,
    OperationSpec,
    OperationType,
    RegistrationError,
    Reshape,
    UsageError,
)


async def test_a_resource_is_an_operation_with_the_variables_of_its_uri_as_input() -> None:
    registry = OperationRegistry(namespace="files")

    @registry.resource("file:///{+path}", mime_type="text/plain", tags=["files"])
    def read(path: str, context: Context) -> str:
        return f"{path} for {context.request_id}"

    assert read("a", Context(request_id="1")) == "a for 1"
    spec = registry.get_spec("files.read")
    assert spec is not None
    assert (spec.mcp.role, spec.mcp.uri, spec.mcp.mime_type) == ("resource", "file:///{+path}", "text/plain")
    assert (spec.type, spec.tags) == (OperationType.QUERY, ("files",))
    assert (await registry.execute("files.read", {"path": "x"}, Context(request_id="2"))).data == "x for 2"


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("f://{path}/{other}", "the URI has 'other', which the function does not take"),
        ("f://x", "the URI may lack 'path', which the function requires"),
        ("f://x{?path}", "the URI may lack 'path'"),
        ("nothing", "invalid URI template"),
    ],
)
def test_a_uri_that_does_not_fit_the_parameters_is_rejected(uri: str, problem: str) -> None:
    registry = OperationRegistry()

    def read(path: str) -> str:
        return path

    with pytest.raises(RegistrationError, match=problem):
        registry.resource(uri)(read)
    assert len(registry) == 0


async def test_a_prompt_is_an_operation_that_returns_what_its_function_returns() -> None:
    registry = OperationRegistry()

    @registry.prompt
    async def review(title: str) -> str:
        return f"Review {title}."

    spec = registry.get_spec("local.review")
    assert spec is not None
    assert (spec.mcp.role, spec.type) == ("prompt", OperationType.QUERY)
    assert (await registry.execute("local.review", {"title": "Emma"})).data == "Review Emma."


def _names(value: str, arguments: dict[str, str], context: Context) -> list[str]:
    return [value, *arguments, str(context.request_id), threading.current_thread().name]


async def test_a_completer_takes_the_value_and_what_else_it_asks_for_and_runs_as_operations_do() -> None:
    """Arguments are completed by functions that run as operations do, also through views."""
    registry = OperationRegistry()

    def lend() -> str:
        return "lent"

    async def injected(value: str, source: Annotated[str, Depends(lend)]) -> tuple[str, ...]:
        return (f"{value}-{source}",)

    @registry.query("a.b", completes={"name": _names, "other": injected})
    async def call(name: str, other: str = "", tone: Literal["kind", "keen"] = "kind") -> str:
        return name

    request = CompletionRequest(argument="name", value="x", arguments={"other": "y"})
    found = await registry.complete("a.b", request, Context(request_id="7"))
    assert found.values[:3] == ("x", "other", "7")
    assert found.values[3] != threading.current_thread().name
    assert (await registry.complete("a.b", CompletionRequest(argument="other", value="z"))).values == ("z-lent",)
    declared = await registry.complete("a.b", CompletionRequest(argument="tone", value="ke"))
    assert declared == Completion(values=("keen",), total=1)
    assert (await registry.complete("a.b", CompletionRequest(argument="none", value=""))).values == ()
    with pytest.raises(CallError, match="Operation not found"):
        await registry.complete("a.c", request)


async def test_a_completer_that_fails_is_a_call_error_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()

    def broken(value: str) -> list[str]:
        raise RuntimeError("password")

    @registry.query("a.b", completes={"name": broken})
    async def call(name: str) -> str:
        return name

    with pytest.raises(CallError) as failed:
        await registry.complete("a.b", CompletionRequest(argument="name", value=""))
    assert "password" not in failed.value.message
    assert "password" in caplog.text


def test_a_completer_of_something_else_is_rejected() -> None:
    registry = OperationRegistry()

    def wrong(text: str) -> list[str]:
        return [text]

    def call(name: str) -> str:
        return name

    with pytest.raises(RegistrationError, match="a completer takes `value`"):
        registry.query("a.b", completes={"name": wrong})(call)
    with pytest.raises(RegistrationError, match="completes has 'nome', which is not a parameter"):
        registry.query("a.b", completes={"nome": _names})(call)


async def test_a_view_completes_under_its_own_names_and_nothing_that_it_hides() -> None:
    registry = OperationRegistry()

    def listed(value: str, arguments: dict[str, str]) -> list[str]:
        return [f"{key}={each}" for key, each in arguments.items()] or [value]

    @registry.query("a.b", completes={"name": listed, "tenant": listed})
    async def call(name: str, tenant: str = "", kind: str = "") -> str:
        return name

    view = registry.view(reshape={"a.b": Reshape(rename={"name": "title", "kind": "sort"}, fix={"tenant": "t"})})
    request = CompletionRequest(argument="title", value="x", arguments={"sort": "s", "tenant": "other"})
    assert (await view.complete("a.b", request)).values == ("kind=s",)
    assert (await view.complete("a.b", CompletionRequest(argument="tenant", value="x"))).values == ()
    followed = OperationRegistry()
    followed.follow(view)
    assert (await followed.complete("a.b", request)).values == ("kind=s",)


def test_updates_reach_listeners_of_a_registry_and_of_its_views() -> None:
    registry = OperationRegistry()
    view = registry.view()
    told: list[tuple[str, str]] = []
    ends = [
        registry.on_resource_updated(lambda uri: told.append(("registry", uri))),
        view.on_resource_updated(lambda uri: told.append(("view", uri))),
    ]
    registry.resource_updated("a://1")
    view.resource_updated("a://2")
    for end in ends:
        end()
        end()
    registry.resource_updated("a://3")
    assert told == [("registry", "a://1"), ("view", "a://1"), ("registry", "a://2"), ("view", "a://2")]


def test_operations_have_annotations_icons_and_meta_and_a_query_is_read_only() -> None:
    mcp = MCPPresentation(icons=["https://x/i.png", {"src": "data:,", "sizes": ["1x1"]}])
    spec = OperationSpec(namespace="a", name="b", mcp=mcp)
    assert spec.mcp.annotations == Annotations(read_only=True)
    assert spec.mcp.icons == ({"src": "https://x/i.png"}, {"src": "data:,", "sizes": ["1x1"]})
    denied = OperationSpec(namespace="a", name="b", mcp=MCPPresentation(annotations=Annotations(read_only=False)))
    assert denied.mcp.annotations.read_only is False
    assert OperationSpec(namespace="a", name="b", type="mutation").mcp.annotations == Annotations()
    wrong: list[Any] = ["x.png", {"src": "x"}, [{"href": "x"}], [{"src": 1}]]
    for icons in wrong:
        with pytest.raises(RegistrationError, match="icon"):
            MCPPresentation(icons=icons)


def test_annotations_of_mcp_are_kept_with_what_is_not_a_hint() -> None:
    given = {"readOnlyHint": False, "destructiveHint": "yes", "title": "T", "acme": [1]}
    parsed = Annotations.from_mcp(given)
    assert parsed == Annotations(read_only=False, extra={"destructiveHint": "yes", "title": "T", "acme": [1]})
    assert parsed.to_mcp() == given


def test_a_handler_logs_to_its_caller_if_that_listens() -> None:
    told: list[LogMessage] = []
    context = Context(on_log=told.append)
    context.log("warning", {"n": 1}, logger="x")
    context.child().log("info", "nested")
    assert told == [LogMessage("warning", {"n": 1}, "x"), LogMessage("info", "nested")]
    Context().log("info", "nothing listens")
    wrong: Any = "loud"
    with pytest.raises(UsageError, match="unknown log level 'loud'; use one of debug"):
        Context().log(wrong, "x")


async def test_lenient_input_is_passed_on_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    spec = OperationSpec(namespace="a", name="b", input_schema=schema, lenient_input=True)
    registry.register(spec, lambda input, context: input)
    assert (await registry.execute("a.b", {"n": "5"})).data == {"n": "5"}
    assert 'a.b: /n: the value is not of type "integer"' in caplog.text
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(CallError, match="nested deeper"):
        await registry.execute("a.b", {"n": deep})


# --- classes ----------------------------------------------------------------------------------------------------------


def counters() -> tuple[OperationRegistry, type[Any]]:
    registry = OperationRegistry(namespace="count")

    class Counter:
        """Operations that share a number."""

        def __init__(self, start: int = 0) -> None:
            self.value = start

        @registry.mutation("counter.add")
        async def add(self, by: Annotated[int, "how much"], context: Context) -> int:
            """Add to the counter."""
            self.value += by
            return self.value

        @registry.query
        def get(self, scale: Annotated[int, Depends(lambda: 10)]) -> int:
            return self.value * scale

        @registry.subscription("counter.down")
        async def down(self) -> AsyncIterator[int]:
            for number in range(self.value, 0, -1):
                yield number

        @registry.resource("counter://{name}", id="counter.resource")
        def resource(self, name: str) -> str:
            return f"{name}: {self.value}"

        def helper(self) -> None:
            raise AssertionError

    return registry, Counter


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": "shop.order"}, r"unknown option 'name': the id is the first argument, query\('shop.order'\)"),
        ({"timout": 3}, r"unknown option 'timout'; did you mean timeout\?"),
    ],
)
def test_an_unknown_option_of_a_decorator_is_rejected_with_what_to_write(options: dict[str, Any], told: str) -> None:
    with pytest.raises(RegistrationError, match=told):
        OperationRegistry().query(**options)


async def test_the_decorated_methods_of_an_object_are_operations_that_share_it() -> None:
    registry, counter = counters()
    assert len(registry) == 0
    with pytest.raises(CallError, match=r"it is .*Counter\.add: call register_object"):
        await registry.execute("counter.add", {"by": 1})
    registry.register_object(counter(5))
    assert [spec.id for spec in registry.list()] == ["counter.add", "count.get", "counter.down", "counter.resource"]
    spec = cast("OperationSpec", registry.get_spec("counter.add"))
    assert (spec.description, spec.type) == ("Add to the counter.", OperationType.MUTATION)
    assert cast("Any", spec.input_schema.json)["properties"] == {"by": {"type": "integer", "description": "how much"}}
    assert (await registry.execute("counter.add", {"by": 2})).data == 7
    assert (await registry.execute("count.get")).data == 70
    assert [each.data async for each in registry.subscribe("counter.down")] == [7, 6, 5, 4, 3, 2, 1]
    assert (await registry.execute("counter.resource", {"name": "a"})).data == "a: 7"


async def test_several_objects_are_registered_under_namespaces_of_their_own() -> None:
    registry, counter = counters()
    other = OperationRegistry()
    for at, namespace in enumerate(("a", "b")):
        other.register_object(counter(at), namespace=namespace)
    assert [(await other.execute(id)).data for id in ("a.get", "b.get")] == [0, 10]
    assert len(registry) == 0
    with pytest.raises(RegistrationError, match="already registered"):
        other.register_object(counter(), namespace="a")


async def test_a_method_that_overrides_a_decorated_one_is_called_and_an_object_without_any_is_rejected() -> None:
    registry, counter = counters()

    class Double(counter):
        async def add(self, by: int, context: Context) -> int:
            return await super().add(2 * by, context)

    registry.register_object(Double())
    assert (await registry.execute("counter.add", {"by": 2})).data == 4
    with pytest.raises(RegistrationError, match="object has no methods"):
        registry.register_object(object())
