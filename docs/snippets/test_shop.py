import asyncio
from typing import Any

import pytest
from opwire import (
    CallError,
    Identity,
    ResponseEnvelope,
    mcp_envelope,
)
from opwire.client import Client
from opwire.openapi.server import serve_http
from opwire.testing import with_stand_ins

from composed import registry
from shop import Line, order

TEA = {"article": "tea", "price": 4.5, "quantity": 2}


def test_the_function_alone() -> None:
    assert asyncio.run(order([Line("tea", 4.5, 2)])).total == 9.0


def test_the_operation_as_callers_see_it() -> None:
    envelope = asyncio.run(registry.execute("shop.order", {"lines": [TEA]}))
    assert envelope.data == {"total": 9.0, "currency": "EUR"}


def test_invalid_input_is_rejected_before_the_function_runs() -> None:
    with pytest.raises(CallError) as raised:
        asyncio.run(registry.execute("shop.order", {"lines": [{"article": "tea"}]}))
    assert raised.value.code == "VALIDATION_ERROR"


def test_an_operation_that_calls_others_with_stand_ins_for_them() -> None:
    def stock(article: str) -> ResponseEnvelope[Any]:
        return mcp_envelope({"pieces": 3}, is_error=article != "tea", content=[])

    def get(currency: str) -> dict[str, Any]:
        return {"rate": 2.0}

    stand_ins = {"warehouse.stock": stock, "rates.get": get}
    tested = with_stand_ins(registry, stand_ins)  # with the program's own shop.offer
    asked = {"article": "tea", "price": 4.5, "currency": "USD"}
    offered = asyncio.run(tested.execute("shop.offer", asked))
    assert offered.data == "3 pieces of tea at 9.00 USD"


def test_over_http_as_a_client_calls_it() -> None:
    async def ordered() -> Any:
        app = serve_http(registry, anonymous=Identity(id="test"))
        async with app.listening() as address, Client(address) as client:
            return await client.call("shop.order", {"lines": [TEA]})

    assert asyncio.run(ordered())["total"] == 9.0
