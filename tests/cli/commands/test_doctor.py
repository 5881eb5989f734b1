"""`opwire doctor`."""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from opwire.cli.program import run
from tests.cli.process import SHOP, OnTerminal, unstyled


def findings(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Any]]:
    code = run(["doctor", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(capsys, *SHOP)
    assert code == 0
    assert {"check": "source tests.cli.shop:registry", "status": "ok", "message": "8 operations"} in found
    assert run(["doctor", *SHOP]) == 0
    assert "✓ source tests.cli.shop:registry: 8 operations\n" in capsys.readouterr().out


def test_a_policy_that_cannot_be_installed_is_one_of_the_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "opwire.toml"
    file.write_text('[policies.audit]\npath = "nowhere/audit.jsonl"\n')
    code, found = findings(capsys, "-c", str(file))
    assert code == 1
    message = "policies.audit.path: nowhere/audit.jsonl: No such file or directory"
    assert {"check": "configuration", "status": "wrong", "message": message} in found


def test_findings_are_broken_between_words_on_a_terminal() -> None:
    with OnTerminal("doctor", "--python", "nowhere.py", columns=40) as terminal:
        code, shown = terminal.end()
    assert code == 1
    lines = unstyled(shown).splitlines()
    assert any(line.startswith("✗ source nowhere.py:") for line in lines)
    assert all(line.startswith(("✓ ", "✗ ", "· ", "  ")) for line in lines if line)
    assert all(len(line) <= 40 or " " not in line.strip("✓✗· ") for line in lines)


def test_every_thing_that_is_wrong_is_found_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT_TOKEN", "short")
    (tmp_path / "good.py").write_text("from opwire import OperationRegistry\nregistry = OperationRegistry()\n")
    (tmp_path / "opwire.toml").write_text(
        """
        [sources.good]
        python = "good:registry"
        [sources.broken]
        command = "there-is-no-such-program"
        required = true
        [sources.secret]
        url = "http://127.0.0.1:1/mcp"
        headers = { Authorization = "Bearer ${NOT_SET_ANYWHERE}" }
        [identities.ann]
        token = "${SHORT_TOKEN}"
        [spoke]
        url = "ws://127.0.0.1:1"
        """
    )
    code, found = findings(capsys, "-c", str(tmp_path / "opwire.toml"))
    assert code == 1
    wrong = {each["check"]: each["message"] for each in found if each["status"] == "wrong"}
    assert wrong.keys() == {"environment", "source broken", "source secret", "callers", "spoke"}
    assert "export NOT_SET_ANYWHERE=" in wrong["environment"]
    assert "identities.ann.token" in wrong["callers"]
    assert {"check": "source good", "status": "ok", "message": "0 operations"} in found


def test_the_last_lines_of_a_server_that_fails_and_the_variables_it_does_not_get_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "s3cret")
    script = tmp_path / "shop.py"
    script.write_text("raise SystemExit('SHOP_TOKEN is required')")
    server = ("--mcp", f"shop={sys.executable} {script}")
    code, found = findings(capsys, *server)
    assert code == 1
    [wrong] = [each["message"] for each in found if each["status"] == "wrong"]
    assert "ended with status 1" in wrong
    assert "\n  SHOP_TOKEN is required\n" in wrong
    assert "although set here: SHOP_TOKEN" in wrong
    [note] = [each["message"] for each in found if each["check"] == "source shop" and each["status"] == "note"]
    assert "SHOP_TOKEN" in note
    assert "s3cret" not in note
    assert run(["doctor", *server]) == 1
    assert "not passed to the program, except by `env`; -v lists them\n" in capsys.readouterr().out


def test_what_a_server_prints_is_shown_with_v(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "shop.py"
    script.write_text("import sys; sys.exit('\x1b[2Jno database')")
    assert run(["ls", "--mcp", f"{sys.executable} {script}"]) == 6
    shown = capsys.readouterr().err
    assert shown.count("no database") == 1
    assert run(["ls", "-v", "--mcp", f"{sys.executable} {script}"]) == 6
    assert "\\x1b[2Jno database" in capsys.readouterr().err.splitlines()[0]


def test_a_policy_for_an_operation_that_does_not_exist_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "from opwire import OperationRegistry\nregistry = OperationRegistry()\n"
    (tmp_path / "a.py").write_text(f"{module}@registry.query('a.find')\ndef find() -> None: ...\n")
    (tmp_path / "opwire.toml").write_text("[sources.a]\npython = 'a.py'\n[policies.approval]\ninclude = ['a.fnd']\n")
    _, found = findings(capsys, "-c", str(tmp_path / "opwire.toml"))
    (told,) = [each for each in found if each["check"] == "policies"]
    assert (told["status"], "did you mean a.find?" in told["message"]) == ("note", True)


def test_a_pattern_of_a_view_that_matches_nothing_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All problems are reported at once, with what to do about them, and set the exit code."""
    file = tmp_path / "opwire.toml"
    file.write_text('[sources.shop]\npython = "tests.cli.shop:registry"\n[views.small]\ninclude = ["nothing.*"]\n')
    assert run(["doctor", "-c", str(file)]) == 0
    shown = capsys.readouterr()
    assert "· view small: include: 'nothing.*' matches nothing\n" in shown.out
    assert shown.err == ""


def test_mistakes_of_the_file_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "opwire.toml").write_text("[source.x]\npython = 1\n")
    code, found = findings(capsys, "-c", str(tmp_path / "opwire.toml"))
    assert code == 1
    assert found[-1]["check"] == "configuration"
    assert "sources" in found[-1]["message"]


def test_a_missing_package_is_reported_and_not_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package == "aiohttp":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, found = findings(capsys, *SHOP)
    assert code == 0
    notes = [check["message"] for check in found if check["status"] == "note"]
    assert notes == [f"not installed; if you need it: pip install 'opwire[{extra}]'" for extra in ("mcp", "openapi")]


def test_that_there_is_nothing_to_check_is_wrong_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, found = findings(capsys)
    assert code == 1
    assert "write one with `opwire init`" in found[-1]["message"]


def test_a_url_without_a_server_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(capsys, "--url", "http://127.0.0.1:1")
    assert (code, found[-1]["check"], found[-1]["status"]) == (1, "url", "wrong")
