"""`opwire completion`: what a shell has to know."""

import os
from pathlib import PurePath

import click
from click.shell_completion import get_completion_class

from opwire.cli.options import shared_options

SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
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
    shell = shell or PurePath(os.environ.get("SHELL", "")).name
    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise click.UsageError(f"say which shell: {', '.join(SHELLS)}")
    click.echo(found(ctx.find_root().command, {}, "opwire", "_OPWIRE_COMPLETE").source())
