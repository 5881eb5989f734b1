"""`open_config`: install the policies of a configuration, and load its sources concurrently, each with its own timeout.

A source that fails does not affect the others. `watch` reports changed files, for a restart.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from opwire.config.settings import (
    AnySource,
    Config,
    MCPSettings,
    OpenAPISettings,
    PoliciesSettings,
    PythonSource,
    dotted,
)
from opwire.config.sources import ProjectModules, files_of, open_source
from opwire.config.views import ConfigRegistry, source_rules
from opwire.errors import CallError, ConfigError, ErrorCode, OpwireError
from opwire.model.operation import Handler, Interceptor, Operation, OperationSpec, OperationType
from opwire.names import counted
from opwire.policies import (
    Approval,
    ApprovalQueue,
    AuditLog,
    CallBudget,
    CircuitBreaker,
    ConcurrencyLimit,
    RateLimit,
    ask_caller,
)
from opwire.registry.source import AdapterSource, Skipped, SourceChange
from opwire.registry.view import Selection, ViewRules
from opwire.runtime.text import get_logger

if TYPE_CHECKING:
    from opwire.console.system import SourceStatus
    from opwire.openapi.client import OpenAPISource
    from opwire.openapi.webhooks import WebhookReceiver

logger = get_logger("opwire.config")

_TYPE_PATTERNS = frozenset(
    f"type:{operation_type}" for operation_type in OperationType
)  # a source need not have operations of every type
_CLOSE_GRACE_SECONDS = 10.0
"""Additional seconds for MCP servers: each has its own timeout and better message, and needs time to stop."""


class SourceStarted(Struct, frozen=True):
    """A source is being loaded."""

    source: str


class SourceLoaded(Struct, frozen=True):
    """A source is loaded; `notes` are the lines of its report."""

    source: str
    operations: int
    seconds: float
    notes: tuple[str, ...] = ()


class SourceFailed(Struct, frozen=True):
    """A source cannot be loaded, or a part of it: then `source` is "file.server"."""

    source: str
    error: OpwireError
    seconds: float


LoadEvent = SourceStarted | SourceLoaded | SourceFailed


@asynccontextmanager
async def open_config(
    config: Config, *, on_event: Callable[[LoadEvent], object] = lambda event: None
) -> AsyncGenerator["OpenedConfig"]:
    """Load all sources concurrently, and close them at the end of the block.

        async with open_config(load_config("opwire.toml"), on_event=print) as opened:
            await opened.registry.execute("shop.order", {...})

    A source that fails, or exceeds its `load_timeout`, is in `failures`; the others are not affected.

    Raises:
        ConfigError: a `required` source failed; its own error is the cause.
    """
    opened = OpenedConfig(config, on_event)
    try:
        await opened.load()
        yield opened
    finally:
        await opened.close()


class OpenedConfig:
    """A configuration with loaded sources. Returned by `open_config`."""

    def __init__(self, config: Config, on_event: Callable[[LoadEvent], object]) -> None:
        settings = config.registry
        self.config = config
        self.registry = ConfigRegistry(
            normalize=settings.normalize, strip=settings.strip, max_workers=settings.max_workers
        )
        """The operations of all sources."""
        self.failures: dict[str, OpwireError] = {}
        """The errors of sources, by name; of one server of an `mcpServers` file, by "source.server"."""
        self.approvals = ApprovalQueue()
        """The calls that wait for approval in the console."""
        self._on_event = on_event
        self._opened: dict[str, AdapterSource] = {}
        self._mounted: dict[str, MountedSource] = {}
        self._abandoned: set[asyncio.Task[None]] = set()  # sources that timed out, and still clean up
        self._modules = ProjectModules(config.folder)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        sources = counted(len(self._mounted), "source")
        return f"<OpenedConfig of {sources}{failed}: {counted(len(self.registry), 'operation')}>"

    @property
    def files(self) -> set[Path]:
        """The files that the configuration was loaded from: its own, Python modules and documents."""
        of_sources = (files_of(settings, self.config.folder) for settings in self.config.sources.values())
        files = self._modules.files.union(*of_sources)
        return files if self.config.file is None else {*files, self.config.file.absolute()}

    @property
    def webhooks(self) -> "dict[str, WebhookReceiver]":
        """The receivers of webhooks, by the name of their source."""
        settings = self.config.sources
        configured = [name for name in self._opened if getattr(settings.get(name), "webhooks", None) is not None]
        receivers = {name: cast("OpenAPISource", self._opened[name]).webhooks for name in configured}
        return {name: receiver for name, receiver in receivers.items() if receiver is not None}

    def source_of(self, operation_id: str) -> str | None:
        """Return the name of an operation's source, or None."""
        return self.registry.sources.get(operation_id)

    @property
    def duplicates(self) -> dict[str, list[str]]:
        """The ids that are skipped since an earlier source has them, by source."""
        return {name: sorted(source.duplicates) for name, source in self._mounted.items() if source.duplicates}

    def notes_of(self, source: str) -> list[str]:
        """Return the report of a source: skipped items, warnings and duplicate ids."""
        mounted = self._mounted.get(source)
        if mounted is None:
            return []
        return [*mounted.source.report, *map(str, mounted.skipped()), *mounted.problems]

    def statuses(self) -> "Iterator[SourceStatus]":
        """Yield the status of every source, for the console: what it has, what was skipped and why, and its error."""
        from opwire.console.system import SourceStatus

        for name, settings in self.config.sources.items():
            python, openapi = isinstance(settings, PythonSource), isinstance(settings, OpenAPISettings)
            mounted, kind = self._mounted.get(name), "python" if python else "openapi" if openapi else "mcp"
            if mounted is None:
                error = self.failures.get(name)
                state = "disabled" if error is None else "failed"
                yield SourceStatus(name=name, kind=kind, state=state, error=UNSET if error is None else str(error))
                continue
            report = mounted.source.report
            parts = [f"{part}: {error}" for part, error in mounted.source.failures.items()]
            yield SourceStatus(
                name=name,
                kind=kind,
                state="loaded",
                operations=len(mounted.ids),
                skipped=(*report.skipped, *mounted.skipped()),
                warnings=(*report.warnings, *mounted.problems, *parts),
            )

    def policy_problems(self) -> list[str]:
        """Return the patterns of policies that match no operation: by a typo, calls would need no approval.

        Empty if a source failed: it may have the operations.
        """
        specs, problems = self.registry.list(), list[str]()
        for name in PoliciesSettings.__struct_fields__:
            policy = getattr(self.config.policies, name)
            if policy is not None and not self.failures:
                selection = Selection(
                    *(
                        [pattern for pattern in part if pattern not in _TYPE_PATTERNS]
                        for part in (policy.include, policy.exclude)
                    )
                )
                for spec in specs:
                    selection.selects(spec)
                problems += [f"policies.{name}.{problem}" for problem in selection.problems(spec.id for spec in specs)]
        return problems

    async def load(self) -> None:
        """Install the policies, and load the enabled sources.

        Raises:
            ConfigError: a policy cannot be installed, or a `required` source failed.
        """
        policies = create_policies(self.config.policies, self.config.folder, self._modules, self.approvals)
        async for policy in policies:
            self.registry.use(policy)
        enabled = {name: settings for name, settings in self.config.sources.items() if settings.enabled}
        try:
            async with asyncio.TaskGroup() as group:
                for name, settings in enabled.items():
                    group.create_task(self._load_one(name, settings))
        except BaseExceptionGroup as failed:
            first: BaseException = failed.exceptions[0]
            raise first from first.__cause__
        for name in enabled:  # in the order of the file, which decides between duplicate ids
            if name in self._opened:
                rules = source_rules(self.config.sources[name])
                self._mounted[name] = MountedSource(name, self._opened[name], self.registry, rules)

    async def close(self) -> None:
        """Close all sources, and remove their operations from the registry; idempotent."""
        for mounted in self._mounted.values():
            mounted.unmount()
        self._mounted.clear()
        opened, self._opened = self._opened, {}
        for error in await asyncio.gather(*(source.close() for source in opened.values()), return_exceptions=True):
            if isinstance(error, Exception):
                logger.warning("a source raised when it was closed: %s", error, exc_info=error)
        await asyncio.gather(*self._abandoned)
        self._modules.forget()

    async def _load_one(self, name: str, settings: AnySource) -> None:
        started = time.monotonic()
        self._on_event(SourceStarted(name))
        try:
            source = self._opened[name] = await self._open(name, settings)
        except OpwireError as error:
            self.failures[name] = error
            self._on_event(SourceFailed(name, error, time.monotonic() - started))
            if settings.required:
                raise ConfigError(f"{dotted(('sources', name))} is required: {error}") from error
            return
        seconds = time.monotonic() - started
        for part, error in source.failures.items():
            self.failures[f"{name}.{part}"] = error
            self._on_event(SourceFailed(f"{name}.{part}", error, seconds))
        self._on_event(SourceLoaded(name, sum(1 for _ in source), seconds, tuple(source.report)))

    async def _open(self, name: str, settings: AnySource) -> AdapterSource:
        """Open a source within its timeout; one that is late is abandoned at once, and cleans up in the background."""
        limit = settings.load_timeout + (_CLOSE_GRACE_SECONDS if isinstance(settings, MCPSettings) else 0)
        key = dotted(("sources", name))
        opening = asyncio.create_task(open_source(name, settings, self.config.folder, self._modules))

        async def abandon() -> None:
            opening.cancel()
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None:  # it had just been opened
                await opening.result().close()

        try:
            await asyncio.wait({opening}, timeout=limit)
        except asyncio.CancelledError:
            await abandon()
            raise
        if not opening.done():
            self._abandoned.add(asyncio.create_task(abandon()))
            message = f"{key} was not loaded within {limit:g} s: check that it is running, or increase its load_timeout"
            raise CallError(ErrorCode.TIMEOUT, message)
        try:
            return opening.result()
        except OpwireError:
            raise
        except Exception as error:
            logger.exception("%s raised an unexpected exception", key)
            message = f"{key} failed: {type(error).__name__}; see the log"
            raise CallError(ErrorCode.INTERNAL, message) from error


