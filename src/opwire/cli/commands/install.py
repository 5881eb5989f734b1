"""`opwire install`: add `opwire serve` over stdio to the configuration of an MCP client.

Rules: nothing else in the file changes. It is replaced atomically, after a backup. A file that would lose something,
such as comments, is not written: the entry is printed instead.
"""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import click

from opwire.cli.options import served_source_options, shared_options
from opwire.cli.screen import Screen
from opwire.cli.sources import Sources
from opwire.config.settings import env_texts

MAX_FILE = 16 * 1024 * 1024
"""Bytes of a configuration file that is edited."""

Scope = Literal["user", "project"]


class ClientProgram(NamedTuple):
    """Where an MCP client keeps its servers, and how."""

    title: str
    next_step: str
    scope: Scope  # the default
    project: tuple[str, ...] = ()  # the file in a project; empty if it has none
    user: tuple[str, ...] = ()  # the file in the home folder, or in that of the applications' settings
    in_settings: bool = False
    key: str = "mcpServers"
    variable: str = ""  # how an entry refers to an environment variable; empty if it cannot


CLIENTS = {
    "claude-desktop": ClientProgram(
        "Claude Desktop",
        "restart Claude Desktop",
        "user",
        user=("Claude", "claude_desktop_config.json"),
        in_settings=True,
    ),
    "claude-code": ClientProgram(
        "Claude Code",
        "start `claude` in this folder and approve the server",
        "project",
        project=(".mcp.json",),
        variable="${%s}",
    ),
    "cursor": ClientProgram(
        "Cursor",
        "enable the server in Cursor's settings, under MCP",
        "user",
        project=(".cursor", "mcp.json"),
        user=(".cursor", "mcp.json"),
        variable="${env:%s}",
    ),
    "vscode": ClientProgram(
        "VS Code",
        "run `MCP: List Servers` in VS Code and start the server",
        "project",
        project=(".vscode", "mcp.json"),
        user=("Code", "User", "mcp.json"),
        in_settings=True,
        key="servers",
        variable="${env:%s}",
    ),
}


@click.command(name="install")
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.option("--name", help="The name of the server.  [default: the name of the folder]")
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    help="For you, or for this folder.  [default: user for claude-desktop and cursor, project for the others]",
)
@click.option("--print", "only_print", is_flag=True, help="Print the entry, and write nothing.")
@click.option("--force", is_flag=True, help="Replace a server of the same name.")
@served_source_options
@shared_options
@click.pass_obj
def install_command(
    screen: Screen,
    *,
    client: str,
    name: str | None,
    scope: Scope | None,
    only_print: bool,
    force: bool,
    sources: Sources,
) -> None:
    """Serve the operations to an MCP client: add them to its configuration, which is backed up.

    \b
      opwire install claude-desktop                     the nearest opwire.toml
      opwire install cursor --python shop:registry
      opwire install vscode --print                     only show the entry
    """
    program = CLIENTS[client]
    scope = scope or program.scope
    file = sources.file
    name = name or re.sub(r"[^\w-]+", "-", (Path.cwd() if file is None else file.absolute().parent).name) or "opwire"
    if not re.fullmatch(r"[\w-]{1,64}", name, re.ASCII):
        raise click.UsageError(f"--name: use up to 64 letters, digits, - and _, not {name[:80]!r}")
    entry, missing = server_entry(sources, program)
    snippet = json.dumps({program.key: {name: entry}}, indent=2, ensure_ascii=False)
    if client == "claude-code" and scope == "user":
        # Claude Code rewrites ~/.claude.json while it runs, and would lose an entry that another program adds.
        variables = [word for variable in entry["env"].items() for word in ("--env", "=".join(variable))]
        # `--env` takes every word that follows, up to the next option.
        words = ["claude", "mcp", "add", name, *variables, "--scope", "user", "--", entry["command"], *entry["args"]]
        screen.note("Claude Code adds a server for you with this command:")
        screen.line(shlex.join(words))
        return
    path = config_path(program, scope)
    if only_print:
        screen.note(f"{program.title} reads it from {path}")
        screen.line(snippet)
    else:
        try:
            backup = add_entry(path, program.key, name, entry, force=force)
        except UneditableFileError as error:
            screen.line(snippet)
            raise click.UsageError(f"{path}: {error}; nothing was written. Add the entry above by hand") from None
        backup_text = "" if backup is None else f"; the file before is {backup}"
        screen.note(f"{name} is in {path}{backup_text}")
        screen.note(f"next: {program.next_step}")
    if missing:
        names = ", ".join(missing)
        screen.warning(f'{program.title} does not pass on {names}: write the values into "env" of the entry')


