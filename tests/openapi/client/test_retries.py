"""Retries of idempotent calls, and idempotency keys, against a real server."""

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest

from opwire import Context, Identity, OperationRegistry
from opwire.durable import DurableCalls, DurableWorker, MemoryJournal
from opwire.errors import CallError, UsageError
from opwire.openapi.client import call as call_module
from opwire.openapi.client import from_openapi
from tests.openapi.client.documents import document, parameter
from tests.openapi.client.echo import EchoServer, Exchange, answer, json_answer

OK: dict[str, Any] = {"responses": {"200": {"description": ""}}}
KEY = parameter("Idempotency-Key", "header", required=True)
ROOT = document(
    {
        "/x": {method: {"operationId": method, **OK} for method in ("get", "put", "delete", "post", "patch")},
        "/pay": {"post": {"operationId": "pay", "parameters": [KEY], **OK}},
    }
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "_FIRST_BACKOFF_SECONDS", 0.001)


async def called(
    server: EchoServer, name: str, input: Any = None, context: Context | None = None, **options: Any
) -> Any:
    settings: dict[str, Any] = {"retries": 2, **options}
    async with from_openapi(ROOT, namespace="api", base_url=server.url, **settings) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        return (await registry.execute(f"api.{name}", input or {}, context)).data


async def reset(exchange: Exchange) -> None:
    exchange.reset()


async def cut(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n[1,")
    exchange.close()


@pytest.mark.parametrize("method", ["get", "put", "delete"])
@pytest.mark.parametrize("failure", [answer(429), answer(502), answer(503), answer(504), reset])
async def test_an_idempotent_call_is_repeated(server: EchoServer, method: str, failure: Any) -> None:
    """Idempotent calls are repeated if that is asked for, after the API's delay, in time."""
    server.on("/x", failure, failure, json_answer("done"))
    assert await called(server, method) == "done"


async def test_a_response_that_breaks_off_is_repeated(server: EchoServer) -> None:
    server.on("/x", cut, json_answer("done"))
    assert await called(server, "get") == "done"


@pytest.mark.parametrize("method", ["post", "patch"])
@pytest.mark.parametrize("failure", [answer(503), reset])
async def test_other_calls_are_not_repeated(server: EchoServer, method: str, failure: Any) -> None:
    server.on("/x", failure, json_answer("done"))
    with pytest.raises(CallError):
        await called(server, method)
    assert len(server.arrived) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 409, 500])
async def test_other_errors_are_not_repeated(server: EchoServer, status: int) -> None:
    server.on("/x", answer(status), json_answer("done"))
    with pytest.raises(CallError, match=f"HTTP {status}"):
        await called(server, "get")
    assert len(server.arrived) == 1


async def test_the_number_of_attempts_is_limited_and_by_default_one(server: EchoServer) -> None:
    server.on("/x", answer(503))
    for retries, attempts in ((2, 3), (0, 1)):
        server.arrived.clear()
        with pytest.raises(CallError, match="HTTP 503"):
            await called(server, "get", retries=retries)
        assert len(server.arrived) == attempts
    server.arrived.clear()
    async with from_openapi(ROOT, namespace="api", base_url=server.url) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        with pytest.raises(CallError, match="HTTP 503"):
            await registry.execute("api.get")
    assert len(server.arrived) == 1
    with pytest.raises(UsageError, match="retries"):
        from_openapi(ROOT, retries=-1)


@pytest.mark.parametrize(
    ("delay", "timeout", "attempts"), [("0", 20.0, 2), ("30", 5.0, 1), ("61", 100.0, 1), ("9" * 50, None, 1)]
)
async def test_retry_after_is_obeyed_within_the_deadline(
    server: EchoServer, delay: str, timeout: float | None, attempts: int
) -> None:
    server.on("/x", answer(503, headers={"Retry-After": delay}), json_answer("done"))
    deadline = None if timeout is None else time.monotonic() + timeout
    call = called(server, "get", context=Context(deadline=deadline), timeout=None)
    if attempts == 2:
        assert await call == "done"
    else:
        with pytest.raises(CallError, match="HTTP 503"):  # at once
            await call
    assert len(server.arrived) == attempts


async def test_a_mutation_with_a_declared_key_is_repeated_with_the_same_one(server: EchoServer) -> None:
    server.on("/pay", reset, answer(503), json_answer("paid"))
    assert await called(server, "pay") == "paid"
    keys = [arrived.header("idempotency-key") for arrived in server.arrived]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert UUID(keys[0])
    await called(server, "pay")
    assert server.arrived[-1].header("idempotency-key") != keys[0]


async def test_the_key_of_the_input_comes_first(server: EchoServer) -> None:
    await called(server, "pay", {"Idempotency-Key": "mine"})
    assert server.arrived[0].header("idempotency-key") == "mine"
    await called(server, "post")
    assert server.arrived[1].header("idempotency-key") is None


async def test_a_durable_call_has_its_own_key_and_nested_calls_do_not_share_it(server: EchoServer) -> None:
    registry = OperationRegistry()

    @registry.mutation("shop.both")
    async def both(context: Context) -> None:
        await context.env.api.pay()
        await context.env.api.pay()

    async with MemoryJournal() as journal, from_openapi(ROOT, namespace="api", base_url=server.url) as api:
        registry.register_all(api)
        async with DurableWorker(registry, journal, anonymous=Identity(id="ada")):
            calls = DurableCalls(journal)
            async with asyncio.timeout(20):
                await calls.call("api.pay", {}, key="order-17")
                await calls.call("shop.both", {}, key="order-18")
    keys = [arrived.header("idempotency-key") for arrived in server.arrived]
    assert keys[0] == "order-17"
    assert len(set(keys)) == 3
    assert "order-18" not in keys
