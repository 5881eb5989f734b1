"""`opwire init`, `gen`, `keys`, `completion` and `demo`: commands around the operations.

Completion: ids, fields and values come from foreign documents, and TAB inserts them into a command line, where `$(…)`
must stay text. zsh and fish quote inserted words. bash does not, so words for bash are escaped here, with backslashes:
after a quote that the user has typed, a quoted word would close it. PowerShell does not either: words that need it
are in single quotes. The type `field` is a word like `size=`, which no space follows.
"""

import asyncio
import os
import re
import shlex
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
    split_arg_string,
)

from opwire.cli.options import CommandGroup, NumberRange, namespace_option, shared_options, source_options
from opwire.cli.screen import Screen, write_file
from opwire.cli.sources import Sources, unknown_namespace
from opwire.config.reading import TEMPLATE
from opwire.errors import UsageError, needs_extra
from opwire.model.identity import Identity
from opwire.names import counted

_MAX_KEY_FILE_BYTES = 64 * 1024
_UNSAFE = re.compile(r"[^\w@%+=:,./-]")


def _script(name: str) -> str:
    """Return the completion script of a shell; click fills in its names."""
    return (Path(__file__).parents[1] / "completion" / name).read_text(encoding="utf-8")


class _Bash(BashComplete):
    # Unlike in click's script, words are neither split nor expanded (`*` would expand to file names). COMP_ESCAPED
    # tells the program that this script keeps backslashes, COMP_TYPED has the words that bash splits at `=` and `:`.
    source_template = _script("opwire.bash")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor and the one at it; bash itself splits `size=m` into three words."""
        typed = os.environ.get("COMP_TYPED")
        if typed is None:
            return super().get_completion_args()
        words = split_arg_string(typed)
        is_new = not words or typed[-1].isspace()
        return words[1:] if is_new else words[1:-1], "" if is_new else words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Return escaped words; for a script installed before COMP_ESCAPED, only words that need no escapes.

        bash replaces only what follows the last character that it breaks words at, such as `=`.
        """
        completions = super().get_completions(args, incomplete)
        if "COMP_ESCAPED" not in os.environ:
            return [
                completion
                for completion in completions
                if not _UNSAFE.search(completion.value) and completion.type != "field"
            ]
        breaks = set(os.environ.get("COMP_BREAKS", "")) & set("=:")
        prefix_length = max((incomplete.rfind(separator) + 1 for separator in breaks), default=0)
        for completion in completions:
            completion.value = _UNSAFE.sub(r"\\\g<0>", completion.value[prefix_length:])
        return completions


class _Zsh(ZshComplete):
    # Unlike in click's script, fields are completed without a space behind them.
    source_template = _script("opwire.zsh")

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return type, word and description; zsh's `_describe` parses backslashes in a word as escapes."""
        if item.help:
            item.value = item.value.replace("\\", r"\\")
        return super().format_completion(item)


class _PowerShell(ShellComplete):
    # Words are passed one per line, as they were typed; the last one is the word to complete.
    name = "powershell"
    source_template = _script("opwire.ps1")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor and the one at it, without their quotes."""
        _, *words = map(_unquoted, os.environ.get("COMP_WORDS", "").split("\n"))
        return words[:-1], words[-1] if words else ""

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return type, word and description; a word that PowerShell would interpret is in single quotes."""
        word = item.value
        if _UNSAFE_POWERSHELL.search(word):
            word = "'" + _QUOTES.sub(r"\g<0>\g<0>", word) + "'"
        return f"{item.type}\t{word}\t{item.help or item.value}"


# PowerShell takes typographic quotes for straight ones. A comma makes a list, `@` at the start a splat.
_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")
_UNSAFE_POWERSHELL = re.compile(r"[^\w+=:./-]")


def _unquoted(word: str) -> str:
    if len(word) > 1 and word[0] == word[-1] == "'":
        return word[1:-1].replace("''", "'")
    return word.strip("'\"")


class _Fish(FishComplete):
    # Unlike in click's script, an id may contain a comma or start like an option of `echo`.
    source_template = _script("opwire.fish")


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish, "powershell": _PowerShell}


def use_own_scripts() -> None:
    """Override click's completion classes with those of this module."""
    for name, shell_class in SHELLS.items():
        add_completion_class(shell_class, name)


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(SHELLS)), required=False)
@shared_options
@click.pass_context
def completion_command(ctx: click.Context, shell: str | None) -> None:
    """Print the script that completes commands, operation ids and their input; SHELL defaults to $SHELL.

    \b
      opwire completion bash > ~/.local/share/bash-completion/completions/opwire
      opwire completion zsh > ~/.zfunc/_opwire      (a folder of $fpath)
      opwire completion fish > ~/.config/fish/completions/opwire.fish
      opwire completion powershell >> $PROFILE

    Ids are cached when sources are loaded; pressing TAB starts no server.
    """
    shell_class = SHELLS.get(shell or PurePath(os.environ.get("SHELL", "")).name)
    if shell_class is None:
        raise click.UsageError(f"unknown shell; name one of: {', '.join(SHELLS)}")
    click.echo(shell_class(ctx.find_root().command, {}, "opwire", "_OPWIRE_COMPLETE").source())


