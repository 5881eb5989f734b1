"""`opwire.toml`: sources, surfaces, identities and limits in one file.

    config = load_config("opwire.toml")  # or every mistake in it, each with its line and key
    async with open_config(config, on_event=print) as opened:
        print(len(opened.registry), opened.failures)
        async for change in watch(opened):  # files are edited: only what is different is loaded anew
            print(change)

`mcp_surface`, `http_surface`, `hub_of` and `spoke_of` make what the file serves, of `opened.registry`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opwire.config.problems import Mistake
from opwire.config.reading import find_config, load_config, read_config
from opwire.config.runtime import (
    Failed,
    Loaded,
    LoadEvent,
    OpenedConfig,
    Reloaded,
    Removed,
    Started,
    open_config,
    watch,
)
from opwire.config.settings import Config
from opwire.config.template import TEMPLATE

if TYPE_CHECKING:
    from opwire.config.surfaces import (
        build_authenticator,
        http_surface,
        hub_of,
        mcp_http_options,
        mcp_surface,
        spoke_of,
    )

__all__ = [
    "TEMPLATE",
    "Config",
    "Failed",
    "LoadEvent",
    "Loaded",
    "Mistake",
    "OpenedConfig",
    "Reloaded",
    "Removed",
    "Started",
    "build_authenticator",
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

# Loaded when first asked for: who only calls operations needs neither hub nor HTTP, which take 20 ms to import.
_SERVING = {
    "build_authenticator": "surfaces",
    "http_surface": "surfaces",
    "hub_of": "surfaces",
    "mcp_http_options": "surfaces",
    "mcp_surface": "surfaces",
    "spoke_of": "surfaces",
}


def __getattr__(name: str) -> Any:
    if name not in _SERVING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SERVING[name]}"), name)
