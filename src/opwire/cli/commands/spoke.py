"""`opwire spoke`: the operations, served over a hub or a broker."""

import asyncio
import os
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from opwire.cli.options import served_source_options, shared_options
from opwire.cli.screen import Screen, counted
from opwire.cli.serving import EVERYBODY, TOKEN, open_option, until_stopped
from opwire.cli.sources import Sources, opened

if TYPE_CHECKING:
    from opwire.config import Config


@click.command(name="spoke")
@click.argument("url", required=False)
@open_option
@served_source_options
@shared_options
@click.pass_obj
def command(screen: Screen, url: str | None, is_open: bool, sources: Sources) -> None:
    """Serve the operations at URL until ^C: ws:// of a hub, redis:// or nats:// of a broker.

    The token for a hub is that in OPWIRE_TOKEN, unless the configuration says otherwise. Over a broker nobody says who
    callers are: without --open they can call what is public, and nothing else.
    """
    asyncio.run(_run(chosen_spoke(sources.read(), url, is_open=is_open), screen))


def chosen_spoke(config: "Config", url: str | None, *, is_open: bool) -> "Config":
    """The configuration with the spoke that was asked for.

    Raises:
        click.UsageError: nobody says where to.
    """
    from opwire.config.settings import EnvText, IdentitySettings, Secret, SpokeSettings

    spoke = config.spoke
    if url is not None:
        token = Secret(f"${{{TOKEN}}}") if url.startswith("ws") and os.environ.get(TOKEN) else None
        spoke = replace(spoke, url=EnvText(url)) if spoke else SpokeSettings(url=EnvText(url), token=token)
    if spoke is None:
        raise click.UsageError("say where to serve: opwire spoke ws://127.0.0.1:8700, or [spoke] in the configuration")
    if not is_open:
        return replace(config, spoke=spoke)
    everybody = {EVERYBODY: IdentitySettings(scopes=("*",))}
    return replace(config, identities={**config.identities, **everybody}, spoke=replace(spoke, anonymous=EVERYBODY))


async def _run(config: "Config", screen: Screen) -> None:
    from opwire.config import spoke_of

    async with opened(config, screen) as running, spoke_of(config, running.registry) as spoke:
        screen.note(f"serving {counted(len(running.registry), 'operation')}; ^C stops")
        await until_stopped()
        await spoke.drain()
