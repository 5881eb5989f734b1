"""`opwire completion`: the scripts of the shells, and the words that they insert.

An id is a word of somebody else's document, and TAB puts it into a command line: `$(…)` in it must stay text. zsh and
fish quote what they insert. bash inserts words as they are, so its words are escaped here. With backslashes, not with
quotes: behind a quote that was typed already, a quoted word would end it.
"""

import os
import re
from pathlib import PurePath
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

from opwire.cli.options import shared_options

# Unlike click's: words are neither split nor expanded (`*` is a file name there), and COMP_ESCAPED says that this
# script keeps backslashes.
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

# Unlike click's: an id may hold a comma, or begin like an option of `echo`.
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
        """Return the words, escaped; for a script that was installed before that, those that need no escape."""
        found = super().get_completions(args, incomplete)
        if "COMP_ESCAPED" not in os.environ:
            return [each for each in found if not _UNSAFE.search(each.value)]
        for each in found:
            each.value = _UNSAFE.sub(r"\\\g<0>", each.value)
        return found


class _Zsh(ZshComplete):
    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return type, word and description; zsh's `_describe` reads backslashes in a word as escapes."""
        if item.help:
            item.value = item.value.replace("\\", r"\\")
        return super().format_completion(item)


class _Fish(FishComplete):
    source_template = _FISH


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def use_own_scripts() -> None:
    """Make click answer the scripts of this module."""
    for name, each in SHELLS.items():
        add_completion_class(each, name)


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(SHELLS)), required=False)
@shared_options
@click.pass_context
def command(ctx: click.Context, shell: str | None) -> None:
    """Print the script that completes commands, options and operation ids; SHELL is yours unless given.

    \b
      bash   opwire completion bash > ~/.local/share/bash-completion/completions/opwire
      zsh    opwire completion zsh > ~/.zfunc/_opwire      (a folder of $fpath)
      fish   opwire completion fish > ~/.config/fish/completions/opwire.fish

    Ids are those of the last time that the sources were loaded; nothing is started when you press TAB.
    """
    found = SHELLS.get(shell or PurePath(os.environ.get("SHELL", "")).name)
    if found is None:
        raise click.UsageError(f"say which shell: {', '.join(SHELLS)}")
    click.echo(found(ctx.find_root().command, {}, "opwire", "_OPWIRE_COMPLETE").source())
