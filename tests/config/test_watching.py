"""Files that are edited while the configuration runs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from opwire.config import Reloaded, open_config, watch
from opwire.config.runtime import OpenedConfig
from tests.config.stages import DOCUMENT, project, shop, write
from tests.requirements import requirement

TOML = '[sources.shop]\npython = "shop"\n'


class Watched:
    """A configuration, and what becomes of its changes."""

    def __init__(self, opened: OpenedConfig, changes: AsyncGenerator[Reloaded]) -> None:
        self.opened = opened
        self._next = asyncio.ensure_future(anext(changes))
        self._changes = changes

    async def change(self) -> Reloaded:
        """The next change. Whoever asks has already edited a file."""
        change = await asyncio.wait_for(self._next, 10)
        self._next = asyncio.ensure_future(anext(self._changes))
        await asyncio.sleep(0)  # from here on it looks for the next one
        return change

    async def price(self) -> int:
        return (await self.opened.registry.execute("shop.price", {"article": "tea"})).data

    async def end(self) -> None:
        self._next.cancel()
        await asyncio.wait([self._next])


@asynccontextmanager
async def watched(folder: Path, toml: str = TOML, **files: str) -> AsyncGenerator[Watched]:
    config = project(folder, toml, **files)
    async with open_config(config) as opened, aclosing(watch(opened, interval=0.01)) as changes:
        stage = Watched(opened, changes)
        await asyncio.sleep(0)  # it has seen the files as they are
        try:
            yield stage
        finally:
            await stage.end()


@requirement("config.hot-reload")
async def test_an_edited_file_module_or_document_is_taken_over(tmp_path: Path) -> None:
    async with watched(tmp_path, shop_py=shop(1), pets_yaml=DOCUMENT) as stage:
        write(tmp_path, opwire_toml=f'{TOML}[sources.pets]\nopenapi = "pets.yaml"\n')
        assert (await stage.change()).loaded == ("pets",)
        write(tmp_path, pets_yaml=DOCUMENT.replace("list_pets", "all_pets"))
        assert (await stage.change()).loaded == ("pets",)
        assert "pets.all_pets" in stage.opened.registry
        assert "pets.list_pets" not in stage.opened.registry
        write(tmp_path, shop_py=shop(22))
        assert (await stage.change()).loaded == ("shop",)
        assert await stage.price() == 22


@requirement("config.broken-reload")
async def test_a_broken_file_is_reported_and_everything_runs_on(tmp_path: Path) -> None:
    async with watched(tmp_path, shop_py=shop(1)) as stage:
        write(tmp_path, opwire_toml=f"{TOML}timout = 3\n", shop_py=shop(22))
        change = await stage.change()
        assert change.loaded == ()
        assert "sources.shop.timout is no key that is known here; did you mean timeout?" in str(change.error)
        assert await stage.price() == 1
        write(tmp_path, opwire_toml=f"{TOML}timeout = 3\n")
        change = await stage.change()
        assert (change.error, change.loaded) == (None, ("shop",))
        assert await stage.price() == 22  # what was edited along with the broken file is not forgotten


async def test_a_module_that_could_not_be_imported_is_tried_again_when_it_is_mended(tmp_path: Path) -> None:
    async with watched(tmp_path) as stage:
        assert set(stage.opened.failures) == {"shop"}
        write(tmp_path, shop_py="import helper")
        assert "No module named 'helper'" in str((await stage.change()).failures["shop"])
        write(tmp_path, shop_py=shop(5))
        assert (await stage.change()).loaded == ("shop",)
        assert await stage.price() == 5


async def test_a_file_that_is_gone_for_good_is_a_broken_one(tmp_path: Path) -> None:
    async with watched(tmp_path, shop_py=shop(1)) as stage:
        (tmp_path / "opwire.toml").unlink()
        assert "there is no such file" in str((await stage.change()).error)
        assert await stage.price() == 1
