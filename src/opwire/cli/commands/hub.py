"""`opwire hub`: where spokes meet."""

import asyncio
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from opwire.cli.options import served_source_options, shared_options
from opwire.cli.screen import Screen
from opwire.cli.serving import EVERYBODY, open_option, until_stopped, with_callers
from opwire.cli.sources import Sources, opened

if TYPE_CHECKING:
    from opwire.config import Config


@click.command(name="hub")
@click.argument("url", required=False)
@open_option
@served_source_options
@shared_options
@click.pass_obj
def command(screen: Screen, url: str | None, is_open: bool, sources: Sources) -> None:
    """Run a hub at URL, ws://127.0.0.1:8700 unless the configuration says otherwise, until ^C.

    Spokes connect to it, serve operations and call those of others. It serves those of its own sources as well, if it
    has any. If the configuration names no callers, a token is needed: that in OPWIRE_TOKEN, or one that is made and
    shown.
    """
    config = with_callers(sources.read(may_be_empty=True), screen, is_open=is_open)
    asyncio.run(_run(chosen_hub(config, url, is_open=is_open), screen))


def chosen_hub(config: "Config", url: str | None, *, is_open: bool) -> "Config":
    """The configuration with the hub that was asked for."""
    from opwire.config.settings import EnvText, HubSettings

    hub = config.hub or HubSettings()
    if url is not None:
        hub = replace(hub, url=EnvText(url))
    return replace(config, hub=replace(hub, anonymous=EVERYBODY) if is_open else hub)


async def _run(config: "Config", screen: Screen) -> None:
    from opwire.config import hub_of

    async with opened(config, screen) as running, hub_of(config, running.registry) as hub:
        screen.note(f"hub at {hub.url}; ^C stops")
        await until_stopped()
        await hub.drain()
