"""`opwire call`: one operation, and what it answers.

`opwire watch`: the items of a subscription, as they come.
"""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from opwire.cli import exit_codes
from opwire.cli.inputs import Field, complete_input, read_input
from opwire.cli.options import operation_argument, result_options, shared_options, source_options
from opwire.cli.results import is_error, save, show
from opwire.cli.screen import Form, Screen, Spinner
from opwire.cli.sources import Sources
from opwire.envelope import ResponseEnvelope
from opwire.operation import Context, OperationSpec, OperationType, Progress


@click.command(name="call")
@operation_argument(subscriptions=False)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Save the result to a file.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds to wait for the answer.")
@click.option("--no-input", is_flag=True, help="Do not ask for missing fields.")
@result_options
@source_options
@shared_options
@click.pass_obj
def call_command(screen: Screen, output: Path | None, form: Form, **arguments: Any) -> int:
    """Call an operation, and print what it answers.

    \b
    INPUT is made of
      count=5          typed by the schema: a number only where it says number
      filter.name=x    a field of a field
      tags=a tags=b    a list
      count:=5         JSON, whatever the schema says
      photo=@cat.png   what stands in a file
      '{"count": 5}'   the whole input as JSON; @input.json, or - for standard input
    """
    envelope = asyncio.run(_answer(screen, **arguments))
    if output is None:
        show(envelope, form, screen)
    else:
        save(envelope, output, screen)
    if is_error(envelope):
        screen.detail("the tool answered with an error")
        return exit_codes.ANSWERED_WITH_ERROR
    return exit_codes.OK


async def _answer(
    screen: Screen,
    *,
    operation_id: str,
    words: tuple[str, ...],
    sources: Sources,
    timeout: float | None,
    no_input: bool,
) -> ResponseEnvelope[Any]:
    async with sources.open(screen, operation_id) as workbench:
        spec = workbench.spec(operation_id)
        if spec.type is OperationType.SUBSCRIPTION:
            raise click.UsageError(f"{operation_id} is a subscription: `opwire watch {operation_id}` follows it")
        input = given_input(spec, words, screen, no_input=no_input)
        async with workbench.client() as client:
            with Spinner(operation_id) as spinner:
                context = Context(on_progress=lambda now: spinner.update(f"{operation_id}: {in_words(now)}"))
                return await client.call_envelope(operation_id, input, timeout=timeout or spec.timeout, context=context)


def in_words(now: Progress) -> str:
    """How far a call has come."""
    share = f"{now.progress:g}" if now.total is None else f"{now.progress:g} of {now.total:g}"
    return f"{share} {now.message or ''}".rstrip()


def given_input(spec: OperationSpec, words: tuple[str, ...], screen: Screen, *, no_input: bool) -> Any:
    """What the words say; on a terminal, required fields that they leave out are asked for."""
    input = read_input(words, Field(spec.input_schema.json))
    if no_input or not screen.is_interactive:
        return input
    return complete_input(input, spec.input_schema)


@click.command(name="watch")
@operation_argument(subscriptions=True)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many items.")
@click.option("--no-input", is_flag=True, help="Do not ask for missing fields.")
@result_options
@source_options
@shared_options
@click.pass_obj
def watch_command(screen: Screen, **arguments: Any) -> None:
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
