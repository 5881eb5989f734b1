"""Options and arguments that commands share."""

import asyncio
import contextlib
import functools
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opwire.cli import sources as completing
from opwire.cli.screen import Form, Screen
from opwire.cli.sources import Sources

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


def _switch(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def turn_on(ctx: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            setattr(ctx.ensure_object(Screen), name, True)

    return turn_on


def _flag(*names: str, sets: str, help: str) -> Callable[[F], F]:
    return click.option(*names, is_flag=True, expose_value=False, callback=_switch(sets), help=help)


def shared_options(function: F) -> F:
    """`-v` and `--debug`, which stand before or after the name of the command."""
    function = _flag("--debug", sets="debug", help="Show the traceback of an error.")(function)
    return _flag("-v", "--verbose", sets="verbose", help="Show the details of errors, and what is loaded.")(function)


def json_option(function: F) -> F:
    """`--json`."""
    return _flag("--json", sets="as_json", help="Print JSON, errors included.")(function)


def result_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`, `--envelope` and `--raw`, of which one is given at most; the command gets a `form`."""

    @functools.wraps(function)
    def wrapped(envelope: bool, raw: bool, **arguments: Any) -> Any:
        screen = click.get_current_context().ensure_object(Screen)
        chosen = [form for form, given in zip(_FORMS, (screen.as_json, envelope, raw), strict=True) if given]
        if len(chosen) > 1:
            raise click.UsageError(f"--{chosen[0]} and --{chosen[1]} do not go together")
        return function(form=chosen[0] if chosen else Form.READABLE, **arguments)

    options = json_option(wrapped)
    options = click.option("--envelope", is_flag=True, help="Print the whole envelope as JSON: data and meta.")(options)
    return click.option("--raw", is_flag=True, help="Print text and binary data as they are.")(options)


_FORMS = (Form.JSON, Form.ENVELOPE, Form.RAW)


_SOURCES = {
    "config": click.option(
        "-c", "--config", metavar="FILE", help="The configuration; the nearest opwire.toml unless given."
    ),
    "python": click.option("--python", multiple=True, metavar="MODULE:REGISTRY", help="A registry of a Python module."),
    "mcp": click.option(
        "--mcp",
        "--from-mcp",
        "mcp",
        multiple=True,
        metavar="[NAME=]PROGRAM|URL|FILE",
        help="An MCP server: a program with its arguments, a URL, or an mcpServers file.",
    ),
    "openapi": click.option(
        "--openapi", multiple=True, metavar="[NAME=]FILE|URL", help="An HTTP API by its OpenAPI document."
    ),
}
_PLACES = {
    "url": click.option("--url", help="Where somebody serves: ws://, redis://, nats:// or http(s)://."),
    "token_env": click.option(
        "--token-env",
        default="OPWIRE_TOKEN",
        show_default=True,
        metavar="VARIABLE",
        help="The environment variable with the token for --url.",
    ),
}
# `serve --mcp` is what is served: there, an MCP server as a source has its longer name alone.
_FROM_MCP = click.option("--from-mcp", "mcp", multiple=True, metavar="[NAME=]PROGRAM|URL|FILE", help="An MCP server.")


def source_options(function: F) -> F:
    """Where the operations come from, to be called; the command gets `sources`."""
    return _with_sources(function, {**_SOURCES, **_PLACES})


def served_source_options(function: F) -> F:
    """Where the operations come from, to be served; the command gets `sources`."""
    return _with_sources(function, {**_SOURCES, "mcp": _FROM_MCP})


def _with_sources(function: Any, options: dict[str, Callable[[Any], Any]]) -> Any:
    @functools.wraps(function)
    def wrapped(*positional: Any, **arguments: Any) -> Any:
        named = {name: arguments.pop(name) for name in options}
        return function(*positional, sources=Sources(**named), **arguments)

    decorated: Any = wrapped
    for option in reversed(options.values()):
        decorated = option(decorated)
    return decorated


def operation_argument(*, subscriptions: bool | None = None) -> Callable[[F], F]:
    """`ID`, which a shell can complete: those of subscriptions, or those of all others."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        known = _known_ids(Sources(**{name: ctx.params[name] for name in Sources._fields if ctx.params.get(name)}))
        return [
            CompletionItem(id, help=type)
            for id, type in known.items()
            if id.startswith(incomplete)
            and not id.startswith("-")  # the namespace of a server may look like an option
            and (subscriptions is None or subscriptions == (type == "subscription"))
        ]

    return click.argument("operation_id", metavar="ID", shell_complete=complete)


def _known_ids(sources: Sources) -> dict[str, str]:
    """The ids that are remembered; those of Python modules are looked up if none are."""
    try:
        known = completing.recall(sources.key)
        return _local_ids(sources) if known is None else known
    except Exception:  # a shell that completes shows no errors, and has no use for half a screen of them
        return {}


def _local_ids(sources: Sources) -> dict[str, str]:
    async def load() -> dict[str, str]:
        async with sources.open_local(Screen()) as workbench:
            return {spec.id: spec.type.value for spec in workbench.specs.values()}

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return asyncio.run(load())
