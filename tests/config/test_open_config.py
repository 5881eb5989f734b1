"""A configuration with its sources."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from opwire import CallError
from opwire.config import SourceLoaded, open_config
from opwire.config.runtime import LoadEvent, OpenedConfig
from opwire.errors import ConfigError
from tests.config.projects import DOCUMENT, TINY, project, shop

TWO = '[sources.shop]\npython = "shop:registry"\n[sources.pets]\nopenapi = "pets.yaml"\n'


async def price(opened: OpenedConfig) -> int:
    return (await opened.registry.execute("shop.price", {"article": "tea"})).data


def ids(opened: OpenedConfig) -> list[str]:
    return [spec.id for spec in opened.registry.list()]


async def test_all_sources_are_in_one_registry_in_the_order_of_the_file_until_it_is_closed(tmp_path: Path) -> None:
    config = project(tmp_path, f"{TWO}[sources.tiny]\n{TINY}", shop_py=shop(3), pets_yaml=DOCUMENT)
    events: list[LoadEvent] = []
    async with open_config(config, on_event=events.append) as opened:
        assert ids(opened) == ["shop.price", "pets.list_pets", "tiny.where"]
        assert (opened.failures, await price(opened)) == ({}, 3)
        assert [opened.source_of(id) for id in ids(opened)] == ["shop", "pets", "tiny"]
        assert opened.source_of("no.such") is None
        assert opened.files == {tmp_path / name for name in ("opwire.toml", "shop.py", "pets.yaml")}
        assert sorted(event.source for event in events if isinstance(event, SourceLoaded)) == ["pets", "shop", "tiny"]
    assert ids(opened) == []
    await opened.close()


async def test_a_source_that_fails_is_reported_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPWIRE_NO", raising=False)
    config = project(tmp_path, f'{TWO}base_url = "${{OPWIRE_NO}}"', shop_py=shop(3), pets_yaml=DOCUMENT)
    async with open_config(config) as opened:
        assert await price(opened) == 3
        assert repr(opened) == "<OpenedConfig of 1 source, 1 failed: 1 operation>"
        assert str(opened.failures["pets"]) == ("sources.pets.base_url: the environment variable OPWIRE_NO is not set")


async def test_a_server_that_is_late_is_given_up_with_its_last_lines_and_has_cleaned_up_when_it_is_closed(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "ended"
    code = f"import sys; print('downloading', file=sys.stderr); sys.stdin.read(); open('{mark}', 'w').close()"
    toml = f'[sources.x]\ncommand = "{sys.executable}"\nargs = ["-I", "-S", "-c", "{code}"]\nload_timeout = 1'
    async with open_config(project(tmp_path, toml)) as opened:
        assert "was not ready within 1 seconds" in str(opened.failures["x"])
        assert str(opened.failures["x"]).endswith("its last lines on stderr:\n  downloading")
    assert mark.exists()


async def test_a_required_source_that_fails_stops_the_start(tmp_path: Path) -> None:
    config = project(tmp_path, '[sources.a]\npython = "absent"\nrequired = true')
    with pytest.raises(ConfigError, match=r"sources\.a is required"):
        async with open_config(config):
            pytest.fail("it was opened")


async def test_a_source_that_is_not_enabled_is_left_out(tmp_path: Path) -> None:
    config = project(tmp_path, f"{TWO}enabled = false", shop_py=shop(), pets_yaml="")
    async with open_config(config) as opened:
        assert (ids(opened), opened.failures) == (["shop.price"], {})


async def test_an_operation_with_a_taken_id_is_left_out_with_a_note(tmp_path: Path) -> None:
    toml = '[sources.a]\npython = "shop"\n[sources.b]\npython = "again"\n'
    config = project(tmp_path, toml, shop_py=shop(1), again_py=shop(2))
    async with open_config(config) as opened:
        assert await price(opened) == 1
        assert opened.source_of("shop.price") == "a"
        assert opened.notes_of("b") == ["skipped operation shop.price: another source has this id"]
        assert opened.notes_of("no such source") == []


async def test_what_a_document_could_not_give_is_in_the_notes(tmp_path: Path) -> None:
    broken = DOCUMENT.replace("  /pets:", "  /broken: {get: 3}\n  /pets:")
    async with open_config(project(tmp_path, TWO, shop_py=shop(), pets_yaml=broken)) as opened:
        assert [note for note in opened.notes_of("pets") if "/broken" in note]


async def test_one_server_of_a_file_that_fails_is_reported_by_its_name(tmp_path: Path) -> None:
    tiny = {"command": sys.executable, "args": ["-I", str(Path(__file__).with_name("tiny_server.py"))]}
    servers = {"mcpServers": {"tiny": tiny, "absent": {"command": "opwire-no-such-program"}}}
    config = project(tmp_path, '[sources.all]\nmcp_servers = "s.json"', s_json=json.dumps(servers))
    async with open_config(config) as opened:
        assert (ids(opened), set(opened.failures)) == (["tiny.where"], {"all.absent"})


async def test_tools_that_a_server_adds_later_are_followed(tmp_path: Path) -> None:
    async with open_config(project(tmp_path, f"[sources.tiny]\n{TINY}")) as opened:
        added = asyncio.Event()
        opened.registry.on_change(lambda change: added.set() if change.spec.id == "tiny.more" else None)
        await opened.registry.execute("tiny.where", {"add": "more"})
        await asyncio.wait_for(added.wait(), 5)
        assert opened.source_of("tiny.more") == "tiny"
    assert ids(opened) == []


async def test_a_process_that_was_started_ends_with_the_configuration(tmp_path: Path) -> None:
    async with open_config(project(tmp_path, f"[sources.tiny]\n{TINY}")) as opened:
        process = await _process(opened, "tiny")
        handler = opened.registry.get_handler("tiny.where")
        assert Path(f"/proc/{process}").exists()
    assert handler is not None
    assert not Path(f"/proc/{process}").exists()
    with pytest.raises(CallError, match="OPERATION_NOT_FOUND"):
        await opened.registry.execute("tiny.where")


async def _process(opened: OpenedConfig, source: str) -> int:
    return (await opened.registry.execute(f"{source}.where")).data["process"]