async def create_policies(
    settings: PoliciesSettings, folder: Path, modules: ProjectModules, approvals: ApprovalQueue
) -> AsyncIterator[Interceptor]:
    """Yield the policies of a file, the outermost first; `approvals` are the calls that wait in the console.

    Raises:
        ConfigError: the audit log cannot be written, or the function that approves calls does not exist.
    """
    if settings.audit is not None:
        options: dict[str, Any] = asdict(settings.audit)
        try:
            yield AuditLog(folder / options.pop("path"), **options)
        except OSError as error:
            raise ConfigError(f"policies.audit.path: {settings.audit.path}: {error.strerror}") from error
    if settings.budget is not None:
        yield CallBudget(**asdict(settings.budget))
    if settings.rate is not None:
        yield RateLimit(**asdict(settings.rate))
    if settings.concurrency is not None:
        yield ConcurrencyLimit(**asdict(settings.concurrency))
    if settings.breaker is not None:
        yield CircuitBreaker(**asdict(settings.breaker))
    if settings.approval is not None:
        options = asdict(settings.approval)
        ask = options.pop("ask")
        approvers = {"console": approvals, "caller": ask_caller}
        decide = approvers.get(ask) or await modules.function(ask, "policies.approval.ask")
        yield Approval(decide, **options)
    if settings.cache is not None:
        from opwire.policies.cache import ResponseCache  # a part that may be removed

        options = asdict(settings.cache)
        selection = Selection(options.pop("include"), options.pop("exclude"))
        cache = ResponseCache(**options)

        def cached(spec: OperationSpec, handler: Handler) -> Handler:
            """Cache selected queries; all mutations pass through the cache, since they invalidate it."""
            is_cached = selection.selects(spec) or spec.type is OperationType.MUTATION
            return cache(spec, handler) if is_cached else handler

        yield cached


