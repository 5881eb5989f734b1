"""The views of a file: `[views.NAME]`, and `include`, `exclude` and `rename` of sources."""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import asdict

from opwire.config.settings import (
    Config,
    ConfigProblem,
    Key,
    OpenAPISettings,
    SourceSettings,
    ViewSettings,
    similar_keys,
)
from opwire.errors import UsageError
from opwire.model.operation import OperationSpec
from opwire.registry import OperationRegistry, RegistryView
from opwire.registry.reshape import Reshape
from opwire.registry.view import Pattern, ViewOptions, ViewRules

_SOURCE_PREFIX = "source:"


class ConfigRegistry(OperationRegistry):
    """The operations of all sources of a file. `sources` are the names of their sources, by id."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sources: dict[str, str] = {}


def view_of(config: Config, name: str, registry: OperationRegistry) -> RegistryView:
    """Return the view `[views.NAME]` of a registry, such as that of an opened configuration, without its `search`."""
    sources: dict[str, str] = getattr(registry, "sources", {})
    return registry.view(**_options(config.views[name], sources))


def served_view(config: Config, name: str | None, registry: OperationRegistry) -> OperationRegistry:
    """Return what a surface serves: the view `[views.NAME]`, in search mode if it says so, or the registry itself."""
    if name is None:
        return registry
    view, settings = view_of(config, name, registry), config.views[name]
    if settings.code:
        from opwire.agents.code_mode import code_mode

        return code_mode(view, pinned=settings.pinned)
    if settings.search == "never":
        return view
    from opwire.agents.search_mode import search_mode

    budget = settings.token_budget if settings.search == "auto" else None
    return search_mode(view, pinned=settings.pinned, token_budget=budget)


def source_rules(settings: SourceSettings) -> ViewRules | None:
    """Return the rules for the operations of a source, or None if it has none.

    Raises:
        UsageError: a rule is invalid.
    """
    options: ViewOptions = {"rename": settings.rename}
    if not isinstance(settings, OpenAPISettings):  # the adapter selects by paths as well
        options |= {"include": settings.include, "exclude": settings.exclude}
    return ViewRules(options) if any(options.values()) else None


def check_views(config: Config) -> Iterator[ConfigProblem]:
    """Yield the problems of views, and of rules of sources."""
    for name, view in config.views.items():
        path: Key = ("views", name)
        for option in ("include", "exclude"):
            for pattern in getattr(view, option):
                source = pattern.removeprefix(_SOURCE_PREFIX)
                if source != pattern and source not in config.sources:
                    yield ConfigProblem(
                        (*path, option), f"unknown source {source!r}", similar_keys(source, config.sources)
                    )
        try:
            ViewRules(_options(view, {}))
        except UsageError as error:
            yield ConfigProblem(path, str(error))
    for name, source in config.sources.items():
        try:
            source_rules(source)
        except UsageError as error:
            yield ConfigProblem(("sources", name), str(error))
    for surface, settings in (("mcp", config.serve.mcp), ("http", config.serve.http)):
        if settings is not None and settings.view is not None and settings.view not in config.views:
            hint = similar_keys(settings.view, config.views) or f"add [views.{settings.view}]"
            yield ConfigProblem(("serve", surface, "view"), f"unknown view {settings.view!r}", hint)


def _options(view: ViewSettings, sources: dict[str, str]) -> ViewOptions:
    def selected(patterns: Iterable[str]) -> Iterator[Pattern]:
        for pattern in patterns:
            source = pattern.removeprefix(_SOURCE_PREFIX)

            def is_of(spec: OperationSpec, source: str = source) -> bool:
                return sources.get(spec.id) == source

            yield pattern if source == pattern else is_of

    return {
        "include": list(selected(view.include)),
        "exclude": list(selected(view.exclude)),
        "rename": view.rename,
        "reshape": {key: Reshape(**asdict(reshape_settings)) for key, reshape_settings in view.reshape.items()},
        "scopes": view.scopes,
    }
