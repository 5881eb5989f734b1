"""Options and arguments that several commands share."""

import asyncio
import contextlib
import functools
import inspect
import io
from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opwire.cli.screen import LogFormat, OutputFormat, Screen
from opwire.cli.sources import KnownOperation, Sources, cached_ids, known_operations, run
from opwire.names import similar_names, suggestion

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


class CommandGroup(click.Group):
    """A group with errors that say where an option belongs, and which command is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Override click's error for an option before the command with one that says where it belongs."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            commands = self.list_commands(ctx)
            command = next((argument for argument in args if argument in commands), commands[0])
            where = f"options follow their command; `{ctx.command_path} {command} --help` lists its options"
            raise click.UsageError(f"unknown option {error.option_name}; {where}", ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Override click's error for an unknown command with one that suggests a known name."""
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            hint = suggestion(self.similar_commands(ctx, args[0]), f"`{ctx.command_path} --help` lists the commands")
            raise click.UsageError(f"unknown command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def similar_commands(self, ctx: click.Context, name: str) -> list[str]:
        """Return the commands that an unknown name may mean."""
        return similar_names(name, self.list_commands(ctx))


class NumberRange(click.FloatRange):
    """A range without NaN, which click accepts: it is neither below nor above a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number.", param, ctx) if isnan(number) else number


_SOURCE_OPTIONS = {
    "config": click.option(
        "-c", "--config", metavar="FILE", help="The configuration file.  [default: the nearest opwire.toml]"
    ),
    "python": click.option(
        "--python", multiple=True, metavar="FILE|MODULE[:REGISTRY]", help="A registry of a Python file or module."
    ),
    "mcp": click.option(
        "--mcp",
        multiple=True,
        metavar="[NAME=]PROGRAM|URL|FILE",
        help="An MCP server: a command line, a URL, a Python file, or an mcpServers file.",
    ),
    "openapi": click.option(
        "--openapi",
        multiple=True,
        metavar="[NAME=]FILE|URL",
        help="An HTTP API, by its OpenAPI document. NAME is its namespace, by default from its title.",
    ),
}


def token_option(target: str) -> Callable[[F], F]:
    """Add `--token-env`."""
    help = f"The environment variable with the token for {target}."
    return click.option("--token-env", default="OPWIRE_TOKEN", show_default=True, metavar="VARIABLE", help=help)


_EXISTING_FILE = click.Path(exists=True, dir_okay=False)
BROKER_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "prefix": click.option("--prefix", help="The prefix of all names on a broker.  [default: opwire]"),
    "signing_key": click.option(
        "--signing-key", type=_EXISTING_FILE, metavar="FILE", help="Sign calls over a broker by it."
    ),
    "certificate": click.option(
        "--certificate", type=_EXISTING_FILE, metavar="FILE", help="The signing key's certificate."
    ),
}
_REMOTE_OPTIONS = {
    "url": click.option("--url", help="A served registry: ws://, redis://, nats://, http(s):// or localhost:8080."),
    "token_env": token_option("--url"),
    **BROKER_OPTIONS,
}


def _flag(*names: str, sets: str, help: str) -> Callable[[F], F]:
    """Return an option that sets an attribute of the `Screen`."""

    def callback(ctx: click.Context, _: click.Parameter, enabled: bool) -> None:
        if enabled:
            setattr(ctx.ensure_object(Screen), sets, True)

    return click.option(*names, is_flag=True, expose_value=False, callback=callback, help=help)


def shared_options(function: F) -> F:
    """Add `-v` and `--debug`, which are accepted before and after the name of a command; it may be `async`."""

    @functools.wraps(function)
    def wrapped(*positional: Any, **arguments: Any) -> Any:
        result = function(*positional, **arguments)
        return run(result) if inspect.iscoroutine(result) else result

    options: Any = _flag("--debug", sets="debug", help="Show the traceback of an error.")(wrapped)
    return _flag("-v", "--verbose", sets="verbose", help="Show error details and the progress of loading.")(options)


def log_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a server's log, and start it with the command."""

    @functools.wraps(function)
    def wrapped(*positional: Any, log_format: LogFormat, access_log: bool, **arguments: Any) -> Any:
        click.get_current_context().ensure_object(Screen).start_log(log_format, access=access_log)
        return function(*positional, **arguments)

    options = click.option(
        "--access-log/--no-access-log",
        default=True,
        help="Log each call: caller, operation, outcome, duration, bytes.  [default: yes]",
    )(wrapped)
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="The format of standard error; json is one object per line.  [default: text]",
    )(options)


def json_option(function: F) -> F:
    """Add `--json`."""
    return _flag("--json", sets="as_json", help="Print JSON, including errors.")(function)


