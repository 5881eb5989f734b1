"""The HTTP API of the demo, asked by a client that knows nothing of opwire."""

import aiohttp

from opwire.asgi.listener import listening
from opwire.cli.demo_story import rates


async def test_it_answers_describes_itself_and_streams() -> None:
    async with listening(rates(), drain_timeout=1) as address, aiohttp.ClientSession(address) as session:
        async with session.get("/rates/USD") as answer:
            assert await answer.json() == {"currency": "USD", "rate": 1.09}
        async with session.get("/rates/XXX") as answer:
            assert answer.status == 404
        async with session.get("/openapi.json") as answer:
            document = await answer.json()
            assert list(document["paths"]) == ["/rates/{currency}", "/rates/{currency}/changes"]
        async with session.get("/rates/USD/changes?count=2") as answer:
            assert answer.content_type == "text/event-stream"
            assert (await answer.text()).count("data: ") == 2
