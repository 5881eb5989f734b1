import asyncio
import hmac
import json
import os
import time
from contextlib import aclosing

import aiohttp
from opwire import OperationRegistry
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from opwire.openapi.webhooks import StripeSignature, WebhookReceiver

SECRET = os.environ.get("PAYMENTS_WEBHOOK_SECRET", "whsec_of_the_endpoint")


async def main() -> None:
    registry = OperationRegistry()
    hooks = WebhookReceiver(StripeSignature(SECRET))
    app = serve_http(registry, webhooks={"payments": hooks})
    async with from_openapi("payments.yaml", webhooks=hooks) as payments:
        registry.follow(payments)
        print([spec.id for spec in registry.list()])
        async with app.listening() as address:
            url = f"{address}/webhooks/payments"
            received = asyncio.create_task(receive(registry))
            await asyncio.sleep(0)  # it is subscribed now
            print(await send(url, {"type": "payment.succeeded", "amount": 500}))
            print("received", await received)
            print(await send(url, {"type": "payment.succeeded"}, secret="a guess"))


async def receive(registry: OperationRegistry) -> object:
    events = registry.subscribe("payments.webhooks.payment_succeeded")
    async with aclosing(events):
        return (await anext(events)).data


async def send(url: str, event: dict[str, object], secret: str = SECRET) -> str:
    """What the other system does."""
    body, sent = json.dumps(event).encode(), int(time.time())
    signature = hmac.digest(secret.encode(), b"%d." % sent + body, "sha256").hex()
    headers = {
        "Content-Type": "application/json",
        "Stripe-Signature": f"t={sent},v1={signature}",
    }
    async with aiohttp.request("POST", url, data=body, headers=headers) as answer:
        fields = await answer.json(content_type=None)
        return f"{answer.status} {fields.get('detail', fields['status'])}"


asyncio.run(main())
