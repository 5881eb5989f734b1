"""`opwire doctor`: what is wrong, and what to do about it."""

import asyncio
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import click
import msgspec
from msgspec.structs import replace

from opwire import __version__
from opwire.cli import exit_codes
from opwire.cli.options import json_option, shared_options, source_options
from opwire.cli.screen import Screen, counted
from opwire.cli.sources import Sources, opened
from opwire.errors import OpwireError

if TYPE_CHECKING:
    from opwire.config import Config

Status = Literal["ok", "note", "wrong"]
_MARKS: dict[Status, tuple[str, str]] = {"ok": ("✓", "green"), "note": ("·", "yellow"), "wrong": ("✗", "red")}
# What each extra brings, by the package that shows that it is there.
_EXTRAS = {
    "auth": "pyjwt",
    "cli": "rich",
    "http": "starlette",
    "mcp": "mcp",
    "nats": "cryptography",
    "openapi": "aiohttp",
    "otel": "opentelemetry-api",
    "redis": "hiredis",
    "websocket": "websockets",
}


class Finding(NamedTuple):
    """What was looked at, and how it is."""

    check: str
    status: Status
    message: str


@click.command(name="doctor")
@source_options
@json_option
@shared_options
@click.pass_obj
def command(screen: Screen, sources: Sources) -> int:
    """Check what is installed, the configuration, the environment variables that it names, and each source.

    Sources are really loaded, which starts MCP servers. Exit code 1: something is wrong.
    """
    findings = [*_installed(), *asyncio.run(_examined(sources, screen))]
    if screen.as_json:
        screen.json([finding._asdict() for finding in findings])
    for check, status, message in () if screen.as_json else findings:
        mark, colour = _MARKS[status]
        screen.marked(mark, colour, f"{check}: {message}")
    return exit_codes.ANSWERED_WITH_ERROR if any(each.status == "wrong" for each in findings) else exit_codes.OK


def _installed() -> Iterator[Finding]:
    yield Finding("opwire", "ok", f"{__version__} on Python {platform.python_version()}")
    for extra, package in _EXTRAS.items():
        try:
            yield Finding(extra, "ok", f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(extra, "note", f"not installed; if you need it: pip install 'opwire[{extra}]'")


async def _examined(sources: Sources, screen: Screen) -> list[Finding]:
    if sources.url is not None:
        return [await _reached(sources, screen)]
    try:
        config = sources.read()
    except (OpwireError, click.UsageError) as error:
        return [Finding("configuration", "wrong", str(error))]
    place = "the command line" if config.file is None else str(config.file)
    return [
        Finding("configuration", "ok", f"{place}, {counted(len(config.sources), 'source')}"),
        *_environment(config),
        *_callers(config),
        *await _loaded(config, screen),
        *await _spoke(config),
    ]


async def _reached(sources: Sources, screen: Screen) -> Finding:
    try:
        async with sources.open(screen) as workbench:
            return Finding("url", "ok", counted(len(workbench.specs), "operation"))
    except OpwireError as error:
        return Finding("url", "wrong", str(error))


def _environment(config: "Config") -> Iterator[Finding]:
    """The variables that are named, and not set."""
    for name in dict.fromkeys(_missing(msgspec.structs.asdict(config))):
        yield Finding("environment", "wrong", f"{name} is not set, and the configuration asks for it: export {name}=…")


def _missing(value: Any) -> Iterator[str]:
    from opwire.config.settings import EnvText

    if isinstance(value, EnvText):
        yield from value.missing
    elif isinstance(value, msgspec.Struct):
        yield from _missing(msgspec.structs.asdict(value))
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _missing(each)
    elif isinstance(value, tuple):
        for each in cast("tuple[Any, ...]", value):
            yield from _missing(each)


def _callers(config: "Config") -> Iterator[Finding]:
    """Whether those who may call can be told."""
    from opwire.config import build_authenticator

    try:
        known = build_authenticator(config)
    except OpwireError as error:
        yield Finding("callers", "wrong", str(error))
        return
    serves = config.serve.mcp is not None or config.serve.http is not None or config.hub is not None
    if known is None and serves and not os.environ.get("OPWIRE_TOKEN"):
        yield Finding("callers", "note", "no [identities] and no OPWIRE_TOKEN: a token is made at each start")


async def _loaded(config: "Config", screen: Screen) -> list[Finding]:
    """Every source, whether or not one of them is required."""
    lenient = {name: replace(source, required=False) for name, source in config.sources.items()}
    async with opened(replace(config, sources=lenient), screen, quiet=True) as running:
        findings = [Finding(f"source {name}", "wrong", str(error)) for name, error in running.failures.items()]
        for name in lenient:
            if name in running.failures:
                continue
            count = sum(1 for spec in running.registry.list() if running.source_of(spec.id) == name)
            findings.append(Finding(f"source {name}", "ok", counted(count, "operation")))
            findings += [Finding(f"source {name}", "note", note) for note in running.notes_of(name)]
    return findings


async def _spoke(config: "Config") -> list[Finding]:
    """Whether what `[spoke]` names can be reached."""
    from opwire.config import spoke_of

    if config.spoke is None:
        return []
    try:
        async with spoke_of(config, None):
            return [Finding("spoke", "ok", "connected")]
    except OpwireError as error:
        return [Finding("spoke", "wrong", str(error))]
