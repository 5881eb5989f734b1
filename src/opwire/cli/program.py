"""The program `opwire`: its commands, loaded when they are asked for, and how each of them can end.

Rules: no command prints an error or ends the process. It raises, and `run` says the one line and gives the exit code.
"""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from opwire import __version__
from opwire.cli import exit_codes
from opwire.cli.options import shared_options
from opwire.cli.screen import Screen
from opwire.typed.plain import harmless

COMMANDS = {
    "ls": "List the operations, or search them.",
    "describe": "Show what an operation takes and gives.",
    "call": "Call an operation, and print what it answers.",
    "watch": "Follow a subscription, item by item.",
    "serve": "Serve the operations as an MCP server, an HTTP API, or both.",
    "hub": "Run a hub that spokes connect to.",
    "spoke": "Serve the operations over a hub or a broker.",
    "doctor": "Check the configuration, each source, and what is installed.",
    "init": "Write a commented opwire.toml.",
    "gen": "Generate code from the operations.",
    "completion": "Print the script that completes commands and operation ids in a shell.",
    "demo": "Show what opwire does, on this machine alone.",
}

# Commands that share a module with another one.
_MODULES = {
    **dict.fromkeys(("ls", "describe"), "listing"),
    **dict.fromkeys(("init", "gen", "completion", "demo"), "setup"),
    **dict.fromkeys(("hub", "spoke"), "serve"),
    "watch": "call",
}


class Program(click.Group):
    """Imports the module of a command when that command is run: `opwire ls` pays for nothing else."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which one would learn them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"opwire.cli.commands.{_MODULES.get(cmd_name, cmd_name)}")
        return getattr(module, f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, for which nothing has to be imported."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the nearest name where there is none."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "`opwire --help` lists them."
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does it; but click would end the process with code 1 when nobody reads any more."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _NobodyReadsError from error


class _NobodyReadsError(Exception):
    pass


@click.command(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each command explains itself: opwire call --help. Exit codes: " + exit_codes.IN_WORDS,
)
@click.version_option(__version__, prog_name="opwire", message="%(prog)s %(version)s")
@shared_options
def program() -> None:
    """Call anything, get one envelope: Python functions, MCP tools and HTTP APIs."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    screen = Screen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every character
    if "_OPWIRE_COMPLETE" in os.environ:
        importlib.import_module("opwire.cli.commands.setup").use_own_scripts()
    try:
        with screen.logging():
            ended = program.main(arguments, prog_name="opwire", standalone_mode=False, obj=screen)
            sys.stdout.flush()
        return ended if isinstance(ended, int) else exit_codes.OK
    except (BrokenPipeError, _NobodyReadsError):
        # Whoever read has enough. The interpreter would complain when it flushes at its end: there is nothing to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return exit_codes.BROKEN_PIPE
    except click.ClickException as error:
        if screen.as_json:
            screen.failure(error)
        else:
            said = io.StringIO()
            error.show(said)
            click.echo(harmless(said.getvalue()), err=True, nl=False)  # it may name an operation, or what a file says
        return exit_codes.USAGE
    except (KeyboardInterrupt, click.Abort):
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal has written ^C, and the shell goes on behind it
        return exit_codes.INTERRUPTED
    except Exception as error:
        screen.failure(error)
        return exit_codes.of_error(error)
