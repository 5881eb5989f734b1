"""`opwire init`, `gen`, `completion` and `demo`: commands around the operations.

Completion: an id comes from a foreign document, and TAB inserts it into a command line, where `$(…)` must stay text.
zsh and fish quote inserted words; bash does not, so words for bash are escaped here. With backslashes, not with quotes:
after a quote that the user has typed, a quoted word would close it.
"""

import asyncio
import os
import re
from pathlib import Path, PurePath
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from opwire.cli.options import shared_options, source_options
from opwire.cli.screen import Screen, counted
from opwire.cli.sources import Sources
from opwire.errors import needs_extra

# Unlike click's script, words are neither split nor expanded (`*` would expand to file names), and COMP_ESCAPED tells
# the program that this script keeps backslashes.
_BASH = r"""
%(complete_func)s() {
    local response line
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" COMP_ESCAPED=1 \
%(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done <<< "$response"
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

# Unlike click's script, an id may contain a comma or start like an option of `echo`.
_FISH = r"""
function %(complete_func)s;
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp | string collect) \
COMP_CWORD=(commandline -t | string collect) %(prog_name)s);

    for completion in $response;
        set -l metadata (string split --max 1 -- "," $completion);
        switch $metadata[1];
            case dir;
                __fish_complete_directories $metadata[2];
            case file;
                __fish_complete_path $metadata[2];
            case plain;
                printf '%%s\n' $metadata[2];
        end;
    end;
end;

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)";
"""

_UNSAFE = re.compile(r"[^\w@%+=:,./-]")


class _Bash(BashComplete):
    source_template = _BASH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Return escaped words; for a script installed before COMP_ESCAPED, only words that need no escapes."""
        found = super().get_completions(args, incomplete)
        if "COMP_ESCAPED" not in os.environ:
            return [each for each in found if not _UNSAFE.search(each.value)]
        for each in found:
            each.value = _UNSAFE.sub(r"\\\g<0>", each.value)
        return found


class _Zsh(ZshComplete):
    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return type, word and description; zsh's `_describe` parses backslashes in a word as escapes."""
        if item.help:
            item.value = item.value.replace("\\", r"\\")
        return super().format_completion(item)


class _Fish(FishComplete):
    source_template = _FISH


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def use_own_scripts() -> None:
    """Override click's completion classes with those of this module."""
    for name, each in SHELLS.items():
        add_completion_class(each, name)


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(SHELLS)), required=False)
@shared_options
@click.pass_context
def completion_command(ctx: click.Context, shell: str | None) -> None:
    """Print the script that completes commands, options and operation ids; SHELL defaults to $SHELL.

    \b
      bash   opwire completion bash > ~/.local/share/bash-completion/completions/opwire
      zsh    opwire completion zsh > ~/.zfunc/_opwire      (a folder of $fpath)
      fish   opwire completion fish > ~/.config/fish/completions/opwire.fish

    Ids are cached when sources are loaded; pressing TAB starts no server.
    """
    found = SHELLS.get(shell or PurePath(os.environ.get("SHELL", "")).name)
    if found is None:
        raise click.UsageError(f"unknown shell; name one of: {', '.join(SHELLS)}")
    click.echo(found(ctx.find_root().command, {}, "opwire", "_OPWIRE_COMPLETE").source())


@click.group(name="gen")
def gen_command() -> None:
    """Generate code from the operations."""


@gen_command.command()
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The module to write.")
@click.option("-n", "--namespace", multiple=True, help="Only operations of this namespace; may be repeated.")
@click.option("--class-name", default="Operations", show_default=True, help="The class of the client.")
@click.option("--sync", is_flag=True, help="Methods that block, for scripts and notebooks, instead of awaited ones.")
@source_options
@shared_options
@click.pass_obj
def client(
    screen: Screen, output: Path | None, namespace: tuple[str, ...], class_name: str, *, sync: bool, sources: Sources
) -> None:
    """Write a typed Python module: a method for each operation, a type for each schema."""
    from opwire.client import generate_client

    found = sources.load(screen).specs.values()
    specs = [spec for spec in found if not namespace or spec.namespace in namespace]
    code = generate_client(specs, class_name=class_name, sync=sync)
    if output is None:
        click.echo(code, nl=False)
        return
    try:
        output.write_text(code, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{output}: cannot write the file: {error.strerror}") from None
    screen.note(f"{output}: {counted(len(specs), 'operation')}")


@click.command(name="init")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), default="opwire.toml")
@shared_options
@click.pass_obj
def init_command(screen: Screen, path: Path) -> None:
    """Write a commented configuration to PATH, by default opwire.toml. An existing file is never overwritten."""
    from opwire.config import TEMPLATE

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise click.UsageError(f"{path} already exists, and is not overwritten") from None
    except OSError as error:
        raise click.UsageError(f"{path}: cannot write the file: {error.strerror}") from None
    screen.note(f"{path} written: add your sources, check them with `opwire doctor`, list them with `opwire ls`")


@click.command(name="demo")
@shared_options
def demo_command() -> None:
    """Run a short demonstration: three sources, one registry, served twice. Everything stays on this machine."""
    with needs_extra("cli,http,mcp,openapi"):
        from opwire.cli.demo.story import DemoPrinter, run_demo
    asyncio.run(run_demo(DemoPrinter()))