def server_entry(sources: Sources, program: ClientProgram) -> tuple[dict[str, Any], list[str]]:
    """Return the entry that starts `opwire serve`, and the environment variables that it lacks.

    Paths are absolute: clients start programs in a folder of their own, with a PATH of their own.

    Raises:
        ConfigError, click.UsageError: as `Sources.read`.
    """

    def absolute(text: str) -> str:
        name, target = cast("tuple[str, str]", re.fullmatch(r"([\w-]+=)?(.*)", text, re.DOTALL).groups(""))  # pyright: ignore[reportOptionalMemberAccess]
        path, colon, attribute = target.partition(":") if re.match(r"[^:]+\.py:", target) else (target, "", "")
        return f"{name}{Path(path).absolute()}{colon}{attribute}" if Path(path).is_file() else text

    config, file = sources.read(), sources.file
    paths = sources._replace(
        config=None if file is None else str(file.absolute()),
        python=tuple(map(absolute, sources.python)),
        mcp=tuple(map(absolute, sources.mcp)),
        openapi=tuple(map(absolute, sources.openapi)),
    )
    variables = sorted({name for text in env_texts(config.sources) for name in text.variables})
    env = {name: program.variable % name for name in variables if program.variable}
    if sources.python:
        env["PYTHONPATH"] = str(Path.cwd())  # modules are found in the current folder
    arguments = ["-m", "opwire.cli", "serve", "--as", "mcp-stdio", *paths.words]
    kind = {"type": "stdio"} if program.key == "servers" else {}  # VS Code requires it, others infer it
    return {**kind, "command": sys.executable, "args": arguments, "env": env}, [] if program.variable else variables


def config_path(program: ClientProgram, scope: Scope) -> Path:
    """Return the configuration file of a client on this system.

    Raises:
        click.UsageError: the client has no file for this scope.
    """
    parts = program.project if scope == "project" else program.user
    if not parts:
        raise click.UsageError(f"{program.title} has no configuration for --scope {scope}")
    if scope == "project":
        return Path.cwd().joinpath(*parts)
    if not program.in_settings:
        return Path.home().joinpath(*parts)
    if sys.platform == "darwin":
        return Path.home().joinpath("Library", "Application Support", *parts)
    variable, default = ("APPDATA", "AppData/Roaming") if sys.platform == "win32" else ("XDG_CONFIG_HOME", ".config")
    return Path(os.environ.get(variable) or Path.home() / default).joinpath(*parts)


class UneditableFileError(Exception):
    """A file that cannot be rewritten without a loss."""


def add_entry(path: Path, key: str, name: str, entry: dict[str, Any], *, force: bool) -> Path | None:
    """Add a server to a configuration file; return the backup, or None if there was nothing to back up or to change.

    Raises:
        UneditableFileError: the file cannot be rewritten without a loss.
        click.UsageError: another server has this name.
    """
    path = path.resolve()  # a link to a file of a dotfiles folder stays a link
    text = _read(path)
    content = _parse(text) if text.strip() else {}
    servers: Any = content.setdefault(key, {})
    if not isinstance(servers, dict):
        raise UneditableFileError(f"{key} is not an object")
    if name in servers and servers[name] == entry:
        return None
    if name in servers and not force:
        raise click.UsageError(f"{path} has another server {name}: choose a --name, or replace it with --force")
    servers[name] = entry
    indent = re.search(r"\n([ \t]+)\S", text)
    escapes = text.isascii() or "\\ud" in text.lower()  # a lone surrogate can be escaped in JSON, not encoded in UTF-8
    try:
        new = json.dumps(content, indent=indent[1] if indent else 2, ensure_ascii=escapes, allow_nan=False)
    except ValueError:
        raise UneditableFileError("a number is too large, and would be lost") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        backup = None
        if path.exists():
            backups = (path.with_name(f"{path.name}.{number}.bak") for number in range(1, 10_000))
            backup = next(path for path in backups if not path.exists())
            shutil.copy2(path, backup)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # For its owner only, unless the file was there before: entries may contain secrets.
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(f"{new}\n".encode())
                stream.flush()
                os.fsync(stream.fileno())
            if backup is not None:
                shutil.copymode(path, draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UneditableFileError(f"cannot be written: {error.strerror}") from error
    return backup


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise UneditableFileError(f"larger than {MAX_FILE:,} bytes")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UneditableFileError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UneditableFileError("not encoded as UTF-8") from error


def _parse(text: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise UneditableFileError("a key occurs twice in an object")
        return dict(pairs)

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        is_extended = re.search(r"//|/\*|,\s*[}\]]", text)
        reason = "it has comments or trailing commas, which would be lost" if is_extended else f"not JSON: {error}"
        raise UneditableFileError(reason) from error
    if not isinstance(content, dict):
        raise UneditableFileError("not a JSON object")
    return cast("dict[str, Any]", content)