class MountedSource:
    """The operations of one source in the registry, which follow its changes.

    Unlike `registry.follow`, it tolerates ids of other sources: they are skipped, and in `duplicates`.
    """

    def __init__(
        self, name: str, source: AdapterSource, registry: ConfigRegistry, rules: ViewRules | None = None
    ) -> None:
        self.source = source
        self.ids: dict[str, str] = {}
        """The ids of the source, and those of the registry."""
        self.duplicates: set[str] = set()
        self._name = name
        self._registry = registry
        self._rules = rules
        self._unfollow = source.on_change(self._follow)
        self._detach = registry.followed.attach(registry, source)
        self._put(source)

    @property
    def problems(self) -> tuple[str, ...]:
        """Patterns of the rules that match nothing, and operations that they leave out."""
        return () if self._rules is None else self._rules.problems(operation.spec.id for operation in self.source)

    def skipped(self) -> list[Skipped]:
        """Return the operations with an id that another source has, too."""
        return [Skipped("operation", id, "another source has this id") for id in sorted(self.duplicates)]

    def unmount(self) -> None:
        """Remove the operations from the registry."""
        self._unfollow()
        self._detach()
        self._drop(tuple(self.ids))

    def _follow(self, change: SourceChange) -> None:
        self._put(change.put)
        self._drop(change.gone)

    def _put(self, operations: Iterable[Operation]) -> None:
        operations_by_id = {operation.spec.id: operation for operation in operations}
        if self._rules is not None:
            derived = {id: self._rules.derive(id, operation.spec) for id, operation in operations_by_id.items()}
            operations_by_id = {
                id: replace(operations_by_id[id], spec=derived_operation.spec)
                for id, derived_operation in derived.items()
                if derived_operation is not None
            }
        sources = self._registry.sources
        self.duplicates |= {
            id
            for id, operation in operations_by_id.items()
            if operation.spec.id in self._registry and sources.get(operation.spec.id) != self._name
        }
        own_operations = {id: operation for id, operation in operations_by_id.items() if id not in self.duplicates}
        self.ids |= {id: operation.spec.id for id, operation in own_operations.items()}
        sources |= dict.fromkeys(self.ids.values(), self._name)
        self._registry.register_all(own_operations.values(), replace=True)

    def _drop(self, operation_ids: Iterable[str]) -> None:
        self.duplicates.difference_update(operation_ids)
        for id in (self.ids.pop(operation_id) for operation_id in operation_ids if operation_id in self.ids):
            if id in self._registry:
                self._registry.unregister(id)
            self._registry.sources.pop(id, None)


async def watch(paths: Iterable[Path], *, interval: float = 0.5) -> AsyncGenerator[set[Path]]:
    """Yield the files that have changed, after each change.

        async for changed in watch(opened.files):
            print(changed)

    Files are checked every `interval` seconds; changes are collected until they stop, because editors and
    `git checkout` write in several steps.
    """
    paths = tuple(paths)

    def versions() -> dict[Path, tuple[int, int, int] | None]:
        file_versions: dict[Path, tuple[int, int, int] | None] = {}
        for path in paths:
            try:
                status = path.stat()
                file_versions[path] = status.st_mtime_ns, status.st_size, status.st_ino
            except OSError:
                file_versions[path] = None
        return file_versions

    before = versions()
    while True:
        await asyncio.sleep(interval)
        now = versions()
        if now == before:
            continue
        while True:
            await asyncio.sleep(interval)
            last, now = now, versions()
            if last == now:
                break
        changed = {path for path in paths if before[path] != now[path]}
        before = now
        if changed:
            yield changed
