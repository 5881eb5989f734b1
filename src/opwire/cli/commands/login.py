"""`opwire login` signs in to an API or MCP server as a person; `opwire logout` signs out."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from opwire.cli.options import NumberRange, served_source_options, shared_options
from opwire.cli.screen import Screen, open_browser
from opwire.cli.sources import Sources

if TYPE_CHECKING:
    from opwire.model.login import LoginPrompt
    from opwire.registry.source import AdapterSource


@click.command(name="login")
@click.argument("source", required=False)
@click.option("--device", is_flag=True, help="Sign in with a code on another device.")
@click.option("--no-browser", is_flag=True, help="Print the address, and ask for the one at which the browser ends.")
@click.option("--timeout", type=NumberRange(min=1, max=3600), default=300.0, help="Seconds to sign in.  [default: 300]")
@served_source_options
@shared_options
@click.pass_obj
async def login_command(
    screen: Screen, *, source: str | None, device: bool, no_browser: bool, timeout: float, sources: Sources
) -> None:
    """Sign in to a source as a person, with OAuth: SOURCE is its name in the configuration.

    The login is stored for this user, in the system's keyring or in a file that only this user can read, and refreshed
    when needed. On a machine without a browser use --device, or --no-browser if the server has no device flow.
    """
    if device and no_browser:
        raise click.UsageError("--device and --no-browser exclude each other")

    async def show(prompt: "LoginPrompt") -> None:
        if prompt.code is not None:
            screen.line(f"Open {prompt.url} and enter the code {prompt.code}")
            return
        is_open = not no_browser and await asyncio.to_thread(open_browser, prompt.url)
        screen.line("The browser shows where to sign in; if not, open" if is_open else "Open in a browser:")
        screen.line(prompt.url)

    async def paste() -> str:
        # Not on a thread, which ^C could not end; and asyncio would only cancel the task that is blocked here.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return click.prompt("Address at which the browser ended (hidden)", hide_input=True)  # it has a code
        finally:
            signal.signal(signal.SIGINT, before)

    async with _opened(sources, source) as (name, opened):
        await opened.login(show, device=device, paste=paste if no_browser else None, timeout=timeout)
    screen.line(f"Signed in to {name}.")


@click.command(name="logout")
@click.argument("source", required=False)
@served_source_options
@shared_options
@click.pass_obj
async def logout_command(screen: Screen, source: str | None, sources: Sources) -> None:
    """Sign out of a source: delete its stored login, and revoke it where the server can."""

    async with _opened(sources, source) as (name, opened):
        done = await opened.logout()
    screen.line(f"Signed out of {name}." if done else f"Not signed in to {name}.")


@asynccontextmanager
async def _opened(sources: Sources, source_name: str | None) -> "AsyncGenerator[tuple[str, AdapterSource]]":
    """Yield the only source, or the one with this name; it is not connected."""
    from opwire.config.settings import OpenAPISettings, ServerClient, ServerSource
    from opwire.config.sources import ProjectModules, create_source

    config = sources.read()
    able = {
        name: settings
        for name, settings in config.sources.items()
        if isinstance(settings, ServerSource | OpenAPISettings)
    }
    names = ", ".join(able) or "none"
    if source_name is None and len(able) != 1:
        raise click.UsageError(f"name the source; HTTP APIs and MCP servers with a URL: {names}")
    name = next(iter(able)) if source_name is None else source_name
    if name not in able:
        raise click.UsageError(f"unknown source {name!r}; HTTP APIs and MCP servers with a URL: {names}")
    settings = able[name]
    if isinstance(settings, ServerSource) and settings.auth is None:
        settings = replace(settings, auth=ServerClient(login=True))
    source = await create_source(name, settings, config.folder, ProjectModules(config.folder))
    try:
        yield name, source
    finally:
        await source.close()
