"""`opwire doctor` and `opwire conformance`: find problems, and say how to solve them.

`doctor` checks the installation, the configuration and the sources; `conformance` checks the promises of the protocol
against a hub, a spoke, a caller or a server on a broker.
"""

import asyncio
import importlib.metadata
import logging
import os
import platform
from collections.abc import Iterator
from textwrap import wrap
from typing import Literal, NamedTuple

import click
from msgspec import to_builtins
from msgspec.structs import replace

from opwire import __version__
from opwire.cli import exit_codes
from opwire.cli.options import BROKER_OPTIONS, NumberRange, json_option, shared_options, source_options, token_option
from opwire.cli.screen import Screen, one_line
from opwire.cli.sources import Sources, opened, source_message
from opwire.cli.text import cut
from opwire.config.settings import Config, ProgramSource, missing_variables
from opwire.config.views import view_of
from opwire.errors import MissingExtraError, OpwireError
from opwire.names import counted

Status = Literal["ok", "note", "wrong"]
_MARKS: dict[Status, tuple[str, str]] = {"ok": ("✓", "green"), "note": ("·", "yellow"), "wrong": ("✗", "red")}
_PROMISE_MARKS = {"kept": ("✓", "green"), "broken": ("✗", "red"), "skipped": ("·", "yellow")}
# Packages of each extra: if they are installed, so is the extra.
_EXTRA_PACKAGES = {
    "auth": ("pyjwt",),
    "cli": ("rich",),
    "code": ("pydantic-monty",),
    "http": ("starlette",),
    "keyring": ("keyring",),
    "mcp": ("aiohttp", "uvicorn"),
    "nats": ("cryptography",),
    "openapi": ("aiohttp",),
    "otel": ("opentelemetry-api",),
    "prometheus": ("opentelemetry-exporter-prometheus",),
    "redis": ("hiredis",),
    "uvloop": ("uvloop",),
    "websocket": ("websockets",),
}


class CheckResult(NamedTuple):
    """The result of one check."""

    check: str
    status: Status
    message: str


@click.command(name="doctor")
@source_options
@json_option
@shared_options
@click.pass_obj
def doctor_command(screen: Screen, sources: Sources) -> int:
    """Check the installed extras, the configuration, its environment variables, and each source.

    Sources are loaded, which starts MCP servers. The exit code is 1 if a check fails.
    """
    results = [CheckResult("opwire", "ok", f"{__version__} on Python {platform.python_version()}")]
    for extra, packages in _EXTRA_PACKAGES.items():
        try:
            versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
            installed = CheckResult(extra, "ok", versions)
        except importlib.metadata.PackageNotFoundError:
            installed = CheckResult(extra, "note", f"not installed; if you need it: pip install 'opwire[{extra}]'")
        results.append(installed)
    results += asyncio.run(_check(sources, screen))
    if screen.as_json:
        screen.json([result._asdict() for result in results])
    else:
        for check, status, message in results:
            screen.marked(*_MARKS[status], f"{check}: {message}")
    return exit_codes.ERROR_RESULT if any(result.status == "wrong" for result in results) else exit_codes.OK


async def _check(sources: Sources, screen: Screen) -> list[CheckResult]:
    if sources.url is not None:
        try:
            async with sources.open(screen) as loaded:
                return [CheckResult("url", "ok", counted(len(loaded.specs), "operation"))]
        except OpwireError as error:
            return [CheckResult("url", "wrong", str(error))]
    try:
        config = sources.read()
    except (OpwireError, click.UsageError) as error:
        return [CheckResult("configuration", "wrong", str(error))]
    place = "the command line" if config.file is None else str(config.file)
    results = [CheckResult("configuration", "ok", f"{place}, {counted(len(config.sources), 'source')}")]
    for name in missing_variables(config):
        message = f"the configuration uses {name}, which is not set: export {name}=…"
        results.append(CheckResult("environment", "wrong", message))
    for name, source in config.sources.items():
        if isinstance(source, ProgramSource):
            from opwire.mcp.client.servers import StdioServer

            withheld = StdioServer("", env=dict.fromkeys(source.env, "")).withheld
            withheld_text = ": " + ", ".join(withheld) if screen.verbose or screen.as_json else "; -v lists them"
            number = counted(len(withheld), "environment variable")
            message = f"{number} not passed to the program, except by `env`{withheld_text}"
            results.append(CheckResult(f"source {name}", "note", message))
    results += _check_callers(config)
    try:
        results += await _check_sources(config, screen)
    except OpwireError as error:  # such as a policy that cannot be installed
        results.append(CheckResult("configuration", "wrong", str(error)))
    if config.spoke is not None:
        from opwire.config.surfaces import spoke_of

        try:
            async with spoke_of(config, None):
                results.append(CheckResult("spoke", "ok", "connected"))
        except OpwireError as error:
            results.append(CheckResult("spoke", "wrong", str(error)))
    return results


