"""`opwire console`: the operations on a web page, on this machine."""

import asyncio
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import click

from opwire.cli.commands.serve import ServeOptions, chosen_surfaces, serve, served_text, until_stopped, with_callers
from opwire.cli.options import log_options, shared_options, source_options
from opwire.cli.screen import Screen, open_browser
from opwire.cli.sources import Sources, check_variables, complete_url
from opwire.errors import needs_extra


@click.command(name="console")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port.  [default: a free one]")
@click.option("--no-open", is_flag=True, help="Print the link instead of opening the browser.")
@log_options
@source_options
@shared_options
@click.pass_obj
def console_command(screen: Screen, sources: Sources, port: int, no_open: bool) -> None:
    """Open a web page that shows, calls and watches the operations, until ^C.

    It listens on this machine only, at 127.0.0.1, and serves the HTTP API beside the page. The link that is printed
    signs in once, with all permissions. `opwire serve --console` serves the page to others.

    With --url the page is that of a server elsewhere: calls have the permissions of the token in OPWIRE_TOKEN, which
    needs the scope opwire:observe for the calls and figures of others.

    \b
      opwire console --python shop.py
      opwire console --openapi https://petstore3.swagger.io/api/v3/openapi.json
      opwire console --url wss://hub.example:8700
    """

    def open_page(link: str) -> None:
        if not no_open:  # a thread: some browsers return only when they are closed
            threading.Thread(target=open_browser, args=(link,), daemon=True).start()

    if sources.url is not None:
        asyncio.run(_serve_remote(screen, sources, sources.url, port, open_page))
        return
    chosen = ServeOptions(http=True, host="127.0.0.1", port=port, console=True)
    config = with_callers(chosen_surfaces(sources.read(), chosen), screen, is_open=False)
    check_variables(config)
    asyncio.run(serve(config, screen, on_link=open_page))


async def _serve_remote(
    screen: Screen, sources: Sources, url: str, port: int, on_link: Callable[[str], object]
) -> None:
    """Serve the page of a server elsewhere. Only the link signs in, since the tokens of that server are not known."""
    if sources.config or sources.python or sources.mcp or sources.openapi:
        raise click.UsageError("--url cannot be combined with other sources: its operations are loaded remotely")
    if screen.log_format == "json":
        raise click.UsageError("use --log-format text: only the link signs in, and it would be in the JSON log")
    from opwire.hub.remote_server import RemoteServer

    with needs_extra("http"):
        from opwire.serve.console import ConsoleSystem, serve_console
    url = complete_url(url)
    name = urlsplit(url).netloc.rpartition("@")[2] or "remote"
    async with RemoteServer(url, name=name, **sources.connection_options(url)) as remote:
        system = ConsoleSystem(servers=remote.servers)
        console = serve_console(remote.registry, title=name, monitor=remote.monitor, system=system)
        async with console.listening("127.0.0.1", port) as address:
            link = f"{address}/#link={console.create_link()}"
            screen.note(f"console of {name} at this link, which signs in once, within 5 minutes:")
            screen.note(link)
            if remote.monitor.problem is not None:
                screen.warning(f"{name}: {remote.monitor.problem}")

            def ready() -> None:
                screen.note(f"showing {served_text(remote.registry)}; ^C stops")
                on_link(link)

            await until_stopped(ready=ready)
