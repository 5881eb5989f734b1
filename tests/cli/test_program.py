"""How commands are found, and how they end."""

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from opwire.cli import exit_codes
from opwire.cli.program import COMMANDS, program, run
from tests.cli.process import COMMAND, ROOT, SHOP, OnTerminal, opwire, unstyled


def test_the_help_lists_every_command_and_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " not in listed] == []
    for name in COMMANDS:
        assert run([name, "--help"]) == 0
        assert f"Usage: opwire {name}" in capsys.readouterr().out


def test_each_command_has_the_name_that_it_is_listed_under() -> None:
    context = click.Context(program)
    commands = {name: program.get_command(context, name) for name in COMMANDS}
    assert {name: command and command.name for name, command in commands.items()} == {name: name for name in COMMANDS}


def test_a_command_that_is_not_there_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cal"]) == 2
    assert "unknown command 'cal'; did you mean call?" in capsys.readouterr().err


@pytest.mark.parametrize("group", [(), ("gen",)])
def test_an_option_before_the_command_is_explained(group: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command = "client" if group else "call"
    assert run([*group, "--python", "shop.py", command]) == 2
    help = " ".join(["opwire", *group, command, "--help"])
    said = f"unknown option --python; options follow their command; `{help}` lists its options"
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hub", "--url", "ws://h"], "unknown option --url; write the URL without it: opwire hub ws://127.0.0.1:8700"),
        (["serve", "--url", "ws://h"], "unknown option --url; --mcp URL and --openapi URL name servers elsewhere"),
        (["init", "--url", "ws://h"], "Error: unknown option --url"),
        (["hub", "--port", "1"], "unknown option --port; write the URL: opwire hub ws://127.0.0.1:8700"),
        (["ps", "--host", "h"], "unknown option --host; write the URL: opwire ps --url ws://127.0.0.1:8700"),
        (["serve", "--http", ":1"], "Got unexpected extra argument (:1); a port is the value of --port"),
        (["ps", "ws://h"], "Got unexpected extra argument (ws://h); a URL is the value of --url"),
        (["demo", "more"], "Error: Got unexpected extra argument (more)"),
        (["call", *SHOP, "ws://h"], "Operation not found: ws://h; a URL is the value of --url"),
        (["ls", *SHOP, "ws://h"], "matches; a URL is the value of --url"),
    ],
)
def test_an_error_says_where_a_url_belongs(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(arguments)
    assert capsys.readouterr().err.rstrip().endswith(said)


def test_a_field_that_is_written_as_an_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["call", *SHOP, "math.add", "--first", "1"]) == 2
    assert "No such option '--first'. A field of the input has no dashes: first=…\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["math.add", "a=1", "b=2"], 0, ""),
        (["shop.tool", "is_error=true"], 1, ""),
        (["math.add", "{"], 2, "Error: the input: invalid JSON"),
        (["math.ad"], 3, "error: OPERATION_NOT_FOUND: Operation not found: math.ad; did you mean math.add?\n"),
        (["math.add", "a=x", "b=2"], 4, 'error: VALIDATION_ERROR: math.add: /a: the value is not of type "integer"\n'),
        (["shop.fail", "code=ACCESS_DENIED"], 5, "error: ACCESS_DENIED: as you wish\\x1b[2J\n"),
        (["shop.fail", "code=UNAVAILABLE", "--timeout", "0.2"], 6, "error: "),
        (["shop.fail"], 7, "error: EXECUTION_ERROR: as you wish"),
        (["shop.fail", "code=INTERNAL"], 8, "error: INTERNAL: as you wish"),
    ],
)
def test_a_call_ends_with_the_code_of_its_outcome(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["call", *SHOP, *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_traceback_is_shown_on_request_and_a_secret_never(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["call", *SHOP, "shop.fail", "code=unforeseen"]) == 7
    assert "Traceback" not in capsys.readouterr().err
    assert run(["call", "--debug", *SHOP, "shop.fail", "code=unforeseen"]) == 7
    assert "Traceback" in capsys.readouterr().err


def test_switches_stand_before_or_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-v", "call", *SHOP, "shop.fail"]) == 7
    assert '"because": "you asked"' in capsys.readouterr().err
    assert run(["call", "--json", *SHOP, "shop.fail"]) == 7
    assert json.loads(capsys.readouterr().err)["error"]["details"] == {"because": "you asked"}
    assert run(["call", "--json", *SHOP, "math.add", "{"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "USAGE"


def test_a_peer_that_stops_reading_gets_no_error() -> None:
    listing = subprocess.Popen(
        [*COMMAND, "watch", *SHOP, "clock.ticks", "count=100000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    with listing:
        assert listing.stdout.readline() == b'{"tick":0}\n'
        listing.stdout.close()
        assert listing.wait(60) == 141
        assert listing.stderr.read() == b""


@pytest.mark.parametrize("descriptor", [0, 1, 2])
@pytest.mark.parametrize(("operation", "code"), [("shop.text", exit_codes.OK), ("shop.unknown", exit_codes.NOT_FOUND)])
def test_a_command_works_although_a_stream_is_closed(descriptor: int, operation: str, code: int) -> None:
    """A closed pipe ends a command without an error message."""
    closing = [sys.executable, "-c", f"import os, sys; os.close({descriptor}); os.execv(sys.argv[1], sys.argv[1:])"]
    ended = subprocess.run(
        [*closing, *COMMAND, "call", *SHOP, operation], capture_output=True, timeout=60, check=False, cwd=ROOT
    )
    assert ended.returncode == code


@pytest.mark.parametrize("command", [["call", "--timeout"], ["ps", "--interval"], ["conformance", "--wait"]])
def test_nan_is_not_a_number_of_seconds(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "nan", "ws://127.0.0.1:1"]) == exit_codes.USAGE
    assert f"Invalid value for '{command[1]}': nan is not a number." in capsys.readouterr().err


def test_control_c_ends_a_command_quietly() -> None:
    with OnTerminal("watch", *SHOP, "clock.ticks", "count=1", "last=false") as terminal:
        terminal.expect('"tick": 0')
        code, shown = terminal.interrupt()
    assert code == 130
    assert "Traceback" not in shown


def test_listing_a_python_registry_imports_nothing_that_it_does_not_need() -> None:
    """Listing a Python registry imports no optional package but click."""
    report = (
        "import sys\nfrom opwire.cli.program import run\n"
        "assert run(['ls', '--python', 'tests.cli.shop:registry']) == 0\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=True, cwd=ROOT, timeout=30
    )
    heavy = {"mcp", "mcp_types", "aiohttp", "rich", "pydantic", "starlette", "uvicorn", "yaml", "websockets", "jwt"}
    assert heavy & set(ended.stderr.split()) == set()


def test_a_command_in_a_pipe_has_no_colour() -> None:
    ended = opwire("doctor", *SHOP)
    assert ended.returncode == 0
    assert "\x1b" not in ended.stdout


def test_a_usage_error_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["describe", "--python", "tests.cli.shop:registry", "--source", "a\x9b31m\u202e", "x"]) != 0
    assert run(["completion", "a\x1b]0;x\x07"]) == 2
    shown = "".join(capsys.readouterr())
    assert "\\x1b]0;x" in shown
    assert not set(shown) & set("\x1b\x07\x9b\u202e")


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*path, name)
        if isinstance(found := group.get_command(context, name), click.Group):
            yield from commands(found, *path, name)


def test_the_help_of_every_command_fits_into_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for path in ((), *commands(program)):
        assert run([*path, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80] == []
        assert [line for line in lines[1:] if line.endswith("...")] == [], "a summary is cut"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("list", "ls"), ("search", "ls"), ("desribe", "describe"), ("run", "call"), ("gen clint", "client")],
)
def test_an_unknown_command_leads_to_the_one_that_is_meant(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*given.split(), "something"]) == 2
    assert f"unknown command '{given.rsplit(maxsplit=1)[-1]}'; did you mean {meant}?" in capsys.readouterr().err


def test_on_a_terminal_messages_are_broken_between_words() -> None:
    for arguments in (("call", *SHOP, "shop.ordr"), ("call", *SHOP, "math.add", "a"), ("ls", "--python", "nowhere.py")):
        with OnTerminal(*arguments, columns=40) as terminal:
            code, shown = terminal.end()
        lines = unstyled(shown).splitlines()
        assert code != 0
        assert len(lines) > 1
        assert all(len(line) <= 40 or " " not in line.strip() for line in lines)


def test_a_namespace_in_place_of_an_id_leads_to_its_operations(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["call", *SHOP, "shop"]) == 3
    assert "it is a namespace, and `opwire ls -n shop` lists its operations" in capsys.readouterr().err
