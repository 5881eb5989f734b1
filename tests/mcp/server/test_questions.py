"""Questions of handlers to MCP clients, in both eras."""

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

from opwire import AccessControl, Context, Identity, OperationRegistry, UsageError
from opwire.mcp.messages import RPCError
from opwire.mcp.server import MCPSurface, serve_mcp
from opwire.mcp.server.clients import MAX_STATE, STATE_LIFETIME, RequestStates, binding_of, can_answer
from opwire.model.questions import Question
from tests.mcp.server.raw import HANDSHAKE, call, raw
from tests.mcp.server.shop import ERAS, NEWEST, OLDER, connected, http_client, served, until

PUBLIC = AccessControl(public=True)
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


def asking() -> OperationRegistry:
    registry = OperationRegistry(namespace="ask")

    @registry.mutation(access=PUBLIC)
    async def delete(context: Context, count: int = 3) -> str:
        answer = await context.elicit(bool, f"Delete {count} orders?")
        return "deleted" if answer else f"kept: {answer.action}"

    @registry.mutation(access=PUBLIC)
    async def steps(context: Context) -> str:
        first = (await context.elicit(str, "First?", key="first")).unwrap()
        second = (await context.elicit(str, f"After {first}?", key="second")).unwrap()
        return f"{first}, {second}"

    @registry.query(access=PUBLIC)
    async def everything(context: Context) -> dict[str, Any]:
        named, summary, roots = await asyncio.gather(
            context.elicit(str, "Name?"), context.sample("Summarise"), context.roots()
        )
        return {"name": named.data, "summary": summary.text, "roots": [root.uri for root in roots]}

    return registry


def answers(action: str = "accept", value: Any = True) -> dict[str, Any]:
    """The callbacks of the SDK's client."""

    async def elicit(_: Any, params: Any) -> ElicitResult:
        return ElicitResult(action=action, content={"value": value} if action == "accept" else None)  # pyright: ignore[reportArgumentType]

    async def sample(_: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="short"), model="m")

    async def roots(_: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri="file:///a")])  # pyright: ignore[reportArgumentType]

    return {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}


@asynccontextmanager
async def client_of(surface: MCPSurface, era: str, transport: str, **options: Any) -> AsyncGenerator[Client]:
    if transport == "stream":
        async with connected(surface, era, **options) as client:
            yield client
    else:
        async with served(surface) as url, http_client(url, era, **options) as client:
            yield client


@pytest.mark.parametrize("transport", ["stream", "http"])
@pytest.mark.parametrize("era", ERAS)
async def test_a_handler_asks_a_client_of_either_era_over_either_transport(era: str, transport: str) -> None:
    """A handler asks MCP clients of both eras, over streams and over HTTP."""
    for action, outcome in (("accept", "deleted"), ("decline", "kept: decline"), ("cancel", "kept: cancel")):
        async with client_of(serve_mcp(asking()), era, transport, **answers(action)) as client:
            result = await client.call_tool("ask_delete", {"count": 3})
        assert (result.is_error, result.content[0].text) == (False, outcome)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("era", ERAS)
async def test_elicitation_sampling_and_roots_are_asked_at_once(era: str) -> None:
    async with connected(serve_mcp(asking()), era, **answers(value="Ada")) as client:
        result = await client.call_tool("ask_everything", {})
    assert result.structured_content == {"name": "Ada", "summary": "short", "roots": ["file:///a"]}


@pytest.mark.parametrize("era", ERAS)
async def test_a_second_question_may_depend_on_the_first_answer(era: str) -> None:
    async with connected(serve_mcp(asking()), era, **answers(value="x")) as client:
        result = await client.call_tool("ask_steps", {})
    assert result.content[0].text == "x, x"  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_client_of_the_handshake_era_without_the_capability_gets_an_error_that_says_what_was_asked() -> None:
    async with connected(serve_mcp(asking()), OLDER) as client:
        result = await client.call_tool("ask_delete", {})
    assert result.is_error
    assert 'asks "Delete 3 orders?"' in result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]
    assert "on_question" in result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("transport", ["stream", "http"])
async def test_a_stateless_client_without_the_capability_gets_the_error_of_the_protocol(transport: str) -> None:
    async with client_of(serve_mcp(asking()), NEWEST, transport) as client:
        with pytest.raises(MCPError) as failure:
            await client.call_tool("ask_delete", {})
    assert failure.value.error.code == -32021
    assert failure.value.error.data == {"requiredCapabilities": {"elicitation": {}}}


@pytest.mark.parametrize(
    ("declared", "question", "can"),
    [
        ({}, Question("roots"), False),
        ({"roots": {}}, Question("roots"), True),
        ({"sampling": {}}, Question("elicit"), False),
        ({"elicitation": {}}, Question("elicit"), True),
        ({"elicitation": {"form": {}}}, Question("elicit", {"mode": "form"}), True),
        ({"elicitation": {"url": {}}}, Question("elicit"), False),
        ({"elicitation": {"form": {}}}, Question("elicit", {"mode": "url"}), False),
        ({"elicitation": {"url": {}}}, Question("elicit", {"mode": "url"}), True),
        ({"elicitation": True}, Question("elicit"), False),
    ],
)
def test_only_declared_capabilities_are_used(declared: Any, question: Question, can: bool) -> None:
    assert can_answer(declared, question) is can


