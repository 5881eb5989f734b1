"""Register operations, bind them to handlers, find and call them."""

from opwire.registry.registry import OperationRegistry, RegistryView, build_env

__all__ = ["OperationRegistry", "RegistryView", "build_env"]