@click.group(name="gen", cls=CommandGroup)
def gen_command() -> None:
    """Generate code from the operations."""


@gen_command.command(short_help="Write a typed Python module that calls the operations.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The module to write.")
@namespace_option(multiple=True, help="Only operations of this namespace; may be repeated.")
@click.option("--class-name", default="Operations", show_default=True, help="The class of the client.")
@click.option("--sync", is_flag=True, help="Methods that block, for scripts and notebooks, instead of awaited ones.")
@source_options
@shared_options
@click.pass_obj
def client(
    screen: Screen, output: Path | None, namespace: tuple[str, ...], class_name: str, *, sync: bool, sources: Sources
) -> None:
    """Write a typed Python module: a method for each operation, a type for each schema."""
    from opwire.client.codegen import generate_client

    all_specs = sources.load(screen).specs.values()
    specs = [spec for spec in all_specs if not namespace or spec.namespace in namespace]
    if unknown := {*namespace} - {spec.namespace for spec in specs}:
        raise click.UsageError(unknown_namespace(min(unknown), all_specs))
    code = generate_client(specs, class_name=class_name, sync=sync)
    if output is None:
        click.echo(code, nl=False)
        return
    write_file(output, code.encode())
    screen.note(f"{output}: {counted(len(specs), 'operation')}")


@click.command(name="init")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), default="opwire.toml")
@shared_options
@click.pass_obj
def init_command(screen: Screen, path: Path) -> None:
    """Write a commented configuration to PATH, by default opwire.toml. An existing file is never overwritten."""
    write_file(path, TEMPLATE.encode(), new=True)
    option = "" if path == Path("opwire.toml") else f" -c {shlex.quote(str(path))}"
    commands = f"check them with `opwire doctor{option}`, list them with `opwire ls{option}`"
    screen.note(f"{path} written: add your sources, {commands}")


# --- keys -------------------------------------------------------------------------------------------------------------


@click.group(name="keys", cls=CommandGroup)
def keys_command() -> None:
    """Create the keys and certificates of signed calls over a broker.

    An authority certifies the public key of each caller. Servers verify callers by the public key of the authority.

    \b
      opwire keys new authority
      opwire keys new shop
      opwire keys certify shop.pem --authority authority.key --scope shop:read
      opwire spoke redis://… --authority authority.pem
      opwire ls --url redis://… --signing-key shop.key \\
          --certificate shop.certificate
    """


@keys_command.command(short_help="Write a new key, NAME.key, and its public part, NAME.pem.")
@click.argument("name", type=click.Path(path_type=Path))
@shared_options
@click.pass_obj
def new(screen: Screen, name: Path) -> None:
    """Write a new key: NAME.key is private, NAME.pem is public. Existing files are never overwritten."""
    with needs_extra("auth"):
        from opwire.auth.signed import SigningKey
    key = SigningKey.generate()
    private, public = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pem")
    write_file(public, key.public_pem.encode(), new=True)
    try:
        write_file(private, key.to_pem().encode(), new=True, mode=0o600)
    except click.ClickException:
        public.unlink()
        raise
    screen.note(f"{private} is the private key: keep it like a password. {public} is its public key")


@keys_command.command(short_help="Write a certificate for the public key of a caller.")
@click.argument("public_key", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--authority",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The private key of the authority.",
)
@click.option("--id", help="The identity of the key's holder.  [default: the name of the file]")
@click.option("--scope", multiple=True, help="A scope of the identity, or '*'; may be repeated.")
@click.option("--announce", multiple=True, help="A namespace that the holder may serve over a hub; may be repeated.")
@click.option("--delegates", is_flag=True, help="The holder may make calls with the identity of its callers.")
@click.option(
    "--days",
    type=NumberRange(0, 3650, min_open=True),
    default=30.0,
    show_default=True,
    help="How long it is valid. It cannot be revoked.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="[default: NAME.certificate]")
@shared_options
@click.pass_obj
def certify(
    screen: Screen,
    *,
    public_key: Path,
    authority: Path,
    id: str | None,
    scope: tuple[str, ...],
    announce: tuple[str, ...],
    delegates: bool,
    days: float,
    output: Path | None,
) -> None:
    """Write a certificate for a PUBLIC_KEY, which proves the identity of its holder."""
    with needs_extra("auth"):
        from opwire.auth.signed import Authority
        from opwire.auth.tokens import Grant
    identity = Identity(id=id or public_key.stem, scopes=scope)
    output = output or public_key.with_suffix(".certificate")
    grant = Grant(identity, announces=announce, delegates=delegates)
    file = authority
    try:
        issuer = Authority.from_pem(_read_key(authority))
        file = public_key
        certificate = issuer.issue(grant, _read_key(public_key), lifetime=days * 86_400)
    except UsageError as error:
        raise click.UsageError(f"{file}: {error}") from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    write_file(output, certificate.encode())
    screen.note(f"{output} names {identity.id}, for {days:g} days")


def _read_key(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_KEY_FILE_BYTES)


@click.command(name="demo")
@shared_options
def demo_command() -> None:
    """Run a short demonstration: three sources, one registry, served twice. Everything stays on this machine."""
    with needs_extra("demo"):
        from opwire.cli.demo_story import DemoPrinter, run_demo
    asyncio.run(run_demo(DemoPrinter()))
