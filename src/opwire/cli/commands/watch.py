"""`opwire watch`: the items of a subscription, as they come."""

import asyncio
from contextlib import aclosing
from typing import Any

import click

from opwire.cli.commands.call import given_input
from opwire.cli.options import operation_argument, result_options, shared_options, source_options
from opwire.cli.results import show
from opwire.cli.screen import Form, Screen
from opwire.cli.sources import Sources
from opwire.operation import OperationType


@click.command(name="watch")
@operation_argument(subscriptions=True)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many items.")
@click.option("--no-input", is_flag=True, help="Do not ask for missing fields.")
@result_options
@source_options
@shared_options
@click.pass_obj
def command(screen: Screen, **arguments: Any) -> None:
    """Follow a subscription, item by item, until it ends or ^C stops it. INPUT is that of `opwire call`.

    With --json or --envelope and no terminal, each item is a line of JSON.
    """
    asyncio.run(_follow(screen, **arguments))


async def _follow(
    screen: Screen,
    *,
    operation_id: str,
    words: tuple[str, ...],
    sources: Sources,
    form: Form,
    count: int | None,
    no_input: bool,
) -> None:
    async with sources.open(screen, operation_id) as workbench:
        spec = workbench.spec(operation_id)
        if spec.type is not OperationType.SUBSCRIPTION:
            raise click.UsageError(f"{operation_id} is a {spec.type.value}: `opwire call {operation_id}` calls it")
        input = given_input(spec, words, screen, no_input=no_input)
        async with workbench.client() as client, aclosing(client.subscribe_envelopes(operation_id, input)) as items:
            async for item in items:
                show(item, form, screen)
                count = None if count is None else count - 1
                if count == 0:
                    return
