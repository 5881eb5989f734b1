"""The friendly face: data instead of envelopes, retries, pages, and a client without `await`.

async with Client("ws://hub.example:9000", token=os.environ["TOKEN"]) as client:
    repository = await client.call("github.repos/get", {"owner": "a", "repo": "b"}, timeout=5)
    async for issue in client.paginate("github.issues/list", {"state": "open"}, max_items=500):
        print(issue["title"])
"""

from opwire.client.client import Client, IsErrorPolicy
from opwire.client.codegen import generate_client
from opwire.client.pages import Retries
from opwire.client.sync import SyncClient

__all__ = ["Client", "IsErrorPolicy", "Retries", "SyncClient", "generate_client"]
