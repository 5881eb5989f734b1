"""Clients: data instead of envelopes, retries, pagination, interceptors, and generated classes.

async with Client("ws://hub.example:8700", token=os.environ["TOKEN"]) as client:
    repository = await client.call("github.repos/get", {"owner": "a", "repo": "b"}, timeout=5)
    async for issue in client.paginate("github.issues/list", {"state": "open"}, max_items=500):
        print(issue["title"])
"""

from opwire.client.client import Client, Retries
from opwire.model.envelope import ToolErrorPolicy

__all__ = ["Client", "Retries", "ToolErrorPolicy"]
