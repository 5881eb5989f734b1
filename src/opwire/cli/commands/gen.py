"""`opwire gen`: code made from operations."""

import asyncio
from pathlib import Path

import click

from opwire.cli.options import shared_options, source_options
from opwire.cli.screen import Screen, counted
from opwire.cli.sources import Sources
from opwire.operation import OperationSpec


@click.group(name="gen")
def command() -> None:
    """Generate code from the operations."""


@command.command()
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The module to write.")
@click.option(
    "-n", "--namespace", multiple=True, help="Only the operations of a namespace; may be given several times."
)
@click.option("--class-name", default="Operations", show_default=True, help="The name of the client's class.")
@source_options
@shared_options
@click.pass_obj
def client(screen: Screen, output: Path | None, namespace: tuple[str, ...], class_name: str, sources: Sources) -> None:
    """Write a typed Python module: a method for each operation, a type for each schema."""
    from opwire.client import generate_client

    found = asyncio.run(_listed(screen, sources))
    specs = [spec for spec in found if not namespace or spec.namespace in namespace]
    code = generate_client(specs, class_name=class_name)
    if output is None:
        click.echo(code, nl=False)
        return
    try:
        output.write_text(code, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{output}: cannot be written: {error.strerror}") from None
    screen.note(f"{output}: {counted(len(specs), 'operation')}")


async def _listed(screen: Screen, sources: Sources) -> list[OperationSpec]:
    async with sources.open(screen) as workbench:
        return list(workbench.specs.values())
