"""Calls to a served HTTP address: what is sent, what is read back, and other servers at that address."""

import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from opwire import CallError, Context, ErrorCode, Identity, OperationRegistry, OperationType
from opwire.asgi.listener import listening
from opwire.auth import StaticTokens
from opwire.client import Client, Retries
from opwire.errors import UsageError
from opwire.openapi.server import serve_http
from tests.client.samples import ME, Samples


@asynccontextmanager
async def answering(**answers: Response) -> AsyncGenerator[Client]:
    """A client of a server that is not ours: the names of operations are those of its answers."""

    async def answer(request: Any) -> Response:
        return answers[request.path_params["name"]]

    app = Starlette(routes=[Route("/far/{name}", answer, methods=["POST"])])
    async with listening(app, "127.0.0.1", 0) as address, Client(address, retries=None) as client:
        yield client


async def test_the_token_is_shown_and_requested_again_at_every_call() -> None:
    tokens = StaticTokens({"token-of-ada-1234": Identity(id="ada"), "token-of-bob-1234": Identity(id="bob")})
    app = serve_http(Samples().registry, authenticate=tokens)
    shown = ["token-of-ada-1234"]
    async with app.listening() as address:
        async with Client(address, token=lambda: shown[-1]) as client:
            assert await client.call("who.calls") == "ada"
            shown.append("token-of-bob-1234")
            assert await client.call("who.calls") == "bob"
            assert "who.calls" in [spec.id for spec in await client.operations()]
        async with Client(address, token="token-of-nobody-12") as client:
            for refused in (client.call("who.calls"), anext(client.subscribe("clock.ticks")), client.operations()):
                with pytest.raises(CallError) as caught:
                    await refused
                assert caught.value.code is ErrorCode.UNAUTHENTICATED
                assert "nobody" not in str(caught.value)


async def test_a_server_that_is_not_trusted_to_name_queries_gets_no_call_twice() -> None:
    calls: list[str] = []
    registry = OperationRegistry()

    @registry.query("a.b")
    async def fail() -> None:
        calls.append("a.b")
        raise CallError("UNAVAILABLE", "not now")

    for trusts, expected in ((True, 2), (False, 1)):
        calls.clear()
        retries = Retries(max_attempts=2, back_off=0)
        async with (
            serve_http(registry, anonymous=ME).listening() as address,
            Client(address, retries=retries, trust_annotations=trusts) as client,
        ):
            with pytest.raises(CallError, match="not now"):
                await client.call("a.b")
            types = {spec.id: spec.type for spec in await client.operations()}
        assert len(calls) == expected
        assert types == {"a.b": OperationType.QUERY if trusts else OperationType.MUTATION}


async def test_the_request_id_and_the_trace_go_with_the_call() -> None:
    registry = OperationRegistry()

    @registry.query("a.b")
    async def seen(context: Context) -> Any:
        return [context.request_id, dict(context.metadata)]

    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1"}
    async with serve_http(registry, anonymous=ME).listening() as address, Client(address) as client:
        assert await client.call("a.b", context=Context(request_id="r-1", metadata=trace)) == ["r-1", trace]
        other = await client.call(
            "a.b", context=Context(request_id="no\r\nheader: x", metadata={"tracestate": "a\r\nb"})
        )
    assert other[1] == {}


async def test_a_registry_that_is_mounted_below_a_path_can_be_called() -> None:
    app = Starlette(routes=[Mount("/api/v1", serve_http(Samples().registry, anonymous=ME))])
    async with listening(app, "127.0.0.1", 0) as address, Client(f"{address}/api/v1/") as client:
        assert await client.call("math.add", {"a": 1}) == 3
        assert [item async for item in client.subscribe("clock.ticks")] == [0, 1, 2]
        assert "math.add" in [spec.id for spec in await client.operations()]


async def test_what_a_proxy_answers_is_an_error_by_its_status() -> None:
    """Over HTTP, envelopes and problems are read back whole; foreign answers are errors by status."""
    statuses = {401: ErrorCode.UNAUTHENTICATED, 404: ErrorCode.OPERATION_NOT_FOUND, 429: ErrorCode.RATE_LIMITED}
    statuses |= {502: ErrorCode.UNAVAILABLE, 503: ErrorCode.UNAVAILABLE, 504: ErrorCode.TIMEOUT}
    statuses |= {418: ErrorCode.PROTOCOL_ERROR, 500: ErrorCode.EXECUTION_ERROR}
    answers = {f"s{status}": PlainTextResponse("{}", status) for status in statuses}
    async with answering(**answers) as client:
        for status, code in statuses.items():
            with pytest.raises(CallError, match=f"HTTP {status} with content type text/plain") as caught:
                await client.call(f"far.s{status}")
            assert caught.value.code is code


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("hello"),
        Response("[1]", media_type="application/vnd.opwire.envelope+json"),
        Response("{", media_type="application/vnd.opwire.envelope+json"),
        Response("data: [1]\n\n", media_type="text/event-stream"),
        Response("event: error\ndata: {}\n\n", media_type="text/event-stream"),
    ],
)
async def test_a_response_to_another_request_is_not_a_result(answer: Response) -> None:
    async with answering(x=answer) as client:
        for refused in (client.call("far.x"), anext(client.subscribe("far.x"))):
            with pytest.raises(CallError) as caught:
                await refused
            assert caught.value.code in (ErrorCode.PROTOCOL_ERROR, ErrorCode.VALIDATION_ERROR)


