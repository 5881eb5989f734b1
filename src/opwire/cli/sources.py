"""Where the operations of a command come from: a configuration file, sources named on the spot, or somebody's URL.

The ids of operations, remembered from the last time that they were loaded: a shell completes from these.

Nothing is started and nothing is asked when somebody presses TAB. A cache that cannot be written or read is none.

What is shown while sources are loaded: a line that changes on a terminal, words for who asked for them elsewhere.
"""

import contextlib
import os
import re
import shlex
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click
import msgspec
from msgspec.structs import replace

from opwire.cli.screen import Screen, Spinner, counted
from opwire.config.runtime import LoadEvent, SourceFailed, SourceLoaded, SourceStarted
from opwire.errors import CallError, ConfigError, ErrorCode, OpwireError
from opwire.operation import OperationSpec
from opwire.registry import OperationRegistry

if TYPE_CHECKING:
    from opwire.client import Client
    from opwire.config import Config, OpenedConfig


def remember(key: str, specs: Iterable[OperationSpec]) -> None:
    """Keep the ids and types of what some sources hold."""
    content = msgspec.json.encode({spec.id: spec.type.value for spec in specs})
    place = _place(key)
    with contextlib.suppress(OSError):
        if place.is_file() and place.read_bytes() == content:
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_suffix(f".{os.getpid()}")
        new.write_bytes(content)
        new.replace(place)  # at once: another shell may be reading