def result_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, `--envelope` and `--raw`, which exclude each other; the command receives a `form`."""

    @functools.wraps(function)
    def wrapped(envelope: bool, raw: bool, **arguments: Any) -> Any:
        as_json = click.get_current_context().ensure_object(Screen).as_json
        flags = {OutputFormat.JSON: as_json, OutputFormat.ENVELOPE: envelope, OutputFormat.RAW: raw}
        chosen_forms = [form for form, enabled in flags.items() if enabled]
        if len(chosen_forms) > 1:
            raise click.UsageError(f"--{chosen_forms[0]} and --{chosen_forms[1]} exclude each other")
        return function(form=chosen_forms[0] if chosen_forms else OutputFormat.READABLE, **arguments)

    options = json_option(wrapped)
    options = click.option("--envelope", is_flag=True, help="Print the whole envelope as JSON: data and meta.")(options)
    return click.option("--raw", is_flag=True, help="Print text and binary data without escapes.")(options)


def source_options(function: F) -> F:
    """Add the options that name sources to call; the command receives `sources`."""
    return grouped_options(function, "sources", Sources, {**_SOURCE_OPTIONS, **_REMOTE_OPTIONS})


def served_source_options(function: F) -> F:
    """Add the options that name sources to serve; the command receives `sources`."""
    return grouped_options(function, "sources", Sources, _SOURCE_OPTIONS)


def observed_source_options(function: F) -> F:
    """Add the options that name a hub, a broker or an HTTP API; the command receives `sources`."""
    return grouped_options(function, "sources", Sources, {"config": _SOURCE_OPTIONS["config"], **_REMOTE_OPTIONS})


def grouped_options(function: Any, name: str, kind: type, options: dict[str, Callable[[Any], Any]]) -> Any:
    """Add options, which the command receives as the fields of one argument of this name."""

    @functools.wraps(function)
    def wrapped(*positional: Any, **arguments: Any) -> Any:
        fields = {option: arguments.pop(option) for option in options}
        return function(*positional, **{name: kind(**fields)}, **arguments)

    decorated: Any = wrapped
    for option in reversed(options.values()):
        decorated = option(decorated)
    return decorated


def operation_argument(*, subscriptions: bool | None = None) -> Callable[[F], F]:
    """Add the argument `ID`, which shells complete: only subscriptions, only other operations, or by default both."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(id, help=operation.type)
            for id, operation in _known_operations(ctx).items()
            if id.startswith(incomplete)
            and not id.startswith("-")  # the namespace of a server may look like an option
            and (subscriptions is None or subscriptions == (operation.type == "subscription"))
        ]

    return click.argument("operation_id", metavar="ID", shell_complete=complete)


def input_argument(function: F) -> F:
    """Add the argument `INPUT`; shells complete the names of fields, and the values that a schema lists."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        operation = _known_operations(ctx).get(ctx.params.get("operation_id") or "")
        fields = (operation.fields if operation else None) or {}
        name, equals, _ = incomplete.partition("=")
        if equals:
            return [
                CompletionItem(word)
                for value in fields.get(name, ())
                if (word := f"{name}={value}").startswith(incomplete)
            ]
        entered_fields = {word.partition("=")[0] for word in ctx.params.get("words") or ()}
        return [
            CompletionItem(f"{field_name}=", type="field")
            for field_name in fields
            if field_name.startswith(incomplete) and field_name not in entered_fields and not field_name.startswith("-")
        ]

    return click.argument("words", nargs=-1, metavar="[INPUT]...", shell_complete=complete)(function)


def namespace_option(**options: Any) -> Callable[[F], F]:
    """Add `--namespace`, which shells complete."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        namespaces = dict.fromkeys(id.partition(".")[0] for id in _known_operations(ctx))
        return [
            namespace for namespace in namespaces if namespace.startswith(incomplete) and not namespace.startswith("-")
        ]

    return click.option("-n", "--namespace", shell_complete=complete, **options)


def _known_operations(ctx: click.Context) -> dict[str, KnownOperation]:
    """Return the cached operations; without a cache, load those of Python modules, which starts no server."""
    sources = Sources(**{name: ctx.params[name] for name in Sources._fields if ctx.params.get(name)})

    async def load() -> dict[str, KnownOperation]:
        async with sources.open_local(Screen()) as loaded:
            return known_operations(loaded.specs.values())

    try:
        cached_operations = cached_ids(sources.key)
        if cached_operations is not None:
            return cached_operations
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return asyncio.run(load())
    except Exception:  # an error message would end up in the command line that is being completed
        return {}
