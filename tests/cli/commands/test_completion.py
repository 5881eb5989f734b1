"""`opwire completion`, and what real shells insert."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem

from opwire.cli import sources
from opwire.cli.commands.setup import SHELLS
from opwire.cli.program import run
from opwire.cli.sources import Sources
from opwire.model.operation import OperationSpec
from tests.properties import is_thorough


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert re.search(rf"_OPWIRE_COMPLETE ?= ?'?{shell}_complete", script)
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert run(["completion"]) == 0
    assert capsys.readouterr().out == script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=60)


def test_a_shell_that_is_not_known_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/nush")
    assert run(["completion"]) == 2
    assert "unknown shell; name one of: bash, zsh, fish" in capsys.readouterr().err


# What a document may call its operations, each with a prefix of its own; `touch` would leave a file behind.
HOSTILE = {
    "a": "a$(touch PWNED)",
    "b": "b`touch PWNED`;touch PWNED;",
    "d": "d';touch PWNED;'",
    "e": 'e";touch PWNED;"',
    "f": "f\\$(touch PWNED)",
    "g": "g&touch PWNED|x>PWNED",
    "h": "h*?[a-z]~{1,2}!!#^",
    "i": "i,j:k=l",
}
TYPED = HOSTILE if is_thorough() else {prefix: HOSTILE[prefix] for prefix in "adgh"}  # each starts Python twice
# Completes with the real program; otherwise writes down how it was called.
OPWIRE = """#!{python}
import json, os, sys
if "_OPWIRE_COMPLETE" in os.environ:
    os.execv({python!r}, [{python!r}, "-m", "opwire.cli", *sys.argv[1:]])
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
"""
STARTS = {
    "bash": (["--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'; source ./script"),
    "zsh": (["-f", "-i"], "autoload -U compinit; compinit -u -D; source ./script"),
    "fish": (["--no-config", "-i"], "source ./script"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a hostile document and its cached ids, and an `opwire` on the path."""
    paths = {
        f"/{n}": {"get": {"operationId": id, "responses": {"200": {"description": "ok"}}}}
        for n, id in enumerate(HOSTILE.values())
    }
    servers = [{"url": "http://127.0.0.1:9"}]
    document = {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "servers": servers, "paths": paths}
    (tmp_path / "x.json").write_text(json.dumps(document))
    program = tmp_path / "bin" / "opwire"
    program.parent.mkdir()
    program.write_text(OPWIRE.format(python=sys.executable, calls=str(tmp_path / "calls")))
    program.chmod(0o755)
    for name, value in {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "TERM": "xterm",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert run(["ls", "--openapi", "x.json"]) == 0
    return tmp_path


def typed(shell: str, folder: Path, lines: list[str], expected: int) -> list[list[str]]:
    """Type lines into an interactive shell; gives the calls of `opwire`, once there are as many as expected."""
    arguments, start = STARTS[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(shell, [shell, *arguments])
    calls = folder / "calls"
    shown = b""
    try:
        until = time.monotonic() + 60
        waiting = [start, *lines]
        while time.monotonic() < until:
            found = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
            if len(found) >= expected:
                return found
            if waiting and len(found) >= expected - len(waiting):  # one line at a time: each shell reads as it likes
                os.write(terminal, waiting.pop(0).encode() + b"\r")
            if select.select([terminal], [], [], 0.05)[0]:
                shown += os.read(terminal, 65_536)
        raise AssertionError(f"{shell} did not call opwire {expected} times, and showed {shown.decode()!r}")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


@pytest.mark.parametrize("shell", SHELLS)
def test_an_id_that_a_shell_completes_stays_text(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    capsys.readouterr()
    assert run(["completion", shell]) == 0
    (folder / "script").write_text(capsys.readouterr().out)
    lines = [f"opwire call --openapi x.json x.{prefix}\t" for prefix in TYPED]
    found = typed(shell, folder, lines, len(lines))
    assert not (folder / "PWNED").exists()
    assert [call[-1] for call in found] == [f"x.{id}" for id in TYPED.values()]


def test_zsh_loads_the_script_from_a_folder_of_fpath(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    capsys.readouterr()
    assert run(["completion", "zsh"]) == 0
    (folder / "functions").mkdir()
    (folder / "functions" / "_opwire").write_text(capsys.readouterr().out)  # as the help of the command says
    start = "fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D"
    monkeypatch.setitem(STARTS, "zsh", (STARTS["zsh"][0], start))
    (call,) = typed("zsh", folder, ["opwire call --openapi x.json x.i\t"], 1)
    assert call[-1] == f"x.{HOSTILE['i']}"


@pytest.mark.parametrize("quote", ["'", '"'])
def test_an_id_stays_text_behind_a_quote_that_was_typed(
    quote: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["completion", "bash"]) == 0
    (folder / "script").write_text(capsys.readouterr().out)
    lines = [f"opwire call --openapi x.json {quote}x.{prefix}\t" for prefix in ("abfg" if is_thorough() else "bf")]
    typed("bash", folder, lines, len(lines))
    assert not (folder / "PWNED").exists()


def test_a_script_that_was_installed_earlier_gets_only_ids_that_need_no_escape(folder: Path) -> None:
    asked = {"COMP_WORDS": "opwire call --openapi x.json x.", "COMP_CWORD": "4", "_OPWIRE_COMPLETE": "bash_complete"}
    answer = subprocess.run(
        ["opwire"], env={**os.environ, **asked}, capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split() == ["plain,x.i,j:k=l"]


def test_an_id_that_looks_like_an_option_is_not_offered(folder: Path) -> None:
    sources.cache_ids(Sources(openapi=("x.json",)).key, [OperationSpec(namespace="--mcp=sh", name="x")])
    asked = {"COMP_WORDS": "opwire call --openapi x.json ''", "COMP_CWORD": "4", "_OPWIRE_COMPLETE": "bash_complete"}
    answer = subprocess.run(
        ["opwire"], env={**os.environ, **asked}, capture_output=True, text=True, check=True, timeout=60
    )
    assert "--mcp=sh" not in answer.stdout


def ordering(folder: Path, capsys: pytest.CaptureFixture[str], shell: str) -> None:
    """Write a module with an operation and fields with values, some of them hostile, and the script of the shell."""
    code = "from opwire import OperationRegistry, OperationSpec\nregistry = OperationRegistry()\n"
    sizes = ["small", "m$(touch PWNED)", "n;touch PWNED"]
    schema = {"properties": {"size": {"enum": sizes}, "lines": {"items": {"properties": {"article": {}}}}}}
    code += f"registry.register(OperationSpec(namespace='my', name='order', input_schema={schema!r}))\n"
    (folder / "orders.py").write_text(code)
    capsys.readouterr()
    assert run(["completion", shell]) == 0
    (folder / "script").write_text(capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_fields_and_their_values_are_completed_as_text(
    shell: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    ordering(folder, capsys, shell)
    call = "opwire call --python orders.py my.order"
    lines = [
        f"{call} size=s\t",
        f"{call} size=m\t",
        f"{call} size=n\t",
        f"{call} li\ttea",
        "opwire ls --python orders.py -n m\t",
    ]
    found = typed(shell, folder, lines, len(lines))
    assert not (folder / "PWNED").exists()
    assert [each[-1] for each in found] == [
        "size=small",
        "size=m$(touch PWNED)",
        "size=n;touch PWNED",
        "lines.0.article=tea",
        "my",
    ]


@pytest.mark.parametrize(
    ("typed_words", "offered"),
    [
        (["my.order", "si"], ["field\tsize=\tsize="]),
        (["my.order", "'size=m"], ["plain\t'size=m$(touch PWNED)'\tsize=m$(touch PWNED)"]),
        (["my.order", "size=s"], ["plain\tsize=small\tsize=small"]),
        (["my."], ["plain\tmy.order\tquery"]),
    ],
)
def test_powershell_gets_words_in_single_quotes(
    typed_words: list[str], offered: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ordering(folder, capsys, "powershell")
    words = "\n".join(["opwire", "call", "--python", "orders.py", *typed_words])
    answer = subprocess.run(
        ["opwire"],
        env={**os.environ, "COMP_WORDS": words, "_OPWIRE_COMPLETE": "powershell_complete"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout.splitlines() == offered


def test_powershell_quotes_are_doubled_even_typographic_ones() -> None:
    item = CompletionItem("a\u2019; b'c")
    assert (
        SHELLS["powershell"](click.Command("x"), {}, "x", "X").format_completion(item).split("\t")[1]
        == "'a\u2019\u2019; b''c'"
    )
