"""The program `opwire`: its commands, imported lazily, and its exit codes.

Rules: a command neither prints an error nor exits. It raises; `run` prints one line and returns the exit code.
"""

import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from opwire import __version__
from opwire.cli import exit_codes
from opwire.cli.options import CommandGroup, shared_options
from opwire.cli.screen import Screen, folded
from opwire.errors import OpwireError
from opwire.runtime.text import harmless

COMMANDS = {
    "ls": "List or search the operations.",
    "describe": "Show the input and output of an operation.",
    "call": "Call an operation and print its result.",
    "watch": "Follow a subscription, item by item.",
    "serve": "Serve the operations as an MCP server, an HTTP API, or both.",
    "console": "Open a web page that shows, calls and watches the operations.",
    "hub": "Run a hub that spokes connect to.",
    "spoke": "Serve the operations over a hub or a broker.",
    "ps": "List the servers behind a URL, with their health and calls.",
    "top": "Show servers and their busiest operations, live.",
    "tap": "Print the calls of a hub, broker or HTTP API as they end.",
    "login": "Sign in to an HTTP API or MCP server as a person.",
    "logout": "Sign out, and forget the login.",
    "conformance": "Check a peer in any language against the protocol.",
    "doctor": "Check the configuration, each source, and the installed extras.",
    "init": "Write a commented opwire.toml.",
    "install": "Add the operations to an MCP client: Claude, Cursor or VS Code.",
    "gen": "Generate code from the operations.",
    "keys": "Create the keys and certificates of signed calls over a broker.",
    "completion": "Print the script that completes commands and ids in a shell.",
    "demo": "Run a short demonstration on this machine.",
}

# Commands that share a module with another one.
_COMMAND_MODULES = {
    **dict.fromkeys(("ls", "describe"), "listing"),
    **dict.fromkeys(("init", "gen", "keys", "completion", "demo"), "setup"),
    **dict.fromkeys(("hub", "spoke"), "serve"),
    "watch": "call",
    "logout": "login",
    "conformance": "doctor",
    **dict.fromkeys(("ps", "top", "tap", "console"), "monitor"),
}


# What other programs call a command.
_COMMAND_SYNONYMS = {
    **dict.fromkeys(("list", "search", "find", "tools"), "ls"),
    **dict.fromkeys(("show", "inspect", "schema"), "describe"),
    **dict.fromkeys(("run", "exec", "invoke", "execute"), "call"),
    **dict.fromkeys(("subscribe", "follow"), "watch"),
    **dict.fromkeys(("start", "up"), "serve"),
    **dict.fromkeys(("ui", "web"), "console"),
    **dict.fromkeys(("check", "validate", "lint"), "doctor"),
    **dict.fromkeys(("log", "logs"), "tap"),
    **dict.fromkeys(("new", "config"), "init"),
    **dict.fromkeys(("generate", "codegen"), "gen"),
}


class Program(CommandGroup):
    """A group that imports the module of a command when that command runs, so that `opwire ls` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; return None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"opwire.cli.commands.{_COMMAND_MODULES.get(cmd_name, cmd_name)}")
        return getattr(module, f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def similar_commands(self, ctx: click.Context, name: str) -> list[str]:
        """Return what another program calls so, or the similar names."""
        return [_COMMAND_SYNONYMS[name]] if name in _COMMAND_SYNONYMS else super().similar_commands(ctx, name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a broken pipe raises `_OutputClosedError`, since click would exit with code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _OutputClosedError from error
        except click.UsageError as error:
            raise _with_hint(error) from None


# Of the disk, the user's quota, the largest file. Commands report the files that they write themselves.
_DISK_FULL_ERRORS = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}


class _OutputClosedError(Exception):
    pass


def _with_hint(error: click.UsageError) -> click.UsageError:
    """Return an error that says where a URL or a port belongs, and how fields are written.

    Some commands have `--url`, others take it as an argument.
    """
    params = {param.name: param for param in error.ctx.command.params} if error.ctx is not None else {}
    if isinstance(error, click.NoSuchOption) and error.option_name == "--url" and error.ctx is not None:
        if "url" in params:
            hint = f"; write the URL without it: {error.ctx.command_path} ws://127.0.0.1:8700"
        else:
            hint = "; --mcp URL and --openapi URL name servers elsewhere" if "mcp" in params else ""
        return click.UsageError(f"unknown option --url{hint}", error.ctx)
    if isinstance(error, click.NoSuchOption) and error.ctx and error.ctx.info_name in ("call", "watch"):
        name = error.option_name.lstrip("-")
        return click.UsageError(f"{error.format_message()} A field of the input has no dashes: {name}=…", error.ctx)
    if isinstance(error, click.NoSuchOption) and error.option_name in ("--host", "--port") and "url" in params:
        url = "ws://127.0.0.1:8700" if isinstance(params["url"], click.Argument) else "--url ws://127.0.0.1:8700"
        path = error.ctx.command_path if error.ctx is not None else ""
        return click.UsageError(f"unknown option {error.option_name}; write the URL: {path} {url}", error.ctx)
    if "unexpected extra argument" in error.message and "://" in error.message:
        return click.UsageError(f"{error.message}; a URL is the value of --url", error.ctx)
    if "port" in params and re.search(r"unexpected extra argument \(:?\d+\)", error.message):
        return click.UsageError(f"{error.message}; a port is the value of --port", error.ctx)
    return error


@click.command(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="To begin: opwire demo, opwire init. Help for a command: opwire call --help. Exit codes: "
    + exit_codes.MEANINGS,
)
@click.version_option(__version__, prog_name="opwire", message="%(prog)s %(version)s")
@shared_options
def program() -> None:
    """Call anything, get one envelope: Python functions, MCP tools and HTTP APIs."""


def _prepare_streams() -> None:
    """Replace streams that are closed, as by `opwire serve <&- >&-`, and escape what a terminal cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # the order of their descriptors, the lowest
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Close standard output, which the interpreter would flush at exit and report."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    screen = Screen()
    _prepare_streams()
    if "_OPWIRE_COMPLETE" in os.environ:
        importlib.import_module("opwire.cli.commands.setup").use_own_scripts()
    try:
        with screen.logging():
            exit_code = program.main(arguments, prog_name="opwire", standalone_mode=False, obj=screen)
            sys.stdout.flush()
        return exit_code if isinstance(exit_code, int) else exit_codes.OK
    except (BrokenPipeError, _OutputClosedError):
        _discard_output()  # the reader closed the pipe
        return exit_codes.BROKEN_PIPE
    except click.ClickException as error:
        if screen.as_json:
            screen.failure(error)
        else:
            buffer = io.StringIO()
            error.show(buffer)
            # It may quote an operation id or a file.
            click.echo(folded(harmless(buffer.getvalue())), err=True, nl=False)
        return exit_codes.USAGE
    except (KeyboardInterrupt, click.Abort):
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal has echoed ^C; the shell's prompt starts on a new line
        return exit_codes.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_FULL_ERRORS:
            _discard_output()
            error = OpwireError(f"cannot write the output: {error.strerror}")
        screen.failure(error)
        return exit_codes.of_error(error)