def _check_callers(config: Config) -> Iterator[CheckResult]:
    from opwire.config.surfaces import build_authenticator

    if missing_variables((config.identities, config.auth)):
        return  # reported by name already
    try:
        authenticator = build_authenticator(config)
    except OpwireError as error:
        yield CheckResult("callers", "wrong", str(error))
        return
    serves = config.serve.mcp is not None or config.serve.http is not None or config.hub is not None
    if authenticator is None and serves and not os.environ.get("OPWIRE_TOKEN"):
        message = "neither [identities] nor OPWIRE_TOKEN is set: each start generates a new token"
        yield CheckResult("callers", "note", message)


async def _check_sources(config: Config, screen: Screen) -> list[CheckResult]:
    """Load every source; a required one that fails does not hide the others."""
    optional = {name: replace(source, required=False) for name, source in config.sources.items()}
    async with opened(replace(config, sources=optional), screen, quiet=True) as running:
        results = [
            CheckResult(f"source {name}", "wrong", source_message(config, error))
            for name, error in running.failures.items()
        ]
        for name in optional:
            if name in running.failures:
                continue
            count = sum(1 for spec in running.registry.list() if running.source_of(spec.id) == name)
            results.append(CheckResult(f"source {name}", "ok", counted(count, "operation")))
            results += [CheckResult(f"source {name}", "note", note) for note in running.notes_of(name)]
        results += [CheckResult("policies", "note", problem) for problem in running.policy_problems()]
        logging.getLogger("opwire.registry").setLevel(logging.ERROR)  # the warnings of views are among the results
        for name in config.views:
            view = view_of(config, name, running.registry)
            results.append(CheckResult(f"view {name}", "ok", counted(len(view), "operation")))
            results += [CheckResult(f"view {name}", "note", problem) for problem in view.problems]
    return results


@click.command(name="conformance")
@click.argument("url")
@click.option("--listen", is_flag=True, help="Listen at URL as a hub, and check the peer that connects.")
@click.option(
    "--wait",
    type=NumberRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to wait for it, and to watch its calls.",
)
@click.option("--only", default="", metavar="TEXT", help="Check only the promises that contain a text.")
@click.option(
    "--timeout",
    type=NumberRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds of the whole run.",
)
@token_option("a hub")
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
    timeout: float,
    only: str,
) -> int:
    """Check a peer, in any language, against the protocol.

    URL is that of a hub (ws://, wss://), or of a broker (redis://, nats://) with the server. With --listen, a spoke or
    a caller connects to URL. A hub's token should announce in the namespace `conformance`; a server that serves
    conformance.echo, fail, count, wait, waiting and steps has all its promises checked. The exit code is 1 if a
    promise is broken. The checks are in the package opwire-conformance.
    """
    try:
        from opwire_conformance.peers import check_connecting_peer, check_peer
    except ModuleNotFoundError as error:
        message = "the conformance kit is not installed; run: pip install opwire-conformance"
        raise MissingExtraError(message, name=error.name) from error

    if listen:
        if not url.startswith("ws://"):
            raise click.UsageError("--listen takes ws://host:port")
        checking = check_connecting_peer(
            url, listening_at=lambda at: screen.note(f"listening at {at}"), wait=wait, timeout=timeout, only=only
        )
    else:
        options = Sources(token_env=token_env, prefix=prefix).connection_options(url)
        checking = check_peer(url, timeout=timeout, only=only, **options)
    report = asyncio.run(checking)
    code = exit_codes.ERROR_RESULT if report.broken else exit_codes.OK
    if screen.as_json:
        screen.json(to_builtins(report.results))
        return code
    role = ""
    for result in report.results:
        if result.role != role:
            role = result.role
            screen.heading(role)
        mark, colour = _PROMISE_MARKS[result.status]
        line = f"{cut(result.promise, 44):44} {result.section}"
        screen.marked(mark, colour, line)
        for part in wrap(one_line(result.message), screen.width - 4):
            screen.line(f"    {part}")
    numbers = {
        status: sum(status_of_promise.status == status for status_of_promise in report.results)
        for status in _PROMISE_MARKS
    }
    screen.line()
    screen.line(
        f"{counted(len(report.results), 'promise')}: {numbers['kept']} kept, {numbers['broken']} broken, "
        f"{numbers['skipped']} not checked"
    )
    return code
