"""Signatures by the examples of their inventors, and receivers across event loops."""

import asyncio
import json
import threading
from typing import Any

import pytest

from opwire import CallError, OperationRegistry, UsageError
from opwire.openapi.webhooks import (
    MAX_REMEMBERED,
    DeclaredWebhook,
    GitHubSignature,
    StandardSignature,
    StripeSignature,
    Verify,
    WebhookReceiver,
    WebhookRequest,
)

PATIENCE = 5.0


@pytest.mark.parametrize(
    ("verify", "at", "headers", "body"),
    [
        (
            GitHubSignature("It's a Secret to Everybody"),
            0,
            {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
            b"Hello, World!",
        ),
        (
            StandardSignature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            1614265330,
            {
                "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "webhook-timestamp": "1614265330",
                "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            },
            b'{"test": 2432232314}',
        ),
    ],
    ids=["github", "standard"],
)
def test_published_examples_are_valid(
    verify: Verify, at: float, headers: dict[str, str], body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwire.openapi.webhooks.time.time", lambda: at)
    assert verify(WebhookRequest(headers, body))
    with pytest.raises(CallError, match="does not match"):
        verify(WebhookRequest(headers, body + b" "))
    odd = {name: f"\ud800{value}" if name == "webhook-id" else value for name, value in headers.items()}
    with pytest.raises(CallError, match="does not match"):
        verify(WebhookRequest(odd, body + b" "))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StripeSignature(""), "empty"),
        (lambda: GitHubSignature([]), "empty"),
        (lambda: GitHubSignature(["a", ""]), "empty"),
        (lambda: StandardSignature("whsec_"), "empty"),
        (lambda: StandardSignature("not base64!"), "base64"),
        (lambda: StripeSignature("a", tolerance=0), "tolerance"),
        (lambda: StripeSignature("a", tolerance=86_400), "tolerance"),
        (lambda: WebhookReceiver(unsigned=True, events="push"), "events"),
        (lambda: WebhookReceiver(unsigned=True, max_waiting=0), "max_waiting"),
    ],
)
def test_invalid_options_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def registered(receiver: WebhookReceiver, *names: str) -> OperationRegistry:
    registry = OperationRegistry()
    registry.register_all(receiver.operations("shop", map(DeclaredWebhook, names)))
    return registry


def deliver(receiver: WebhookReceiver, payload: Any, delivery: str | None = None) -> str:
    return receiver.deliver(payload, WebhookRequest({}, json.dumps(payload).encode()), delivery=delivery)


async def test_a_subscriber_may_run_on_another_event_loop() -> None:
    receiver = WebhookReceiver(unsigned=True)
    registry = registered(receiver)
    ready, received = threading.Event(), list[Any]()

    async def take() -> None:
        items = registry.subscribe("shop.webhooks")
        for _ in range(2):
            waiting = asyncio.ensure_future(anext(items))
            await asyncio.sleep(0)
            ready.set()
            received.append((await asyncio.wait_for(waiting, PATIENCE)).data)
        await items.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(take()))
    thread.start()
    await asyncio.to_thread(ready.wait, PATIENCE)
    assert [deliver(receiver, n) for n in range(2)] == ["accepted", "accepted"]
    await asyncio.to_thread(thread.join, PATIENCE)
    assert received == [0, 1]


async def test_subscribers_do_not_share_the_data() -> None:
    receiver = WebhookReceiver(unsigned=True)
    registry = registered(receiver)
    streams = [registry.subscribe("shop.webhooks") for _ in range(2)]
    waiting = [asyncio.ensure_future(anext(each)) for each in streams]
    await asyncio.sleep(0)
    deliver(receiver, {"lines": []})
    first, second = [await asyncio.wait_for(each, PATIENCE) for each in waiting]
    first.data["lines"].append(1)
    assert second.data == {"lines": []}
    for each in streams:
        await each.aclose()


async def test_a_subscriber_that_leaves_is_forgotten() -> None:
    receiver = WebhookReceiver(unsigned=True)
    registry = registered(receiver, "one", "two")
    items = registry.subscribe("shop.webhooks.one")
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    assert deliver(receiver, {"type": "two"}) == "ignored"
    assert deliver(receiver, {"type": "one"}) == "accepted"
    await waiting
    await items.aclose()
    with pytest.raises(CallError, match="nothing is subscribed"):
        deliver(receiver, {"type": "one"})


async def test_what_is_remembered_of_deliveries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwire.openapi.webhooks.MAX_REMEMBERED", 3)
    assert MAX_REMEMBERED > 3
    receiver = WebhookReceiver(lambda request: True)
    items = registered(receiver).subscribe("shop.webhooks")
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    sent = [deliver(receiver, None, delivery) for delivery in ("a", "b", "b", "c", "d", "a")]
    assert sent == ["accepted", "accepted", "duplicate", "accepted", "accepted", "accepted"]
    await waiting
    await items.aclose()


async def test_a_closed_receiver_ends_its_streams_and_takes_nothing() -> None:
    receiver = WebhookReceiver(unsigned=True)
    registry = registered(receiver)
    items = registry.subscribe("shop.webhooks")
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    assert "1 subscriber>" in repr(receiver)
    receiver.close()
    receiver.close()
    with pytest.raises(CallError, match="closed"):
        await waiting
    with pytest.raises(CallError, match="closed"):
        await anext(registry.subscribe("shop.webhooks"))
    with pytest.raises(CallError, match="repeat it later"):
        deliver(receiver, None)


async def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwire.openapi.webhooks.MAX_WAITING_BYTES", 1_000)
    receiver = WebhookReceiver(unsigned=True)
    items = registered(receiver).subscribe("shop.webhooks")
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    assert deliver(receiver, "a" * 5_000) == "accepted"  # alone, it may be larger
    with pytest.raises(CallError, match="waiting already"):
        deliver(receiver, "b")
    assert (await waiting).data == "a" * 5_000
    assert [deliver(receiver, "c" * 400) for _ in range(2)] == ["accepted", "accepted"]
    with pytest.raises(CallError, match="waiting already"):
        deliver(receiver, "c" * 400)
    await items.aclose()


async def test_events_that_the_document_does_not_declare_can_be_named() -> None:
    receiver = WebhookReceiver(unsigned=True, events=["charge.succeeded", "paid", "invoice.*"])
    registry = registered(receiver, "paid", "other")
    assert [spec.name for spec in registry.list()] == ["webhooks", "webhooks.paid", "webhooks.charge.succeeded"]
    items = registry.subscribe("shop.webhooks.charge.succeeded")
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    assert deliver(receiver, {"type": "charge.failed"}) == "ignored"
    assert deliver(receiver, {"type": "charge.succeeded"}) == "accepted"
    assert (await waiting).data == {"type": "charge.succeeded"}
    await items.aclose()


async def test_the_only_webhook_of_a_document_gets_what_has_no_name() -> None:
    receiver = WebhookReceiver(unsigned=True)
    registry = registered(receiver, "published")
    items = registry.subscribe("shop.webhooks.published")
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    assert deliver(receiver, {"type": "ping"}) == "ignored"
    assert deliver(receiver, {"title": "tea"}) == "accepted"
    assert (await waiting).data == {"title": "tea"}
    await items.aclose()
