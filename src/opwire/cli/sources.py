"""The operations of a command: loaded from a configuration file, from sources named by options, or from a URL.

Commands that load every source cache the operations, from which shells complete: pressing TAB starts no server.
"""

import asyncio
import contextlib
import importlib
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from functools import wraps
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

import click
import msgspec
from msgspec.structs import replace

from opwire.cli.screen import Screen, Spinner
from opwire.config.reading import find_config, load_config
from opwire.config.runtime import LoadEvent, OpenedConfig, SourceFailed, SourceLoaded, SourceStarted, open_config
from opwire.config.settings import (
    Config,
    EnvText,
    OpenAPISettings,
    ProgramSource,
    PythonSource,
    ServersFileSource,
    ServerSource,
    SignedSettings,
    missing_variables,
)
from opwire.errors import CallError, ConfigError, ErrorCode, OpwireError
from opwire.model.operation import OperationSpec
from opwire.names import UniqueNames, counted, similar_names, suggestion
from opwire.registry import OperationRegistry

if TYPE_CHECKING:
    from opwire.client.client import Client

P = ParamSpec("P")
T = TypeVar("T")

_NO_SOURCE_HINT = (
    "no opwire.toml in this folder or above: write one with `opwire init`, or name a source: --python shop.py, "
    "--mcp 'program arguments', --openapi file-or-URL"
)
_BROKER_ONLY_HINT = "--prefix, --signing-key and --certificate are for brokers: redis:// and nats://"
_ANONYMOUS_HINT = "callers over a broker are anonymous: use --signing-key, or start the server with --open"
_SIGNED_HINT = "check --prefix, the scopes and the expiry of --certificate, and --authority of the server"
_SHOWN_NAMESPACES = 10
_SHOWN_IDS = 5
_BROKER_SCHEMES = ("redis", "unix:", "nats:", "tls:")
_SOURCE_KEY = re.compile(r'^sources\.(?:"[^"]*"|[\w-]+)\.(\w+): ')
# Words of a command line that start a server without naming it.
_LAUNCHERS = re.compile(r"(npx|bunx|uvx|uv|pipx|node|deno|docker|run|tool|python[\d.]*)(\.exe)?")


# --- cache of completions ---------------------------------------------------------------------------------------------


class KnownOperation(NamedTuple):
    """What shells complete of an operation: its type, and the keys of its input with their values, if it is known."""

    type: str
    fields: dict[str, list[str]] | None = None


def cache_ids(key: str, specs: Iterable[OperationSpec]) -> None:
    """Cache the ids and types of operations; a cache that cannot be written is ignored.

    The fields of a document's operation are parsed lazily, so they are cached once the operation was used.
    """
    _write_cache(key, known_operations(specs, cached_ids(key) or {}))


def known_operations(
    specs: Iterable[OperationSpec], before: Mapping[str, KnownOperation] = MappingProxyType({})
) -> dict[str, KnownOperation]:
    """Return what is completed of operations; `before` has the fields of those that are not parsed yet."""
    return {
        spec.id: KnownOperation(
            spec.type.value,
            before.get(spec.id, _UNKNOWN_OPERATION).fields if spec.input_schema.is_deferred else _fields(spec),
        )
        for spec in specs
    }


def cache_fields(key: str, spec: OperationSpec) -> None:
    """Cache the fields of one operation."""
    _write_cache(key, {**(cached_ids(key) or {}), spec.id: KnownOperation(spec.type.value, _fields(spec))})


def cached_ids(key: str) -> dict[str, KnownOperation] | None:
    """Return the cached operations by id; None if the cache is missing or invalid."""
    try:
        return msgspec.json.decode(_cache_file(key).read_bytes(), type=dict[str, KnownOperation])
    except (OSError, msgspec.DecodeError):
        return None


_UNKNOWN_OPERATION = KnownOperation("")


