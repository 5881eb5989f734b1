"""`opwire console`: the operations on a web page, on this machine."""

import asyncio
import threading

import click

from opwire.cli.commands.serve import ServeOptions, chosen_surfaces, serve, with_callers
from opwire.cli.options import log_options, served_source_options, shared_options
from opwire.cli.screen import Screen, open_browser
from opwire.cli.sources import Sources, check_variables


@click.command(name="console")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port.  [default: a free one]")
@click.option("--no-open", is_flag=True, help="Print the link instead of opening the browser.")
@log_options
@served_source_options
@shared_options
@click.pass_obj
def console_command(screen: Screen, sources: Sources, port: int, no_open: bool) -> None:
    """Open a web page that shows, calls and watches the operations, until ^C.

    It listens on this machine only, at 127.0.0.1, and serves the HTTP API beside the page. The link that is printed
    signs in once, with all permissions. `opwire serve --console` serves the page to others.

    \b
      opwire console --python shop.py
      opwire console --openapi https://petstore3.swagger.io/api/v3/openapi.json
    """
    chosen = ServeOptions(http=True, host="127.0.0.1", port=port, console=True)
    config = with_callers(chosen_surfaces(sources.read(), chosen), screen, is_open=False)
    check_variables(config)

    def open_page(link: str) -> None:
        if not no_open:  # a thread: some browsers return only when they are closed
            threading.Thread(target=open_browser, args=(link,), daemon=True).start()

    asyncio.run(serve(config, screen, on_link=open_page))