# --- the handshake era ------------------------------------------------------------------------------------------------


def handshake(**capabilities: Any) -> Any:
    first, second = HANDSHAKE
    return {**first, "params": {**first["params"], "capabilities": capabilities}}, second


async def test_an_error_of_the_client_ends_the_call_and_late_and_repeated_answers_are_ignored() -> None:
    async with raw(serve_mcp(asking()), handshake=False) as client:
        await client.send(*handshake(elicitation={}))
        await client.receive()
        await client.send(call("ask_delete", id=5))
        question = await client.receive()
        assert question["method"] == "elicitation/create"
        refusal = {"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "User rejected it"}}
        await client.send(refusal, refusal)
        answer = await client.receive()
        assert answer["id"] == 5
        assert answer["result"]["isError"]
        assert "User rejected it" in answer["result"]["content"][0]["text"]


async def test_a_cancelled_call_cancels_its_question() -> None:
    async with raw(serve_mcp(asking()), handshake=False) as client:
        await client.send(*handshake(elicitation={}))
        await client.receive()
        await client.send(call("ask_delete", id=5))
        question = await client.receive()
        await client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
        told = await client.receive()
        assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", question["id"])


async def test_a_question_stops_the_clock_of_a_call_and_progress_restarts_it() -> None:
    registry = asking()
    reported = asyncio.Event()

    @registry.mutation
    async def slow(context: Context) -> str:
        for step in range(1, 6):
            await asyncio.sleep(0.25)  # in all longer than the timeout, each four times shorter: a busy machine
            context.report(step)
        reported.set()
        await asyncio.Event().wait()
        return "never"

    async with raw(serve_mcp(registry, timeout=1.0), handshake=False) as client:
        await client.send(*handshake(elicitation={}))
        await client.receive()
        await client.send(call("ask_delete", id=5), call("ask_slow", id=6))
        question = await client.receive()
        answer = await client.receive()
        assert answer["id"] == 6
        assert "TIMEOUT" in answer["result"]["content"][0]["text"]
        assert reported.is_set()
        accept = {"action": "accept", "content": {"value": True}}
        await client.send({"jsonrpc": "2.0", "id": question["id"], "result": accept})
        assert (await client.receive())["result"]["content"][0]["text"] == "deleted"


# --- the stateless era ------------------------------------------------------------------------------------------------


def ask(count: int = 3, id: int = 1, **params: Any) -> Any:
    message = call("ask_delete", {"count": count}, id=id, era=NEWEST)
    message["params"]["_meta"][CAPABILITIES] = {"elicitation": {}}
    message["params"].update(params)
    return message


ACCEPT = {"action": "accept", "content": {"value": True}}


async def test_an_answer_is_valid_for_the_same_call_only() -> None:
    async with raw(serve_mcp(asking()), handshake=False) as client:
        first = (await client.ask(ask()))["result"]
        assert first["resultType"] == "input_required"
        (key,) = first["inputRequests"]
        assert first["inputRequests"][key]["params"]["message"] == "Delete 3 orders?"
        state, responses = first["requestState"], {key: ACCEPT}
        other = await client.ask(ask(300, 2, requestState=state, inputResponses=responses))
        assert other["error"]["code"] == -32602
        again = (await client.ask(ask(300, 3, inputResponses=responses)))["result"]
        assert again["resultType"] == "input_required"
        same = (await client.ask(ask(3, 4, requestState=state, inputResponses={**responses, "unknown": ACCEPT})))[
            "result"
        ]
        assert same["content"][0]["text"] == "deleted"
        missing = (await client.ask(ask(3, 5, requestState=state, inputResponses={"wrong": ACCEPT})))["result"]
        assert list(missing["inputRequests"]) == [key]
        for n, wrong in enumerate(({key: None}, {key: "yes"}, [key], None)):
            asked = (await client.ask(ask(3, 10 + n, requestState=state, inputResponses=wrong)))["result"]
            assert asked["resultType"] == "input_required"


async def test_a_question_that_changed_since_it_was_answered_is_asked_again() -> None:
    registry, price = OperationRegistry(), [1]

    @registry.mutation("a.buy")
    async def buy(context: Context) -> str:
        return "bought" if await context.elicit(bool, f"Pay {price[0]}?", key="pay") else "not bought"

    def request(id: int, **params: Any) -> Any:
        return {**ask(id=id), "params": {**ask()["params"], "name": "a_buy", "arguments": {}, **params}}

    async with raw(serve_mcp(registry), handshake=False) as client:
        first = (await client.ask(request(1)))["result"]
        price[0] = 1000
        second = await client.ask(request(2, requestState=first["requestState"], inputResponses={"pay": ACCEPT}))
        assert second["result"]["inputRequests"]["pay"]["params"]["message"] == "Pay 1000?"
        state = second["result"]["requestState"]
        third = await client.ask(request(3, requestState=state, inputResponses={"pay": ACCEPT}))
        assert third["result"]["content"][0]["text"] == "bought"


async def test_an_address_is_the_same_question_in_each_round() -> None:
    registry = OperationRegistry()

    @registry.mutation("a.pay")
    async def pay(context: Context) -> str:
        return (await context.elicit_url("https://pay.example/1", "Pay?")).action

    def request(id: int, **params: Any) -> Any:
        message = {**ask(id=id), "params": {**ask()["params"], "name": "a_pay", "arguments": {}, **params}}
        message["params"]["_meta"][CAPABILITIES] = {"elicitation": {"url": {}}}
        return message

    async with raw(serve_mcp(registry), handshake=False) as client:
        first = (await client.ask(request(1)))["result"]
        ((key, question),) = first["inputRequests"].items()
        assert question["params"] == {"mode": "url", "message": "Pay?", "url": "https://pay.example/1"}
        answers = {key: {"action": "accept"}}
        second = await client.ask(request(2, requestState=first["requestState"], inputResponses=answers))
    assert second["result"]["content"][0]["text"] == "accept"


def test_states_are_signed_expire_and_are_bound() -> None:
    now = [1000.0]
    states = RequestStates(clock=lambda: now[0])
    params = {"name": "a", "arguments": {"n": 1}, "_meta": {"progressToken": 1}}
    binding = binding_of(Identity(id="ada"), "tools/call", params)
    assert binding == binding_of(Identity(id="ada"), "tools/call", {**params, "_meta": {}, "requestState": "x"})
    state = states.encode(binding, {"k": "d"}, {"j": ("d", {"action": "accept"})})
    assert states.decode(state, binding).answers == {"j": ("d", {"action": "accept"})}
    raw_state = bytearray(urlsafe_b64decode(state))
    raw_state[-3] ^= 1
    forged = urlsafe_b64encode(bytes(raw_state)).decode()
    others = [
        binding_of(None, "tools/call", params),
        binding_of(Identity(id="eve"), "tools/call", params),
        binding_of(Identity(id="ada"), "prompts/get", params),
        binding_of(Identity(id="ada"), "tools/call", {**params, "arguments": {"n": 2}}),
    ]
    for text, bound in [
        *(
            (text, binding)
            for text in (forged, state + "-TAMPERED", f" {state}", state[:-4], "", "ä", "x" * 4 * MAX_STATE)
        ),
        *((state, other) for other in others),
    ]:
        with pytest.raises(RPCError, match="Invalid or expired requestState"):
            states.decode(text, bound)
    with pytest.raises(RPCError):
        RequestStates().decode(state, binding)
    now[0] += STATE_LIFETIME + 1
    with pytest.raises(RPCError):
        states.decode(state, binding)


def test_servers_with_the_same_key_accept_each_others_states_and_states_are_bounded() -> None:
    state = RequestStates(b"a secret of 16 bytes").encode("b", {}, {})
    assert RequestStates(b"a secret of 16 bytes").decode(state, "b").binding == "b"
    with pytest.raises(RPCError, match="bytes together"):
        RequestStates().encode("b", {}, {"k": ("d", {"content": "x" * MAX_STATE})})
    with pytest.raises(UsageError, match="at least 16"):
        serve_mcp(OperationRegistry(), state_key="short")


async def test_one_call_asks_a_bounded_number_of_questions() -> None:
    registry = OperationRegistry()

    @registry.query("a.many")
    async def many(context: Context) -> int:
        outcomes = await asyncio.gather(*(context.elicit(bool, "Same?") for _ in range(150)), return_exceptions=True)
        return sum(isinstance(each, Exception) for each in outcomes)

    async with raw(serve_mcp(registry), handshake=False) as client:
        message = ask()
        message["params"] |= {"name": "a_many", "arguments": {}}
        result = (await client.ask(message))["result"]
    assert len(result["inputRequests"]) == 100


async def test_a_stateless_call_that_is_cancelled_while_it_asks_gets_no_response_and_the_handler_is_closed() -> None:
    registry, events = OperationRegistry(), list[str]()

    @registry.mutation("a.b")
    async def b(context: Context) -> None:
        try:
            await context.elicit(bool, "?")
        finally:
            events.append("closed")

    async with raw(serve_mcp(registry), handshake=False) as client:
        message = ask()
        message["params"] |= {"name": "a_b", "arguments": {}}
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await client.send(message, cancel)
        await until(lambda: events == ["closed"])
        assert (await client.ask(ask(id=2)))["id"] == 2


async def test_an_answer_that_does_not_match_the_form_is_an_error_of_the_tool() -> None:
    async with raw(serve_mcp(asking()), handshake=False) as client:
        first = (await client.ask(ask()))["result"]
        (key,) = first["inputRequests"]
        wrong = {key: {"action": "accept", "content": {"value": "yes"}}}
        result = (await client.ask(ask(id=2, requestState=first["requestState"], inputResponses=wrong)))["result"]
    assert result["isError"]
    assert "the answer is invalid" in json.dumps(result)
