"""Registries that call each other: a WebSocket hub with its spokes, or nodes on a broker."""

from opwire.hub.hub import Hub
from opwire.hub.observer import ObservedServer, Observer
from opwire.hub.remote_server import RemoteServer
from opwire.hub.spoke import BrokerNode, Spoke
from opwire.transports.connect import connect

__all__ = ["BrokerNode", "Hub", "ObservedServer", "Observer", "RemoteServer", "Spoke", "connect"]
