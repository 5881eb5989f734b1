"""What `serve`, `hub` and `spoke` have in common: who may call, and when to stop."""

import asyncio
import os
import secrets
import signal
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from opwire.cli.screen import Screen

if TYPE_CHECKING:
    from opwire.config import Config

TOKEN = "OPWIRE_TOKEN"  # noqa: S105 - its name
EVERYBODY = "everybody"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def open_option(function: Any) -> Any:
    """`--open`."""
    return click.option(
        "--open", "is_open", is_flag=True, help="Let everybody who can reach it call everything, without a token."
    )(function)


def with_callers(config: "Config", screen: Screen, *, is_open: bool) -> "Config":
    """The configuration with somebody who may call, where it names nobody: whoever has the token in OPWIRE_TOKEN.

    If there is none, one is made for this run, and shown.
    """
    from opwire.config.settings import IdentitySettings, Secret

    identities = dict(config.identities)
    if is_open:
        identities[EVERYBODY] = IdentitySettings(scopes=("*",), announces=("*",))
    elif not identities and config.auth.jwt is None:
        if not os.environ.get(TOKEN):
            os.environ[TOKEN] = secrets.token_urlsafe()
            screen.note(f"token for this run: {os.environ[TOKEN]}   (set {TOKEN} for one that stays)")
        identities["owner"] = IdentitySettings(token=Secret(f"${{{TOKEN}}}"), scopes=("*",), announces=("*",))
    return replace(config, identities=identities)


async def until_stopped(*running: Awaitable[Any]) -> None:
    """Wait until SIGINT or SIGTERM, or until one of the awaitables ends. A second signal is not waited for.

    Raises:
        Exception: that of an awaitable that failed.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    tasks = [asyncio.ensure_future(each) for each in (stop.wait(), *running)]
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop.set)
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in ended:
            each.result()
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
