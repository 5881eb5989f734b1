"""Files that change."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from opwire.config import open_config, watch
from tests.config.projects import DOCUMENT, project, shop, write

TOML = '[sources.shop]\npython = "shop"\n[sources.pets]\nopenapi = "pets.yaml"\n'


async def after(changes: AsyncGenerator[set[Path]], folder: Path, **files: str) -> set[str]:
    """Write files, and return the names of those that are reported."""
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)  # the files are checked once before this returns
    write(folder, **files)
    return {path.name for path in await asyncio.wait_for(waiting, 10)}


async def test_an_edited_configuration_module_or_document_is_reported(tmp_path: Path) -> None:
    config = project(tmp_path, TOML, shop_py=shop(1), pets_yaml=DOCUMENT)
    async with open_config(config) as opened, aclosing(watch(opened.files, interval=0.01)) as changes:
        assert await after(changes, tmp_path, opwire_toml="") == {"opwire.toml"}
        assert await after(changes, tmp_path, shop_py=shop(22), pets_yaml="{}") == {"shop.py", "pets.yaml"}


async def test_a_module_that_could_not_be_imported_is_watched(tmp_path: Path) -> None:
    config = project(tmp_path, '[sources.shop]\npython = "shop"', shop_py="import helper")
    async with open_config(config) as opened, aclosing(watch(opened.files, interval=0.01)) as changes:
        assert set(opened.failures) == {"shop"}
        assert await after(changes, tmp_path, shop_py=shop(5)) == {"shop.py"}


async def test_a_file_that_disappears_or_appears_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a"
    async with aclosing(watch([path], interval=0.01)) as changes:
        assert await after(changes, tmp_path, a="1") == {"a"}
        waiting = asyncio.ensure_future(anext(changes))
        path.unlink()
        assert await asyncio.wait_for(waiting, 10) == {path}
