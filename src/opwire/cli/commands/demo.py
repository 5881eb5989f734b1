"""`opwire demo`: what opwire does, told by running it."""

import asyncio

import click

from opwire.cli.options import shared_options
from opwire.errors import CallError, ErrorCode


@click.command(name="demo")
@shared_options
def command() -> None:
    """Show what opwire does: three sources, one registry, served twice. Nothing leaves this machine."""
    try:
        from opwire.cli.demo.pages import Pages
        from opwire.cli.demo.story import tell
    except ModuleNotFoundError as error:
        missing = f"the demo needs the package {error.name}: pip install 'opwire[cli,http,mcp,openapi]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing) from error
    asyncio.run(tell(Pages()))
