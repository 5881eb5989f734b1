"""`SyncClient` of a configuration file."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeGuard, Unpack

from opwire.client.client import ClientParameters, Target
from opwire.client.sync import LaterTarget
from opwire.client.sync import SyncClient as TargetSyncClient
from opwire.config.reading import load_config
from opwire.config.runtime import open_config
from opwire.errors import UsageError
from opwire.registry import OperationRegistry
from opwire.runtime.text import get_logger

logger = get_logger("opwire.config")


class SyncClient(TargetSyncClient):
    """Calls operations and blocks until they return. The arguments are those of `Client`, or a configuration file.

        client = SyncClient("opwire.toml")
        print(client.call("math.add", {"a": 1, "b": 2}))

        with SyncClient("https://api.example", token="…") as client:
            for tick in client.subscribe("clock.ticks"):
                print(tick)

    It connects with the first call, and disconnects at the end of the `with` block. Without one, it disconnects when it
    is no longer referenced, and when the process exits. A source of a configuration that cannot be loaded is logged as
    a warning; the others are available.

    It is thread-safe. Handlers of a registry, and interceptors, run in its own thread. A forked process, which has none
    of the threads, connects by itself.

    Raises:
        UsageError, MissingExtraError: as `Client`.
    """

    def __init__(self, target: Target | Path, **options: Unpack[ClientParameters]) -> None:
        if _is_config(target):
            super().__init__(ConfigTarget(target), **options)
        elif isinstance(target, Path):
            raise UsageError(f"the name of a configuration ends in .toml, that of {target} does not")
        else:
            super().__init__(target, **options)


class ConfigTarget(LaterTarget):
    """The operations of a configuration file, which is read and opened when the client connects."""

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[OperationRegistry]:
        """Open the sources of the file, and log those that cannot be loaded.

        Raises:
            ConfigError: the configuration is invalid, or a required source cannot be loaded.
        """
        async with open_config(load_config(self._path)) as config:
            for source, error in config.failures.items():
                logger.warning("%s: the source %s cannot be loaded: %s", self, source, error)
            yield config.registry


def _is_config(target: Target | Path) -> TypeGuard[str | Path]:
    return isinstance(target, str | Path) and str(target).endswith(".toml")