async def test_pages_are_found_without_a_description_of_the_operation() -> None:
    page = '{"data":[1,2],"meta":{"source":"local","operationId":"far.x","timestamp":1}}'
    async with answering(x=Response(page, media_type="application/vnd.opwire.envelope+json")) as client:
        assert [each async for each in client.paginate("far.x")] == [1, 2]


async def test_an_item_of_the_type_error_is_an_item_unless_it_is_a_problem() -> None:
    item = '{"data":1,"meta":{"source":"http","statusCode":200,"headers":{},"contentType":"x","eventType":"error"}}'
    async with answering(x=Response(f"event: error\ndata: {item}\n\n", media_type="text/event-stream")) as client:
        assert [each async for each in client.subscribe("far.x")] == [1]


async def test_closing_ends_what_is_under_way() -> None:
    samples = Samples()
    async with serve_http(samples.registry, anonymous=ME).listening() as address, Client(address) as client:
        items = client.subscribe("clock.quiet")
        assert await anext(items) == 1
        await client.close()
        with pytest.raises(CallError) as caught:
            await anext(items)
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_server_that_goes_away_tells_its_streams() -> None:
    app = serve_http(Samples().registry, anonymous=ME)
    async with app.listening() as address, Client(address) as client:
        items = client.subscribe("clock.quiet")
        assert await anext(items) == 1
        app.drain()
        with pytest.raises(CallError, match="shutting down") as caught:
            await anext(items)
        assert (caught.value.code, caught.value.retry_after) == (ErrorCode.UNAVAILABLE, 1)


async def test_input_without_a_json_form_is_refused_before_it_is_sent() -> None:
    async with Client("http://127.0.0.1:1", retries=None) as client:
        with pytest.raises(CallError, match="cannot be encoded as JSON") as caught:
            await client.call("a.b", {"a": object()})
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        with pytest.raises(CallError) as caught:
            await client.call("a.b", {"a": 1})
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_token_with_a_line_break_is_reported_and_not_shown() -> None:
    async with Client("http://127.0.0.1:1", token="of-a-file\n") as client:
        with pytest.raises(CallError, match="line break") as caught:
            await client.call("a.b")
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "of-a-file" not in str(caught.value)


async def test_answers_larger_than_allowed_are_refused() -> None:
    registry = OperationRegistry()

    @registry.query("a.b")
    async def large() -> str:
        return "x" * 10_000

    @registry.subscription("a.items")
    async def items() -> AsyncIterator[str]:
        yield "x" * 10_000

    app = serve_http(registry, anonymous=ME)
    async with app.listening() as address, Client(address, max_response=1_000, max_item=1_000) as client:
        for refused in (client.call("a.b"), anext(client.subscribe("a.items"))):
            with pytest.raises(CallError) as caught:
                await refused
            assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("url", ["https://", "http://host.example/?key=hidden", "http://host.example/#hidden"])
def test_an_impossible_address_is_an_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Client(url)
    assert "hidden" not in str(caught.value)


def test_no_optional_package_is_loaded_before_its_target_and_a_missing_one_is_named() -> None:
    script = """
import sys
from opwire.client import Client, Retries
assert sys.modules.keys().isdisjoint({"aiohttp", "websockets", "hiredis", "starlette", "mcp"})
sys.modules["aiohttp"] = None
Client("https://api.example")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    last = result.stderr.strip().rpartition("\n")[2]
    assert last.endswith("MissingExtraError: the package aiohttp is not installed; run: pip install 'opwire[openapi]'")


@pytest.mark.parametrize(
    ("said", "wait"), [("1500", 1.5), ("-5", 0.0), ("1" + "0" * 300, 2_592_000.0), ('"x"', None), ("null", None)]
)
async def test_the_wait_that_a_server_asks_for_is_bounded(said: str, wait: float | None) -> None:
    problem = f'{{"code": "RATE_LIMITED", "detail": "slowly", "retryAfterMs": {said}}}'
    async with answering(x=Response(problem, 429, media_type="application/problem+json")) as client:
        with pytest.raises(CallError, match="slowly") as caught:
            await client.call("far.x")
    assert caught.value.retry_after == wait
