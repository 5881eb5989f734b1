"""`opwire install`."""

import asyncio
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.cli.commands.install import CLIENTS, config_path
from opwire.cli.program import run
from opwire.mcp.client import from_mcp, read_servers

SHOP = """
from opwire import OperationRegistry
registry = OperationRegistry()

@registry.query("shop.price")
def price(article: str) -> int:
    return len(article)
"""
OTHERS: dict[str, Any] = {
    "theme": "dark",
    "mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git"], "env": {"N": 1.50}}},
    "né": [1.5, 2**70, None],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a configuration; the home folder is beside it."""
    folder = tmp_path / "my shop"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "opwire.toml").write_text('[sources.shop]\npython = "shop:registry"\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(folder)
    return folder


async def test_the_entry_that_is_written_starts_a_server_from_any_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ["--python", "shop:registry"]
    paths: list[Path] = []
    for words, file in (
        (["claude-desktop"], "home/.config/Claude/claude_desktop_config.json"),
        (["claude-code", "--scope", "project"], "my shop/.mcp.json"),
        (["cursor"], "home/.cursor/mcp.json"),
        (["vscode"], "my shop/.vscode/mcp.json"),
        (["cursor", "--scope", "project", *named], "my shop/.cursor/mcp.json"),
        (["vscode", "--scope", "user", *named], "home/.config/Code/User/mcp.json"),
    ):
        assert await asyncio.to_thread(run, ["install", *words]) == 0
        paths.append(project.parent / file)
    monkeypatch.chdir("/")
    entries = [read_servers(path) for path in paths]
    assert entries[0].keys() == {"my-shop"}
    assert entries[0] == entries[1] == entries[2] == entries[3]
    assert entries[4] == entries[5]
    for path in (paths[3], paths[5]):  # one of each kind: a server takes 1.5 s of CPU time to start
        registry = OperationRegistry()
        async with from_mcp(path, required=True) as source:
            registry.follow(source)
            [spec] = registry.list()
            assert (await registry.execute(spec.id, {"article": "tea"})).data == 3


def test_other_entries_are_kept_and_the_file_before_is_backed_up(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project.parent / "home/.cursor/mcp.json"
    target = project.parent / "dotfiles.json"
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    before = json.dumps(OTHERS, indent="\t", ensure_ascii=False)
    target.write_text(before)
    target.chmod(0o640)
    assert run(["install", "cursor"]) == 0
    written = target.read_text()
    assert json.loads(written)["mcpServers"].pop("my-shop")["command"] == sys.executable
    kept = json.loads(written)
    del kept["mcpServers"]["my-shop"]
    assert kept == OTHERS
    assert '\n\t"né": [' in written
    assert path.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    backup = project.parent / "dotfiles.json.1.bak"
    assert backup.read_text() == before
    assert str(backup) in capsys.readouterr().err
    assert sorted(each.name for each in project.parent.iterdir()) == [
        "dotfiles.json",
        "dotfiles.json.1.bak",
        "home",
        "my shop",
    ]
    assert run(["install", "cursor"]) == 0
    assert target.read_text() == written
    assert list(project.parent.glob("*.bak")) == [backup]


def test_another_server_of_the_same_name_is_replaced_by_force_only(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / ".mcp.json"
    path.write_text('{"mcpServers": {"my-shop": {"url": "http://localhost"}}}')
    assert run(["install", "claude-code"]) == 2
    assert "choose a --name, or replace it with --force" in capsys.readouterr().err
    assert "localhost" in path.read_text()
    assert run(["install", "claude-code", "--name", "other"]) == 0
    assert run(["install", "claude-code", "--force"]) == 0
    assert "localhost" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"servers": {} // mine\n}', "it has comments or trailing commas"),
        ('{"servers": {},}', "it has comments or trailing commas"),
        ('{"servers": {}, "servers": {}}', "a key occurs twice"),
        ('{"servers": []}', "servers is not an object"),
        ('{"servers": {}, "n": 1e400}', "a number is too large"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not JSON"),
        ("\xff", "not encoded as UTF-8"),
    ],
)
def test_a_file_that_would_lose_something_is_not_written_and_the_entry_is_printed(
    project: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operations are added to the configuration of an MCP client, which starts them: nothing else in the file
    changes, it is backed up, and a file that would lose something is not written."""
    path = project / ".vscode" / "mcp.json"
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    assert run(["install", "vscode"]) == 2
    out, err = capsys.readouterr()
    assert words in " ".join(err.split())
    assert json.loads(out)["servers"]["my-shop"]["type"] == "stdio"
    assert path.read_bytes() == text.encode("latin-1")
    assert list(path.parent.iterdir()) == [path]


def test_variables_are_referred_to_and_their_values_are_never_written(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "s3cret")
    toml = '[sources.api]\nurl = "https://a.example/mcp"\nheaders = { Authorization = "Bearer ${SHOP_KEY}" }\n'
    (project / "opwire.toml").write_text(toml)
    for client, reference in {
        "claude-code": "${SHOP_KEY}",
        "cursor": "${env:SHOP_KEY}",
        "vscode": "${env:SHOP_KEY}",
    }.items():
        assert run(["install", client, "--print", "--name", "x"]) == 0
        entry = json.loads(capsys.readouterr().out)[CLIENTS[client].key]["x"]
        assert entry["env"] == {"SHOP_KEY": reference}
    assert run(["install", "claude-desktop", "--print", "--name", "x"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["mcpServers"]["x"]["env"] == {}
    assert "Claude Desktop does not pass on SHOP_KEY" in err
    assert run(["install", "claude-code", "--scope", "user", "--name", "x"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("claude mcp add x --env 'SHOP_KEY=${SHOP_KEY}' --scope user -- ")
    assert "s3cret" not in out
    assert not (project.parent / "home").exists()


def test_what_cannot_be_installed_is_explained(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, reason in (
        (["claude-desktop", "--scope", "project"], "Claude Desktop has no configuration for --scope project"),
        (["cursor", "--name", "a b"], "up to 64 letters, digits"),
        (["cursor", "-c", "absent.toml"], "absent.toml"),
    ):
        assert run(["install", *words]) in (2, 3)
        assert reason in " ".join(capsys.readouterr().err.split())
    assert not (project.parent / "home").exists()


def test_the_files_of_each_system_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/ann")
    monkeypatch.setenv("APPDATA", "/appdata")
    monkeypatch.setattr(sys, "platform", "darwin")
    support = Path("/ann/Library/Application Support")
    assert config_path(CLIENTS["claude-desktop"], "user") == support / "Claude/claude_desktop_config.json"
    assert config_path(CLIENTS["vscode"], "user") == support / "Code/User/mcp.json"
    monkeypatch.setattr(sys, "platform", "win32")
    assert config_path(CLIENTS["claude-desktop"], "user") == Path("/appdata/Claude/claude_desktop_config.json")
    assert config_path(CLIENTS["cursor"], "user") == Path("/ann/.cursor/mcp.json")
