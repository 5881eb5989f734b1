"""`from_mcp` and the reference server that shows everything MCP has: here over stdio.

`test_everything_over_http.py` runs the same tests over streamable HTTP and SSE.
"""

import asyncio
import time
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
import pytest_asyncio

from opwire import CallError, Context, ErrorCode, MCPResponseMeta, OperationType, Progress
from opwire.mcp.client import MCPServer
from tests.judges.mcp.everything import Everything, everything_server, following
from tests.servers.processes import PATIENCE

PNG = b"\x89PNG\r\n\x1a\n"
LONG = "every.trigger-long-running-operation"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[MCPServer]:
    async with everything_server(tmp_path_factory.mktemp("everything") / "log") as server:
        yield server


@pytest.fixture
async def every(server: MCPServer) -> AsyncGenerator[Everything]:
    async with following(server) as client:
        yield client


async def test_its_tools_are_operations_of_the_type_that_their_annotations_say(every: Everything) -> None:
    types = {spec.name: spec.type for spec in every.registry.list()}
    expected = {
        "echo": OperationType.QUERY,
        "get-structured-content": OperationType.QUERY,
        "get-sum": OperationType.QUERY,
        "get-tiny-image": OperationType.QUERY,
        "toggle-simulated-logging": OperationType.MUTATION,
        "resources/read": OperationType.QUERY,
        "resources/watch": OperationType.SUBSCRIPTION,
        "prompts/args-prompt": OperationType.QUERY,
    }
    assert {name: types.get(name) for name in expected} == expected
    spec = every.registry.get_spec("every.get-sum")
    assert spec is not None
    assert spec.title == "Get Sum Tool"
    assert spec.description == "Returns the sum of two numbers"


async def test_a_result_without_structured_content_is_its_blocks(every: Everything) -> None:
    envelope = await every.call("get-sum", a=1, b=2)
    assert envelope.data == [{"type": "text", "text": "The sum of 1 and 2 is 3."}]
    assert envelope.meta.content == envelope.data


async def test_structured_content_is_the_data(every: Everything) -> None:
    envelope = await every.call("get-structured-content", location="Chicago")
    assert envelope.data == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
    assert envelope.meta.structured_content == envelope.data


async def test_images_annotations_links_and_embedded_resources_arrive_whole(every: Everything) -> None:
    text, image = (await every.call("get-annotated-message", messageType="error", includeImage=True)).data
    assert text["annotations"] == {"audience": ["user", "assistant"], "priority": 1}
    assert image["mimeType"] == "image/png"
    assert image["annotations"] == {"audience": ["user"], "priority": 0.5}
    assert b64decode(image["data"]).startswith(PNG)
    _, *links = (await every.call("get-resource-links", count=2)).data
    assert [link["uri"] for link in links] == ["demo://resource/dynamic/blob/1", "demo://resource/dynamic/text/2"]
    assert {link["type"] for link in links} == {"resource_link"}
    _, embedded, _ = (await every.call("get-resource-reference", resourceType="Text", resourceId=7)).data
    assert embedded["resource"]["uri"] == "demo://resource/dynamic/text/7"
    assert embedded["resource"]["text"].startswith("Resource 7: ")


async def test_a_tool_that_fails_is_an_envelope_with_the_error_flag(every: Everything) -> None:
    envelope = await every.call("gzip-file-as-resource", data="ftp://files.example/a", outputType="resource")
    assert envelope.meta.is_error
    assert "ftp:" in envelope.data[0]["text"]


async def test_input_that_the_tool_does_not_take_is_judged_by_the_server(every: Everything) -> None:
    envelope = await every.registry.execute("every.get-sum", {"a": "one"})
    assert isinstance(envelope.meta, MCPResponseMeta)
    assert envelope.meta.is_error
    assert "get-sum" in str(envelope.data)


async def test_progress_reaches_the_caller(every: Everything) -> None:
    reported: list[Progress] = []
    context = Context(on_progress=reported.append)
    envelope = await every.registry.execute(LONG, {"duration": 0.2, "steps": 4}, context)
    assert envelope.data[0]["text"] == "Long running operation completed. Duration: 0.2 seconds, Steps: 4."
    assert reported == [Progress(step, 4) for step in (1, 2, 3, 4)]


async def test_a_call_that_is_cancelled_or_runs_out_of_time_ends_at_once_and_disturbs_no_other(
    every: Everything,
) -> None:
    runs = asyncio.Event()
    context = Context(on_progress=lambda _: runs.set())
    call = asyncio.create_task(every.registry.execute(LONG, {"duration": 60, "steps": 600}, context))
    async with asyncio.timeout(PATIENCE):
        await runs.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    began = time.monotonic()
    with pytest.raises(CallError) as late:
        await every.registry.execute(LONG, {"duration": 60, "steps": 1}, Context().within(0.3))
    assert late.value.code is ErrorCode.TIMEOUT
    assert time.monotonic() - began < PATIENCE
    assert (await every.call("echo", message="still here")).data[0]["text"] == "Echo: still here"


async def test_its_resources_can_be_listed_and_read(every: Everything) -> None:
    listed = (await every.call("resources/list")).data["resources"]
    assert "demo://resource/static/document/features.md" in {resource["uri"] for resource in listed}
    templates = (await every.call("resources/templates")).data["resourceTemplates"]
    assert {template["uriTemplate"] for template in templates} == {
        "demo://resource/dynamic/text/{resourceId}",
        "demo://resource/dynamic/blob/{resourceId}",
    }
    [text] = (await every.call("resources/read", uri="demo://resource/static/document/features.md")).data
    assert "# Everything Server" in text["resource"]["text"]
    [blob] = (await every.call("resources/read", uri="demo://resource/dynamic/blob/2")).data
    assert b64decode(blob["resource"]["blob"]).startswith(b"Resource 2: ")
    with pytest.raises(CallError, match="not found"):
        await every.call("resources/read", uri="demo://nowhere")


async def test_the_updates_of_a_resource_are_a_subscription(every: Everything) -> None:
    uri = "demo://resource/dynamic/text/1"
    updates = every.registry.subscribe("every.resources/watch", {"uri": uri})
    async with asyncio.timeout(PATIENCE), aclosing(updates):
        first = asyncio.ensure_future(anext(updates))
        await every.logged(f"Received Subscribe Resource request for URI: {uri}")
        await every.call("toggle-subscriber-updates")
        assert (await first).data == {"uri": uri}


async def test_its_prompts_can_be_filled_in(every: Everything) -> None:
    prompts = {prompt["name"] for prompt in (await every.call("prompts/list")).data["prompts"]}
    assert prompts == {"simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"}
    [message] = (await every.call("prompts/args-prompt", city="Paris")).data["messages"]
    assert message == {"role": "user", "content": {"type": "text", "text": "What's weather in Paris?"}}


async def test_the_user_is_asked_what_the_server_wants_to_know(every: Everything) -> None:
    answer = (await every.call("trigger-elicitation-request")).data
    assert answer[1]["text"] == "User inputs:\n- Name: Ada\n- Agreed to terms: true"
    assert "favorite integer" in every.asked[0]["requestedSchema"]["properties"]["integer"]["description"]
    [sampled] = (await every.call("trigger-sampling-request", prompt="two and two", maxTokens=5)).data
    assert '"text": "four"' in sampled["text"]
    assert every.asked[1]["maxTokens"] == 5
    [roots] = (await every.call("get-roots-list")).data
    assert "file:///srv/notes" in roots["text"]
