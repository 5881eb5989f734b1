"""Webhooks over HTTP: real requests with real signatures, and those of attackers."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from opwire import CallError, ErrorCode, OperationRegistry, ResponseEnvelope, UsageError
from opwire.auth import StaticTokens
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from opwire.openapi.webhooks import (
    GitHubSignature,
    StandardSignature,
    StripeSignature,
    WebhookReceiver,
    WebhookRequest,
)
from tests.openapi.server.served import ME, Client, Reply, client_of

PATIENCE = 5.0
SECRET = "whsec_" + base64.b64encode(b"a secret of 24 characters").decode()

PAID = {
    "type": "object",
    "required": ["type", "amount"],
    "properties": {"type": {"const": "order.paid"}, "amount": {"type": "integer"}, "note": {"type": "string"}},
}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/orders": {
            "post": {
                "operationId": "order",
                "callbacks": {
                    "delivered": {
                        "{$request.body#/url}": {
                            "post": {
                                "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
                                "responses": {"200": {"description": ""}},
                            }
                        }
                    }
                },
                "responses": {"200": {"description": ""}},
            }
        }
    },
    "webhooks": {
        "order_paid": {"post": {"requestBody": {"content": {"application/json": {"schema": PAID}}}}},
        "issues-opened": {"post": {"operationId": "issues/opened"}},
    },
}
EVENT = json.dumps({"type": "order.paid", "amount": 5}).encode()


def stripe(body: bytes, secret: str = SECRET, at: float = 0.0) -> dict[str, str]:
    """The header of Stripe for a request sent `at` seconds from now."""
    sent = int(time.time() + at)
    return {"stripe-signature": f"t={sent},v1={_hmac(secret.encode(), f'{sent}.'.encode() + body).hex()}"}


def github(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"x-hub-signature-256": f"sha256={_hmac(secret.encode(), body).hex()}"}


def standard(body: bytes, secret: str = SECRET, at: float = 0.0, id: str = "msg_1") -> dict[str, str]:
    sent, key = int(time.time() + at), base64.b64decode(secret.removeprefix("whsec_"))
    signed = base64.b64encode(_hmac(key, f"{id}.{sent}.".encode() + body)).decode()
    return {"webhook-id": id, "webhook-timestamp": str(sent), "webhook-signature": f"v1a,xyz v1,{signed}"}


def _hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")


class Hooked(NamedTuple):
    """A registry with webhooks, and a client of its server."""

    registry: OperationRegistry
    client: Client

    async def send(self, body: bytes, headers: dict[str, str], path: str = "/webhooks/shop") -> Reply:
        given = {"content-type": "application/json", **headers}
        return await self.client("POST", path, data=body, headers=given)

    @asynccontextmanager
    async def subscribed(self, name: str = "webhooks") -> AsyncGenerator["asyncio.Queue[ResponseEnvelope[Any]]"]:
        """A subscriber that is listening."""
        arrived: asyncio.Queue[ResponseEnvelope[Any]] = asyncio.Queue()

        async def listen() -> None:
            async with aclosing(self.registry.subscribe(f"shop.{name}")) as items:
                async for item in items:
                    arrived.put_nowait(item)

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)  # the generator runs until it waits
        try:
            yield arrived
        finally:
            listening.cancel()
            await asyncio.wait([listening])


@asynccontextmanager
async def hooked(receiver: WebhookReceiver, **options: Any) -> AsyncGenerator[Hooked]:
    registry = OperationRegistry()
    app = serve_http(registry, webhooks={"shop": receiver}, **options)
    async with (
        from_openapi(DOCUMENT, base_url="http://127.0.0.1:9", webhooks=receiver) as shop,
        client_of(app) as client,
    ):
        registry.register_all(shop)
        yield Hooked(registry, client)


async def item_of(queue: "asyncio.Queue[ResponseEnvelope[Any]]") -> ResponseEnvelope[Any]:
    return await asyncio.wait_for(queue.get(), PATIENCE)


SCHEMES: dict[str, tuple[Any, Any]] = {
    "stripe": (lambda: StripeSignature(SECRET), stripe),
    "github": (lambda: GitHubSignature(SECRET), github),
    "standard": (lambda: StandardSignature(SECRET), standard),
}


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_signed_webhook_reaches_its_subscribers(scheme: str) -> None:
    """A webhook with a signature of Stripe, GitHub or Standard Webhooks reaches its subscribers."""
    make, sign = SCHEMES[scheme]
    async with (
        hooked(WebhookReceiver(make())) as shop,
        shop.subscribed() as every,
        shop.subscribed("webhooks.order_paid") as paid,
    ):
        reply = await shop.send(EVENT, {**sign(EVENT), "x-note": "kept", "cookie": "session=secret"})
        assert (reply.status, reply.json) == (200, {"status": "accepted"})
        for queue in (every, paid):
            envelope = await item_of(queue)
            assert envelope.data == {"type": "order.paid", "amount": 5}
            assert envelope.meta.source == "http"
            assert (envelope.meta.event_type, envelope.meta.headers["x-note"]) == ("order_paid", "kept")
            assert not [name for name in envelope.meta.headers if "signature" in name or name == "cookie"]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_forged_webhook_is_rejected_and_reaches_no_subscriber(scheme: str) -> None:
    """A missing or wrong signature is 403, before anything of the body is parsed."""
    make, sign = SCHEMES[scheme]
    other = "whsec_" + base64.b64encode(b"another secret").decode()
    good = sign(EVENT)
    forged = {
        "no header": (EVENT, {}),
        "another secret": (EVENT, sign(EVENT, other)),
        "another body": (EVENT.replace(b"5", b"6"), good),
        "truncated body": (EVENT[:-1], good),
        "empty body": (b"", good),
        "not hexadecimal": (EVENT, {name: each[:-4] + "zzzz" for name, each in good.items()}),
        "empty signature": (EVENT, {name: each.partition("=")[0] + "=" for name, each in good.items()}),
        "not ASCII": (EVENT, {name: each[:-1] + "\xe9" for name, each in good.items()}),
        "half a signature": (EVENT, {name: each[: len(each) // 2] for name, each in good.items()}),
        "many signatures": (EVENT, {name: each + ",v1=00 v1,AA" * 300 for name, each in sign(EVENT, other).items()}),
    }
    async with hooked(WebhookReceiver(make())) as shop, shop.subscribed() as every:
        for what, (body, headers) in forged.items():
            reply = await shop.send(body, headers)
            assert (reply.status, reply.problem["code"]) == (403, "ACCESS_DENIED"), what
            assert SECRET not in str(reply.problem)
        assert every.empty()
        assert (await shop.send(EVENT, good)).status == 200


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_replayed_webhook_is_delivered_once(scheme: str) -> None:
    make, sign = SCHEMES[scheme]
    headers = sign(EVENT)
    async with hooked(WebhookReceiver(make())) as shop, shop.subscribed() as every:
        assert (await shop.send(EVENT, headers)).json == {"status": "accepted"}
        assert (await shop.send(EVENT, headers)).json == {"status": "duplicate"}
        assert (await shop.send(EVENT, {**headers, "x-github-delivery": "another"})).json == {"status": "duplicate"}
        await item_of(every)
        assert every.empty()


@pytest.mark.parametrize("scheme", ["stripe", "standard"])
async def test_an_old_timestamp_is_rejected(scheme: str) -> None:
    make, sign = SCHEMES[scheme]
    async with hooked(WebhookReceiver(make())) as shop, shop.subscribed():
        for at, status in ((-240, 200), (240, 200), (-310, 403), (310, 403), (-1e8, 403)):
            assert (
                await shop.send(EVENT, sign(EVENT, at=at, **({"id": f"m{at}"} if scheme == "standard" else {})))
            ).status == status, at
        for wrong in ("", "-1", "1e9", "9" * 400, "\u0663".encode().decode("latin-1")):
            headers = {name: each.replace(str(int(time.time()))[:9], wrong) for name, each in sign(EVENT).items()}
            assert (await shop.send(EVENT, headers)).status == 403, wrong


async def test_a_secret_can_be_replaced_while_both_are_accepted() -> None:
    other = "another secret"
    async with hooked(WebhookReceiver(StripeSignature([SECRET, other]))) as shop, shop.subscribed():
        assert (await shop.send(EVENT, stripe(EVENT, other))).status == 200
        both = f"{stripe(EVENT, 'unknown')['stripe-signature']},{stripe(EVENT)['stripe-signature'].partition(',')[2]}"
        assert (await shop.send(EVENT, {"stripe-signature": both})).status == 200


async def test_unsigned_webhooks_are_accepted_only_if_that_is_said() -> None:
    """Nothing is accepted without verification unless that is said."""
    with pytest.raises(UsageError, match="unsigned=True"):
        WebhookReceiver()
    with pytest.raises(UsageError, match="exclude"):
        WebhookReceiver(lambda request: True, unsigned=True)
    async with hooked(WebhookReceiver(unsigned=True)) as shop, shop.subscribed():
        assert (await shop.send(EVENT, {})).status == 200


async def test_any_function_can_verify_and_only_true_or_an_id_accepts() -> None:
    results: list[Any] = []

    async def verify(request: WebhookRequest) -> Any:
        assert request.body == EVENT
        if isinstance(results[-1], Exception):
            raise results[-1]
        return results[-1]

    async with hooked(WebhookReceiver(verify)) as shop, shop.subscribed():
        for result, status in ((True, 200), ("id", 200), (False, 403), (None, 403), ("", 403), (1, 403)):
            results.append(result)
            assert (await shop.send(EVENT, {})).status == status, result
        results.append("id")
        assert (await shop.send(EVENT, {})).json == {"status": "duplicate"}
        results.append(ValueError("the secret is 42"))
        reply = await shop.send(EVENT, {})
        assert (reply.status, "42" in reply.problem["detail"]) == (403, False)
        results.append(CallError("RATE_LIMITED", "later"))
        assert (await shop.send(EVENT, {})).status == 429


async def test_a_body_is_checked_by_the_document() -> None:
    wrong = json.dumps({"type": "order.paid", "amount": "five"}).encode()
    async with hooked(WebhookReceiver(GitHubSignature(SECRET))) as shop, shop.subscribed() as every:
        reply = await shop.send(wrong, github(wrong))
        assert (reply.status, reply.problem["details"]["problems"][0]["path"]) == (422, "/amount")
        for broken in (b"{", b"\xff", b'{"a":1,"a":2}', b"[" * 300):
            assert (await shop.send(broken, github(broken))).status == 400, broken
        assert every.empty()
    async with hooked(WebhookReceiver(GitHubSignature(SECRET), strict=False)) as shop, shop.subscribed() as every:
        assert (await shop.send(wrong, github(wrong))).status == 200
        assert (await item_of(every)).data["amount"] == "five"


async def test_the_size_and_the_type_of_a_body_are_limited() -> None:
    """Size, type, method and path of a webhook are checked."""
    large = json.dumps({"type": "other", "text": "x" * 2_000}).encode()
    receiver = WebhookReceiver(GitHubSignature(SECRET), max_body=1_000)
    async with hooked(receiver, max_body=10_000) as shop, shop.subscribed():
        assert (await shop.send(large, github(large))).status == 413
        assert (await shop.send(large * 10, {})).status == 413
        form = b"payload=%7B%7D"
        headers = {**github(form), "content-type": "application/x-www-form-urlencoded"}
        reply = await shop.send(form, headers)
        assert (reply.status, "application/json" in reply.problem["detail"]) == (415, True)
        assert (await shop.client("GET", "/webhooks/shop")).status == 405
        assert (await shop.client("POST", "/webhooks/other")).status == 404
        assert (await shop.send(EVENT, github(EVENT), "/webhooks/%73hop")).status == 404


@pytest.mark.parametrize(
    ("payload", "headers", "name"),
    [
        ({"type": "order.paid", "amount": 1}, {}, "order_paid"),
        ({"event": "Order-Paid", "type": "order.paid", "amount": 1}, {}, "order_paid"),
        ({"action": "opened"}, {"x-github-event": "issues"}, "issues-opened"),
        ({"action": "closed"}, {"x-github-event": "issues"}, None),
        ({"type": "unknown"}, {}, None),
        ([1], {}, None),
    ],
    ids=["type", "event", "header and action", "another action", "unknown", "array"],
)
async def test_a_webhook_is_found_by_the_name_of_its_event(payload: Any, headers: Any, name: str | None) -> None:
    body = json.dumps(payload).encode()
    async with hooked(WebhookReceiver(GitHubSignature(SECRET))) as shop, shop.subscribed() as every:
        assert (await shop.send(body, {**github(body), **headers})).json == {"status": "accepted"}
        meta = (await item_of(every)).meta
        assert meta.source == "http"
        assert meta.event_type == name


async def test_a_path_can_name_the_webhook() -> None:
    body = b'{"parcel": 7}'
    receiver = WebhookReceiver(GitHubSignature(SECRET))
    async with hooked(receiver) as shop, shop.subscribed("webhooks.delivered") as delivered:
        assert (await shop.send(body, github(body), "/webhooks/shop/delivered")).status == 200
        assert (await item_of(delivered)).data == {"parcel": 7}
        assert (await shop.send(body, github(body), "/webhooks/shop/nothing")).status == 404
        assert (await shop.send(EVENT, github(EVENT))).json == {"status": "ignored"}


async def test_the_sender_repeats_what_no_subscriber_can_take() -> None:
    async with hooked(WebhookReceiver(GitHubSignature(SECRET), max_waiting=2)) as shop:
        reply = await shop.send(EVENT, github(EVENT))
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        async with aclosing(shop.registry.subscribe("shop.webhooks")) as slow:
            first = asyncio.ensure_future(anext(slow))
            await asyncio.sleep(0)
            bodies = [json.dumps({"n": n}).encode() for n in range(4)]
            assert [(await shop.send(body, github(body))).status for body in bodies] == [200, 200, 200, 503]
            assert (await asyncio.wait_for(first, PATIENCE)).data == {"n": 0}
            assert (await anext(slow)).data == {"n": 1}
            assert (await shop.send(bodies[3], github(bodies[3]))).json == {"status": "accepted"}  # repeated
            assert [(await anext(slow)).data["n"] for _ in range(2)] == [2, 3]


async def test_a_slow_subscriber_ends_alone() -> None:
    async with (
        hooked(WebhookReceiver(GitHubSignature(SECRET), max_waiting=1)) as shop,
        aclosing(shop.registry.subscribe("shop.webhooks")) as slow,
        shop.subscribed() as every,
    ):
        first = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        for n in range(4):
            body = json.dumps({"n": n}).encode()
            assert (await shop.send(body, github(body))).status == 200
            assert (await item_of(every)).data == {"n": n}
        assert (await asyncio.wait_for(first, PATIENCE)).data == {"n": 0}
        assert (await anext(slow)).data == {"n": 1}
        with pytest.raises(CallError, match="too slow") as raised:
            await anext(slow)
        assert raised.value.code is ErrorCode.UNAVAILABLE


async def test_a_webhook_needs_no_token_and_a_subscriber_over_http_gets_it() -> None:
    tokens = StaticTokens({"a-token-of-this-server-01": ME})
    async with hooked(WebhookReceiver(StripeSignature(SECRET)), authenticate=tokens) as shop:
        denied = await shop.client.post("/shop/webhooks.order_paid", {})
        assert denied.status == 401
        url = f"{shop.client.address}/shop/webhooks.order_paid"
        headers = {"authorization": "Bearer a-token-of-this-server-01"}
        async with shop.client.session.get(url, headers=headers) as stream:
            await stream.content.readuntil(b"\n\n")  # the stream has begun: the operation is subscribed to
            assert (await shop.send(EVENT, stripe(EVENT))).json == {"status": "accepted"}
            event = await asyncio.wait_for(stream.content.readuntil(b"}\n\n"), PATIENCE)
        assert b"event: order_paid\n" in event
        assert event.endswith(b'data: {"type":"order.paid","amount":5}\n\n')


async def test_subscriptions_end_with_their_source() -> None:
    async with hooked(WebhookReceiver(unsigned=True)) as shop:
        items = shop.registry.subscribe("shop.webhooks")
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
    with pytest.raises(CallError, match="closed"):
        await first


def test_the_names_of_receivers_are_those_of_paths() -> None:
    with pytest.raises(UsageError, match="a b"):
        serve_http(OperationRegistry(), webhooks={"a b": WebhookReceiver(unsigned=True)})
