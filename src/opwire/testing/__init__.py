"""For those who build on opwire: the contract of transports as a test-suite, and faults on purpose."""

from opwire.testing.chaos import Chaos, ChaosTransport
from opwire.testing.chaos_run import ChaosReport, run_chaos
from opwire.testing.contract import LIMIT_CONTRACT, TRANSPORT_CONTRACT, check_transport
from opwire.testing.scene import Connect
from opwire.testing.virtual_time import run_virtually

__all__ = [
    "LIMIT_CONTRACT",
    "TRANSPORT_CONTRACT",
    "Chaos",
    "ChaosReport",
    "ChaosTransport",
    "Connect",
    "check_transport",
    "run_chaos",
    "run_virtually",
]
