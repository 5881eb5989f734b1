"""Many sources at the same time: none is in the way of another, and nothing is left behind."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from opwire import OperationRegistry
from opwire.config import LoadEvent, OpenedConfig, SourceFailed, SourceLoaded, SourceStarted, open_config
from opwire.errors import CallError, ConfigError, ErrorCode
from opwire.model.operation import Operation
from opwire.registry.source import AdapterSource
from tests.config.projects import DOCUMENT, HANGING, TINY, project, shop

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


class Recorded:
    """The events of loading sources."""

    def __init__(self) -> None:
        self.events: list[LoadEvent] = []

    def __call__(self, event: LoadEvent) -> None:
        self.events.append(event)

    def sources(self, kind: type[LoadEvent]) -> list[str]:
        return [event.source for event in self.events if isinstance(event, kind)]


class Closing(AdapterSource):
    """A source without operations that records whether it was closed."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.is_closed = False
        self._error = error

    def __iter__(self) -> Iterator[Operation]:
        return iter(())

    async def close(self) -> None:
        if self._error is not None:
            raise self._error
        self.is_closed = True


async def test_sources_are_loaded_at_the_same_time(tmp_path: Path) -> None:
    # Each import waits until the other has started: sequential ones would wait forever.
    waits = "import threading, here\nhere.barrier.wait(5)\n"
    config = project(
        tmp_path,
        '[sources]\na.python = "a"\nb.python = "b"',
        here_py="import threading\nbarrier = threading.Barrier(2)\n",
        a_py=waits + shop(),
        b_py=waits + shop(),
    )
    recorded = Recorded()
    async with open_config(config, on_event=recorded) as opened:
        assert opened.failures == {}
    assert recorded.sources(SourceStarted) == ["a", "b"]
    assert sorted(recorded.sources(SourceLoaded)) == ["a", "b"]
    assert all(event.operations == 1 for event in recorded.events if isinstance(event, SourceLoaded))


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
    load_timeout = 0.2
    [sources.hanging]
    load_timeout = 0.2
    {HANGING}
    """
    slow = "import sys\nsys.modules['tests.config.test_loading'].AWAKE.wait(20)\n"
    config = project(tmp_path, toml, shop_py=shop(), pets_yaml=DOCUMENT, slow_py=slow)
    recorded = Recorded()
    async with hanging_imports(tmp_path), open_config(config, on_event=recorded) as opened:
        assert sorted(recorded.sources(SourceLoaded)) == ["pets", "shop"]
        codes = {name: error.code for name, error in opened.failures.items() if isinstance(error, CallError)}
        assert codes == {"absent": ErrorCode.UNAVAILABLE, "slow": ErrorCode.TIMEOUT, "hanging": ErrorCode.TIMEOUT}
        assert "sources.slow was not loaded within 0.2 s" in str(opened.failures["slow"])
        assert sorted(recorded.sources(SourceFailed)) == ["absent", "hanging", "slow"]
        AWAKE.set()


async def test_a_required_source_that_fails_stops_the_others_and_closes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPWIRE_NO", raising=False)
    others = f"[sources.tiny]\n{TINY}\n[sources.hanging]\n{HANGING}\n"
    config = project(tmp_path, f'{others}[sources.api]\nopenapi = "${{OPWIRE_NO}}"\nrequired = true')
    recorded = Recorded()
    opened = OpenedConfig(config, recorded)
    with pytest.raises(ConfigError, match=r"^sources\.api is required: sources\.api\.openapi: the env") as caught:
        await asyncio.wait_for(opened.load(), 10)
    assert isinstance(caught.value.__cause__, ConfigError)
    assert recorded.sources(SourceFailed) == ["api"]
    await asyncio.wait_for(opened.close(), 10)


async def test_sources_that_were_opened_are_closed_when_loading_is_cancelled(tmp_path: Path) -> None:
    loaded = asyncio.Event()
    config = project(tmp_path, f"[sources.tiny]\n{TINY}\n[sources.hanging]\n{HANGING}")
    opened = OpenedConfig(config, lambda event: loaded.set() if isinstance(event, SourceLoaded) else None)
    task = asyncio.create_task(opened.load())
    await asyncio.wait_for(loaded.wait(), 10)
    (operation,) = opened._opened["tiny"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await opened.close()
    registry = OperationRegistry()
    registry.register_all([operation])
    with pytest.raises(CallError, match="closed"):
        await registry.execute(operation.spec.id)


async def test_an_unexpected_failure_is_reported_without_its_text_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(*_: object) -> AdapterSource:
        raise LookupError("hunter2")

    monkeypatch.setattr("opwire.config.runtime.open_source", breaks)
    async with open_config(project(tmp_path, '[sources.a]\npython = "x"')) as opened:
        assert str(opened.failures["a"]) == "INTERNAL: sources.a failed: LookupError; see the log"
    assert "hunter2" in caplog.text


async def test_a_source_that_opens_just_when_it_is_abandoned_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Closing()

    async def late(*_: object) -> AdapterSource:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return source
        raise AssertionError

    monkeypatch.setattr("opwire.config.runtime.open_source", late)
    async with open_config(project(tmp_path, '[sources.a]\npython = "x"\nload_timeout = 0.01')) as opened:
        assert set(opened.failures) == {"a"}
    assert source.is_closed


async def test_a_source_that_raises_on_close_does_not_keep_others_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {"a": Closing(OSError("no")), "b": Closing()}

    async def open_source(name: str, *_: object) -> AdapterSource:
        return sources[name]

    monkeypatch.setattr("opwire.config.runtime.open_source", open_source)
    async with open_config(project(tmp_path, '[sources]\na.python = "x"\nb.python = "y"')):
        pass
    assert sources["b"].is_closed
    assert "a source raised when it was closed: no" in caplog.text
