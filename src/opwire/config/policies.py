"""The policies of a file: `[policies]`."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from opwire.caching import ResponseCache
from opwire.config.settings import PoliciesSettings
from opwire.config.sources import ProjectModules
from opwire.errors import ConfigError
from opwire.operation import Handler, Interceptor, OperationSpec, OperationType
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
from opwire.view import Selection


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
        known = {"console": approvals, "caller": ask_caller}
        decide = known.get(ask) or await modules.function(ask, "policies.approval.ask")
        yield Approval(decide, **options)
    if settings.cache is not None:
        options = asdict(settings.cache)
        yield _cached(Selection(options.pop("include"), options.pop("exclude")), ResponseCache(**options))


def _cached(selection: Selection, cache: ResponseCache) -> Interceptor:
    """Return the cache for selected queries, and all mutations, which invalidate it."""

    def intercept(spec: OperationSpec, handler: Handler) -> Handler:
        is_cached = selection.selects(spec) or spec.type is OperationType.MUTATION
        return cache(spec, handler) if is_cached else handler

    return intercept