def _fields(spec: OperationSpec) -> dict[str, list[str]]:
    from opwire.cli.inputs import SchemaField, completed_fields

    try:
        return completed_fields(SchemaField(spec.input_schema.json))
    except OpwireError:  # an invalid schema, which the call explains
        return {}


def _write_cache(key: str, operations: dict[str, KnownOperation]) -> None:
    content = msgspec.json.encode(operations)
    file = _cache_file(key)
    with contextlib.suppress(OSError):
        if file.is_file() and file.read_bytes() == content:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_bytes(content)
        new.replace(file)  # atomic: another shell may be reading


def _cache_file(key: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME")
    caches = Path(folder) if folder else Path.home() / ".cache"
    return caches / "opwire" / f"operations-{sha256(key.encode()).hexdigest()[:24]}.json"


# --- sources ----------------------------------------------------------------------------------------------------------


def run(coroutine: Coroutine[Any, Any, T], *, serves: bool = False) -> T:
    """Run a coroutine as `asyncio.run` does, without a result for its task.

    `asyncio.run` restores SIGINT by `signal.getsignal`, which formats the task and its result: 0.7 s for the schemas
    of one large operation. With `serves` it runs on uvloop if that is installed, the import of which costs a command
    that ends at once more than it saves.
    """
    results: list[T] = []

    async def keep() -> None:
        results.append(await coroutine)

    new_loop = None
    if serves:
        with contextlib.suppress(ImportError):
            new_loop = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(keep())
    return results[0]


def serving(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async command that serves until it is stopped."""

    @wraps(function)
    def command(*positional: P.args, **options: P.kwargs) -> T:
        return run(function(*positional, **options), serves=True)

    return command


class LoadedOperations(NamedTuple):
    """The operations that a command works with; `target` executes them."""

    specs: dict[str, OperationSpec]
    target: "OperationRegistry | Client"
    config: Config | None = None
    failures: Mapping[str, OpwireError] = MappingProxyType({})
    """Of sources that failed to load."""

    @asynccontextmanager
    async def client(self) -> "AsyncGenerator[Client]":
        """Open a client for the operations. Imported lazily: commands that only list them do not need it."""
        if not isinstance(self.target, OperationRegistry):
            yield self.target
            return
        from opwire.client.client import Client

        async with Client(self.target) as client:
            yield client

    def spec(self, operation_id: str) -> OperationSpec:
        """Return the spec of an operation.

        Raises:
            CallError: OPERATION_NOT_FOUND, with similar ids.
            OpwireError: the source of its namespace failed to load.
        """
        spec = self.specs.get(operation_id)
        if spec is None:
            source = None if self.config is None else _source_of(self.config, operation_id)
            if source is not None and (failure := self.failures.get(source)) is not None:
                if isinstance(failure, CallError) and failure.code is not ErrorCode.VALIDATION_ERROR:
                    raise failure
                raise ConfigError(f"sources.{source}: {failure}")  # such as its document: not an invalid input
            if "://" in operation_id:
                hint = "; a URL is the value of --url"
            elif any(spec.namespace == operation_id for spec in self.specs.values()):
                hint = f"; it is a namespace, and `opwire ls -n {operation_id}` lists its operations"
            else:
                hint = suggestion(similar_names(operation_id, self.specs), "`opwire ls` lists the operations")
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"Operation not found: {operation_id}{hint}")
        return spec

    def endpoint(self, operation_id: str) -> str | None:
        """Return `GET https://api.example/pets/{id}` for an operation of an HTTP API, else None."""
        if not isinstance(self.target, OperationRegistry):
            return None
        http = getattr(self.target.get_handler(operation_id), "__self__", None)
        plan = getattr(http, "plan", None)  # of an `HTTPOperation`; its module is imported only if there is one
        return None if plan is None else f"{plan.method} {(plan.base_url or plan.server).rstrip('/')}{plan.path}"


class Sources(NamedTuple):
    """The source options of a command."""

    config: str | None = None
    python: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    openapi: tuple[str, ...] = ()
    url: str | None = None
    token_env: str = "OPWIRE_TOKEN"  # noqa: S105 - its name
    prefix: str | None = None
    signing_key: str | None = None
    certificate: str | None = None

    @property
    def words(self) -> list[str]:
        """The options as words, for a command that uses the same sources."""
        words: list[str] = []
        for name, value in self._asdict().items():
            option_values = cast("tuple[str, ...]", value if isinstance(value, tuple) else (value,))
            if value != self._field_defaults[name]:
                words += [
                    word for option_value in option_values for word in (f"--{name.replace('_', '-')}", option_value)
                ]
        return words

    @property
    def key(self) -> str:
        """The key of the cached ids."""
        file = self.file
        return repr((self.url, self.prefix, self.python, self.mcp, self.openapi, file and str(file.absolute())))

    @property
    def file(self) -> Path | None:
        """The configuration file; defaults to the nearest one if the options name no source."""
        if self.config is not None:
            return Path(self.config)
        return None if self.python or self.mcp or self.openapi or self.url else find_config()

    def read(self, *, may_be_empty: bool = False) -> Config:
        """Return the configuration: the sources of the file and those of the options.

        Raises:
            ConfigError: the file is invalid.
            click.UsageError: the file is missing, and no option names a source.
        """
        if self.url is None and (self.prefix or self.signing_key or self.certificate):
            raise click.UsageError(f"{_BROKER_ONLY_HINT}; add --url, or write them into [spoke] of the configuration")
        file = self.file
        if file is None and not (self.python or self.mcp or self.openapi or may_be_empty):
            context = click.get_current_context(silent=True)
            takes_url = context is None or any("--url" in param.opts for param in context.command.params)
            raise click.UsageError(_NO_SOURCE_HINT + (", --url ws://hub" if takes_url else ""))
        config = Config() if file is None else load_config(file)
        names, added = UniqueNames(config.sources), dict[str, Any]()
        for target in self.python:
            added[names.take(target)] = PythonSource(python=target, required=True)
        for option, targets in (("mcp", self.mcp), ("openapi", self.openapi)):
            for text in targets:
                name, equals, target = text.partition("=")
                is_named = bool(equals) and re.fullmatch(r"[\w-]+", name) is not None
                if not is_named:
                    name, target = _default_name(text), text
                if option == "mcp":
                    added[names.take(name)] = _mcp_source(target)
                    continue
                document = target if "://" in target else str(Path(target).absolute())
                # Without a name, `from_openapi` derives the namespace from the title of the document.
                namespace = None if is_named else ""
                source = OpenAPISettings(openapi=EnvText(document), namespace=namespace, required=True)
                added[names.take(name)] = source
        return replace(config, sources={**config.sources, **added})

    @asynccontextmanager
    async def open(
        self, screen: Screen, operation_id: str | None = None, *, source: str | None = None
    ) -> AsyncGenerator[LoadedOperations]:
        """Load the sources; with `wanted` or `source`, only those that can hold that operation.

        Raises:
            CallError: the URL or a source named by an option is unavailable.
            ConfigError: the file is invalid, or a required source fails to load.
        """
        async with AsyncExitStack() as stack:
            if self.url is not None:
                from opwire.client.client import Client

                self.check_only_url(source)
                client = Client(complete_url(self.url), **self.connection_options(self.url))
                with self.token_hint():
                    await stack.enter_async_context(client)
                    loaded = LoadedOperations({spec.id: spec for spec in await client.operations()}, client)
                cache_ids(self.key, loaded.specs.values())
                if not loaded.specs and self.url.startswith(_BROKER_SCHEMES):
                    hint = _ANONYMOUS_HINT if self.signing_key is None else _SIGNED_HINT
                    screen.warning(f"there is no server, or none that shows this caller its operations; {hint}")
                yield loaded
                return
            config = self.read()
            selected = _select(config, operation_id, source)
            is_part = operation_id is not None and selected is not config
            loaded = await stack.enter_async_context(_load(selected, screen, quiet=is_part))
            if is_part and operation_id not in loaded.specs:
                await stack.aclose()
                loaded = await stack.enter_async_context(_load(config, screen))
                selected = config
            if selected is config:
                cache_ids(self.key, loaded.specs.values())
            yield loaded

    def check_only_url(self, source: str | None = None) -> None:
        """Check that no option names a source beside the URL.

        Raises:
            click.UsageError: one does.
        """
        if source or self.config or self.python or self.mcp or self.openapi:
            raise click.UsageError("--url cannot be combined with other sources: its operations are loaded remotely")

    def load(self, screen: Screen, *, source: str | None = None) -> LoadedOperations:
        """Load the sources as `open` does and close them again, for commands that call no operation."""

        async def load() -> LoadedOperations:
            async with self.open(screen, source=source) as loaded:
                return loaded

        return run(load())

    @asynccontextmanager
    async def open_local(self, screen: Screen) -> AsyncGenerator[LoadedOperations]:
        """Load the Python modules only, which starts no server and sends no request."""
        config = self.read()
        local = {name: settings for name, settings in config.sources.items() if isinstance(settings, PythonSource)}
        async with _load(replace(config, sources=local), screen) as loaded:
            yield loaded

    def token_hint(self) -> AbstractContextManager[None]:
        """Say in an error how to authenticate: by the variable of the token, or over a broker by a signature."""
        if not (self.url or "").startswith(_BROKER_SCHEMES):
            return token_hint(self.token_env)
        return unauthenticated_hint(_ANONYMOUS_HINT if self.signing_key is None else _SIGNED_HINT)

    def connection_options(self, url: str) -> dict[str, Any]:
        """Return the options of a connection to a hub, a broker or an HTTP API.

        Raises:
            click.UsageError: they are for another kind of URL, or incomplete.
            ConfigError: a key cannot be used.
        """
        if not url.startswith(_BROKER_SCHEMES):
            if self.prefix or self.signing_key or self.certificate:
                raise click.UsageError(_BROKER_ONLY_HINT)
            # From the environment: other users of the machine can read a command line. Brokers do not take a token.
            token = os.environ.get(self.token_env)
            return {"token": token} if token else {}
        if (self.signing_key is None) != (self.certificate is None):
            raise click.UsageError("--signing-key and --certificate belong together")
        options: dict[str, Any] = {} if self.prefix is None else {"prefix": self.prefix}
        if self.signing_key is not None:
            from opwire.config.surfaces import signed_requests

            files = SignedSettings(key_file=self.signing_key, certificate_file=self.certificate)
            options["signed"] = signed_requests("--signing-key", files, Path())
        return options


def token_hint(variable: str) -> AbstractContextManager[None]:
    """Say in an error by which variable to authenticate."""
    origin = "`opwire serve` and `opwire hub` print theirs"
    return unauthenticated_hint(f"set {variable} to the token of the server: {origin}")


@contextlib.contextmanager
def unauthenticated_hint(hint: str) -> Generator[None]:
    """Add what to do to the error of an unauthenticated caller."""
    try:
        yield
    except CallError as error:
        if error.code is not ErrorCode.UNAUTHENTICATED:
            raise
        raise CallError(error.code, f"{error.message}; {hint}") from error


def source_message(config: Config, error: OpwireError) -> str:
    """Return the message of a source that failed to load; without a file, with the option instead of the key."""
    return str(error) if config.file is not None else _SOURCE_KEY.sub(r"--\1: ", str(error), count=1)


@asynccontextmanager
async def opened(config: Config, screen: Screen, *, quiet: bool = False) -> AsyncGenerator[OpenedConfig]:
    """Run a configuration while the block runs; `quiet` suppresses warnings about sources that fail.

    Raises:
        CallError: a source named by an option fails to load.
        ConfigError: a required source of the file fails to load.
    """
    if not (config.file is None or config.sources or config.hub or quiet):  # such as that of `opwire init`
        screen.warning(f"{config.file} has no sources of operations: add one, such as [sources.shop]")
    async with AsyncExitStack() as stack:
        silent = [name for name, settings in config.sources.items() if settings.required or quiet]
        with LoadProgress(screen, silent=silent) as progress:
            try:
                running = await stack.enter_async_context(open_config(config, on_event=progress.event))
            except ConfigError as error:
                cause = error.__cause__
                if config.file is not None or not isinstance(cause, OpwireError):
                    raise
                # Without a file, "required" and the key of a source mean nothing to the user: raise the cause.
                if isinstance(cause, ConfigError):
                    raise ConfigError(source_message(config, cause)) from cause
                if isinstance(cause, CallError) and cause.code is ErrorCode.VALIDATION_ERROR:
                    raise ConfigError(f"--openapi: {cause.message}") from cause  # the document, not an input
                raise cause from None
        for name, ids in ({} if quiet else running.duplicates).items():
            shown_ids = ", ".join(ids[:_SHOWN_IDS]) + (", …" if len(ids) > _SHOWN_IDS else "")
            skipped = f"{counted(len(ids), 'operation')} skipped, since an earlier source has the same ids: {shown_ids}"
            screen.warning(f"source {name}: {skipped}")
        yield running


@asynccontextmanager
async def _load(config: Config, screen: Screen, *, quiet: bool = False) -> AsyncGenerator[LoadedOperations]:
    async with opened(config, screen, quiet=quiet) as running:
        specs = {spec.id: spec for spec in running.registry.list()}
        yield LoadedOperations(specs, running.registry, config, running.failures)


def _select(config: Config, operation_id: str | None, source: str | None) -> Config:
    """Return the configuration with one source only, if that source is named or its namespace is the operation's.

    An operation of an MCP server or an HTTP API calls no other source; one of a Python module may call any.
    """
    if source is not None and source not in config.sources:
        names = ", ".join(config.sources) or "none"
        raise click.UsageError(f"unknown source {source!r}; sources of the configuration: {names}")
    selected = _source_of(config, operation_id) if source is None and operation_id is not None else source
    return config if selected is None else replace(config, sources={selected: config.sources[selected]})


def _source_of(config: Config, operation_id: str) -> str | None:
    """Return the name of the MCP server or HTTP API whose namespace is that of the operation."""
    namespace = operation_id.partition(".")[0]
    for name, settings in config.sources.items():
        own_namespace = getattr(settings, "namespace", "")
        if namespace == (name if own_namespace is None else own_namespace):
            return name
    return None


def _default_name(target: str) -> str:
    """Return the name of an unnamed source: its host, its file, or its program."""
    if "://" in target:
        return (urlsplit(target).hostname or "source").replace(".", "-")
    words = [Path(word) for word in _split(target) if not word.startswith("-")]
    telling = [word for word in words if not _LAUNCHERS.fullmatch(word.name)]
    return re.sub(r"[^\w-]+", "_", (telling or words or [Path("source")])[0].stem)


def complete_url(url: str) -> str:
    """Return the URL with a scheme: for `localhost:8080` http, for other hosts https, since a token may be sent.

    Raises:
        click.UsageError: the scheme is unknown.
    """
    scheme, is_complete, _ = url.partition("://")
    if is_complete:
        from opwire.transports.connect import SCHEMES

        if scheme not in (known_schemes := ("http", "https", *SCHEMES)):
            raise click.UsageError(f"unknown URL scheme {scheme!r}; expected one of {', '.join(known_schemes)}")
        return url
    host = urlsplit(f"//{url}").hostname or ""
    return f"{'http' if host == 'localhost' or host.startswith('127.') or host == '::1' else 'https'}://{url}"


def unknown_namespace(namespace: str, specs: Iterable[OperationSpec]) -> str:
    """Return what to say of a namespace without operations."""
    namespaces = list(dict.fromkeys(spec.namespace for spec in specs))
    if namespace in namespaces:
        return f"the namespace {namespace} has no such operations"
    hint = suggestion(
        similar_names(namespace, namespaces), f"there are {', '.join(namespaces[:_SHOWN_NAMESPACES]) or 'none'}"
    )
    return f"unknown namespace {namespace!r}{hint}"


def served_tables(config: Config) -> tuple[Any, ...]:
    """Return the settings that `opwire serve` uses: it needs no secret of the others, such as those of a broker."""
    mcp, http = config.serve.mcp, config.serve.http
    is_durable = (mcp is not None and mcp.durable_tasks) or (http is not None and http.console)
    return (config.identities, config.auth, config.serve, config.durable if is_durable else None)


def check_variables(config: Config, *tables: Any) -> None:
    """Check the environment variables of `tables` and sources, all at once; an optional source may lack its own.

    Raises:
        ConfigError: variables are not set; the message names all of them.
    """
    required = tuple(settings for settings in config.sources.values() if settings.required and settings.enabled)
    if missing := missing_variables((*tables, required)):
        noun = "variable is" if len(missing) == 1 else "variables are"
        exports = " ".join(f"{name}=…" for name in missing)
        raise ConfigError(f"environment {noun} not set: {', '.join(missing)}; run: export {exports}")


def _mcp_source(target: str) -> Any:
    if target in ("stdio", "http"):
        advice = f"to serve as MCP over {target} use: opwire serve --as mcp-{target}"
        raise click.UsageError(f"--mcp names a source, an MCP server; {advice}")
    if "://" in target and " " not in target:
        return ServerSource(url=EnvText(target), required=True)
    if target.endswith(".json") and Path(target).is_file():
        return ServersFileSource(mcp_servers=EnvText(str(Path(target).absolute())), required=True)
    command, *args = [target] if Path(target).is_file() else _split(target)
    if Path(command).is_dir():
        raise click.UsageError(f"--mcp {command} is a folder; expected a program, a Python file, a JSON file or a URL")
    if command.endswith((".py", ".json")) and not Path(command).is_file():
        raise click.UsageError(f"--mcp {command}: no such file")
    if command.endswith(".py"):
        command, args = sys.executable, [str(Path(command).absolute()), *args]
    return ProgramSource(command=EnvText(command), args=tuple(map(EnvText, args)), required=True)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command) or [""]
    except ValueError as error:
        raise click.UsageError(f"invalid command line {command!r}: {error}") from None


class LoadProgress(Spinner):
    """Shows the events of `open_config` while the block runs, except failures of `silent` sources."""

    def __init__(self, screen: Screen, *, silent: Collection[str] = ()) -> None:
        super().__init__()
        self._screen = screen
        self._silent = silent
        self._pending: dict[str, None] = {}

    def event(self, event: LoadEvent) -> None:
        """Update the line; print failures, and with `-v` what was loaded."""
        match event:
            case SourceStarted(source):
                self._pending[source] = None
            case SourceLoaded(source, operations, seconds, notes) if source in self._pending:
                del self._pending[source]
                self._screen.detail(f"{source}: {counted(operations, 'operation')} in {seconds:.1f} s")
                for note in notes:
                    self._screen.detail(f"{source}: {note}")
            case SourceFailed(source, error):
                self._pending.pop(source, None)
                if not any(source == name or source.startswith(f"{name}.") for name in self._silent):
                    self._screen.warning(f"source {source} failed to load and is skipped: {error}")
            case _:
                pass
        if self._pending:
            self.update(f"loading {', '.join(self._pending)}")
