import asyncio
import json

from opwire import CallError, Context, Identity
from opwire.policies import Approval, ApprovalRequest, AuditLog, RateLimit

from shop import registry

AGENT = Context(identity=Identity(id="agent", scopes=("shop:write",)))


async def ask(request: ApprovalRequest) -> bool | str:
    """Stand in for a message to a person: True approves, anything else denies."""
    print(f"{request}. Approve?")
    total = sum(line["price"] for line in request.input["lines"])
    return total < 100 or "too expensive"


log: list[bytes] = []
registry.use(AuditLog(log.append))  # or the path of a file
registry.use(RateLimit(20, per=60, include=["type:mutation"]))
registry.use(Approval(ask))


async def main() -> None:
    for price in (4.5, 4500):
        try:
            envelope = await registry.execute(
                "shop.order", {"lines": [{"article": "tea", "price": price}]}, AGENT
            )
            print(envelope.data)
        except CallError as error:
            print(error)
    print([json.loads(line)["outcome"] for line in log])


asyncio.run(main())
