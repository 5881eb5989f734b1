"""`opwire conformance`: check the promises of the protocol against a hub, a spoke, a caller or a server on a broker."""

import asyncio
from textwrap import wrap

import click
from msgspec import to_builtins

from opwire.cli import exit_codes
from opwire.cli.options import BROKER_OPTIONS, json_option, shared_options
from opwire.cli.screen import Screen, counted, one_line
from opwire.cli.sources import Sources
from opwire.cli.text import cut

_MARKS = {"kept": ("✓", "green"), "broken": ("✗", "red"), "skipped": ("·", "yellow")}


@click.command(name="conformance")
@click.argument("url")
@click.option("--listen", is_flag=True, help="Listen at URL as a hub, and check the peer that connects.")
@click.option("--wait", default=30.0, show_default=True, help="Seconds to wait for it, and to watch its calls.")
@click.option("--only", default="", metavar="TEXT", help="Check only the promises that contain a text.")
@click.option("--limit", default=120.0, show_default=True, help="Seconds of the whole run.")
@click.option(
    "--token-env",
    default="OPWIRE_TOKEN",
    show_default=True,
    metavar="VARIABLE",
    help="The environment variable with the token for a hub.",
)
@BROKER_OPTIONS["prefix"]
@json_option
@shared_options
@click.pass_obj
def conformance_command(
    screen: Screen,
    url: str,
    token_env: str,
    prefix: str | None,
    *,
    listen: bool,
    wait: float,
    limit: float,
    only: str,
) -> int:
    """Check a peer, in any language, against the protocol.

    URL is that of a hub (ws://, wss://), or of a broker (redis://, nats://) with the server. With --listen, a spoke or
    a caller connects to URL. A hub's token should announce in the namespace `conformance`; a server that serves
    conformance.echo, fail, count, wait, waiting and steps has all its promises checked. The exit code is 1 if a
    promise is broken.
    """
    from opwire.testing.conformance import check_connecting_peer, check_peer

    if listen:
        if not url.startswith("ws://"):
            raise click.UsageError("--listen takes ws://host:port")

        def listening_at(address: str) -> None:
            screen.note(f"listening at {address}")

        report = asyncio.run(check_connecting_peer(url, listening_at=listening_at, wait=wait, limit=limit, only=only))
    else:
        options = Sources(token_env=token_env, prefix=prefix).connection_options(url)
        report = asyncio.run(check_peer(url, limit=limit, only=only, **options))
    code = exit_codes.ERROR_RESULT if report.broken else exit_codes.OK
    if screen.as_json:
        screen.json(to_builtins(report.results))
        return code
    role = ""
    for result in report.results:
        if result.role != role:
            role = result.role
            screen.heading(role)
        mark, colour = _MARKS[result.status]
        line = f"{cut(result.promise, 44):44} {result.section}"
        screen.marked(mark, colour, line)
        for part in wrap(one_line(result.message), screen.width - 4):
            screen.line(f"    {part}")
    numbers = {status: sum(each.status == status for each in report.results) for status in _MARKS}
    screen.line()
    screen.line(
        f"{counted(len(report.results), 'promise')}: {numbers['kept']} kept, {numbers['broken']} broken, "
        f"{numbers['skipped']} not checked"
    )
    return code
