"""Python modules of the project around a configuration file: imported, and imported anew when they change."""

import importlib
import sys
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from opwire.config.mistakes import did_you_mean
from opwire.errors import ConfigError
from opwire.registry import OperationRegistry
from opwire.workers import WorkerPool

_THREADS = 16  # imports at the same time, not counting those that hang


class ProjectModules:
    """Imports modules, which are looked for in `folder` first, and remembers those that were found there.

    Imports run on threads, because one may wait for ever. `sys.path` has the folder as long as one runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = frozenset(sys.modules)  # what the process needs for itself is never imported anew
        self._threads = WorkerPool(_THREADS)
        self._lock = threading.Lock()
        self._running = 0
        self.files: set[Path] = set()
        """Where the modules are, those included that could not be imported."""

    async def registries(self, target: str, at: str) -> list[OperationRegistry]:
        """What "module:attribute" or "module" names; `at` is the key that says so.

        Raises:
            ConfigError: there is no such thing, or the import failed.
        """
        name, colon, attribute = target.partition(":")
        if not name or (colon and not attribute):
            raise ConfigError(f'{at} is "module:registry" or "module"')
        module: ModuleType = await self._threads.run(partial(self._import, name, at), f"the import of {name}")
        if attribute:
            return [_registry_at(module, attribute, at)]
        found = {id(each): each for each in _registries_in(module).values()}  # one may have two names
        if not found:
            raise ConfigError(f"{at}: the module {name} holds no OperationRegistry")
        return list(found.values())

    def forget(self) -> None:
        """Take the project's modules out of `sys.modules`, so that the next import is one of their files."""
        for name in self._modules():
            sys.modules.pop(name, None)

    def forget_edited(self) -> None:
        """As `forget`, for files that have just been edited."""
        # Python tells by the second whether it has to compile a file again, and people save more often than that.
        for compiled in [getattr(module, "__cached__", None) for module in self._modules().values()]:
            if isinstance(compiled, str):
                with suppress(OSError):
                    Path(compiled).unlink()
        self.forget()
        importlib.invalidate_caches()

    def _import(self, name: str, at: str) -> ModuleType:
        try:
            with self._on_path():
                return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            self.files |= {*self._files_in(error), self._folder / f"{name.replace('.', '/')}.py"}
            raise ConfigError(f"{at}: {self._reason(name, error)}") from error
        finally:
            self.files |= {Path(module.__file__) for module in self._modules().values() if module.__file__}

    @contextmanager
    def _on_path(self) -> Generator[None]:
        with self._lock:
            self._running += 1
            if self._running == 1:
                sys.path.insert(0, str(self._folder))
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0 and str(self._folder) in sys.path:
                    sys.path.remove(str(self._folder))

    def _modules(self) -> dict[str, ModuleType]:
        """The modules that came from the folder since we began."""
        return {
            name: module
            for name, module in tuple(sys.modules.items())
            if name.partition(".")[0] not in self._before and self._is_ours(getattr(module, "__file__", None))
        }

    def _is_ours(self, file: str | None) -> bool:
        return file is not None and Path(file).is_relative_to(self._folder) and "site-packages" not in Path(file).parts

    def _files_in(self, error: BaseException) -> list[Path]:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            files.append(error.filename)
        return [Path(file) for file in files if self._is_ours(file)]

    def _reason(self, name: str, error: BaseException) -> str:
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
            return f"there is no module {error.name}, neither in {self._folder} nor among the installed packages"
        reason = f"{name} cannot be imported: {type(error).__name__}: {error}"
        frames = [each for each in traceback.extract_tb(error.__traceback__) if self._is_ours(each.filename)]
        if not frames or isinstance(error, SyntaxError):  # which says itself where
            return reason
        return f"{reason} ({Path(frames[-1].filename).relative_to(self._folder)}, line {frames[-1].lineno})"


def _registries_in(module: ModuleType) -> dict[str, OperationRegistry]:
    return {name: each for name, each in vars(module).items() if isinstance(each, OperationRegistry)}


def _registry_at(module: ModuleType, attribute: str, at: str) -> OperationRegistry:
    try:
        found: Any = attrgetter(attribute)(module)
    except AttributeError:
        names = list(_registries_in(module))
        hint = did_you_mean(attribute, names) or (f"it has {', '.join(names)}" if names else "")
        message = f"{at}: the module {module.__name__} has no {attribute}{f'; {hint}' if hint else ''}"
        raise ConfigError(message) from None
    if not isinstance(found, OperationRegistry):
        kind = type(found).__name__
        raise ConfigError(f"{at}: {attribute} of {module.__name__} is no OperationRegistry, but of type {kind}")
    return found
