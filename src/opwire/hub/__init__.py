"""Registries that meet: spokes over a broker, or over a hub."""

from opwire.hub.connect import connect
from opwire.hub.spoke import Spoke

__all__ = ["Spoke", "connect"]
