"""`opwire call` prints the result of an operation; `opwire watch` streams the items of a subscription."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from opwire.cli import exit_codes
from opwire.cli.inputs import SchemaField, complete_input, read_input
from opwire.cli.options import operation_argument, result_options, shared_options, source_options
from opwire.cli.screen import OutputFormat, Screen, Spinner, is_error, save, show
from opwire.cli.sources import Sources, run
from opwire.envelope import ResponseEnvelope
from opwire.operation import Context, OperationSpec, OperationType, Progress


@click.command(name="call")
@operation_argument(subscriptions=False)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Save the result to a file.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds to wait for the result.")
@click.option("--no-input", is_flag=True, help="Do not prompt for missing fields.")
@result_options
@source_options
@shared_options
@click.pass_obj
def call_command(screen: Screen, output: Path | None, form: OutputFormat, **arguments: Any) -> int:
    """Call an operation and print its result.

    \b
    INPUT consists of
      count=5          typed by the schema: a number only if the schema accepts numbers
      filter.name=x    a nested field
      tags=a tags=b    a list
      count:=5         JSON, ignoring the schema
      photo=@cat.png   the content of a file
      '{"count": 5}'   the whole input as JSON; @input.json, or - for standard input
    """
    envelope = run(_call(screen, **arguments))
    if output is None:
        show(envelope, form, screen)
    else:
        save(envelope, output, screen)
    if is_error(envelope):
        screen.detail("the tool returned an error")
        return exit_codes.ERROR_RESULT
    return exit_codes.OK


async def _call(
    screen: Screen,
    *,
    operation_id: str,
    words: tuple[str, ...],
    sources: Sources,
    timeout: float | None,
    no_input: bool,
) -> ResponseEnvelope[Any]:
    async with sources.open(screen, operation_id) as loaded:
        spec = loaded.spec(operation_id)
        if spec.type is OperationType.SUBSCRIPTION:
            raise click.UsageError(f"{operation_id} is a subscription: use `opwire watch {operation_id}`")
        input = _input(spec, words, screen, no_input=no_input)
        async with loaded.client() as client:
            with Spinner(operation_id) as spinner:
                context = Context(on_progress=lambda now: spinner.update(f"{operation_id}: {progress_text(now)}"))
                return await client.call_envelope(operation_id, input, timeout=timeout or spec.timeout, context=context)


def progress_text(now: Progress) -> str:
    """Return `1 of 2 halfway`."""
    share = f"{now.progress:g}" if now.total is None else f"{now.progress:g} of {now.total:g}"
    return f"{share} {now.message or ''}".rstrip()


def _input(spec: OperationSpec, words: tuple[str, ...], screen: Screen, *, no_input: bool) -> Any:
    input = read_input(words, SchemaField(spec.input_schema.json))
    return input if no_input or not screen.is_interactive else complete_input(input, spec.input_schema)


@click.command(name="watch")
@operation_argument(subscriptions=True)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this number of items.")
@click.option("--no-input", is_flag=True, help="Do not prompt for missing fields.")
@result_options
@source_options
@shared_options
@click.pass_obj
def watch_command(screen: Screen, **arguments: Any) -> None:
    """Follow a subscription, item by item, until it ends or ^C stops it. INPUT is the same as for `opwire call`.

    In a pipe, --json and --envelope print one line of JSON per item.
    """
    asyncio.run(_watch(screen, **arguments))


async def _watch(
    screen: Screen,
    *,
    operation_id: str,
    words: tuple[str, ...],
    sources: Sources,
    form: OutputFormat,
    count: int | None,
    no_input: bool,
) -> None:
    async with sources.open(screen, operation_id) as loaded:
        spec = loaded.spec(operation_id)
        if spec.type is not OperationType.SUBSCRIPTION:
            raise click.UsageError(f"{operation_id} is a {spec.type.value}: use `opwire call {operation_id}`")
        input = _input(spec, words, screen, no_input=no_input)
        async with loaded.client() as client, aclosing(client.subscribe_envelopes(operation_id, input)) as items:
            async for item in items:
                show(item, form, screen)
                count = None if count is None else count - 1
                if count == 0:
                    return
