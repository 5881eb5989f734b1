import asyncio

from opwire import Context, OperationRegistry, Progress
from opwire.client import Client

registry = OperationRegistry()


@registry.mutation("files.index")
async def index(context: Context) -> str:
    for number in (1, 2, 3):
        context.report(number, 3, f"file {number}")
    return "indexed"


def show(now: Progress) -> None:
    print(f"{now.progress} of {now.total}: {now.message}")


async def main() -> None:
    async with Client(registry) as client:
        print(await client.call("files.index", context=Context(on_progress=show)))


asyncio.run(main())
