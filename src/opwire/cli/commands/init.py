"""`opwire init`: a commented configuration to begin with."""

from pathlib import Path

import click

from opwire.cli.options import shared_options
from opwire.cli.screen import Screen


@click.command(name="init")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), default="opwire.toml")
@shared_options
@click.pass_obj
def command(screen: Screen, path: Path) -> None:
    """Write a commented configuration to PATH, opwire.toml unless given. What is there already is never overwritten."""
    from opwire.config import TEMPLATE

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise click.UsageError(f"{path} is there already, and stays as it is") from None
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written: {error.strerror}") from None
    screen.note(
        f"{path} is written: name your sources there, then `opwire doctor` checks it and `opwire ls` lists them"
    )
