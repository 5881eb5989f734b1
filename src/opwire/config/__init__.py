"""`opwire.toml`: sources, surfaces, identities and limits in one file.

    config = load_config("opwire.toml")  # raises ConfigError with all problems, their lines and keys
    async with open_config(config, on_event=print) as opened:
        print(len(opened.registry), opened.failures)
        async for changed in watch(opened.files):  # restart to apply the changes
            print(changed)

`mcp_surface`, `http_surface`, `hub_of`, `spoke_of` and `durable_of` return the servers of the file for
`opened.registry`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opwire.config.reading import TEMPLATE, find_config, load_config, read_config
from opwire.config.runtime import LoadEvent, OpenedConfig, SourceFailed, SourceLoaded, SourceStarted, open_config, watch
from opwire.config.settings import Config, ConfigProblem

if TYPE_CHECKING:
    from opwire.config.surfaces import (
        build_authenticator,
        durable_of,
        http_surface,
        hub_of,
        mcp_http_options,
        mcp_surface,
        spoke_of,
    )

__all__ = [
    "TEMPLATE",
    "Config",
    "ConfigProblem",
    "LoadEvent",
    "OpenedConfig",
    "SourceFailed",
    "SourceLoaded",
    "SourceStarted",
    "build_authenticator",
    "durable_of",
    "find_config",
    "http_surface",
    "hub_of",
    "load_config",
    "mcp_http_options",
    "mcp_surface",
    "open_config",
    "read_config",
    "spoke_of",
    "watch",
]


def __getattr__(name: str) -> Any:
    # Imported lazily: calling operations needs neither hub nor HTTP, which take 20 ms to import.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.surfaces"), name)
