"""Many sources at the same time: none is in the way of another, and nothing is left behind."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from opwire import OperationRegistry
from opwire.config.runtime import Failed, Loaded, LoadEvent, Loading, Started, close_all
from opwire.config.settings import AnySource
from opwire.config.sources import OpenSource, ProjectModules, RegistrySource
from opwire.errors import CallError, ConfigError, ErrorCode
from tests.config.stages import DOCUMENT, HANGING, TINY, project, shop
from tests.requirements import requirement

AWAKE = threading.Event()


@asynccontextmanager
async def hanging_imports(folder: Path) -> AsyncGenerator[None]:
    """Modules that wait for AWAKE do so as long as this lasts; at its end they have been imported."""
    AWAKE.clear()
    try:
        yield
    finally:
        AWAKE.set()
        async with asyncio.timeout(5):
            while str(folder) in sys.path:
                await asyncio.sleep(0.01)


class Stage:
    """A project, and all that is told while it is loaded."""

    def __init__(self, folder: Path, toml: str, **files: str) -> None:
        self.config = project(folder, toml, **files)
        self.events: list[LoadEvent] = []
        self.loading = Loading(folder, ProjectModules(folder), self.events.append)

    @property
    def sources(self) -> Mapping[str, AnySource]:
        return self.config.sources

    def told(self, kind: type[LoadEvent]) -> list[str]:
        return [event.source for event in self.events if isinstance(event, kind)]


@requirement("config.concurrent")
async def test_sources_are_loaded_at_the_same_time(tmp_path: Path) -> None:
    # Each import waits until the other has begun: one after the other would wait for ever.
    waits = "import threading, here\nhere.barrier.wait(5)\n"
    stage = Stage(
        tmp_path,
        '[sources]\na.python = "a"\nb.python = "b"',
        here_py="import threading\nbarrier = threading.Barrier(2)\n",
        a_py=waits + shop(),
        b_py=waits + shop(),
    )
    await stage.loading.open_all(stage.sources, strict=True)
    assert stage.told(Started) == ["a", "b"]
    assert sorted(stage.told(Loaded)) == ["a", "b"]
    assert all(event.operations == 1 for event in stage.events if isinstance(event, Loaded))


@requirement("config.failing-source")
async def test_a_source_that_fails_or_hangs_is_reported_and_the_others_are_there(tmp_path: Path) -> None:
    toml = f"""
    [sources.shop]
    python = "shop:registry"
    [sources.pets]
    openapi = "pets.yaml"
    [sources.absent]
    command = "opwire-no-such-program"
    [sources.slow]
    python = "slow"
    timeout = 0.2
    [sources.hanging]
    timeout = 0.2
    {HANGING}
    """
    slow = "import sys\nsys.modules['tests.config.test_loading'].AWAKE.wait(20)\n"
    stage = Stage(tmp_path, toml, shop_py=shop(), pets_yaml=DOCUMENT, slow_py=slow)
    async with hanging_imports(tmp_path):
        await stage.loading.open_all(stage.sources, strict=True)
    assert sorted(stage.loading.ready) == ["pets", "shop"]
    errors = {name: error for each in stage.loading.errors.values() for name, error in each.items()}
    codes = {name: error.code for name, error in errors.items() if isinstance(error, CallError)}
    assert codes == {"absent": ErrorCode.UNAVAILABLE, "slow": ErrorCode.TIMEOUT, "hanging": ErrorCode.TIMEOUT}
    assert "sources.slow was not loaded within 0.2 s" in str(errors["slow"])
    assert sorted(stage.told(Failed)) == ["absent", "hanging", "slow"]
    await close_all(stage.loading.ready.values())
    await asyncio.gather(*stage.loading.leaving)


@requirement("config.required")
async def test_a_required_source_that_fails_stops_the_others_and_closes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPWIRE_NO", raising=False)
    others = f"[sources.tiny]\n{TINY}\n[sources.hanging]\n{HANGING}\n"
    stage = Stage(tmp_path, f'{others}[sources.api]\nopenapi = "${{OPWIRE_NO}}"\nrequired = true')
    with pytest.raises(ConfigError, match=r"^sources\.api is required: sources\.api\.openapi asks for") as caught:
        await asyncio.wait_for(stage.loading.open_all(stage.sources, strict=True), 5)
    assert isinstance(caught.value.__cause__, ConfigError)
    assert stage.told(Failed) == ["api"]


async def test_where_nothing_is_strict_a_required_source_is_reported_like_any_other(tmp_path: Path) -> None:
    stage = Stage(tmp_path, '[sources.a]\npython = "absent"\nrequired = true')
    await stage.loading.open_all(stage.sources, strict=False)
    assert set(stage.loading.errors) == {"a"}


async def test_what_was_opened_is_closed_when_loading_is_cancelled(tmp_path: Path) -> None:
    loaded = asyncio.Event()
    stage = Stage(tmp_path, f"[sources.tiny]\n{TINY}\n[sources.hanging]\n{HANGING}")
    stage.loading = Loading(
        tmp_path, ProjectModules(tmp_path), lambda event: loaded.set() if isinstance(event, Loaded) else None
    )
    task = asyncio.create_task(stage.loading.open_all(stage.sources, strict=True))
    await asyncio.wait_for(loaded.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (operation,) = stage.loading.ready["tiny"].source
    assert operation.handler is not None
    registry = OperationRegistry()
    registry.register_all([operation])
    with pytest.raises(CallError, match="closed"):
        await registry.execute(operation.spec.id)


async def test_a_failure_that_nobody_foresaw_is_told_without_its_text_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(*_: object) -> OpenSource:
        raise LookupError("hunter2")

    monkeypatch.setattr("opwire.config.runtime.open_source", breaks)
    stage = Stage(tmp_path, '[sources.a]\npython = "x"')
    await stage.loading.open_all(stage.sources, strict=False)
    error = stage.loading.errors["a"]["a"]
    assert str(error) == "INTERNAL: sources.a failed: LookupError; the log says more"
    assert "hunter2" in caplog.text


async def test_a_source_that_opens_just_when_it_is_given_up_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = asyncio.Event()

    async def close() -> None:
        closed.set()

    async def late(*_: object) -> OpenSource:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return OpenSource(RegistrySource([]), close)
        raise AssertionError

    monkeypatch.setattr("opwire.config.runtime.open_source", late)
    stage = Stage(tmp_path, '[sources.a]\npython = "x"\ntimeout = 0.01')
    await stage.loading.open_all(stage.sources, strict=False)
    await asyncio.gather(*stage.loading.leaving)
    assert closed.is_set()


async def test_one_that_does_not_close_well_does_not_keep_others_from_closing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []

    async def fails() -> None:
        raise OSError("no")

    async def closes() -> None:
        closed.append("other")

    await close_all([OpenSource(RegistrySource([]), fails), OpenSource(RegistrySource([]), closes)])
    assert closed == ["other"]
    assert "a source did not close well: no" in caplog.text
