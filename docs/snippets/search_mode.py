import asyncio

from opwire import OperationRegistry
from opwire.agents.search_mode import search_mode, token_cost

registry = OperationRegistry()


@registry.query("pets.status")
async def pets_status(pet: int) -> str:
    """Return how a pet is."""
    return f"pet {pet} is well"


for number in range(1_000):  # an API with a thousand operations

    @registry.query(
        f"api.resource_{number}",
        description=f"Return resource {number} of the catalogue.",
    )
    async def read(id: int, verbose: bool = False) -> str:
        return "…"


mode = search_mode(registry, pinned=["pets.status"])


async def main() -> None:
    whole, few = (sum(map(token_cost, each.list())) for each in (registry, mode))
    print(f"{len(registry):,} operations: over {whole // 10_000 * 10_000:,} tokens")
    print([spec.id for spec in mode.list()])
    print(f"{len(mode)} operations: under {few // 100 * 100 + 100} tokens")
    found = await mode.execute(
        "tools.search", {"query": "read resource 42", "limit": 1}
    )
    print(found.data)
    result = await mode.execute(
        "tools.call", {"operation": "pets.status", "input": {"pet": 7}}
    )
    print(result.data)


asyncio.run(main())
