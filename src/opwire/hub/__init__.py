"""Registries that meet: spokes over a broker, or over a hub."""

from opwire.hub.connect import connect
from opwire.hub.hub import Hub
from opwire.hub.spoke import Spoke

__all__ = ["Hub", "Spoke", "connect"]
