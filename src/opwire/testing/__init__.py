"""For those who build on opwire: the contracts of transports and journals as test-suites, and faults on purpose."""

from opwire.testing.chaos import Chaos, ChaosTransport
from opwire.testing.chaos_run import ChaosReport, run_chaos
from opwire.testing.contract import LIMIT_CONTRACT, TRANSPORT_CONTRACT, check_transport
from opwire.testing.harness import Connect
from opwire.testing.journal import JOURNAL_CONTRACT, check_journal
from opwire.testing.virtual_time import run_virtually

__all__ = [
    "JOURNAL_CONTRACT",
    "LIMIT_CONTRACT",
    "TRANSPORT_CONTRACT",
    "Chaos",
    "ChaosReport",
    "ChaosTransport",
    "Connect",
    "check_journal",
    "check_transport",
    "run_chaos",
    "run_virtually",
]
