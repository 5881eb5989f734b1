"""`watch`: notices that files have changed, and loads anew what was read from them."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from opwire.config.events import Reloaded
from opwire.config.opened import OpenedConfig
from opwire.config.reading import load_config
from opwire.errors import ConfigError

_Stamp = tuple[int, int, int] | None


async def watch(opened: OpenedConfig, *, interval: float = 0.5) -> AsyncGenerator[Reloaded]:
    """Follow the configuration file, the project's Python modules, and the documents of its sources.

        async for change in watch(opened):
            print(change)

    Files are looked at every `interval` seconds; a change counts once the files have come to rest. A file that cannot
    be used any more changes nothing, and its mistakes are the `error` of what is yielded.
    """
    seen = _stamps(opened.files)
    touched: set[Path] = set()  # and not yet loaded anew
    while True:
        await asyncio.sleep(interval)
        now = _stamps(opened.files)
        if _touched(seen, now):
            now = await _at_rest(opened, now, interval)
            touched |= _touched(seen, now)
            change = await _take_over(opened, touched)
            if change.error is None:
                touched.clear()
            now = {**_stamps(opened.files), **now}
            yield change
        seen = now


async def _at_rest(opened: OpenedConfig, now: dict[Path, _Stamp], interval: float) -> dict[Path, _Stamp]:
    """The files once nobody writes them any more: editors and `git checkout` take several steps."""
    while True:
        await asyncio.sleep(interval)
        before, now = now, _stamps(opened.files)
        if before == now:
            return now


async def _take_over(opened: OpenedConfig, touched: set[Path]) -> Reloaded:
    file = opened.config.file
    try:
        config = opened.config if file is None else load_config(file)
    except ConfigError as error:
        return Reloaded(error=error)
    return await opened.reload(config, touched=touched)


def _touched(before: dict[Path, _Stamp], now: dict[Path, _Stamp]) -> set[Path]:
    return {path for path, stamp in now.items() if path in before and before[path] != stamp}


def _stamps(files: Iterable[Path]) -> dict[Path, _Stamp]:
    return {path: _stamp(path) for path in files}


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