def recall(key: str) -> dict[str, str] | None:
    """The types of the operations by id, as they were; None if these sources were never loaded."""
    try:
        return msgspec.json.decode(_place(key).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return None


def _place(key: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME")
    caches = Path(folder) if folder else Path.home() / ".cache"
    return caches / "opwire" / f"ids-{sha256(key.encode()).hexdigest()[:24]}.json"


_NOTHING = (
    "there is no opwire.toml here or in a folder above: `opwire init` writes one. Or name a source: --python "
    "module:registry, --mcp 'program arguments', --openapi file-or-URL, --url ws://hub"
)
# Words of a command that start a server and do not name it.
_LAUNCHERS = re.compile(r"(npx|bunx|uvx|uv|pipx|node|deno|docker|run|tool|python[\d.]*)(\.exe)?")


class Workbench(NamedTuple):
    """What a command works with: the operations, and who can call them."""

    specs: dict[str, OperationSpec]
    target: "OperationRegistry | Client"

    @asynccontextmanager
    async def client(self) -> "AsyncGenerator[Client]":
        """A client that calls the operations. Who only lists them does not need to import it."""
        if not isinstance(self.target, OperationRegistry):
            yield self.target
            return
        from opwire.client import Client

        async with Client(self.target) as client:
            yield client

    def spec(self, operation_id: str) -> OperationSpec:
        """The operation of an id.

        Raises:
            CallError: OPERATION_NOT_FOUND, with the ids that come close to it.
        """
        spec = self.specs.get(operation_id)
        if spec is None:
            import difflib

            close = difflib.get_close_matches(operation_id, self.specs, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "`opwire ls` lists them"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"Operation not found: {operation_id}; {hint}")
        return spec


class Sources(NamedTuple):
    """What the options say."""

    config: str | None = None
    python: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    openapi: tuple[str, ...] = ()
    url: str | None = None
    token_env: str = "OPWIRE_TOKEN"  # noqa: S105 - its name

    @property
    def words(self) -> list[str]:
        """The options again, for a command that is to have the same sources."""
        named = [("--config", self.config), *(("--python", each) for each in self.python)]
        named += [("--from-mcp", each) for each in self.mcp]
        named += [("--openapi", each) for each in self.openapi]
        named += [("--url", self.url)]
        if self.token_env != Sources._field_defaults["token_env"]:
            named += [("--token-env", self.token_env)]
        return [word for option, value in named if value for word in (option, value)]

    @property
    def key(self) -> str:
        """What tells these sources from others: under it, the ids are remembered for the completion."""
        file = self._file()
        return repr((self.url, self.python, self.mcp, self.openapi, file and str(file.absolute())))

    def _file(self) -> Path | None:
        """The configuration that is given, or else, where no source is named, the nearest one."""
        from opwire.config import find_config

        if self.config is not None:
            return Path(self.config)
        return None if self.python or self.mcp or self.openapi or self.url else find_config()

    def read(self, *, may_be_empty: bool = False) -> "Config":
        """The configuration: that of the file, with what the options name.

        Raises:
            ConfigError: the file has mistakes.
            click.UsageError: there is neither a file nor a source.
        """
        from opwire.config import Config, load_config

        file = self._file()
        if file is None and not (self.python or self.mcp or self.openapi or may_be_empty):
            raise click.UsageError(_NOTHING)
        config = Config() if file is None else load_config(file)
        return replace(config, sources={**config.sources, **self._on_the_spot(set(config.sources))})

    def _on_the_spot(self, taken: set[str]) -> dict[str, Any]:
        from opwire.config.settings import EnvText, OpenAPISettings, PythonSource

        found: dict[str, Any] = {}

        def add(name: str, source: Any) -> None:
            number, unique = 1, name
            while unique in found or unique in taken:
                number += 1
                unique = f"{name}_{number}"
            found[unique] = source

        for each in self.python:
            add(each, PythonSource(python=each, required=True))
        for name, target in map(_named, self.mcp):
            add(name or _name_of(target), _mcp_source(target))
        for name, target in map(_named, self.openapi):
            place = target if "://" in target else str(Path(target).absolute())
            add(name or _name_of(target), OpenAPISettings(openapi=EnvText(place), required=True))
        return found

    @asynccontextmanager
    async def open(
        self, screen: Screen, wanted: str | None = None, *, source: str | None = None
    ) -> AsyncGenerator[Workbench]:
        """Load the sources. Where one operation or one source is wanted, those that cannot hold it are left alone.

        Raises:
            CallError: the other side of the URL, or a source that is named on the spot, cannot be reached.
            ConfigError: the file has mistakes, or a required source cannot be loaded.
        """
        async with AsyncExitStack() as stack:
            if self.url is not None:
                yield await stack.enter_async_context(self._connected(self.url, source))
                return
            config = self.read()
            narrow = _only(config, source) if source is not None else _narrowed(config, wanted)
            workbench = await stack.enter_async_context(_workbench(narrow, screen))
            if wanted is not None and wanted not in workbench.specs and narrow is not config:
                await stack.aclose()
                workbench = await stack.enter_async_context(_workbench(config, screen))
                narrow = config
            if narrow is config:
                remember(self.key, workbench.specs.values())
            yield workbench

    @asynccontextmanager
    async def open_local(self, screen: Screen) -> AsyncGenerator[Workbench]:
        """Load what starts nothing and asks nobody: the Python modules."""
        from opwire.config.settings import PythonSource

        config = self.read()
        local = {name: each for name, each in config.sources.items() if isinstance(each, PythonSource)}
        async with _workbench(replace(config, sources=local), screen) as workbench:
            yield workbench

    @asynccontextmanager
    async def _connected(self, url: str, source: str | None) -> AsyncGenerator[Workbench]:
        from opwire.client import Client

        if source or self.config or self.python or self.mcp or self.openapi:
            raise click.UsageError("--url is a place where operations are served: it goes with no other source")
        # The token comes from the environment: others can read a command line. Over a broker nobody shows one.
        token = os.environ.get(self.token_env) if url.startswith(("ws", "http")) else None
        async with Client(url, token=token) as client:
            workbench = Workbench({spec.id: spec for spec in await client.operations()}, client)
            remember(self.key, workbench.specs.values())
            yield workbench


@asynccontextmanager
async def opened(config: "Config", screen: Screen, *, quiet: bool = False) -> "AsyncGenerator[OpenedConfig]":
    """A configuration that runs, as long as the block lasts. With `quiet`, no word is said of sources that fail.

    Raises:
        CallError: a source that is named on the spot cannot be loaded.
        ConfigError: a required source of the file cannot be loaded.
    """
    from opwire.config import open_config

    async with AsyncExitStack() as stack:
        unsaid = [name for name, each in config.sources.items() if each.required or quiet]
        with Loading(screen, unsaid=unsaid) as loading:
            try:
                running = await stack.enter_async_context(open_config(config, on_event=loading.event))
            except ConfigError as error:
                # No file says that it is required: what is wrong with it says it all.
                if config.file is None and isinstance(error.__cause__, OpwireError):
                    raise error.__cause__ from None
                raise
        yield running


@asynccontextmanager
async def _workbench(config: "Config", screen: Screen) -> AsyncGenerator[Workbench]:
    async with opened(config, screen) as running:
        yield Workbench({spec.id: spec for spec in running.registry.list()}, running.registry)


def _only(config: "Config", source: str) -> "Config":
    if source not in config.sources:
        names = ", ".join(config.sources) or "none"
        raise click.UsageError(f"there is no source {source!r}; those of the configuration: {names}")
    return replace(config, sources={source: config.sources[source]})


def _narrowed(config: "Config", wanted: str | None) -> "Config":
    """The configuration with the one source whose namespace the wanted operation has, if there is such a one.

    An operation of an MCP server or an HTTP API calls no other; one of a Python module may call any.
    """
    if wanted is None:
        return config
    for name, source in config.sources.items():
        if wanted.partition(".")[0] == (getattr(source, "namespace", "") or name) and hasattr(source, "namespace"):
            return replace(config, sources={name: source})
    return config


def _named(text: str) -> tuple[str | None, str]:
    """`NAME=TARGET`, or the target alone."""
    name, equals, target = text.partition("=")
    return (name, target) if equals and re.fullmatch(r"[\w-]+", name) else (None, text)


def _name_of(target: str) -> str:
    """A namespace for a source that was given without one: the host, the file, or the program that it is about."""
    if "://" in target:
        return (urlsplit(target).hostname or "source").replace(".", "-")
    words = [Path(word) for word in _words(target) if not word.startswith("-")]
    telling = [word for word in words if not _LAUNCHERS.fullmatch(word.name)]
    return re.sub(r"[^\w-]+", "_", (telling or words or [Path("source")])[0].stem)


def _mcp_source(target: str) -> Any:
    from opwire.config.settings import EnvText, ProgramSource, ServersFileSource, ServerSource

    if "://" in target and " " not in target:
        return ServerSource(url=EnvText(target), required=True)
    if target.endswith(".json") and Path(target).is_file():
        return ServersFileSource(mcp_servers=EnvText(str(Path(target).absolute())), required=True)
    command, *args = _words(target)
    return ProgramSource(command=EnvText(command), args=tuple(map(EnvText, args)), required=True)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command) or [""]
    except ValueError as error:
        raise click.UsageError(f"{command!r} is not a program with its arguments: {error}") from None


class Loading(Spinner):
    """Shows the events of `open_config`, as long as the block lasts; failures of the sources in `unsaid` are not."""

    def __init__(self, screen: Screen, *, unsaid: Collection[str] = ()) -> None:
        super().__init__()
        self._screen = screen
        self._unsaid = unsaid
        self._waiting: dict[str, None] = {}

    def event(self, event: LoadEvent) -> None:
        """Something happened to a source."""
        match event:
            case SourceStarted(source):
                self._waiting[source] = None
            case SourceLoaded(source, operations, seconds, notes) if source in self._waiting:
                del self._waiting[source]
                self._screen.detail(f"{source}: {counted(operations, 'operation')} in {seconds:.1f} s")
                for note in notes:
                    self._screen.detail(f"{source}: {note}")
            case SourceFailed(source, error):
                self._waiting.pop(source, None)
                if not any(source == name or source.startswith(f"{name}.") for name in self._unsaid):
                    self._screen.warning(f"{source} is left out: {error}")
            case _:
                pass
        self.update(f"loading {', '.join(self._waiting)}")
